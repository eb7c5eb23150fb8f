package cuda

import (
	"fmt"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cpu"
	"github.com/athanor-llm/athanor/device/cuda/nv"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/kernel"
)

// call is a prepared call: steps on one of the driver's streams, or a kernel or
// transfer on one of the host's.
type call struct {
	op     graph.Op
	stream device.Stream
	span   *device.Span
	high   [device.NumTiers]int64 // end of the highest byte touched, per tier
	from   device.Tier
	to     device.Tier
	bytes  int64 // bytes moved by a copy

	steps       []step
	end         uintptr // event
	start, stop uintptr // events with time stamps; 0: not timed
	after       int32   // call whose stop is this one's start, or -1
	until       float64 // end of its latest execution

	exchange *exchange // of a call between ranks
	run      func()
	move     *cpu.Transfer
	flag     *atomic.Uint32 // round in which it completed, in pinned memory
	flagAddr uintptr
}

// step is a library call with its arguments in place. keep holds what the arguments
// point to.
type step struct {
	proc    nv.Proc
	args    []uintptr
	keep    any
	explain func(code int32) error
	block   *block // instead: bytes from or to another host
}

func (c *call) count(s *device.Stats) {
	for t, end := range c.high {
		s.Peak[t] = max(s.Peak[t], end)
	}
	if c.op == graph.Copy {
		s.Moved[c.from][c.to] += c.bytes
	}
}

// Prepare checks the calls, compiles what they need and binds them.
func (d *Device) Prepare(calls []device.Call, spans []device.Span) (first int, err error) {
	if spans != nil && len(spans) != len(calls) {
		return 0, fmt.Errorf("prepare: %d spans for %d calls", len(spans), len(calls))
	}
	t := d.target()
	works := make([][]work, len(calls))
	for i := range calls {
		if works[i], err = d.plan(t, &calls[i]); err != nil {
			return 0, fmt.Errorf("prepare: %w", &device.CallError{Call: i, Op: calls[i].Op, Err: err})
		}
	}
	codes, err := d.code.compile(works, d.chip.arch)
	if err != nil {
		return 0, fmt.Errorf("prepare: %w", err)
	}
	first = len(d.calls)
	list := slices.Clone(d.calls)
	err = d.work.do(func() error {
		if err := d.code.load(codes); err != nil {
			return err
		}
		flags, err := d.newFlags(calls)
		if err != nil {
			return err
		}
		for i := range calls {
			var span *device.Span
			if spans != nil {
				span = &spans[i]
			}
			c, err := d.bind(&calls[i], works[i], span, &flags)
			if err != nil {
				return &device.CallError{Call: i, Op: calls[i].Op, Err: err}
			}
			list = append(list, c)
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("prepare: %w", err)
	}
	d.calls = list
	d.launched = make([]uint32, len(list)) // no round is under way
	d.issued = make([]atomic.Uint32, len(list))
	d.work.order = make([]int32, 0, len(list))
	return first, nil
}

// target describes this device to builders.
func (d *Device) target() target {
	a := &d.arenas
	t := target{scratch: a.workspace + workspaceBytes, room: a.room, flags: a.flagsAt(), library: d.library.lt != nil, sumRows: d.options.SumRows,
		sms: d.chip.sms, shared: d.chip.shared, major: d.chip.major, hopper: d.chip.hopper(), fp8: d.chip.fp8(), apart: d.apart}
	for tier := range t.base {
		t.base[tier] = a.base(device.Tier(tier))
	}
	return t
}

// plan checks a call and builds its launches.
func (d *Device) plan(t target, c *device.Call) ([]work, error) {
	if err := device.Check(c, d.arenas.sizes); err != nil {
		return nil, err
	}
	if c.Op == graph.ReduceScatter || c.Op == graph.AllReduce {
		var list []work // to be compiled; the launches depend on the other ranks
		for _, u := range sumUnits(c.Args[len(c.Args)-1].DType) {
			list = append(list, work{launch: &launch{unit: u, kernel: "sum"}})
		}
		return list, nil
	}
	if c.Op.Info().Between {
		return nil, nil
	}
	for _, a := range c.Args {
		if isHost(c.Stream) && !a.Absent() && a.Tier == device.DeviceTier {
			return nil, fmt.Errorf("stream %s cannot reach the GPU's memory; hint: go through the host tier", c.Stream)
		}
		if !isHost(c.Stream) && !a.Absent() && a.Tier == device.DiskTier {
			return nil, fmt.Errorf("stream %s cannot reach the disk; hint: go through the host tier", c.Stream)
		}
	}
	if c.Op == graph.Copy || isHost(c.Stream) {
		return nil, nil
	}
	list, err := t.build(c)
	if err != nil {
		return nil, err
	}
	for _, w := range list {
		if c.Stream != device.Compute && (w.product != nil || scratching[w.launch.unit.File]) {
			return nil, fmt.Errorf("the operator needs the compute stream's scratch memory and cannot run on stream %s", c.Stream)
		}
		if w.launch != nil && w.launch.shared > d.chip.shared {
			return nil, fmt.Errorf("a kernel needs %d bytes of shared memory, but %s has %d; hint: use a smaller head size or another GPU", w.launch.shared, d.chip.name, d.chip.shared)
		}
	}
	return list, nil
}

// scratching lists the kernels that use the compute stream's scratch memory or flags.
var scratching = map[string]bool{"sums": true, "embed_bwd": true, "nf4": true, "fp8": true, "rescale": true, "dispatch": true, "expert_linear": true, "expert_dw": true,
	"expert_linear_mma": true, "expert_dw_mma": true, "expert_linear_wgmma": true, "expert_dw_wgmma": true, "wgrad_wgmma": true}

// newFlags allocates the flags of the host's calls in pinned memory.
func (d *Device) newFlags(calls []device.Call) ([]atomic.Uint32, error) {
	n := 0
	for i := range calls {
		if isHost(calls[i].Stream) {
			n++
		}
	}
	if n == 0 {
		return nil, nil
	}
	b, err := d.registered.pin(int64(n) * 4)
	if err != nil {
		return nil, err
	}
	return unsafe.Slice((*atomic.Uint32)(unsafe.Pointer(&b[0])), n), nil
}

// bind makes a call ready to run, on the worker.
func (d *Device) bind(c *device.Call, list []work, span *device.Span, flags *[]atomic.Uint32) (p call, err error) {
	p = call{op: c.Op, stream: c.Stream, span: span}
	for _, a := range c.Args {
		if !a.Absent() {
			p.high[a.Tier] = max(p.high[a.Tier], a.End())
		}
	}
	if c.Op == graph.Copy {
		p.to, p.from, p.bytes = c.Args[graph.CopyDst].Tier, c.Args[graph.CopySrc].Tier, c.Args[graph.CopySrc].Bytes()
	}
	if isHost(c.Stream) {
		p.flag = &(*flags)[0]
		p.flagAddr = uintptr(unsafe.Pointer(p.flag))
		*flags = (*flags)[1:]
		return p, d.bindHost(&p, c)
	}
	if c.Op.Info().Between {
		if p.exchange, err = d.join(c); err != nil {
			return p, err
		}
		for _, w := range list { // now, since the driver may wait for the context when it loads them
			if _, err := d.code.function(w.launch); err != nil {
				return p, err
			}
		}
	}
	if err := d.createEvents(&p); err != nil {
		return p, err
	}
	if c.Op == graph.Copy {
		p.steps = d.arenas.copySteps(c, d.work.streams[c.Stream])
		return p, nil
	}
	if p.exchange != nil {
		return p, nil
	}
	for i := range list {
		if p.steps, err = d.steps(p.steps, &list[i], c.Stream); err != nil {
			return p, err
		}
	}
	return p, nil
}

// createEvents creates the event that others wait for and, if the call is timed, those with its times.
func (d *Device) createEvents(p *call) (err error) {
	create := d.driver.EventCreate
	if p.end, err = d.driver.Word("cuEventCreate", create, nv.EventBlocking|nv.EventNoTiming); err != nil || p.span == nil || d.options.Untimed {
		return err
	}
	if p.start, err = d.driver.Word("cuEventCreate", create, nv.EventBlocking); err != nil {
		return err
	}
	p.stop, err = d.driver.Word("cuEventCreate", create, nv.EventBlocking)
	return err
}

func (d *Device) bindHost(p *call, c *device.Call) error {
	if c.Op == graph.Copy {
		p.move = cpu.NewTransfer(c.Args[graph.CopyDst], c.Args[graph.CopySrc])
		return nil
	}
	fast := kernel.Lookup(c.Op).Fast
	if fast == nil {
		return fmt.Errorf("there is no CPU kernel")
	}
	env, attr := d.hosts[c.Stream].env, c.Attr
	tensors := make([]kernel.Tensor, len(c.Op.Info().Args))
	for i, o := range c.Args {
		if !o.Absent() {
			tensors[i] = d.arenas.host.Tensor(o)
		}
	}
	p.run = func() { fast(env, &attr, tensors) }
	return nil
}

// Refused returns the prepared products that the library rejected, and why. They run on the plain
// kernel, which is many times slower, or, if the library accepted them with other numbers of rows but
// not with this one, with rounding that differs from the others'. Call it between rounds.
func (d *Device) Refused() []string { return d.library.reasons() }

// steps appends a launch or a product.
func (d *Device) steps(list []step, w *work, s device.Stream) ([]step, error) {
	if w.product == nil {
		st, err := d.code.step(w.launch, d.work.streams[s])
		return append(list, st), err
	}
	st, err := d.library.step(w.product, &d.arenas, d.work.streams[s])
	if err == nil {
		return append(list, st), nil
	}
	if w.instead[0].product == nil {
		d.library.refuse(w.product, err)
	}
	for i := range w.instead {
		if list, err = d.steps(list, &w.instead[i], s); err != nil {
			return nil, err
		}
	}
	return list, nil
}
