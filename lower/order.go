package lower

import (
	"cmp"
	"slices"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/schedule"
)

// unit is an element of the schedule: one segment, or one turn of it (see graph.Node), one micro-batch (or a slice of one),
// one direction, with the transfers that belong before and after it.
type unit struct {
	segment, micro      int
	forward, backward   bool          // when training, the head runs both directions at once
	turn                int           // of the segment's nodes in the unit's direction; in both: the last forward and the first backward
	half                schedule.Pass // of a backward pass: B all, Bx input gradients, W weight gradients
	row, rows           int           // of the micro-batch
	run                 int           // see runOf
	sends               []*op         // after the work, see messages
	before, work, after []*op
}

// orderUnits lists the units of this rank.
func orderUnits(st *step) []unit {
	if st.top.Schedule == nil {
		return groupUnits(st)
	}
	return scheduleUnits(st)
}

// hasRetention reports whether u is the backward unit of a layer.
func (u *unit) hasRetention() bool { return u.backward && !u.forward && u.segment > 0 && u.turn == 0 }

// forwardNodes returns the unit's nodes of a forward pass, backwardNodes those of a backward pass.
func (u *unit) forwardNodes(seg *graph.Segment) []graph.Node {
	return graph.InTurn(seg.Forward, u.turn)
}

func (u *unit) backwardNodes(seg *graph.Segment) []graph.Node {
	if u.forward {
		return graph.InTurn(seg.Backward, 0)
	}
	return graph.InTurn(seg.Backward, u.turn)
}

// key is the key of transfers for a chunk beside a unit.
func (u *unit) key(c int) program.Key {
	return program.Key{Segment: u.segment, Micro: u.micro, Chunk: c}
}

// groupUnits lists the units of a rank that holds all segments. Each group of
// micro-batches runs layer by layer. The head runs its backward pass at once, since the
// loss is known then. Micro-batches always ascend, so that every sum over tokens has
// the same order whatever the grouping.
func groupUnits(st *step) []unit {
	head, group := st.g.Head(), st.pl.Group
	var units, late []unit // late: see sharesParams
	for first := 0; first < st.pl.MicroBatches; first += group {
		each := func(s, turn int, f, b bool) {
			for m := first; m < first+group; m++ {
				u := unit{segment: s, turn: turn, micro: m, forward: f, backward: b, half: schedule.B, rows: st.rows()}
				if b && !f && st.sharesParams(s) {
					late = append(late, u)
					continue
				}
				units = append(units, u)
			}
		}
		for s := 0; s <= head; s++ {
			last := st.g.Segments[s].ForwardTurns() - 1
			for turn := range last {
				each(s, turn, true, false)
			}
			each(s, last, true, s == head && st.trains())
		}
		for s := head; s >= 0 && st.goesBack(s); s-- {
			for turn := range st.g.Segments[s].BackwardTurns() {
				if s < head || turn > 0 {
					each(s, turn, false, true)
				}
			}
		}
	}
	slices.SortStableFunc(late, func(a, b unit) int { return cmp.Compare(a.turn, b.turn) }) // a parameter's one after the other
	return append(units, late...)
}

// scheduleUnits lists the units of a pipeline rank in the order of its schedule. A stage's
// unit is its segments in sequence. The head belongs to the backward pass, since its
// loss and gradients are computed together by row blocks.
//
// A message is sent as soon as it is produced. Its receive is placed behind the unit
// that, by the schedule's own clock, runs on this rank at that moment: the receive's
// buffer is then free once everything has ended that ends before that unit begins. So
// whatever a message waits for is earlier on that clock. Ranks that exchange messages in
// a ring therefore cannot deadlock, although a message occupies both its ends at once.
func scheduleUnits(st *step) []unit {
	place := st.top.Place(st.rank)
	clock, order := st.top.Clock, st.top.Schedule.Orders[place]
	var units, late []unit
	var begin []int // receives per position in the order
	var mail []letter
	for _, w := range order {
		begin = append(begin, len(units))
		list := stageUnits(st, w)
		if len(list) == 0 {
			continue
		}
		in, out := messages(st, w, list)
		mail = append(mail, in...)
		list[len(list)-1].sends = out
		for _, u := range list {
			if u.backward && !u.forward && u.half != schedule.Bx && st.sharesParams(u.segment) {
				late = append(late, u)
			} else {
				units = append(units, u)
			}
		}
	}
	units = append(units, late...)
	slices.SortStableFunc(mail, func(a, b letter) int { return cmp.Compare(a.sent, b.sent) })
	for _, l := range mail {
		k := 0
		for k+1 < len(order) && clock.Start[place][k+1] < l.sent {
			k++
		}
		u := &units[begin[k]]
		u.work = append(u.work, l.op)
	}
	return units
}

// letter is the receive of a message that is sent at a given time of the schedule.
type letter struct {
	*op
	sent float64
}

// stageUnits expands one unit of the schedule into units.
func stageUnits(st *step, w schedule.Unit) []unit {
	t := st.top
	from, to := t.First[w.Stage], t.First[w.Stage+1]
	row, rows := st.sliceRows(w.Slice)
	var list []unit
	add := func(s int, f, b bool) {
		list = append(list, unit{segment: s, micro: microOf(st.top, w), forward: f, backward: b, half: w.Pass, row: row, rows: rows, run: runOf(st.top, w)})
	}
	switch {
	case w.Pass == schedule.F:
		for s := from; s < to; s++ {
			if s != st.g.Head() || !st.trains() {
				add(s, true, false)
			}
		}
	case st.trains():
		for s := to - 1; s >= from && st.goesBack(s); s-- {
			head := s == st.g.Head()
			if head && w.Pass == schedule.W {
				continue // computed with the input gradients
			}
			add(s, head, true)
		}
	}
	return list
}

// microOf numbers a scheduled micro-batch across both directions.
func microOf(top *plan.Topology, w schedule.Unit) int {
	return w.Micro*top.Schedule.Directions() + w.Dir
}

// runOf numbers the runs of consecutive stages on one rank. The residual stream's
// gradient is one graph value throughout; each run of stages on a rank has its own
// buffer for it.
func runOf(top *plan.Topology, w schedule.Unit) int {
	home, s := top.Schedule.Home[w.Dir], w.Stage
	for s > 0 && home[s-1] == home[w.Stage] {
		s--
	}
	return s
}

// messages lists what one unit of the schedule receives and sends.
func messages(st *step, w schedule.Unit, list []unit) (in []letter, out []*op) {
	home := st.top.Schedule.Home[w.Dir]
	from, to := st.top.First[w.Stage], st.top.First[w.Stage+1]
	first, last := &list[0], &list[len(list)-1]
	if w.Stage > 0 && home[w.Stage-1] != home[w.Stage] {
		if first.forward && first.segment == from { // a head by itself runs its forward in the backward pass
			in = append(in, letter{message(st, graph.Recv, first, from, st.g.Segments[from].In, home[w.Stage-1], false), st.top.Ends(w, w.Stage-1, false)})
		}
		if last.backward && w.Pass != schedule.W && st.g.Segments[from].DIn >= 0 {
			out = append(out, message(st, graph.Send, last, from, st.g.Segments[from].DIn, home[w.Stage-1], true))
		}
	}
	if w.Stage+1 < len(home) && home[w.Stage+1] != home[w.Stage] {
		if last.forward {
			out = append(out, message(st, graph.Send, last, to, st.g.Segments[to-1].Out, home[w.Stage+1], false))
		}
		if first.backward && w.Pass != schedule.W {
			in = append(in, letter{message(st, graph.Recv, first, to, st.g.Segments[to-1].DOut, home[w.Stage+1], true), st.top.Ends(w, w.Stage+1, true)})
		}
	}
	return in, out
}

// message sends or receives a unit's rows of a value across the boundary before a
// segment, to or from another position of the pipeline.
func message(st *step, o graph.Op, u *unit, boundary, value, place int, back bool) *op {
	stream := device.Send
	if o == graph.Recv {
		stream = device.Recv
	}
	tag := 2 * ((boundary*st.pl.MicroBatches+u.micro)*st.rows() + u.row)
	if back {
		tag++
	}
	return &op{
		in: program.Instr{Op: o, Stream: stream, Key: program.Key{Segment: u.segment, Micro: u.micro, Chunk: -1, Dir: program.Transfer},
			Args: make([]program.Region, 1), Peers: []int{st.top.At(place, st.rank)}, Tag: tag},
		refs: []ref{st.rowsOf(u, value)},
	}
}
