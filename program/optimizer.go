package program

import (
	"cmp"
	"slices"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
)

// stagingDepth is how many chunks' optimizer states are read from disk ahead
// of their update: two keep the disk, the cores and the link busy at once.
const stagingDepth = 2

// optimizer lists what follows the last contribution to each gradient: it goes
// to where the optimizer's state is, its squares are summed, and when all are
// there the clip factor is known and every chunk is updated. Chunks whose state
// is on the device are updated there, the others on the host's cores, with the
// state streamed through staging buffers if it is on disk. Updated weights go
// back to where the forward pass takes them from.
func (lo *lowering) optimizer() error {
	if lo.opt.Mode != Train {
		return nil
	}
	grads := make([]store, len(lo.pl.Chunks)) // what the optimizer reads
	parts := lo.newNormParts()
	for c := range lo.pl.Chunks {
		if lo.trained(c) && lo.reduced(c).len() > 0 {
			grads[c] = lo.deliver(c)
			lo.square(c, grads[c], parts)
		}
	}
	u := unit{segment: -1, micro: -1}
	lo.norm(&u, parts)
	lo.updates(&u, grads)
	lo.units = append(lo.units, u)
	return nil
}

// updatedOn is the tier whose processor updates a chunk.
func (lo *lowering) updatedOn(c int) device.Tier {
	return min(lo.pl.Chunks[c].State, device.HostTier)
}

// opt1 makes an instruction of the optimizer on the given tier's processor.
func (lo *lowering) opt1(tier device.Tier, c int, op1 graph.Op, attr graph.Attr, args ...Region) op {
	stream := device.Compute
	if tier == device.HostTier {
		stream = device.HostCompute
	}
	key := noKey
	key.Chunk, key.Dir = c, Optimizer
	return op{in: Instr{Op: op1, Attr: attr, Stream: stream, Key: key, Args: args}}
}

// deliver brings the finished gradient of a chunk, as far as this rank has it,
// to the tier that updates it.
func (lo *lowering) deliver(c int) store {
	home := lo.gradBuf[c]
	if lo.updatedOn(c) == home.tier {
		return home.store
	}
	own := lo.reduced(c)
	host := lo.chunkBuffer("grad.host", c, own, device.HostTier, ClassGrads, graph.F32)
	u := &lo.units[home.unit]
	u.after = append(u.after, moveOp(device.DevToHost, lo.key(u, c), host, home.store, own))
	return host
}

// updates lists the chunks' updates: behind the norm, in order of first use, so
// that what the next step needs first is ready first; or, where nothing is
// clipped, each as soon as its gradient is complete, while the backward pass
// goes on. States on disk are read ahead.
func (lo *lowering) updates(u *unit, grads []store) {
	at := func(int) *[]op { return &u.work }
	var order, disk []int
	for c := range lo.pl.Chunks {
		if lo.trained(c) {
			order = append(order, c)
		}
	}
	if !lo.clips() {
		at = func(c int) *[]op { return &lo.units[lo.gradBuf[c].unit].after }
		slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(lo.gradBuf[a].unit, lo.gradBuf[b].unit) })
	}
	for _, c := range order {
		if lo.onDisk(c) {
			disk = append(disk, c)
		}
	}
	key := func(c int) Key { return Key{Segment: -1, Micro: -1, Chunk: c} }
	staged := make([][]int, len(lo.pl.Chunks)) // a buffer for each of records
	read := func(list *[]op) {
		if len(disk) == 0 {
			return
		}
		c := disk[0]
		disk = disk[1:]
		for i, b := range lo.records(c) {
			staged[c] = append(staged[c], lo.stage(b))
			*list = append(*list, copyOp(device.DiskRead, key(c), lo.p.whole(staged[c][i]), lo.p.whole(b)))
		}
	}
	for range min(stagingDepth, len(disk)) {
		read(at(order[0]))
	}
	for _, c := range order {
		home, list := lo.weightBuf[c], at(c)
		for i, s := range staged[c] {
			home = home.moved(lo.records(c)[i], s)
		}
		if lo.reduced(c).len() > 0 {
			lo.update(list, c, grads[c], home)
		}
		lo.spread(list, c)
		if lo.onDisk(c) {
			for i, b := range lo.records(c) {
				*list = append(*list, copyOp(device.DiskWrite, key(c), lo.p.whole(b), lo.p.whole(staged[c][i])))
			}
			read(list)
		}
	}
}

// clips reports whether updates have to wait for the norm of all gradients.
func (lo *lowering) clips() bool { return lo.opt.Clip > 0 }

// onDisk reports whether this rank has state of a chunk on disk.
func (lo *lowering) onDisk(c int) bool {
	return lo.pl.Chunks[c].State == device.DiskTier && lo.local(c) && lo.reduced(c).len() > 0
}

// moved is the home with what is in one buffer taken to be in another.
func (h weightHome) moved(from, to int) weightHome {
	for _, s := range []*store{&h.m, &h.v, &h.master} {
		if s.buf == from {
			s.buf = to
		}
	}
	return h
}

// records are the buffers of a chunk's state on disk.
func (lo *lowering) records(c int) []int {
	h := &lo.weightBuf[c]
	if h.master.buf != h.m.buf && h.master.buf >= 0 && lo.p.Buffers[h.master.buf].Tier == device.DiskTier {
		return []int{h.m.buf, h.master.buf}
	}
	return []int{h.m.buf}
}

// stage makes a host buffer for records on disk.
func (lo *lowering) stage(buf int) int {
	b := lo.p.Buffers[buf]
	b.Name, b.Tier, b.Persistent, b.Init = "stage."+b.Name, device.HostTier, false, nil
	return lo.buffer(b)
}

// update steps what this rank updates of a chunk.
func (lo *lowering) update(list *[]op, c int, grad store, home weightHome) {
	ch, tier, own := lo.pl.Chunks[c], lo.updatedOn(c), lo.reduced(c)
	master, moments := StateTypes(lo.pl.State)
	// Where the working copy is written: nowhere (it is the master), in place,
	// or in a buffer on this side of the link.
	var work16, send *store
	switch {
	case ch.Weights != tier && lo.g.DType != master:
		s := lo.chunkBuffer("p16.host", c, own, tier, ClassWeights, graph.BF16)
		work16, send = &s, &s
	case ch.Weights != tier:
		send = &home.master
	case home.work != home.master:
		work16 = &home.work
	}
	for _, q := range lo.parts(c, own) {
		attr := graph.Attr{Beta1: lo.opt.Beta1, Beta2: lo.opt.Beta2, Eps: lo.opt.Eps}
		if moments == graph.BF16 {
			attr.Param, attr.First = q.param, q.lo-lo.offsetOf[q.param]
		}
		if !lo.g.Params[q.param].Vector {
			attr.Decay = lo.opt.Decay
		}
		clip, p16 := Region{}, Region{}
		if lo.clips() {
			clip = lo.p.whole(lo.clip[tier])
		}
		if work16 != nil {
			p16 = work16.region(q.lo, q.hi)
		}
		*list = append(*list, lo.opt1(tier, c, graph.AdamW, attr,
			home.master.region(q.lo, q.hi), home.m.region(q.lo, q.hi), home.v.region(q.lo, q.hi), grad.region(q.lo, q.hi),
			clip, lo.p.whole(lo.scalars[tier]), p16))
	}
	if send != nil {
		*list = append(*list, moveOp(device.HostToDev, Key{Segment: -1, Micro: -1, Chunk: c}, home.work, *send, own))
	}
}

// spread gathers the updated weights of a chunk where every rank has all of
// them but updates its own.
func (lo *lowering) spread(list *[]op, c int) {
	if !lo.sharded(c, "state") || lo.sharded(c, "weights") {
		return
	}
	work := lo.weightBuf[c].work
	*list = append(*list, lo.between(graph.AllGather, Key{Segment: -1, Micro: -1, Chunk: c}, c, false, work.of(lo.whole(c)), work.of(lo.held(c, "state"))))
}
