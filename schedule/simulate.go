package schedule

import (
	"math"
	"slices"
)

// Timeline is the result of executing a schedule: every rank runs its order front to
// back, each unit as soon as the rank is free and the unit's inputs have arrived (in-order
// list scheduling). Times are in the unit of the costs; lists have one entry per rank.
type Timeline struct {
	Start, End [][]float64 // of each unit, parallel to Orders
	Makespan   float64     // from time 0 to the last end
	Ideal      float64     // busy time of the busiest rank
	Busy       []float64   // time spent computing
	Spans      []float64   // from first start to last end
	Peaks      []float64   // most activations held at once, in chunks of one whole micro-batch
	Gathers    []int       // gathers of a stage's parameters with Costs.Buffers buffers
	Reduces    []int       // reductions of a stage's gradients with as many gradient buffers
	Messages   int         // activations and gradients sent between different ranks
}

// Span returns the longest of Spans. That is the time per step in a long run in which each
// rank starts its next step without waiting for the others.
func (t *Timeline) Span() float64 {
	longest := 0.0
	for _, s := range t.Spans {
		longest = math.Max(longest, s)
	}
	return longest
}

// Idle returns the longest time that a rank waits between its first and last unit.
func (t *Timeline) Idle() float64 {
	idle := 0.0
	for r, span := range t.Spans {
		idle = math.Max(idle, span-t.Busy[r])
	}
	if idle < 1e-9*t.Ideal { // rounding
		return 0
	}
	return idle
}

// Bubble returns Idle/Ideal, the bubble of the literature: (p-1)/m for 1F1B.
func (t *Timeline) Bubble() float64 { return t.Idle() / t.Ideal }

// Rate returns 1 - Ideal/Span, the share of the span that is lost: the "bubble rate" of
// the zero-bubble paper (arXiv 2401.10241).
func (t *Timeline) Rate() float64 { return math.Max(0, 1-t.Ideal/t.Span()) }

// Peak returns the largest of Peaks.
func (t *Timeline) Peak() float64 {
	peak := 0.0
	for _, p := range t.Peaks {
		peak = math.Max(peak, p)
	}
	return peak
}

// Simulate checks the schedule and computes its timeline. It returns an *OrderError if the
// schedule cannot run (see Check), and a *UsageError for impossible costs.
func (s *Schedule) Simulate(c Costs) (*Timeline, error) {
	if err := c.check(s.Stages(), s.Slices); err != nil {
		return nil, err
	}
	if err := s.complete(); err != nil {
		return nil, err
	}
	if c.Buffers == 1 && s.Overlaps() {
		return nil, &UsageError{s.Name + " with one parameter buffer", "an overlapped forward and backward use two stages at once", "give two buffers"}
	}
	m := s.Clock(c)
	if !m.Run() {
		return nil, m.deadlock()
	}
	return m.Timeline(), nil
}

// A Clock executes the orders of one schedule repeatedly: for other times of the stages, or
// after units of an order changed places. Only one goroutine may use it at a time.
type Clock struct {
	Start, End [][]float64 // of the last run, by rank and position

	s       *Schedule
	c       Costs
	unit    [4][]float64 // time of a unit, by pass and stage*slices+slice
	done    [3][]float64 // end of forward, input gradient, weight gradient, by index; -1: not run yet
	next    []int        // by rank: position in its order
	free    []float64    // by rank: end of its last unit
	link    []float64    // by rank: end of its last gather
	fetches [][]fetch    // by rank and position; nil without buffers
	work    []int        // ranks that may be able to continue
	queued  []bool       // by rank: whether it is in work
}

// Clock returns a clock with costs c, which Simulate must accept; Simulate must accept the
// schedule too, but for deadlocks.
func (s *Schedule) Clock(c Costs) *Clock {
	p := s.Ranks
	m := &Clock{s: s, c: c, next: make([]int, p), free: make([]float64, p), link: make([]float64, p),
		Start: make([][]float64, p), End: make([][]float64, p), work: make([]int, 0, p), queued: make([]bool, p)}
	for pass := range m.unit {
		m.unit[pass] = make([]float64, s.Stages()*s.Slices)
	}
	m.price()
	for kind := range m.done {
		m.done[kind] = make([]float64, s.slots())
	}
	for r, order := range s.Orders {
		m.Start[r], m.End[r] = make([]float64, len(order)), make([]float64, len(order))
	}
	return m
}

// Makespan returns the makespan for these times, one per stage.
func (m *Clock) Makespan(stages []Times) float64 {
	m.c.Stages = stages
	m.price()
	m.Run()
	return slices.Max(m.free)
}

// Done returns when the last run ended a forward or input gradient, which a full backward
// may have computed; -1 if it did not.
func (m *Clock) Done(u Unit) float64 {
	if u.Pass == F {
		return m.done[0][m.s.index(u)]
	}
	return m.done[1][m.s.index(u)]
}

// price sets the times of units from the costs.
func (m *Clock) price() {
	for pass, list := range m.unit {
		for i := range list {
			list[i] = m.c.Of(Unit{Pass: Pass(pass), Stage: i / m.s.Slices, Slice: i % m.s.Slices})
		}
	}
}

// Run executes all orders. It returns false if the ranks deadlock.
func (m *Clock) Run() bool {
	for kind := range m.done {
		for i := range m.done[kind] {
			m.done[kind][i] = -1
		}
	}
	m.plan()
	m.work = m.work[:0]
	for r := range m.s.Ranks {
		m.next[r], m.free[r], m.link[r] = 0, 0, 0
		m.work, m.queued[r] = append(m.work, r), true
	}
	for len(m.work) > 0 {
		r := m.work[len(m.work)-1]
		m.work, m.queued[r] = m.work[:len(m.work)-1], false
		for m.step(r) {
		}
	}
	for r, order := range m.s.Orders {
		if m.next[r] < len(order) {
			return false
		}
	}
	return true
}

// step executes the next unit or overlapped pair of rank r, if its inputs are computed.
func (m *Clock) step(r int) bool {
	order, j := m.s.Orders[r], m.next[r]
	if j == len(order) {
		return false
	}
	n := 1
	begin := m.free[r]
	length := m.duration(order[j])
	if j+1 < len(order) && order[j+1].Joined {
		n = 2
		length += m.duration(order[j+1])
		if m.c.Pair > 0 {
			length = m.c.Pair
		}
	}
	for i := j; i < j+n; i++ {
		ready, ok := m.ready(r, order[i])
		if !ok {
			return false
		}
		begin = max(begin, ready)
	}
	for i := j; i < j+n; i++ {
		begin = max(begin, m.fetch(r, i))
	}
	m.free[r] = begin + length
	m.next[r] = j + n
	for i := j; i < j+n; i++ {
		m.Start[r][i], m.End[r][i] = begin, m.free[r]
		m.finish(order[i], m.free[r])
	}
	return true
}

func (m *Clock) duration(u Unit) float64 { return m.unit[u.Pass][u.Stage*m.s.Slices+u.Slice] }

// finish records the end of a unit and queues the rank that may wait for it.
func (m *Clock) finish(u Unit, at float64) {
	i := m.s.index(u)
	home := m.s.Home[u.Dir]
	consumer := -1
	switch u.Pass {
	case F:
		m.done[0][i] = at
		consumer = u.Stage + 1
	case B, Bx:
		m.done[1][i] = at
		consumer = u.Stage - 1
		if u.Pass == B {
			m.done[2][i] = at
		}
	case W:
		m.done[2][i] = at
	}
	if consumer >= 0 && consumer < len(home) {
		if to := home[consumer]; !m.queued[to] {
			m.work, m.queued[to] = append(m.work, to), true
		}
	}
}

// ready returns when the inputs of a unit are on rank r, or false if one is not computed.
func (m *Clock) ready(r int, u Unit) (float64, bool) {
	at := 0.0
	var list [3]Unit
	for _, d := range m.s.Inputs(u, list[:0]) {
		done := m.Done(d)
		if done < 0 {
			return 0, false
		}
		if m.s.Home[d.Dir][d.Stage] != r {
			done += m.c.Comm
		}
		at = max(at, done)
	}
	return at, true
}

// Inputs appends to list the units whose results u needs, by the dependencies of the
// package comment, and returns it. An input gradient has pass Bx, whether a Bx or a full B
// computes it.
func (s *Schedule) Inputs(u Unit, list []Unit) []Unit {
	u.Joined = false
	switch u.Pass {
	case F:
		if u.Stage > 0 {
			d := u
			d.Stage--
			list = append(list, d)
		}
		if u.Slice > 0 {
			d := u
			d.Slice--
			list = append(list, d)
		}
	case B, Bx:
		d := u
		d.Pass = F
		list = append(list, d)
		d.Pass = Bx
		if u.Stage+1 < s.Stages() {
			d.Stage++
			list = append(list, d)
			d.Stage--
		}
		if u.Slice+1 < s.Slices {
			d.Slice++
			list = append(list, d)
		}
	case W:
		u.Pass = Bx
		list = append(list, u)
	}
	return list
}

// Timeline returns the results of a successful run. It shares the clock's memory.
func (m *Clock) Timeline() *Timeline {
	s := m.s
	t := &Timeline{Start: m.Start, End: m.End, Messages: s.messages(),
		Busy: make([]float64, s.Ranks), Spans: make([]float64, s.Ranks), Peaks: make([]float64, s.Ranks), Gathers: make([]int, s.Ranks), Reduces: make([]int, s.Ranks)}
	for r, order := range s.Orders {
		if len(order) == 0 {
			continue
		}
		begin, end := m.Start[r][0], m.End[r][len(order)-1]
		t.Makespan = max(t.Makespan, end)
		t.Spans[r] = end - begin
		t.Busy[r] = m.busy(r)
		t.Ideal = max(t.Ideal, t.Busy[r])
		t.Peaks[r] = m.peak(r)
		t.Gathers[r] = count(fetchPlan(s, order, m.c.Buffers, usesParameters))
		t.Reduces[r] = count(fetchPlan(s, order, m.c.Buffers, addsGradients))
	}
	return t
}

// busy returns the time for which rank r computes.
func (m *Clock) busy(r int) float64 {
	total := 0.0
	order := m.s.Orders[r]
	for j := 0; j < len(order); j++ {
		if j+1 < len(order) && order[j+1].Joined {
			total += m.c.ofPair(order[j], order[j+1])
			j++
		} else {
			total += m.duration(order[j])
		}
	}
	return total
}

// peak returns the most that rank r holds, in chunks of one micro-batch. A forward's
// activations exist from its start, and until the end of its backward.
func (m *Clock) peak(r int) float64 {
	held, peak := 0.0, 0.0
	for _, u := range m.s.Orders[r] {
		held += m.c.Memory(u)
		peak = max(peak, held)
	}
	return math.Round(peak*1e9) / 1e9 / float64(m.s.Slices)
}

// Overlaps reports whether there are overlapped pairs.
func (s *Schedule) Overlaps() bool {
	for _, order := range s.Orders {
		for _, u := range order {
			if u.Joined {
				return true
			}
		}
	}
	return false
}

// messages returns the number of activations and gradients sent between different ranks.
func (s *Schedule) messages() int {
	n := 0
	for _, home := range s.Home {
		for stage := 1; stage < len(home); stage++ {
			if home[stage] != home[stage-1] {
				n += 2 * s.MicrosPerDirection() * s.Slices
			}
		}
	}
	return n
}
