// Package sim runs a program on a virtual machine: a discrete-event simulation
// that tells when each instruction would start and end, what each stream and
// link has to do, and how many bytes are live at any moment.
//
// It reads the very program that is executed, so the only thing it has to be
// told is how long each call takes (a Coster, package hardware). An
// instruction starts as soon as its stream is free and everything that it
// waits for has ended:
//
//	compute  [ fwd 0 ][ fwd 1 ]-----[ bwd 1 ]
//	h2d      [ w1 ]\__^  [ w2 ........ ]\__^
//
// The simulation keeps completions in a heap ordered by time. Known weakness:
// calls do not slow each other down; where two streams share one memory bus or
// the same cores, their costs must have been measured that way.
//
// Timeline is also what a real run is measured as (package exec), so that the
// two can be compared and drawn alike.
package sim

import (
	"container/heap"
	"fmt"
	"math"
	"strings"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/program"
)

// Coster tells how many seconds a call takes.
type Coster interface {
	Cost(c *device.Call) float64
}

// CostFunc makes a Coster of a function.
type CostFunc func(c *device.Call) float64

// Cost calls f.
func (f CostFunc) Cost(c *device.Call) float64 { return f(c) }

// Run simulates one step. It fails on programs that would hang and on costs
// that are no durations.
func Run(p *program.Program, cost Coster) (*Timeline, error) {
	m := newMachine(p)
	for i := range p.Instrs {
		c := p.Call(i)
		m.seconds[i] = cost.Cost(&c)
		if !(m.seconds[i] >= 0) || math.IsInf(m.seconds[i], 0) {
			return nil, fmt.Errorf("simulate: instruction i%d (%s) takes %v seconds", i, c.Op, m.seconds[i])
		}
	}
	for s := range m.streams {
		m.start(device.Stream(s), 0)
	}
	for len(m.events) > 0 {
		e := heap.Pop(&m.events).(event)
		m.complete(e)
	}
	if m.left > 0 {
		return nil, m.stuck()
	}
	return New(p, m.spans)
}

// machine is the state of the simulation.
type machine struct {
	program *program.Program
	seconds []float64
	spans   []device.Span
	streams [device.NumStreams]struct {
		queue []int // instructions that have not completed, in order
		busy  bool
	}
	missing []int   // waits that have not completed
	waiters [][]int // who waits for an instruction
	ended   []bool
	left    int
	events  eventHeap
}

func newMachine(p *program.Program) *machine {
	n := len(p.Instrs)
	m := &machine{
		program: p, left: n,
		seconds: make([]float64, n), spans: make([]device.Span, n),
		missing: make([]int, n), waiters: make([][]int, n), ended: make([]bool, n),
	}
	for i := range p.Instrs {
		in := &p.Instrs[i]
		m.streams[in.Stream].queue = append(m.streams[in.Stream].queue, i)
		m.missing[i] = len(in.Waits)
		for _, w := range in.Waits {
			if w >= 0 && w < n { // others never complete
				m.waiters[w] = append(m.waiters[w], i)
			}
		}
	}
	return m
}

// start begins the first instruction of a stream if nothing holds it.
func (m *machine) start(id device.Stream, now float64) {
	s := &m.streams[id]
	if s.busy || len(s.queue) == 0 || m.missing[s.queue[0]] > 0 {
		return
	}
	i := s.queue[0]
	s.busy = true
	m.spans[i] = device.Span{Start: now, End: now + m.seconds[i]}
	heap.Push(&m.events, event{m.spans[i].End, i})
}

func (m *machine) complete(e event) {
	id := m.program.Instrs[e.instr].Stream
	s := &m.streams[id]
	s.queue, s.busy = s.queue[1:], false
	m.ended[e.instr] = true
	m.left--
	m.start(id, e.time)
	for _, w := range m.waiters[e.instr] {
		m.missing[w]--
		m.start(m.program.Instrs[w].Stream, e.time)
	}
}

// stuck says which instructions cannot start and why.
func (m *machine) stuck() error {
	var list []string
	for id := range m.streams {
		s := &m.streams[id]
		if len(s.queue) == 0 {
			continue
		}
		i := s.queue[0]
		var waits []string
		for _, w := range m.program.Instrs[i].Waits {
			if w < 0 || w >= len(m.ended) || !m.ended[w] {
				waits = append(waits, fmt.Sprintf("i%d", w))
			}
		}
		list = append(list, fmt.Sprintf("%s: i%d (%s) waits for %s",
			device.Stream(id), i, m.program.Instrs[i].Op, strings.Join(waits, ", ")))
	}
	return fmt.Errorf("simulate: the program hangs: %s", strings.Join(list, "; "))
}

// event is the completion of an instruction.
type event struct {
	time  float64
	instr int
}

type eventHeap []event

func (h eventHeap) Len() int { return len(h) }
func (h eventHeap) Less(i, j int) bool {
	return h[i].time < h[j].time || h[i].time == h[j].time && h[i].instr < h[j].instr
}
func (h eventHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *eventHeap) Push(x any)   { *h = append(*h, x.(event)) }
func (h *eventHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}
