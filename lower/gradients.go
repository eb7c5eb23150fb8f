package lower

import (
	"fmt"
	"slices"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/program"
)

// gradHome says where a chunk's complete gradient is: on tier Chunk.Grads, or still
// on the device if the device updates it.
type gradHome struct {
	store
	tier device.Tier
	unit int // the gradient is complete after this unit
}

// sumGradients allocates the buffers of the parameters' gradients and reduces them over
// the ranks that contribute.
//
// A chunk whose gradient lives on the device has one buffer from its first contribution
// to the optimizer. If the gradient lives on the host or is sharded (ZeRO-2), each
// visit (a run of units that contribute to the chunk, see below) gets its own device
// buffer:
//
//	host     the previous sum is copied in, the visit's contributions
//	         continue it, and it is copied back
//	sharded  the visit's sum is reduced over the ranks; each rank adds its
//	         shard of the result to what it has accumulated
//
// The first contribution to a parameter in a step (if sharded: in a visit) overwrites;
// all others accumulate. A gradient that is not sharded is reduced once, when it is
// complete.
func sumGradients(b *builder, units []unit, args []operand) ([]gradHome, error) {
	st := b.st
	homes := make([]gradHome, len(st.pl.Chunks))
	if !st.trains() {
		return homes, nil
	}
	gp := &gradientPass{st: st, b: b, units: units, started: make([]bool, len(st.g.Params))}
	added := contributions(st, args)
	for c := range st.pl.Chunks {
		if !st.trained(c) {
			continue
		}
		if len(added[c]) == 0 {
			return nil, fmt.Errorf("no unit of the schedule on rank %d contributes to the gradients of chunk %d", st.rank, c)
		}
		homes[c] = gp.sumChunk(c, added[c])
		if st.opt.Mode == Grads {
			b.keepGradient(c, homes[c].store)
		}
	}
	return homes, nil
}

// gradientPass lists what sums gradients.
type gradientPass struct {
	st      *step
	b       *builder
	units   []unit
	started []bool // per parameter: it already has a contribution
}

// sumChunk lists what sums the gradient of a chunk, to which the given operands are added.
func (gp *gradientPass) sumChunk(c int, added []operand) gradHome {
	st := gp.st
	home := gradHome{tier: st.pl.Chunks[c].Grads, unit: added[len(added)-1].unit}
	if st.staysOnDevice(c) {
		home.tier = device.DeviceTier
	}
	switch {
	case st.sharded(c, "grads"):
		home.store = gp.dividedVisits(c, added)
	case st.pl.Chunks[c].Grads == device.HostTier:
		home.store = gp.hostVisits(c, added)
	default:
		home.store = gp.b.chunkBuffer("grad", c, st.chunkRange(c), device.DeviceTier, program.ClassGrads, graph.F32)
		gp.contribute(added, home.store, gp.started)
		if !st.top.Ordered[c] {
			home.unit = len(gp.units) - 1 // at the end, all ranks reduce in the same order
		}
		u := &gp.units[home.unit]
		u.after = append(u.after, gp.reduce(c, home.store, u.key(c))...)
	}
	return home
}

// reduce lists the instructions that sum a complete gradient over the group in place:
// the whole gradient, or this rank's shard.
func (gp *gradientPass) reduce(c int, s store, key program.Key) []*op {
	st := gp.st
	all := st.chunkRange(c)
	switch {
	case len(st.top.Groups[c]) == 1:
		return nil
	case st.sharded(c, "state"):
		return []*op{st.collective(graph.ReduceScatter, key, c, false, s.of(st.held(c, "state")), s.of(all))}
	}
	return []*op{st.collective(graph.AllReduce, key, c, false, s.of(all))}
}

// contributions lists for each chunk the operands that are added to its gradient.
func contributions(st *step, args []operand) [][]operand {
	number := make([]int, len(st.pl.Chunks))
	for _, a := range args {
		number[st.chunkOfArg(a)]++
	}
	list := make([][]operand, len(st.pl.Chunks))
	for c, n := range number {
		list[c] = make([]operand, 0, n)
	}
	for _, a := range args {
		c := st.chunkOfArg(a)
		list[c] = append(list[c], a)
	}
	return list
}

// contribute redirects gradient operands of one chunk to a store.
func (gp *gradientPass) contribute(args []operand, s store, started []bool) {
	for _, a := range args {
		v := &gp.st.g.Values[a.ref().value]
		a.resolve(gp.st.paramRegion(s, a.ref().value))
		a.op.in.Attr.Acc = started[v.Param]
		for i := range v.Params {
			started[v.Param+i] = true
		}
	}
}

// visit is a run of units that contribute to a chunk, interrupted only by other
// backward units of the same stage. So a stage's gradients form one buffer, as the
// schedule assumes. It is reduced when another stage's turn comes: once per step under
// layered gradient accumulation.
type visit struct{ added []operand }

// visits divides the operands that are added to the gradient of a chunk.
func (gp *gradientPass) visits(added []operand) (list []visit) {
	for v := 0; v < len(added); {
		end := v + 1
		for end < len(added) && gp.sameVisit(added[end-1].unit, added[end].unit) {
			end++
		}
		list = append(list, visit{added[v:end]})
		v = end
	}
	return list
}

// sameVisit reports whether units i and j >= i belong to the same visit.
func (gp *gradientPass) sameVisit(i, j int) bool {
	st := gp.st
	if st.top.Schedule == nil {
		return j <= i+1
	}
	stage := st.top.Stage(gp.units[i].segment)
	return !slices.ContainsFunc(gp.units[i+1:j+1], func(u unit) bool {
		return !u.backward || st.top.Stage(u.segment) != stage
	})
}

func (v visit) first() int { return v.added[0].unit }
func (v visit) last() int  { return v.added[len(v.added)-1].unit }

// hostVisits lowers a chunk whose gradient accumulates on the host, and returns where
// the complete gradient is. Before the last visit the host holds this rank's sum; after
// that visit, the result of the reduction.
func (gp *gradientPass) hostVisits(c int, added []operand) store {
	st := gp.st
	all, list := st.chunkRange(c), gp.visits(added)
	rest := all // size of the result of the reduction
	if st.sharded(c, "state") {
		rest = st.held(c, "state")
	}
	final := store{-1, 0}
	if rest.len() > 0 && !st.staysOnDevice(c) {
		final = gp.b.chunkBuffer("grad", c, rest, device.HostTier, program.ClassGrads, graph.F32)
	}
	partial := final
	if (rest != all || st.staysOnDevice(c)) && len(list) > 1 {
		partial = gp.b.chunkBuffer("grad.part", c, all, device.HostTier, program.ClassGrads, graph.F32)
	}
	for n, v := range list {
		buf := gp.b.chunkBuffer(fmt.Sprintf("grad%d", n), c, all, device.DeviceTier, program.ClassGrads, graph.F32)
		first, last := &gp.units[v.first()], &gp.units[v.last()]
		for _, r := range gp.startedRuns(c) {
			first.before = append(first.before, moveOp(device.HostToDev, first.key(c), buf, partial, r))
		}
		gp.contribute(v.added, buf, gp.started)
		if n < len(list)-1 {
			for _, r := range gp.startedRuns(c) {
				last.after = append(last.after, moveOp(device.DevToHost, last.key(c), partial, buf, r))
			}
			continue
		}
		last.after = append(last.after, gp.reduce(c, buf, last.key(c))...)
		if st.staysOnDevice(c) {
			final = buf
		} else if rest.len() > 0 {
			last.after = append(last.after, moveOp(device.DevToHost, last.key(c), final, buf, rest))
		}
	}
	return final
}

// dividedVisits lowers a chunk whose gradient is sharded over the ranks.
func (gp *gradientPass) dividedVisits(c int, added []operand) store {
	st := gp.st
	all, own := st.chunkRange(c), st.held(c, "grads")
	tier, list := st.pl.Chunks[c].Grads, gp.visits(added)
	stays := tier == device.HostTier && st.staysOnDevice(c)
	home := store{-1, 0}
	if own.len() > 0 && !(stays && len(list) == 1) {
		home = gp.b.chunkBuffer("grad", c, own, tier, program.ClassGrads, graph.F32)
	}
	for n, v := range list {
		buf := gp.b.chunkBuffer(fmt.Sprintf("grad%d", n), c, all, device.DeviceTier, program.ClassGrads, graph.F32)
		gp.contribute(v.added, buf, make([]bool, len(st.g.Params)))
		last := &gp.units[v.last()]
		key := last.key(c)
		if own.len() == 0 {
			last.after = append(last.after, st.collective(graph.ReduceScatter, key, c, false, program.Region{}, buf.of(all)))
			continue
		}
		to := home
		if tier == device.HostTier {
			to = gp.b.chunkBuffer(fmt.Sprintf("grad.shard%d", n), c, own, device.DeviceTier, program.ClassGrads, graph.F32)
			if n > 0 {
				first := &gp.units[v.first()]
				first.before = append(first.before, moveOp(device.HostToDev, first.key(c), to, home, own))
			}
		}
		last.after = append(last.after, st.collective(graph.ReduceScatter, key, c, n > 0, to.of(own), buf.of(all)))
		switch {
		case stays && n == len(list)-1:
			return to
		case tier == device.HostTier:
			last.after = append(last.after, moveOp(device.DevToHost, key, home, to, own))
		}
	}
	return home
}

// startedRuns returns the maximal ranges of a chunk's elements whose gradients have been
// started.
func (gp *gradientPass) startedRuns(c int) []piece {
	st := gp.st
	var list []piece
	for i := st.pl.Chunks[c].First; i < st.pl.Chunks[c].Last; i++ {
		from, to := st.offsetOf[i], st.offsetOf[i]+int(st.g.Stored(i).Elems())
		switch n := len(list); {
		case !gp.started[i]:
		case n > 0 && list[n-1].hi == from:
			list[n-1].hi = to
		default:
			list = append(list, piece{from, to, false})
		}
	}
	return list
}
