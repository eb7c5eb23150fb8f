package cuda

import (
	"fmt"
	"maps"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cpu"
	"github.com/athanor-llm/athanor/device/cuda/kernels"
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

type functionKey struct {
	unit kernels.Unit
	name string
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
	codes, err := d.compile(works)
	if err != nil {
		return 0, fmt.Errorf("prepare: %w", err)
	}
	first = len(d.calls)
	list := slices.Clone(d.calls)
	err = d.work.do(func() error {
		if err := d.load(codes); err != nil {
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
	t := target{scratch: d.workspace + workspaceBytes, room: d.room, flags: d.flagsAt(), library: d.lib.Lt != nil, sumRows: d.options.SumRows,
		sms: d.limits.sms, shared: d.limits.shared, major: d.limits.major, hopper: d.hopper(), apart: d.apart}
	for tier := range t.base {
		t.base[tier] = d.base(device.Tier(tier))
	}
	return t
}

// hopper reports whether kernels may use instructions exclusive to compute capability
// 9.0: compilers before CUDA 12 do not support them.
func (d *Device) hopper() bool { return d.limits.major == 9 && strings.HasSuffix(d.arch, "90a") }

// plan checks a call and builds its launches.
func (d *Device) plan(t target, c *device.Call) ([]work, error) {
	if err := device.Check(c, d.sizes); err != nil {
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
		if w.launch != nil && w.launch.shared > d.limits.shared {
			return nil, fmt.Errorf("a kernel needs %d bytes of shared memory, but %s has %d; hint: use a smaller head size or another GPU", w.launch.shared, d.name, d.limits.shared)
		}
	}
	return list, nil
}

// scratching lists the kernels that use the compute stream's scratch memory or flags.
var scratching = map[string]bool{"sums": true, "embed_bwd": true, "nf4": true, "dispatch": true, "expert_linear": true, "expert_dw": true,
	"expert_linear_mma": true, "expert_dw_mma": true, "expert_linear_wgmma": true, "expert_dw_wgmma": true, "wgrad_wgmma": true}

// compile compiles all units that are not loaded, on all cores.
func (d *Device) compile(works [][]work) (map[kernels.Unit][]byte, error) {
	codes := map[kernels.Unit][]byte{}
	var units []kernels.Unit
	for _, list := range works {
		for _, l := range launches(list) {
			if d.modules[l.unit] == 0 && !slices.Contains(units, l.unit) {
				units = append(units, l.unit)
			}
		}
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	var first error
	tokens := make(chan struct{}, runtime.GOMAXPROCS(0))
	for _, u := range units {
		all.Go(func() {
			tokens <- struct{}{}
			defer func() { <-tokens }()
			code, err := d.cache.Load(u, d.arch)
			mu.Lock()
			defer mu.Unlock()
			if codes[u] = code; err != nil && first == nil {
				first = err
			}
		})
	}
	all.Wait()
	return codes, first
}

// load passes the code to the driver, on the worker.
func (d *Device) load(codes map[kernels.Unit][]byte) error {
	for u, code := range codes {
		m, err := d.driver.Word("cuModuleLoadData", d.driver.ModuleLoadData, nv.Addr(&code[0]))
		runtime.KeepAlive(code)
		if err != nil {
			return fmt.Errorf("kernel %s: %w", u, err)
		}
		d.modules[u] = m
	}
	return nil
}

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
	b, err := d.pin(int64(n) * 4)
	if err != nil {
		return nil, err
	}
	return unsafe.Slice((*atomic.Uint32)(unsafe.Pointer(&b[0])), n), nil
}

// pin returns n bytes of registered memory, zero, which lives as long as the device. Call
// it on the worker.
func (d *Device) pin(n int64) ([]byte, error) {
	a, err := cpu.NewArena(n)
	if err != nil {
		return nil, err
	}
	d.small = append(d.small, a)
	b := a.Bytes()
	return b, d.driver.Check("cuMemHostRegister", d.driver.MemHostRegister(address(b), uintptr(len(b)), nv.RegisterPortable|nv.RegisterMapped))
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
			if _, err := d.function(w.launch); err != nil {
				return p, err
			}
		}
	}
	if err := d.createEvents(&p); err != nil {
		return p, err
	}
	if c.Op == graph.Copy {
		p.steps = d.copySteps(c)
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
			tensors[i] = d.host.Tensor(o)
		}
	}
	p.run = func() { fast(env, &attr, tensors) }
	return nil
}

// copySteps builds a copy between any two addressable places. The driver rejects ranges
// that span two registrations, so a copy across the border of two slices of the host
// arena is split there, row by row if it has several rows.
func (d *Device) copySteps(c *device.Call) (list []step) {
	v, stream := d.driver, d.work.streams[c.Stream]
	m := cpu.NewTransfer(c.Args[graph.CopyDst], c.Args[graph.CopySrc])
	if m.Rows > 1 && !d.borders(m.To, c.Args[graph.CopyDst]) && !d.borders(m.From, c.Args[graph.CopySrc]) {
		two := nv.NewCopy2D(d.base(m.To)+uintptr(m.Dst), d.base(m.From)+uintptr(m.Src), m.DstStep, m.SrcStep, m.Width, int64(m.Rows))
		return []step{{proc: v.Memcpy2DAsync, args: []uintptr{nv.Addr(two), stream}, keep: two,
			explain: func(code int32) error { return v.Check("cuMemcpy2DAsync", code) }}}
	}
	for r := range int64(m.Rows) {
		dst, src := m.Dst+r*m.DstStep, m.Src+r*m.SrcStep
		for left := m.Width; left > 0; {
			n := min(left, d.within(m.To, dst), d.within(m.From, src))
			list = append(list, step{proc: v.MemcpyAsync,
				args:    []uintptr{d.base(m.To) + uintptr(dst), d.base(m.From) + uintptr(src), uintptr(n), stream},
				explain: func(code int32) error { return v.Check("cuMemcpyAsync", code) }})
			dst, src, left = dst+n, src+n, left-n
		}
	}
	return list
}

// within returns the bytes from an address to the end of its registration.
func (d *Device) within(t device.Tier, addr int64) int64 {
	if t != device.HostTier {
		return math.MaxInt64
	}
	return d.pinned.slice - addr%d.pinned.slice
}

// borders reports whether an operand spans more than one registration.
func (d *Device) borders(t device.Tier, o device.Operand) bool {
	return o.End()-o.Addr > d.within(t, o.Addr)
}

// Refused returns the prepared products that the library rejected, and why. They run on the plain
// kernel, which is many times slower, or, if the library accepted them with other numbers of rows but
// not with this one, with rounding that differs from the others'. Call it between rounds.
func (d *Device) Refused() []string { return slices.Sorted(maps.Keys(d.refused)) }

func (d *Device) refuse(p *product, why error) { d.refused[fmt.Sprintf("%v: %v", p, why)] = true }

// steps appends a launch or a product.
func (d *Device) steps(list []step, w *work, s device.Stream) ([]step, error) {
	if w.product == nil {
		st, err := d.kernelStep(w.launch, d.work.streams[s])
		return append(list, st), err
	}
	st, err := d.matmul(w.product, s)
	if err == nil {
		return append(list, st), nil
	}
	if w.instead[0].product == nil {
		d.refuse(w.product, err)
	}
	for i := range w.instead {
		if list, err = d.steps(list, &w.instead[i], s); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// parameters is what a launch points to: the arguments and their description for the
// driver.
type parameters struct {
	args  args
	size  uint64
	extra [5]uintptr
}

// function is a kernel of a loaded module.
type function struct {
	handle uintptr
	shared int // the most dynamic shared memory that a launch of it may have
}

// function returns a launch's kernel, allowed the shared memory that the launch asks for. The limit
// belongs to the function, which earlier prepared launches share, so it is only ever raised. It is set
// for all that use any, since the default of 48 KiB includes what the kernel declares itself.
func (d *Device) function(l *launch) (uintptr, error) {
	key := functionKey{l.unit, l.kernel}
	f := d.functions[key]
	if f.handle == 0 {
		handle, err := d.driver.Function(d.modules[l.unit], l.kernel)
		if err != nil {
			return 0, err
		}
		f.handle = handle
	}
	if l.shared > f.shared {
		v := d.driver
		if err := v.Check("cuFuncSetAttribute", v.FuncSetAttribute(f.handle, nv.FuncSharedMemory, uintptr(l.shared))); err != nil {
			return 0, fmt.Errorf("kernel %s: %w", l.kernel, err)
		}
		f.shared = l.shared
	}
	d.functions[key] = f
	return f.handle, nil
}

func (d *Device) kernelStep(l *launch, stream uintptr) (step, error) {
	v := d.driver
	fn, err := d.function(l)
	if err != nil {
		return step{}, err
	}
	p := &parameters{args: l.args, size: uint64(argsBytes)}
	p.extra = [5]uintptr{nv.ParamBuffer, nv.Addr(&p.args), nv.ParamSize, nv.Addr(&p.size), 0}
	return step{
		proc: v.LaunchKernel, keep: p,
		args: []uintptr{fn, uintptr(l.grid[0]), uintptr(l.grid[1]), uintptr(l.grid[2]), uintptr(l.block), 1, 1,
			uintptr(l.shared), stream, 0, nv.Addr(&p.extra)},
		explain: func(code int32) error {
			return fmt.Errorf("kernel %s of %s: %w", l.kernel, l.unit, v.Check("cuLaunchKernel", code))
		},
	}, nil
}

// algoKey is everything that the choice of an algorithm may depend on.
type algoKey struct{ canonical nv.Product }

// scalars are the factors of a product.
type scalars struct {
	alpha, beta float32
	plan        *nv.Plan
}

// matmul binds a product to cublasLt.
func (d *Device) matmul(p *product, s device.Stream) (step, error) {
	lt, handle := d.lib.Lt, d.work.lt
	at := func(o device.Operand) uintptr { return d.base(o.Tier) + uintptr(o.Addr) }
	desc := p.describe(at)
	extra := at(p.extra())
	algo, err := d.algorithm(canonical(desc), extra)
	if err != nil {
		return step{}, err
	}
	plan, err := lt.Plan(desc, extra)
	if err != nil {
		return step{}, err
	}
	d.plans = append(d.plans, plan)
	if a, ok := d.choice(choiceKey{desc, p.added()}); !ok || plan.Adopt(handle, a, workspaceBytes) != nil {
		if err := plan.Adopt(handle, algo, workspaceBytes); err != nil {
			d.refuse(p, err) // also if another product takes its place: its bits are not those of other extents
			return step{}, err
		}
	}
	k := &scalars{alpha: 1, plan: plan}
	c := p.y
	if !p.res.Absent() {
		c = p.res
	}
	if p.added() {
		k.beta = 1
	}
	return step{
		proc: lt.Matmul, keep: k,
		args:    plan.Args(handle, nv.Operands{Alpha: &k.alpha, Beta: &k.beta, A: at(p.b), B: at(p.a), C: at(c), D: at(p.y), Workspace: d.workspace, Bytes: workspaceBytes}, d.work.streams[s]),
		explain: func(code int32) error { return lt.Check("Matmul", code) },
	}, nil
}

// algorithm returns the library's choice for a product; each is chosen once. The address of what the
// epilogue reads is aligned as the key says and no better, since the choice may depend on that.
func (d *Device) algorithm(p nv.Product, extra uintptr) (algorithm, error) {
	if a, ok := d.algos[algoKey{p}]; ok {
		return a, nil
	}
	plan, err := d.lib.Lt.Plan(p, extra&^4095+uintptr(p.Align))
	if err != nil {
		return algorithm{}, err
	}
	defer plan.Close()
	list, err := plan.Algorithms(d.work.lt, p, workspaceBytes, 1)
	if err != nil {
		return algorithm{}, err
	}
	d.algos[algoKey{p}] = list[0]
	return list[0], nil
}
