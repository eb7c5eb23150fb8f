package verify

import (
	"fmt"
	"math/bits"
	"slices"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/program"
)

// Happens-before by vector clocks (Mattern 1989). Streams run in order and waits join
// them, so what is certainly complete before instruction i starts is, per stream, a
// prefix of its instructions: a vector with one number per stream. The vector of i is
// the maximum of those of its stream predecessor and of the instructions it waits for,
// these instructions included.
//
//	i0 copy   h2d              nothing is complete before
//	i1 linear compute wait=i0  h2d is complete up to i0
//	i2 act    compute          compute up to i1, h2d up to i0 (by i1)
//
// Per atom it suffices to remember the last write and, per stream, the last read since:
// every write is ordered after all earlier accesses, and a stream's earlier reads
// precede its later ones.
//
// Buffers share addresses over time. The first access to a buffer in program order
// takes over its bytes: every access to any other buffer that held some of them must
// happen before every access to the new one, and is an error afterwards.
//
// Known weakness: a buffer holds its bytes from its first to its last use; reuse of
// them in gaps between uses is not recognised.

// vector holds per stream 1 + the latest instruction known complete; 0: none.
type vector [device.NumStreams]int32

func (c *vector) join(o *vector) {
	for s := range c {
		c[s] = max(c[s], o[s])
	}
}

// missing returns a stream on which o is ahead of c, or -1.
func (c *vector) missing(o *vector) int {
	for s := range c {
		if c[s] < o[s] {
			return s
		}
	}
	return -1
}

// history is the record of an atom's accesses; instructions count from 1.
type history struct {
	write int32
	reads vector // since that write
}

// tenure is the period in which a buffer holds its bytes.
type tenure struct {
	begun bool
	ended int32  // 1 + the instruction that took its bytes over
	heir  int32  // the buffer that it took them for
	last  vector // latest accesses
	after vector // accesses to the buffers before it
}

type orderCheck struct {
	p       *program.Program
	ly      *layout
	streams []device.Stream // of each instruction, stored compactly
	before  []vector
	tail    vector // latest instruction of each stream
	atoms   []history
	bufs    []tenure
	held    [device.NumTiers]intervals
}

func checkOrder(p *program.Program, ly *layout) error {
	c := &orderCheck{
		p: p, ly: ly,
		streams: make([]device.Stream, len(p.Instrs)),
		before:  make([]vector, len(p.Instrs)),
		atoms:   make([]history, ly.base[len(p.Buffers)]),
		bufs:    make([]tenure, len(p.Buffers)),
	}
	for t := range c.held {
		c.held[t].init(p, device.Tier(t))
	}
	for b := range p.Buffers {
		if !p.Buffers[b].Persistent {
			continue
		}
		// Initially only persistent buffers hold bytes.
		if other := c.held[p.Buffers[b].Tier].take(p, b, nil); other >= 0 {
			return fmt.Errorf("persistent buffers %s and %s overlap; hint: place the program again", p.Buffers[other].Name, p.Buffers[b].Name)
		}
		c.bufs[b].begun = true
	}
	for i := range p.Instrs {
		if err := c.instr(i); err != nil {
			return err
		}
	}
	return nil
}

func (c *orderCheck) instr(i int) error {
	in := &c.p.Instrs[i]
	now := &c.before[i]
	if prev := c.tail[in.Stream]; prev > 0 {
		*now = c.before[prev-1]
		now[in.Stream] = prev
	}
	for _, w := range in.Waits {
		now.join(&c.before[w])
		s := c.p.Instrs[w].Stream
		now[s] = max(now[s], int32(w)+1)
	}
	c.tail[in.Stream], c.streams[i] = int32(i)+1, in.Stream
	for j, s := range c.ly.operands(i) {
		if s.blocks == 0 {
			continue
		}
		if err := c.buffer(i, j); err != nil {
			return err
		}
		reads, writes := accessOf(in, j)
		for b := range s.blocks {
			for k := range s.bands {
				h := &c.atoms[s.at(b, k)]
				if other := c.conflict(h, now, int32(i)+1, writes); other > 0 {
					return c.race(i, j, int(other)-1)
				}
				if writes {
					*h = history{write: int32(i) + 1}
				} else if reads {
					h.reads[in.Stream] = int32(i) + 1
				}
			}
		}
	}
	return nil
}

// conflict returns an access to the atom that is not ordered before instruction self
// (counted from 1); 0 if there is none. checkOperands handles accesses by self.
func (c *orderCheck) conflict(h *history, now *vector, self int32, writes bool) int32 {
	if w := h.write; w != 0 && w != self && now[c.streams[w-1]] < w {
		return w
	}
	if writes {
		for s, r := range h.reads {
			if r > now[s] && r != self {
				return r
			}
		}
	}
	return 0
}

// race returns the error of a conflict of instruction i, operand j, with an earlier
// instruction.
func (c *orderCheck) race(i, j, other int) error {
	_, writes := accessOf(&c.p.Instrs[i], j)
	does, did := "is read", "written"
	if writes {
		does = "is written"
		if c.onlyReads(i, j, other) {
			did = "read"
		}
	}
	in := &c.p.Instrs[other]
	return operandFault(c.p, i, j, fmt.Sprintf("let it wait for i%d", other), "%s while it may still be %s by i%d (%s on %s)", does, did, other, in.Op, in.Stream)
}

// onlyReads reports whether the instruction other only reads the buffer of operand j of
// instruction i.
func (c *orderCheck) onlyReads(i, j, other int) bool {
	in := &c.p.Instrs[other]
	for k, r := range in.Args {
		if _, writes := accessOf(in, k); writes && !r.Absent() && r.Buf == c.p.Instrs[i].Args[j].Buf {
			return false
		}
	}
	return true
}

// buffer checks and records that operand j of instruction i uses its buffer. The first
// use takes its bytes over from the buffers that hold them.
func (c *orderCheck) buffer(i, j int) error {
	in, now := &c.p.Instrs[i], &c.before[i]
	buf := in.Args[j].Buf
	t := &c.bufs[buf]
	if t.ended > 0 {
		return operandFault(c.p, i, j, "place the program again", "was overwritten by buffer %s from i%d on", c.p.Buffers[t.heir].Name, t.ended-1)
	}
	if !t.begun {
		if c.p.Buffers[buf].Addr < 0 {
			return operandFault(c.p, i, j, "place the program", "has no address")
		}
		t.begun = true
		kept := c.held[c.p.Buffers[buf].Tier].take(c.p, buf, func(other int) {
			old := &c.bufs[other]
			if old.ended == 0 {
				old.ended, old.heir = int32(i)+1, int32(buf)
			}
			t.after.join(&old.last)
		})
		if kept >= 0 {
			return operandFault(c.p, i, j, "place the program again", "overlaps persistent buffer %s", c.p.Buffers[kept].Name)
		}
	}
	if s := now.missing(&t.after); s >= 0 {
		other := int(t.after[s]) - 1
		return operandFault(c.p, i, j, fmt.Sprintf("let it wait for i%d", other),
			"takes bytes that i%d (%s on %s) may still be using for another buffer", other, c.p.Instrs[other].Op, c.p.Instrs[other].Stream)
	}
	t.last[in.Stream] = int32(i) + 1
	return nil
}

// intervals record which buffer last held which bytes of one tier, as segments between
// addresses at which some buffer begins or ends. A buffer that lost some of its bytes
// still owns its other segments, since whoever takes those must also wait for it.
// Segment starts are bits over the sorted addresses, so that all operations scan a few
// words.
type intervals struct {
	edges []int64  // addresses at which buffers begin and end, ascending
	marks []uint64 // bit k: a segment begins at edges[k]
	owner []int32  // its buffer, or -1
}

func (v *intervals) init(p *program.Program, tier device.Tier) {
	v.edges = append(v.edges, 0)
	for i := range p.Buffers {
		if b := &p.Buffers[i]; b.Tier == tier && b.Addr >= 0 {
			v.edges = append(v.edges, b.Addr, b.Addr+b.Size)
		}
	}
	slices.Sort(v.edges)
	v.edges = slices.Compact(v.edges)
	v.marks = make([]uint64, len(v.edges)/64+1)
	v.owner = make([]int32, len(v.edges))
	v.marks[0], v.owner[0] = 1, -1
}

// take gives buffer buf its bytes and calls lost for each buffer that held some of
// them, perhaps repeatedly. It stops at a persistent buffer and returns it; else -1.
func (v *intervals) take(p *program.Program, buf int, lost func(other int)) int {
	b := &p.Buffers[buf]
	from, to := v.split(b.Addr), v.split(b.Addr+b.Size)
	for k := from; k >= 0 && k < to; k = v.next(k + 1) {
		if o := int(v.owner[k]); o >= 0 {
			if p.Buffers[o].Persistent {
				return o
			}
			lost(o)
		}
		if k > from {
			v.marks[k/64] &^= 1 << (k % 64)
		}
	}
	v.owner[from] = int32(buf)
	return -1
}

// split starts a segment at an address and returns its number.
func (v *intervals) split(addr int64) int {
	k, _ := slices.BinarySearch(v.edges, addr)
	if v.marks[k/64]>>(k%64)&1 == 0 {
		v.marks[k/64] |= 1 << (k % 64)
		v.owner[k] = v.owner[v.previous(k)]
	}
	return k
}

// next returns the first mark at or after k, previous the last one before k; -1 if
// there is none.
func (v *intervals) next(k int) int {
	for w := k / 64; w < len(v.marks); w++ {
		m := v.marks[w]
		if w == k/64 {
			m &= ^uint64(0) << (k % 64)
		}
		if m != 0 {
			return w*64 + bits.TrailingZeros64(m)
		}
	}
	return -1
}

func (v *intervals) previous(k int) int {
	for w := k / 64; w >= 0; w-- {
		m := v.marks[w]
		if w == k/64 {
			m &= 1<<(k%64) - 1
		}
		if m != 0 {
			return w*64 + 63 - bits.LeadingZeros64(m)
		}
	}
	return -1
}
