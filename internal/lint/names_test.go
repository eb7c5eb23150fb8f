package lint

import (
	"go/ast"
	"slices"
	"strings"
	"testing"
)

// silent are words that say nothing of what a function does unless one opens it, and that had up to eleven unrelated
// meanings here: a function needs a verb with its object (findMachine, splitOverlapped), or a noun that has one
// meaning in the whole repository.
var silent = strings.Fields(`
	between whole apart together within alike turned on with across beside above below behind back again
	past to as off in under over up here rest`)

// TestNames: no function or method is called by such a word alone.
func TestNames(t *testing.T) {
	where := map[string][]string{}
	for _, s := range sources(t) {
		if strings.HasSuffix(s.path, "_test.go") {
			continue
		}
		check := func(id *ast.Ident) {
			if w := strings.ToLower(id.Name); slices.Contains(silent, w) {
				where[w] = append(where[w], s.set.Position(id.Pos()).String())
			}
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				check(n.Name)
			case *ast.InterfaceType:
				for _, m := range n.Methods.List {
					for _, id := range m.Names {
						check(id)
					}
				}
			}
			return true
		})
	}
	for w, list := range where {
		t.Errorf("functions are called %s; hint: say what a function does, with its object:\n%s", w, strings.Join(list, "\n"))
	}
}
