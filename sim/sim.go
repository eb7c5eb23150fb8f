// Package sim runs programs on a virtual machine. It is a discrete-event simulation
// that predicts when each instruction starts and ends, how busy each stream and link
// is, and how many bytes are live at any moment.
//
// It reads the same program that is executed; its only other input is the duration of
// each call (a Coster, package hardware). An instruction starts as soon as its stream
// is free and everything that it waits for has ended:
//
//	compute  [ fwd 0 ][ fwd 1 ]-----[ bwd 1 ]
//	h2d      [ w1 ]\__^  [ w2 ........ ]\__^
//
// Run and SpansAlike simulate one rank, where a collective or message just takes its
// cost, as if the peers were always ready. This is exact for ranks that all run alike.
// SpansFirst simulates the programs of several ranks on one clock: a call between ranks
// starts when all its members have arrived, takes the maximum of their costs, and ends
// for all at once.
//
// Streams that share cores, a bus or both directions of a link slow each other down: a
// call has an amount of work in seconds, and while other streams are busy it progresses
// at a lower rate (Coster.Slowdown), as in processor sharing:
//
//	compute  [ 4 s of work at rate 1 |  at rate 1/1.5  ]    ends at 5, not 4
//	h2d                              [ 3 s             ...
//
// Completions are kept in a heap ordered by time; an entry whose call has since changed
// its rate is stale and skipped.
//
// Known weakness: slowdown is modelled per pair of streams of one rank, whatever they
// execute. A call between ranks slows others down, but its own duration is fixed.
// Beyond that, all streams of all ranks of a host may share its cores (Coster.Crowd).
//
// Measured runs (package exec) are Timelines too, so predictions and measurements can
// be compared and drawn alike.
package sim

import (
	"fmt"
	"math"
	"strings"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/program"
)

// Coster prices calls. It must not retain them.
type Coster interface {
	// Cost returns the seconds that a call takes while nothing else runs.
	Cost(c *device.Call) float64
	// Launch returns the seconds between the end of a call and the start of the next on
	// its stream, if that waits for nothing else.
	Launch(s device.Stream) float64
	// Slowdown returns the relative slowdown of a stream's work while another stream of
	// its rank is busy: 0.5 turns 2 s into 3 s. Slowdowns by several streams add up.
	Slowdown(of, by device.Stream) float64
	// Crowd sets slower to the factors, by stream, by which calls of a host's ranks take longer while
	// all that are active there share its cores, by stream how many of them they demand. It returns
	// false if streams share no cores.
	Crowd(active, slower *[device.NumStreams]float64) bool
	// Demand returns how many cores a call keeps busy.
	Demand(c *device.Call) float64
	// Host returns the host of a rank, counted from 0.
	Host(rank int) int
}

// CostFunc adapts a function to a Coster without launch gaps or interference. Tests of
// several packages price programs with it.
type CostFunc func(c *device.Call) float64

// Cost calls f.
func (f CostFunc) Cost(c *device.Call) float64 { return f(c) }

// Launch returns 0.
func (f CostFunc) Launch(s device.Stream) float64 { return 0 }

// Slowdown returns 0.
func (f CostFunc) Slowdown(of, by device.Stream) float64 { return 0 }

// Crowd returns false.
func (f CostFunc) Crowd(active, slower *[device.NumStreams]float64) bool { return false }

// Demand returns 1.
func (f CostFunc) Demand(c *device.Call) float64 { return 1 }

// Host returns 0.
func (f CostFunc) Host(rank int) int { return 0 }

// Run simulates one step of one rank. It is meant for tests; planners use SpansAlike
// and SpansFirst. It fails on programs that would hang and on costs that are not
// durations.
func Run(p *program.Program, cost Coster) (*Timeline, error) {
	spans, err := SpansAlike(p, 1, cost)
	if err != nil {
		return nil, err
	}
	return New(p, spans)
}

// SpansAlike simulates one of several ranks that all do the same at the same time. It
// returns only when each instruction runs, without the derived parts of a Timeline.
func SpansAlike(p *program.Program, ranks int, cost Coster) ([]device.Span, error) {
	m := newMachine(ranks, cost)
	if err := m.add(p); err != nil {
		return nil, fmt.Errorf("simulate: %w", err)
	}
	if err := m.run(); err != nil {
		return nil, fmt.Errorf("simulate: %w", err)
	}
	return m.ranks[0].spans, nil
}

// SpansFirst simulates one step of the first of a number of ranks, given their programs
// in rank order. It returns when each instruction runs, by program, on one clock;
// NewAll derives Timelines. The other ranks do the same on other sequences, as replicas
// of a pipeline do, so collectives never wait for them. Beyond the errors of Run, it
// fails if an instruction between ranks has no counterpart or does not agree with it,
// and if ranks deadlock.
func SpansFirst(programs []*program.Program, ranks int, cost Coster) ([][]device.Span, error) {
	m := newMachine(ranks, cost)
	for i, p := range programs {
		if p.Rank != i {
			return nil, fmt.Errorf("simulate: program %d of %d is that of rank %d", i, len(programs), p.Rank)
		}
		if err := m.add(p); err != nil {
			return nil, fmt.Errorf("simulate: rank %d: %w", i, err)
		}
	}
	if err := m.match(); err != nil {
		return nil, fmt.Errorf("simulate: %w", err)
	}
	if err := m.run(); err != nil {
		return nil, fmt.Errorf("simulate: %w", err)
	}
	spans := make([][]device.Span, len(programs))
	for i := range m.ranks {
		spans[i] = m.ranks[i].spans
	}
	return spans, nil
}

// machine is the state of the simulation.
type machine struct {
	ranks    []rank
	total    int // ranks of the step, simulated or not
	meetings []meeting
	events   eventHeap
	number   int                                           // of the latest event
	changed  []int                                         // ranks whose rates must be recomputed
	slowdown [device.NumStreams][device.NumStreams]float64 // of a stream by another
	slows    [device.NumStreams]bool                       // whether any other slows it
	launch   [device.NumStreams]float64                    // seconds before each call
	cost     Coster
	shared   bool // streams share cores
	hosts    []host
}

// host is what the ranks of a host share.
type host struct {
	ranks  int                        // that are simulated
	each   float64                    // for how many of its ranks each of these stands
	active [device.NumStreams]float64 // cores that running calls demand, over all ranks
	crowd  [device.NumStreams]float64 // slowdown factor of all work of a stream
}

func newMachine(ranks int, cost Coster) *machine {
	m := &machine{total: ranks, cost: cost}
	m.shared = cost.Crowd(new([device.NumStreams]float64), new([device.NumStreams]float64))
	for of := range m.slowdown {
		m.launch[of] = cost.Launch(device.Stream(of))
		for by := range m.slowdown[of] {
			if of != by {
				m.slowdown[of][by] = cost.Slowdown(device.Stream(of), device.Stream(by))
				m.slows[of] = m.slows[of] || m.slowdown[of][by] > 0
			}
		}
	}
	return m
}

// rank is the state of one program.
type rank struct {
	program *program.Program
	host    int
	seconds []float64
	demand  []float64 // cores; nil: none are shared
	spans   []device.Span
	streams [device.NumStreams]stream
	missing []int   // waits that have not completed
	waiters [][]int // instructions that wait for an instruction
	ended   []bool
	left    int
	changed bool    // is in machine.changed
	meeting []int32 // index in machine.meetings plus 1; 0: meets nobody
}

// stream is an in-order queue and what runs at its head.
type stream struct {
	queue   []int   // instructions that have not completed, in order
	busy    bool    // the first runs, or waits for its peers
	running bool    // it runs
	shared  bool    // slows down while others run
	left    float64 // remaining work in seconds,
	at      float64 // as of this time
	rate    float64 // work per second since then
	event   int     // number of the event that ends it
}

// add prepares a program.
func (m *machine) add(p *program.Program) error {
	n := len(p.Instrs)
	m.ranks = append(m.ranks, rank{
		program: p, left: n, host: m.cost.Host(p.Rank),
		seconds: make([]float64, n), spans: make([]device.Span, n),
		missing: make([]int, n), waiters: make([][]int, n), ended: make([]bool, n),
		meeting: make([]int32, n),
	})
	r := &m.ranks[len(m.ranks)-1]
	if m.shared {
		r.demand = make([]float64, n)
		m.hosts = append(m.hosts, make([]host, max(r.host+1-len(m.hosts), 0))...)
		m.hosts[r.host].ranks++
	}
	var c device.Call
	for i := range p.Instrs {
		in := &p.Instrs[i]
		r.streams[in.Stream].queue = append(r.streams[in.Stream].queue, i)
		r.missing[i] = len(in.Waits)
		for _, w := range in.Waits {
			if w >= 0 && w < n { // others never complete
				r.waiters[w] = append(r.waiters[w], i)
			}
		}
		c = p.CallIn(c.Args[:0], i)
		r.seconds[i] = m.cost.Cost(&c)
		if !(r.seconds[i] >= 0) || math.IsInf(r.seconds[i], 0) {
			return fmt.Errorf("instruction i%d (%s) has an impossible time of %v seconds", i, c.Op, r.seconds[i])
		}
		if !m.shared {
			continue
		}
		if r.demand[i] = m.cost.Demand(&c); c.Op.Info().Between {
			r.seconds[i] /= m.crowdOf(&c, r.host)
		}
	}
	return nil
}

// run advances from completion to completion until all programs have ended.
func (m *machine) run() error {
	for r := range m.total {
		if at := m.cost.Host(r); at < len(m.hosts) && m.hosts[at].ranks > 0 {
			m.hosts[at].each += 1 / float64(m.hosts[at].ranks)
		}
	}
	for at := range m.ranks {
		for s := range m.ranks[at].streams {
			m.start(at, device.Stream(s), 0)
		}
	}
	m.settle(0)
	for len(m.events) > 0 {
		e := m.events.pop()
		m.complete(e)
	}
	for at := range m.ranks {
		if m.ranks[at].left > 0 {
			return m.stuck()
		}
	}
	return nil
}

// start begins the first instruction of a stream if nothing blocks it. A call between
// ranks begins when its last member arrives.
func (m *machine) start(at int, id device.Stream, now float64) {
	r := &m.ranks[at]
	s := &r.streams[id]
	if s.busy || len(s.queue) == 0 || r.missing[s.queue[0]] > 0 {
		return
	}
	i := s.queue[0]
	s.busy = true
	if k := r.meeting[i]; k > 0 {
		m.arrive(&m.meetings[k-1], now)
		return
	}
	s.shared = true
	m.begin(at, id, r.seconds[i], now)
}

// begin runs the first instruction of a stream once it is launched. From then on it
// slows down others.
func (m *machine) begin(at int, id device.Stream, seconds, now float64) {
	r := &m.ranks[at]
	s := &r.streams[id]
	s.running, s.left, s.at, s.rate = true, m.launch[id]+seconds, now, 0
	m.occupy(r, s.queue[0], 1)
	r.spans[s.queue[0]].Start = now + m.launch[id]
	m.change(at)
}

// change notes that the set of busy streams of a rank changed.
func (m *machine) change(at int) {
	if r := &m.ranks[at]; !r.changed {
		r.changed = true
		m.changed = append(m.changed, at)
	}
}

// settle recomputes the rates of running calls after all events of a moment.
func (m *machine) settle(now float64) {
	if m.shared {
		m.share()
	}
	for _, at := range m.changed {
		m.ranks[at].changed = false
		m.rates(at, now)
	}
	m.changed = m.changed[:0]
}

// occupy adds the demand for cores of so many calls like an instruction, for it and those for which it stands.
func (m *machine) occupy(r *rank, i int, calls float64) {
	if m.shared {
		h := &m.hosts[r.host]
		h.active[r.program.Instrs[i].Stream] += calls * h.each * r.demand[i]
	}
}

// share redistributes the cores of each host among the running streams.
func (m *machine) share() {
	for at := range m.hosts {
		h := &m.hosts[at]
		before := h.crowd
		if m.cost.Crowd(&h.active, &h.crowd); h.crowd == before {
			continue
		}
		for k := range m.ranks {
			if m.ranks[k].host == at {
				m.change(k)
			}
		}
	}
}

// crowdOf returns the slowdown at which a call between ranks was timed with all its
// members on a host running, relative to having cores of its own.
func (m *machine) crowdOf(c *device.Call, host int) float64 {
	var active, slower [device.NumStreams]float64
	for _, p := range c.Peers {
		if m.cost.Host(p) == host {
			active[c.Stream] += m.cost.Demand(c)
		}
	}
	m.cost.Crowd(&active, &slower)
	return slower[c.Stream]
}

// rates sets the rates of a rank's running instructions from now on.
func (m *machine) rates(at int, now float64) {
	r := &m.ranks[at]
	for id := range r.streams {
		s := &r.streams[id]
		if !s.running {
			continue
		}
		more := 1.0
		if s.shared && m.slows[id] {
			for by := range r.streams {
				if r.streams[by].running {
					more += m.slowdown[id][by]
				}
			}
		}
		if m.shared {
			more *= m.hosts[r.host].crowd[id]
		}
		if rate := 1 / more; rate != s.rate {
			s.left = max(s.left-(now-s.at)*s.rate, 0)
			s.at, s.rate = now, rate
			m.number++
			s.event = m.number
			m.events.push(event{now + s.left*more, at, s.queue[0], m.number})
		}
	}
}

func (m *machine) complete(e event) {
	r := &m.ranks[e.rank]
	id := r.program.Instrs[e.instr].Stream
	s := &r.streams[id]
	if s.event != e.number {
		return // stale: its rate has changed since
	}
	r.spans[e.instr].End = e.time
	s.queue, s.busy, s.running = s.queue[1:], false, false
	m.occupy(r, e.instr, -1)
	r.ended[e.instr] = true
	r.left--
	m.start(e.rank, id, e.time)
	for _, w := range r.waiters[e.instr] {
		r.missing[w]--
		m.start(e.rank, r.program.Instrs[w].Stream, e.time)
	}
	m.change(e.rank)
	m.settle(e.time)
}

// stuck returns the error that lists the instructions that cannot start, and why.
func (m *machine) stuck() error {
	var list []string
	for at := range m.ranks {
		r := &m.ranks[at]
		name := ""
		if len(m.ranks) > 1 {
			name = fmt.Sprintf("rank %d, ", at)
		}
		for id := range r.streams {
			s := &r.streams[id]
			if len(s.queue) == 0 {
				continue
			}
			i := s.queue[0]
			var waits []string
			for _, w := range r.program.Instrs[i].Waits {
				if w < 0 || w >= len(r.ended) || !r.ended[w] {
					waits = append(waits, fmt.Sprintf("i%d", w))
				}
			}
			if k := r.meeting[i]; k > 0 && len(waits) == 0 {
				waits = m.absent(&m.meetings[k-1])
			}
			list = append(list, fmt.Sprintf("%s%s: i%d (%s) waits for %s",
				name, device.Stream(id), i, r.program.Instrs[i].Op, strings.Join(waits, ", ")))
		}
	}
	what := "the program hangs"
	if len(m.ranks) > 1 {
		what = "the ranks hang"
	}
	return fmt.Errorf("%s: %s", what, strings.Join(list, "; "))
}

// event is the completion of an instruction.
type event struct {
	time        float64
	rank, instr int
	number      int
}

func (e event) before(o event) bool {
	switch {
	case e.time != o.time:
		return e.time < o.time
	case e.rank != o.rank:
		return e.rank < o.rank
	}
	return e.instr < o.instr
}

// eventHeap is a binary min-heap by time; the children of i are 2i+1 and 2i+2.
type eventHeap []event

func (h *eventHeap) push(e event) {
	list := append(*h, e)
	i := len(list) - 1
	for i > 0 && e.before(list[(i-1)/2]) {
		list[i] = list[(i-1)/2]
		i = (i - 1) / 2
	}
	list[i] = e
	*h = list
}

func (h *eventHeap) pop() event {
	list := *h
	first, e := list[0], list[len(list)-1]
	list = list[:len(list)-1]
	for i := 0; len(list) > 0; {
		child := 2*i + 1
		if child+1 < len(list) && list[child+1].before(list[child]) {
			child++
		}
		if child >= len(list) || !list[child].before(e) {
			list[i] = e
			break
		}
		list[i] = list[child]
		i = child
	}
	*h = list
	return first
}
