package lower

import (
	"slices"

	"github.com/athanor-llm/athanor/graph"
)

// Attention by parts of its heads, see plan.Plan.KVParts: ranks that share sequences exchange the keys and values of some heads, attend
// with them, and go on to the next. So buffers of what attention reads and writes consist of bands, one for each part:
//
//	qkv   q of part 0, of part 1 | k of part 0, of part 1 | v of part 0, of part 1

// headPart is one of several parts of the heads.
type headPart struct{ k, of int }

// columns returns a part of the columns [lo, hi), which are those of all heads.
func (h headPart) columns(lo, hi int) (from, to int) {
	n := (hi - lo) / h.of
	return lo + h.k*n, lo + (h.k+1)*n
}

// byHeads lists the operands of attention that have columns for each head; keys and values are one operand, each half of it.
var byHeads = map[graph.Op]struct{ whole, halves []int }{
	graph.Attention: {[]int{graph.AttentionO, graph.AttentionLSE, graph.AttentionQ}, []int{graph.AttentionKV}},
	graph.AttentionBwd: {[]int{graph.AttentionBwdDQ, graph.AttentionBwdDelta, graph.AttentionBwdDO, graph.AttentionBwdQ, graph.AttentionBwdO, graph.AttentionBwdLSE},
		[]int{graph.AttentionBwdDKV, graph.AttentionBwdKV}},
}

// headCuts returns by value the columns at which buffers are cut, if attention works on parts of its heads.
func headCuts(g *graph.Graph, parts int) columnCuts {
	cuts := make(columnCuts, len(g.Values))
	for i := range g.Values {
		cuts[i] = g.Values[i].Cuts
	}
	if parts <= 1 {
		return cuts
	}
	cuts.eachNode(g, func(n *graph.Node) {
		for _, j := range byHeads[n.Op].whole {
			cuts.divide(g, n.Args[j], parts)
		}
		for _, j := range byHeads[n.Op].halves {
			u, keys := n.Args[j], graph.KeyParts(n.Attr.KVHeads, parts)
			mid := (u.Lo + u.Hi) / 2
			cuts.divide(g, graph.Use{Value: u.Value, Lo: u.Lo, Hi: mid}, keys)
			cuts.divide(g, graph.Use{Value: u.Value, Lo: mid, Hi: u.Hi}, keys)
		}
	})
	for changed := true; changed; {
		changed = false
		cuts.eachNode(g, func(n *graph.Node) {
			if n.Op.Info().Alike && len(n.Args) == 2 { // queries, keys and values are cast to others
				changed = cuts.agree(g, n.Args[0], n.Args[1]) || changed
				changed = cuts.agree(g, n.Args[1], n.Args[0]) || changed
			}
		})
	}
	return cuts
}

// sinkCuts adds to the cuts of parameters those between the sinks of parts of the heads.
func sinkCuts(g *graph.Graph, parts int, cuts [][]int) [][]int {
	if parts <= 1 || !g.Model.Sinks {
		return cuts
	}
	list := make([][]int, len(g.Params))
	copy(list, cuts)
	columnCuts(nil).eachNode(g, func(n *graph.Node) {
		if n.Op == graph.Attention && len(n.Args) > graph.AttentionSinks {
			u := n.Args[graph.AttentionSinks]
			i := g.ParamOf(u.Value)
			for k := 1; k < parts; k++ {
				list[i] = append(slices.Clone(list[i]), k*(u.Hi-u.Lo)/parts)
			}
		}
	})
	return list
}

// columnCuts are, by value, columns in ascending order at which its buffers are cut.
type columnCuts [][]int

// eachNode visits the nodes of all segments.
func (columnCuts) eachNode(g *graph.Graph, visit func(n *graph.Node)) {
	for s := range g.Segments {
		for _, nodes := range [][]graph.Node{g.Segments[s].Forward, g.Segments[s].Backward} {
			for i := range nodes {
				visit(&nodes[i])
			}
		}
	}
}

// add cuts a value at a column and reports whether it was not cut there.
func (cuts columnCuts) add(g *graph.Graph, value, at int) bool {
	if at <= 0 || at >= g.Values[value].Cols || slices.Contains(cuts[value], at) {
		return false
	}
	list := append(slices.Clone(cuts[value]), at)
	slices.Sort(list)
	cuts[value] = list
	return true
}

// divide cuts columns into parts.
func (cuts columnCuts) divide(g *graph.Graph, u graph.Use, parts int) {
	for k := range parts + 1 {
		cuts.add(g, u.Value, u.Lo+k*(u.Hi-u.Lo)/parts)
	}
}

// agree cuts columns of one value where the corresponding ones of another are cut, and reports whether that was news.
func (cuts columnCuts) agree(g *graph.Graph, to, from graph.Use) (changed bool) {
	for _, at := range cuts[from.Value] {
		if at >= from.Lo && at <= from.Hi {
			changed = cuts.add(g, to.Value, to.Lo+at-from.Lo) || changed
		}
	}
	return changed
}

// takeHeads narrows an attention to a part of its heads; its keys and values are another's business.
func (o *op) takeHeads(h headPart) {
	o.in.Attr.Heads, o.in.Attr.KVHeads = o.in.Attr.Heads/h.of, o.in.Attr.KVHeads/h.of
	for _, j := range byHeads[o.in.Op].whole {
		r := &o.refs[j]
		r.lo, r.hi = h.columns(r.lo, r.hi)
	}
	o.takeSinks(h)
}

// takeSinks leaves an attention the sinks of a part of its heads, if it has any.
func (o *op) takeSinks(h headPart) {
	if o.in.Op == graph.Attention && len(o.refs) > graph.AttentionSinks && o.refs[graph.AttentionSinks].value >= 0 {
		r := &o.refs[graph.AttentionSinks]
		r.lo, r.hi = h.columns(r.lo, r.hi)
	}
}
