package lower

import (
	"slices"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/schedule"
)

// fillUnits fills the units with the operators of the graph.
func fillUnits(b *builder, units []unit) {
	for i := range units {
		u := &units[i]
		seg := &b.st.g.Segments[u.segment]
		if u.forward {
			before, loop, after := chunked(u.forwardNodes(seg))
			plainNodes(b, u, before, program.Forward)
			if u.segment == b.st.g.Head() {
				headLoops(b, u, loop, after, u.backwardNodes(seg))
			}
		}
		switch {
		case u.backward && u.half != schedule.B && !u.forward:
			halfBackward(b, u, seg)
		case u.backward:
			if u.segment == b.st.g.Head() && !u.forward {
				rowChunks(b, u, nil, u.backwardNodes(seg))
			}
			plainNodes(b, u, u.backwardNodes(seg), program.Backward)
		}
		u.work = append(u.work, u.sends...)
	}
}

// plainNodes lists the nodes that do not run by row chunks.
func plainNodes(b *builder, u *unit, nodes []graph.Node, dir program.Direction) {
	u.work = slices.Grow(u.work, len(nodes)+2)
	for i := range nodes {
		if !nodes[i].Chunked {
			u.work = append(u.work, b.nodeOp(u, &nodes[i], dir, u.row, u.rows, 0))
		}
	}
}

// halfBackward lists either the input gradients of a segment or its deferred weight
// gradients. By the time the weight half runs, the activation gradients that it reads
// may have been accumulated into or overwritten; the input half then saves copies of
// them.
func halfBackward(b *builder, u *unit, seg *graph.Segment) {
	// Latest copy number per value. The residual stream's gradient is one value shared
	// by many segments, so each segment numbers its copies from where the segments before it, which may be longer, can at most end.
	versions, base := map[int]int{}, 0
	for _, before := range b.st.g.Segments[:u.segment] {
		base += len(before.Backward)
	}
	fresh := map[int]bool{} // the latest copy equals the current value
	for i := range seg.Backward {
		n := &seg.Backward[i]
		weights := b.st.g.WeightGradient(n)
		o := b.nodeOp(u, n, program.Backward, u.row, u.rows, 0)
		for k := range o.refs {
			r := &o.refs[k]
			if !weights || r.value < 0 || b.st.g.Values[r.value].Kind != graph.Gradient || !overwritten(seg, i, r.value) {
				continue
			}
			if !fresh[r.value] {
				versions[r.value] = max(versions[r.value], base) + 1
				fresh[r.value] = true
				if u.half == schedule.Bx {
					u.work = append(u.work, saveGradient(b.st, u, r.value, versions[r.value]))
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
func overwritten(seg *graph.Segment, i, v int) bool {
	return v == seg.DIn && seg.In >= 0 ||
		slices.ContainsFunc(seg.Backward[i+1:], func(n graph.Node) bool { return n.Writes(v) })
}

// saveGradient copies the current content of a gradient.
func saveGradient(st *step, u *unit, value, version int) *op {
	now := st.rowsOf(u, value)
	saved := now
	saved.copy = version
	return &op{
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
func headLoops(b *builder, u *unit, loop, after, backward []graph.Node) {
	if !u.backward {
		backward = nil
	}
	if len(after) == 0 {
		rowChunks(b, u, loop, backward)
		return
	}
	rowChunks(b, u, loop, nil)
	plainNodes(b, u, after, program.Forward)
	rowChunks(b, u, nil, backward)
}

// rowChunks lists the forward nodes, and those of the backward nodes that are chunked,
// chunk by chunk.
func rowChunks(b *builder, u *unit, forward, backward []graph.Node) {
	first := u.row
	if b.st.g.Last {
		first = u.row + u.rows - 1
	}
	for row := first; row < u.row+u.rows; row += b.st.pl.HeadRows {
		rows := min(b.st.pl.HeadRows, u.row+u.rows-row)
		for i := range forward {
			u.work = append(u.work, b.nodeOp(u, &forward[i], program.Forward, row, rows, row))
		}
		for i := range backward {
			if backward[i].Chunked {
				u.work = append(u.work, b.nodeOp(u, &backward[i], program.Backward, row, rows, row))
			}
		}
	}
}
