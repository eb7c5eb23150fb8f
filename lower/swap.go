package lower

import (
	"cmp"
	"slices"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
)

// Swapped activations (MEMO, 2407.12117, section 4.1) are copied out after the operator
// that computes them, and copied in before the layer's backward unit, into the matrix
// whose other rows are recomputed.
//
// A copy starts as soon as its stream is free and its operands are ready, wherever it
// is in the program. Its position only fixes the lifetime of the device buffer, and
// so the time that the copy has before its bytes are reused. A layer's activation may
// be copied out until the same operator Slots-1 units later. It is copied in once the
// layer Slots units earlier in the backward pass has read its own for the last time:
//
//	forward   | layer 0     | layer 1     | layer 2
//	  compute  norm qkv up   norm qkv up   norm qkv up
//	  d2h            norm.0 qkv.0  up.0 norm.1 qkv.1     each until its counterpart is computed
//
//	backward  | layer 5     | layer 4     | layer 3      with 2 slots
//	  compute  up qkv norm   up qkv norm   up qkv norm
//	  h2d        up.3 qkv.3 norm.3  up.2 qkv.2 norm.2    each once its counterpart is dead
//
// So at most Slots layers' activations are in transfer. MEMO's rounding buffers are
// what the allocator makes of these lifetimes.
//
// Known weakness: copies of one direction run in program order, so weights that are
// needed earlier may queue behind activations.

// spot is a position in the schedule: after operator op of a unit, or before its first
// operator if op is -1.
type spot struct{ unit, op int }

func (p spot) compare(q spot) int {
	return cmp.Or(cmp.Compare(p.unit, q.unit), cmp.Compare(p.op, q.op))
}

// later returns the later of two spots.
func later(p, q spot) spot {
	if p.compare(q) < 0 {
		return q
	}
	return p
}

// swapping is a value of one micro-batch that leaves the device and returns.
type swapping struct {
	instance
	rows, segment     int
	tier              device.Tier
	made, first, last spot // where it is computed; first and last read in the first backward unit that reads it
}

// swapActivations inserts the copies of swapped activations.
func swapActivations(b *builder, units []unit, kept *retention) {
	var out, in []insertion
	for _, s := range swappings(b.st, units, kept) {
		swapOne(b, units, &s, &out, &in)
	}
	insertOps(units, append(out, in...)) // a value is copied out before it is copied in
}

// swappings lists the swapped values in the order in which the backward pass needs
// them.
func swappings(st *step, units []unit, kept *retention) (list []swapping) {
	if !slices.ContainsFunc(st.pl.Activations, plan.Retention.Swapped) {
		return nil
	}
	leaves := kept.swapped()
	made, at := map[instance]spot{}, map[instance]int{}
	for i := range units {
		u := &units[i]
		for j, o := range u.work {
			for k, r := range o.refs {
				if r.value < 0 || !leaves[r.value] {
					continue
				}
				key, here := instance{value: r.value, micro: r.micro}, spot{i, j}
				if o.in.Op.Info().Args[k].Access != graph.Read {
					if r.copy == 0 {
						made[key] = here
					}
					continue
				}
				if m, ok := made[key]; ok && r.copy == 0 && units[m.unit].work[m.op].in.Op == graph.Recv {
					// A value received early leaves when it is first used: otherwise
					// copies of other values would queue behind it and wait for the
					// sender.
					made[key] = here
				}
				if r.copy == 0 || !u.hasRetention() {
					continue
				}
				if n, ok := at[key]; ok {
					if list[n].first.unit == i { // deferred weight gradients, in later units, read it where it then is
						list[n].last = here
					}
					continue
				}
				if f := kept.fate(u.segment, r.value); f.Swapped() && st.waitingRows(f) > 0 {
					at[key] = len(list)
					list = append(list, swapping{key, st.waitingRows(f), u.segment, f.Tier, made[key], here, here})
				}
			}
		}
	}
	return list
}

// swapOne adds the copies of one value, out and in.
func swapOne(b *builder, units []unit, s *swapping, out, in *[]insertion) {
	slots := b.st.pl.Slots
	v := &b.st.g.Values[s.value]
	key := program.Key{Segment: s.segment, Micro: s.micro, Chunk: -1}
	dev := func(copy int) ref { return ref{value: s.value, micro: s.micro, copy: copy, rows: s.rows, hi: v.Cols} }
	buffer := func(name string, t device.Tier) program.Region {
		return b.p.BufferRegion(b.buffer(program.Buffer{
			Name: instanceName(v.Name, s.instance) + "." + name, Tier: t,
			Class: program.ClassActivations, DType: v.DType, Rows: s.rows, Cols: v.Cols, RowUnit: b.p.RowUnit, Cuts: b.st.cuts[s.value],
		}))
	}
	leave := shiftLater(units, s.made, slots-1, s.first.unit)
	enter := later(shiftEarlier(units, s.last, slots), leave)
	home := buffer("host", device.HostTier)
	away := copyOp(device.DevToHost, key, home, program.Region{})
	away.refs = []ref{none, dev(0)}
	*out = append(*out, insertion{leave, away})
	if s.tier == device.DiskTier {
		disk := buffer("disk", device.DiskTier)
		write := shiftLater(units, leave, slots-1, s.first.unit)
		read := later(shiftEarlier(units, s.last, 2*slots), write)
		enter = later(enter, read)
		*out = append(*out, insertion{write, copyOp(device.DiskWrite, key, disk, home)})
		home = buffer("back", device.HostTier)
		*in = append(*in, insertion{read, copyOp(device.DiskRead, key, home, disk)})
	}
	back := copyOp(device.HostToDev, key, program.Region{}, home)
	back.refs = []ref{dev(1), none}
	*in = append(*in, insertion{enter, back})
}

// shiftLater returns the same operator n units later, or p itself if that is not before
// unit end.
func shiftLater(units []unit, p spot, n, end int) spot {
	if p.unit+n >= end {
		return p
	}
	p.unit += n
	p.op = min(p.op, len(units[p.unit].work)-1)
	return p
}

// shiftEarlier returns the same operator n units earlier. Operators are counted from the end
// of the unit, since recomputed ones precede those that all layers have.
func shiftEarlier(units []unit, p spot, n int) spot {
	fromEnd := len(units[p.unit].work) - p.op
	q := max(p.unit-n, 0)
	return spot{q, max(len(units[q].work)-fromEnd, -1)}
}

// insertion is an op and its position.
type insertion struct {
	at spot
	op *op
}

// insertOps puts ops into the units; ops at the same spot keep their order.
func insertOps(units []unit, list []insertion) {
	slices.SortStableFunc(list, func(a, b insertion) int { return a.at.compare(b.at) })
	for len(list) > 0 {
		at, n := list[0].at.unit, 1
		for n < len(list) && list[n].at.unit == at {
			n++
		}
		u := &units[at]
		work, done := make([]*op, 0, len(u.work)+n), 0
		for _, in := range list[:n] {
			work = append(work, u.work[done:in.at.op+1]...)
			work = append(work, in.op)
			done = in.at.op + 1
		}
		u.work, list = append(work, u.work[done:]...), list[n:]
	}
}
