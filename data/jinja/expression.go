package jinja

import (
	"slices"
	"strconv"
)

// Expressions, from those that bind loosest to those that bind tightest, as in Jinja:
//
//	x if y else z;  or;  and;  not;  comparisons, in;  + -;  ~;  * / // %;  **;  unary + -;  . [] () | is

// tuple parses one part, or several separated by commas as a tuple.
func (p *parser) tuple(part func() (expr, error)) (expr, error) {
	first, err := part()
	if err != nil || !p.peek().is(",") {
		return first, err
	}
	items := []expr{first}
	for p.take(",") {
		if t := p.peek(); t.kind == kindClose || t.is(")") || t.is("]") {
			break
		}
		x, err := part()
		if err != nil {
			return nil, err
		}
		items = append(items, x)
	}
	return listOf{items, true}, nil
}

// expression parses an expression with its choices.
func (p *parser) expression() (expr, error) {
	x, err := p.or()
	if err != nil {
		return nil, err
	}
	for p.take("if") {
		c := choice{then: x}
		if c.test, err = p.or(); err != nil {
			return nil, err
		}
		if p.take("else") {
			if err := p.enter(); err != nil {
				return nil, err
			}
			c.other, err = p.expression()
			p.leave()
			if err != nil {
				return nil, err
			}
		}
		x = c
	}
	return x, nil
}

// chain parses operands with operators of equal precedence between them, from left to right.
func (p *parser) chain(operand func() (expr, error), ops ...string) (expr, error) {
	x, err := operand()
	for n := 0; err == nil; n++ {
		t := p.peek()
		if !slices.ContainsFunc(ops, t.is) {
			return x, nil
		}
		if n == maxNesting {
			return nil, p.fault("more than %d operators in a row", maxNesting)
		}
		p.at++
		var y expr
		if y, err = operand(); err == nil {
			x = binary{t.text, x, y}
		}
	}
	return nil, err
}

func (p *parser) or() (expr, error)  { return p.chain(p.and, "or") }
func (p *parser) and() (expr, error) { return p.chain(p.not, "and") }

func (p *parser) not() (expr, error) {
	if !p.take("not") {
		return p.comparison()
	}
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer p.leave()
	x, err := p.not()
	return unary{"not", x}, err
}

var comparing = []string{"==", "!=", "<", "<=", ">", ">=", "in"}

func (p *parser) comparison() (expr, error) {
	x, err := p.sum()
	if err != nil {
		return nil, err
	}
	c := comparison{first: x}
	for {
		op := ""
		switch t := p.peek(); {
		case slices.ContainsFunc(comparing, t.is):
			op = t.text
		case t.is("not") && p.second().is("in"):
			p.at++
			op = "not in"
		}
		if op == "" {
			break
		}
		p.at++
		y, err := p.sum()
		if err != nil {
			return nil, err
		}
		c.ops, c.rest = append(c.ops, op), append(c.rest, y)
	}
	if len(c.ops) == 0 {
		return x, nil
	}
	return c, nil
}

func (p *parser) sum() (expr, error) { return p.chain(p.joined, "+", "-") }

func (p *parser) joined() (expr, error) {
	x, err := p.product()
	if err != nil || !p.peek().is("~") {
		return x, err
	}
	parts := []expr{x}
	for p.take("~") {
		y, err := p.product()
		if err != nil {
			return nil, err
		}
		parts = append(parts, y)
	}
	return concat{parts}, nil
}

func (p *parser) product() (expr, error) { return p.chain(p.power, "*", "/", "//", "%") }
func (p *parser) power() (expr, error) {
	return p.chain(func() (expr, error) { return p.signed(true) }, "**")
}

// signed parses a primary with signs before it and, if filters is set, filters after it.
func (p *parser) signed(filters bool) (x expr, err error) {
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer p.leave()
	if t := p.peek(); t.kind == kindOp && (t.text == "-" || t.text == "+") {
		p.at++
		if x, err = p.signed(false); err != nil {
			return nil, err
		}
		x = unary{t.text, x}
	} else if x, err = p.primary(); err != nil {
		return nil, err
	}
	if x, err = p.postfix(x); err != nil || !filters {
		return x, err
	}
	return p.filtersOf(x)
}

func (p *parser) primary() (expr, error) {
	t := p.next()
	switch t.kind {
	case kindName:
		return p.named(t)
	case kindString:
		text := Own(t.text)
		for p.peek().kind == kindString {
			text = append(text, Own(p.next().text)...)
		}
		return literal{text}, nil
	case kindInt:
		n, err := strconv.ParseInt(t.text, 10, 64)
		if err != nil {
			return nil, faultAt(t.line, "%.30s: %w", t.text, errOverflow)
		}
		return literal{n}, nil
	case kindFloat:
		f, err := strconv.ParseFloat(t.text, 64)
		if err != nil {
			return nil, faultAt(t.line, "%.30s is not a number", t.text)
		}
		return literal{f}, nil
	case kindOp:
		switch t.text {
		case "(":
			return p.parenthesis()
		case "[":
			return p.list()
		case "{":
			return p.dict()
		}
	}
	return nil, faultAt(t.line, "expected an expression, found %v", t)
}

// constants are the names of values.
var constants = map[string]Value{"true": true, "True": true, "false": false, "False": false, "none": None{}, "None": None{}}

func (p *parser) named(t token) (expr, error) {
	if v, ok := constants[t.text]; ok {
		return literal{v}, nil
	}
	if slices.Contains(reserved, t.text) {
		return nil, faultAt(t.line, "expected an expression, found %v", t)
	}
	return name{t.text}, nil
}

func (p *parser) parenthesis() (expr, error) {
	if p.take(")") {
		return listOf{nil, true}, nil
	}
	x, err := p.tuple(p.expression)
	if err != nil {
		return nil, err
	}
	return x, p.expect(")")
}

func (p *parser) list() (expr, error) {
	var l listOf
	for !p.take("]") {
		if len(l.items) > 0 {
			if err := p.expect(","); err != nil {
				return nil, err
			}
			if p.take("]") {
				break
			}
		}
		x, err := p.expression()
		if err != nil {
			return nil, err
		}
		l.items = append(l.items, x)
	}
	return l, nil
}

func (p *parser) dict() (expr, error) {
	var d dictOf
	for !p.take("}") {
		if len(d.keys) > 0 {
			if err := p.expect(","); err != nil {
				return nil, err
			}
			if p.take("}") {
				break
			}
		}
		k, err := p.expression()
		if err != nil {
			return nil, err
		}
		if err := p.expect(":"); err != nil {
			return nil, err
		}
		v, err := p.expression()
		if err != nil {
			return nil, err
		}
		d.keys, d.values = append(d.keys, k), append(d.values, v)
	}
	return d, nil
}

// postfix parses attributes, items and calls.
func (p *parser) postfix(x expr) (expr, error) {
	for n := 0; ; n++ {
		if n == maxNesting {
			return nil, p.fault("more than %d attributes and calls in a row", maxNesting)
		}
		var err error
		switch {
		case p.take("."):
			t := p.next()
			switch t.kind {
			case kindName:
				x = attribute{x, t.text}
			case kindInt:
				i, err := strconv.ParseInt(t.text, 10, 64)
				if err != nil {
					return nil, faultAt(t.line, "%.30s: %w", t.text, errOverflow)
				}
				x = item{x, literal{i}}
			default:
				return nil, faultAt(t.line, "expected the name of an attribute, found %v", t)
			}
		case p.take("["):
			x, err = p.subscript(x)
		case p.take("("):
			c := call{f: x}
			c.arguments, err = p.arguments()
			x = c
		default:
			return x, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// subscript parses x[key] or x[from:to:step] after the bracket.
func (p *parser) subscript(x expr) (expr, error) {
	var parts [3]expr
	colons := 0
	for {
		switch t := p.peek(); {
		case t.is(":") && colons < 2:
			p.at++
			colons++
			continue
		case t.is("]") && (colons > 0 || parts[0] != nil):
			p.at++
			if colons == 0 {
				return item{x, parts[0]}, nil
			}
			return slice{x, parts[0], parts[1], parts[2]}, nil
		case parts[colons] != nil:
			return nil, p.fault(`expected "]", found %v`, t)
		}
		var err error
		if parts[colons], err = p.tuple(p.expression); err != nil {
			return nil, err
		}
	}
}

// arguments parses the arguments of a call after the parenthesis.
func (p *parser) arguments() (arguments, error) {
	var a arguments
	for n := 0; !p.take(")"); n++ {
		if n > 0 {
			if err := p.expect(","); err != nil {
				return a, err
			}
			if p.take(")") {
				break
			}
		}
		if t := p.peek(); t.is("*") || t.is("**") {
			return a, p.fault("arguments with * or ** are not supported; hint: write out each argument")
		}
		if p.peek().kind == kindName && p.second().is("=") {
			a.names = append(a.names, p.next().text)
			p.at++
			x, err := p.expression()
			if err != nil {
				return a, err
			}
			a.named = append(a.named, x)
			continue
		}
		if len(a.named) > 0 {
			return a, p.fault("an argument without a name follows one with a name")
		}
		x, err := p.expression()
		if err != nil {
			return a, err
		}
		a.list = append(a.list, x)
	}
	return a, nil
}

// filtersOf parses filters, tests and calls after an expression.
func (p *parser) filtersOf(x expr) (expr, error) {
	for n := 0; ; n++ {
		if n == maxNesting {
			return nil, p.fault("more than %d filters in a row", maxNesting)
		}
		var err error
		switch {
		case p.take("|"):
			x, err = p.filter(x)
		case p.take("is"):
			x, err = p.test(x)
		case p.take("("):
			c := call{f: x}
			c.arguments, err = p.arguments()
			x = c
		default:
			return x, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

func (p *parser) filter(x expr) (expr, error) {
	t := p.next()
	f := filters[t.text]
	if t.kind != kindName || f == nil {
		return nil, faultAt(t.line, "the filter %v is not known", t)
	}
	out := filter{x: x, name: t.text, f: f}
	var err error
	if p.take("(") {
		out.arguments, err = p.arguments()
	}
	return out, err
}

func (p *parser) test(x expr) (expr, error) {
	negated := p.take("not")
	t := p.next()
	f := tests[t.text]
	if t.kind != kindName && t.kind != kindOp || f == nil {
		return nil, faultAt(t.line, "the test %v is not known", t)
	}
	out := test{x: x, name: t.text, f: f}
	next := p.peek()
	var err error
	switch {
	case p.take("("):
		out.arguments, err = p.arguments()
	case next.kind == kindString, next.kind == kindInt, next.kind == kindFloat, next.is("["), next.is("{"),
		next.kind == kindName && !slices.Contains(behindTest, next.text):
		var arg expr
		if arg, err = p.primary(); err == nil {
			arg, err = p.postfix(arg)
		}
		out.list = []expr{arg}
	}
	if negated {
		return unary{"not", out}, err
	}
	return out, err
}

// behindTest are the words that may follow a test without being its argument.
var behindTest = []string{"else", "or", "and"}
