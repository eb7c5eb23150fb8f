package lower

import (
	"slices"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/program"
)

// normParts describes the global norm as a sum over slots: one per NormPiece elements
// of every run, in chunk order. Each rank fills the slots of the elements that it
// owns. All slots are collected in tier final; chunks updated in a nearer tier fill a
// buffer there first. With several ranks, final is the device, and the slots of all
// ranks are gathered one after another.
type normParts struct {
	final device.Tier
	buf   [device.NumTiers]int   // buffer of this rank's slots per tier, -1 if none
	first [device.NumTiers][]int // per chunk its first slot there, and the end
	all   int                    // buffer of all ranks' slots, in tier final
}

// owned returns what a rank contributes of a chunk to the norm: its shard or, if the
// chunk is replicated, all of it on the group's first rank and nothing elsewhere.
func (lo *lowering) owned(rank, c int) piece {
	switch group := lo.top.Groups[c]; {
	case !slices.Contains(group, rank), lo.frozen(c):
		return piece{}
	case lo.sharded(c, "state") || rank == group[0]:
		return lo.heldBy(rank, c, "state")
	}
	return piece{}
}

// slots returns the number of a rank's slots for a chunk.
func (lo *lowering) slots(rank, c int) (n int) {
	for _, q := range lo.byRun(c, lo.owned(rank, c)) {
		n += graph.NormPieces(int64(q.hi - q.lo))
	}
	return n
}

func (lo *lowering) newNormParts() *normParts {
	n := &normParts{buf: [device.NumTiers]int{-1, -1, -1}}
	for c := range lo.pl.Chunks {
		if lo.trained(c) && lo.top.Ranks == 1 {
			n.final = max(n.final, lo.updatedOn(c))
		}
	}
	for t := range device.HostTier + 1 {
		slots := []int{0}
		var cuts []int
		for c := range lo.pl.Chunks {
			if t == n.final || lo.local(c) && lo.updatedOn(c) == t {
				cuts = lo.addSlots(cuts, lo.opt.Rank, c)
			}
			slots = append(slots, endOf(cuts))
		}
		n.first[t] = slots
		if len(cuts) > 0 {
			n.buf[t] = lo.slotBuffer("norm.parts."+t.String(), t, cuts)
		}
	}
	n.all = n.buf[n.final]
	if lo.top.Ranks > 1 {
		n.all = lo.slotBuffer("norm.parts", n.final, lo.allSlots())
	}
	return n
}

// addSlots appends to cuts the ends of the slots of a rank's part of a chunk. Within a
// run, the slots are cut where an atom and a slot begin at the same element.
func (lo *lowering) addSlots(cuts []int, rank, c int) []int {
	end, own := endOf(cuts), lo.owned(rank, c)
	for _, q := range lo.byRun(c, own) {
		for _, e := range lo.atoms(c, own) {
			if n := e - q.lo; n > 0 && e < q.hi && n%graph.NormPiece == 0 {
				cuts = append(cuts, end+n/graph.NormPiece)
			}
		}
		end += graph.NormPieces(int64(q.hi - q.lo))
		cuts = append(cuts, end)
	}
	return cuts
}

// endOf returns the last of cuts, or 0.
func endOf(cuts []int) int {
	if len(cuts) == 0 {
		return 0
	}
	return cuts[len(cuts)-1]
}

// slotBuffer allocates a buffer of slots with the given cuts.
func (lo *lowering) slotBuffer(name string, t device.Tier, cuts []int) int {
	b := program.Buffer{Name: name, Tier: t, Class: program.ClassReductions, DType: graph.F64, Rows: 1, Cols: cuts[len(cuts)-1]}
	if last := len(cuts) - 1; last > 0 {
		b.Cuts = cuts[:last]
	}
	return lo.buffer(b)
}

// allSlots returns the ends of the slots of all atoms, rank by rank.
func (lo *lowering) allSlots() (cuts []int) {
	for r := range lo.top.Ranks {
		for c := range lo.pl.Chunks {
			cuts = lo.addSlots(cuts, r, c)
		}
	}
	return cuts
}

// sortSlots permutes the slots of several ranks into single-rank order, so that the
// norm is bit-equal. Where gradients are sums over ranks their bits differ anyway, and
// it does nothing.
func (lo *lowering) sortSlots(u *unit, n *normParts) {
	type run struct{ chunk, from, to int } // slots of one rank's chunk
	var runs []run
	end := 0
	for r := range lo.top.Ranks {
		for c := range lo.pl.Chunks {
			k := lo.slots(r, c)
			if k > 0 && len(lo.top.Groups[c]) > 1 {
				return
			}
			if k > 0 {
				runs = append(runs, run{c, end, end + k})
				end += k
			}
		}
	}
	if slices.IsSortedFunc(runs, func(a, b run) int { return a.chunk - b.chunk }) {
		return
	}
	slices.SortFunc(runs, func(a, b run) int { return a.chunk - b.chunk })
	gathered := lo.p.Buffers[n.all]
	var cuts []int
	from := n.all
	at := 0
	for _, r := range runs {
		for _, e := range append(slices.Clone(gathered.Cuts), gathered.Cols) {
			if e > r.from && e <= r.to {
				cuts = append(cuts, at+e-r.from)
			}
		}
		at += r.to - r.from
	}
	n.all = lo.slotBuffer("norm.parts.sorted", n.final, cuts)
	at = 0
	for i := 0; i < len(runs); {
		k := i + 1
		for k < len(runs) && runs[k].from == runs[k-1].to {
			k++
		}
		size := runs[k-1].to - runs[i].from
		u.work = append(u.work, copyOp(device.Compute, program.NoKey,
			program.Region{Buf: n.all, Off: at, Rows: 1, Cols: size, Stride: size}, program.Region{Buf: from, Off: runs[i].from, Rows: 1, Cols: size, Stride: size}))
		at, i = at+size, k
	}
}

// at returns a range of slots in a tier.
func (n *normParts) at(t device.Tier, lo, hi int) program.Region {
	return program.Region{Buf: n.buf[t], Off: lo, Rows: 1, Cols: hi - lo, Stride: hi - lo}
}

// square sums the squares of a chunk's gradient as soon as the gradient is complete.
func (lo *lowering) square(c int, grad store, n *normParts) {
	tier := lo.updatedOn(c)
	u := &lo.units[lo.gradBuf[c].unit]
	slot := n.first[tier][c]
	for _, q := range lo.squares(c) {
		end := slot + graph.NormPieces(int64(q.hi-q.lo))
		u.after = append(u.after, lo.opt1(tier, c, graph.NormPart, graph.Attr{}, n.at(tier, slot, end), grad.region(q.lo, q.hi)))
		slot = end
	}
	if tier == n.final || slot == n.first[tier][c] {
		return
	}
	stream := device.DevToHost
	if tier == device.HostTier {
		stream = device.HostToDev
	}
	u.after = append(u.after, copyOp(stream, lo.key(u, c),
		n.at(n.final, n.first[n.final][c], n.first[n.final][c+1]), n.at(tier, n.first[tier][c], n.first[tier][c+1])))
}

// squares lists this rank's runs of a chunk. After a run that ends with a whole NormPiece, the same call handles the
// next run, too.
func (lo *lowering) squares(c int) (list []part) {
	for _, q := range lo.byRun(c, lo.owned(lo.opt.Rank, c)) {
		if n := len(list); n > 0 && (q.lo-list[n-1].lo)%graph.NormPiece == 0 && q.hi-list[n-1].lo <= mostJoined {
			list[n-1].hi = q.hi
			continue
		}
		list = append(list, q)
	}
	return list
}

// norm finishes the norm and copies the clip factor to every tier that updates, and to
// the host for the run to read.
func (lo *lowering) norm(u *unit, n *normParts) {
	p := lo.p
	if lo.top.Ranks > 1 {
		src := program.Region{}
		if n.buf[n.final] >= 0 {
			src = p.Whole(n.buf[n.final])
		}
		world := make([]int, lo.top.Ranks)
		for r := range world {
			world[r] = r
		}
		u.work = append(u.work, op{in: program.Instr{Op: graph.AllGather, Stream: device.Collective, Key: program.Key{Segment: -1, Micro: -1, Chunk: -1, Dir: program.Transfer},
			Args: []program.Region{p.Whole(n.all), src}, Peers: world}})
		lo.sortSlots(u, n)
	}
	lo.clip = [device.NumTiers]int{-1, -1, -1}
	lo.clip[device.HostTier] = lo.clipBuffer()
	if n.final == device.DeviceTier || n.buf[device.DeviceTier] >= 0 {
		lo.clip[device.DeviceTier] = lo.buffer(program.Buffer{Name: "clip.dev", Tier: device.DeviceTier, Class: program.ClassReductions, DType: graph.F32, Rows: 1, Cols: 2})
	}
	u.work = append(u.work, lo.opt1(n.final, -1, graph.NormAll, graph.Attr{Clip: lo.opt.Clip},
		p.Whole(lo.clip[n.final]), p.Whole(n.all), p.Whole(lo.scalars[n.final])))
	for t, buf := range lo.clip {
		if buf < 0 || device.Tier(t) == n.final {
			continue
		}
		stream := device.HostToDev
		if n.final == device.DeviceTier {
			stream = device.DevToHost
		}
		u.work = append(u.work, copyOp(stream, program.NoKey, p.Whole(buf), p.Whole(lo.clip[n.final])))
	}
}

// clipBuffer allocates the host's buffer of {clip factor, norm}.
func (lo *lowering) clipBuffer() int {
	return lo.buffer(program.Buffer{Name: program.Clip, Tier: device.HostTier, Class: program.ClassReductions, DType: graph.F32, Rows: 1, Cols: 2,
		Persistent: true, Init: []string{program.ClipBefore}})
}
