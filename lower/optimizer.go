package lower

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/program"
)

// updateParams lists what follows the last contribution to each gradient, and returns the units with one more for the
// end of the step. The gradient is moved to the processor that updates its chunk, and its squares are summed. Once all
// squares are summed the clip factor is known, and every chunk is updated. Chunks with
// device state are updated on the device; the others on the host's cores or, if the
// plan says so, on the device. State that lives elsewhere is streamed through staging
// buffers. Updated weights return to where the forward pass reads them.
func updateParams(b *builder, units []unit, in stepInputs, weights []weightHome, complete []gradHome) []unit {
	st := b.st
	if !st.updates() {
		return units
	}
	up := &updater{st: st, b: b, units: units, weights: weights, complete: complete, grads: make([]store, len(st.pl.Chunks))}
	up.terms.scalars = in.scalars
	parts := up.newNormParts()
	for c := range st.pl.Chunks {
		if st.trained(c) && st.reduced(c).len() > 0 {
			up.deliver(c, parts)
		}
	}
	var now, later []int
	for c := range st.pl.Chunks {
		switch {
		case st.deferred(c):
			if st.reduced(c).len() > 0 {
				b.keepGradient(c, up.grads[c])
			}
			later = append(later, c)
		case st.trained(c):
			now = append(now, c)
		}
	}
	u := unit{segment: -1, micro: -1}
	up.finishNorm(&u, parts)
	up.updateNow(&u, now, parts)
	up.updatePostponed(later)
	return append(units, u)
}

// updater lists the norm and the updates.
type updater struct {
	st       *step
	b        *builder
	units    []unit
	weights  []weightHome
	complete []gradHome
	grads    []store // per chunk, this rank's part of the gradient where the update finds it
	terms    terms   // of this step's updates
}

// terms are what all updates of a step read.
type terms struct {
	scalars [device.NumTiers]int // buffer of the step's scalars, by tier, or -1
	clip    [device.NumTiers]int // buffer of {clip factor, norm}, or -1
}

// deliver moves this rank's part of a chunk's complete gradient to the tier that updates the chunk, and sums its
// squares.
func (up *updater) deliver(c int, parts *normParts) {
	st, home := up.st, up.complete[c]
	up.grads[c] = home.store
	if st.squaredOn(c) != home.tier {
		up.grads[c] = up.toHost(c)
	}
	if !up.atOnce(c) {
		up.square(&up.units[home.unit].after, c, parts)
	}
	if st.compact(c) {
		up.grads[c] = up.compress(c)
		if st.updatedOn(c) == device.HostTier {
			up.grads[c] = up.toHost(c)
		}
	}
	if st.clips() && st.pl.Chunks[c].Grads > st.updatedOn(c) {
		up.grads[c] = up.toHost(c) // where the gradient waits for the norm
	}
}

// toHost copies a chunk's complete gradient from the device to the host.
func (up *updater) toHost(c int) store {
	home, own := up.complete[c], up.st.reduced(c)
	host := up.b.chunkBuffer("grad.host", c, own, device.HostTier, program.ClassGrads, graph.F32)
	u := &up.units[home.unit]
	u.after = append(u.after, moveOp(device.DevToHost, u.key(c), host, up.grads[c], own))
	return host
}

// updateNow lists the chunks' updates. With clipping, they follow the norm, in order of
// first use, so that what the next step needs first is ready first. Without clipping,
// each follows its complete gradient, during the backward pass. State that lives
// elsewhere is prefetched.
func (up *updater) updateNow(u *unit, order []int, parts *normParts) {
	early, list := func(int) *[]*op { return &u.before }, func(int) *[]*op { return &u.work }
	if !up.st.clips() {
		last := func(c int) *unit { return &up.units[up.complete[c].unit] }
		early, list = func(c int) *[]*op { return &last(c).before }, func(c int) *[]*op { return &last(c).after }
		slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(up.complete[a].unit, up.complete[b].unit) })
		for _, c := range order {
			if up.atOnce(c) {
				up.updateAtOnce(c, parts)
			}
		}
		order = slices.DeleteFunc(order, up.atOnce)
	}
	up.listUpdates(order, &up.terms, early, list, list)
}

// atOnce reports whether a chunk is updated in the midst of the unit that completes its gradient, so that the gradient's memory is free
// for that of the next parameter: where nothing waits for the norm, and nothing but operators and the update touches the chunk.
func (up *updater) atOnce(c int) bool {
	st, ch := up.st, &up.st.pl.Chunks[c]
	return !st.clips() && len(st.top.Groups[c]) == 1 && !st.cached(c) && ch.State == device.DeviceTier && st.reduced(c).len() > 0
}

// updateAtOnce lists a chunk's squares and its update after the last operator that adds to its gradient or reads its weights.
func (up *updater) updateAtOnce(c int, parts *normParts) {
	u, last := &up.units[up.complete[c].unit], -1
	for i, o := range u.work {
		if slices.ContainsFunc(o.in.Args, func(r program.Region) bool {
			return !r.Absent() && (r.Buf == up.weights[c].work.buf || r.Buf == up.grads[c].buf)
		}) {
			last = i
		}
	}
	var list []*op
	up.square(&list, c, parts)
	up.updateChunk(&list, &list, c, up.grads[c], up.weights[c], &up.terms)
	u.work = slices.Insert(u.work, last+1, list...)
}

// listUpdates lists updates and the copies that stage their data. The functions return where to append what: early the
// first fetches, list a chunk's update, send what is then sent across the link or to other ranks.
func (up *updater) listUpdates(order []int, t *terms, early, list, send func(c int) *[]*op) {
	s := newStaging(up, order)
	for tier, queue := range s.queues {
		for range min(stagingDepth[tier]-1, len(queue)) {
			s.next(early(queue[0]), device.Tier(tier))
		}
	}
	for _, c := range order {
		if up.st.reduced(c).len() > 0 {
			if len(s.trips[c]) > 0 {
				s.next(list(c), up.st.updatedOn(c))
			}
			home, grad := s.arrived(c)
			up.updateChunk(list(c), send(c), c, grad, home, t)
		}
		up.gatherUpdated(send(c), c)
		s.writeBack(list(c), c)
	}
}

// updateChunk lists the update of this rank's part of a chunk and, in sends, the copy of new weights across the link.
func (up *updater) updateChunk(list, sends *[]*op, c int, grad store, home weightHome, t *terms) {
	st := up.st
	ch, tier, own := st.pl.Chunks[c], st.updatedOn(c), st.reduced(c)
	dtype := st.typeOf(c)
	master, moments := st.pl.State.TypesFor(dtype)
	rule := st.pl.Rule(st.g, c)
	// Where the bf16 working copy is written: nowhere (it is what is updated), or to a
	// buffer on this side of the link, to be sent.
	var work16, send *store
	switch {
	case dtype == master && ch.Weights < tier:
		send = &home.master
	case dtype == master || home.rest.buf >= 0: // operators read what is updated
	default:
		s := up.b.chunkBuffer("p16."+tier.String(), c, own, tier, program.ClassWeights, graph.BF16)
		work16, send = &s, &s
	}
	clip := program.Region{}
	if st.clips() {
		clip = up.b.p.BufferRegion(t.clip[tier])
	}
	calls, room := st.updateCalls(c, own), -1
	if !rule.Elementwise {
		room = up.roomToWork(c, calls)
	}
	for _, q := range calls {
		attr := graph.Attr{Beta1: st.opt.Beta1, Beta2: st.opt.Beta2, Eps: st.opt.Eps}
		if !rule.Elementwise {
			attr = st.wholeAttr(q)
		}
		if moments == graph.BF16 || master == graph.I8 {
			whole, first := st.g.Vocabulary.WholeOf(q.param)
			attr.Param, attr.First = whole, first+q.lo-st.offsetOf[q.param]
		}
		if p := &st.g.Params[q.param]; !p.Vector && rule.Elementwise {
			attr.Decay = st.opt.Decay
		}
		attr.Masked, attr.Unit = st.g.Params[q.param].Masked, st.g.Params[q.param].Unit
		of := func(s *store) program.Region { // absent if it has no buffer
			if s == nil || s.buf < 0 {
				return program.Region{}
			}
			return s.matrix(q)
		}
		args := make([]program.Region, 0, rule.WorkAt()+1)
		args = append(args, of(&home.master))
		for k := range rule.Moments {
			args = append(args, st.momentOf(&home, k, q))
		}
		args = append(args, of(&grad), clip, up.b.p.BufferRegion(t.scalars[tier]), of(work16))
		if home.rest.buf >= 0 || room >= 0 {
			args = append(args, of(&home.rest))
		}
		if room >= 0 {
			args = append(args, store{room, 0}.region(0, graph.MuonPlacesOf(q.rows, q.cols()).Len))
		}
		*list = append(*list, processorOp(tier, c, rule.Op, attr, args...))
	}
	if send != nil {
		stream := device.HostToDev
		if tier == device.DeviceTier {
			stream = device.DevToHost
		}
		*sends = append(*sends, moveOp(stream, updateKey(c), home.work, *send, own))
	}
}

// updateCall is the elements of one call of an update: rows of equal length.
type updateCall struct {
	part
	rows int
}

func (q updateCall) cols() int { return (q.hi - q.lo) / q.rows }

// matrix returns the region of a call's elements.
func (s store) matrix(q updateCall) program.Region {
	return program.Region{Buf: s.buf, Off: s.at + q.lo, Rows: q.rows, Cols: q.cols(), Stride: q.cols()}
}

// updateCalls lists the calls that update a piece of a chunk: as few as possible or, of indivisible parameters, one for each
// matrix.
func (st *step) updateCalls(c int, own piece) (list []updateCall) {
	if !st.indivisible(c) {
		for _, q := range st.mergedParts(c, own) {
			list = append(list, updateCall{q, 1})
		}
		return list
	}
	for _, q := range st.splitByParam(c, own) {
		p := &st.g.Params[q.param]
		n := max(1, p.Experts)
		each := (q.hi - q.lo) / n
		for e := range n {
			list = append(list, updateCall{part{q.param, q.lo + e*each, q.lo + (e+1)*each}, p.Rows / n})
		}
	}
	return list
}

// wholeAttr returns the constants of the update of a whole matrix. Its learning rate is a multiple of the others', and so is
// its decay.
func (st *step) wholeAttr(q updateCall) graph.Attr {
	t := &st.opt.Muon
	return graph.Attr{Beta1: t.Momentum, Eps: graph.MuonEps, Decay: st.opt.Decay * t.Rate, Scale: t.Step(q.rows, q.cols())}
}

// roomToWork allocates the buffer in which a chunk's updates work, one after the other: in bf16 if that is what it is computed with.
func (up *updater) roomToWork(c int, calls []updateCall) int {
	var ends []int
	for _, q := range calls {
		ends = append(ends, graph.MuonPlacesOf(q.rows, q.cols()).Len)
	}
	slices.Sort(ends)
	ends = slices.Compact(ends)
	last, dtype := len(ends)-1, graph.F32
	if up.st.typeOf(c) == graph.BF16 {
		dtype = graph.BF16
	}
	return up.b.buffer(program.Buffer{Name: "muon.c" + strconv.Itoa(c), Tier: up.st.updatedOn(c), Class: program.ClassGrads, DType: dtype,
		Rows: 1, Cols: ends[last], Cuts: ends[:last]})
}

// gatherUpdated all-gathers the updated weights of a chunk that every rank holds entirely but
// updates only its own shard of.
func (up *updater) gatherUpdated(list *[]*op, c int) {
	st := up.st
	if !st.sharded(c, "state") || st.sharded(c, "weights") {
		return
	}
	work := up.weights[c].work
	*list = append(*list, st.collective(graph.AllGather, updateKey(c), c, false, work.of(st.chunkRange(c)), work.of(st.held(c, "state"))))
}
