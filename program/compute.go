package program

import (
	"slices"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/schedule"
)

// compute fills the units with the graph's operators.
func (lo *lowering) compute() error {
	lo.p.Name = [...]string{"train", "grads", "eval", "logits", "decode"}[lo.opt.Mode]
	for i := range lo.units {
		u := &lo.units[i]
		seg := &lo.g.Segments[u.segment]
		if u.forward {
			lo.plainNodes(u, seg.Forward, Forward)
		}
		if u.segment == lo.g.Head() {
			lo.headChunks(u, seg)
		}
		switch {
		case u.backward && u.half != schedule.B && !u.forward:
			lo.halfBackward(u, seg)
		case u.backward:
			lo.plainNodes(u, seg.Backward, Backward)
		}
		u.work = append(u.work, u.sends...)
	}
	return nil
}

func (lo *lowering) rows() int { return lo.pl.MicroBatch * lo.g.Seq }

func (lo *lowering) plainNodes(u *unit, nodes []graph.Node, dir Direction) {
	for i := range nodes {
		if !nodes[i].Chunked {
			u.work = append(u.work, lo.op(u, &nodes[i], dir, u.row, u.rows, 0))
		}
	}
}

// halfBackward lists the input gradients of a segment, or the weight gradients
// that were put off. These read gradients of activations that others have been
// added to or written over since; where that is so, the input half saves what
// the weight half will read.
func (lo *lowering) halfBackward(u *unit, seg *graph.Segment) {
	versions := map[int]int{} // per value: copies saved so far
	fresh := map[int]bool{}   // the latest copy is what the value is now
	for i := range seg.Backward {
		n := &seg.Backward[i]
		weights := lo.weightNode(n)
		o := lo.op(u, n, Backward, u.row, u.rows, 0)
		for k := range o.refs {
			r := &o.refs[k]
			if !weights || r.value < 0 || lo.g.Values[r.value].Kind != graph.Gradient || !lo.overwritten(seg, i, r.value) {
				continue
			}
			if !fresh[r.value] {
				versions[r.value]++
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
			fresh[v] = fresh[v] && !writes(n, v)
		}
	}
}

// weightNode reports whether a backward operator makes gradients of parameters.
func (lo *lowering) weightNode(n *graph.Node) bool {
	return slices.ContainsFunc(n.Args, func(u graph.Use) bool {
		return u.Value >= 0 && lo.g.Values[u.Value].Kind == graph.ParamGrad
	})
}

// overwritten reports whether an operator after number i of the segment, or one
// of the segments below, changes a gradient.
func (lo *lowering) overwritten(seg *graph.Segment, i, v int) bool {
	return v == seg.DIn && seg.In >= 0 ||
		slices.ContainsFunc(seg.Backward[i+1:], func(n graph.Node) bool { return writes(&n, v) })
}

// saveGradient copies what a gradient is now.
func (lo *lowering) saveGradient(u *unit, value, version int) op {
	now := ref{value: value, micro: u.micro, run: u.run, row: u.row, rows: u.rows, hi: lo.g.Values[value].Cols}
	saved := now
	saved.copy = version
	return op{
		in:   Instr{Op: graph.Copy, Stream: device.Compute, Key: Key{Segment: u.segment, Micro: u.micro, Chunk: -1, Dir: Backward}, Args: make([]Region, 2)},
		refs: []ref{saved, now},
	}
}

// headChunks lists the loss by chunks of rows: logits, loss and gradient over
// them in place, and what is derived from that, then the next chunk.
func (lo *lowering) headChunks(u *unit, seg *graph.Segment) {
	n := u.row / lo.pl.HeadRows
	for row := u.row; row < u.row+u.rows; row += lo.pl.HeadRows {
		rows := min(lo.pl.HeadRows, u.row+u.rows-row)
		for i := range seg.Forward {
			if seg.Forward[i].Chunked {
				u.work = append(u.work, lo.op(u, &seg.Forward[i], Forward, row, rows, n))
			}
		}
		for i := range seg.Backward {
			if u.backward && seg.Backward[i].Chunked {
				u.work = append(u.work, lo.op(u, &seg.Backward[i], Backward, row, rows, n))
			}
		}
		n++
	}
}

// op makes the instruction of a node for rows [row, row+rows) of a micro-batch.
func (lo *lowering) op(u *unit, n *graph.Node, dir Direction, row, rows, chunk int) op {
	o := op{
		in: Instr{
			Op: n.Op, Attr: n.Attr, Stream: device.Compute,
			Key:  Key{Segment: u.segment, Micro: u.micro, Chunk: -1, Dir: dir},
			Args: make([]Region, len(n.Args)),
		},
		refs: make([]ref, len(n.Args)),
	}
	if n.Op == graph.CrossEntropy {
		o.in.Attr.Grad = u.backward
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
		case v.PerToken:
			r.row, r.rows = row, rows
		}
		o.refs[i] = r
	}
	return o
}

// Recomputations are the choices of what a layer keeps for its backward pass.
func Recomputations() []string { return []string{"none", "light", "attention", "full"} }

// keeps reports whether a saved value of a layer is kept under a choice. The
// layer's input is always kept: it is the previous layer's result.
//
//	none      everything is kept
//	light     results of norms and activation functions are made again: cheap,
//	          bound by memory and not by arithmetic
//	attention only what attention made is kept, since that is what costs most
//	          to make again at long sequences (MEMO, 2407.12117, section 4.1)
//	full      nothing
func keeps(choice string, made graph.Op) bool {
	switch choice {
	case "none":
		return true
	case "light":
		return made != graph.LayerNorm && made != graph.RMSNorm && made != graph.Act && made != graph.SwiGLU
	case "attention":
		return made == graph.Attention
	}
	return false
}

// recompute puts before the backward operators of a layer those forward ones
// that make again what was not kept, and nothing else: it walks back from the
// values that are read to the operators that write them.
func (lo *lowering) recompute() error {
	for i := range lo.units {
		u := &lo.units[i]
		seg := &lo.g.Segments[u.segment]
		if !u.backward || u.forward || u.segment == 0 {
			continue
		}
		again := lo.missing(seg, lo.pl.Recompute[u.segment-1])
		if len(again) == 0 {
			continue
		}
		var prefix []op
		for n := range seg.Forward {
			if lo.writesAny(&seg.Forward[n], again) {
				o := lo.op(u, &seg.Forward[n], Recompute, u.row, u.rows, 0)
				prefix = append(prefix, o)
			}
		}
		if u.half != schedule.W { // which finds them made
			u.work = append(prefix, u.work...)
		}
		for j := range u.work {
			for k := range u.work[j].refs {
				if r := &u.work[j].refs[k]; slices.Contains(again, r.value) {
					r.copy = 1
				}
			}
		}
	}
	return nil
}

// missing lists the forward values that must be made again: those saved and
// not kept, and whatever they are made from that is not there either.
func (lo *lowering) missing(seg *graph.Segment, choice string) []int {
	kept := func(v int) bool {
		if v == seg.In {
			return true
		}
		maker := slices.IndexFunc(seg.Forward, func(n graph.Node) bool { return writes(&n, v) })
		return slices.Contains(seg.Saved, v) && maker >= 0 && keeps(choice, seg.Forward[maker].Op)
	}
	var again []int
	var need func(v int)
	need = func(v int) {
		if lo.g.Values[v].Kind != graph.Forwarded || kept(v) || slices.Contains(again, v) {
			return
		}
		again = append(again, v)
		for n := range seg.Forward {
			if node := &seg.Forward[n]; writes(node, v) {
				for _, u := range node.Args {
					if u.Value >= 0 {
						need(u.Value)
					}
				}
			}
		}
	}
	for _, v := range seg.Saved {
		need(v)
	}
	return again
}

// writes reports whether a node makes (part of) a value.
func writes(n *graph.Node, v int) bool {
	for i, spec := range n.Op.Info().Args {
		if i < len(n.Args) && n.Args[i].Value == v && spec.Access != graph.Read {
			return true
		}
	}
	return false
}

func (lo *lowering) writesAny(n *graph.Node, values []int) bool {
	return slices.ContainsFunc(values, func(v int) bool { return writes(n, v) })
}
