// Package null is a device without memory and arithmetic. It runs the whole stack on a
// virtual clock: each stream has a time, a launched call advances its stream's time by
// a cost function, and a wait advances it to the end of the call waited for. Spans are
// in seconds of virtual time since the start of the round.
//
// Tests of execution and of probes use it; no command does. It reports what a real
// device could only hang or crash on: calls outside the arenas, launches out of order,
// waits for calls that were not launched.
//
// On a device by itself, a call between ranks takes its own cost. For devices of a
// Fabric, see there.
package null

import (
	"fmt"
	"math"

	"github.com/athanor-llm/athanor/device"
)

// Cost returns the seconds that a call takes.
type Cost func(c *device.Call) float64

var _ interface {
	device.Device
	device.Watched
	device.Aborter
} = (*Device)(nil)

// Device implements device.Device.
type Device struct {
	cost   Cost
	arenas [device.NumTiers]int64
	calls  []call

	// Guarded by the fabric's lock.
	fabric  *Fabric
	rank    int
	round   int
	streams [device.NumStreams]stream
	err     error
	syncing bool // in Sync, with unfinished calls
}

type call struct {
	device.Call
	seconds float64
	meeting *meeting // nil: not between ranks
	member  int
	end     float64
	round   int // round of the latest launch
	ended   int // round in which it ended
	span    *device.Span
}

// stream is an in-order queue with a clock.
type stream struct {
	device  *Device
	clock   float64
	queue   []command // of this round
	next    int       // the first unfinished command
	arrived bool      // the next one is a call that waits for its peers
}

// command is a call to run, or the complement (negative) of a call to wait for.
type command int

// New returns a device on which calls take the time that cost returns.
func New(cost Cost) *Device { return newDevice(newFabric(1), 0, cost) }

func newDevice(f *Fabric, rank int, cost Cost) *Device {
	d := &Device{cost: cost, fabric: f, rank: rank, round: 1}
	for i := range d.streams {
		d.streams[i].device = d
	}
	f.devices[rank] = d
	return d
}

// Info describes the device.
func (d *Device) Info() device.Info { return device.Info{Name: "null", Cores: 1} }

// Reserve records the arena's size.
func (d *Device) Reserve(tier device.Tier, bytes int64) error {
	if err := device.CheckReserve(tier, bytes, d.arenas, len(d.calls)); err != nil {
		return err
	}
	d.arenas[tier] = bytes
	return nil
}

// Prepare checks the calls and computes their costs.
func (d *Device) Prepare(calls []device.Call, spans []device.Span) (first int, err error) {
	if spans != nil && len(spans) != len(calls) {
		return 0, fmt.Errorf("prepare: %d spans for %d calls", len(spans), len(calls))
	}
	list := d.calls
	for i := range calls {
		p := call{Call: calls[i]}
		if err := d.check(&p); err != nil {
			return 0, fmt.Errorf("prepare: %w", &device.CallError{Call: i, Op: p.Op, Err: err})
		}
		if spans != nil {
			p.span = &spans[i]
		}
		list = append(list, p)
	}
	first = len(d.calls)
	d.fabric.mu.Lock() // others read calls that meet theirs, but never between rounds
	d.calls = list
	d.fabric.mu.Unlock()
	return first, nil
}

// check rejects an invalid call, or sets its cost and meeting.
func (d *Device) check(p *call) error {
	if err := device.Check(&p.Call, d.arenas); err != nil {
		return err
	}
	if p.seconds = d.cost(&p.Call); !(p.seconds >= 0) || math.IsInf(p.seconds, 0) {
		return fmt.Errorf("the cost model gives an impossible time of %v seconds", p.seconds)
	}
	if !p.Op.Info().Between || !d.fabric.joined {
		return nil
	}
	if err := device.CheckRank(&p.Call, d.rank, len(d.fabric.devices)); err != nil {
		return err
	}
	d.fabric.meet(p, d.rank)
	return nil
}

// Launch enqueues the call and advances what can run.
func (d *Device) Launch(n int) {
	d.fabric.mu.Lock()
	defer d.fabric.mu.Unlock()
	if n < 0 || n >= len(d.calls) {
		d.fail(fmt.Errorf("launch of call %d, but only %d calls are prepared", n, len(d.calls)))
		return
	}
	c := &d.calls[n]
	if c.round == d.round {
		d.fail(&device.CallError{Call: n, Op: c.Op, Err: fmt.Errorf("launched twice in one round")})
		return
	}
	c.round = d.round
	d.enqueue(c.Stream, command(n))
}

// Wait advances the clock of stream s to the end of call n.
func (d *Device) Wait(s device.Stream, n int) {
	d.fabric.mu.Lock()
	defer d.fabric.mu.Unlock()
	if s >= device.NumStreams || n < 0 || n >= len(d.calls) || d.calls[n].round != d.round {
		d.fail(fmt.Errorf("stream %s waits for call %d, which has not been launched in this round", s, n))
		return
	}
	d.enqueue(s, command(^n))
}

func (d *Device) enqueue(id device.Stream, c command) {
	s := &d.streams[id]
	s.queue = append(s.queue, c)
	if s.next == len(s.queue)-1 {
		d.fabric.run(s)
	}
}

// Sync ends the round and resets all clocks to zero.
func (d *Device) Sync() error {
	f := d.fabric
	f.mu.Lock()
	defer f.mu.Unlock()
	d.syncing = true
	for d.err == nil && !d.idle() {
		if f.lost != nil {
			d.err = d.stuck(f.lost)
			break
		}
		if f.hangs() {
			f.end()
			continue
		}
		f.changed.Wait()
	}
	d.syncing = false
	err := d.err
	d.err = nil
	for i := range d.streams {
		s := &d.streams[i]
		s.clock, s.queue, s.next, s.arrived = 0, s.queue[:0], 0, false
	}
	d.round++
	return err
}

// idle reports whether everything launched has ended.
func (d *Device) idle() bool {
	for i := range d.streams {
		if s := &d.streams[i]; s.next < len(s.queue) {
			return false
		}
	}
	return true
}

// stuck attributes err to a call that waits for its peers, if there is one.
func (d *Device) stuck(err error) error {
	for i := range d.streams {
		if s := &d.streams[i]; s.arrived {
			n := int(s.queue[s.next])
			return &device.CallError{Call: n, Op: d.calls[n].Op, Err: err}
		}
	}
	return err
}

// Done reports whether call n has ended in the current round. Any goroutine may call
// it.
func (d *Device) Done(n int) bool {
	d.fabric.mu.Lock()
	defer d.fabric.mu.Unlock()
	return d.calls[n].ended == d.round
}

// Progress is constant: calls take no real time.
func (d *Device) Progress() uint64 { return 0 }

// Abort fails the round; joined devices lose this one. Any goroutine may call it.
func (d *Device) Abort(err error) {
	d.fabric.mu.Lock()
	defer d.fabric.mu.Unlock()
	d.fail(err)
}

func (d *Device) fail(err error) {
	if d.err == nil {
		d.err = err
	}
	d.fabric.lose(d.rank, err)
}

// Read fills p with zeros: there is no memory.
func (d *Device) Read(tier device.Tier, addr int64, p []byte) error {
	clear(p)
	return d.inside(tier, addr, len(p))
}

// Write discards p.
func (d *Device) Write(tier device.Tier, addr int64, p []byte) error {
	return d.inside(tier, addr, len(p))
}

func (d *Device) inside(tier device.Tier, addr int64, n int) error {
	if tier >= device.NumTiers || addr < 0 || addr > d.arenas[tier] || int64(n) > d.arenas[tier]-addr {
		return fmt.Errorf("%d bytes at %d are outside of the %s arena", n, addr, tier)
	}
	return nil
}

// Close makes joined devices lose this one. It has nothing to release.
func (d *Device) Close() error {
	d.fabric.mu.Lock()
	defer d.fabric.mu.Unlock()
	d.fabric.lose(d.rank, fmt.Errorf("the device is closed"))
	return nil
}
