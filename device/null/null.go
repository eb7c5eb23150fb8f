// Package null is a device without memory and without arithmetic. It runs the
// whole stack on a virtual clock: each stream has a time, a launched call
// advances its stream's time by what a cost function says, and a wait moves
// it up to the end of the call waited for. Spans are in seconds of virtual
// time since the round began.
//
// It checks what a real device could only hang or crash on: calls outside of
// the arenas, launches out of order, waits for calls that were not launched.
package null

import (
	"fmt"
	"math"

	"github.com/athanor-llm/athanor/device"
)

// Cost tells how many seconds a call takes.
type Cost func(c *device.Call) float64

// Device implements device.Device.
type Device struct {
	cost   Cost
	arenas [device.NumTiers]int64
	calls  []call
	round  int
	clock  [device.NumStreams]float64
	err    error
}

type call struct {
	device.Call
	seconds float64
	end     float64
	round   int // of the latest launch
	span    *device.Span
}

// New makes a device on which calls take the time that cost tells.
func New(cost Cost) *Device { return &Device{cost: cost, round: 1} }

// Info describes the device.
func (d *Device) Info() device.Info { return device.Info{Name: "null", Cores: 1} }

// Reserve notes the arena's size.
func (d *Device) Reserve(tier device.Tier, bytes int64) error {
	if tier >= device.NumTiers || bytes < 0 || d.arenas[tier] != 0 || len(d.calls) > 0 {
		return fmt.Errorf("reserve: %d bytes for %v: reserved already, too late or no such tier", bytes, tier)
	}
	d.arenas[tier] = bytes
	return nil
}

// Prepare checks the calls and asks for their costs.
func (d *Device) Prepare(calls []device.Call, spans []device.Span) (first int, err error) {
	if spans != nil && len(spans) != len(calls) {
		return 0, fmt.Errorf("prepare: %d spans for %d calls", len(spans), len(calls))
	}
	first = len(d.calls)
	for i := range calls {
		p := call{Call: calls[i]}
		if err := device.Check(&p.Call, d.arenas); err != nil {
			d.calls = d.calls[:first]
			return 0, fmt.Errorf("prepare: %w", &device.CallError{Call: i, Op: p.Op, Err: err})
		}
		if p.seconds = d.cost(&p.Call); !(p.seconds >= 0) || math.IsInf(p.seconds, 0) {
			d.calls = d.calls[:first]
			return 0, fmt.Errorf("prepare: %w", &device.CallError{Call: i, Op: p.Op, Err: fmt.Errorf("takes %v seconds", p.seconds)})
		}
		if spans != nil {
			p.span = &spans[i]
		}
		d.calls = append(d.calls, p)
	}
	return first, nil
}

// Launch advances the clock of the call's stream.
func (d *Device) Launch(n int) {
	if n < 0 || n >= len(d.calls) {
		d.fail(fmt.Errorf("launch of call %d: %d are prepared", n, len(d.calls)))
		return
	}
	c := &d.calls[n]
	if c.round == d.round {
		d.fail(&device.CallError{Call: n, Op: c.Op, Err: fmt.Errorf("launched twice in one round")})
		return
	}
	start := d.clock[c.Stream]
	c.end = start + c.seconds
	c.round = d.round
	d.clock[c.Stream] = c.end
	if c.span != nil {
		*c.span = device.Span{Start: start, End: c.end}
	}
}

// Wait moves the clock of stream s up to the end of call n.
func (d *Device) Wait(s device.Stream, n int) {
	if s >= device.NumStreams || n < 0 || n >= len(d.calls) || d.calls[n].round != d.round {
		d.fail(fmt.Errorf("stream %s waits for call %d, which is not launched in this round", s, n))
		return
	}
	d.clock[s] = max(d.clock[s], d.calls[n].end)
}

// Sync ends the round and sets all clocks to zero.
func (d *Device) Sync() error {
	err := d.err
	d.err = nil
	d.clock = [device.NumStreams]float64{}
	d.round++
	return err
}

func (d *Device) fail(err error) {
	if d.err == nil {
		d.err = err
	}
}

// Read fills p with zeros: there is no memory.
func (d *Device) Read(tier device.Tier, addr int64, p []byte) error {
	clear(p)
	return d.inside(tier, addr, len(p))
}

// Write forgets p.
func (d *Device) Write(tier device.Tier, addr int64, p []byte) error {
	return d.inside(tier, addr, len(p))
}

func (d *Device) inside(tier device.Tier, addr int64, n int) error {
	if tier >= device.NumTiers || addr < 0 || addr > d.arenas[tier] || int64(n) > d.arenas[tier]-addr {
		return fmt.Errorf("%d bytes at %d are outside of the %s arena", n, addr, tier)
	}
	return nil
}

// Close does nothing.
func (d *Device) Close() error { return nil }
