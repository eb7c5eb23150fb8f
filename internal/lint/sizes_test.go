package lint

import (
	"fmt"
	"go/ast"
	"path"
	"slices"
	"strings"
	"testing"
)

// A function that takes more than mostParams parameters, or a type that has more than mostMethods methods, is several
// things under one name: parameters that travel together are a value, and methods that share some of the fields are a
// type of their own.
const (
	mostParams  = 8
	mostMethods = 40
)

// TestSizes: no function has more than mostParams parameters and no type more than mostMethods methods. Test files and
// generated files are left out.
func TestSizes(t *testing.T) {
	for name, size := range sizes(sources(t)) {
		most, what := mostParams, "parameters"
		if size.methods {
			most, what = mostMethods, "methods"
		}
		if size.n > most {
			t.Errorf("%s has %d %s, where %d are allowed; hint: make values of parameters that travel together, and types of methods that share fields", name, size.n, what, most)
		}
	}
}

// size is how many parameters a function has, or methods a type.
type size struct {
	n       int
	methods bool
}

// sizes measures all functions and types of the repository. Methods that several systems have their own version of count
// once.
func sizes(list []source) map[string]size {
	all := map[string]size{}
	methods := map[string][]string{}
	for _, s := range list {
		if strings.HasSuffix(s.path, "_test.go") || ast.IsGenerated(s.file) {
			continue
		}
		dir := path.Dir(s.path)
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				name := dir + "." + n.Name.Name
				if n.Recv != nil {
					typ := dir + "." + receiverName(n.Recv.List[0].Type)
					name = typ + "." + n.Name.Name
					if !slices.Contains(methods[typ], n.Name.Name) {
						methods[typ] = append(methods[typ], n.Name.Name)
					}
				}
				all[name] = size{n: max(all[name].n, n.Type.Params.NumFields())}
			case *ast.FuncLit:
				name := fmt.Sprintf("%s:%d", s.path, s.set.Position(n.Pos()).Line)
				all[name] = size{n: n.Type.Params.NumFields()}
			case *ast.TypeSpec:
				if i, ok := n.Type.(*ast.InterfaceType); ok {
					all[dir+"."+n.Name.Name] = size{i.Methods.NumFields(), true}
				}
			}
			return true
		})
	}
	for typ, names := range methods {
		all[typ] = size{len(names), true}
	}
	return all
}

// receiverName returns the name of a receiver's type, without pointer and type parameters.
func receiverName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiverName(e.X)
	case *ast.IndexExpr:
		return receiverName(e.X)
	case *ast.IndexListExpr:
		return receiverName(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}
