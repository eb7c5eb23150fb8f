package schedule

import (
	"fmt"
	"strconv"
	"strings"
)

// Notation is a way to write units. A unit is F, B or W (forward, backward, weight
// gradient), then the number of the micro-batch, then a letter for the slice if there are
// several. If all backwards are split, B is the input gradient; else B is the full
// backward and b the input gradient.
type Notation uint8

const (
	// Plain: F0, F0a (slice a), F0.1 (chunk 1), F0a.1.
	Plain Notation = iota
	// Cases: F and f are the forwards of the first and second chunk of a V, B and b (W
	// and w) the backwards of the second and first, as a micro-batch passes them. All
	// backwards are split.
	Cases
	// Arrows: Fd0 and Fu0 go down and up the ranks; FD0 and FU0 are the second chunks of
	// a V.
	Arrows
	// Primes: F0, and F'0 for the other direction or the second chunk of a V; F3+B'1
	// overlap.
	Primes
)

// Text returns the orders, one line per rank.
func (s *Schedule) Text() []string {
	lines := make([]string, len(s.Orders))
	name := s.namer()
	for r, order := range s.Orders {
		var b strings.Builder
		for i, u := range order {
			switch {
			case u.Joined:
				b.WriteByte('+')
			case i > 0:
				b.WriteByte(' ')
			}
			b.WriteString(name(u))
		}
		lines[r] = b.String()
	}
	return lines
}

// Splits reports whether the orders have input gradients, and whether they also have full
// backwards.
func (s *Schedule) Splits() (split, mixed bool) {
	full := false
	for _, order := range s.Orders {
		for _, u := range order {
			split = split || u.Pass == Bx
			full = full || u.Pass == B
		}
	}
	return split, split && full
}

// namer returns a function that writes one unit in the schedule's notation.
func (s *Schedule) namer() func(Unit) string {
	_, mixed := s.Splits()
	return func(u Unit) string {
		pass := [...]string{F: "F", B: "B", Bx: "B", W: "W"}[u.Pass]
		if u.Pass == Bx && mixed {
			pass = "b"
		}
		micro := strconv.Itoa(u.Micro)
		if s.Slices > 1 {
			micro += SliceName(u.Slice)
		}
		upper := s.Chunks > 1 && u.Stage >= s.Ranks
		switch s.Notation {
		case Cases:
			if upper == (u.Pass == F) {
				pass = strings.ToLower(pass)
			}
			return pass + micro
		case Arrows:
			arrow := "du"[u.Dir : u.Dir+1]
			if upper {
				arrow = strings.ToUpper(arrow)
			}
			return pass + arrow + micro
		case Primes:
			if u.Dir == 1 || upper {
				return pass + "'" + micro
			}
			return pass + micro
		}
		if s.Chunks > 1 {
			micro += "." + strconv.Itoa(u.Stage/s.Ranks)
		}
		return pass + micro
	}
}

// SliceName returns the n-th of a to z, aa, ab and so on, from 0.
func SliceName(n int) string {
	text := ""
	for n++; n > 0; n = (n - 1) / 26 {
		text = string(rune('a'+(n-1)%26)) + text
	}
	return text
}

// Parse returns the schedule with the orders written in lines, one per rank, in its own
// shape, placement and notation. It reads what Text writes, so that orders can be edited
// by hand. It returns a *UsageError for a wrong number of lines and an *OrderError for a
// unit that it cannot read; it does not check the orders, see Check.
func (s *Schedule) Parse(lines []string) (*Schedule, error) {
	if len(lines) != s.Ranks {
		return nil, &UsageError{plural(len(lines), "line") + " of orders", fmt.Sprintf("the schedule has %s", plural(s.Ranks, "rank")),
			"write one line per rank"}
	}
	parsed := *s
	parsed.Orders = make([][]Unit, s.Ranks)
	lower, weights := false, false
	for r, line := range lines {
		for i, word := range strings.Fields(line) {
			for j, token := range strings.Split(word, "+") {
				u, err := s.parseUnit(r, token)
				if err != nil {
					return nil, &OrderError{Rank: r, Position: i, Unit: fmt.Sprintf("%q", clip(token)), Reason: err.Error(),
						Hint: "write units as athanor-lab schedule --format order does"}
				}
				u.Joined = j > 0
				lower = lower || token[0] == 'b' && s.Notation != Cases
				weights = weights || u.Pass == W
				parsed.Orders[r] = append(parsed.Orders[r], u)
			}
		}
	}
	if weights && !lower { // all backwards are split, so B is the input gradient
		for _, order := range parsed.Orders {
			for i := range order {
				if order[i].Pass == B {
					order[i].Pass = Bx
				}
			}
		}
	}
	return &parsed, nil
}

func clip(text string) string {
	if len(text) > 40 {
		return text[:40] + "..."
	}
	return text
}

// parseUnit reads one unit on rank r. It returns B for an input gradient written as B:
// whether it is one depends on all units together.
func (s *Schedule) parseUnit(r int, token string) (Unit, error) {
	var u Unit
	if token == "" {
		return u, fmt.Errorf("a unit is missing")
	}
	var err error
	if u.Pass, err = s.parsePass(token[0]); err != nil {
		return u, err
	}
	rest := token[1:]
	upper := false
	switch s.Notation {
	case Cases:
		upper = strings.Contains("fBW", token[:1])
	case Arrows:
		if rest == "" || !strings.Contains("duDU", rest[:1]) {
			return u, fmt.Errorf("the direction, d or u, is missing")
		}
		u.Dir, upper = strings.Index("du", strings.ToLower(rest[:1])), rest[0] < 'a'
		rest = rest[1:]
	case Primes:
		prime := strings.HasPrefix(rest, "'")
		rest = strings.TrimPrefix(rest, "'")
		if s.Directions() == 2 && prime {
			u.Dir = 1
		} else {
			upper = prime
		}
	}
	chunk, err := s.parseNumbers(&u, rest)
	if err != nil {
		return u, err
	}
	if upper {
		chunk++
	}
	if u.Dir >= s.Directions() {
		return u, fmt.Errorf("the schedule has only one direction")
	}
	u.Stage, err = s.stageOf(u.Dir, r, chunk)
	return u, err
}

// parsePass reads the letter of a pass.
func (s *Schedule) parsePass(c byte) (Pass, error) {
	cases := s.Notation == Cases
	switch {
	case c == 'F', c == 'f' && cases:
		return F, nil
	case c == 'B', c == 'b' && cases:
		return B, nil
	case c == 'W', c == 'w' && cases:
		return W, nil
	case c == 'b':
		return Bx, nil
	}
	return F, fmt.Errorf("unknown pass %q", c)
}

// stageOf returns the stage that is the n-th chunk of rank r in a direction.
func (s *Schedule) stageOf(dir, r, n int) (int, error) {
	for stage, home := range s.Home[dir] {
		if home == r {
			if n == 0 {
				return stage, nil
			}
			n--
		}
	}
	return 0, fmt.Errorf("the rank has no such chunk")
}

// parseNumbers reads micro-batch, slice and ".chunk" into u.
func (s *Schedule) parseNumbers(u *Unit, text string) (chunk int, err error) {
	text, dotted, found := strings.Cut(text, ".")
	if found != (s.Notation == Plain && s.Chunks > 1) {
		return 0, fmt.Errorf("a chunk must be given after a dot if a rank has several, and only then")
	}
	if found {
		if chunk, err = number(dotted, s.Chunks); err != nil {
			return 0, fmt.Errorf("chunk %q: %w", clip(dotted), err)
		}
	}
	digits := strings.TrimRight(text, "abcdefghijklmnopqrstuvwxyz")
	slice := text[len(digits):]
	if u.Micro, err = number(digits, s.MicrosPerDirection()); err != nil {
		return 0, fmt.Errorf("micro-batch %q: %w", clip(digits), err)
	}
	if (slice != "") != (s.Slices > 1) || len(slice) > 5 {
		return 0, fmt.Errorf("a slice must be given as letters if a sequence has several, and only then")
	}
	for _, c := range slice {
		u.Slice = u.Slice*26 + int(c-'a') + 1
	}
	if slice != "" {
		u.Slice--
	}
	if u.Slice >= s.Slices {
		return 0, fmt.Errorf("the schedule has only %d slices", s.Slices)
	}
	return chunk, nil
}

// number reads an integer in [0, limit).
func number(text string, limit int) (int, error) {
	n, err := strconv.Atoi(text)
	switch {
	case err != nil || n < 0 || text[0] == '+' || text[0] == '-':
		return 0, fmt.Errorf("not a number")
	case n >= limit:
		return 0, fmt.Errorf("must be less than %d", limit)
	}
	return n, nil
}
