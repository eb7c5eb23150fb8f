package bpe

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Reading regular expressions.
//
// Published tokenizers split text with expressions in the syntax of Oniguruma. Here is the part of it that an
// automaton can match in linear time, which is what they use: characters, classes, groups, alternatives,
// repetition, and a look at the one character that follows, as in \s+(?!\S). What else there is (references to
// groups, looks behind, looks ahead at more than a character) is an error that names it.

// operator says what a node of an expression matches.
type operator uint8

const (
	oneOf    operator = iota // a character of set
	inOrder                  // subs, one after the other
	firstOf                  // the first of subs that leads to a match
	repeated                 // subs[0], least to most times
	ahead                    // nothing, if the next character is in set
)

// endless as the most times of a repetition means that there is no bound.
const endless = -1

// node is a regular expression, or a part of one.
type node struct {
	op          operator
	set         charset
	atEnd       bool // ahead: matches at the end of the text too
	subs        []*node
	least, most int
	lazy        bool // fewer times are preferred
	possessive  bool // what it has taken is not given back
}

// regexParser reads an expression from left to right.
type regexParser struct {
	text string
	at   int
	fold bool // case does not matter
	deep int  // open groups
}

// parseRegex reads an expression.
func parseRegex(text string) (*node, error) {
	p := &regexParser{text: text}
	n, err := p.alternatives()
	if err == nil && p.at < len(text) {
		err = p.fault("a ) without a (")
	}
	if err == nil {
		err = n.checkPossessive(nil, true)
	}
	if err != nil {
		return nil, fmt.Errorf("the regular expression %q: %w", text, err)
	}
	return n, nil
}

func (p *regexParser) fault(what string) error {
	return fmt.Errorf("character %d: %s is not supported", p.at, what)
}

// take skips a text if it comes next.
func (p *regexParser) take(text string) bool {
	if strings.HasPrefix(p.text[p.at:], text) {
		p.at += len(text)
		return true
	}
	return false
}

func (p *regexParser) next() rune {
	r, width := utf8.DecodeRuneInString(p.text[p.at:])
	p.at += width
	return r
}

func (p *regexParser) alternatives() (*node, error) {
	if p.deep++; p.deep > 50 {
		return nil, p.fault("more than 50 groups within each other")
	}
	defer func() { p.deep-- }()
	all := &node{op: firstOf}
	for {
		n, err := p.sequence()
		if err != nil {
			return nil, err
		}
		all.subs = append(all.subs, n)
		if !p.take("|") {
			break
		}
	}
	if len(all.subs) == 1 {
		return all.subs[0], nil
	}
	return all, nil
}

func (p *regexParser) sequence() (*node, error) {
	all := &node{op: inOrder}
	for p.at < len(p.text) && p.text[p.at] != '|' && p.text[p.at] != ')' {
		if p.take("(?i)") { // until the end of the group
			p.fold = true
			continue
		}
		n, err := p.item()
		if err == nil {
			n, err = p.repetition(n)
		}
		if err != nil {
			return nil, err
		}
		all.subs = append(all.subs, n)
	}
	return all, nil
}

// repetition reads what follows an item: * + ? {2} {2,} {,3} {2,3}, each perhaps with ? or +.
func (p *regexParser) repetition(n *node) (*node, error) {
	for {
		least, most := 0, endless
		switch {
		case p.take("*"):
		case p.take("+"):
			least = 1
		case p.take("?"):
			most = 1
		default:
			var ok bool
			if least, most, ok = p.bounds(); !ok {
				return n, nil
			}
			if most > 100 || least > 100 || most != endless && most < least {
				return nil, p.fault("this number of repetitions")
			}
			n = &node{op: repeated, subs: []*node{n}, least: least, most: most, lazy: p.take("?")}
			continue
		}
		n = &node{op: repeated, subs: []*node{n}, least: least, most: most}
		if n.lazy = p.take("?"); !n.lazy {
			n.possessive = p.take("+")
		}
	}
}

// bounds reads {2}, {2,}, {,3} or {2,3}; anything else is an ordinary brace.
func (p *regexParser) bounds() (least, most int, ok bool) {
	rest := p.text[p.at:]
	end := strings.IndexByte(rest, '}')
	if !strings.HasPrefix(rest, "{") || end < 2 {
		return 0, 0, false
	}
	low, high, pair := strings.Cut(rest[1:end], ",")
	if !pair {
		high = low
	}
	least, err := strconv.Atoi(low)
	if low == "" && high != "" {
		least, err = 0, nil
	}
	most, err2 := strconv.Atoi(high)
	if high == "" {
		most, err2 = endless, nil
	}
	if err != nil || err2 != nil || least < 0 || most < endless {
		return 0, 0, false
	}
	p.at += end + 1
	return least, most, true
}

func (p *regexParser) item() (*node, error) {
	switch {
	case p.take("("):
		return p.group()
	case p.take("["):
		set, err := p.class()
		return &node{op: oneOf, set: set}, err
	case p.take("."):
		return &node{op: oneOf, set: charset{{'\n', '\n'}}.inverse()}, nil
	case p.take("$"): // the end of a line
		return &node{op: ahead, set: charset{{'\n', '\n'}}, atEnd: true}, nil
	case p.take(`\z`):
		return &node{op: ahead, atEnd: true}, nil
	case p.take("^"), p.take(`\b`), p.take(`\B`), p.take(`\A`), p.take(`\G`):
		return nil, p.fault("a look at what comes before")
	case p.take(`\`):
		set, err := p.escape()
		return p.character(set), err
	}
	r := p.next()
	if r == '*' || r == '+' || r == '?' {
		return nil, p.fault("a repetition of nothing")
	}
	return p.character(charset{{r, r}}), nil
}

func (p *regexParser) character(set charset) *node {
	if p.fold {
		set = set.folded()
	}
	return &node{op: oneOf, set: set}
}

// group reads what follows an opening parenthesis, and the closing one.
func (p *regexParser) group() (*node, error) {
	fold := p.fold
	defer func() { p.fold = fold }()
	look, negative := false, false
	switch {
	case p.take("?:"):
	case p.take("?i:"):
		p.fold = true
	case p.take("?="):
		look = true
	case p.take("?!"):
		look, negative = true, true
	case strings.HasPrefix(p.text[p.at:], "?"):
		return nil, p.fault(fmt.Sprintf("the group (%.3s", p.text[p.at:]))
	}
	n, err := p.alternatives()
	if err != nil {
		return nil, err
	}
	if !p.take(")") {
		return nil, p.fault("a ( without a )")
	}
	if !look {
		return n, nil
	}
	set, atEnd, ok := n.single()
	if !ok {
		return nil, p.fault("a look ahead at more than one character")
	}
	if negative {
		set, atEnd = set.inverse(), !atEnd
	}
	return &node{op: ahead, set: set, atEnd: atEnd}, nil
}

// single returns the set of an expression that looks at one character, and whether it matches at the end of the
// text; ok is false for any other expression.
func (n *node) single() (set charset, atEnd, ok bool) {
	switch n.op {
	case oneOf:
		return n.set, false, true
	case ahead:
		return n.set, n.atEnd, true
	case inOrder:
		if len(n.subs) == 1 {
			return n.subs[0].single()
		}
	case firstOf:
		for _, sub := range n.subs {
			s, end, ok := sub.single()
			if !ok {
				return nil, false, false
			}
			set, atEnd = set.union(s), atEnd || end
		}
		return set, atEnd, true
	case repeated: // looking for one or more is looking for one
		if n.least == 1 {
			return n.subs[0].single()
		}
	}
	return nil, false, false
}

// class reads what follows an opening bracket, and the closing one.
func (p *regexParser) class() (set charset, err error) {
	if p.deep++; p.deep > 50 {
		return nil, p.fault("more than 50 groups within each other")
	}
	defer func() { p.deep-- }()
	negative := p.take("^")
	var both []charset // what && stands between
	for first := true; ; first = false {
		switch {
		case p.at >= len(p.text):
			return nil, p.fault("a [ without a ]")
		case !first && p.take("]"):
			for _, other := range both {
				set = set.intersect(other)
			}
			if p.fold {
				set = set.folded()
			}
			if negative {
				set = set.inverse()
			}
			return set, nil
		case p.take("&&"):
			both, set = append(both, set), nil
			continue
		}
		part, err := p.member()
		if err != nil {
			return nil, err
		}
		set = set.union(part)
	}
}

// member reads a member of a class: a character, a range, an escape, or a class.
func (p *regexParser) member() (charset, error) {
	if p.take("[:") {
		return nil, p.fault("a class between [: and :]")
	}
	if p.take("[") {
		return p.class()
	}
	low, err := p.bound()
	if err != nil || len(low) != 1 || low[0].lo != low[0].hi {
		return low, err
	}
	rest := p.text[p.at:]
	if len(rest) < 2 || rest[0] != '-' || rest[1] == ']' || rest[1] == '[' {
		return low, nil
	}
	p.at++
	high, err := p.bound()
	if err != nil {
		return nil, err
	}
	if len(high) != 1 || high[0].lo != high[0].hi || high[0].lo < low[0].lo {
		return nil, p.fault("this range")
	}
	return charset{{low[0].lo, high[0].lo}}, nil
}

func (p *regexParser) bound() (charset, error) {
	if p.take(`\`) {
		return p.escape()
	}
	r := p.next()
	return charset{{r, r}}, nil
}

// simple are the escapes of single characters.
var simple = map[rune]rune{'t': '\t', 'n': '\n', 'r': '\r', 'f': '\f', 'v': '\v', 'a': '\a', 'e': 0x1B, '0': 0}

// words is \w.
func wordCharacters() charset { return tables(unicode.L, unicode.M, unicode.Nd, unicode.Pc) }

// escape reads what follows a backslash.
func (p *regexParser) escape() (charset, error) {
	if p.at >= len(p.text) {
		return nil, p.fault("a backslash at the end")
	}
	switch r := p.next(); r {
	case 's':
		return tables(unicode.White_Space), nil
	case 'S':
		return tables(unicode.White_Space).inverse(), nil
	case 'd':
		return tables(unicode.Nd), nil
	case 'D':
		return tables(unicode.Nd).inverse(), nil
	case 'w':
		return wordCharacters(), nil
	case 'W':
		return wordCharacters().inverse(), nil
	case 'p', 'P':
		set, err := p.property()
		if r == 'P' {
			set = set.inverse()
		}
		return set, err
	case 'x', 'u':
		return p.code(r)
	default:
		if c, ok := simple[r]; ok {
			return charset{{c, c}}, nil
		}
		if unicode.IsLetter(r) || unicode.IsDigit(r) {
			return nil, p.fault(`\` + string(r))
		}
		return charset{{r, r}}, nil
	}
}

// code reads the digits of \x1F, \x{1F600} or \u3042.
func (p *regexParser) code(kind rune) (charset, error) {
	rest, digits := p.text[p.at:], 2
	if kind == 'u' {
		digits = 4
	}
	if kind == 'x' && p.take("{") {
		rest = p.text[p.at:]
		if digits = strings.IndexByte(rest, '}'); digits < 0 {
			return nil, p.fault("a code without an end")
		}
		p.at++
	}
	if len(rest) < digits {
		return nil, p.fault("a code without an end")
	}
	code, err := strconv.ParseUint(rest[:digits], 16, 21)
	if err != nil || code > unicode.MaxRune {
		return nil, p.fault("this code")
	}
	p.at += digits
	return charset{{rune(code), rune(code)}}, nil
}

// property reads {L}, {^L}, {Han}, {IsHan} or L.
func (p *regexParser) property() (charset, error) {
	name := ""
	if p.take("{") {
		end := strings.IndexByte(p.text[p.at:], '}')
		if end < 0 {
			return nil, p.fault("a property without an end")
		}
		name = p.text[p.at : p.at+end]
		p.at += end + 1
	} else if p.at < len(p.text) {
		name = string(p.next())
	}
	plain, negative := strings.CutPrefix(name, "^")
	for _, known := range []map[string]*unicode.RangeTable{unicode.Categories, unicode.Scripts, unicode.Properties} {
		for _, spelled := range []string{plain, strings.TrimPrefix(plain, "Is"), strings.TrimPrefix(plain, "Script=")} {
			if table, ok := known[spelled]; ok {
				if set := tables(table); negative {
					return set.inverse(), nil
				} else {
					return set, nil
				}
			}
		}
	}
	return nil, p.fault(fmt.Sprintf("the property %q", name))
}

// first returns the characters that a match of n may begin with, and whether it may be empty.
func (n *node) first() (set charset, empty bool) {
	switch n.op {
	case oneOf:
		return n.set, false
	case inOrder:
		for _, sub := range n.subs {
			s, nothing := sub.first()
			if set = set.union(s); !nothing {
				return set, false
			}
		}
		return set, true
	case firstOf:
		for _, sub := range n.subs {
			s, nothing := sub.first()
			set, empty = set.union(s), empty || nothing
		}
		return set, empty
	case repeated:
		set, empty = n.subs[0].first()
		return set, empty || n.least == 0
	}
	return nil, true
}

// checkPossessive refuses repetitions that keep what they have taken, unless this changes nothing: what follows
// cannot begin with what is repeated. rest is what follows n; last says that nothing does but the end.
func (n *node) checkPossessive(rest []*node, last bool) error {
	switch n.op {
	case firstOf:
		for _, sub := range n.subs {
			if err := sub.checkPossessive(rest, last); err != nil {
				return err
			}
		}
	case inOrder:
		for i, sub := range n.subs {
			if err := sub.checkPossessive(slices.Concat(n.subs[i+1:], rest), last); err != nil {
				return err
			}
		}
	case repeated:
		own, _ := n.subs[0].first()
		follows, empty := (&node{op: inOrder, subs: rest}).first()
		if n.possessive && (n.subs[0].op != oneOf || len(own.intersect(follows)) > 0 || empty && !last) {
			return fmt.Errorf("a possessive repetition is not supported here")
		}
		return n.subs[0].checkPossessive(nil, false)
	}
	return nil
}
