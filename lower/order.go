package lower

import (
	"cmp"
	"slices"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/schedule"
)

// unit is an element of the schedule: one segment, one micro-batch (or a slice of one),
// one direction, with the transfers that belong before and after it.
type unit struct {
	segment, micro      int
	forward, backward   bool          // when training, the head runs both directions at once
	half                schedule.Pass // of a backward pass: B all, Bx input gradients, W weight gradients
	row, rows           int           // of the micro-batch
	run                 int           // see lowering.run
	sends               []op          // after the work, see messages
	before, work, after []op
}

// order lists the units of this rank.
func (lo *lowering) order() error {
	if lo.top.Schedule == nil {
		lo.grouped()
	} else {
		lo.scheduled()
	}
	return nil
}

// trains reports whether there is a backward pass.
func (lo *lowering) trains() bool { return lo.updates() || lo.opt.Mode == Grads }

// updates reports whether parameters are updated.
func (lo *lowering) updates() bool { return lo.opt.Mode == Train || lo.opt.Mode == Update }

// goesBack reports whether segment s has a backward pass. Segments below the lowest
// trained parameter have none.
func (lo *lowering) goesBack(s int) bool { return lo.trains() && len(lo.g.Segments[s].Backward) > 0 }

// grouped lists the units of a rank that holds all segments. Each group of
// micro-batches runs layer by layer. The head runs its backward pass at once, since the
// loss is known then. Micro-batches always ascend, so that every sum over tokens has
// the same order whatever the grouping.
func (lo *lowering) grouped() {
	head, group := lo.g.Head(), lo.pl.Group
	var late []unit // see shared
	for first := 0; first < lo.pl.MicroBatches; first += group {
		each := func(s int, f, b bool) {
			for m := first; m < first+group; m++ {
				u := unit{segment: s, micro: m, forward: f, backward: b, half: schedule.B, rows: lo.rows()}
				if b && !f && lo.shared(s) {
					late = append(late, u)
					continue
				}
				lo.units = append(lo.units, u)
			}
		}
		for s := 0; s < head; s++ {
			each(s, true, false)
		}
		each(head, true, lo.trains())
		for s := head - 1; s >= 0 && lo.goesBack(s); s-- {
			each(s, false, true)
		}
	}
	lo.units = append(lo.units, late...)
}

// shared reports whether segment s holds a parameter that a later segment of this rank
// also uses (a tied head). The later segment's gradient is summed over all
// micro-batches first, so the backward units of s are deferred to the end. This keeps
// the order of the sum, and so its bits, independent of the grouping.
func (lo *lowering) shared(s int) bool {
	for later := s + 1; later < len(lo.g.Segments); later++ {
		for _, p := range lo.g.Segments[later].Params {
			if !lo.g.Params[p].Frozen && slices.Contains(lo.g.Segments[s].Params, p) && slices.Equal(lo.top.Places(s), lo.top.Places(later)) {
				return true
			}
		}
	}
	return false
}

// scheduled lists the units of a pipeline rank in the order of its schedule. A stage's
// unit is its segments in sequence. The head belongs to the backward pass, since its
// loss and gradients are computed together by row blocks.
//
// A message is sent as soon as it is produced. Its receive is placed behind the unit
// that, by the schedule's own clock, runs on this rank at that moment: the receive's
// buffer is then free once everything has ended that ends before that unit begins. So
// whatever a message waits for is earlier on that clock. Ranks that exchange messages in
// a ring therefore cannot deadlock, although a message occupies both its ends at once.
func (lo *lowering) scheduled() {
	place := lo.opt.Rank % lo.top.Depth
	clock, order := lo.top.Clock, lo.top.Schedule.Orders[place]
	var late []unit
	var begin []int // receives per position in the order
	var mail []letter
	for _, w := range order {
		begin = append(begin, len(lo.units))
		list := lo.stageUnits(w)
		if len(list) == 0 {
			continue
		}
		in, out := lo.messages(w, list)
		mail = append(mail, in...)
		list[len(list)-1].sends = out
		for _, u := range list {
			if u.backward && !u.forward && u.half != schedule.Bx && lo.shared(u.segment) {
				late = append(late, u)
			} else {
				lo.units = append(lo.units, u)
			}
		}
	}
	lo.units = append(lo.units, late...)
	slices.SortStableFunc(mail, func(a, b letter) int { return cmp.Compare(a.sent, b.sent) })
	for _, l := range mail {
		k := 0
		for k+1 < len(order) && clock.Start[place][k+1] < l.sent {
			k++
		}
		u := &lo.units[begin[k]]
		u.work = append(u.work, l.op)
	}
}

// letter is the receive of a message that is sent at a given time of the schedule.
type letter struct {
	op
	sent float64
}

// stageUnits expands one unit of the schedule into units.
func (lo *lowering) stageUnits(w schedule.Unit) []unit {
	t := lo.top
	from, to := t.First[w.Stage], t.First[w.Stage+1]
	row, rows := lo.slice(w.Slice)
	var list []unit
	add := func(s int, f, b bool) {
		list = append(list, unit{segment: s, micro: lo.micro(w), forward: f, backward: b, half: w.Pass, row: row, rows: rows, run: lo.run(w)})
	}
	switch {
	case w.Pass == schedule.F:
		for s := from; s < to; s++ {
			if s != lo.g.Head() || !lo.trains() {
				add(s, true, false)
			}
		}
	case lo.trains():
		for s := to - 1; s >= from && lo.goesBack(s); s-- {
			head := s == lo.g.Head()
			if head && w.Pass == schedule.W {
				continue // computed with the input gradients
			}
			add(s, head, true)
		}
	}
	return list
}

// micro numbers a scheduled micro-batch across both directions.
func (lo *lowering) micro(w schedule.Unit) int {
	return w.Micro*lo.top.Schedule.Directions() + w.Dir
}

// run numbers the runs of consecutive stages on one rank. The residual stream's
// gradient is one graph value throughout; each run of stages on a rank has its own
// buffer for it.
func (lo *lowering) run(w schedule.Unit) int {
	home, s := lo.top.Schedule.Home[w.Dir], w.Stage
	for s > 0 && home[s-1] == home[w.Stage] {
		s--
	}
	return s
}

// messages lists what one unit of the schedule receives and sends.
func (lo *lowering) messages(w schedule.Unit, list []unit) (in []letter, out []op) {
	home := lo.top.Schedule.Home[w.Dir]
	from, to := lo.top.First[w.Stage], lo.top.First[w.Stage+1]
	first, last := &list[0], &list[len(list)-1]
	if w.Stage > 0 && home[w.Stage-1] != home[w.Stage] {
		if first.forward && first.segment == from { // a head by itself runs its forward in the backward pass
			in = append(in, letter{lo.message(graph.Recv, first, from, lo.g.Segments[from].In, home[w.Stage-1], false), lo.top.Ends(w, w.Stage-1, false)})
		}
		if last.backward && w.Pass != schedule.W && lo.g.Segments[from].DIn >= 0 {
			out = append(out, lo.message(graph.Send, last, from, lo.g.Segments[from].DIn, home[w.Stage-1], true))
		}
	}
	if w.Stage+1 < len(home) && home[w.Stage+1] != home[w.Stage] {
		if last.forward {
			out = append(out, lo.message(graph.Send, last, to, lo.g.Segments[to-1].Out, home[w.Stage+1], false))
		}
		if first.backward && w.Pass != schedule.W {
			in = append(in, letter{lo.message(graph.Recv, first, to, lo.g.Segments[to-1].DOut, home[w.Stage+1], true), lo.top.Ends(w, w.Stage+1, true)})
		}
	}
	return in, out
}

// message sends or receives a unit's rows of a value across the boundary before a
// segment, to or from another position of the pipeline.
func (lo *lowering) message(o graph.Op, u *unit, boundary, value, place int, back bool) op {
	stream := device.Send
	if o == graph.Recv {
		stream = device.Recv
	}
	tag := 2 * ((boundary*lo.pl.MicroBatches+u.micro)*lo.rows() + u.row)
	if back {
		tag++
	}
	return op{
		in: program.Instr{Op: o, Stream: stream, Key: program.Key{Segment: u.segment, Micro: u.micro, Chunk: -1, Dir: program.Transfer},
			Args: make([]program.Region, 1), Peers: []int{lo.opt.Rank - lo.opt.Rank%lo.top.Depth + place}, Tag: tag},
		refs: []ref{lo.rowsOf(u, value)},
	}
}

// rowsOf refers to a unit's rows of a value.
func (lo *lowering) rowsOf(u *unit, value int) ref {
	v := &lo.g.Values[value]
	r := ref{value: value, micro: u.micro, row: u.row, rows: u.rows, hi: v.Cols}
	if v.Kind == graph.Gradient {
		r.run = u.run
	}
	return r
}

// slice returns the row range of a slice of a micro-batch.
func (lo *lowering) slice(q int) (row, rows int) {
	list := lo.pl.Pipeline.RowsPerSlice(lo.g.Seq)
	if len(list) == 1 {
		return 0, lo.rows()
	}
	for _, n := range list[:q] {
		row += n
	}
	return row, list[q]
}
