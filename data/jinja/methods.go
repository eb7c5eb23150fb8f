package jinja

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// method returns a method of a value, nil if Python has none of that name. One that Python has and this package
// lacks is an error.
func method(x Value, name string) (Value, error) {
	switch x := x.(type) {
	case Text:
		if f := textMethods[name]; f != nil {
			return function(func(m *machine, a args) (Value, error) {
				if err := m.spend(len(x)); err != nil {
					return nil, err
				}
				return f(m, x[:len(x):len(x)], a)
			}), nil
		}
		return nil, lacking("str", name, "casefold center encode expandtabs format format_map isascii isdecimal isidentifier isnumeric isprintable istitle ljust maketrans rindex rjust swapcase translate zfill")
	case *Dict:
		if f := dictMethods[name]; f != nil {
			return function(func(m *machine, a args) (Value, error) { return f(m, x, a) }), nil
		}
		return nil, lacking("dict", name, "clear copy fromkeys pop popitem setdefault update")
	case *List:
		if f := listMethods[name]; f != nil {
			return function(func(m *machine, a args) (Value, error) { return f(m, x, a) }), nil
		}
		return nil, lacking("list", name, "append clear copy extend insert pop remove reverse sort")
	}
	return nil, nil
}

// lacking is the error of a method that is not built, or that would change a value.
func lacking(kind, name, all string) error {
	if slices.Contains(strings.Fields(all), name) {
		return fmt.Errorf("the method %s of a %s is not supported; hint: values cannot be changed in place, but they can be added and sliced", name, kind)
	}
	return nil
}

var textMethods = map[string]func(m *machine, t Text, a args) (Value, error){
	"upper":      plainText(func(t Text) Text { return t.mapped(func(_ int, r rune) rune { return unicode.ToUpper(r) }) }),
	"lower":      plainText(func(t Text) Text { return t.mapped(func(_ int, r rune) rune { return unicode.ToLower(r) }) }),
	"capitalize": plainText(capitalize),
	"title":      plainText(title),
	"strip":      stripping(left | right),
	"lstrip":     stripping(left),
	"rstrip":     stripping(right),
	"isspace":    every(space),
	"isdigit":    every(unicode.IsDigit),
	"isalpha":    every(unicode.IsLetter),
	"isalnum":    every(func(r rune) bool { return unicode.IsLetter(r) || unicode.IsNumber(r) }),
	"isupper":    cased(unicode.IsUpper, unicode.IsLower),
	"islower":    cased(unicode.IsLower, unicode.IsUpper),
	"startswith": affix(func(t, p Text) bool { return len(p) <= len(t) && t[:len(p)].same(p) }),
	"endswith":   affix(func(t, p Text) bool { return len(p) <= len(t) && t[len(t)-len(p):].same(p) }),
	"split":      func(m *machine, t Text, a args) (Value, error) { return m.split(t, a, false) },
	"rsplit":     func(m *machine, t Text, a args) (Value, error) { return m.split(t, a, true) },
	"splitlines": splitLines,
	"replace":    replaceIn,
	"join":       func(m *machine, t Text, a args) (Value, error) { return m.joinWith(t, a) },
	"find":       finding(Text.first),
	"rfind":      finding(Text.last),
	"index": func(m *machine, t Text, a args) (Value, error) {
		v, err := finding(Text.first)(m, t, a)
		if err == nil && v == Value(int64(-1)) {
			err = errors.New("substring not found")
		}
		return v, err
	},
	"count":        counting,
	"removeprefix": removing(left),
	"removesuffix": removing(right),
	"partition":    parting(Text.first, false),
	"rpartition":   parting(Text.last, true),
}

func plainText(f func(Text) Text) func(*machine, Text, args) (Value, error) {
	return func(_ *machine, t Text, a args) (Value, error) {
		_, err := a.bind(0)
		return f(t), err
	}
}

func capitalize(t Text) Text {
	return t.mapped(func(i int, r rune) rune {
		if i == 0 {
			return unicode.ToTitle(r)
		}
		return unicode.ToLower(r)
	})
}

func title(t Text) Text {
	return t.mapped(func(i int, r rune) rune {
		if i == 0 || !unicode.IsLetter(t[i-1].Rune()) {
			return unicode.ToTitle(r)
		}
		return unicode.ToLower(r)
	})
}

func stripping(from ends) func(*machine, Text, args) (Value, error) {
	return func(m *machine, t Text, a args) (Value, error) {
		v, err := a.bind(0, "chars")
		if err != nil {
			return nil, err
		}
		set, err := textOf(v[0])
		if err != nil {
			return nil, err
		}
		return t.strip(set, from), m.spend(len(set))
	}
}

func every(is func(rune) bool) func(*machine, Text, args) (Value, error) {
	return func(_ *machine, t Text, a args) (Value, error) {
		_, err := a.bind(0)
		return len(t) > 0 && !slices.ContainsFunc(t, func(c Char) bool { return !is(c.Rune()) }), err
	}
}

// cased reports whether some characters are of one case and none of the other.
func cased(of, other func(rune) bool) func(*machine, Text, args) (Value, error) {
	return func(_ *machine, t Text, a args) (Value, error) {
		_, err := a.bind(0)
		has := func(is func(rune) bool) bool {
			return slices.ContainsFunc(t, func(c Char) bool { return is(c.Rune()) })
		}
		return has(of) && !has(other), err
	}
}

// affix takes a text, or a tuple of texts, one of which must match.
func affix(matches func(t, p Text) bool) func(*machine, Text, args) (Value, error) {
	return func(m *machine, t Text, a args) (Value, error) {
		v, err := a.bind(1, "prefix")
		if err != nil {
			return nil, err
		}
		options := []Value{v[0]}
		if l, ok := v[0].(*List); ok && l.tuple {
			options = l.Items
		}
		for _, o := range options {
			p, ok := o.(Text)
			if !ok {
				return nil, fmt.Errorf("expected a str, got a %s", typeName(o))
			}
			if matches(t, p) {
				return true, nil
			}
			if err := m.spend(len(p)); err != nil {
				return nil, err
			}
		}
		return false, nil
	}
}

func (m *machine) split(t Text, a args, fromRight bool) (Value, error) {
	v, err := a.bind(0, "sep", "maxsplit")
	if err != nil {
		return nil, err
	}
	sep, err := textOf(v[0])
	if err != nil {
		return nil, err
	}
	most, err := intOf(v[1], -1)
	if err != nil {
		return nil, err
	}
	_, white := v[0].(None)
	white = white || v[0] == nil
	if !white && len(sep) == 0 {
		return nil, errors.New("empty separator")
	}
	if fromRight {
		t, sep = reversed(t), reversed(sep)
	}
	parts := t.cut(sep, white, most)
	out := &List{make([]Value, len(parts)), false}
	for i, p := range parts {
		if fromRight {
			out.Items[len(parts)-1-i] = reversed(p)
		} else {
			out.Items[i] = p
		}
	}
	return out, m.spend(len(t) + len(parts))
}

// cut splits up to most times (-1: everywhere), at a separator or at white space.
func (t Text) cut(sep Text, white bool, most int64) (parts []Text) {
	for {
		if white {
			if t = t.strip(nil, left); len(t) == 0 {
				return parts
			}
		}
		at, end := -1, 0
		if most != 0 && white {
			at = slices.IndexFunc(t, func(c Char) bool { return space(c.Rune()) })
			end = at + 1
		} else if most != 0 {
			at = t.index(sep, 0)
			end = at + len(sep)
		}
		if at < 0 {
			return append(parts, t)
		}
		parts = append(parts, t[:at:at])
		t = t[end:]
		most--
	}
}

func splitLines(m *machine, t Text, a args) (Value, error) {
	v, err := a.bind(0, "keepends")
	if err != nil {
		return nil, err
	}
	out, first := &List{}, 0
	for i := 0; i < len(t); i++ {
		if !strings.ContainsRune("\n\r\v\f\x1c\x1d\x1e\u0085\u2028\u2029", t[i].Rune()) {
			continue
		}
		end := i
		if t[i].Rune() == '\r' && i+1 < len(t) && t[i+1].Rune() == '\n' {
			i++
		}
		if v[0] != nil && truth(v[0]) {
			end = i + 1
		}
		out.Items = append(out.Items, t[first:end:end])
		first = i + 1
	}
	if first < len(t) {
		out.Items = append(out.Items, t[first:])
	}
	return out, m.spend(len(out.Items))
}

func replaceIn(m *machine, t Text, a args) (Value, error) {
	v, err := a.bind(2, "old", "new", "count")
	if err != nil {
		return nil, err
	}
	old, err := textOf(v[0])
	if err != nil {
		return nil, err
	}
	with, err := textOf(v[1])
	if err != nil {
		return nil, err
	}
	most, err := intOf(v[2], -1)
	if err != nil {
		return nil, err
	}
	return m.replace(t, old, with, most)
}

// replace replaces an old text up to most times (-1: everywhere).
func (m *machine) replace(t, old, with Text, most int64) (out Text, err error) {
	for at := 0; err == nil; most-- {
		i := t.index(old, at)
		if most == 0 || i < 0 {
			return m.grow(out, t[min(at, len(t)):])
		}
		if len(old) == 0 && at > 0 { // between characters
			i = at
		}
		out = append(out, t[at:i]...)
		if out, err = m.grow(out, with); err != nil {
			return nil, err
		}
		if at = i + len(old); len(old) == 0 {
			if i == len(t) {
				return out, nil
			}
			out = append(out, t[i])
			at = i + 1
		}
		err = m.spend(1)
	}
	return nil, err
}

func (m *machine) joinWith(sep Text, a args) (Value, error) {
	v, err := a.bind(1, "iterable")
	if err != nil {
		return nil, err
	}
	items, err := m.iterate(v[0])
	if err != nil {
		return nil, err
	}
	for _, item := range items {
		if _, ok := item.(Text); !ok {
			return nil, fmt.Errorf("expected a str, got a %s", typeName(item))
		}
	}
	return m.join(items, sep)
}

// join writes items with a separator between them.
func (m *machine) join(items []Value, sep Text) (out Text, err error) {
	for i, item := range items {
		if i > 0 {
			if out, err = m.grow(out, sep); err != nil {
				return nil, err
			}
		}
		text, err := m.text(item)
		if err != nil {
			return nil, err
		}
		if out, err = m.grow(out, text); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func finding(where func(t, p Text) int) func(*machine, Text, args) (Value, error) {
	return func(m *machine, t Text, a args) (Value, error) {
		p, err := one(a, "sub")
		if err != nil {
			return nil, err
		}
		return int64(where(t, p)), m.spend(len(p))
	}
}

// one binds the only argument, a text.
func one(a args, name string) (Text, error) {
	v, err := a.bind(1, name)
	if err != nil {
		return nil, err
	}
	if _, none := v[0].(None); none {
		return nil, errors.New("expected a str, got a NoneType")
	}
	return textOf(v[0])
}

func counting(m *machine, t Text, a args) (Value, error) {
	p, err := one(a, "sub")
	if err != nil {
		return nil, err
	}
	if len(p) == 0 {
		return int64(len(t) + 1), nil
	}
	n := int64(0)
	for at := t.index(p, 0); at >= 0; at = t.index(p, at+len(p)) {
		n++
	}
	return n, m.spend(len(t))
}

func removing(from ends) func(*machine, Text, args) (Value, error) {
	return func(_ *machine, t Text, a args) (Value, error) {
		p, err := one(a, "affix")
		switch {
		case err != nil || len(p) > len(t):
		case from == left && t[:len(p)].same(p):
			t = t[len(p):]
		case from == right && t[len(t)-len(p):].same(p):
			t = t[:len(t)-len(p)]
		}
		return t, err
	}
}

func parting(where func(t, p Text) int, fromRight bool) func(*machine, Text, args) (Value, error) {
	return func(_ *machine, t Text, a args) (Value, error) {
		p, err := one(a, "sep")
		if err == nil && len(p) == 0 {
			err = errors.New("empty separator")
		}
		if err != nil {
			return nil, err
		}
		parts := []Value{t, Text{}, Text{}}
		if at := where(t, p); at >= 0 {
			parts = []Value{t[:at:at], p, t[at+len(p):]}
		} else if fromRight {
			parts = []Value{Text{}, Text{}, t}
		}
		return &List{parts, true}, nil
	}
}

var dictMethods = map[string]func(m *machine, d *Dict, a args) (Value, error){
	"items": func(m *machine, d *Dict, a args) (Value, error) {
		if _, err := a.bind(0); err != nil {
			return nil, err
		}
		pairs, err := m.pairs(d)
		return &List{pairs, false}, err
	},
	"keys": func(m *machine, d *Dict, a args) (Value, error) {
		_, err := a.bind(0)
		return &List{d.keys, false}, err
	},
	"values": func(m *machine, d *Dict, a args) (Value, error) {
		_, err := a.bind(0)
		return &List{d.values, false}, err
	},
	"get": func(m *machine, d *Dict, a args) (Value, error) {
		v, err := a.bind(1, "key", "default")
		if err != nil {
			return nil, err
		}
		found, ok, err := m.lookup(d, v[0])
		switch {
		case ok || err != nil:
			return found, err
		case v[1] == nil:
			return None{}, nil
		}
		return v[1], nil
	},
}

var listMethods = map[string]func(m *machine, l *List, a args) (Value, error){
	"count": func(m *machine, l *List, a args) (Value, error) {
		n, _, err := m.occurrences(l, a)
		return n, err
	},
	"index": func(m *machine, l *List, a args) (Value, error) {
		_, first, err := m.occurrences(l, a)
		if err == nil && first < 0 {
			err = errors.New("the value is not in the list")
		}
		return first, err
	},
}

// occurrences counts a value in a list, and finds the first.
func (m *machine) occurrences(l *List, a args) (n, first int64, err error) {
	v, err := a.bind(1, "value")
	if err != nil {
		return 0, -1, err
	}
	first = -1
	for i, item := range l.Items {
		same, err := m.equal(item, v[0])
		if err != nil {
			return 0, -1, err
		}
		if same {
			if n++; first < 0 {
				first = int64(i)
			}
		}
	}
	return n, first, nil
}
