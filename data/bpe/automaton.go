package bpe

import (
	"errors"
	"slices"
	"unicode"
	"unicode/utf8"
)

// Matching regular expressions.
//
// Approach: an expression becomes a program of a few instructions (Thompson 1968), and the sets of instructions at
// which a match may be become the states of an automaton, which is built in full when a tokenizer is read. States
// are ordered, since of two matches that begin at the same place the one counts that the expression prefers, not
// the longer one (as in RE2). A character decides the next state, and whether the text before it is a match: that a
// look ahead, (?!\S), needs the character after the match costs nothing. Characters that no part of the expression
// tells apart form one class, so a state is a row of some twenty entries, and of 128 for ASCII.
//
// A match that is not found after all may have read far, and the next attempt would read the same again. Hence
// failures of more than farBlock bytes are remembered, and all is linear in the text whatever the expression.

// Limits of an automaton. The published expressions need up to 60 states.
const (
	maxInstructions = 2000
	maxStates       = 2000
	maxClasses      = 250
)

// Each entry of a row is a state, with hit if the text before the character is a match.
const (
	dead  = 0 // the state in which no match can follow
	begin = 1
	hit   = 1 << 15
)

// farBlock is the distance in bytes at which failures are remembered; a power of two.
const farBlock = 256

// automaton finds matches of a regular expression. It is immutable.
type automaton struct {
	ascii   []uint16 // [state][128]
	rows    []uint16 // [state][classes]
	classes int      // the last is that of the end of the text
	pages   [][256]uint8
	page    []uint16 // of pages, by the character without its last 8 bits
	cut     []uint8  // [classes][classes], see cuts
}

// compile builds the automaton of an expression.
func compile(expression string) (*automaton, error) {
	n, err := parseRegex(expression)
	if err != nil {
		return nil, err
	}
	return n.compile(false)
}

// compile builds the automaton; underlined says that spaces in the text stand for ▁.
func (n *node) compile(underlined bool) (*automaton, error) {
	c := &compiler{states: map[string]uint16{}}
	c.node(n)
	c.emit(instruction{op: matched})
	if len(c.program) > maxInstructions {
		return nil, errors.New("the regular expression is too long")
	}
	a := &automaton{}
	if err := c.classify(a, underlined); err != nil {
		return nil, err
	}
	if err := c.determine(a); err != nil {
		return nil, err
	}
	a.cuts()
	return a, nil
}

// opcode is what an instruction of the program does.
type opcode uint8

const (
	consume opcode = iota // go on behind a character of set
	look                  // go on if the next character is in set, or at the end if atEnd
	fork                  // go on at to[0], and with less preference at to[1]
	matched               // there is a match
)

type instruction struct {
	op    opcode
	set   charset
	atEnd bool
	to    [2]int // consume, look: to[0]
	in    []bool // consume, look: the classes in set
}

// compiler builds an automaton.
type compiler struct {
	program []instruction
	classes int
	states  map[string]uint16 // from the instructions of a state, two bytes each
	lists   [][]int           // the instructions of each state
}

func (c *compiler) emit(i instruction) int {
	c.program = append(c.program, i)
	return len(c.program) - 1
}

// node emits the instructions of n, which go on at the end of the program.
func (c *compiler) node(n *node) {
	if len(c.program) > maxInstructions {
		return
	}
	switch here := len(c.program); n.op {
	case oneOf:
		c.emit(instruction{op: consume, set: n.set, to: [2]int{here + 1}})
	case ahead:
		c.emit(instruction{op: look, set: n.set, atEnd: n.atEnd, to: [2]int{here + 1}})
	case inOrder:
		for _, sub := range n.subs {
			c.node(sub)
		}
	case firstOf:
		c.firstOf(n.subs)
	case repeated:
		c.repeat(n)
	}
}

func (c *compiler) firstOf(subs []*node) {
	var ends []int
	for i, sub := range subs {
		if i == len(subs)-1 {
			c.node(sub)
			break
		}
		choice := c.emit(instruction{op: fork})
		c.node(sub)
		ends = append(ends, c.emit(instruction{op: fork}))
		c.program[choice].to = [2]int{choice + 1, len(c.program)}
	}
	for _, end := range ends {
		c.program[end].to = [2]int{len(c.program), len(c.program)}
	}
}

func (c *compiler) repeat(n *node) {
	for range n.least {
		c.node(n.subs[0])
	}
	again := func(choice, into, past int) {
		if c.program[choice].to = [2]int{into, past}; n.lazy {
			c.program[choice].to = [2]int{past, into}
		}
	}
	if n.most == endless {
		choice := c.emit(instruction{op: fork})
		c.node(n.subs[0])
		c.emit(instruction{op: fork, to: [2]int{choice, choice}})
		again(choice, choice+1, len(c.program))
		return
	}
	var choices []int
	for range n.most - n.least {
		choices = append(choices, c.emit(instruction{op: fork}))
		c.node(n.subs[0])
	}
	for _, choice := range choices {
		again(choice, choice+1, len(c.program))
	}
}

// classify divides the characters into classes, and says for each instruction which of them it wants.
func (c *compiler) classify(a *automaton, underlined bool) error {
	edges := []rune{0}
	for i := range c.program {
		for _, r := range c.program[i].set {
			edges = append(edges, r.lo, r.hi+1)
		}
	}
	slices.Sort(edges)
	edges = slices.Compact(edges)
	known := map[string]uint8{}
	all := make([]uint8, unicode.MaxRune+1)
	for k, lo := range edges {
		if lo > unicode.MaxRune {
			break
		}
		end := rune(len(all))
		if k+1 < len(edges) {
			end = min(edges[k+1], end)
		}
		wanted := make([]byte, len(c.program))
		for i := range c.program {
			if c.program[i].set.has(lo) {
				wanted[i] = 1
			}
		}
		class, ok := known[string(wanted)]
		if !ok {
			if len(known) == maxClasses {
				return errors.New("the regular expression tells too many classes of characters apart")
			}
			class = uint8(len(known))
			known[string(wanted)] = class
		}
		for r := lo; r < end; r++ {
			all[r] = class
		}
	}
	c.classes = len(known) + 1
	for i := range c.program {
		c.program[i].in = make([]bool, c.classes)
		c.program[i].in[c.classes-1] = c.program[i].atEnd
	}
	for wanted, class := range known {
		for i := range c.program {
			c.program[i].in[class] = wanted[i] == 1
		}
	}
	a.classes = c.classes
	if underlined {
		all[' '] = all[[]rune(underline)[0]]
	}
	a.paginate(all)
	return nil
}

// paginate stores the class of every character, equal pages once.
func (a *automaton) paginate(all []uint8) {
	known := map[[256]uint8]uint16{}
	for at := 0; at < len(all); at += 256 {
		page := [256]uint8(all[at : at+256])
		index, ok := known[page]
		if !ok {
			index = uint16(len(a.pages))
			known[page] = index
			a.pages = append(a.pages, page)
		}
		a.page = append(a.page, index)
	}
}

// class returns the class of a character.
func (a *automaton) class(r rune) int { return int(a.pages[a.page[r>>8]][r&255]) }

// determine builds the states.
func (c *compiler) determine(a *automaton) error {
	c.lists = [][]int{nil} // the dead state
	c.states[""] = dead
	if _, err := c.state(c.closure(nil, 0, map[int]bool{})); err != nil {
		return err
	}
	for s := 0; s < len(c.lists); s++ {
		row := make([]uint16, c.classes)
		for class := range row {
			next, match := c.step(c.lists[s], class)
			to, err := c.state(next)
			if err != nil {
				return err
			}
			if row[class] = to; match {
				row[class] |= hit
			}
		}
		if s == begin && slices.ContainsFunc(row, func(e uint16) bool { return e&hit != 0 }) {
			return errors.New("the regular expression matches an empty text")
		}
		a.rows = append(a.rows, row...)
		for r := range rune(utf8.RuneSelf) {
			a.ascii = append(a.ascii, row[a.class(r)])
		}
	}
	return nil
}

// state returns the state of a list of instructions.
func (c *compiler) state(list []int) (uint16, error) {
	key := make([]byte, 0, 2*len(list))
	for _, pc := range list {
		key = append(key, byte(pc), byte(pc>>8))
	}
	s, ok := c.states[string(key)]
	if !ok {
		if len(c.lists) == maxStates {
			return 0, errors.New("the regular expression needs too large an automaton")
		}
		s = uint16(len(c.lists))
		c.states[string(key)] = s
		c.lists = append(c.lists, list)
	}
	return s, nil
}

// closure appends the instructions other than fork that are reached from pc, as preferred.
func (c *compiler) closure(list []int, pc int, seen map[int]bool) []int {
	if seen[pc] {
		return list
	}
	seen[pc] = true
	if i := &c.program[pc]; i.op == fork {
		list = c.closure(list, i.to[0], seen)
		return c.closure(list, i.to[1], seen)
	}
	return append(list, pc)
}

// step returns where the instructions of a state go on behind a character of a class, and whether the text before it
// is a match.
func (c *compiler) step(list []int, class int) (next []int, match bool) {
	seen, looked := map[int]bool{}, map[int]bool{}
	var walk func(list []int) bool
	walk = func(list []int) bool {
		for _, pc := range list {
			switch i := &c.program[pc]; i.op {
			case matched:
				return true // what is preferred less does not count
			case consume:
				if i.in[class] {
					next = c.closure(next, i.to[0], seen)
				}
			case look:
				if i.in[class] && walk(c.closure(nil, i.to[0], looked)) {
					return true
				}
			}
		}
		return false
	}
	match = walk(list)
	return next, match
}

// Two characters between which a text may be cut.
const (
	unseen = 1 << iota // no match extends over the place, and none before it depends on what follows
	ended              // a match ends there
)

// cuts fills in, for each two classes, what is known of the place between two such characters.
func (a *automaton) cuts() {
	a.cut = make([]uint8, a.classes*a.classes)
	end := a.classes - 1
	states := len(a.rows) / a.classes
	for before := range end {
		for after := range end {
			bits := uint8(unseen)
			for s := begin; s < states && bits != 0; s++ {
				if t := a.rows[s*a.classes+before] &^ hit; t != dead {
					row := a.rows[int(t)*a.classes : int(t+1)*a.classes]
					if row[after]&^hit != dead || row[after]&hit != row[end]&hit {
						bits = 0
					}
				}
			}
			if t := int(a.rows[begin*a.classes+before] &^ hit); bits != 0 && t != dead && a.rows[t*a.classes+after]&hit != 0 {
				bits |= ended
			}
			a.cut[before*a.classes+after] = bits
		}
	}
}

// placeBetween returns what is known of the place between two characters.
func (a *automaton) placeBetween(before, after rune) uint8 {
	return a.cut[a.class(before)*a.classes+a.class(after)]
}

// total reports whether every character on its own is a match, whatever follows, so that nothing is between matches.
func (a *automaton) total() bool {
	for c := range a.classes - 1 {
		t := int(a.rows[begin*a.classes+c] &^ hit)
		if t == dead {
			return false
		}
		for _, entry := range a.rows[t*a.classes : (t+1)*a.classes] {
			if entry&hit == 0 {
				return false
			}
		}
	}
	return true
}

// scan is the scratch memory of matching in one text.
type scan struct {
	failed map[uint64]bool // block and state from which no match follows
	trail  []uint64
	open   bool // matching has read up to the end of the text
}

// reset forgets the text.
func (s *scan) reset() {
	clear(s.failed)
	s.open = false
}

// match returns the end of the match that begins at text[at], or -1.
func (a *automaton) match(text []byte, at int, far *scan) int {
	state, last, i := begin, -1, at
	for i < len(text) {
		stop := min(i|(farBlock-1)+1, len(text))
		for i < stop {
			var entry uint16
			width := 1
			if b := text[i]; b < utf8.RuneSelf {
				entry = a.ascii[state<<7|int(b)]
			} else {
				var r rune
				r, width = utf8.DecodeRune(text[i:])
				entry = a.rows[state*a.classes+a.class(r)]
			}
			if entry&hit != 0 {
				last = i
			}
			if state = int(entry &^ hit); state == dead {
				far.fail(last)
				return last
			}
			i += width
		}
		if i-max(last, at) > farBlock && far.known(i, state, last) {
			return last
		}
	}
	far.open = true
	if a.rows[(state+1)*a.classes-1]&hit != 0 {
		last = len(text)
	}
	far.fail(last)
	return last
}

// known reports whether it is known that no match follows from here, and else notes the place.
func (s *scan) known(at, state, last int) bool {
	key := uint64(at)<<16 | uint64(state)
	if s.failed[key] {
		s.fail(last)
		return true
	}
	s.trail = append(s.trail, key)
	return false
}

// fail remembers the places noted behind the last match, from which nothing followed.
func (s *scan) fail(last int) {
	if len(s.trail) == 0 {
		return
	}
	if s.failed == nil {
		s.failed = map[uint64]bool{}
	}
	for _, key := range s.trail {
		if int(key>>16) > last {
			s.failed[key] = true
		}
	}
	s.trail = s.trail[:0]
}
