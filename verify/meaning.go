package verify

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/program"
)

// summary is what a step leaves behind on all ranks together: the content of every part
// of every parameter's homes and of the result buffers (losses, norms, caches). Results
// with token rows are split into parts too, by row of the global batch. A result that
// is a single f64 is a sum to which each rank that holds it contributes; readers add
// the contributions in rank order. Anything else held by several ranks must be equal on
// all of them.
type summary map[string]Value

// meaning executes the programs symbolically. It requires programs that Verify accepts;
// addresses do not matter.
func (rs *ranks) meaning(unordered bool) (summary, error) {
	xs := rs.executions(unordered)
	if err := xs.run(); err != nil {
		return nil, err
	}
	return xs.summary()
}

// Equality says how closely programs agree.
type Equality uint8

const (
	Different Equality = iota
	Reordered          // the same terms in every sum, with multiplicity, in any order
	Exact              // the same bits
)

func (e Equality) String() string {
	return [...]string{"different", "equal up to the order of sums", "exactly equal"}[e]
}

// Equivalent proves that the programs of several ranks produce the same results as a
// reference, for example the plain single-rank program of the same graph. "Same" is
// bit-equal, or equal up to the order of summation (gradients over tokens,
// micro-batches and ranks; norms; losses). All programs must have the same row unit and
// cut parameters at the same places. The programs must produce exactly the reference's
// results and no others. The error explains the difference.
func Equivalent(ps, reference []*program.Program) (Equality, error) {
	have, err := newRanks(ps)
	if err != nil {
		return Different, err
	}
	want, err := newRanks(reference)
	if err != nil {
		return Different, fmt.Errorf("reference: %w", err)
	}
	if ps[0].RowUnit != reference[0].RowUnit {
		return Different, fmt.Errorf("row units %d and %d cannot be compared; hint: lower both with the same row unit", ps[0].RowUnit, reference[0].RowUnit)
	}
	var h, w summary
	for _, eq := range [...]Equality{Exact, Reordered} {
		if h, err = have.meaning(eq == Reordered); err != nil {
			return Different, err
		}
		if w, err = want.meaning(eq == Reordered); err != nil {
			return Different, fmt.Errorf("reference: %w", err)
		}
		if _, differ := firstDifference(h, w); !differ {
			return eq, nil
		}
	}
	return Different, difference(have, want, h, w)
}

// firstDifference finds the first key whose value differs from the reference's, or that
// only the programs have.
func firstDifference(have, want summary) (key string, differ bool) {
	for _, key := range slices.Sorted(maps.Keys(want)) {
		if have[key] != want[key] {
			return key, true
		}
	}
	for _, key := range slices.Sorted(maps.Keys(have)) {
		if _, ok := want[key]; !ok {
			return key, true
		}
	}
	return "", false
}

const outputKey = "result %s"

// difference explains the first difference by the first instruction that writes a value
// absent from the reference. Partial sums over ranks are exempt: they are intermediate
// states of reference values.
func difference(have, want *ranks, h, w summary) error {
	key, _ := firstDifference(h, w)
	if _, ok := w[key]; !ok {
		return fmt.Errorf("the program has %s, the reference does not; hint: compare programs of the same model, cut at the same places", key)
	}
	if _, ok := h[key]; !ok {
		return fmt.Errorf("the program does not have %s, the reference does; hint: compare programs of the same model and mode, cut at the same places", key)
	}
	unordered := len(have.ps) != len(want.ps)
	made := map[Value]bool{}
	in := want.executions(unordered)
	for _, x := range slices.Concat(in.on, have.executions(unordered).on) { // no instruction computes what is there before
		for _, v := range x.atoms {
			made[v] = true
		}
	}
	in.trace(func(_ place, _ int, v Value) bool { made[v] = true; return true })
	at, arg := place{rank: -1}, 0
	have.executions(unordered).trace(func(by place, j int, v Value) bool {
		if v != (Value{}) && v[1]&1 == 0 && !made[v] { // leftovers are not results
			at, arg = by, j
		}
		return at.rank < 0
	})
	if at.rank < 0 {
		return fmt.Errorf("%s differs from the reference, although every value that an instruction writes also occurs there; hint: look for an instruction that is missing or writes to the wrong place", key)
	}
	return have.of(int(at.rank), operandFault(have.ps[at.rank], int(at.instr), arg, "check its operands and attributes; it is the first such instruction",
		"gets a value that the reference never computes, so %s differs", key))
}

// trace executes the programs and reports each atom that each instruction writes, until
// seen returns false.
func (xs *executions) trace(seen func(by place, arg int, v Value) bool) {
	for i := range xs.events {
		e := &xs.events[i]
		if xs.event(e) != nil {
			return
		}
		members := []place{e.place}
		if e.meeting >= 0 {
			members = xs.meetings[e.meeting].members
		}
		for _, at := range members {
			for j, s := range xs.layouts[at.rank].operands(int(at.instr)) {
				if _, writes := accessOf(xs.instr(at), j); !writes {
					continue
				}
				for b := range s.blocks {
					for k := range s.bands {
						if x := xs.on[at.rank]; !seen(at, j, x.kept.wholeOf(x.atoms[s.at(b, k)])) {
							return
						}
					}
				}
			}
		}
	}
}

// ---- after the step

// digest hashes all atoms of a box.
func (x *execution) digest(s box) Value {
	return x.read(Value{}, 0, s, 0, s.blocks)
}

func (x *execution) bufferSpan(b int) box {
	n := x.ly.base[b+1] - x.ly.base[b]
	return box{x.ly.base[b], n, 1, n}
}

// homeKey names one kind of content of a range of a parameter's elements.
func homeKey(kind optimizer.Kind, elements string) string {
	return fmt.Sprintf("%s%s of %s", homePrefix, kind, elements)
}

const homePrefix = "home of "

// parts lists the atoms of a home, each with its range of the parameter's elements and
// the name of its content.
func (x *execution) parts(home int, f func(elements string, atom int32, name string)) {
	h, s := &x.p.Homes[home], x.ly.homes[home]
	b := &x.p.Buffers[h.Region.Buf]
	for k := range s.bands {
		from, n := x.columns(h.Region, s, k)
		atom := s.at(0, k)
		param := fmt.Sprintf("parameter %d", h.Param)
		if h.Slab > 0 {
			param += fmt.Sprintf(", slab %d", h.Slab)
		}
		f(fmt.Sprintf("%s, elements %d to %d", param, h.At+from, h.At+from+max(n, h.Of)), atom, initName(b, int(atom-x.ly.base[h.Region.Buf])))
	}
}

// collector merges the ranks' contents.
type collector struct {
	sum   summary
	ranks map[string][]int // ranks that hold it
	left  map[string]int   // a rank that has a buffer for it and leaves it unchanged
}

// same records a value that must be equal on all ranks that hold it.
func (c *collector) same(key string, v Value, rank int) error {
	have := c.ranks[key]
	c.ranks[key] = append(have, rank)
	switch {
	case len(have) == 0:
		c.sum[key] = v
	case have[len(have)-1] == rank:
		return fmt.Errorf("rank %d has the %s twice; hint: mark one of the two as a replica", rank, key)
	case c.sum[key] != v:
		return fmt.Errorf("ranks %d and %d end with different content for the %s; hint: reduce what they contribute, or gather it from the rank that updates it", have[0], rank, key)
	}
	return nil
}

// added records a sum to which each rank contributes.
func (c *collector) added(key string, v Value, rank int, unordered bool) {
	if n := len(c.ranks[key]); n > 0 {
		v = addRank(c.sum[key], v, n, unordered)
	}
	c.sum[key] = v
	c.ranks[key] = append(c.ranks[key], rank)
}

func (xs *executions) summary() (summary, error) {
	c := &collector{summary{}, map[string][]int{}, map[string]int{}}
	var err error
	for _, x := range xs.on {
		halved := map[string]bool{} // ranges stored in halves: the lower halves determine the numbers, see checkKept
		for i := range x.p.Homes {
			if h := &x.p.Homes[i]; h.Kind == optimizer.LowerHalves {
				x.parts(i, func(elements string, atom int32, _ string) {
					halved[elements] = true
					err = cmp.Or(err, c.same(homeKey(optimizer.Weights, elements), x.kept.wholeOf(x.atoms[atom]).lowerHalves(), x.p.Rank))
				})
			}
		}
		for i := range x.p.Homes {
			if h := &x.p.Homes[i]; !h.Replica && h.Kind != optimizer.LowerHalves && h.Kind != optimizer.Mask {
				x.parts(i, func(elements string, atom int32, _ string) {
					if h.Kind != optimizer.Weights || !halved[elements] {
						err = cmp.Or(err, c.same(homeKey(h.Kind, elements), x.kept.wholeOf(x.atoms[atom]), x.p.Rank))
					}
				})
			}
		}
		written := x.written()
		for i := range x.p.Buffers {
			if isResult(&x.p.Buffers[i]) {
				err = cmp.Or(err, x.result(i, written, c))
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(c.left)) {
		rank := c.left[key]
		if ranks, ok := c.ranks[key]; ok {
			err = cmp.Or(err, fmt.Errorf("rank %d leaves the %s unchanged, rank %d does not; hint: let both write it, since both have a buffer for it", rank, key, ranks[0]))
		}
	}
	return c.sum, err
}

// written marks the atoms that some instruction writes. The other atoms hold what
// another program of the same arenas, or another rank's part, left there: not a result
// of this program.
func (x *execution) written() []bool {
	list := make([]bool, len(x.atoms))
	for i := range x.p.Instrs {
		for j, s := range x.ly.operands(i) {
			if _, writes := accessOf(&x.p.Instrs[i], j); !writes {
				continue
			}
			for b := range s.blocks {
				for k := range s.bands {
					list[s.at(b, k)] = true
				}
			}
		}
	}
	return list
}

// result collects the written part of a buffer that is one of the step's results.
func (x *execution) result(buf int, written []bool, c *collector) (err error) {
	b, s := &x.p.Buffers[buf], x.bufferSpan(buf)
	key := fmt.Sprintf(outputKey, b.Name)
	some := func(n int32) bool { return slices.Contains(written[s.atom:s.atom+n], true) }
	switch {
	case !some(s.bands):
		c.left[key] = x.p.Rank
	case b.DType == graph.F64 && b.Rows*b.Cols == 1:
		c.added(key, x.atoms[s.atom], x.p.Rank, x.unordered)
	case b.RowUnit == 0:
		return c.same(key, x.digest(s), x.p.Rank)
	default:
		bands := int32(len(b.Cuts) + 1)
		for row := 0; row < b.Rows; row += b.RowUnit {
			if some(bands) {
				v := x.digest(box{s.atom, bands, 1, bands})
				err = cmp.Or(err, c.same(fmt.Sprintf("%s from row %d on", key, x.p.GlobalRow(row)), v, x.p.Rank))
			}
			s.atom += bands
		}
	}
	return err
}
