package lower

import (
	"fmt"
	"slices"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/program"
)

// gradHome says where a chunk's complete gradient is: on tier Chunk.Grads, or still
// on the device if the device updates it.
type gradHome struct {
	store
	tier device.Tier
	unit int // the gradient is complete after this unit
}

// gradients allocates the buffers of the parameters' gradients and reduces them over
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
func (lo *lowering) gradients() error {
	lo.gradBuf = make([]gradHome, len(lo.pl.Chunks))
	if !lo.trains() {
		return nil
	}
	touched := lo.contributions()
	started := make([]bool, len(lo.g.Params)) // already has a contribution
	for c := range lo.pl.Chunks {
		if !lo.trained(c) {
			continue
		}
		units := touched[c]
		if len(units) == 0 {
			return fmt.Errorf("no unit of the schedule on rank %d contributes to the gradients of chunk %d", lo.opt.Rank, c)
		}
		home := gradHome{tier: lo.pl.Chunks[c].Grads, unit: units[len(units)-1]}
		if lo.staysUp(c) {
			home.tier = device.DeviceTier
		}
		switch {
		case lo.sharded(c, "grads"):
			home.store = lo.dividedVisits(c, units)
		case lo.pl.Chunks[c].Grads == device.HostTier:
			home.store = lo.hostVisits(c, units, started)
		default:
			home.store = lo.chunkBuffer("grad", c, lo.whole(c), device.DeviceTier, program.ClassGrads, graph.F32)
			for _, i := range units {
				lo.contribute(&lo.units[i], c, home.store, started)
			}
			if !lo.top.Ordered[c] {
				home.unit = len(lo.units) - 1 // at the end, all ranks reduce in the same order
			}
			u := &lo.units[home.unit]
			u.after = append(u.after, lo.reduce(c, home.store, lo.key(u, c))...)
		}
		if lo.opt.Mode == Grads {
			lo.keepGradient(c, home.store)
		}
		lo.gradBuf[c] = home
	}
	return nil
}

// staysUp reports whether a chunk's complete gradient stays on the device because the
// device updates the chunk.
func (lo *lowering) staysUp(c int) bool {
	return lo.updates() && lo.updatedOn(c) == device.DeviceTier
}

func (lo *lowering) key(u *unit, c int) program.Key {
	return program.Key{Segment: u.segment, Micro: u.micro, Chunk: c}
}

// reduce lists the instructions that sum a complete gradient over the group in place:
// the whole gradient, or this rank's shard.
func (lo *lowering) reduce(c int, s store, key program.Key) []op {
	all := lo.whole(c)
	switch {
	case len(lo.top.Groups[c]) == 1:
		return nil
	case lo.sharded(c, "state"):
		return []op{lo.between(graph.ReduceScatter, key, c, false, s.of(lo.held(c, "state")), s.of(all))}
	}
	return []op{lo.between(graph.AllReduce, key, c, false, s.of(all))}
}

// contributions lists for each chunk the units that add to its gradient.
func (lo *lowering) contributions() [][]int {
	list := make([][]int, len(lo.pl.Chunks))
	for i := range lo.units {
		for j := range lo.units[i].work {
			for _, r := range lo.units[i].work[j].refs {
				if r.value < 0 || lo.g.Values[r.value].Kind != graph.ParamGrad {
					continue
				}
				c := lo.chunkOf[lo.g.Values[r.value].Param]
				if n := len(list[c]); n == 0 || list[c][n-1] != i {
					list[c] = append(list[c], i)
				}
			}
		}
	}
	return list
}

// contribute redirects the unit's gradient operands of chunk c to a store.
func (lo *lowering) contribute(u *unit, c int, s store, started []bool) {
	for j := range u.work {
		o := &u.work[j]
		for k, r := range o.refs {
			if r.value < 0 || lo.g.Values[r.value].Kind != graph.ParamGrad {
				continue
			}
			v := &lo.g.Values[r.value]
			if lo.chunkOf[v.Param] != c {
				continue
			}
			o.in.Args[k] = lo.param(s, r.value)
			o.in.Attr.Acc = started[v.Param]
			for i := range v.Params {
				started[v.Param+i] = true
			}
		}
	}
}

// visit is a run of units that contribute to a chunk, interrupted only by other
// backward units of the same stage. So a stage's gradients form one buffer, as the
// schedule assumes. It is reduced when another stage's turn comes: once per step under
// layered gradient accumulation.
type visit struct{ units []int }

func (lo *lowering) visits(units []int) (list []visit) {
	for v := 0; v < len(units); {
		end := v + 1
		for end < len(units) && lo.sameVisit(units[end-1], units[end]) {
			end++
		}
		list = append(list, visit{units[v:end]})
		v = end
	}
	return list
}

// sameVisit reports whether units i and j > i belong to the same visit.
func (lo *lowering) sameVisit(i, j int) bool {
	if lo.top.Schedule == nil {
		return j == i+1
	}
	stage := lo.top.Stage(lo.units[i].segment)
	return !slices.ContainsFunc(lo.units[i+1:j+1], func(u unit) bool {
		return !u.backward || lo.top.Stage(u.segment) != stage
	})
}

func (v visit) first() int { return v.units[0] }
func (v visit) last() int  { return v.units[len(v.units)-1] }

// hostVisits lowers a chunk whose gradient accumulates on the host, and returns where
// the complete gradient is. Before the last visit the host holds this rank's sum; after
// that visit, the result of the reduction.
func (lo *lowering) hostVisits(c int, units []int, started []bool) store {
	all, list := lo.whole(c), lo.visits(units)
	rest := all // size of the result of the reduction
	if lo.sharded(c, "state") {
		rest = lo.held(c, "state")
	}
	final := store{-1, 0}
	if rest.len() > 0 && !lo.staysUp(c) {
		final = lo.chunkBuffer("grad", c, rest, device.HostTier, program.ClassGrads, graph.F32)
	}
	partial := final
	if (rest != all || lo.staysUp(c)) && len(list) > 1 {
		partial = lo.chunkBuffer("grad.part", c, all, device.HostTier, program.ClassGrads, graph.F32)
	}
	for n, v := range list {
		buf := lo.chunkBuffer(fmt.Sprintf("grad%d", n), c, all, device.DeviceTier, program.ClassGrads, graph.F32)
		first, last := &lo.units[v.first()], &lo.units[v.last()]
		for _, r := range lo.runs(c, started) {
			first.before = append(first.before, moveOp(device.HostToDev, lo.key(first, c), buf, partial, r))
		}
		for _, i := range v.units {
			lo.contribute(&lo.units[i], c, buf, started)
		}
		if n < len(list)-1 {
			for _, r := range lo.runs(c, started) {
				last.after = append(last.after, moveOp(device.DevToHost, lo.key(last, c), partial, buf, r))
			}
			continue
		}
		last.after = append(last.after, lo.reduce(c, buf, lo.key(last, c))...)
		if lo.staysUp(c) {
			final = buf
		} else if rest.len() > 0 {
			last.after = append(last.after, moveOp(device.DevToHost, lo.key(last, c), final, buf, rest))
		}
	}
	return final
}

// dividedVisits lowers a chunk whose gradient is sharded over the ranks.
func (lo *lowering) dividedVisits(c int, units []int) store {
	all, own := lo.whole(c), lo.held(c, "grads")
	tier, list := lo.pl.Chunks[c].Grads, lo.visits(units)
	stays := tier == device.HostTier && lo.staysUp(c)
	home := store{-1, 0}
	if own.len() > 0 && !(stays && len(list) == 1) {
		home = lo.chunkBuffer("grad", c, own, tier, program.ClassGrads, graph.F32)
	}
	for n, v := range list {
		buf := lo.chunkBuffer(fmt.Sprintf("grad%d", n), c, all, device.DeviceTier, program.ClassGrads, graph.F32)
		started := make([]bool, len(lo.g.Params))
		for _, i := range v.units {
			lo.contribute(&lo.units[i], c, buf, started)
		}
		last := &lo.units[v.last()]
		key := lo.key(last, c)
		if own.len() == 0 {
			last.after = append(last.after, lo.between(graph.ReduceScatter, key, c, false, program.Region{}, buf.of(all)))
			continue
		}
		to := home
		if tier == device.HostTier {
			to = lo.chunkBuffer(fmt.Sprintf("grad.shard%d", n), c, own, device.DeviceTier, program.ClassGrads, graph.F32)
			if n > 0 {
				first := &lo.units[v.first()]
				first.before = append(first.before, moveOp(device.HostToDev, lo.key(first, c), to, home, own))
			}
		}
		last.after = append(last.after, lo.between(graph.ReduceScatter, key, c, n > 0, to.of(own), buf.of(all)))
		switch {
		case stays && n == len(list)-1:
			return to
		case tier == device.HostTier:
			last.after = append(last.after, moveOp(device.DevToHost, key, home, to, own))
		}
	}
	return home
}

// runs returns the maximal ranges of a chunk's elements whose gradients have been
// started.
func (lo *lowering) runs(c int, started []bool) []piece {
	var list []piece
	for i := lo.pl.Chunks[c].First; i < lo.pl.Chunks[c].Last; i++ {
		from, to := lo.offsetOf[i], lo.offsetOf[i]+int(lo.g.Stored(i).Elems())
		switch n := len(list); {
		case !started[i]:
		case n > 0 && list[n-1].hi == from:
			list[n-1].hi = to
		default:
			list = append(list, piece{from, to})
		}
	}
	return list
}

// reduced returns the range of a chunk's complete gradient that this rank holds.
func (lo *lowering) reduced(c int) piece { return lo.held(c, "state") }

// keepGradient declares the gradient to be a result of the program, or input of the next step's deferred update.
func (lo *lowering) keepGradient(c int, s store) {
	own := lo.reduced(c)
	if own.len() == 0 {
		return
	}
	b := &lo.p.Buffers[s.buf]
	b.Persistent, b.Init = true, make([]string, len(b.Cuts)+1)
	starts := append([]int{0}, b.Cuts...)
	for k, e := range starts {
		if e -= s.at; e >= own.lo && e < own.hi { // the elements outside own are partial sums of other ranks' shards
			b.Init[k] = "grad.before:" + lo.elementName(c, e)
		}
	}
	lo.homes(c, own, optimizer.Gradient, s, false)
}
