package config

import (
	_ "embed"
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"strings"

	"go.yaml.in/yaml/v3"
)

// source is the file that declares all keys. A key's description is the comment of its field, read on demand,
// so that no second copy has to be kept in step.
//
//go:embed config.go
var source string

// Key describes a key of a configuration.
type Key struct {
	Name    string `json:"name"`              // with dots for nested ones
	Section bool   `json:"section,omitempty"` // it contains the following keys, whose names begin with its own
	Default string `json:"default,omitempty"` // as YAML; "" if it is required, derived from others, none or 0
	Help    string `json:"help,omitempty"`
}

// Keys lists all keys, each section before its contents.
func Keys() []Key {
	file, err := parser.ParseFile(token.NewFileSet(), "config.go", source, parser.ParseComments)
	if err != nil {
		panic(err) // it was compiled
	}
	k := keys{structs: map[string]*ast.StructType{}, docs: map[string]string{}}
	for _, d := range file.Decls {
		if d, ok := d.(*ast.GenDecl); ok && d.Tok == token.TYPE {
			t := d.Specs[0].(*ast.TypeSpec)
			if s, ok := t.Type.(*ast.StructType); ok {
				k.structs[t.Name.Name], k.docs[t.Name.Name] = s, said(t.Name.Name, d.Doc)
			}
		}
	}
	k.section("", reflect.ValueOf(Default()))
	return k.list
}

// keys collects keys from the declarations of their structs.
type keys struct {
	structs map[string]*ast.StructType
	docs    map[string]string
	list    []Key
}

// section adds the keys of a struct that holds their defaults.
func (k *keys) section(prefix string, v reflect.Value) {
	for _, f := range k.structs[v.Type().Name()].Fields.List {
		if len(f.Names) == 0 { // embedded
			continue
		}
		name := f.Names[0].Name
		field, _ := v.Type().FieldByName(name)
		key := field.Tag.Get("yaml")
		if key == "" || key == "-" {
			continue
		}
		value, help := v.FieldByName(name), []string{said(name, f.Doc), said(name, f.Comment)}
		section := value.Kind() == reflect.Struct
		if section {
			help = append(help, k.docs[field.Type.Name()])
		}
		entry := Key{Name: prefix + key, Section: section, Help: join(help)}
		if !section {
			entry.Default = preset(value)
		}
		k.list = append(k.list, entry)
		if section {
			k.section(prefix+key+".", value)
		}
	}
}

// preset returns a default as YAML, or "" for a value that means the same as leaving the key out.
func preset(v reflect.Value) string {
	if v.IsZero() || v.CanInt() && v.Int() == derived || v.CanFloat() && v.Float() == derived {
		return ""
	}
	text, err := yaml.Marshal(v.Interface())
	if err != nil {
		panic(err) // a default cannot be written, which a test would show
	}
	return strings.TrimSpace(string(text))
}

// said returns a comment as one line, without the name it begins with.
func said(name string, c *ast.CommentGroup) string {
	text := strings.Join(strings.Fields(c.Text()), " ")
	text = strings.TrimPrefix(text, name+" ")
	return strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(text, "is "), "are "), ".")
}

func join(parts []string) string {
	var list []string
	for _, p := range parts {
		if p != "" {
			list = append(list, p)
		}
	}
	return strings.Join(list, "; ")
}
