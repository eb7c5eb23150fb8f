package cuda

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cuda/kernels"
	"github.com/athanor-llm/athanor/device/cuda/nv"
	"github.com/athanor-llm/athanor/device/link"
	"github.com/athanor-llm/athanor/graph"
)

// One GPU's share of the operators between ranks. Each GPU writes only to its own
// memory and fetches from the others'. Sums are added in group order, so they are
// bit-equal to the CPU's.
//
//	all_gather      fetch the others' parts
//	reduce_scatter  sum this rank's part of all sources
//	all_reduce      a reduce_scatter of equal parts in place, a rendezvous, and
//	                fetch the others' parts
//	all_to_all      fetch what the others have of this rank's
//	recv            fetch the sender's matrix
//
// With peer access, which is enabled when calls are prepared, kernels read other GPUs' memory directly
// and copy engines fetch over the link between the two. Without it, the driver copies through the host,
// and sums are made of pieces that were copied into staging memory. Data of members on other hosts
// arrives in blocks instead of by a copy (far.go).

// exchange is a prepared call between ranks.
type exchange struct {
	call     device.Call
	device   *Device // nil: of a rank in another process
	meeting  *meeting
	member   int     // its position in the meeting
	index    int     // among the member's calls of this meeting
	dst, src uintptr // addresses of the operands; 0: absent
	received int64
	stream   uintptr // where its steps run
	phases   []phase // between rendezvous; built on the first run

	// With members in other processes.
	header []byte // tells other processes what the call is
	lane   *lane
	pipes  []*link.Pipe // by member; nil: in this process
	wire   *wire        // instead of lane and pipes
}

// phase is what happens between two rendezvous.
type phase struct {
	steps  []step
	voyage *voyage // nil: all members are in this process
}

// join prepares a call between ranks.
func (d *Device) join(c *device.Call) (*exchange, error) {
	f, rank := d.options.Fabric, d.options.Rank
	if f == nil {
		return nil, errors.New("this GPU is not joined to others; hint: set Options.Fabric")
	}
	if err := device.CheckRank(c, rank, f.Ranks()); err != nil {
		return nil, err
	}
	if err := d.peers.connect(d, c); err != nil {
		return nil, err
	}
	e := &exchange{call: *c, device: d, received: device.Received(c, rank), stream: d.work.streams[c.Stream]}
	if err := d.cross(e); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	m, err := f.meetingOf(c, rank)
	if err != nil {
		return nil, err
	}
	e.meeting, e.member = m, slices.Index(m.ranks, rank)
	e.call.Args, e.call.Peers = slices.Clone(c.Args), slices.Clone(c.Peers)
	at := [2]uintptr{}
	for i, o := range c.Args {
		if !o.Absent() {
			at[i] = d.arenas.at(o)
		}
	}
	e.dst, e.src = at[0], at[1]
	if c.Op == graph.Send || c.Op == graph.AllReduce {
		e.src = e.dst
	}
	e.index = len(m.calls[e.member])
	m.calls[e.member] = append(m.calls[e.member], e)
	err = f.tell(e)
	f.changed.Broadcast()
	return e, err
}

// exchange runs a call between ranks, which begins when all members have arrived.
func (w *worker) exchange(n int32, c *call) error {
	e := c.exchange
	if e.phases == nil {
		if err := e.resolve(); err != nil {
			return err
		}
	}
	if e.wire != nil {
		return w.throughWire(c) // rendezvous are the library's
	}
	for i := range e.phases {
		if err := w.meet(c); err != nil {
			return err
		}
		if err := w.phase(n, c, &e.phases[i], i == 0 && w.times(c)); err != nil {
			return err
		}
	}
	w.stats.Network[c.op] += e.received
	return w.meet(c)
}

// phase does what comes between two rendezvous. If timed, its start is recorded once all members have arrived.
func (w *worker) phase(n int32, c *call, p *phase, timed bool) error {
	v := p.voyage
	if v != nil {
		if err := w.embark(n, c, v); err != nil {
			return err
		}
	}
	if timed {
		if v != nil {
			if err := w.attend(c, v.lane, v.lane.begun); err != nil {
				return err
			}
		}
		if err := w.ask("cuEventRecord", w.d.driver.EventRecord, c.start, w.streams[c.stream]); err != nil {
			return err
		}
	}
	if v != nil {
		return w.attend(c, v.lane, v.lane.done)
	}
	return w.take(p.steps)
}

// meet makes the call's stream wait until the streams of all members in this process have arrived.
func (w *worker) meet(c *call) error {
	d, m, s := w.d, c.exchange.meeting, w.streams[c.stream]
	if f := d.options.Fabric; f.down.Load() {
		return f.lost
	}
	m.count[c.exchange.member]++
	n := uintptr(m.count[c.exchange.member])
	if err := w.ask("cuStreamWriteValue32", d.driver.StreamWriteValue32, s, flagAddress(m.flags[c.exchange.member]), n, 0); err != nil {
		return err
	}
	for i, f := range m.flags {
		if i == c.exchange.member || f == nil {
			continue
		}
		if err := w.ask("cuStreamWaitValue32", d.driver.StreamWaitValue32, s, flagAddress(f), n, nv.WaitAtLeast); err != nil {
			return err
		}
	}
	return nil
}

// resolve finds the partners' operands and builds the steps, on the worker.
func (e *exchange) resolve() error {
	parts, err := e.device.options.Fabric.partners(e)
	if err != nil {
		return err
	}
	if e.wire != nil {
		return e.resolveOver(parts)
	}
	switch e.call.Op {
	case graph.AllGather:
		e.phases = []phase{{steps: e.gather(parts)}}
	case graph.ReduceScatter:
		var at, n int64
		for _, p := range parts[:e.member] {
			at += p.call.Args[graph.ReduceScatterDst].Bytes()
		}
		n = e.call.Args[graph.ReduceScatterDst].Bytes()
		sum, err := e.sum(parts, e.dst, at, n, e.call.Attr.Acc)
		if err != nil {
			return err
		}
		e.phases = []phase{{steps: sum}}
	case graph.AllReduce:
		lo, n := e.partOf(e.member, len(parts))
		sum, err := e.sum(parts, e.dst+uintptr(lo), lo, n, false)
		if err != nil {
			return err
		}
		var rest []step
		for i := 1; i < len(parts); i++ {
			p := parts[(e.member+i)%len(parts)]
			lo, n := e.partOf(p.member, len(parts))
			rest = append(rest, e.fetch(e.dst+uintptr(lo), p, p.dst+uintptr(lo), n)...)
		}
		e.phases = []phase{{steps: sum}, {steps: inRounds(rest)}}
	case graph.AllToAll:
		e.phases = []phase{{steps: e.cross(parts)}}
	case graph.Recv:
		e.phases = []phase{{steps: e.receive(parts[0])}}
	default: // the sender only waits
		e.phases = []phase{{}}
	}
	if e.lane != nil {
		e.load(parts)
	}
	return nil
}

// partOf returns member i's part of an all-reduce: its first byte and its length in
// bytes.
func (e *exchange) partOf(i, members int) (at, bytes int64) {
	x := e.call.Args[graph.AllReduceX]
	lo, hi := device.Part(x.Rows*x.Cols, i, members)
	return int64(lo) * x.DType.Size(), int64(hi-lo) * x.DType.Size()
}

// fetch copies bytes from a member's memory to this rank's.
func (e *exchange) fetch(dst uintptr, from *exchange, src uintptr, bytes int64) []step {
	if from.device == nil {
		return e.blocks(from.member, dst, 1, bytes, bytes)
	}
	if bytes == 0 || dst == src {
		return nil
	}
	d := e.device
	return []step{{
		proc: d.driver.MemcpyPeerAsync, args: []uintptr{dst, d.work.context, src, from.device.work.context, uintptr(bytes), e.stream},
		explain: func(code int32) error { return d.driver.Check("cuMemcpyPeerAsync", code) },
	}}
}

// gather starts with the next member, so that the members do not all fetch from the
// same one.
func (e *exchange) gather(parts []*exchange) (list []step) {
	at := make([]int64, len(parts)+1)
	for i, p := range parts {
		at[i+1] = at[i] + p.sourceBytes()
	}
	for i := range parts {
		p := parts[(e.member+1+i)%len(parts)]
		list = append(list, e.fetch(e.dst+uintptr(at[p.member]), p, p.src, p.sourceBytes())...)
	}
	return inRounds(list)
}

// sourceBytes returns the size of a member's contribution to a gather.
func (e *exchange) sourceBytes() int64 {
	if len(e.call.Args) <= graph.AllGatherSrc || e.call.Args[graph.AllGatherSrc].Absent() {
		return 0
	}
	return e.call.Args[graph.AllGatherSrc].Bytes()
}

// receive copies the sender's rows.
func (e *exchange) receive(from *exchange) (list []step) {
	to, o := e.call.Args[graph.RecvDst], from.call.Args[graph.SendSrc]
	if to.Contiguous() && o.Contiguous() {
		return e.fetch(e.dst, from, from.src, o.Bytes())
	}
	size := o.DType.Size()
	if from.device == nil {
		return e.blocks(from.member, e.dst, int64(to.Rows), int64(to.Cols)*size, int64(to.Stride)*size)
	}
	for r := range int64(o.Rows) {
		list = append(list, e.fetch(e.dst+uintptr(r*int64(to.Stride)*size), from, from.src+uintptr(r*int64(o.Stride)*size), int64(o.Cols)*size)...)
	}
	return list
}

// mostSources is the number of operands of one sum in kernels/sum.cu.
const mostSources = 8

// sum adds n bytes from byte at of all members' sources. If there are more sources than
// one kernel takes, or if they must be staged, it works piece by piece through staging
// memory.
func (e *exchange) sum(parts []*exchange, dst uintptr, at, n int64, acc bool) ([]step, error) {
	d := e.device
	direct := !slices.ContainsFunc(parts, func(p *exchange) bool { return p.device != nil && !d.peers.reach[p.device.work.context] })
	slots, piece := int64(1), n // the partial sum, then sources
	if !direct || e.lane != nil {
		slots += mostSources
	}
	switch {
	case e.lane != nil:
		piece = d.options.Fabric.slot
	case !direct || len(parts) > mostSources:
		piece = stagingBytes / slots &^ 255
	}
	var list []step
	for lo := int64(0); lo < n; lo += piece {
		m := min(piece, n-lo)
		for first := 0; first < len(parts); {
			var sources []uintptr
			if first > 0 {
				sources = append(sources, d.peers.staging)
			}
			for ; first < len(parts) && len(sources) < mostSources; first++ {
				p := parts[first]
				src := p.src + uintptr(at+lo)
				if p.device == nil || !direct && p != e {
					local := d.peers.staging + uintptr(piece*int64(1+len(sources)))
					list = append(list, e.fetch(local, p, src, m)...)
					src = local
				}
				sources = append(sources, src)
			}
			out, last := d.peers.staging, first == len(parts)
			if last {
				out = dst + uintptr(lo)
			}
			s, err := e.add(out, sources, m, acc && last)
			if err != nil {
				return nil, err
			}
			list = append(list, s)
		}
	}
	return list, nil
}

// add builds one launch: out (+)= the sum of sources.
func (e *exchange) add(out uintptr, sources []uintptr, bytes int64, acc bool) (step, error) {
	d, dt := e.device, e.call.Args[len(e.call.Args)-1].DType
	n, v, units := bytes/dt.Size(), 16/dt.Size(), sumUnits(dt)
	for _, p := range append([]uintptr{out}, sources...) {
		if p%16 != 0 || bytes%16 != 0 {
			v = 1
		}
	}
	a := args{t: [9]mat{{uint64(out), n, 1, int32(n)}}, n: [8]int32{int32(len(sources))}}
	for i, p := range sources {
		a.t[1+i] = mat{uint64(p), n, 1, int32(n)}
	}
	if acc {
		a.accum = 1
	}
	return d.code.step(&launch{unit: units[v > 1], kernel: "sum", grid: [3]int64{blocks(n/v, threads), 1, 1}, block: threads, args: a}, e.stream)
}

// sumUnits returns the sum kernels, vectorised and not. Which one applies depends on
// the addresses of the others' operands.
func sumUnits(dt graph.DType) map[bool]kernels.Unit {
	return map[bool]kernels.Unit{
		false: {File: "sum", Defines: fmt.Sprintf("T0=%s VEC=1", dt)},
		true:  {File: "sum", Defines: fmt.Sprintf("T0=%s VEC=%d", dt, 16/dt.Size())},
	}
}

// stagingBytes is the memory for sums that cannot be made in place.
const stagingBytes = 32 << 20

// peers is how a device reaches the memory of others.
type peers struct {
	reach   map[uintptr]bool // by context: whether kernels and copies here can access its memory directly
	staging uintptr          // for sums over ranks, if they need it
}

// connect sets up what a call between ranks needs besides its operands: access to the others' memory, and staging
// memory if it may have to add up pieces. Both wait for the GPU, so they must come before a step.
func (p *peers) connect(d *Device, c *device.Call) error {
	ranks := device.Members(c, d.options.Rank)
	members, err := d.options.Fabric.members(ranks)
	if err != nil {
		return err
	}
	direct := len(members) == len(ranks)
	for _, o := range members {
		if err := p.enable(&d.work, &o.work); err != nil {
			return err
		}
		direct = direct && p.reach[o.work.context]
	}
	sums := c.Op == graph.ReduceScatter || c.Op == graph.AllReduce
	gaps := d.options.Fabric.nccl != nil && (device.IsMessage(c.Op) || c.Op == graph.AllToAll) && !direct
	if p.staging == 0 && (sums && (!direct || len(members) > mostSources) || gaps) {
		if p.staging, err = d.driver.Word("cuMemAlloc", d.driver.MemAlloc, stagingBytes); err != nil {
			return fmt.Errorf("allocate %d bytes on the GPU for sums over ranks: %w", stagingBytes, err)
		}
	}
	return nil
}

// enable lets a GPU's kernels and copies access another GPU's memory, if the hardware can. Access
// the other way must be enabled separately.
func (p *peers) enable(w, o *worker) error {
	if _, known := p.reach[o.context]; known {
		return nil
	}
	var can int32
	v := w.d.driver
	if err := v.Check("cuDeviceCanAccessPeer", v.DeviceCanAccessPeer(nv.Addr(&can), uintptr(w.device), uintptr(o.device))); err != nil {
		return err
	}
	if can != 0 {
		if code := v.CtxEnablePeerAccess(o.context, 0); code != nv.PeerEnabled && code != nv.Success {
			return v.Check("cuCtxEnablePeerAccess", code)
		}
	}
	p.reach[o.context] = can != 0
	return nil
}

func flagAddress(f *atomic.Uint32) uintptr { return uintptr(unsafe.Pointer(f)) }
