package cpu

import (
	"errors"
	"slices"
	"time"
	"unsafe"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/clock"
	"github.com/athanor-llm/athanor/internal/float16"
	"github.com/athanor-llm/athanor/kernel/pool"
	"github.com/athanor-llm/athanor/kernel/simd"
)

// One rank's share of the operators between ranks. Each rank writes only to its own
// arena and reads from the others', or from pipes to them (far.go).
//
//	all_gather      dst = s0 | s1 | s2
//	reduce_scatter  rank 1: dst = (s0 + s1) + s2, elements of its part
//	all_reduce      a reduce_scatter of equal parts in place, a rendezvous, then
//	                each copies the others' parts: all ranks have the same bits
//	all_to_all      dst = what is this rank's of each source
//	recv            dst = the sender's matrix
//
// A sum is computed block by block in memory that stays in the first-level cache and
// then written, so that a part may overlap a summand. Known weakness: every rank reads
// each element of all sources, where a tree would share partial sums (and add in
// another order).

// exchange is a prepared call between ranks.
type exchange struct {
	call     device.Call
	meeting  *meeting
	member   int    // its position in the meeting
	dst, src []byte // nil: absent
	received int64
	ring     int64 // bytes, see device.Ring
	far      *far  // nil: all members are in this process
}

// join prepares a call between ranks.
func (d *Device) join(c *device.Call) (*exchange, error) {
	f, rank := d.options.Fabric, d.options.Rank
	if f == nil {
		return nil, errors.New("the device is not joined to others; hint: set Options.Fabric")
	}
	if err := device.CheckRank(c, rank, f.Ranks()); err != nil {
		return nil, err
	}
	e := &exchange{call: *c, meeting: f.meetingOf(c, rank), received: device.Received(c, rank)}
	e.call.Args, e.call.Peers = slices.Clone(c.Args), slices.Clone(c.Peers)
	e.member = slices.Index(e.meeting.ranks, rank)
	ring, _ := device.Ring(c)
	e.ring = int64(ring)
	operands := [2][]byte{}
	for i, o := range c.Args {
		if !o.Absent() {
			operands[i] = d.memory(o.Tier, o.Addr, o.End()-o.Addr)
		}
	}
	e.dst, e.src = operands[0], operands[1]
	if c.Op == graph.Send || c.Op == graph.AllReduce {
		e.src = e.dst
	}
	if e.meeting.here == len(e.meeting.ranks) {
		return e, nil
	}
	var err error
	e.far, err = d.reach(e)
	return e, err
}

// exchange runs a call between ranks and returns when it began, which is when all
// members had arrived.
func (s *stream) exchange(e *exchange) (start time.Time, err error) {
	if e.far != nil {
		return s.exchangeFar(e)
	}
	if err := e.meeting.meet(s, e); err != nil {
		return clock.Now(), err
	}
	start, began := e.meeting.at, clock.Now()
	s.startWork()
	switch e.call.Op {
	case graph.AllGather:
		s.gather(e)
	case graph.ReduceScatter:
		s.scatter(e)
	case graph.AllReduce:
		err = s.reduce(e)
	case graph.AllToAll:
		s.cross(e)
	case graph.Recv:
		s.receive(e)
	}
	s.stopWork(began)
	if err != nil {
		return start, err
	}
	s.stats.Network[e.call.Op] += e.received
	s.throttle(start, e.ring)
	return start, e.meeting.meet(s, e)
}

func (s *stream) gather(e *exchange) {
	at := 0
	for _, p := range e.meeting.parts {
		if n := len(p.src); n > 0 {
			if to := e.dst[at : at+n]; &to[0] != &p.src[0] {
				copyBytes(to, p.src)
			}
			at += n
		}
	}
}

func (s *stream) scatter(e *exchange) {
	at := 0
	for _, p := range e.meeting.parts[:e.member] {
		at += len(p.dst)
	}
	s.sum(e, e.dst, at)
}

func (s *stream) reduce(e *exchange) error {
	parts := e.meeting.parts
	size := int(e.call.Args[graph.AllReduceX].DType.Size())
	part := func(i int) (lo, hi int) {
		lo, hi = device.Part(len(e.dst)/size, i, len(parts))
		return lo * size, hi * size
	}
	lo, hi := part(e.member)
	s.sum(e, e.dst[lo:hi], lo)
	if err := e.meeting.meet(s, e); err != nil {
		return err
	}
	for i, p := range parts {
		if i != e.member {
			lo, hi := part(i)
			copyBytes(e.dst[lo:hi], p.dst[lo:hi])
		}
	}
	return nil
}

// cross copies what each member gives this one.
func (s *stream) cross(e *exchange) {
	for _, p := range e.meeting.parts {
		e.takeFrom(p)
	}
}

// takeFrom copies what a member gives this one in an all_to_all.
func (e *exchange) takeFrom(p *exchange) {
	x, y := &e.call.Args[graph.AllToAllDst], &p.call.Args[graph.AllToAllSrc]
	src, dst := device.Crossings(&e.call, p.member, e.member)
	size := int(x.DType.Size())
	for k, b := range src {
		n := b.Cols * size
		for r := range b.Rows {
			to, at := ((dst[k].Row+r)*x.Stride+dst[k].Col)*size, ((b.Row+r)*y.Stride+b.Col)*size
			copyBytes(e.dst[to:to+n], p.src[at:at+n])
		}
	}
}

// receive copies the sender's rows.
func (s *stream) receive(e *exchange) {
	from := e.meeting.parts[0]
	to, o := e.call.Args[graph.RecvDst], from.call.Args[graph.SendSrc]
	size := int(o.DType.Size())
	if o.Contiguous() && to.Contiguous() {
		copyBytes(e.dst, from.src)
		return
	}
	for r := range o.Rows {
		d, a := r*to.Stride*size, r*o.Stride*size
		copyBytes(e.dst[d:d+o.Cols*size], from.src[a:a+o.Cols*size])
	}
}

// ---- sums

const (
	sumTask  = 1 << 18 // bytes of the result per task of a worker
	sumBlock = 1 << 14 // bytes of the result that are summed at a time
)

// adder computes sums on the workers of the pool. Each stream has one.
type adder struct {
	simd    *simd.Set
	blocks  pool.Local[[sumBlock / 4]float64] // per worker, in f64 for its alignment; of bf16 the sum is twice as long
	dst     []byte
	sources [][]byte // as long as dst
	acc     bool
	of      graph.DType
}

// sum sets dst to the sum of all peers' sources, starting at byte at.
func (s *stream) sum(e *exchange, dst []byte, at int) {
	a := &s.adder
	a.dst, a.sources = dst, a.sources[:0]
	for _, p := range e.meeting.parts {
		a.sources = append(a.sources, p.src[at:at+len(dst)])
	}
	last := len(e.call.Args) - 1
	a.acc, a.of = e.call.Attr.Acc, e.call.Args[last].DType
	s.device.pool.Run((len(dst)+sumTask-1)/sumTask, a)
}

// Task sums one piece.
func (a *adder) Task(i, worker int) {
	block := a.blocks.Get(worker)
	lo, hi := i*sumTask, min((i+1)*sumTask, len(a.dst))
	for ; lo < hi; lo += sumBlock {
		end := min(lo+sumBlock, hi)
		single := unsafe.Slice((*float32)(unsafe.Pointer(block)), len(block)*2)
		switch n := end - lo; a.of {
		case graph.F64:
			a.sum64(block[:n/8], lo, end)
		case graph.BF16:
			a.sum16(single[:n/2], lo, end)
		default:
			a.sum32(single[:n/4], lo, end)
		}
	}
}

func (a *adder) sum32(sum []float32, lo, hi int) {
	copy(sum, view[float32](a.sources[0][lo:hi]))
	for _, src := range a.sources[1:] {
		a.simd.Add(sum, view[float32](src[lo:hi]), 0)
	}
	if dst := view[float32](a.dst[lo:hi]); a.acc {
		a.simd.Add(dst, sum, 0)
	} else {
		copy(dst, sum)
	}
}

// sum16 adds in f32 and rounds the sum once. Nothing accumulates bf16.
func (a *adder) sum16(sum []float32, lo, hi int) {
	for i, src := range a.sources {
		for k, x := range view[uint16](src[lo:hi]) {
			if v := float16.FromBF16(x); i == 0 {
				sum[k] = v
			} else {
				sum[k] += v
			}
		}
	}
	a.simd.Narrow(view[uint16](a.dst[lo:hi]), sum)
}

func (a *adder) sum64(sum []float64, lo, hi int) {
	copy(sum, view[float64](a.sources[0][lo:hi]))
	for _, src := range a.sources[1:] {
		for i, x := range view[float64](src[lo:hi]) {
			sum[i] += x
		}
	}
	dst := view[float64](a.dst[lo:hi])
	for i, x := range sum {
		if a.acc {
			x = dst[i] + x
		}
		dst[i] = x
	}
}

// view reinterprets aligned arena memory as numbers.
func view[T float32 | float64 | uint16](b []byte) []T {
	return unsafe.Slice((*T)(unsafe.Pointer(&b[0])), len(b)/int(unsafe.Sizeof(*new(T))))
}
