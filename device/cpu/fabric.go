package cpu

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/link"
	"github.com/athanor-llm/athanor/internal/clock"
)

// A fabric joins devices of one process that are ranks of one run. A rank reads what it
// receives directly from the other rank's arena, or, if that is in another process, from
// a pipe (far.go).
//
// Calls between ranks meet: each rank's stream puts its call in its position, the last
// arrival opens the meeting, all work, and when all are done they leave. A meeting is
// two such rendezvous (all_reduce needs a third between its halves). The calls of a
// group come in the same order on all ranks, so the k-th meets the k-th without
// counting. Prepare determines a call's meeting.
//
//	rank 0   ---[ ]........[ read others ]..[ ]---
//	rank 1   ------------[ ][ read others ]-[ ]---
//	             arrive   ^ all there       ^ all done
//
// A waiting stream polls a few times and then parks, since there may be more ranks than
// cores. Ranks whose calls differ in order wait forever; package verify proves that they do not, and
// an engine's watchdog ends the step if they do.
//
// When one device's round fails, the device is lost to the others: their rounds end
// with a device.PeerError, whatever they do, and so do all later rounds in which ranks
// meet. The loss is permanent for the fabric.

// Fabric is a set of joined devices. Create it first, then each device with
// Options.Fabric and its rank.
type Fabric struct {
	opened  time.Time // the shared clock origin of spans
	turns   turns
	working atomic.Int32  // streams that have a core
	cores   chan struct{} // see Device
	hub     *link.Hub     // of ranks in several processes; nil: all are here

	mu      sync.Mutex
	devices []*Device
	groups  map[string]*meeting // by peers
	boxes   map[[3]int]*meeting // of messages, by sender, receiver and tag
	down    atomic.Bool         // lost is set
	lost    *device.PeerError
}

// NewFabric returns a fabric for n ranks.
func NewFabric(n int) *Fabric {
	return &Fabric{
		opened: clock.Now(), turns: newTurns(max(n, 0)), devices: make([]*Device, max(n, 0)),
		groups: map[string]*meeting{}, boxes: map[[3]int]*meeting{},
	}
}

// NewFabricAcross returns the fabric of this process's part of n ranks. It closes the hub
// when a rank is lost.
func NewFabricAcross(n int, hub *link.Hub) *Fabric {
	f := NewFabric(n)
	f.hub = hub
	return f
}

// Opened returns the origin of the spans' clock.
func (f *Fabric) Opened() time.Time { return f.opened }

// isLocal reports whether a rank is in this process.
func (f *Fabric) isLocal(rank int) bool { return f.hub == nil || f.hub.IsLocal(rank) }

// count returns how many of the ranks are in this process.
func (f *Fabric) count() (n int) {
	for r := range f.devices {
		if f.isLocal(r) {
			n++
		}
	}
	return n
}

// OpenRanks opens n devices, joined if there are several. The spill file of rank r
// is o.DiskPath followed by r.
func OpenRanks(o Options, n int) []device.Device {
	if n > 1 {
		o.Fabric = NewFabric(n)
	}
	var list []device.Device
	for r := range n {
		own := o
		own.Rank, own.DiskPath = r, fmt.Sprint(o.DiskPath, r)
		list = append(list, New(own))
	}
	return list
}

// Ranks returns the number of ranks.
func (f *Fabric) Ranks() int { return len(f.devices) }

func (f *Fabric) join(d *Device, rank int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if rank < 0 || rank >= len(f.devices) {
		return fmt.Errorf("there is no rank %d in a fabric of %d", rank, len(f.devices))
	}
	if f.devices[rank] != nil {
		return fmt.Errorf("rank %d of the fabric is taken", rank)
	}
	f.devices[rank] = d
	if !f.isLocal(rank) {
		return fmt.Errorf("rank %d is in another process", rank)
	}
	if n := max(runtime.GOMAXPROCS(0)/d.options.Workers, 1); d.options.Apart && n < f.count() {
		if f.cores == nil {
			f.cores = make(chan struct{}, n)
		}
		d.cores = f.cores
	}
	return nil
}

// meeting is where the calls of one group, or the two ends of a message, meet
// repeatedly.
type meeting struct {
	fabric *Fabric
	ranks  []int
	here   int           // how many of them are in this process
	opened atomic.Uint32 // rendezvous so far

	// Guarded by the fabric's lock until the meeting opens, then fixed until all have
	// left.
	arrived int
	calls   []*device.Call // of ranks in this process; the others' entries are nil
	streams []*stream
	parts   []*exchange
	err     error     // why the calls do not match
	at      time.Time // of the latest rendezvous
}

// meetingOf returns the meeting of a call, creating it if needed.
func (f *Fabric) meetingOf(c *device.Call, rank int) *meeting {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := &meeting{fabric: f, ranks: device.Members(c, rank)}
	n := len(m.ranks)
	for _, r := range m.ranks {
		if f.isLocal(r) {
			m.here++
		}
	}
	m.calls, m.streams, m.parts = make([]*device.Call, n), make([]*stream, n), make([]*exchange, n)
	if device.IsMessage(c.Op) {
		return keep(f.boxes, [3]int{m.ranks[0], m.ranks[1], c.Tag}, m)
	}
	return keep(f.groups, fmt.Sprint(m.ranks), m)
}

// keep returns the map's entry for key, and inserts value if there is none.
func keep[K comparable](known map[K]*meeting, key K, value *meeting) *meeting {
	if m, ok := known[key]; ok {
		return m
	}
	known[key] = value
	return value
}

// meet returns when all members of this process have arrived. If there are no others, the last one
// checks that their calls match.
func (m *meeting) meet(s *stream, e *exchange) error {
	f := m.fabric
	f.mu.Lock()
	if f.lost != nil {
		f.mu.Unlock()
		return f.lost
	}
	if m.parts[e.member] != e { // it is still there when it leaves, and others may be reading
		m.calls[e.member], m.streams[e.member], m.parts[e.member] = &e.call, s, e
	}
	round := m.opened.Load()
	m.arrived++
	if m.arrived == m.here {
		m.arrived, m.at = 0, clock.Now()
		if m.here == len(m.ranks) {
			m.err = device.Agree(m.calls)
		}
		m.opened.Add(1)
		for _, t := range m.streams {
			if t != nil {
				t.unpark()
			}
		}
		f.mu.Unlock()
		return m.err
	}
	f.mu.Unlock()
	for range waitLooks {
		if m.opened.Load() != round {
			return m.err
		}
		if f.down.Load() {
			break
		}
		s.follows = false
		s.want(s.device.opened)
		runtime.Gosched()
		s.got()
	}
	return m.park(s, round)
}

// park sleeps until the meeting opens or a rank is lost.
func (m *meeting) park(s *stream, round uint32) error {
	f := m.fabric
	f.mu.Lock()
	if m.opened.Load() == round && f.lost == nil {
		s.parked = true
		f.mu.Unlock()
		<-s.wake
		s.got()
		f.mu.Lock()
	}
	defer f.mu.Unlock()
	if m.opened.Load() != round {
		return m.err
	}
	return f.lost
}

// unpark wakes a stream that sleeps in a meeting. The fabric is locked.
func (s *stream) unpark() {
	if s.parked {
		s.parked = false
		s.want(s.device.opened)
		s.wake <- struct{}{}
	}
}

// lose tells all devices that one is lost.
func (f *Fabric) lose(d *Device, err error) { f.loseRank(d, device.Lost(d.options.Rank, err)) }

// loseRank tells all devices but d (which may be nil) that a rank is lost; only the first loss is
// recorded. Other processes notice that their pipes are closed.
func (f *Fabric) loseRank(d *Device, lost *device.PeerError) {
	f.mu.Lock()
	if f.lost != nil {
		f.mu.Unlock()
		return
	}
	f.lost = lost
	f.down.Store(true)
	devices := slices.Clone(f.devices)
	for _, o := range devices {
		if o != nil {
			for _, s := range o.streams {
				s.unpark()
			}
		}
	}
	f.mu.Unlock()
	for _, o := range devices {
		if o != nil && o != d {
			o.interrupt(lost)
		}
	}
	if f.hub != nil {
		f.hub.Close() // whatever Close returns, nobody waits there any longer
	}
}

// interrupt ends the round because of another rank.
func (d *Device) interrupt(lost *device.PeerError) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err == nil {
		d.err = lost
	}
	d.failed.Store(true)
}

// Abort fails the round: calls not yet begun are skipped, Sync returns err, and joined
// devices lose this one. Between rounds it fails the next. Any goroutine may call it.
func (d *Device) Abort(err error) { d.fail(err) }
