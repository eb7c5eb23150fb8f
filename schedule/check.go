package schedule

import (
	"fmt"
	"strings"
)

// Check verifies that the schedule can run: every stage, micro-batch and slice has
// exactly one forward and one backward, full or split, on the rank that holds the stage,
// and the ranks do not deadlock. It returns an *OrderError if not.
func (s *Schedule) Check() error {
	if err := s.complete(); err != nil {
		return err
	}
	m := s.Clock(DefaultCosts())
	if !m.Run() {
		return m.deadlock()
	}
	return nil
}

// CheckCap verifies that no rank ever holds more than cap activations, in chunks of one
// micro-batch. It returns an *OrderError with TooLarge set if one does.
func (s *Schedule) CheckCap(c Costs, cap float64) error {
	name := s.namer()
	for r, order := range s.Orders {
		held := 0.0
		for j, u := range order {
			if held += c.Memory(u) / float64(s.Slices); held > cap+1e-9 {
				return &OrderError{Rank: r, Position: j, Unit: name(u), TooLarge: true,
					Reason: fmt.Sprintf("holds %.6g chunk activations, but the memory cap is %.6g", held, cap),
					Hint:   "put a backward or a weight gradient before it, or raise the memory cap"}
			}
		}
	}
	return nil
}

// complete verifies everything but the order: each unit is valid, on its stage's rank,
// and listed once; none is missing.
func (s *Schedule) complete() error {
	name := s.namer()
	var seen [4][]bool
	for pass := range seen {
		seen[pass] = make([]bool, s.slots())
	}
	for r, order := range s.Orders {
		for j, u := range order {
			fail := func(reason, hint string) error {
				return &OrderError{Rank: r, Position: j, Unit: name(u), Reason: reason, Hint: hint}
			}
			switch {
			case u.Pass > W || u.Dir < 0 || u.Dir >= s.Directions() || u.Stage < 0 || u.Stage >= s.Stages() ||
				u.Micro < 0 || u.Micro >= s.MicrosPerDirection() || u.Slice < 0 || u.Slice >= s.Slices:
				return &OrderError{Rank: r, Position: j, Unit: fmt.Sprintf("%+v", u),
					Reason: "outside the schedule's stages, micro-batches or slices", Hint: "remove it"}
			case s.Home[u.Dir][u.Stage] != r:
				return fail(fmt.Sprintf("stage %d is on rank %d", u.Stage, s.Home[u.Dir][u.Stage]), "move it there")
			case seen[u.Pass][s.index(u)]:
				return fail("duplicated: it is already in the order", "remove one of the two")
			case u.Joined && (j == 0 || order[j-1].Joined || order[j-1].Pass != F || u.Pass != B):
				return fail("only a forward and the full backward after it can overlap", "write them as F+B")
			}
			seen[u.Pass][s.index(u)] = true
		}
	}
	return s.missing(seen, name)
}

// missing returns an *OrderError for the first unit that is in no order, or for a backward
// that is both full and split. seen is by pass and index.
func (s *Schedule) missing(seen [4][]bool, name func(Unit) string) error {
	for dir, home := range s.Home {
		for stage, r := range home {
			for i := range s.MicrosPerDirection() * s.Slices {
				u := Unit{Dir: dir, Stage: stage, Micro: i / s.Slices, Slice: i % s.Slices}
				at := s.index(u)
				f, b, bx, w := seen[F][at], seen[B][at], seen[Bx][at], seen[W][at]
				fail := func(pass Pass, reason, hint string) error {
					u.Pass = pass
					return &OrderError{Rank: r, Position: -1, Unit: name(u), Reason: reason, Hint: hint}
				}
				switch {
				case !f:
					return fail(F, "missing: the forward is in no rank's order", "add it")
				case b && (bx || w):
					return fail(B, "duplicated: a full backward beside a split one", "keep one of the two")
				case !b && !bx:
					return fail(B, "missing: the backward is in no rank's order", "add it")
				case bx && !w:
					return fail(W, "missing: the weight gradient is in no rank's order", "add it after the input gradient")
				}
			}
		}
	}
	return nil
}

// deadlock explains why the last run got stuck. It follows from rank to rank what each
// waits for, until a rank appears twice: the ranks from there on are the cycle.
func (m *Clock) deadlock() error {
	s, name := m.s, m.s.namer()
	where := m.Positions()
	r := 0
	for m.next[r] == len(s.Orders[r]) {
		r++
	}
	visited := make(map[int]int)
	var chain []string
	var ranks []int
	for {
		if first, ok := visited[r]; ok {
			ranks, chain = ranks[first:], chain[first:]
			break
		}
		visited[r] = len(ranks)
		ranks = append(ranks, r)
		u, need := m.blocker(r)
		at := where(need)
		to := s.Home[need.Dir][need.Stage]
		head := s.Orders[to][m.next[to]]
		text := fmt.Sprintf("rank %d: %s waits for %s", r, name(u), name(need))
		if to == r {
			text += fmt.Sprintf(", which comes later on the same rank, at position %d", at)
		} else if need != head {
			text += fmt.Sprintf(" of rank %d, which stands behind %s there", to, name(head))
		} else {
			text += fmt.Sprintf(" of rank %d", to)
		}
		chain = append(chain, text)
		r = to
	}
	first := ranks[0]
	u, _ := m.blocker(first)
	return &OrderError{Rank: first, Position: m.next[first], Unit: name(u), Reason: "deadlock: " + strings.Join(chain, "; "),
		Hint: "move one of the units waited for in this cycle to an earlier place on its rank"}
}

// blocker returns the unit at which rank r is stuck and its first missing input. Of an
// overlapped pair, that is the unit whose input is missing.
func (m *Clock) blocker(r int) (u, need Unit) {
	order, j := m.s.Orders[r], m.next[r]
	for i := j; i < min(j+2, len(order)) && (i == j || order[i].Joined); i++ {
		for _, d := range m.s.Inputs(order[i], nil) {
			if m.Done(d) < 0 {
				return order[i], d
			}
		}
	}
	panic("schedule: a rank is stuck although all its inputs are there")
}

// Positions returns a function that finds a forward or input gradient in the order of its
// rank. The position of an input gradient may be that of a full backward.
func (m *Clock) Positions() func(Unit) int {
	at := [2][]int{make([]int, m.s.slots()), make([]int, m.s.slots())}
	for _, order := range m.s.Orders {
		for j, u := range order {
			switch u.Pass {
			case F:
				at[0][m.s.index(u)] = j
			case B, Bx:
				at[1][m.s.index(u)] = j
			}
		}
	}
	return func(u Unit) int {
		if u.Pass == F {
			return at[0][m.s.index(u)]
		}
		return at[1][m.s.index(u)]
	}
}
