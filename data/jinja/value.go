package jinja

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
)

// Value is what an expression gives: None, Undefined, bool, int64, float64, Text, *List, *Dict, or a thing
// that only templates make (functions, namespaces, loops).
type Value any

// None is Python's None, JSON's null.
type None struct{}

// Undefined is what a name or an attribute that does not exist gives: it prints as nothing and is false,
// and most other uses of it are errors.
type Undefined struct{ what string }

// fault is the error for a use of it.
func (u Undefined) fault() error { return fmt.Errorf("%s is undefined", u.what) }

// List is a list or, if tuple is set, a tuple. Templates cannot change it.
type List struct {
	Items []Value
	tuple bool
}

// Dict is a mapping in insertion order.
type Dict struct {
	keys   []Value
	values []Value
	index  map[string]int // by hash
}

// NewDict returns an empty mapping.
func NewDict() *Dict { return &Dict{index: map[string]int{}} }

// Set puts a value under a name.
func (d *Dict) Set(name string, v Value) {
	if err := d.put(Own(name), v); err != nil {
		panic(err) // a text is a key
	}
}

func (d *Dict) put(key, v Value) error {
	h, err := hash(key)
	if err != nil {
		return err
	}
	if i, ok := d.index[h]; ok {
		d.values[i] = v
		return nil
	}
	d.index[h] = len(d.keys)
	d.keys, d.values = append(d.keys, key), append(d.values, v)
	return nil
}

// put is Dict.put, charged to the budget.
func (m *machine) put(d *Dict, key, v Value) error {
	if t, ok := key.(Text); ok {
		if err := m.spend(len(t)); err != nil {
			return err
		}
	}
	if err := m.spend(1); err != nil {
		return err
	}
	return d.put(key, v)
}

// Get returns the value under a name.
func (d *Dict) Get(name string) (Value, bool) {
	i, ok := d.index["s"+name]
	if !ok {
		return nil, false
	}
	return d.values[i], true
}

// Each calls do for each name and its value, in order, up to the first error.
func (d *Dict) Each(do func(name string, v Value) error) error {
	for i, k := range d.keys {
		if name, ok := k.(Text); ok {
			if err := do(name.String(), d.values[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// Without returns a copy without the keys whose value is None.
func (d *Dict) Without() *Dict {
	out := NewDict()
	for i, k := range d.keys {
		if !isA[None](d.values[i]) {
			if err := out.put(k, d.values[i]); err != nil {
				panic(err) // it was a key
			}
		}
	}
	return out
}

// Size returns how many characters and values a value contains.
func Size(v Value) int {
	n := 1
	switch v := v.(type) {
	case Text:
		n += len(v)
	case *List:
		for _, item := range v.Items {
			n += Size(item)
		}
	case *Dict:
		for i := range v.keys {
			n += Size(v.keys[i]) + Size(v.values[i])
		}
	}
	return n
}

func (m *machine) lookup(d *Dict, key Value) (Value, bool, error) {
	if t, ok := key.(Text); ok {
		if err := m.spend(len(t)); err != nil {
			return nil, false, err
		}
	}
	h, err := hash(key)
	if err != nil {
		return nil, false, err
	}
	i, ok := d.index[h]
	if !ok {
		return nil, false, nil
	}
	return d.values[i], true, nil
}

// hash returns a string that keys share exactly if Python takes them for the same key.
func hash(key Value) (string, error) {
	switch k := key.(type) {
	case Text:
		return "s" + k.String(), nil
	case bool:
		return fmt.Sprint("n", b2i(k)), nil
	case int64:
		return fmt.Sprint("n", k), nil
	case None:
		return "-", nil
	}
	return "", fmt.Errorf("a key cannot be a %s", typeName(key))
}

func b2i(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// typeName names a type as Python does.
func typeName(v Value) string {
	switch v := v.(type) {
	case None:
		return "NoneType"
	case Undefined:
		return "Undefined"
	case bool:
		return "bool"
	case int64:
		return "int"
	case float64:
		return "float"
	case Text:
		return "str"
	case *List:
		if v.tuple {
			return "tuple"
		}
		return "list"
	case *Dict:
		return "dict"
	case *namespace:
		return "Namespace"
	}
	return "function"
}

// truth is Python's bool().
func truth(v Value) bool {
	switch v := v.(type) {
	case None, Undefined:
		return false
	case bool:
		return v
	case int64:
		return v != 0
	case float64:
		return v != 0
	case Text:
		return len(v) > 0
	case *List:
		return len(v.Items) > 0
	case *Dict:
		return len(v.keys) > 0
	}
	return true
}

// number returns a number as a float and, if it is a bool or an integer, as an integer too.
func number(v Value) (f float64, i int64, isInt, ok bool) {
	switch v := v.(type) {
	case bool:
		return float64(b2i(v)), b2i(v), true, true
	case int64:
		return float64(v), v, true, true
	case float64:
		return v, 0, false, true
	}
	return 0, 0, false, false
}

// equal is Python's ==. It costs as much as it compares.
func (m *machine) equal(a, b Value) (bool, error) {
	if err := m.enter(); err != nil {
		return false, err
	}
	defer m.leave()
	if err := m.spend(1); err != nil {
		return false, err
	}
	if x, i, iInt, ok := number(a); ok {
		y, j, jInt, ok := number(b)
		return ok && (iInt && jInt && i == j || !(iInt && jInt) && x == y), nil
	}
	switch a := a.(type) {
	case Text:
		b, ok := b.(Text)
		if !ok || len(a) != len(b) {
			return false, nil
		}
		return a.same(b), m.spend(len(a))
	case *List:
		b, ok := b.(*List)
		if !ok || a.tuple != b.tuple || len(a.Items) != len(b.Items) {
			return false, nil
		}
		return m.equalAll(a.Items, func(i int) (Value, bool) { return b.Items[i], true })
	case *Dict:
		b, ok := b.(*Dict)
		if !ok || len(a.keys) != len(b.keys) {
			return false, nil
		}
		return m.equalAll(a.values, func(i int) (Value, bool) {
			v, ok, err := m.lookup(b, a.keys[i])
			return v, ok && err == nil
		})
	case None:
		_, ok := b.(None)
		return ok, nil
	case Undefined:
		_, ok := b.(Undefined)
		return ok, nil
	case *namespace:
		return a == b, nil
	}
	return false, nil
}

func (m *machine) equalAll(list []Value, other func(int) (Value, bool)) (bool, error) {
	for i, v := range list {
		w, ok := other(i)
		if !ok {
			return false, nil
		}
		if same, err := m.equal(v, w); !same || err != nil {
			return false, err
		}
	}
	return true, nil
}

// compare is Python's order: -1, 0 or 1.
func (m *machine) compare(a, b Value) (int, error) {
	if err := m.enter(); err != nil {
		return 0, err
	}
	defer m.leave()
	if err := m.spend(1); err != nil {
		return 0, err
	}
	if x, i, iInt, ok := number(a); ok {
		if y, j, jInt, ok := number(b); ok {
			if iInt && jInt {
				return order(i, j), nil
			}
			return order(x, y), nil
		}
	}
	switch a := a.(type) {
	case Text:
		if b, ok := b.(Text); ok {
			return order(a.compare(b), 0), m.spend(min(len(a), len(b)))
		}
	case *List:
		if b, ok := b.(*List); ok && a.tuple == b.tuple {
			for i := range min(len(a.Items), len(b.Items)) {
				if c, err := m.compare(a.Items[i], b.Items[i]); c != 0 || err != nil {
					return c, err
				}
			}
			return order(len(a.Items), len(b.Items)), m.spend(1)
		}
	case Undefined:
		return 0, a.fault()
	}
	if u, ok := b.(Undefined); ok {
		return 0, u.fault()
	}
	return 0, fmt.Errorf("%s and %s cannot be ordered", typeName(a), typeName(b))
}

func order[T int | int64 | float64](a, b T) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// iterate returns what a for loop goes over.
func (m *machine) iterate(v Value) ([]Value, error) {
	switch v := v.(type) {
	case *List:
		return v.Items, nil
	case *Dict:
		return v.keys, nil
	case Undefined:
		return nil, nil
	case Text:
		if err := m.spend(len(v)); err != nil {
			return nil, err
		}
		list := make([]Value, len(v))
		for i := range v {
			list[i] = v[i : i+1 : i+1]
		}
		return list, nil
	}
	return nil, fmt.Errorf("a %s is not iterable", typeName(v))
}

// text is Python's str(). It costs its length.
func (m *machine) text(v Value) (Text, error) {
	switch v := v.(type) {
	case Text:
		return v, nil
	case Undefined:
		return nil, nil
	}
	out, err := m.appendRepr(nil, v)
	return out, err
}

// grow appends to a text, which costs what is appended.
func (l *limits) grow(dst, more Text) (Text, error) {
	return append(dst, more...), l.spend(len(more))
}

// Repr returns a value as Python prints it, which is what a template writes for a value that is not a text. A
// budget bounds it as it bounds Render.
func Repr(v Value, budget int) (Text, error) {
	return (&machine{limits: limits{budget: budget}}).appendRepr(nil, v)
}

// appendRepr is Python's repr().
func (m *machine) appendRepr(dst Text, v Value) (Text, error) {
	if err := m.enter(); err != nil {
		return nil, err
	}
	defer m.leave()
	switch v := v.(type) {
	case Text:
		return m.grow(dst, quoted(v))
	case *List:
		open, end := "[", "]"
		if v.tuple {
			open, end = "(", ")"
			if len(v.Items) == 1 {
				end = ",)"
			}
		}
		return m.appendAll(dst, open, end, len(v.Items), func(dst Text, i int) (Text, error) { return m.appendRepr(dst, v.Items[i]) })
	case *Dict:
		return m.appendAll(dst, "{", "}", len(v.keys), func(dst Text, i int) (Text, error) {
			dst, err := m.appendRepr(dst, v.keys[i])
			if err != nil {
				return nil, err
			}
			return m.appendRepr(append(dst, Own(": ")...), v.values[i])
		})
	}
	s, err := plain(v)
	if err != nil {
		return nil, err
	}
	return m.grow(dst, Own(s))
}

// appendAll appends n items with ", " between them.
func (m *machine) appendAll(dst Text, open, end string, n int, item func(Text, int) (Text, error)) (Text, error) {
	dst = append(dst, Own(open)...)
	for i := range n {
		if i > 0 {
			dst = append(dst, Own(", ")...)
		}
		var err error
		if dst, err = item(dst, i); err != nil {
			return nil, err
		}
	}
	return append(dst, Own(end)...), m.spend(3 * n)
}

// plain is the text of a value without parts.
func plain(v Value) (string, error) {
	switch v := v.(type) {
	case None:
		return "None", nil
	case bool:
		if v {
			return "True", nil
		}
		return "False", nil
	case int64:
		return strconv.FormatInt(v, 10), nil
	case float64:
		return floatText(v), nil
	case Undefined:
		return "Undefined", nil
	}
	return "", fmt.Errorf("a %s cannot be written as text", typeName(v))
}

// floatText is Python's repr of a float.
func floatText(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 0):
		return strings.TrimPrefix(strconv.FormatFloat(f, 'g', -1, 64), "+")[:b2i(f < 0)] + "inf"
	}
	if a := math.Abs(f); a != 0 && (a >= 1e16 || a < 1e-4) {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// quoted is Python's repr of a string.
func quoted(t Text) Text {
	mark := Char('\'')
	if t.index(Own("'"), 0) >= 0 && t.index(Own(`"`), 0) < 0 {
		mark = '"'
	}
	out := append(make(Text, 0, len(t)+2), mark)
	for _, c := range t {
		r := c.Rune()
		escape := ""
		switch {
		case r == rune(mark) || r == '\\':
			escape = `\` + string(r)
		case r == '\n':
			escape = `\n`
		case r == '\r':
			escape = `\r`
		case r == '\t':
			escape = `\t`
		case r < ' ' || r >= 0x7f && r < 0xa1 || r == 0xad:
			escape = fmt.Sprintf(`\x%02x`, r)
		case r > 0x7f && !unicode.IsPrint(r) && r < 0x10000:
			escape = fmt.Sprintf(`\u%04x`, r)
		case r >= 0x10000 && !unicode.IsPrint(r):
			escape = fmt.Sprintf(`\U%08x`, r)
		default:
			out = append(out, c)
		}
		for _, e := range escape {
			out = append(out, c.withRune(e))
		}
	}
	return append(out, mark)
}

// errOverflow reports an integer that Python can represent and this package cannot.
var errOverflow = errors.New("an integer of more than 64 bits")
