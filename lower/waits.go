package lower

import (
	"cmp"
	"slices"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/program"
)

// addWaits orders instructions across streams, after addresses are known. An instruction
// waits for
//
//   - the last writes of what it reads, and the last accesses of what it writes;
//   - the last accesses to the bytes of a buffer that it is the first to use.
//
// Waits implied by others are dropped. The clock of an instruction says, per stream, up
// to which instruction everything is known to be complete when it starts: the join of
// the clocks of its stream predecessor and of the instructions that it waits for. A
// stream runs in order, so one number per stream suffices.
//
//	i7  h2d      copy w1 <- host
//	i8  compute  linear y <- x, w1     wait=i7
//	i9  compute  linear z <- y, w1     (i7 follows from i8, same stream)
func addWaits(b *builder) {
	p := b.p
	w := &waiter{p: p, history: make([][]access, len(p.Buffers)), inherited: b.scratch.clocks.take(len(p.Buffers)), begun: make([]bool, len(p.Buffers))}
	w.accesses, w.clocks = &b.scratch.accesses, b.scratch.clocks.take(len(p.Instrs))
	for i := range w.last {
		w.last[i] = -1
	}
	for i := range p.Instrs {
		w.instr(i)
	}
}

// clock holds per stream one more than the number of the latest instruction known to be
// complete.
type clock [device.NumStreams]int

func (c *clock) join(d *clock) {
	for s := range c {
		c[s] = max(c[s], d[s])
	}
}

// access is the latest read or write of elements [lo, hi) of a buffer on a stream.
type access struct {
	instr  int
	lo, hi int
	stream device.Stream
	write  bool
}

// occupant says which buffer last held bytes [lo, hi) of a tier.
type occupant struct {
	lo, hi int64
	buf    int
}

// few is how many accesses of a buffer most often matter at the same time.
const few = 4

type waiter struct {
	p         *program.Program
	clocks    []clock // at each instruction's start
	last      [device.NumStreams]int
	history   [][]access // per buffer
	begun     []bool
	inherited []clock // per buffer: what must be complete before it is written
	tiers     [device.NumTiers][]occupant
	accesses  *slab[access]
	waits     slab[int] // of the program's instructions
	// Reused by each instruction.
	deps  []int
	fresh []occupant
}

func (w *waiter) instr(i int) {
	in := &w.p.Instrs[i]
	c := clock{}
	if prev := w.last[in.Stream]; prev >= 0 {
		c = w.clocks[prev]
		c[in.Stream] = prev + 1
	}
	w.last[in.Stream] = i
	w.clocks[i] = w.need(i, c)
	specs := in.Op.Info().Args
	for k, r := range in.Args {
		if r.Absent() {
			continue
		}
		if specs[k].Access != graph.Write && !(specs[k].Access == graph.Sum && !in.Attr.Acc) {
			w.record(i, r, false)
		}
		if writes(in, specs[k].Access) {
			w.record(i, r, true)
		}
	}
}

// writes reports whether an instruction writes an operand with some access. The loss overwrites logits with their gradient
// only if that is wanted.
func writes(in *program.Instr, access graph.Access) bool {
	return access != graph.Read && (access != graph.Update || in.Op != graph.CrossEntropy && in.Op != graph.Distil || in.Attr.Grad)
}

// need finds what instruction i depends on, sets its waits and returns its clock.
func (w *waiter) need(i int, c clock) clock {
	deps := w.depend(i, &c)
	// Later instructions first: they tend to imply the earlier ones.
	slices.SortFunc(deps, func(a, b int) int { return cmp.Compare(b, a) })
	waits := deps[:0]
	for _, d := range deps {
		s := w.p.Instrs[d].Stream
		if c[s] > d {
			continue
		}
		waits = append(waits, d)
		c.join(&w.clocks[d])
		c[s] = max(c[s], d+1)
	}
	in := &w.p.Instrs[i]
	in.Waits = nil
	if len(waits) > 0 {
		in.Waits = w.waits.take(len(waits))
		copy(in.Waits, waits)
		slices.Reverse(in.Waits)
	}
	return c
}

// depend lists the instructions of other streams that instruction i depends on, without those that are complete at c. The
// list lasts until the next call.
func (w *waiter) depend(i int, c *clock) []int {
	in := &w.p.Instrs[i]
	deps := w.deps[:0]
	specs := in.Op.Info().Args
	for k, r := range in.Args {
		if r.Absent() {
			continue
		}
		writes := writes(in, specs[k].Access)
		if !w.begun[r.Buf] {
			w.begin(r.Buf)
		}
		if writes {
			for s, d := range w.inherited[r.Buf] {
				if d > c[s] && device.Stream(s) != in.Stream {
					deps = append(deps, d-1)
				}
			}
		}
		lo, hi := r.Span()
		for _, a := range w.history[r.Buf] {
			if (writes || a.write) && a.lo < hi && lo < a.hi && a.instr >= c[a.stream] && a.stream != in.Stream {
				deps = append(deps, a.instr)
			}
		}
	}
	w.deps = deps
	return deps
}

// begin lets a buffer take over its bytes: it inherits the last accesses of the buffers
// that held them.
func (w *waiter) begin(buf int) {
	w.begun[buf] = true
	b := &w.p.Buffers[buf]
	lo, hi := b.Addr, b.Addr+b.Size
	occ := w.tiers[b.Tier]
	first, _ := slices.BinarySearchFunc(occ, lo, func(o occupant, lo int64) int { return cmp.Compare(o.hi, lo+1) })
	end := first
	fresh := w.fresh[:0]
	for ; end < len(occ) && occ[end].lo < hi; end++ {
		o := occ[end]
		for _, a := range w.history[o.buf] {
			w.inherited[buf][a.stream] = max(w.inherited[buf][a.stream], a.instr+1)
		}
		w.inherited[buf].join(&w.inherited[o.buf])
		if o.lo < lo {
			fresh = append(fresh, occupant{o.lo, lo, o.buf})
		}
	}
	fresh = append(fresh, occupant{lo, hi, buf})
	if end > first {
		if o := occ[end-1]; o.hi > hi {
			fresh = append(fresh, occupant{hi, o.hi, o.buf})
		}
	}
	w.tiers[b.Tier] = slices.Replace(occ, first, end, fresh...)
	w.fresh = fresh
}

// record notes an access and drops the earlier ones that it subsumes: those of the same
// stream, kind and range, and, for a write, all that it covers, since it waited for
// them.
func (w *waiter) record(i int, r program.Region, write bool) {
	lo, hi := r.Span()
	stream := w.p.Instrs[i].Stream
	h := w.history[r.Buf]
	if h == nil {
		h = w.accesses.take(few)[:0]
	}
	whole := r.Cols == r.Stride || r.Rows == 1 // the range has no gaps
	h = slices.DeleteFunc(h, func(a access) bool {
		same := a.lo == lo && a.hi == hi && a.write == write && a.stream == stream
		return same || write && whole && lo <= a.lo && a.hi <= hi
	})
	w.history[r.Buf] = append(h, access{i, lo, hi, stream, write})
}
