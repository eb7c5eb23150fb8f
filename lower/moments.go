package lower

import (
	"slices"
	"strconv"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
)

// Where moments are. In fp32 and bf16 element e of a chunk is element e of each record of the buffer of its state. Moments in
// 8 bits take more bytes than elements, and those of small parameters stay in fp32 (see graph.MomentBlock). So a chunk has two
// such buffers, in each of which are the moments of some parameters, one after the other:
//
//	chunk     [ wq ......... | bias | wo ....... | norm ]
//	state     [ blocks of wq | blocks of wo ]   u8, for each moment
//	small     [ bias | norm ]                   f32, for each moment
//
// Blocks begin anew with each parameter, and no shard ends within one, so that they are the same under any plan.

// momentPlaces says where the moments of each parameter are.
type momentPlaces struct {
	packs    []bool // per parameter: its moments are in 8 bits; nil: none are
	at       []int  // per parameter: where in its buffer they would begin if all of its chunk were there
	offsetOf []int  // per parameter: its first element in its chunk
}

func newMomentPlaces(g *graph.Graph, pl *plan.Plan, offsetOf []int) momentPlaces {
	if pl.State != plan.PackedMoments {
		return momentPlaces{}
	}
	m := momentPlaces{make([]bool, len(g.Params)), make([]int, len(g.Params)), offsetOf}
	for _, ch := range pl.Chunks {
		blocks, small := 0, 0
		for i := ch.First; i < ch.Last; i++ {
			n := int(g.Stored(i).Elems())
			if m.packs[i] = n >= graph.PackedLeast; m.packs[i] {
				m.at[i] = blocks
				blocks += graph.PackedMoments(n)
			} else {
				m.at[i] = small
				small += n
			}
		}
	}
	return m
}

// packed reports whether the moments of a parameter are in 8 bits.
func (m *momentPlaces) packed(i int) bool { return m.packs != nil && m.packs[i] }

// rangeOf returns the elements of their buffer that the moments of a part of a chunk take, which is of one parameter, or of
// several small ones.
func (m *momentPlaces) rangeOf(q part) (lo, hi int) {
	first, from := q.lo-m.offsetOf[q.param], m.at[q.param]
	if !m.packs[q.param] {
		return from + first, from + first + q.hi - q.lo
	}
	return from + graph.PackedMoments(first), from + graph.PackedMoments(q.hi-m.offsetOf[q.param])
}

// choose returns the parts whose moments are in 8 bits, or the others.
func (m *momentPlaces) choose(parts []part, packed bool) []part {
	return slices.DeleteFunc(parts, func(q part) bool { return m.packs[q.param] != packed })
}

// splitsBlock reports whether element e of a chunk is in the midst of a block of moments.
func splitsBlock(geo *geometry, c, e int) bool {
	for i := geo.pl.Chunks[c].First; i < geo.pl.Chunks[c].Last; i++ {
		if at := e - geo.offsetOf[i]; at > 0 && at < int(geo.g.Stored(i).Elems()) {
			return geo.moments.packed(i) && at%graph.MomentBlock != 0
		}
	}
	return false
}

// moment returns the region of the k-th moment of a part of a chunk, where moments are in 8 bits.
func (st *step) moment(h *weightHome, k int, q part) program.Region {
	s := h.small[k]
	if st.moments.packed(q.param) {
		s = h.moments[k]
	}
	return s.region(st.moments.rangeOf(q))
}

// momentOf returns the region of the k-th moment of a call of an update.
func (st *step) momentOf(h *weightHome, k int, q updateCall) program.Region {
	if st.pl.State == plan.PackedMoments {
		return st.moment(h, k, q.part)
	}
	return h.moments[k].matrix(q)
}

// homePacked allocates the buffer of the moments of those parameters of a piece that are in 8 bits, or of the others, and returns
// where each moment is.
func (b *builder) homePacked(c int, p piece, packed bool, kinds []optimizer.Kind) (homes [optimizer.MostMoments]store) {
	st, tier := b.st, b.st.pl.Chunks[c].State
	name, dt := "state.small", graph.F32
	if packed {
		name, dt = "state", graph.U8
	}
	for k := range homes {
		homes[k].buf = -1
	}
	parts := st.moments.choose(st.splitByParam(c, p), packed)
	if len(parts) == 0 {
		return homes
	}
	first, _ := st.moments.rangeOf(parts[0])
	_, end := st.moments.rangeOf(parts[len(parts)-1])
	var atoms []atom
	for _, q := range parts {
		ends := st.atomsIn(c, piece{q.lo, q.hi, false})
		for i, e := range ends[:len(ends)-1] {
			lo, _ := st.moments.rangeOf(part{q.param, e, ends[i+1]})
			atoms = append(atoms, atom{lo - first, e, false})
		}
	}
	buf := program.Buffer{Name: name + ".c" + strconv.Itoa(c), Tier: tier, Class: program.ClassState, DType: dt, Rows: 1}
	n := b.layRecords(&buf, c, atoms, end-first, kinds)
	at := b.buffer(buf)
	for k := range kinds {
		homes[k] = store{at, k*n - first}
	}
	return homes
}
