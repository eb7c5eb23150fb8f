// Package exec executes programs on devices.
//
// It makes no decisions. For each instruction in program order it tells the device what
// the instruction's stream must wait for and launches it; at the end it waits until all
// streams are idle. New resolves the device calls, so a step is a loop over two slices
// of numbers and allocates nothing. A device of another process gets the program, and is told
// once per step to run it.
//
// A watchdog monitors the step: after Engine.Patience without progress, the step fails
// with a list of what each stream is stuck at.
package exec

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/internal/clock"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/sim"
)

// Engine executes one program on one device. Only one goroutine may use it at a time;
// several engines may take turns on a device.
type Engine struct {
	// Patience bounds the time in which no instruction of any rank completes or
	// progresses. The device judges progress, so a slow machine or disk does not count
	// as hung. Set it before the first Step. Devices that do not implement
	// device.Watched are not monitored.
	Patience time.Duration

	*Arenas
	first   int           // the device's number of instruction 0
	runner  device.Runner // the device, if it has the program itself; else nil
	listing *Listing
	spans   []device.Span

	requests chan struct{}
	replies  chan error
	timer    *time.Ticker // of the watchdog; runs during steps only
	broken   error        // why the engine is unusable
	closed   bool
	peers    []*Engine     // engines of its group, this one included
	signs    atomic.Uint64 // sum of signs of progress, for the peers to read
}

// Result of one step.
type Result struct {
	Seconds float64 // from the first launch until all streams were idle
	engine  *Engine
}

// Timeline returns the timeline of the step. It is valid until the next step.
func (r Result) Timeline() (*sim.Timeline, error) { return sim.New(r.engine.program, r.engine.spans) }

// Reserve lets the device tune the programs' calls, if it can, and reserves the arenas that they need. The
// programs share them.
func Reserve(d device.Device, programs ...*program.Program) error {
	var height [device.NumTiers]int64
	for _, p := range programs {
		for tier, n := range p.Height {
			height[tier] = max(height[tier], n)
		}
	}
	if t, ok := d.(device.Tuner); ok {
		for _, p := range programs {
			if err := t.Tune(p.Calls(), height[device.DeviceTier]); err != nil {
				return err
			}
		}
	}
	for tier := range device.NumTiers {
		if err := d.Reserve(tier, height[tier]); err != nil {
			return err
		}
	}
	return nil
}

// New prepares all instructions of p on d, whose arenas must be reserved. Close the
// engine before the device.
func New(p *program.Program, d device.Device) (*Engine, error) {
	arenas, err := NewArenas(p, d)
	if err != nil {
		return nil, err
	}
	e := &Engine{
		Arenas: arenas, Patience: 10 * time.Second, spans: make([]device.Span, len(p.Instrs)),
		requests: make(chan struct{}), replies: make(chan error, 1),
		timer: time.NewTicker(time.Hour),
	}
	e.timer.Stop()
	if e.listing, err = NewListing(p); err != nil {
		return nil, err
	}
	if e.runner, _ = d.(device.Runner); e.runner != nil {
		e.first, err = e.runner.Load(p.String(), e.spans)
	} else {
		e.first, err = d.Prepare(p.Calls(), e.spans)
	}
	if err != nil {
		return nil, e.explain(err, 0)
	}
	go e.run()
	return e, nil
}

// Close stops the engine's goroutine.
func (e *Engine) Close() {
	if !e.closed {
		close(e.requests)
		e.closed, e.broken = true, errors.New("the engine is closed")
	}
}

// Step executes the program once. A cancelled context prevents the step from starting;
// a started step runs to its end, since a partial step is no state to save. After an
// error the contents of the arenas are undefined and the engine refuses further steps.
func (e *Engine) Step(ctx context.Context) (Result, error) {
	if err := ctx.Err(); err != nil {
		return Result{}, err
	}
	if e.broken != nil {
		return Result{}, fmt.Errorf("exec: no more steps can run after: %w", e.broken)
	}
	start := clock.Now()
	e.requests <- struct{}{}
	err := e.watch()
	if err != nil {
		e.broken = err
		return Result{}, err
	}
	return Result{Seconds: clock.Since(start).Seconds(), engine: e}, nil
}

// run is the engine's goroutine. It launches steps, so that Step can return even if the
// device hangs.
func (e *Engine) run() {
	for range e.requests {
		if e.runner != nil {
			e.runner.Run(e.first)
		} else {
			e.listing.Launch(e.device, e.first)
		}
		e.replies <- e.device.Sync()
	}
}

// watch waits for the step to end or to hang. A step hangs if no rank makes progress; a
// rank that only waits for peers lets them report first. Time is counted in polls, so
// that a suspended process does not count as hung.
func (e *Engine) watch() error {
	d, ok := e.device.(device.Watched)
	if !ok {
		return e.explain(<-e.replies, e.first)
	}
	// Polls without progress before giving up. The last progress precedes the first of
	// these polls by up to one poll; a peer's, published when the peer polls, by up to two.
	// So patience never runs out while something progresses every six ninths of it.
	const looks = 8
	e.timer.Reset(max(e.Patience/(looks+1), time.Millisecond))
	defer e.timer.Stop()
	last, idle := uint64(0), 0
	for {
		select {
		case err := <-e.replies:
			return e.explain(err, e.first)
		case <-e.timer.C:
		}
		if n := e.progress(d); n != last {
			last, idle = n, 0
			continue
		}
		idle++
		if idle >= 2*looks || idle >= looks && !e.awaitsPeers(d) {
			return e.giveUp(d)
		}
	}
}

// progress sums the signs of progress of all ranks of the group.
func (e *Engine) progress(d device.Watched) uint64 {
	n := d.Progress()
	for i := range e.spans {
		if d.Done(e.first + i) {
			n++
		}
	}
	e.signs.Store(n)
	for _, p := range e.peers {
		if p != e {
			n += p.signs.Load()
		}
	}
	return n
}

// awaitsPeers reports whether only calls between ranks remain to run.
func (e *Engine) awaitsPeers(d device.Watched) bool {
	var seen [device.NumStreams]bool
	any := false
	for i := range e.program.Instrs {
		in := &e.program.Instrs[i]
		if seen[in.Stream] || d.Done(e.first+i) {
			continue
		}
		seen[in.Stream] = true
		if slices.ContainsFunc(in.Waits, func(w int) bool { return !d.Done(e.first + w) }) {
			continue
		}
		if !in.Op.Info().Between {
			return false
		}
		any = true
	}
	return any
}

// giveUp ends the step, and those of the ranks that wait for this one. If this rank
// only waited for peers, its device comes to rest, and giveUp waits for that.
func (e *Engine) giveUp(d device.Watched) error {
	err := e.stuck(d)
	awaited := e.awaitsPeers(d)
	if a, ok := e.device.(device.Aborter); ok {
		a.Abort(err.Err)
		if awaited {
			<-e.replies
		}
	}
	return err
}

// stuck returns the error that names the oldest unfinished instruction of each stream.
func (e *Engine) stuck(d device.Watched) *StepError {
	at := -1
	var seen [device.NumStreams]bool
	var list []string
	for i := range e.program.Instrs {
		in := &e.program.Instrs[i]
		if seen[in.Stream] || d.Done(e.first+i) {
			continue
		}
		seen[in.Stream] = true
		line := e.name(i)
		ready := true
		for _, w := range in.Waits {
			if !d.Done(e.first + w) {
				line += fmt.Sprintf(", waits for i%d", w)
				ready = false
			}
		}
		if in.Op.Info().Between && ready {
			line += fmt.Sprintf(", meets ranks %v", in.Peers)
		}
		if ready && at < 0 {
			at = i
		}
		list = append(list, line)
	}
	err := fmt.Errorf("no progress for %v; hint: check for a disk or link that hangs; unfinished:\n  %s",
		e.Patience, strings.Join(list, "\n  "))
	if at < 0 {
		return &StepError{Rank: e.program.Rank, Instr: -1, Err: err}
	}
	return &StepError{Rank: e.program.Rank, Instr: at, Name: e.name(at), Err: err}
}

// explain adds the instruction to a call's error. base is the device's number of
// instruction 0.
func (e *Engine) explain(err error, base int) error {
	if err == nil {
		return nil
	}
	var c *device.CallError
	if errors.As(err, &c) && c.Call >= base && c.Call-base < len(e.program.Instrs) {
		i := c.Call - base
		return &StepError{Rank: e.program.Rank, Instr: i, Name: e.name(i), Err: c.Err}
	}
	return &StepError{Rank: e.program.Rank, Instr: -1, Err: err}
}

// name returns how errors refer to an instruction.
func (e *Engine) name(i int) string {
	in := &e.program.Instrs[i]
	operand := ""
	if len(in.Args) > 0 {
		operand = " " + e.program.Buffers[in.Args[0].Buf].Name
	}
	return fmt.Sprintf("i%d %s%s on %s, segment %d, micro-batch %d, chunk %d, %s",
		i, in.Op, operand, in.Stream, in.Key.Segment, in.Key.Micro, in.Key.Chunk, in.Key.Dir)
}
