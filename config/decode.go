package config

import (
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// decoder matches a YAML mapping with the fields of a struct, and reports every key
// that is unknown or of the wrong kind, with its line.
type decoder struct {
	file  string
	lines map[string]int
	errs  []error
}

func (d *decoder) fail(key, msg string) {
	d.errs = append(d.errs, &Error{File: d.file, Line: d.lines[key], Key: key, Msg: msg})
}

// given reports whether the document has a key.
func (d *decoder) given(key string) bool {
	_, ok := d.lines[key]
	return ok
}

// override replaces or adds keys of the document.
func (d *decoder) override(root *yaml.Node, overrides []string) {
	for _, o := range overrides {
		key, value, ok := strings.Cut(o, "=")
		var doc yaml.Node
		if err := yaml.Unmarshal([]byte(value), &doc); err != nil {
			d.errs = append(d.errs, &Error{File: d.file, Key: key, Msg: fmt.Sprintf("%s: %s; hint: quote names that begin with * or [, as YAML requires: '%s=%s'", value, strings.TrimPrefix(err.Error(), "yaml: "), key, quoted(value))})
			continue
		}
		if !ok || key == "" || len(doc.Content) == 0 {
			d.errs = append(d.errs, &Error{File: d.file, Msg: fmt.Sprintf("override %q: expected key=value; hint: such as limits.device=64MiB", o)})
			continue
		}
		v := doc.Content[0]
		clearLines(v)
		set(root, strings.Split(key, "."), v)
	}
}

// quoted returns a value in YAML's quotes, or a list with each of its elements in them.
func quoted(value string) string {
	inner, list := strings.CutPrefix(value, "[")
	inner, closed := strings.CutSuffix(inner, "]")
	if !list || !closed {
		return `"` + value + `"`
	}
	each := strings.Split(inner, ",")
	for i, e := range each {
		each[i] = `"` + strings.Trim(e, ` '"`) + `"`
	}
	return "[" + strings.Join(each, ", ") + "]"
}

// overridden reports whether an override has a key.
func (d *decoder) overridden(key string) bool { return d.given(key) && d.lines[key] == 0 }

func clearLines(n *yaml.Node) {
	n.Line = 0
	for _, c := range n.Content {
		clearLines(c)
	}
}

func set(m *yaml.Node, path []string, v *yaml.Node) {
	for i := 0; i+1 < len(m.Content); i += 2 {
		if m.Content[i].Value != path[0] {
			continue
		}
		if len(path) == 1 {
			m.Content[i].Line = 0
			m.Content[i+1] = v
			return
		}
		if m.Content[i+1].Kind != yaml.MappingNode {
			m.Content[i+1] = &yaml.Node{Kind: yaml.MappingNode}
		}
		set(m.Content[i+1], path[1:], v)
		return
	}
	for i := len(path) - 1; i > 0; i-- {
		v = &yaml.Node{Kind: yaml.MappingNode, Content: []*yaml.Node{{Kind: yaml.ScalarNode, Value: path[i]}, v}}
	}
	m.Content = append(m.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: path[0]}, v)
}

func (d *decoder) decode(root *yaml.Node, c *Config) {
	d.mapping(root, "", reflect.ValueOf(c).Elem())
}

func (d *decoder) mapping(n *yaml.Node, prefix string, v reflect.Value) {
	fields := map[string]reflect.Value{}
	var names []string
	for i := range v.NumField() {
		if name := v.Type().Field(i).Tag.Get("yaml"); name != "" && name != "-" {
			fields[name] = v.Field(i)
			names = append(names, name)
		}
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		path := prefix + key.Value
		if d.lines[path] > 0 && key.Line > 0 {
			d.errs = append(d.errs, &Error{File: d.file, Line: key.Line, Key: path, Msg: "given twice; hint: keep one of the two"})
		}
		d.lines[path] = key.Line
		f, ok := fields[key.Value]
		if !ok {
			d.fail(path, "unknown key"+hint(key.Value, names))
			continue
		}
		if value.ShortTag() == "!!null" {
			delete(d.lines, path)
			continue
		}
		d.value(value, path, f)
	}
}

// value decodes into one field. Struct fields are mappings, or for some of them a
// single word.
func (d *decoder) value(n *yaml.Node, path string, f reflect.Value) {
	if n.Kind == yaml.AliasNode {
		d.fail(path, "YAML aliases are not supported; hint: write the value itself")
		return
	}
	if n.Kind == yaml.ScalarNode {
		switch t := f.Addr().Interface().(type) {
		case *Model:
			*t = Model{Name: n.Value}
			return
		case *Plan:
			*t = Plan{}
			if n.Value != "auto" {
				t.File = n.Value
			}
			return
		}
	}
	if path == "ranks" && n.Value == "auto" {
		f.SetInt(AutoRanks)
		return
	}
	if path == "delink_at" && n.Value == "auto" {
		f.SetInt(AutoDelink)
		return
	}
	if path == "sequence_length" {
		n = inTokens(n)
	}
	_, special := f.Addr().Interface().(yaml.Unmarshaler)
	if f.Kind() == reflect.Struct && !special {
		if n.Kind != yaml.MappingNode {
			text := fmt.Sprintf("expected a mapping such as {key: value}, got %q", n.Value)
			if path == "hardware" {
				text += "; hint: a card's name is hardware.name"
			}
			d.fail(path, text)
			return
		}
		d.mapping(n, path+".", f)
		if below := func(key string) bool { return strings.HasPrefix(key, path+".") }; len(n.Content) > 0 && !slices.ContainsFunc(slices.Collect(maps.Keys(d.lines)), below) {
			delete(d.lines, path) // all keys in it are null
		}
		return
	}
	if n.ShortTag() == "!!float" && (f.CanInt() || f.CanUint()) && !special { // would be truncated
		var v float64
		if err := n.Decode(&v); err != nil || v != math.Trunc(v) || math.Abs(v) > 1<<53 { // beyond that not every whole number is a float64
			d.fail(path, kindError(nil, n, f))
			return
		}
	}
	if err := n.Decode(f.Addr().Interface()); err != nil {
		text := kindError(err, n, f)
		if path == "ranks" || path == "delink_at" {
			text += "; hint: or auto"
		}
		d.fail(path, text)
	}
}

// inTokens replaces a length in thousands as people write it, 4k for 4096.
func inTokens(n *yaml.Node) *yaml.Node {
	amount, k := strings.CutSuffix(strings.ToLower(n.Value), "k")
	if v, err := strconv.Atoi(amount); k && err == nil && v > 0 && v <= 1<<14 {
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!int", Value: strconv.Itoa(v << 10), Line: n.Line, Column: n.Column}
	}
	return n
}

// kindError describes in words what was expected.
func kindError(err error, n *yaml.Node, f reflect.Value) string {
	var want string
	switch f.Kind() {
	case reflect.Int, reflect.Int64:
		want = "a whole number"
	case reflect.Uint64:
		want = fmt.Sprintf("a whole number from 0 to %d", uint64(math.MaxUint64))
	case reflect.Float64:
		want = "a number"
	case reflect.Bool:
		want = "true or false"
	case reflect.String:
		want = "a string"
	}
	if _, special := f.Addr().Interface().(yaml.Unmarshaler); special || want == "" {
		return strings.TrimPrefix(err.Error(), "yaml: ")
	}
	if n.Kind != yaml.ScalarNode {
		return "expected " + want
	}
	return fmt.Sprintf("expected %s, got %q", want, n.Value)
}
