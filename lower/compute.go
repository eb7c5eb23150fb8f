package lower

import (
	"slices"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/schedule"
)

// compute fills the units with the operators of the graph.
func (lo *lowering) compute() error {
	for i := range lo.units {
		u := &lo.units[i]
		seg := &lo.g.Segments[u.segment]
		if u.forward {
			before, loop, after := chunked(seg.Forward)
			lo.plainNodes(u, before, program.Forward)
			if u.segment == lo.g.Head() {
				lo.headLoops(u, loop, after, seg.Backward)
			}
		}
		switch {
		case u.backward && u.half != schedule.B && !u.forward:
			lo.halfBackward(u, seg)
		case u.backward:
			lo.plainNodes(u, seg.Backward, program.Backward)
		}
		u.work = append(u.work, u.sends...)
	}
	return nil
}

func (lo *lowering) rows() int { return lo.pl.MicroBatch * lo.g.Seq }

func (lo *lowering) plainNodes(u *unit, nodes []graph.Node, dir program.Direction) {
	u.work = slices.Grow(u.work, len(nodes)+2)
	for i := range nodes {
		if !nodes[i].Chunked {
			u.work = append(u.work, lo.op(u, &nodes[i], dir, u.row, u.rows, 0))
		}
	}
}

// halfBackward lists either the input gradients of a segment or its deferred weight
// gradients. By the time the weight half runs, the activation gradients that it reads
// may have been accumulated into or overwritten; the input half then saves copies of
// them.
func (lo *lowering) halfBackward(u *unit, seg *graph.Segment) {
	// Latest copy number per value. The residual stream's gradient is one value shared
	// by many segments, so each segment numbers its copies from its own base.
	versions := map[int]int{}
	fresh := map[int]bool{} // the latest copy equals the current value
	for i := range seg.Backward {
		n := &seg.Backward[i]
		weights := lo.g.WeightGradient(n)
		o := lo.op(u, n, program.Backward, u.row, u.rows, 0)
		for k := range o.refs {
			r := &o.refs[k]
			if !weights || r.value < 0 || lo.g.Values[r.value].Kind != graph.Gradient || !lo.overwritten(seg, i, r.value) {
				continue
			}
			if !fresh[r.value] {
				versions[r.value] = max(versions[r.value], u.segment*len(seg.Backward)) + 1
				fresh[r.value] = true
				if u.half == schedule.Bx {
					u.work = append(u.work, lo.saveGradient(u, r.value, versions[r.value]))
				}
			}
			r.copy = versions[r.value]
		}
		if weights == (u.half == schedule.W) {
			u.work = append(u.work, o)
		}
		for v := range fresh {
			fresh[v] = fresh[v] && !n.Writes(v)
		}
	}
}

// overwritten reports whether a gradient is modified by an operator after number i of
// the segment, or by a segment below.
func (lo *lowering) overwritten(seg *graph.Segment, i, v int) bool {
	return v == seg.DIn && seg.In >= 0 ||
		slices.ContainsFunc(seg.Backward[i+1:], func(n graph.Node) bool { return n.Writes(v) })
}

// saveGradient copies the current content of a gradient.
func (lo *lowering) saveGradient(u *unit, value, version int) op {
	now := lo.rowsOf(u, value)
	saved := now
	saved.copy = version
	return op{
		in:   program.Instr{Op: graph.Copy, Stream: device.Compute, Key: program.Key{Segment: u.segment, Micro: u.micro, Chunk: -1, Dir: program.Backward}, Args: make([]program.Region, 2)},
		refs: []ref{saved, now},
	}
}

// chunked divides a segment's forward nodes at those that run by row chunks, which are consecutive.
func chunked(nodes []graph.Node) (before, loop, after []graph.Node) {
	first := 0
	for first < len(nodes) && !nodes[first].Chunked {
		first++
	}
	end := first
	for end < len(nodes) && nodes[end].Chunked {
		end++
	}
	return nodes[:first], nodes[first:end], nodes[end:]
}

// headLoops lists the loss by row chunks: each chunk computes logits, loss, the
// logits' gradient in place and everything derived from it before the next chunk
// starts. If the loss needs further operators after all chunks, the gradients follow
// those in a second loop.
func (lo *lowering) headLoops(u *unit, loop, after, backward []graph.Node) {
	if !u.backward {
		backward = nil
	}
	if len(after) == 0 {
		lo.rowChunks(u, loop, backward)
		return
	}
	lo.rowChunks(u, loop, nil)
	lo.plainNodes(u, after, program.Forward)
	lo.rowChunks(u, nil, backward)
}

// rowChunks lists the forward nodes, and those of the backward nodes that are chunked,
// chunk by chunk.
func (lo *lowering) rowChunks(u *unit, forward, backward []graph.Node) {
	for row := u.row; row < u.row+u.rows; row += lo.pl.HeadRows {
		rows := min(lo.pl.HeadRows, u.row+u.rows-row)
		for i := range forward {
			u.work = append(u.work, lo.op(u, &forward[i], program.Forward, row, rows, row))
		}
		for i := range backward {
			if backward[i].Chunked {
				u.work = append(u.work, lo.op(u, &backward[i], program.Backward, row, rows, row))
			}
		}
	}
}

// op builds the instruction of a node for rows [row, row+rows) of a micro-batch.
func (lo *lowering) op(u *unit, n *graph.Node, dir program.Direction, row, rows, chunk int) op {
	o := op{
		in: program.Instr{
			Op: n.Op, Attr: n.Attr, Stream: device.Compute,
			Key:  program.Key{Segment: u.segment, Micro: u.micro, Chunk: -1, Dir: dir},
			Args: lo.regions.take(len(n.Args)),
		},
		refs: lo.refs.take(len(n.Args)),
	}
	switch n.Op {
	case graph.CrossEntropy:
		o.in.Attr.Grad = n.Attr.Grad && u.backward
	case graph.RoPE, graph.Embed, graph.PosBwd:
		o.in.Attr.Row0 = row % lo.g.Seq
	case graph.AttentionBwd: // slices run in descending order, so the one with the last rows starts the sums
		o.in.Attr.Acc = row+rows < lo.rows()
	}
	for i, use := range n.Args {
		o.refs[i] = none
		if use.Value < 0 {
			continue
		}
		v := &lo.g.Values[use.Value]
		r := ref{value: use.Value, micro: u.micro, lo: use.Lo, hi: use.Hi, rows: v.Rows}
		if v.Kind == graph.Gradient {
			r.run = u.run
		}
		switch {
		case v.Chunked:
			r.rows, r.copy = rows, chunk
		case n.Op.Info().Args[i].Past:
			r.rows = row + rows
		case v.PerToken:
			r.row, r.rows = row, rows
		}
		o.refs[i] = r
	}
	return o
}
