package program

import (
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
	grads := make([]int, len(lo.pl.Chunks)) // buffer that the optimizer reads
	parts := lo.newParts()
	for c := range lo.pl.Chunks {
		grads[c] = lo.deliver(c)
		lo.normParts(c, grads[c], parts)
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

// deliver brings the finished gradient of a chunk to the tier that updates it.
func (lo *lowering) deliver(c int) int {
	home := lo.gradBuf[c]
	if lo.updatedOn(c) == home.tier {
		return home.buf
	}
	buf := lo.chunkBuffer("grad.host", c, device.HostTier, ClassGrads, graph.F32)
	u := &lo.units[home.last]
	started := make([]bool, len(lo.g.Params))
	for i := range started {
		started[i] = true
	}
	for _, r := range lo.runs(c, started) {
		u.after = append(u.after, copyOp(device.DevToHost, Key{Segment: u.segment, Micro: u.micro, Chunk: c}, at(buf, r), at(home.buf, r)))
	}
	return buf
}

// normBuffers hold the partial sums of the squared norm: one slot for every
// NormPiece elements of every parameter, in order. All of them are together in
// the tier final; where chunks are updated in a nearer tier, those have a
// buffer of their own there first.
type normBuffers struct {
	buf   [device.NumTiers]int
	slots [device.NumTiers][]int // first slot of each parameter, and the end
	final device.Tier
}

func (lo *lowering) newParts() normBuffers {
	n := normBuffers{buf: [device.NumTiers]int{-1, -1, -1}}
	for c := range lo.pl.Chunks {
		n.final = max(n.final, lo.updatedOn(c))
	}
	for t := range n.final + 1 {
		slots := []int{0}
		var cuts []int
		for i, p := range lo.g.Params {
			end := slots[i]
			if t == n.final || lo.updatedOn(lo.chunkOf[i]) == t {
				end += graph.NormPieces(p.Elems())
				cuts = append(cuts, end)
			}
			slots = append(slots, end)
		}
		if len(cuts) == 0 {
			continue
		}
		b := Buffer{Name: "norm.parts." + t.String(), Tier: t, Class: ClassReductions, DType: graph.F64, Rows: 1, Cols: slots[len(slots)-1]}
		if last := len(cuts) - 1; last > 0 {
			b.Cuts = cuts[:last]
		}
		n.slots[t], n.buf[t] = slots, lo.buffer(b)
	}
	return n
}

// slice is the slots of parameters first..last-1 in a tier's buffer.
func (n *normBuffers) slice(t device.Tier, first, last int) Region {
	return at(n.buf[t], [2]int{n.slots[t][first], n.slots[t][last]})
}

// normParts sums the squares of a chunk's gradient as soon as it is complete.
func (lo *lowering) normParts(c, grad int, n normBuffers) {
	ch, tier := lo.pl.Chunks[c], lo.updatedOn(c)
	u := &lo.units[lo.gradBuf[c].last]
	for i := ch.First; i < ch.Last; i++ {
		u.after = append(u.after, lo.opt1(tier, c, graph.NormPart, graph.Attr{}, n.slice(tier, i, i+1), lo.flat(grad, 0, i)))
	}
	if tier != n.final {
		u.after = append(u.after, copyOp(device.DevToHost, Key{Segment: u.segment, Micro: u.micro, Chunk: c},
			n.slice(n.final, ch.First, ch.Last), n.slice(tier, ch.First, ch.Last)))
	}
}

// norm finishes the norm and takes the clip factor to every tier that updates,
// and to the host for the run to read.
func (lo *lowering) norm(u *unit, n normBuffers) {
	p := lo.p
	lo.clip = [device.NumTiers]int{-1, -1, -1}
	lo.clip[device.HostTier] = lo.buffer(Buffer{Name: "clip", Tier: device.HostTier, Class: ClassReductions, DType: graph.F32, Rows: 1, Cols: 2,
		Persistent: true, Init: []string{"clip.before"}})
	if n.buf[device.DeviceTier] >= 0 {
		lo.clip[device.DeviceTier] = lo.buffer(Buffer{Name: "clip.dev", Tier: device.DeviceTier, Class: ClassReductions, DType: graph.F32, Rows: 1, Cols: 2})
	}
	u.work = append(u.work, lo.opt1(n.final, -1, graph.NormAll, graph.Attr{Clip: lo.opt.Clip}, p.whole(lo.clip[n.final]), p.whole(n.buf[n.final])))
	for t, buf := range lo.clip {
		if buf < 0 || device.Tier(t) == n.final {
			continue
		}
		stream := device.HostToDev
		if n.final == device.DeviceTier {
			stream = device.DevToHost
		}
		u.work = append(u.work, copyOp(stream, noKey, p.whole(buf), p.whole(lo.clip[n.final])))
	}
}

// updates lists the chunks' updates in order of first use, so that what the
// next step needs first is ready first. States on disk are read ahead.
func (lo *lowering) updates(u *unit, grads []int) {
	staged := make([]int, len(lo.pl.Chunks))
	var disk []int
	for c, ch := range lo.pl.Chunks {
		if ch.State == device.DiskTier {
			disk = append(disk, c)
		}
	}
	read := func() {
		if len(disk) == 0 {
			return
		}
		c := disk[0]
		disk = disk[1:]
		staged[c] = lo.stage(c)
		u.work = append(u.work, copyOp(device.DiskRead, Key{Segment: -1, Micro: -1, Chunk: c}, lo.p.whole(staged[c]), lo.p.whole(lo.weightBuf[c].state)))
	}
	for range stagingDepth {
		read()
	}
	for c, ch := range lo.pl.Chunks {
		state := lo.weightBuf[c].state
		if ch.State == device.DiskTier {
			state = staged[c]
		}
		lo.update(u, c, grads[c], state)
		if ch.State == device.DiskTier {
			u.work = append(u.work, copyOp(device.DiskWrite, Key{Segment: -1, Micro: -1, Chunk: c}, lo.p.whole(lo.weightBuf[c].state), lo.p.whole(state)))
			read()
		}
	}
}

// stage makes a host buffer for a chunk's records on disk.
func (lo *lowering) stage(c int) int {
	b := lo.p.Buffers[lo.weightBuf[c].state]
	b.Name, b.Tier, b.Persistent, b.Init = "stage."+b.Name, device.HostTier, false, nil
	return lo.buffer(b)
}

// update steps the parameters of one chunk, whose moments are in buffer state.
func (lo *lowering) update(u *unit, c, grad, state int) {
	ch, tier, home := lo.pl.Chunks[c], lo.updatedOn(c), lo.weightBuf[c]
	elems := lo.record(c, ch.State)
	master := home.master
	if master == home.state {
		master = state
	}
	// Where the working copy is written: nowhere (it is the master), in place,
	// or in a buffer on this side of the link.
	work16, send := -1, -1
	switch {
	case ch.Weights != tier && lo.g.DType == graph.BF16:
		work16 = lo.chunkBuffer("p16.host", c, tier, ClassWeights, graph.BF16)
		send = work16
	case ch.Weights != tier:
		send = master
	case home.work != home.master:
		work16 = home.work
	}
	for i := ch.First; i < ch.Last; i++ {
		attr := graph.Attr{Beta1: lo.opt.Beta1, Beta2: lo.opt.Beta2, Eps: lo.opt.Eps}
		if !lo.g.Params[i].Vector {
			attr.Decay = lo.opt.Decay
		}
		p16 := Region{}
		if work16 >= 0 {
			p16 = lo.flat(work16, 0, i)
		}
		u.work = append(u.work, lo.opt1(tier, c, graph.AdamW, attr,
			lo.flat(master, home.masterAt, i), lo.flat(state, 0, i), lo.flat(state, elems, i), lo.flat(grad, 0, i),
			lo.p.whole(lo.clip[tier]), lo.p.whole(lo.scalars[tier]), p16))
	}
	if send >= 0 {
		all := [2]int{0, lo.record(c, device.DeviceTier)}
		u.work = append(u.work, copyOp(device.HostToDev, Key{Segment: -1, Micro: -1, Chunk: c}, at(home.work, all), at(send, all)))
	}
}
