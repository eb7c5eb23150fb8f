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

// newNormParts allocates the buffers of slots.
func (up *updater) newNormParts() *normParts {
	st := up.st
	n := &normParts{buf: [device.NumTiers]int{-1, -1, -1}}
	for c := range st.pl.Chunks {
		if st.trained(c) && st.top.Ranks == 1 {
			n.final = max(n.final, st.squaredOn(c))
		}
	}
	for t := range device.HostTier + 1 {
		slots := []int{0}
		var cuts []int
		for c := range st.pl.Chunks {
			if t == n.final || st.local(c) && st.squaredOn(c) == t {
				cuts = st.addSlots(cuts, st.rank, c)
			}
			slots = append(slots, endOf(cuts))
		}
		n.first[t] = slots
		if len(cuts) > 0 {
			n.buf[t] = up.b.slotBuffer("norm.parts."+t.String(), t, cuts)
		}
	}
	n.all = n.buf[n.final]
	if st.top.Ranks > 1 {
		n.all = up.b.slotBuffer("norm.parts", n.final, st.allSlots())
	}
	return n
}

// sortSlots permutes the slots of several ranks into single-rank order, so that the
// norm is bit-equal. Where gradients are sums over ranks their bits differ anyway, and
// it does nothing.
func (up *updater) sortSlots(u *unit, n *normParts) {
	st := up.st
	if st.g.Shared() > 1 {
		return
	}
	type run struct{ chunk, from, to int } // slots of one rank's chunk
	var runs []run
	end := 0
	for r := range st.top.Ranks {
		for c := range st.pl.Chunks {
			k := st.countSlots(r, c)
			if k > 0 && len(st.top.Groups[c]) > 1 {
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
	gathered := up.b.p.Buffers[n.all]
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
	n.all = up.b.slotBuffer("norm.parts.sorted", n.final, cuts)
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

// square lists the sums of squares of a chunk's complete gradient.
func (up *updater) square(list *[]*op, c int, n *normParts) {
	tier := up.st.squaredOn(c)
	slot := n.first[tier][c]
	for _, q := range up.st.squaredParts(c) {
		end := slot + graph.NormPieces(int64(q.hi-q.lo))
		*list = append(*list, processorOp(tier, c, graph.NormPart, graph.Attr{}, n.at(tier, slot, end), up.grads[c].region(q.lo, q.hi)))
		slot = end
	}
	if tier == n.final || slot == n.first[tier][c] {
		return
	}
	stream := device.DevToHost
	if tier == device.HostTier {
		stream = device.HostToDev
	}
	*list = append(*list, copyOp(stream, up.units[up.complete[c].unit].key(c),
		n.at(n.final, n.first[n.final][c], n.first[n.final][c+1]), n.at(tier, n.first[tier][c], n.first[tier][c+1])))
}

// finishNorm finishes the norm and copies the clip factor to every tier that updates, and to
// the host for the run to read.
func (up *updater) finishNorm(u *unit, n *normParts) {
	st := up.st
	p := up.b.p
	if st.top.Ranks > 1 {
		src := program.Region{}
		if n.buf[n.final] >= 0 {
			src = p.BufferRegion(n.buf[n.final])
		}
		world := make([]int, st.top.Ranks)
		for r := range world {
			world[r] = r
		}
		u.work = append(u.work, &op{in: program.Instr{Op: graph.AllGather, Stream: device.Collective, Key: program.Key{Segment: -1, Micro: -1, Chunk: -1, Dir: program.Transfer},
			Args: []program.Region{p.BufferRegion(n.all), src}, Peers: world}})
		up.sortSlots(u, n)
	}
	up.terms.clip = [device.NumTiers]int{-1, -1, -1}
	up.terms.clip[device.HostTier] = up.b.clipBuffer()
	if n.final == device.DeviceTier || n.buf[device.DeviceTier] >= 0 {
		up.terms.clip[device.DeviceTier] = up.b.buffer(program.Buffer{Name: "clip.dev", Tier: device.DeviceTier, Class: program.ClassReductions, DType: graph.F32, Rows: 1, Cols: 2})
	}
	u.work = append(u.work, processorOp(n.final, -1, graph.NormAll, graph.Attr{Clip: st.opt.Clip},
		p.BufferRegion(up.terms.clip[n.final]), p.BufferRegion(n.all), p.BufferRegion(up.terms.scalars[n.final])))
	for t, buf := range up.terms.clip {
		if buf < 0 || device.Tier(t) == n.final {
			continue
		}
		stream := device.HostToDev
		if n.final == device.DeviceTier {
			stream = device.DevToHost
		}
		u.work = append(u.work, copyOp(stream, program.NoKey, p.BufferRegion(buf), p.BufferRegion(up.terms.clip[n.final])))
	}
}
