package jinja

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// eval evaluates an expression.
func (m *machine) eval(x expr, s *scope) (Value, error) {
	if err := m.enter(); err != nil {
		return nil, err
	}
	defer m.leave()
	if err := m.spend(1); err != nil {
		return nil, err
	}
	return x.eval(m, s)
}

// evalAll evaluates expressions in order.
func (m *machine) evalAll(list []expr, s *scope) ([]Value, error) {
	out := make([]Value, 0, len(list))
	for _, x := range list {
		v, err := m.eval(x, s)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, m.spend(len(list))
}

func (l literal) eval(*machine, *scope) (Value, error) { return l.value, nil }

func (n name) eval(m *machine, s *scope) (Value, error) {
	if v, ok := s.lookup(n.name); ok {
		return v, nil
	}
	return Undefined{n.name}, nil
}

func (l listOf) eval(m *machine, s *scope) (Value, error) {
	items, err := m.evalAll(l.items, s)
	return &List{items, l.tuple}, err
}

func (d dictOf) eval(m *machine, s *scope) (Value, error) {
	out := NewDict()
	for i := range d.keys {
		k, err := m.eval(d.keys[i], s)
		if err != nil {
			return nil, err
		}
		v, err := m.eval(d.values[i], s)
		if err != nil {
			return nil, err
		}
		if err := m.put(out, k, v); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (u unary) eval(m *machine, s *scope) (Value, error) {
	v, err := m.eval(u.x, s)
	if err != nil {
		return nil, err
	}
	if u.op == "not" {
		return !truth(v), nil
	}
	f, i, isInt, ok := number(v)
	switch {
	case !ok:
		return nil, operandFault(u.op, v)
	case u.op == "+" && isInt:
		return i, nil
	case u.op == "+":
		return f, nil
	case isInt && i == math.MinInt64:
		return nil, errOverflow
	case isInt:
		return -i, nil
	}
	return -f, nil
}

// operandFault is the error of an operator that has no meaning for its operands.
func operandFault(op string, operands ...Value) error {
	for _, v := range operands {
		if u, ok := v.(Undefined); ok {
			return u.fault()
		}
	}
	if len(operands) == 1 {
		return fmt.Errorf("the operator %s cannot be applied to a %s", op, typeName(operands[0]))
	}
	return fmt.Errorf("the operator %s cannot be applied to a %s and a %s", op, typeName(operands[0]), typeName(operands[1]))
}

func (b binary) eval(m *machine, s *scope) (Value, error) {
	x, err := m.eval(b.x, s)
	if err != nil {
		return nil, err
	}
	if b.op == "and" && !truth(x) || b.op == "or" && truth(x) {
		return x, nil
	}
	y, err := m.eval(b.y, s)
	if err != nil || b.op == "and" || b.op == "or" {
		return y, err
	}
	return m.apply(b.op, x, y)
}

// apply computes x op y for arithmetic operators, which also join and repeat.
func (m *machine) apply(op string, x, y Value) (Value, error) {
	fx, ix, xInt, xNum := number(x)
	fy, iy, yInt, yNum := number(y)
	switch {
	case xNum && yNum && xInt && yInt && op != "/" && !(op == "**" && iy < 0):
		return integers(op, ix, iy)
	case xNum && yNum:
		return floats(op, fx, fy)
	case op == "+":
		switch x := x.(type) {
		case Text:
			if y, ok := y.(Text); ok {
				return slices.Concat(x, y), m.spend(len(x) + len(y))
			}
		case *List:
			if y, ok := y.(*List); ok && x.tuple == y.tuple {
				return &List{slices.Concat(x.Items, y.Items), x.tuple}, m.spend(len(x.Items) + len(y.Items))
			}
		}
	case op == "*" && yInt:
		return m.repeat(x, iy)
	case op == "*" && xInt:
		return m.repeat(y, ix)
	case op == "%":
		if _, ok := x.(Text); ok {
			return nil, errors.New("% formats are not supported; hint: join texts with ~")
		}
	}
	return nil, operandFault(op, x, y)
}

// repeat is a text or a list n times.
func (m *machine) repeat(v Value, n int64) (Value, error) {
	size := func(length int) error {
		if length > 0 && n > int64(m.budget/length) {
			return m.spend(m.budget + 1)
		}
		return m.spend(length * int(max(n, 0)))
	}
	switch v := v.(type) {
	case Text:
		if err := size(len(v)); err != nil {
			return nil, err
		}
		if len(v) == 0 {
			return v, nil
		}
		return slices.Repeat(v, int(max(n, 0))), nil
	case *List:
		if err := size(len(v.Items)); err != nil {
			return nil, err
		}
		if len(v.Items) == 0 {
			return v, nil
		}
		return &List{slices.Repeat(v.Items, int(max(n, 0))), v.tuple}, nil
	}
	return nil, operandFault("*", v, n)
}

// errZero reports a division by zero.
var errZero = errors.New("division by zero")

// integers computes on integers, with Python's division towards minus infinity.
func integers(op string, x, y int64) (Value, error) {
	if (op == "//" || op == "%") && y == 0 {
		return nil, errZero
	}
	var z int64
	ok := true
	switch op {
	case "+":
		z = x + y
		ok = (z > x) == (y > 0)
	case "-":
		z = x - y
		ok = (z < x) == (y > 0)
	case "*":
		z, ok = times(x, y)
	case "//":
		if z = x / y; x%y != 0 && (x < 0) != (y < 0) {
			z--
		}
		ok = !(x == math.MinInt64 && y == -1)
	case "%":
		if z = x % y; z != 0 && (z < 0) != (y < 0) {
			z += y
		}
	case "**":
		return power(x, y)
	}
	if !ok {
		return nil, errOverflow
	}
	return z, nil
}

func times(x, y int64) (z int64, ok bool) {
	if x == 0 || y == 0 {
		return 0, true
	}
	z = x * y
	return z, z/y == x && !(x == -1 && y == math.MinInt64) && !(y == -1 && x == math.MinInt64)
}

// power is x to the power of y >= 0.
func power(x, y int64) (Value, error) {
	z := int64(1)
	for ok := true; y > 0; y >>= 1 {
		if y&1 == 1 {
			if z, ok = times(z, x); !ok {
				return nil, errOverflow
			}
		}
		if y > 1 {
			if x, ok = times(x, x); !ok {
				return nil, errOverflow
			}
		}
	}
	return z, nil
}

func floats(op string, x, y float64) (Value, error) {
	if (op == "/" || op == "//" || op == "%") && y == 0 {
		return nil, errZero
	}
	switch op {
	case "+":
		return x + y, nil
	case "-":
		return x - y, nil
	case "*":
		return x * y, nil
	case "/":
		return x / y, nil
	case "//":
		return math.Floor(x / y), nil
	case "%":
		z := math.Mod(x, y)
		if z != 0 && (z < 0) != (y < 0) {
			z += y
		}
		return z, nil
	}
	z := math.Pow(x, y)
	if math.IsNaN(z) || math.IsInf(z, 0) {
		return nil, fmt.Errorf("%v ** %v is not a number", x, y)
	}
	return z, nil
}

func (c concat) eval(m *machine, s *scope) (Value, error) {
	var out Text
	for _, x := range c.parts {
		v, err := m.eval(x, s)
		if err != nil {
			return nil, err
		}
		text, err := m.text(v)
		if err != nil {
			return nil, err
		}
		if out, err = m.grow(out, text); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (c comparison) eval(m *machine, s *scope) (Value, error) {
	x, err := m.eval(c.first, s)
	if err != nil {
		return nil, err
	}
	for i, op := range c.ops {
		y, err := m.eval(c.rest[i], s)
		if err != nil {
			return nil, err
		}
		if ok, err := m.holds(op, x, y); !ok || err != nil {
			return false, err
		}
		x = y
	}
	return true, nil
}

// holds reports whether x op y, for a comparison operator.
func (m *machine) holds(op string, x, y Value) (bool, error) {
	switch op {
	case "==":
		return m.equal(x, y)
	case "!=":
		same, err := m.equal(x, y)
		return !same, err
	case "in":
		return m.contains(y, x)
	case "not in":
		in, err := m.contains(y, x)
		return !in, err
	}
	c, err := m.compare(x, y)
	return op == "<" && c < 0 || op == "<=" && c <= 0 || op == ">" && c > 0 || op == ">=" && c >= 0, err
}

// contains is "x in all".
func (m *machine) contains(all, x Value) (bool, error) {
	switch all := all.(type) {
	case Text:
		x, ok := x.(Text)
		if !ok {
			return false, operandFault("in", x, all)
		}
		return all.index(x, 0) >= 0, m.spend(len(all))
	case *Dict:
		_, ok, err := m.lookup(all, x)
		return ok, err
	}
	items, err := m.iterate(all)
	if err != nil {
		return false, err
	}
	for _, v := range items {
		if same, err := m.equal(v, x); same || err != nil {
			return same, err
		}
	}
	return false, nil
}

func (c choice) eval(m *machine, s *scope) (Value, error) {
	v, err := m.eval(c.test, s)
	switch {
	case err != nil:
		return nil, err
	case truth(v):
		return m.eval(c.then, s)
	case c.other == nil:
		return Undefined{"the value of an if without else"}, nil
	}
	return m.eval(c.other, s)
}

func (a attribute) eval(m *machine, s *scope) (Value, error) {
	x, err := m.eval(a.x, s)
	if err != nil {
		return nil, err
	}
	return m.attribute(x, a.name)
}

// attribute is x.name: a method or, if there is none of that name, an item.
func (m *machine) attribute(x Value, name string) (Value, error) {
	if err := m.spend(1); err != nil {
		return nil, err
	}
	switch x := x.(type) {
	case Undefined:
		return nil, x.fault()
	case *namespace:
		if v, ok := x.fields.Get(name); ok {
			return v, nil
		}
	case *loop:
		if v, ok, err := x.attribute(m, name); ok || err != nil {
			return v, err
		}
	}
	if f, err := method(x, name); f != nil || err != nil {
		return f, err
	}
	if d, ok := x.(*Dict); ok {
		if v, ok := d.Get(name); ok {
			return v, nil
		}
	}
	return Undefined{fmt.Sprintf("the attribute %.40q of a %s", name, typeName(x))}, nil
}

func (i item) eval(m *machine, s *scope) (Value, error) {
	x, err := m.eval(i.x, s)
	if err != nil {
		return nil, err
	}
	key, err := m.eval(i.key, s)
	if err != nil {
		return nil, err
	}
	return m.item(x, key)
}

// item is x[key]: an item or, if there is none under that name, a method.
func (m *machine) item(x, key Value) (Value, error) {
	if err := m.spend(1); err != nil {
		return nil, err
	}
	if u, ok := x.(Undefined); ok {
		return nil, u.fault()
	}
	if u, ok := key.(Undefined); ok {
		return u, nil
	}
	switch x := x.(type) {
	case *Dict:
		if v, ok, err := m.lookup(x, key); ok || err != nil {
			return v, err
		}
	case *List:
		if at, ok := place(key, len(x.Items)); ok {
			return x.Items[at], nil
		}
	case Text:
		if at, ok := place(key, len(x)); ok {
			return x[at : at+1 : at+1], nil
		}
	}
	if name, ok := key.(Text); ok {
		if n, ok := x.(*namespace); ok {
			return m.attribute(n, name.String())
		}
		if f, err := method(x, name.String()); f != nil || err != nil {
			return f, err
		}
		return Undefined{fmt.Sprintf("the item %.40q of a %s", name.String(), typeName(x))}, nil
	}
	return Undefined{fmt.Sprintf("a missing item of a %s", typeName(x))}, nil
}

// place returns the index that a key means in a list of n items.
func place(key Value, n int) (at int, ok bool) {
	_, i, isInt, _ := number(key)
	if isInt && i < 0 {
		i += int64(n)
	}
	return int(i), isInt && i >= 0 && i < int64(n)
}

func (sl slice) eval(m *machine, s *scope) (Value, error) {
	x, err := m.eval(sl.x, s)
	if err != nil {
		return nil, err
	}
	var bounds [3]*int64
	for i, b := range []expr{sl.from, sl.to, sl.step} {
		if b == nil {
			continue
		}
		v, err := m.eval(b, s)
		if err != nil {
			return nil, err
		}
		if _, none := v.(None); none {
			continue
		}
		_, n, isInt, _ := number(v)
		if !isInt {
			return nil, fmt.Errorf("the bound of a slice must be an integer, not a %s", typeName(v))
		}
		bounds[i] = &n
	}
	switch x := x.(type) {
	case Text:
		at, err := m.indices(len(x), bounds)
		out := make(Text, len(at))
		for i, j := range at {
			out[i] = x[j]
		}
		return out, err
	case *List:
		at, err := m.indices(len(x.Items), bounds)
		out := make([]Value, len(at))
		for i, j := range at {
			out[i] = x.Items[j]
		}
		return &List{out, x.tuple}, err
	case Undefined:
		return nil, x.fault()
	}
	return nil, fmt.Errorf("a %s cannot be sliced", typeName(x))
}

// indices returns which of n items from, to and step select, as in Python.
func (l *limits) indices(n int, bounds [3]*int64) ([]int, error) {
	step := int64(1)
	if bounds[2] != nil {
		step = *bounds[2]
	}
	if step == 0 {
		return nil, errors.New("the step of a slice is zero")
	}
	low, high := int64(0), int64(n)
	first, end := low, high
	if step < 0 {
		low, high = -1, int64(n)-1
		first, end = high, low
	}
	for i, at := range []*int64{&first, &end} {
		if b := bounds[i]; b != nil {
			if *at = *b; *at < 0 {
				*at += int64(n)
			}
			*at = min(max(*at, low), high)
		}
	}
	var list []int
	for i := first; step > 0 && i < end || step < 0 && i > end; {
		list = append(list, int(i))
		if step > high || step < -high-1 { // the next is outside, and might wrap around
			break
		}
		i += step
	}
	return list, l.spend(len(list))
}

func (c call) eval(m *machine, s *scope) (Value, error) {
	f, err := m.eval(c.f, s)
	if err != nil {
		return nil, err
	}
	a, err := m.arguments(c.arguments, s)
	if err != nil {
		return nil, err
	}
	switch f := f.(type) {
	case function:
		return f(m, a)
	case *macro:
		return f.call(m, a)
	case Undefined:
		return nil, f.fault()
	}
	return nil, fmt.Errorf("a %s cannot be called", typeName(f))
}

// arguments evaluates the arguments of a call.
func (m *machine) arguments(a arguments, s *scope) (out args, err error) {
	if out.list, err = m.evalAll(a.list, s); err != nil {
		return out, err
	}
	out.names = slices.Clone(a.names)
	out.named, err = m.evalAll(a.named, s)
	return out, err
}

func (f filter) eval(m *machine, s *scope) (Value, error) { return m.pass(f.f, f.x, f.arguments, s) }
func (t test) eval(m *machine, s *scope) (Value, error)   { return m.pass(t.f, t.x, t.arguments, s) }

// pass calls a filter or a test, whose first argument is x.
func (m *machine) pass(f function, x expr, rest arguments, s *scope) (Value, error) {
	v, err := m.eval(x, s)
	if err != nil {
		return nil, err
	}
	a, err := m.arguments(rest, s)
	if err != nil {
		return nil, err
	}
	a.list = slices.Insert(a.list, 0, v)
	if err := m.spend(1); err != nil {
		return nil, err
	}
	return f(m, a)
}
