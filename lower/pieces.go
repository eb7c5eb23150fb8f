package lower

import (
	"fmt"
	"slices"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
)

// Ranges of chunks, and where they are stored.
//
// The elements of a chunk are counted from the first of its first parameter. A piece is a
// range of them: the whole chunk, or the shard of one rank of the chunk's group. Shards
// end at runs (see Runs) or at multiples of graph.NormPiece inside one, so that the
// partial sums of the norm do not depend on the sharding. Within that rule they are as
// even as possible:
//
//	chunk   [ wqkv ......... | wo ....... | bqkv, bo   ]
//	shards  0          ^1          ^2        ^3          of four ranks

// piece is a range of a chunk's elements.
type piece struct{ lo, hi int }

func (p piece) len() int { return p.hi - p.lo }

// part is the range of one parameter within a piece, in elements of the chunk.
type part struct{ param, lo, hi int }

// store locates a piece: element e of the chunk is at offset at+e of buf.
type store struct{ buf, at int }

func (s store) region(lo, hi int) program.Region {
	return program.Region{Buf: s.buf, Off: s.at + lo, Rows: 1, Cols: hi - lo, Stride: hi - lo}
}

// of returns the region of a piece.
func (s store) of(p piece) program.Region { return s.region(p.lo, p.hi) }

// index computes each parameter's chunk and offset.
func (lo *lowering) index() {
	lo.chunkOf = make([]int, len(lo.g.Params))
	lo.offsetOf = make([]int, len(lo.g.Params))
	lo.within = plan.Runs(lo.g)
	lo.shardsOf, lo.atomsOf = make([][]int, len(lo.pl.Chunks)), make([][]int, len(lo.pl.Chunks))
	for c, ch := range lo.pl.Chunks {
		off := 0
		for i := ch.First; i < ch.Last; i++ {
			lo.chunkOf[i], lo.offsetOf[i] = c, off
			off += int(lo.g.Stored(i).Elems())
		}
	}
}

// local reports whether this rank computes with a chunk.
func (lo *lowering) local(c int) bool { return slices.Contains(lo.top.Groups[c], lo.opt.Rank) }

// frozen reports whether training leaves a chunk unchanged.
func (lo *lowering) frozen(c int) bool { return lo.g.Params[lo.pl.Chunks[c].First].Frozen }

// trained reports whether this rank computes with a chunk that is not frozen.
func (lo *lowering) trained(c int) bool { return lo.local(c) && !lo.frozen(c) }

// whole returns the range of an entire chunk.
func (lo *lowering) whole(c int) piece {
	last := lo.pl.Chunks[c].Last - 1
	return piece{0, lo.offsetOf[last] + int(lo.g.Stored(last).Elems())}
}

// sharded reports whether the given part of a chunk's data, one of Shardings, is sharded
// over its group.
func (lo *lowering) sharded(c int, what string) bool {
	return len(lo.top.Groups[c]) > 1 && plan.ShardLevel(lo.pl.Chunks[c].Shard) >= plan.ShardLevel(what)
}

// held returns the range of a chunk's weights, grads or state that this rank holds.
func (lo *lowering) held(c int, what string) piece { return lo.heldBy(lo.opt.Rank, c, what) }

func (lo *lowering) heldBy(rank, c int, what string) piece {
	if !lo.sharded(c, what) {
		return lo.whole(c)
	}
	k := slices.Index(lo.top.Groups[c], rank)
	cuts := lo.shards(c)
	return piece{cuts[k], cuts[k+1]}
}

// shards returns the ends of the shards of a chunk, starting with 0.
func (lo *lowering) shards(c int) []int {
	if lo.shardsOf[c] == nil {
		lo.shardsOf[c] = lo.divide(c)
	}
	return lo.shardsOf[c]
}

func (lo *lowering) divide(c int) []int {
	all, n := lo.whole(c), len(lo.top.Groups[c])
	if lo.pl.Chunks[c].Shard == "" {
		n = 1
	}
	cuts := []int{0}
	for k := 1; k < n; k++ {
		cuts = append(cuts, lo.mark(c, int(int64(all.hi)*int64(k)/int64(n))))
	}
	return append(cuts, all.hi)
}

// mark returns the legal shard boundary of chunk c nearest to element e; ties go to the
// later one.
func (lo *lowering) mark(c, e int) int {
	runs := lo.byRun(c, lo.whole(c))
	i := 0
	for i+1 < len(runs) && runs[i+1].lo <= e {
		i++
	}
	below := runs[i].lo + (e-runs[i].lo)/graph.NormPiece*graph.NormPiece
	above := min(below+graph.NormPiece, runs[i].hi)
	if e-below < above-e {
		return below
	}
	return above
}

// Cuts returns per parameter the element offsets at which sharding cuts it, for
// Options.Cuts.
func Cuts(g *graph.Graph, pl *plan.Plan) ([][]int, error) {
	top, err := plan.NewTopology(g, pl)
	if err != nil {
		return nil, err
	}
	lo := &lowering{g: g, pl: pl, top: top}
	lo.index()
	list := make([][]int, len(g.Params))
	for i := range g.Params {
		for _, e := range lo.shards(lo.chunkOf[i]) {
			if e -= lo.offsetOf[i]; e > 0 && e < int(g.Stored(i).Elems()) {
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
	top, err := plan.NewTopology(g, pl)
	if err != nil {
		return 0, err
	}
	lo := &lowering{g: g, pl: pl, top: top}
	lo.index()
	most, largest := 0, 0
	for r := range pl.Ranks {
		sum := 0
		for c := range pl.Chunks {
			for _, what := range plan.Shardings()[1:] {
				if what == "weights" || !lo.frozen(c) {
					sum += lo.heldBy(r, c, what).len()
				}
			}
		}
		if sum > most {
			most, largest = sum, r
		}
	}
	return largest, nil
}

// atoms returns where the atoms of a piece begin, and its end. Atoms are cut at
// parameters, at shards and at Options.Cuts.
func (lo *lowering) atoms(c int, p piece) []int {
	if lo.atomsOf[c] == nil {
		lo.atomsOf[c] = lo.cutChunk(c)
	}
	all := lo.atomsOf[c]
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
func (lo *lowering) cutChunk(c int) []int {
	list := slices.Clone(lo.shards(c))
	for i := lo.pl.Chunks[c].First; i < lo.pl.Chunks[c].Last; i++ {
		list = append(list, lo.offsetOf[i])
		if lo.opt.Cuts != nil {
			for _, e := range lo.opt.Cuts[i] {
				list = append(list, lo.offsetOf[i]+e)
			}
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// parts splits a piece by parameter.
func (lo *lowering) parts(c int, p piece) []part {
	var list []part
	for i := lo.pl.Chunks[c].First; i < lo.pl.Chunks[c].Last; i++ {
		from, to := lo.offsetOf[i], lo.offsetOf[i]+int(lo.g.Stored(i).Elems())
		if q := (part{i, max(from, p.lo), min(to, p.hi)}); q.lo < q.hi {
			list = append(list, q)
		}
	}
	return list
}

// byRun splits a piece by run. A part names the first parameter of which it has elements.
func (lo *lowering) byRun(c int, p piece) (list []part) {
	for _, q := range lo.parts(c, p) {
		if n := len(list); n > 0 && lo.within[q.param] {
			list[n-1].hi = q.hi
		} else {
			list = append(list, q)
		}
	}
	return list
}

// record returns the stored length of a piece in elements, padded on disk.
func record(p piece, tier device.Tier) int {
	n := p.len()
	if tier == device.DiskTier {
		n = (n + plan.PadElems - 1) / plan.PadElems * plan.PadElems
	}
	return n
}

// chunkBuffer allocates a flat buffer with one record of a piece of chunk c per kind of
// content ("p", "m", ...), each padded on disk. Without kinds the content does not
// persist between steps.
func (lo *lowering) chunkBuffer(name string, c int, p piece, tier device.Tier, class program.Class, dt graph.DType, kinds ...optimizer.Kind) store {
	length, atoms := record(p, tier), lo.atoms(c, p)
	b := program.Buffer{Name: fmt.Sprintf("%s.c%d", name, c), Tier: tier, Class: class, DType: dt, Rows: 1, Cols: length * max(len(kinds), 1)}
	for k := range max(len(kinds), 1) {
		for i, e := range atoms[:len(atoms)-1] {
			if at := k*length + e - p.lo; at > 0 {
				b.Cuts = append(b.Cuts, at)
			}
			if len(kinds) > 0 {
				b.Init = append(b.Init, kinds[k].String()+":"+lo.elementName(c, atoms[i]))
			}
		}
		if length > p.len() {
			b.Cuts = append(b.Cuts, k*length+p.len())
			if len(kinds) > 0 {
				b.Init = append(b.Init, "")
			}
		}
	}
	b.Persistent = len(kinds) > 0
	return store{lo.buffer(b), -p.lo}
}

// elementName names the content that begins at an element of a chunk.
func (lo *lowering) elementName(c, e int) string {
	i := lo.pl.Chunks[c].First
	for i+1 < lo.pl.Chunks[c].Last && lo.offsetOf[i+1] <= e {
		i++
	}
	if e == lo.offsetOf[i] {
		return lo.g.Params[i].Name
	}
	return fmt.Sprintf("%s+%d", lo.g.Params[i].Name, e-lo.offsetOf[i])
}

// param returns a parameter's region in a store of its whole chunk, with the extents of
// the parameter's value.
func (lo *lowering) param(s store, value int) program.Region {
	v := &lo.g.Values[value]
	return program.Region{Buf: s.buf, Off: s.at + lo.offsetOf[v.Param], Rows: v.Rows, Cols: v.Cols, Stride: v.Cols}
}

// homes records where a piece of a chunk lives between steps.
func (lo *lowering) homes(c int, p piece, kind optimizer.Kind, s store, replica bool) {
	for _, q := range lo.parts(c, p) {
		lo.p.Homes = append(lo.p.Homes, program.Home{Param: q.param, Kind: kind, At: q.lo - lo.offsetOf[q.param], Region: s.region(q.lo, q.hi), Replica: replica})
	}
}

// moveOp copies a piece between tiers.
func moveOp(stream device.Stream, key program.Key, to, from store, p piece) op {
	return copyOp(stream, key, to.of(p), from.of(p))
}

// between builds a collective over the group of c, on the collective stream.
func (lo *lowering) between(o graph.Op, key program.Key, c int, acc bool, args ...program.Region) op {
	key.Dir = program.Transfer
	for i := range args {
		if args[i].Cols == 0 {
			args[i] = program.Region{}
		}
	}
	return op{in: program.Instr{Op: o, Attr: graph.Attr{Acc: acc}, Stream: device.Collective, Key: key, Args: args, Peers: lo.top.Groups[c]}}
}
