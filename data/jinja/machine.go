package jinja

import (
	"errors"
	"fmt"
	"time"
)

// ErrBudget reports that rendering took more than its budget.
var ErrBudget = errors.New("the template takes too long, or writes too much; hint: check whether it loops without end")

// RaisedError is what a template raised by raise_exception.
type RaisedError struct{ Message string }

func (e *RaisedError) Error() string { return "the template refuses this: " + e.Message }

// machine is one rendering.
type machine struct {
	now time.Time
	limits
	out Text
	filters,
	tests map[string]function
}

// maxDepth bounds the depth of calls and of what they evaluate, and that of values.
const maxDepth = 2000

// Render runs a template. Steps, and characters and items that are made, cost one each of the
// budget. now is the time that strftime_now formats; if it is zero, there is no such function.
func (t *Template) Render(variables map[string]Value, now time.Time, budget int) (Text, error) {
	m := &machine{now: now, limits: limits{budget: budget}, filters: filters, tests: tests}
	global := &scope{names: map[string]Value{}}
	for name, f := range functions {
		global.names[name] = f
	}
	if now.IsZero() {
		delete(global.names, "strftime_now")
	}
	for name, v := range variables {
		global.names[name] = v
	}
	if _, err := m.run(t.body, &scope{parent: global}); err != nil {
		return nil, err
	}
	return m.out, nil
}

// limits bound what a template may cost.
type limits struct {
	budget int // what may still be spent: steps, and characters and items that are made
	depth  int // of calls, statements and values
}

func (l *limits) spend(n int) error {
	if l.budget -= n; l.budget < 0 {
		return ErrBudget
	}
	return nil
}

// enter goes a level deeper; leave goes back.
func (l *limits) enter() error {
	if l.depth++; l.depth > maxDepth {
		l.depth--
		return fmt.Errorf("more than %d levels of calls and values; hint: check whether a macro calls itself", maxDepth)
	}
	return nil
}

func (l *limits) leave() { l.depth-- }

// scope holds the names that a part of the template assigned.
type scope struct {
	names  map[string]Value
	parent *scope
}

func (s *scope) lookup(name string) (Value, bool) {
	for ; s != nil; s = s.parent {
		if v, ok := s.names[name]; ok {
			return v, true
		}
	}
	return nil, false
}

func (s *scope) set(name string, v Value) {
	if s.names == nil {
		s.names = map[string]Value{}
	}
	s.names[name] = v
}

// run executes statements.
func (m *machine) run(list []stmt, s *scope) (flow, error) {
	if err := m.enter(); err != nil {
		return onwards, err
	}
	defer m.leave()
	for _, st := range list {
		if err := m.spend(1); err != nil {
			return onwards, err
		}
		if how, err := st.exec(m, s); how != onwards || err != nil {
			return how, err
		}
	}
	return onwards, nil
}

// capture returns what statements write.
func (m *machine) capture(list []stmt, s *scope) (Text, flow, error) {
	out := m.out
	m.out = nil
	how, err := m.run(list, s)
	text := m.out
	m.out = out
	return text, how, err
}

func (o output) exec(m *machine, _ *scope) (_ flow, err error) {
	m.out, err = m.grow(m.out, o.text)
	return onwards, err
}

func (p print) exec(m *machine, s *scope) (flow, error) {
	v, err := m.eval(p.x, s)
	if err != nil {
		return onwards, err
	}
	text, err := m.text(v)
	if err == nil {
		m.out, err = m.grow(m.out, text)
	}
	return onwards, err
}

func (l located) exec(m *machine, s *scope) (flow, error) {
	how, err := l.stmt.exec(m, s)
	var known *Error
	if err != nil && !errors.As(err, &known) {
		err = &Error{l.line, err}
	}
	return how, err
}

func (i ifStmt) exec(m *machine, s *scope) (flow, error) {
	for n, x := range i.tests {
		v, err := m.eval(x, s)
		if err != nil {
			return onwards, err
		}
		if truth(v) {
			return m.run(i.bodies[n], s)
		}
	}
	return m.run(i.other, s)
}

// assign gives names to a value, or to its parts.
func (m *machine) assign(s *scope, targets []string, v Value) error {
	if len(targets) == 1 {
		s.set(targets[0], v)
		return nil
	}
	parts, err := m.iterate(v)
	if err != nil {
		return err
	}
	if len(parts) != len(targets) {
		return fmt.Errorf("cannot assign %d values to %d names", len(parts), len(targets))
	}
	for i, name := range targets {
		s.set(name, parts[i])
	}
	return nil
}

func (f forStmt) exec(m *machine, s *scope) (flow, error) {
	over, err := m.eval(f.over, s)
	if err != nil {
		return onwards, err
	}
	items, err := m.iterate(over)
	if err == nil && f.when != nil {
		items, err = f.chosen(m, s, items)
	}
	if err != nil {
		return onwards, err
	}
	if len(items) == 0 {
		return m.run(f.other, s)
	}
	l := &loop{items: items}
	for l.at = range items {
		if err := m.spend(1); err != nil {
			return onwards, err
		}
		body := &scope{parent: s, names: map[string]Value{"loop": l.now()}}
		if err := m.assign(body, f.targets, items[l.at]); err != nil {
			return onwards, err
		}
		how, err := m.run(f.body, body)
		if err != nil {
			return onwards, err
		}
		if how == breaking {
			break
		}
	}
	return onwards, nil
}

// chosen returns the items for which a loop's trailing condition holds.
func (f forStmt) chosen(m *machine, s *scope, items []Value) ([]Value, error) {
	var list []Value
	for _, v := range items {
		if err := m.spend(1); err != nil {
			return nil, err
		}
		inner := &scope{parent: s}
		if err := m.assign(inner, f.targets, v); err != nil {
			return nil, err
		}
		ok, err := m.eval(f.when, inner)
		if err != nil {
			return nil, err
		}
		if truth(ok) {
			list = append(list, v)
		}
	}
	return list, nil
}

func (st setStmt) exec(m *machine, s *scope) (flow, error) {
	v, err := m.eval(st.x, s)
	if err != nil {
		return onwards, err
	}
	if st.attribute != "" {
		return onwards, m.setAttribute(s, st.targets[0], st.attribute, v)
	}
	return onwards, m.assign(s, st.targets, v)
}

// setAttribute changes a namespace; nothing else can be changed.
func (m *machine) setAttribute(s *scope, target, attribute string, v Value) error {
	x, _ := s.lookup(target)
	n, ok := x.(*namespace)
	if !ok {
		return fmt.Errorf("%s is not a namespace, so %s.%s cannot be set", target, target, attribute)
	}
	return n.put(attribute, v)
}

func (b setBlock) exec(m *machine, s *scope) (flow, error) {
	text, how, err := m.capture(b.body, &scope{parent: s})
	if err != nil || how != onwards {
		return how, err
	}
	inner := &scope{parent: s}
	inner.set(captured, text)
	v, err := m.eval(b.x, inner)
	if err != nil {
		return onwards, err
	}
	if b.attribute != "" {
		return onwards, m.setAttribute(s, b.target, b.attribute, v)
	}
	s.set(b.target, v)
	return onwards, nil
}

func (ms macroStmt) exec(m *machine, s *scope) (flow, error) {
	s.set(ms.name, &macro{ms, s})
	return onwards, nil
}

// macro is a macro and where it was defined.
type macro struct {
	macroStmt
	scope *scope
}

// call binds the parameters and returns what the body writes.
func (c *macro) call(m *machine, a args) (Value, error) {
	s := &scope{parent: c.scope}
	if len(a.list) > len(c.params) {
		return nil, fmt.Errorf("the macro %s takes at most %d arguments", c.name, len(c.params))
	}
	for i, v := range a.list {
		s.set(c.params[i], v)
	}
	for i, p := range c.params {
		if i < len(a.list) {
			continue
		}
		v, ok := a.take(p)
		if d := i - (len(c.params) - len(c.defaults)); !ok && d >= 0 {
			var err error
			if v, err = m.eval(c.defaults[d], s); err != nil {
				return nil, err
			}
		} else if !ok {
			v = Undefined{"the parameter " + p}
		}
		s.set(p, v)
	}
	if err := a.done(); err != nil {
		return nil, err
	}
	text, _, err := m.capture(c.body, s)
	return text, err
}

func (w withStmt) exec(m *machine, s *scope) (flow, error) {
	inner := &scope{parent: s}
	for i, x := range w.values {
		v, err := m.eval(x, s)
		if err != nil {
			return onwards, err
		}
		inner.set(w.names[i], v)
	}
	return m.run(w.body, inner)
}

// exec runs the block in a scope of its own, as transformers calls it, and marks what it writes.
func (b block) exec(m *machine, s *scope) (flow, error) {
	text, how, err := m.capture(b.body, &scope{parent: s})
	if err != nil {
		return how, err
	}
	first := len(m.out)
	m.out, err = m.grow(m.out, text)
	for i := first; i < len(m.out); i++ {
		m.out[i] |= generated
	}
	return how, err
}

func (j jumping) exec(*machine, *scope) (flow, error) { return j.how, nil }
