package jinja

import (
	"slices"
	"strings"
)

// Template is a parsed template. It is immutable and safe for concurrent use.
type Template struct{ body []stmt }

// maxNesting bounds how deeply statements, and expressions, are nested.
const maxNesting = 200

// Parse parses a template.
func Parse(source string) (*Template, error) {
	tokens, err := lex(source)
	if err != nil {
		return nil, err
	}
	p := &parser{cursor: cursor{tokens: tokens}}
	body, err := p.statements()
	if err != nil {
		return nil, err
	}
	if t := p.peek(); t.kind != kindEnd {
		return nil, p.fault("unexpected %v", t)
	}
	return &Template{body}, nil
}

// parser parses the tokens of a template.
type parser struct {
	cursor
	loops int // that contain this place
}

// cursor is a position in the tokens of a template.
type cursor struct {
	tokens []token
	at     int
	depth  int // of what is parsed
}

func (c *cursor) peek() token { return c.tokens[c.at] }

// second is the token after the next.
func (c *cursor) second() token { return c.tokens[min(c.at+1, len(c.tokens)-1)] }

func (c *cursor) next() token {
	t := c.tokens[c.at]
	if t.kind != kindEnd {
		c.at++
	}
	return t
}

// take moves past an operator or a name if it is next.
func (c *cursor) take(text string) bool {
	if !c.peek().is(text) {
		return false
	}
	c.at++
	return true
}

func (c *cursor) fault(format string, args ...any) error {
	return faultAt(c.peek().line, format, args...)
}

// expect moves past an operator or a name that must be next.
func (c *cursor) expect(text string) error {
	if !c.take(text) {
		return c.fault("expected %q, found %v", text, c.peek())
	}
	return nil
}

func (c *cursor) close() error {
	if c.peek().kind != kindClose {
		return c.fault("expected the end of the tag, found %v", c.peek())
	}
	c.at++
	return nil
}

// ident reads a name that can be assigned to.
func (c *cursor) ident() (string, error) {
	t := c.peek()
	if t.kind != kindName || slices.Contains(reserved, t.text) {
		return "", c.fault("expected a name, found %v", t)
	}
	c.at++
	return t.text, nil
}

var reserved = strings.Fields("true false none True False None and or not in is if else elif")

func (c *cursor) enter() error {
	if c.depth++; c.depth > maxNesting {
		return c.fault("more than %d levels of nesting", maxNesting)
	}
	return nil
}

func (c *cursor) leave() { c.depth-- }

// statements parses up to a tag that does not begin a statement, or the end.
func (p *parser) statements() ([]stmt, error) {
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer p.leave()
	var list []stmt
	for {
		t := p.peek()
		switch t.kind {
		case kindText:
			p.at++
			if t.text != "" {
				list = append(list, output{Own(t.text)})
			}
			continue
		case kindPrint:
			p.at++
			x, err := p.tuple(p.expression)
			if err != nil {
				return nil, err
			}
			if err := p.close(); err != nil {
				return nil, err
			}
			list = append(list, located{print{x}, t.line})
			continue
		case kindEnd:
			return list, nil
		}
		parse := p.statement(p.second().text)
		if parse == nil {
			return list, nil
		}
		p.at += 2
		s, err := parse()
		if err != nil {
			return nil, err
		}
		list = append(list, located{s, t.line})
	}
}

// statement returns the method that parses a statement after its first word, nil if that word begins none.
func (p *parser) statement(word string) func() (stmt, error) {
	switch word {
	case "if":
		return p.ifStmt
	case "for":
		return p.forStmt
	case "set":
		return p.setStmt
	case "macro":
		return p.macro
	case "with":
		return p.withStatement
	case "generation":
		return p.generation
	case "break":
		return func() (stmt, error) { return p.jump(breaking) }
	case "continue":
		return func() (stmt, error) { return p.jump(continuing) }
	case "include", "import", "from", "extends", "block", "call", "filter", "autoescape", "do", "print", "trans":
		return func() (stmt, error) {
			p.at--
			return nil, p.fault("the statement %q is not supported; hint: write the template without it", word)
		}
	}
	return nil
}

// ending moves past a tag of one word that must be next.
func (p *parser) ending(word string) error {
	if p.peek().kind != kindTag || !p.second().is(word) {
		t := p.peek()
		if t.kind == kindTag {
			t = p.second()
		}
		return p.fault("expected %q, found %v", word, t)
	}
	p.at += 2
	return p.close()
}

// atTag reports whether the next tag begins with a word, and moves past both if so.
func (c *cursor) atTag(word string) bool {
	if c.peek().kind != kindTag || !c.second().is(word) {
		return false
	}
	c.at += 2
	return true
}

// body parses the end of a tag and the statements after it.
func (p *parser) body() ([]stmt, error) {
	if err := p.close(); err != nil {
		return nil, err
	}
	return p.statements()
}

func (p *parser) ifStmt() (stmt, error) {
	var s ifStmt
	for {
		x, err := p.tuple(p.or)
		if err != nil {
			return nil, err
		}
		body, err := p.body()
		if err != nil {
			return nil, err
		}
		s.tests, s.bodies = append(s.tests, x), append(s.bodies, body)
		if p.atTag("elif") {
			continue
		}
		if s.other, err = p.elseBody(); err != nil {
			return nil, err
		}
		return s, p.ending("endif")
	}
}

func (p *parser) elseBody() ([]stmt, error) {
	if !p.atTag("else") {
		return nil, nil
	}
	return p.body()
}

func (p *parser) forStmt() (stmt, error) {
	targets, err := p.targets()
	if err != nil {
		return nil, err
	}
	s := forStmt{targets: targets}
	if err := p.expect("in"); err != nil {
		return nil, err
	}
	if s.over, err = p.tuple(p.or); err != nil {
		return nil, err
	}
	if p.take("if") {
		if s.when, err = p.expression(); err != nil {
			return nil, err
		}
	}
	if p.peek().is("recursive") {
		return nil, p.fault("recursive loops are not supported; hint: use a macro that calls itself")
	}
	p.loops++
	s.body, err = p.body()
	p.loops--
	if err != nil {
		return nil, err
	}
	if s.other, err = p.elseBody(); err != nil {
		return nil, err
	}
	return s, p.ending("endfor")
}

// targets parses a, b or (a, b).
func (p *parser) targets() ([]string, error) {
	paren := p.take("(")
	var list []string
	for {
		n, err := p.ident()
		if err != nil {
			return nil, err
		}
		list = append(list, n)
		if !p.take(",") {
			break
		}
	}
	if paren {
		return list, p.expect(")")
	}
	return list, nil
}

func (p *parser) setStmt() (stmt, error) {
	targets, err := p.targets()
	if err != nil {
		return nil, err
	}
	s := setStmt{targets: targets}
	if len(targets) == 1 && p.take(".") {
		t := p.next()
		if t.kind != kindName {
			return nil, p.fault("expected the name of an attribute, found %v", t)
		}
		s.attribute = t.text
	}
	if p.take("=") {
		if s.x, err = p.tuple(p.expression); err != nil {
			return nil, err
		}
		return s, p.close()
	}
	if len(targets) > 1 {
		return nil, p.fault(`expected "=", found %v`, p.peek())
	}
	b := setBlock{target: targets[0], attribute: s.attribute}
	if b.x, err = p.filtersOf(name{captured}); err != nil {
		return nil, err
	}
	if b.body, err = p.body(); err != nil {
		return nil, err
	}
	return b, p.ending("endset")
}

func (p *parser) macro() (stmt, error) {
	var s macroStmt
	var err error
	if s.name, err = p.ident(); err != nil {
		return nil, err
	}
	if err := p.expect("("); err != nil {
		return nil, err
	}
	for !p.take(")") {
		if len(s.params) > 0 {
			if err := p.expect(","); err != nil {
				return nil, err
			}
		}
		n, err := p.ident()
		if err != nil {
			return nil, err
		}
		s.params = append(s.params, n)
		switch {
		case p.take("="):
			x, err := p.expression()
			if err != nil {
				return nil, err
			}
			s.defaults = append(s.defaults, x)
		case len(s.defaults) > 0:
			return nil, p.fault("a parameter without a default follows one with a default")
		}
	}
	loops := p.loops
	p.loops = 0
	s.body, err = p.body()
	p.loops = loops
	if err != nil {
		return nil, err
	}
	return s, p.ending("endmacro")
}

func (p *parser) withStatement() (stmt, error) {
	var s withStmt
	for p.peek().kind != kindClose {
		if len(s.names) > 0 {
			if err := p.expect(","); err != nil {
				return nil, err
			}
		}
		n, err := p.ident()
		if err != nil {
			return nil, err
		}
		if err := p.expect("="); err != nil {
			return nil, err
		}
		x, err := p.expression()
		if err != nil {
			return nil, err
		}
		s.names, s.values = append(s.names, n), append(s.values, x)
	}
	var err error
	if s.body, err = p.body(); err != nil {
		return nil, err
	}
	return s, p.ending("endwith")
}

// generation parses the tag with which templates mark what an assistant says.
func (p *parser) generation() (stmt, error) {
	body, err := p.body()
	if err != nil {
		return nil, err
	}
	return block{body}, p.ending("endgeneration")
}

func (p *parser) jump(how flow) (stmt, error) {
	if p.loops == 0 {
		return nil, p.fault("break or continue is outside a loop")
	}
	return jumping{how}, p.close()
}
