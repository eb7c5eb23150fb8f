package lower

import (
	"cmp"
	"slices"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
)

// optimizer lists what follows the last contribution to each gradient. The gradient is
// moved to the processor that updates its chunk, and its squares are summed. Once all
// squares are summed the clip factor is known, and every chunk is updated. Chunks with
// device state are updated on the device; the others on the host's cores or, if the
// plan says so, on the device. State that lives elsewhere is streamed through staging
// buffers. Updated weights return to where the forward pass reads them.
func (lo *lowering) optimizer() error {
	if !lo.updates() {
		return nil
	}
	grads := make([]store, len(lo.pl.Chunks)) // inputs of the optimizer
	parts := lo.newNormParts()
	for c := range lo.pl.Chunks {
		if lo.trained(c) && lo.reduced(c).len() > 0 {
			grads[c] = lo.deliver(c)
			lo.square(c, grads[c], parts)
			if lo.clips() && lo.pl.Chunks[c].Grads > lo.updatedOn(c) {
				grads[c] = lo.toHost(c) // where the gradient waits for the norm
			}
		}
	}
	var now, later []int
	for c := range lo.pl.Chunks {
		switch {
		case lo.deferred(c):
			if lo.reduced(c).len() > 0 {
				lo.keepGradient(c, grads[c])
			}
			later = append(later, c)
		case lo.trained(c):
			now = append(now, c)
		}
	}
	u := unit{segment: -1, micro: -1}
	lo.norm(&u, parts)
	lo.update(&u, now, grads)
	lo.postponed(later, grads)
	lo.units = append(lo.units, u)
	return nil
}

// updatedOn returns the tier whose processor updates a chunk.
func (lo *lowering) updatedOn(c int) device.Tier {
	if lo.pl.Chunks[c].Update == plan.UpdateOnDevice {
		return device.DeviceTier
	}
	return min(lo.pl.Chunks[c].State, device.HostTier)
}

// opt1 builds an optimizer instruction on the given tier's processor.
func (lo *lowering) opt1(tier device.Tier, c int, op1 graph.Op, attr graph.Attr, args ...program.Region) op {
	stream := device.Compute
	if tier == device.HostTier {
		stream = device.HostCompute
	}
	key := program.NoKey
	key.Chunk, key.Dir = c, program.Optimizer
	return op{in: program.Instr{Op: op1, Attr: attr, Stream: stream, Key: key, Args: args}}
}

// deliver moves this rank's part of a chunk's complete gradient to the tier that
// updates the chunk.
func (lo *lowering) deliver(c int) store {
	if home := lo.gradBuf[c]; lo.updatedOn(c) == home.tier {
		return home.store
	}
	return lo.toHost(c)
}

// toHost copies a chunk's complete gradient from the device to the host.
func (lo *lowering) toHost(c int) store {
	home, own := lo.gradBuf[c], lo.reduced(c)
	host := lo.chunkBuffer("grad.host", c, own, device.HostTier, program.ClassGrads, graph.F32)
	u := &lo.units[home.unit]
	u.after = append(u.after, moveOp(device.DevToHost, lo.key(u, c), host, home.store, own))
	return host
}

// update lists the chunks' updates. With clipping, they follow the norm, in order of
// first use, so that what the next step needs first is ready first. Without clipping,
// each follows its complete gradient, during the backward pass. State that lives
// elsewhere is prefetched.
func (lo *lowering) update(u *unit, order []int, grads []store) {
	early, list := func(int) *[]op { return &u.before }, func(int) *[]op { return &u.work }
	if !lo.clips() {
		last := func(c int) *unit { return &lo.units[lo.gradBuf[c].unit] }
		early, list = func(c int) *[]op { return &last(c).before }, func(c int) *[]op { return &last(c).after }
		slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(lo.gradBuf[a].unit, lo.gradBuf[b].unit) })
	}
	lo.listUpdates(order, grads, &lo.terms, early, list, list)
}

// listUpdates lists updates and the copies that stage their data. The functions return where to append what: early the
// first fetches, list a chunk's update, send what is then sent across the link or to other ranks.
func (lo *lowering) listUpdates(order []int, grads []store, t *terms, early, list, send func(c int) *[]op) {
	s := lo.newStaging(order, grads)
	for tier, queue := range s.queues {
		for range min(stagingDepth[tier]-1, len(queue)) {
			s.next(early(queue[0]), device.Tier(tier), grads)
		}
	}
	for _, c := range order {
		if lo.reduced(c).len() > 0 {
			if len(s.trips[c]) > 0 {
				s.next(list(c), lo.updatedOn(c), grads)
			}
			home, grad := s.arrived(c, grads[c])
			lo.updateChunk(list(c), send(c), c, grad, home, t)
		}
		lo.spread(send(c), c)
		s.back(list(c), c)
	}
}

// clips reports whether updates must wait for the norm of all gradients.
func (lo *lowering) clips() bool { return lo.opt.Clip > 0 }

// updateChunk lists the update of this rank's part of a chunk and, in sends, the copy of new weights across the link.
func (lo *lowering) updateChunk(list, sends *[]op, c int, grad store, home weightHome, t *terms) {
	ch, tier, own := lo.pl.Chunks[c], lo.updatedOn(c), lo.reduced(c)
	master, moments := lo.pl.State.Types()
	rule := lo.pl.Optimizer.Rule()
	// Where the bf16 working copy is written: nowhere (it is what is updated), or to a
	// buffer on this side of the link, to be sent.
	var work16, send *store
	switch {
	case lo.g.DType == master && ch.Weights < tier:
		send = &home.master
	case lo.g.DType == master || home.rest.buf >= 0: // operators read what is updated
	default:
		s := lo.chunkBuffer("p16."+tier.String(), c, own, tier, program.ClassWeights, graph.BF16)
		work16, send = &s, &s
	}
	for _, q := range lo.alike(c, own) {
		attr := graph.Attr{Beta1: lo.opt.Beta1, Beta2: lo.opt.Beta2, Eps: lo.opt.Eps}
		if moments == graph.BF16 {
			attr.Param, attr.First = q.param, q.lo-lo.offsetOf[q.param]
		}
		if !lo.g.Params[q.param].Vector {
			attr.Decay = lo.opt.Decay
		}
		clip, p16 := program.Region{}, program.Region{}
		if lo.clips() {
			clip = lo.p.Whole(t.clip[tier])
		}
		if work16 != nil {
			p16 = work16.region(q.lo, q.hi)
		}
		args := make([]program.Region, 0, rule.LowerHalvesAt()+1)
		args = append(args, home.master.region(q.lo, q.hi))
		for k := range rule.Moments {
			args = append(args, home.moments[k].region(q.lo, q.hi))
		}
		args = append(args, grad.region(q.lo, q.hi), clip, lo.p.Whole(t.scalars[tier]), p16)
		if home.rest.buf >= 0 {
			args = append(args, home.rest.region(q.lo, q.hi))
		}
		*list = append(*list, lo.opt1(tier, c, rule.Op, attr, args...))
	}
	if send != nil {
		stream := device.HostToDev
		if tier == device.DeviceTier {
			stream = device.DevToHost
		}
		*sends = append(*sends, moveOp(stream, updateKey(c), home.work, *send, own))
	}
}

// mostJoined is the maximum number of elements of a call on several parameters: kernels count in 32 bits.
const mostJoined = 1 << 30

// alike lists a piece's parts, merging neighbours with the same weight decay unless their elements are numbered for
// stochastic rounding: vectors have so few elements that a GPU takes longer to launch their updates than to run them.
func (lo *lowering) alike(c int, p piece) (list []part) {
	_, moments := lo.pl.State.Types()
	for _, q := range lo.parts(c, p) {
		if n := len(list); n > 0 && moments != graph.BF16 && list[n-1].hi == q.lo && q.hi-list[n-1].lo <= mostJoined && lo.g.Params[list[n-1].param].Vector == lo.g.Params[q.param].Vector {
			list[n-1].hi = q.hi
			continue
		}
		list = append(list, q)
	}
	return list
}

// Updates lists the number of elements of each call when as few calls as possible update all parameters, for an
// optimizer state in the given storage format.
func Updates(g *graph.Graph, state plan.StateFormat) (elems []int) {
	lo := &lowering{g: g, pl: &plan.Plan{Chunks: plan.Layout(g, 1<<62), State: state}}
	lo.index()
	for c := range lo.pl.Chunks {
		if lo.frozen(c) {
			continue
		}
		for _, q := range lo.alike(c, lo.whole(c)) {
			elems = append(elems, q.hi-q.lo)
		}
	}
	return elems
}

// spread all-gathers the updated weights of a chunk that every rank holds entirely but
// updates only its own shard of.
func (lo *lowering) spread(list *[]op, c int) {
	if !lo.sharded(c, "state") || lo.sharded(c, "weights") {
		return
	}
	work := lo.weightBuf[c].work
	*list = append(*list, lo.between(graph.AllGather, updateKey(c), c, false, work.of(lo.whole(c)), work.of(lo.held(c, "state"))))
}
