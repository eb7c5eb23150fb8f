package jinja

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// filters by name. The first argument is what comes before the bar.
var filters = map[string]function{
	"trim": func(m *machine, a args) (Value, error) {
		v, t, err := m.onText(a, "chars")
		if err != nil {
			return nil, err
		}
		set, err := textOf(v[0])
		return t.strip(set, left|right), err
	},
	"upper":      viaMethod("upper"),
	"lower":      viaMethod("lower"),
	"capitalize": viaMethod("capitalize"),
	"title":      viaMethod("title"),
	"replace": func(m *machine, a args) (Value, error) {
		t, err := m.text(a.list[0])
		if err != nil {
			return nil, err
		}
		a.list = a.list[1:]
		return replaceIn(m, t, a)
	},
	"string": func(m *machine, a args) (Value, error) {
		v, err := a.bind(1, "value")
		if err != nil {
			return nil, err
		}
		return m.text(v[0])
	},
	"safe":    func(m *machine, a args) (Value, error) { v, err := a.bind(1, "value"); return v[0], err },
	"length":  lengthOf,
	"count":   lengthOf,
	"default": defaultTo,
	"d":       defaultTo,
	"join":    joined,
	"list": func(m *machine, a args) (Value, error) {
		items, err := m.onItems(a)
		return &List{slices.Clone(items), false}, err
	},
	"first":      func(m *machine, a args) (Value, error) { return m.end(a, func(n int) int { return 0 }) },
	"last":       func(m *machine, a args) (Value, error) { return m.end(a, func(n int) int { return n - 1 }) },
	"reverse":    reverse,
	"sort":       sorted,
	"unique":     unique,
	"min":        extreme(-1),
	"max":        extreme(1),
	"sum":        sum,
	"map":        mapped,
	"select":     selecting(true, false),
	"reject":     selecting(false, false),
	"selectattr": selecting(true, true),
	"rejectattr": selecting(false, true),
	"items":      func(m *machine, a args) (Value, error) { return m.sortedPairs(a, false) },
	"dictsort":   func(m *machine, a args) (Value, error) { return m.sortedPairs(a, true) },
	"int":        toInt,
	"float":      toFloat,
	"abs":        absolute,
	"round":      rounded,
	"indent":     indented,
	"tojson":     toJSON,
}

// onText binds a filter's arguments after the text that it works on.
func (m *machine) onText(a args, params ...string) ([]Value, Text, error) {
	v, err := a.bind(1, append([]string{"value"}, params...)...)
	if err != nil {
		return nil, nil, err
	}
	t, err := m.text(v[0])
	if err == nil {
		err = m.spend(len(t))
	}
	return v[1:], t, err
}

func viaMethod(name string) function {
	return func(m *machine, a args) (Value, error) {
		_, t, err := m.onText(a)
		if err != nil {
			return nil, err
		}
		return textMethods[name](m, t, args{})
	}
}

// onItems binds a filter that works on items and has no arguments.
func (m *machine) onItems(a args) ([]Value, error) {
	v, err := a.bind(1, "value")
	if err != nil {
		return nil, err
	}
	items, err := m.iterate(v[0])
	if err == nil {
		err = m.spend(len(items))
	}
	return items, err
}

func lengthOf(m *machine, a args) (Value, error) {
	v, err := a.bind(1, "value")
	if err != nil {
		return nil, err
	}
	switch x := v[0].(type) {
	case Text:
		return int64(len(x)), nil
	case *List:
		return int64(len(x.Items)), nil
	case *Dict:
		return int64(len(x.keys)), nil
	case Undefined:
		return int64(0), nil
	}
	return nil, fmt.Errorf("a %s has no length", typeName(v[0]))
}

func defaultTo(_ *machine, a args) (Value, error) {
	v, err := a.bind(1, "value", "default_value", "boolean")
	if err != nil {
		return nil, err
	}
	_, undefined := v[0].(Undefined)
	if !undefined && !(v[2] != nil && truth(v[2]) && !truth(v[0])) {
		return v[0], nil
	}
	if v[1] == nil {
		return Text{}, nil
	}
	return v[1], nil
}

func joined(m *machine, a args) (Value, error) {
	v, err := a.bind(1, "value", "d", "attribute")
	if err != nil {
		return nil, err
	}
	items, err := m.iterate(v[0])
	if err == nil && v[2] != nil {
		items, err = m.attributes(items, v[2])
	}
	if err != nil {
		return nil, err
	}
	sep := Text{}
	if v[1] != nil {
		if sep, err = m.text(v[1]); err != nil {
			return nil, err
		}
	}
	return m.join(items, sep)
}

// attributes returns an attribute of each item: a name with dots between its parts, or an index.
func (m *machine) attributes(items []Value, attribute Value) ([]Value, error) {
	out := make([]Value, len(items))
	for i, x := range items {
		var err error
		if out[i], err = m.path(x, attribute); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (m *machine) path(x Value, attribute Value) (Value, error) {
	t, ok := attribute.(Text)
	if !ok {
		return m.item(x, attribute)
	}
	if err := m.spend(len(t)); err != nil {
		return nil, err
	}
	for _, name := range strings.Split(t.String(), ".") {
		var key Value = Own(name)
		if i, err := strconv.ParseInt(name, 10, 64); err == nil {
			key = i
		}
		var err error
		if x, err = m.item(x, key); err != nil {
			return nil, err
		}
	}
	return x, nil
}

func (m *machine) end(a args, at func(n int) int) (Value, error) {
	items, err := m.onItems(a)
	if err != nil {
		return nil, err
	}
	if len(items) == 0 {
		return Undefined{"an item of an empty sequence"}, nil
	}
	return items[at(len(items))], nil
}

func reverse(m *machine, a args) (Value, error) {
	v, err := a.bind(1, "value")
	if err != nil {
		return nil, err
	}
	if t, ok := v[0].(Text); ok {
		return reversed(t), m.spend(len(t))
	}
	items, err := m.onItems(a)
	items = slices.Clone(items)
	slices.Reverse(items)
	return &List{items, false}, err
}

// less orders values for sorting; texts without regard to case, unless sensitive is set.
func (m *machine) less(x, y Value, sensitive bool) (int, error) {
	if !sensitive {
		x, y = m.lowered(x), m.lowered(y)
	}
	return m.compare(x, y)
}

// lowered is a text in lower case, or another value. What it costs, the caller's next step
// pays.
func (l *limits) lowered(v Value) Value {
	t, ok := v.(Text)
	if !ok || l.budget < len(t) {
		return v
	}
	l.budget -= len(t)
	return t.mapped(func(_ int, r rune) rune { return unicode.ToLower(r) })
}

// sortBy sorts items by keys, stably.
func (m *machine) sortBy(items, keys []Value, sensitive, descending bool) ([]Value, error) {
	at := make([]int, len(items))
	for i := range at {
		at[i] = i
	}
	var failed error
	slices.SortStableFunc(at, func(i, j int) int {
		if failed != nil {
			return 0
		}
		c, err := m.less(keys[i], keys[j], sensitive)
		if failed = errors.Join(err, m.spend(2)); descending {
			return -c
		}
		return c
	})
	out := make([]Value, len(items))
	for i, j := range at {
		out[i] = items[j]
	}
	return out, failed
}

// True reports whether a value is one that an if takes for true: there, and not empty.
func True(v Value) bool { return flag(v) }

func flag(v Value) bool { return v != nil && truth(v) }

// keyed returns the items of a value, and the keys by which they are compared: an attribute of each, or the items themselves.
func (m *machine) keyed(of, attribute Value) (items, keys []Value, err error) {
	if items, err = m.iterate(of); err != nil || attribute == nil {
		return items, items, err
	}
	keys, err = m.attributes(items, attribute)
	return items, keys, err
}

func sorted(m *machine, a args) (Value, error) {
	v, err := a.bind(1, "value", "reverse", "case_sensitive", "attribute")
	if err != nil {
		return nil, err
	}
	items, keys, err := m.keyed(v[0], v[3])
	if err != nil {
		return nil, err
	}
	out, err := m.sortBy(items, keys, flag(v[2]), flag(v[1]))
	return &List{out, false}, err
}

func unique(m *machine, a args) (Value, error) {
	v, err := a.bind(1, "value", "case_sensitive", "attribute")
	if err != nil {
		return nil, err
	}
	items, keys, err := m.keyed(v[0], v[2])
	if err != nil {
		return nil, err
	}
	seen, out := map[string]bool{}, &List{}
	for i, k := range keys {
		if !flag(v[1]) {
			k = m.lowered(k)
		}
		if t, ok := k.(Text); ok && m.spend(len(t)) != nil {
			return nil, ErrBudget
		}
		h, err := hash(k)
		if err != nil {
			return nil, err
		}
		if !seen[h] {
			seen[h] = true
			out.Items = append(out.Items, items[i])
		}
	}
	return out, m.spend(len(items))
}

func extreme(sign int) function {
	return func(m *machine, a args) (Value, error) {
		v, err := a.bind(1, "value", "case_sensitive", "attribute")
		if err != nil {
			return nil, err
		}
		items, keys, err := m.keyed(v[0], v[2])
		if err != nil {
			return nil, err
		}
		if len(items) == 0 {
			return Undefined{"an item of an empty sequence"}, nil
		}
		best := 0
		for i := range keys {
			c, err := m.less(keys[i], keys[best], flag(v[1]))
			if err != nil {
				return nil, err
			}
			if c*sign > 0 {
				best = i
			}
		}
		return items[best], nil
	}
}

func sum(m *machine, a args) (Value, error) {
	v, err := a.bind(1, "value", "attribute", "start")
	if err != nil {
		return nil, err
	}
	items, err := m.iterate(v[0])
	if err == nil && v[1] != nil {
		items, err = m.attributes(items, v[1])
	}
	var total Value = int64(0)
	if v[2] != nil {
		total = v[2]
	}
	for i := 0; i < len(items) && err == nil; i++ {
		if total, err = m.apply("+", total, items[i]); err == nil {
			err = m.spend(1)
		}
	}
	return total, err
}

// mapped is map(attribute='name'), with a default if the attribute is missing, or map('filter', arguments).
func mapped(m *machine, a args) (Value, error) {
	items, err := m.iterate(a.list[0])
	if err != nil {
		return nil, err
	}
	out := &List{make([]Value, len(items)), false}
	if attribute, ok := a.take("attribute"); ok {
		other, has := a.take("default")
		if out.Items, err = m.attributes(items, attribute); err != nil {
			return nil, err
		}
		for i, v := range out.Items {
			if _, undefined := v.(Undefined); undefined && has {
				out.Items[i] = other
			}
		}
		return out, errors.Join(a.done(), m.spend(len(items)))
	}
	f, rest, err := m.named(m.filters, a, 1)
	for i := 0; i < len(items) && err == nil; i++ {
		if out.Items[i], err = f(m, rest(items[i])); err == nil {
			err = m.spend(1)
		}
	}
	return out, err
}

// named returns the filter or test that argument number at names, and its arguments for an item.
func (m *machine) named(table map[string]function, a args, at int) (function, func(Value) args, error) {
	if len(a.list) <= at {
		return nil, nil, errors.New("the name of a filter or a test is missing")
	}
	name, _ := a.list[at].(Text)
	f := table[name.String()]
	if f == nil {
		return nil, nil, fmt.Errorf("the filter or test %.40q is not known", name.String())
	}
	more := a.list[at+1:]
	return f, func(x Value) args {
		return args{slices.Concat([]Value{x}, more), slices.Clone(a.names), slices.Clone(a.named)}
	}, m.spend(1)
}

// selecting keeps the items for which a test, or without one the item's own truth, is keep; byAttribute looks
// at an attribute of each item instead.
func selecting(keep, byAttribute bool) function {
	return func(m *machine, a args) (Value, error) {
		items, err := m.iterate(a.list[0])
		at := 1
		keys := items
		if err == nil && byAttribute {
			if at = 2; len(a.list) < 2 {
				return nil, errors.New("the name of an attribute is missing")
			}
			keys, err = m.attributes(items, a.list[1])
		}
		if err != nil {
			return nil, err
		}
		f, rest := function(func(_ *machine, a args) (Value, error) { return truth(a.list[0]), nil }), func(v Value) args { return args{list: []Value{v}} }
		if len(a.list) > at {
			if f, rest, err = m.named(m.tests, a, at); err != nil {
				return nil, err
			}
		}
		out := &List{}
		for i := range items {
			v, err := f(m, rest(keys[i]))
			if err != nil {
				return nil, err
			}
			if truth(v) == keep {
				out.Items = append(out.Items, items[i])
			}
		}
		return out, m.spend(len(items))
	}
}

// sortedPairs returns the pairs of a mapping, sorted by key if asked for.
func (m *machine) sortedPairs(a args, sort bool) (Value, error) {
	v, err := a.bind(1, "value")
	if err != nil {
		return nil, err
	}
	if _, ok := v[0].(Undefined); ok {
		return &List{}, nil
	}
	d, ok := v[0].(*Dict)
	if !ok {
		return nil, fmt.Errorf("expected a dict, got a %s", typeName(v[0]))
	}
	pairs, err := m.pairs(d)
	if err == nil && sort {
		pairs, err = m.sortBy(pairs, d.keys, false, false)
	}
	return &List{pairs, false}, err
}

func toInt(m *machine, a args) (Value, error) {
	v, err := a.bind(1, "value", "default")
	if err != nil {
		return nil, err
	}
	other := v[1]
	if other == nil {
		other = int64(0)
	}
	f, i, isInt, ok := number(v[0])
	switch t, isText := v[0].(Text); {
	case isInt:
		return i, nil
	case isText:
		s := strings.TrimFunc(t.String(), space)
		if i, err := strconv.ParseInt(s, 10, 64); err == nil {
			return i, nil
		}
		if f, err = strconv.ParseFloat(s, 64); err != nil {
			return other, nil
		}
	case !ok:
		return other, nil
	}
	if math.IsNaN(f) || math.Abs(f) >= 1<<63 {
		return nil, errOverflow
	}
	return int64(f), nil
}

func toFloat(m *machine, a args) (Value, error) {
	v, err := a.bind(1, "value", "default")
	if err != nil {
		return nil, err
	}
	if f, _, _, ok := number(v[0]); ok {
		return f, nil
	}
	if t, ok := v[0].(Text); ok {
		if f, err := strconv.ParseFloat(strings.TrimFunc(t.String(), space), 64); err == nil {
			return f, nil
		}
	}
	if v[1] != nil {
		return v[1], nil
	}
	return 0.0, nil
}

func absolute(m *machine, a args) (Value, error) {
	v, err := a.bind(1, "value")
	if err != nil {
		return nil, err
	}
	f, i, isInt, ok := number(v[0])
	switch {
	case !ok:
		return nil, operandFault("abs", v[0])
	case isInt && i < 0:
		return integers("-", 0, i)
	case isInt:
		return i, nil
	}
	return math.Abs(f), nil
}

func rounded(m *machine, a args) (Value, error) {
	v, err := a.bind(1, "value", "precision")
	if err != nil {
		return nil, err
	}
	f, _, _, ok := number(v[0])
	digits, err := intOf(v[1], 0)
	if err != nil || !ok || digits < 0 || digits > 15 {
		return nil, operandFault("round", v[0])
	}
	return strconv.ParseFloat(strconv.FormatFloat(f, 'f', int(digits), 64), 64)
}

// indented puts spaces before all lines but the first; with first before that too, with blank also before empty ones.
func indented(m *machine, a args) (Value, error) {
	v, t, err := m.onText(a, "width", "first", "blank")
	if err != nil {
		return nil, err
	}
	by, ok := v[0].(Text)
	if !ok {
		n, err := intOf(v[0], 4)
		if err != nil {
			return nil, err
		}
		if n > int64(m.budget) {
			return nil, ErrBudget
		}
		by = Own(strings.Repeat(" ", int(max(n, 0))))
	}
	var out Text
	first := true
	for len(t) > 0 || first {
		end := t.index(Text{'\n'}, 0) + 1
		if end == 0 {
			end = len(t)
		}
		line := t[:end]
		t = t[end:]
		empty := len(line) == 0 || line[0].Rune() == '\n'
		if first && flag(v[1]) || !first && (!empty || flag(v[2])) {
			if out, err = m.grow(out, by); err != nil {
				return nil, err
			}
		}
		if out, err = m.grow(out, line); err != nil {
			return nil, err
		}
		first = false
	}
	return out, nil
}
