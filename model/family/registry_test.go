package family

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// TestRegistered: a family that a file declares is one of families, or of the parts of wrappers; else nothing would read its models, and no test would say so.
func TestRegistered(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	declared, listed := map[string]bool{}, map[string]bool{}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			v, ok := n.(*ast.ValueSpec)
			if !ok || len(v.Values) != 1 {
				return true
			}
			literal, ok := v.Values[0].(*ast.CompositeLit)
			if !ok {
				return true
			}
			if of, ok := literal.Type.(*ast.Ident); ok && of.Name == "family" {
				declared[v.Names[0].Name] = true
			}
			if v.Names[0].Name == "families" || v.Names[0].Name == "parts" {
				for _, e := range literal.Elts {
					listed[e.(*ast.UnaryExpr).X.(*ast.Ident).Name] = true
				}
			}
			return true
		})
	}
	if n := len(families) + len(parts); len(declared) != n {
		t.Errorf("%d families are declared, %d are listed", len(declared), n)
	}
	for name := range declared {
		if !listed[name] {
			t.Errorf("%s is declared, but not in families (family.go), nor in parts (wrapper.go)", name)
		}
	}
}
