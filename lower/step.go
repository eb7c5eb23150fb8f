package lower

import (
	"slices"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
)

// step is what is lowered: one step of one rank. Every pass reads it and none changes it.
type step struct {
	*geometry
	opt     Options
	rowUnit int        // token rows per atom
	cuts    columnCuts // by value: columns at which its buffers are cut
}

// trains reports whether there is a backward pass.
func (st *step) trains() bool { return st.updates() || st.opt.Mode == Grads }

// updates reports whether parameters are updated.
func (st *step) updates() bool { return st.opt.Mode == Train || st.opt.Mode == Update }

// goesBack reports whether segment s has a backward pass. Segments below the lowest
// trained parameter have none.
func (st *step) goesBack(s int) bool { return st.trains() && len(st.g.Segments[s].Backward) > 0 }

// clips reports whether updates must wait for the norm of all gradients.
func (st *step) clips() bool { return st.opt.Clip > 0 }

// updatedOn returns the tier whose processor updates a chunk.
func (st *step) updatedOn(c int) device.Tier {
	if st.pl.Chunks[c].Update == plan.UpdateOnDevice || st.indivisible(c) { // the host's products have other bits
		return device.DeviceTier
	}
	return min(st.pl.Chunks[c].State, device.HostTier)
}

// deferred reports whether a chunk is updated by the next step.
func (st *step) deferred(c int) bool {
	return st.pl.Defer && st.clips() && st.trained(c) && (st.updatedOn(c) == device.HostTier || st.pl.Chunks[c].Grads == device.HostTier)
}

// staysOnDevice reports whether a chunk's complete gradient stays on the device because the
// device updates the chunk, or compresses the gradient.
func (st *step) staysOnDevice(c int) bool {
	return st.updates() && st.squaredOn(c) == device.DeviceTier
}

// squaredOn returns the tier whose processor sums the squares of a chunk's gradient: all of its elements count, so that is done before
// only some are kept.
func (st *step) squaredOn(c int) device.Tier {
	if st.compact(c) {
		return device.DeviceTier
	}
	return st.updatedOn(c)
}

// reduced returns the range of a chunk's complete gradient that this rank holds where the update finds it.
func (st *step) reduced(c int) piece {
	if st.updates() {
		return st.homed(c, "state")
	}
	return st.held(c, "state")
}

// cached reports whether operators read a chunk through the cache.
func (st *step) cached(c int) bool {
	ch := &st.pl.Chunks[c]
	return ch.Compact || ch.Lookup == "" && ch.Weights > device.DeviceTier || st.sharded(c, "weights")
}

// weightClass returns the class of a chunk's weights in reports.
func (st *step) weightClass(c int) program.Class {
	if st.frozen(c) {
		return program.ClassFrozen
	}
	return program.ClassWeights
}

// sharesParams reports whether segment s holds a parameter that a later segment of this rank
// also uses (a tied head). The later segment's gradient is summed over all
// micro-batches first, so the backward units of s are deferred to the end. This keeps
// the order of the sum, and so its bits, independent of the grouping. Layers whose input has a
// gradient cannot wait: where they share parameters, plans have one group.
func (st *step) sharesParams(s int) bool {
	if st.g.Segments[s].DIn >= 0 {
		return false
	}
	for later := s + 1; later < len(st.g.Segments); later++ {
		for _, p := range st.g.Segments[later].Params {
			if !st.g.Params[p].Frozen && slices.Contains(st.g.Segments[s].Params, p) && slices.Equal(st.top.Places(s), st.top.Places(later)) {
				return true
			}
		}
	}
	return false
}

// part returns which part of each sequence the rank has; 0 if sequences are whole.
func (st *step) part() int { return st.rank / st.g.Shared() % st.g.Parts() }

// rowsOf refers to a unit's rows of a value.
func (st *step) rowsOf(u *unit, value int) ref {
	v := &st.g.Values[value]
	r := ref{value: value, micro: u.micro, row: u.row, rows: u.rows, hi: v.Cols}
	if v.Kind == graph.Gradient {
		r.run = u.run
	}
	return r
}

// waitingRows returns the number of rows that a policy keeps or swaps, in whole row units.
func (st *step) waitingRows(f plan.Fate) int {
	if f.Share == 1 {
		return st.rows()
	}
	const tiny = 1e-9 // compensates for rounding in a share that was a quotient
	return int(f.Share*float64(st.rows())/float64(st.rowUnit)+tiny) * st.rowUnit
}

// collective builds a collective over the group of c, on the collective stream.
func (st *step) collective(o graph.Op, key program.Key, c int, acc bool, args ...program.Region) *op {
	key.Dir = program.Transfer
	for i := range args {
		if args[i].Cols == 0 {
			args[i] = program.Region{}
		}
	}
	return &op{in: program.Instr{Op: o, Attr: graph.Attr{Acc: acc}, Stream: device.Collective, Key: key, Args: args, Peers: st.top.Groups[c]}}
}
