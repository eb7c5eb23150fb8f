package null

import (
	"errors"
	"fmt"
	"sync"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
)

// Joined devices on virtual clocks.
//
// Each device is driven by its own goroutine, but any goroutine may advance any
// stream's clock: a launch only enqueues a call, and then everything that can run does.
// A call between ranks waits at the head of its stream until all members have arrived.
// It starts at the latest of their streams' clocks, takes the maximum of their costs,
// and ends for all at once.
//
//	rank 0   [ 2 s ]      [ all_reduce 3 s ]    starts at 4, ends at 7
//	rank 1   [ 4 s      ] [ all_reduce 3 s ]
//
// A stream's times depend on what is queued, never on when, so they do not depend on
// how goroutines interleave (Kahn, IFIP 1974). If all devices are in Sync and nothing
// can run, they are deadlocked: the round fails on each of them, naming the call that
// waits.

// Fabric joins null devices. Create it first, then each rank's device.
type Fabric struct {
	mu      sync.Mutex
	changed *sync.Cond // something ended, or a rank is lost
	joined  bool       // false: a single device that stands for one rank
	devices []*Device
	groups  map[string]*meeting // by peers
	boxes   map[[3]int]*meeting // of messages, by sender, receiver and tag
	ready   []*stream           // that may be able to go on
	lost    *device.PeerError
}

// NewFabric returns a fabric of n ranks.
func NewFabric(n int) *Fabric {
	f := newFabric(n)
	f.joined = true
	return f
}

func newFabric(n int) *Fabric {
	f := &Fabric{devices: make([]*Device, n), groups: map[string]*meeting{}, boxes: map[[3]int]*meeting{}}
	f.changed = sync.NewCond(&f.mu)
	return f
}

// Device returns the device of a rank.
func (f *Fabric) Device(rank int, cost Cost) (*Device, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if rank < 0 || rank >= len(f.devices) || f.devices[rank] != nil {
		return nil, fmt.Errorf("rank %d of a fabric of %d does not exist or is taken", rank, len(f.devices))
	}
	return newDevice(f, rank, cost), nil
}

// meeting is where the calls of one group, or the two ends of a message, meet.
type meeting struct {
	here    int
	streams []*stream // members that have arrived, by position
	calls   []*device.Call
}

// meet assigns a call its meeting and its position there.
func (f *Fabric) meet(c *call, rank int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := len(c.Peers)
	for k, r := range c.Peers {
		if r == rank {
			c.member = k
		}
	}
	ends := [3]int{rank, c.Peers[0], c.Tag}
	switch c.Op {
	case graph.Recv:
		ends[0], ends[1] = ends[1], ends[0]
		c.member, n = 1, 2
	case graph.Send:
		c.member, n = 0, 2
	}
	m := &meeting{streams: make([]*stream, n), calls: make([]*device.Call, n)}
	if device.IsMessage(c.Op) {
		c.meeting = keep(f.boxes, ends, m)
	} else {
		c.meeting = keep(f.groups, fmt.Sprint(c.Peers), m)
	}
}

// keep returns the map's entry for key, and inserts value if there is none.
func keep[K comparable](known map[K]*meeting, key K, value *meeting) *meeting {
	if m, ok := known[key]; ok {
		return m
	}
	known[key] = value
	return value
}

// run advances a stream, and then every stream that this unblocks.
func (f *Fabric) run(s *stream) {
	f.ready = append(f.ready, s)
	for len(f.ready) > 0 {
		s := f.ready[len(f.ready)-1]
		f.ready = f.ready[:len(f.ready)-1]
		for s.next < len(s.queue) && f.step(s) {
		}
		if s.next == len(s.queue) && s.device.syncing && s.device.idle() {
			f.changed.Broadcast()
		}
	}
}

// step executes the next command of a stream if possible.
func (f *Fabric) step(s *stream) bool {
	d, n := s.device, int(s.queue[s.next])
	if n < 0 {
		c := &d.calls[^n]
		if c.ended != d.round {
			return false
		}
		s.clock = max(s.clock, c.end)
		s.next++
		return true
	}
	c := &d.calls[n]
	if m := c.meeting; m != nil {
		if s.arrived {
			return false
		}
		return f.arrive(s, c)
	}
	f.finish(s, s.clock, s.clock+c.seconds)
	return true
}

// arrive records a call's arrival at its meeting. The last arrival completes it.
func (f *Fabric) arrive(s *stream, c *call) bool {
	m := c.meeting
	s.arrived = true
	m.streams[c.member], m.calls[c.member] = s, &c.Call
	if m.here++; m.here < len(m.streams) {
		return false
	}
	m.here = 0
	if err := device.Agree(m.calls); err != nil {
		for _, t := range m.streams {
			d := t.device
			n := int(t.queue[t.next])
			d.fail(&device.CallError{Call: n, Op: d.calls[n].Op, Err: err})
		}
		return false
	}
	var start, seconds float64
	for _, t := range m.streams {
		start = max(start, t.clock)
		seconds = max(seconds, t.device.calls[t.queue[t.next]].seconds)
	}
	for _, t := range m.streams {
		t.arrived = false
		f.finish(t, start, start+seconds)
		if t != s {
			f.ready = append(f.ready, t)
		}
	}
	return true
}

// finish ends the next call of a stream and unblocks the same device's streams that
// wait for it.
func (f *Fabric) finish(s *stream, start, end float64) {
	d := s.device
	n := s.queue[s.next]
	c := &d.calls[n]
	c.end, c.ended = end, d.round
	if c.span != nil {
		*c.span = device.Span{Start: start, End: end}
	}
	s.clock = end
	s.next++
	for i := range d.streams {
		if t := &d.streams[i]; t.next < len(t.queue) && t.queue[t.next] == ^n {
			f.ready = append(f.ready, t)
		}
	}
}

// hangs reports whether all devices are deadlocked in Sync.
func (f *Fabric) hangs() bool {
	for _, d := range f.devices {
		if d == nil || !d.syncing || d.err != nil || d.idle() {
			return false
		}
	}
	return true
}

// end fails the round of all devices.
func (f *Fabric) end() {
	for _, d := range f.devices {
		d.err = d.stuck(errors.New("the ranks wait for each other, or for calls that are not launched"))
	}
	f.lose(0, f.devices[0].err)
}

// lose tells all devices that a rank is lost; only the first loss is recorded.
func (f *Fabric) lose(rank int, err error) {
	if !f.joined || f.lost != nil {
		return
	}
	f.lost = &device.PeerError{Rank: rank, Call: -1, Why: err.Error()}
	if c, ok := err.(*device.CallError); ok {
		f.lost.Call, f.lost.Op, f.lost.Why = c.Call, c.Op, c.Err.Error()
	}
	f.changed.Broadcast()
}
