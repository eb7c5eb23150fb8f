package jinja

import (
	"fmt"
	"slices"
	"strings"
)

// function is a function, a method, a filter or a test.
type function func(m *machine, a args) (Value, error)

// args are the arguments of a call.
type args struct {
	list  []Value
	names []string // of the named arguments
	named []Value
}

// take removes and returns a named argument.
func (a *args) take(name string) (Value, bool) {
	i := slices.Index(a.names, name)
	if i < 0 {
		return nil, false
	}
	v := a.named[i]
	a.names, a.named = slices.Delete(a.names, i, i+1), slices.Delete(a.named, i, i+1)
	return v, true
}

// done refuses named arguments that nobody took.
func (a *args) done() error {
	if len(a.names) > 0 {
		return fmt.Errorf("the argument %.40q is not known", a.names[0])
	}
	return nil
}

// bind returns the arguments for parameters, nil for missing ones.
func (a args) bind(least int, params ...string) ([]Value, error) {
	if len(a.list) > len(params) {
		return nil, fmt.Errorf("got %d arguments, expected at most %d", len(a.list), len(params))
	}
	out := make([]Value, len(params))
	copy(out, a.list)
	for i := len(a.list); i < len(params); i++ {
		if v, ok := a.take(params[i]); ok {
			out[i] = v
		} else if i < least {
			return nil, fmt.Errorf("the argument %q is missing", params[i])
		}
	}
	return out, a.done()
}

// textOf returns an argument that must be a text; nil stays nil.
func textOf(v Value) (Text, error) {
	switch v := v.(type) {
	case nil, None:
		return nil, nil
	case Text:
		return v[:len(v):len(v)], nil
	case Undefined:
		return nil, v.fault()
	}
	return nil, fmt.Errorf("expected a str, got a %s", typeName(v))
}

// intOf returns an argument that must be an integer; other is what nil stands for.
func intOf(v Value, other int64) (int64, error) {
	if v == nil {
		return other, nil
	}
	if _, i, isInt, _ := number(v); isInt {
		return i, nil
	}
	return 0, fmt.Errorf("expected an int, got a %s", typeName(v))
}

// functions are the names that every template finds.
var functions = map[string]function{
	"range":           rangeOf,
	"namespace":       newNamespace,
	"dict":            dictFrom,
	"raise_exception": raise,
	"strftime_now":    strftimeNow,
}

func rangeOf(m *machine, a args) (Value, error) {
	v, err := a.bind(1, "start", "stop", "step")
	if err != nil {
		return nil, err
	}
	var n [3]int64
	for i, other := range []int64{0, 0, 1} {
		if n[i], err = intOf(v[i], other); err != nil {
			return nil, err
		}
	}
	if v[1] == nil {
		n[0], n[1] = 0, n[0]
	}
	first, end, step := n[0], n[1], n[2]
	if step == 0 {
		return nil, fmt.Errorf("the step of a range is zero")
	}
	out := &List{}
	for i := first; step > 0 && i < end || step < 0 && i > end; i += step {
		if err := m.spend(1); err != nil {
			return nil, err
		}
		out.Items = append(out.Items, i)
		if next := i + step; (next > i) != (step > 0) {
			break
		}
	}
	return out, nil
}

// namespace is the one kind of value that templates can change.
type namespace struct{ fields *Dict }

func (n *namespace) put(name string, v Value) error {
	if strings.HasPrefix(name, "_") {
		return fmt.Errorf("the attribute %.40q of a namespace begins with an underscore", name)
	}
	n.fields.Set(name, v)
	return nil
}

func newNamespace(m *machine, a args) (Value, error) {
	v, err := dictFrom(m, a)
	if err != nil {
		return nil, err
	}
	d := v.(*Dict)
	for _, k := range d.keys {
		if name, ok := k.(Text); !ok || strings.HasPrefix(name.String(), "_") {
			return nil, fmt.Errorf("names in a namespace must be strings that do not begin with an underscore")
		}
	}
	return &namespace{d}, nil
}

// dictFrom makes a mapping from another, or from pairs, and from named arguments.
func dictFrom(m *machine, a args) (Value, error) {
	out := NewDict()
	if len(a.list) > 1 {
		return nil, fmt.Errorf("got %d arguments, expected at most one", len(a.list))
	}
	for _, v := range a.list {
		pairs, err := m.pairs(v)
		if err != nil {
			return nil, err
		}
		for _, p := range pairs {
			kv, err := m.iterate(p)
			if err == nil && len(kv) != 2 {
				err = fmt.Errorf("expected a pair, got %d items", len(kv))
			}
			if err == nil {
				err = m.put(out, kv[0], kv[1])
			}
			if err != nil {
				return nil, err
			}
		}
	}
	for i, name := range a.names {
		out.Set(name, a.named[i])
	}
	return out, m.spend(len(out.keys))
}

// pairs returns the pairs of a mapping, or the items of a list.
func (m *machine) pairs(v Value) ([]Value, error) {
	d, ok := v.(*Dict)
	if !ok {
		return m.iterate(v)
	}
	out := make([]Value, len(d.keys))
	for i := range out {
		out[i] = &List{[]Value{d.keys[i], d.values[i]}, true}
	}
	return out, m.spend(2 * len(out))
}

func raise(m *machine, a args) (Value, error) {
	v, err := a.bind(1, "message")
	if err != nil {
		return nil, err
	}
	text, err := m.text(v[0])
	if err != nil {
		return nil, err
	}
	return nil, &RaisedError{text[:min(len(text), 500)].String()}
}

// dateFormats maps the letters of Python's strftime to Go's layouts.
var dateFormats = map[byte]string{
	'd': "02", 'm': "01", 'y': "06", 'Y': "2006", 'b': "Jan", 'B': "January", 'a': "Mon", 'A': "Monday",
	'H': "15", 'I': "03", 'M': "04", 'S': "05", 'p': "PM", 'j': "002", 'F': "2006-01-02", 'T': "15:04:05", 'D': "01/02/06", 'e': "_2",
}

func strftimeNow(m *machine, a args) (Value, error) {
	v, err := a.bind(1, "format")
	if err != nil {
		return nil, err
	}
	format, err := textOf(v[0])
	if err != nil {
		return nil, err
	}
	var out Text
	for i := 0; i < len(format); i++ {
		c := format[i]
		if c.Rune() != '%' || i+1 == len(format) {
			out = append(out, c)
			continue
		}
		i++
		letter := format[i].Rune()
		layout, ok := dateFormats[byte(letter)]
		switch {
		case letter == '%':
			out = append(out, c)
		case ok && letter < 0x80:
			out = append(out, Own(m.now.Format(layout))...)
		default:
			return nil, fmt.Errorf("the date format %%%c is not known", letter)
		}
	}
	return out, m.spend(len(out))
}

// loop is the variable of that name, at one of the items.
type loop struct {
	items []Value
	at    int
}

// now returns the loop as it is at this item.
func (l *loop) now() *loop { c := *l; return &c }

func (l *loop) attribute(m *machine, name string) (Value, bool, error) {
	n := len(l.items)
	neighbour := func(i int) Value {
		if i < 0 || i >= n {
			return Undefined{"the item beyond the loop's ends"}
		}
		return l.items[i]
	}
	switch name {
	case "index":
		return int64(l.at + 1), true, nil
	case "index0":
		return int64(l.at), true, nil
	case "revindex":
		return int64(n - l.at), true, nil
	case "revindex0":
		return int64(n - l.at - 1), true, nil
	case "first":
		return l.at == 0, true, nil
	case "last":
		return l.at == n-1, true, nil
	case "length":
		return int64(n), true, nil
	case "depth":
		return int64(1), true, nil // more in recursive loops only
	case "depth0":
		return int64(0), true, nil
	case "previtem":
		return neighbour(l.at - 1), true, nil
	case "nextitem":
		return neighbour(l.at + 1), true, nil
	case "cycle":
		return function(func(_ *machine, a args) (Value, error) {
			if len(a.list) == 0 {
				return nil, fmt.Errorf("there are no items to cycle through")
			}
			return a.list[l.at%len(a.list)], a.done()
		}), true, nil
	case "changed":
		return nil, false, fmt.Errorf("loop.changed is not supported; hint: use loop.previtem")
	}
	return nil, false, nil
}
