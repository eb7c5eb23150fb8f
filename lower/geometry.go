package lower

import (
	"fmt"
	"slices"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
)

// Ranges of chunks, and where they are stored.
//
// The elements of a chunk are counted from the first of its first parameter. A piece is a
// range of them: the whole chunk, or the shard of one rank of the chunk's group. Shards
// end at runs (see plan.Runs) or at multiples of graph.NormPiece inside one, so that the
// partial sums of the norm do not depend on the sharding; of indivisible parameters, at
// runs only. Within that rule they are as even as possible:
//
//	chunk   [ wqkv ......... | wo ....... | bqkv, bo   ]
//	shards  0          ^1          ^2        ^3          of four ranks

// piece is a range of a chunk's elements, or of those that are kept if the chunk is compact (see compact.go).
type piece struct {
	lo, hi int
	kept   bool
}

func (p piece) len() int { return p.hi - p.lo }

// part is the range of one parameter within a piece, in elements of the chunk.
type part struct{ param, lo, hi int }

// store locates a piece: element e of the chunk is at offset at+e of buf.
type store struct{ buf, at int }

// region returns the region of elements [lo, hi) of the chunk.
func (s store) region(lo, hi int) program.Region {
	return program.Region{Buf: s.buf, Off: s.at + lo, Rows: 1, Cols: hi - lo, Stride: hi - lo}
}

// of returns the region of a piece.
func (s store) of(p piece) program.Region { return s.region(p.lo, p.hi) }

// geometry says which rows a rank computes and which elements of which chunk it holds. It follows from the graph, the
// plan and the rank, and nothing changes it.
type geometry struct {
	g    *graph.Graph
	pl   *plan.Plan
	top  *plan.Topology
	rank int
	// Per parameter: its chunk, its offset there in elements, and whether it is in the run of the parameter before it,
	// see plan.Runs
	chunkOf, offsetOf []int
	keptAt            []int // likewise, among the chunk's elements that are stored
	sameRun           []bool
	moments           momentPlaces
	shards, atoms     [][]int // per chunk: their ends in elements, starting with 0
}

// newGeometry computes where parameters are in the chunks of a plan.
func newGeometry(g *graph.Graph, pl *plan.Plan) *geometry {
	geo := &geometry{g: g, pl: pl, sameRun: plan.Runs(g)}
	geo.chunkOf, geo.offsetOf, geo.keptAt = make([]int, len(g.Params)), make([]int, len(g.Params)), make([]int, len(g.Params))
	for c, ch := range pl.Chunks {
		at, kept := 0, 0
		for i := ch.First; i < ch.Last; i++ {
			geo.chunkOf[i], geo.offsetOf[i], geo.keptAt[i] = c, at, kept
			at += int(g.Stored(i).Elems())
			kept += geo.storedElems(i)
		}
	}
	geo.moments = newMomentPlaces(g, pl, geo.offsetOf)
	return geo
}

// newRankGeometry computes also what a rank holds of the chunks. Atoms end at cuts besides, see Options.Cuts.
func newRankGeometry(g *graph.Graph, pl *plan.Plan, rank int, cuts [][]int) (*geometry, error) {
	top, err := plan.NewTopology(g, pl, rank)
	if err != nil {
		return nil, err
	}
	geo := newGeometry(g, pl)
	geo.top, geo.rank = top, rank
	cuts = sinkCuts(g, pl.HeadParts(), cuts)
	for c := range pl.Chunks {
		geo.shards = append(geo.shards, geo.divideChunk(c))
		geo.atoms = append(geo.atoms, geo.cutChunk(c, cuts))
	}
	return geo, nil
}

// rows returns the token rows of a micro-batch.
func (geo *geometry) rows() int { return geo.pl.MicroBatch * geo.g.Seq }

// sliceRows returns the row range of a slice of a micro-batch.
func (geo *geometry) sliceRows(q int) (row, rows int) {
	list := geo.pl.Pipeline.RowsPerSlice(geo.g.Seq)
	if len(list) == 1 {
		return 0, geo.rows()
	}
	for _, n := range list[:q] {
		row += n
	}
	return row, list[q]
}

// local reports whether this rank computes with a chunk.
func (geo *geometry) local(c int) bool { return slices.Contains(geo.top.Groups[c], geo.rank) }

// frozen reports whether training leaves a chunk unchanged.
func (geo *geometry) frozen(c int) bool { return geo.g.Params[geo.pl.Chunks[c].First].Frozen }

// typeOf returns the type of a chunk's weights as operators read them.
func (geo *geometry) typeOf(c int) graph.DType { return geo.g.Stored(geo.pl.Chunks[c].First).DType }

// divided reports whether a rank has slabs of the parameters of a chunk, see graph.Slab.
func (geo *geometry) divided(c int) bool { return geo.g.Divided(geo.pl.Chunks[c].First) }

// slab numbers this rank's slab of the parameters of a chunk from 1; 0: they are whole.
func (geo *geometry) slab(c int) int {
	slab, divided := geo.g.Slab(geo.pl.Chunks[c].First)
	if !divided {
		return 0
	}
	return 1 + slab.Of(geo.rank)
}

// firstLogit returns which token of the vocabulary the first of the rank's logits is of, if ranks share them.
func (geo *geometry) firstLogit() int { return geo.rank % geo.g.Shared() * geo.g.LogitColumns() }

// firstRow returns which token of the vocabulary the first row of the rank's embedding is of, and how many tokens there are; 0: the
// embedding is not divided.
func (geo *geometry) firstRow(wte graph.Use) (token, vocab int) {
	i := geo.g.ParamOf(wte.Value)
	slab, divided := geo.g.Slab(i)
	if !divided {
		return 0, 0
	}
	rows, _ := geo.g.Held(i)
	return slab.Of(geo.rank) * rows, slab.Rows
}

// indivisible reports whether the parameters of a chunk are updated as wholes.
func (geo *geometry) indivisible(c int) bool { return geo.g.Params[geo.pl.Chunks[c].First].Indivisible }

// trained reports whether this rank computes with a chunk that is not frozen.
func (geo *geometry) trained(c int) bool { return geo.local(c) && !geo.frozen(c) }

// chunkRange returns the range of an entire chunk.
func (geo *geometry) chunkRange(c int) piece {
	last := geo.pl.Chunks[c].Last - 1
	return piece{0, geo.offsetOf[last] + int(geo.g.Stored(last).Elems()), false}
}

// sharded reports whether the given part of a chunk's data, one of Shardings, is sharded
// over its group.
func (geo *geometry) sharded(c int, what string) bool {
	return len(geo.top.Groups[c]) > 1 && plan.ShardLevel(geo.pl.Chunks[c].Shard) >= plan.ShardLevel(what)
}

// held returns the range of a chunk's weights, grads or state that this rank holds.
func (geo *geometry) held(c int, what string) piece { return geo.heldBy(geo.rank, c, what) }

// heldBy returns the range that any rank of the chunk's group holds.
func (geo *geometry) heldBy(rank, c int, what string) piece {
	if !geo.sharded(c, what) {
		return geo.chunkRange(c)
	}
	k := slices.Index(geo.top.Groups[c], rank)
	cuts := geo.shards[c]
	return piece{cuts[k], cuts[k+1], false}
}

// divideChunk returns the ends of the shards of a chunk, starting with 0.
func (geo *geometry) divideChunk(c int) []int {
	all, n := geo.chunkRange(c), len(geo.top.Groups[c])
	if geo.pl.Chunks[c].Shard == "" {
		n = 1
	}
	cuts := []int{0}
	for k := 1; k < n; k++ {
		cuts = append(cuts, geo.nearestBoundary(c, int(int64(all.hi)*int64(k)/int64(n))))
	}
	return append(cuts, all.hi)
}

// nearestBoundary returns the legal shard boundary of chunk c nearest to element e; ties go to the
// later one.
func (geo *geometry) nearestBoundary(c, e int) int {
	runs := geo.splitByRun(c, geo.chunkRange(c))
	i := 0
	for i+1 < len(runs) && runs[i+1].lo <= e {
		i++
	}
	unit := graph.NormPiece
	if geo.indivisible(c) {
		unit = max(1, runs[i].hi-runs[i].lo)
	}
	below := runs[i].lo + (e-runs[i].lo)/unit*unit
	above := min(below+unit, runs[i].hi)
	for splitsBlock(geo, c, below) {
		below -= unit
	}
	for above < runs[i].hi && splitsBlock(geo, c, above) {
		above = min(above+unit, runs[i].hi)
	}
	if e-below < above-e {
		return below
	}
	return above
}

// atomsIn returns where the atoms of a piece begin, and its end. Atoms are cut at
// parameters, at shards and at Options.Cuts.
func (geo *geometry) atomsIn(c int, p piece) []int {
	all := geo.atoms[c]
	if p.kept {
		all = geo.keptAtoms(c)
	}
	from, begins := slices.BinarySearch(all, p.lo)
	end, ends := slices.BinarySearch(all, p.hi)
	if begins && ends {
		return all[from : end+1 : end+1]
	}
	list := []int{p.lo}
	if begins {
		from++
	}
	return append(append(list, all[from:end]...), p.hi)
}

// cutChunk returns the atoms of a whole chunk.
func (geo *geometry) cutChunk(c int, cuts [][]int) []int {
	list := slices.Clone(geo.shards[c])
	for i := geo.pl.Chunks[c].First; i < geo.pl.Chunks[c].Last; i++ {
		list = append(list, geo.offsetOf[i])
		if p := &geo.g.Params[i]; p.Indivisible { // but for experts' matrices, which are updated one by one
			for e := 1; e < p.Experts; e++ {
				list = append(list, geo.offsetOf[i]+e*int(p.Elems())/p.Experts)
			}
		}
		if cuts != nil {
			for _, e := range cuts[i] {
				list = append(list, geo.offsetOf[i]+e)
			}
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// splitByParam splits a piece by parameter.
func (geo *geometry) splitByParam(c int, p piece) []part {
	list := make([]part, 0, geo.pl.Chunks[c].Last-geo.pl.Chunks[c].First)
	for i := geo.pl.Chunks[c].First; i < geo.pl.Chunks[c].Last; i++ {
		from, to := geo.rangeOf(i, p.kept)
		if q := (part{i, max(from, p.lo), min(to, p.hi)}); q.lo < q.hi {
			list = append(list, q)
		}
	}
	return list
}

// splitByRun splits a piece by run. A part names the first parameter of which it has elements.
func (geo *geometry) splitByRun(c int, p piece) (list []part) {
	for _, q := range geo.splitByParam(c, p) {
		if n := len(list); n > 0 && geo.sameRun[q.param] {
			list[n-1].hi = q.hi
		} else {
			list = append(list, q)
		}
	}
	return list
}

// record returns the stored length of n elements, padded on disk.
func record(n int, tier device.Tier, dt graph.DType) int {
	if tier == device.DiskTier {
		pad := plan.PadElems
		if dt == graph.U8 {
			pad *= int(graph.F32.Size())
		}
		n = (n + pad - 1) / pad * pad
	}
	return n
}

// elementName names the content that begins at an element of a chunk, or of what is kept of it.
func (geo *geometry) elementName(c, e int, kept bool) string {
	if kept {
		return geo.keptName(c, e)
	}
	i := geo.pl.Chunks[c].First
	for i+1 < geo.pl.Chunks[c].Last && geo.offsetOf[i+1] <= e {
		i++
	}
	name := geo.g.Params[i].Name
	if k := geo.slab(c); k > 0 {
		name = fmt.Sprintf("%s/%d", name, k)
	}
	if e == geo.offsetOf[i] {
		return name
	}
	return fmt.Sprintf("%s+%d", name, e-geo.offsetOf[i])
}

// paramRegion returns a parameter's region in a store of its whole chunk, with the extents of
// the parameter's value.
func (geo *geometry) paramRegion(s store, value int) program.Region {
	v := &geo.g.Values[value]
	return program.Region{Buf: s.buf, Off: s.at + geo.offsetOf[v.Param], Rows: v.Rows, Cols: v.Cols, Stride: v.Cols}
}

// paramOf returns where an operand is in a store of its chunk: a parameter or, of attention to some heads, their sinks.
func (geo *geometry) paramOf(s store, a operand) program.Region {
	r, ref := geo.paramRegion(s, a.ref().value), a.ref()
	if a.op.in.Op == graph.Attention && a.k == graph.AttentionSinks {
		r.Off, r.Cols, r.Stride = r.Off+ref.lo, ref.hi-ref.lo, ref.hi-ref.lo
	}
	return r
}

// mergedParts lists a piece's parts, merging neighbours that are updated alike unless their elements are numbered for
// stochastic rounding, or in blocks of their own: vectors have so few elements that a GPU takes longer to launch their updates than to run them.
func (geo *geometry) mergedParts(c int, p piece) (list []part) {
	_, moments := geo.pl.State.Types()
	for _, q := range geo.splitByParam(c, p) {
		packed := geo.moments.packed(q.param) || len(list) > 0 && geo.moments.packed(list[len(list)-1].param)
		if n := len(list); n > 0 && moments != graph.BF16 && !packed && !geo.indivisible(c) && list[n-1].hi == q.lo && q.hi-list[n-1].lo <= mostJoined && geo.updatedAlike(list[n-1].param, q.param) {
			list[n-1].hi = q.hi
			continue
		}
		list = append(list, q)
	}
	return list
}

// updatedAlike reports whether two parameters have the same weight decay, zeros of both stay or of neither, and neither is in int8, which
// is rounded by elements' numbers.
func (geo *geometry) updatedAlike(a, b int) bool {
	p, q := &geo.g.Params[a], &geo.g.Params[b]
	return p.Vector == q.Vector && p.Masked == q.Masked && p.Unit == 0 && q.Unit == 0
}

// mostJoined is the maximum number of elements of a call on several parameters: kernels count in 32 bits.
const mostJoined = 1 << 30

// Cuts returns per parameter the element offsets at which sharding cuts it, for
// Options.Cuts.
func Cuts(g *graph.Graph, pl *plan.Plan) ([][]int, error) {
	geo, err := newRankGeometry(g, pl, 0, nil)
	if err != nil {
		return nil, err
	}
	list := make([][]int, len(g.Params))
	for i := range g.Params {
		for _, e := range geo.shards[geo.chunkOf[i]] {
			if e -= geo.offsetOf[i]; e > 0 && e < int(g.Stored(i).Elems()) {
				list[i] = append(list[i], e)
			}
		}
	}
	return list, nil
}

// Largest returns the rank whose shards, over all chunks, are largest among the ranks
// that run the same program on other sequences. Shards are uneven, so it needs the most
// memory.
func Largest(g *graph.Graph, pl *plan.Plan) (int, error) {
	most, largest := 0, 0
	for slab := range pl.Sharers() {
		geo, err := newRankGeometry(g, pl, slab, nil)
		if err != nil {
			return 0, err
		}
		for r := slab; r < pl.Ranks; r += pl.Sharers() {
			sum := 0
			for c := range pl.Chunks {
				for _, what := range plan.Shardings()[1:] {
					if what == "weights" || !geo.frozen(c) {
						sum += geo.heldBy(r, c, what).len()
					}
				}
			}
			if sum > most {
				most, largest = sum, r
			}
		}
	}
	return largest, nil
}

// Updates lists the number of elements of each call when as few calls as possible update all parameters, for an
// optimizer state in the given storage format.
func Updates(g *graph.Graph, state plan.StateFormat) (elems []int) {
	geo := newGeometry(g, &plan.Plan{Chunks: plan.Layout(g, 1<<62), State: state})
	for c := range geo.pl.Chunks {
		if geo.frozen(c) {
			continue
		}
		for _, q := range geo.mergedParts(c, geo.chunkRange(c)) {
			elems = append(elems, q.hi-q.lo)
		}
	}
	return elems
}
