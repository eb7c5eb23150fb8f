package jinja

import "errors"

// tests by name. The first argument is what comes before "is".
var tests = map[string]function{
	"defined":   typed(func(v Value) bool { return !isA[Undefined](v) }),
	"undefined": typed(isA[Undefined]),
	"none":      typed(isA[None]),
	"boolean":   typed(isA[bool]),
	"true":      typed(func(v Value) bool { b, ok := v.(bool); return ok && b }),
	"false":     typed(func(v Value) bool { b, ok := v.(bool); return ok && !b }),
	"integer":   typed(isA[int64]),
	"float":     typed(isA[float64]),
	"number":    typed(func(v Value) bool { _, _, _, ok := number(v); return ok }),
	"string":    typed(isA[Text]),
	"mapping":   typed(isA[*Dict]),
	"sequence":  typed(func(v Value) bool { return isA[Text](v) || isA[*List](v) || isA[*Dict](v) || isA[Undefined](v) }),
	"iterable":  typed(func(v Value) bool { return isA[Text](v) || isA[*List](v) || isA[*Dict](v) || isA[Undefined](v) }),
	"callable":  typed(func(v Value) bool { return isA[function](v) || isA[*macro](v) || isA[Undefined](v) }),
	"odd":       remainder(2, 1),
	"even":      remainder(2, 0),
	"lower":     onCase("islower"),
	"upper":     onCase("isupper"),
	"divisibleby": func(m *machine, a args) (Value, error) {
		v, err := a.bind(2, "value", "num")
		if err != nil {
			return nil, err
		}
		z, err := m.apply("%", v[0], v[1])
		return err == nil && !truth(z), err
	},
	"sameas": func(m *machine, a args) (Value, error) {
		v, err := a.bind(2, "value", "other")
		if err != nil {
			return nil, err
		}
		if typeName(v[0]) != typeName(v[1]) {
			return false, nil
		}
		switch v[0].(type) {
		case bool, None, int64:
			return v[0] == v[1], nil
		}
		return nil, errors.New("sameas is supported for none, booleans and integers only; hint: use ==")
	},
	"==": holding("=="), "eq": holding("=="), "equalto": holding("=="),
	"!=": holding("!="), "ne": holding("!="),
	"<": holding("<"), "lt": holding("<"), "lessthan": holding("<"),
	"<=": holding("<="), "le": holding("<="),
	">": holding(">"), "gt": holding(">"), "greaterthan": holding(">"),
	">=": holding(">="), "ge": holding(">="),
	"in": holding("in"),
}

func isA[T any](v Value) bool { _, ok := v.(T); return ok }

func typed(is func(Value) bool) function {
	return func(_ *machine, a args) (Value, error) {
		v, err := a.bind(1, "value")
		return err == nil && is(v[0]), err
	}
}

func holding(op string) function {
	return func(m *machine, a args) (Value, error) {
		v, err := a.bind(2, "value", "other")
		if err != nil {
			return nil, err
		}
		return m.holds(op, v[0], v[1])
	}
}

func remainder(by, want int64) function {
	return func(m *machine, a args) (Value, error) {
		v, err := a.bind(1, "value")
		if err != nil {
			return nil, err
		}
		z, err := m.apply("%", v[0], by)
		if err != nil {
			return nil, err
		}
		return m.equal(z, want)
	}
}

// onCase returns a test that applies the method of that name.
func onCase(name string) function {
	return func(m *machine, a args) (Value, error) {
		_, t, err := m.onText(a)
		if err != nil {
			return nil, err
		}
		return textMethods[name](m, t, args{})
	}
}
