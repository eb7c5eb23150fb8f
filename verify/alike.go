package verify

import (
	"fmt"
	"slices"

	"github.com/athanor-llm/athanor/graph"
)

// Whether two graphs compute the same but for how ranks share it: symbolic execution, as of programs (see symbolic.go), of nodes. A value
// has a content per band, named by the value and not by its extents, which differ. Sums are unordered, and products of several matrices
// are those of each:
//
//	dx  = dy . wq..wv         h(dyq, wq) + h(dyk, wk) + h(dyv, wv)
//	dx += dy . wk..wv, wq     the same
//
// Sums over ranks are left out, also those of parts of the loss: whether they are where they must be is another question, see Divided.

// band is columns of a value between two of its cuts.
type band struct{ value, index int }

// bandsOf returns the first of an operand's bands, and the one behind the last.
func bandsOf(g *graph.Graph, u graph.Use) (from, to int) {
	v := &g.Values[u.Value]
	ends := append(append([]int{0}, v.Cuts...), v.Cols)
	return slices.Index(ends, u.Lo), slices.Index(ends, u.Hi)
}

// bandName is a band by the name of its value.
type bandName struct {
	name  string
	index int
}

// computed is what a graph computes.
type computed struct {
	g    *graph.Graph
	same func(*graph.Node) graph.Attr // a node's attributes as the whole graph would have them
	of   map[bandName]Value
}

// checkAlike checks that a graph of slabs computes what the whole graph does, if sums over ranks are what they must be.
func checkAlike(whole, part *graph.Graph) error {
	if len(whole.Segments) != len(part.Segments) {
		return fmt.Errorf("%d segments, in the whole graph %d; hint: build both of one model", len(part.Segments), len(whole.Segments))
	}
	n := part.Shared()
	want := &computed{g: whole, of: map[bandName]Value{}, same: func(n *graph.Node) graph.Attr { return unsized(whole, n, n.Attr) }}
	have := &computed{g: part, of: map[bandName]Value{}, same: func(node *graph.Node) graph.Attr {
		attr := unsized(part, node, node.Attr)
		if attr.HeadDim > 0 {
			attr.Heads, attr.KVHeads = attr.Heads*n, attr.KVHeads*min(n, part.Model.KVHeads)
		}
		return attr
	}}
	want.run()
	have.run()
	for k, v := range want.of {
		if have.of[k] != v {
			return fmt.Errorf("ranks with slabs compute something else as %s, columns %d; hint: build both graphs of one model", k.name, k.index)
		}
	}
	if len(have.of) != len(want.of) {
		return fmt.Errorf("ranks with slabs compute %d values, one rank %d; hint: build both graphs of one model", len(have.of), len(want.of))
	}
	return nil
}

// unsized returns attributes with the width of groups of columns instead of their number, of norms by heads.
func unsized(g *graph.Graph, n *graph.Node, a graph.Attr) graph.Attr {
	if a.Heads > 0 && a.HeadDim == 0 {
		for _, u := range n.Args {
			if u.Value < 0 {
				continue
			}
			if v := &g.Values[u.Value]; v.PerToken && v.Kind != graph.Input { // y or dy: all are as wide
				a.Heads = (u.Hi - u.Lo) / a.Heads
				break
			}
		}
	}
	a.Acc = false
	return a
}

// run executes all nodes.
func (c *computed) run() {
	for s := range c.g.Segments {
		c.pass(c.g.Segments[s].Forward)
	}
	for s := range slices.Backward(c.g.Segments) {
		c.pass(c.g.Segments[s].Backward)
	}
}

func (c *computed) pass(nodes []graph.Node) {
	for i := range nodes {
		switch n := &nodes[i]; n.Op {
		case graph.AllReduce, graph.LossPart:
		case graph.Linear:
			c.each(n, n.Args[graph.LinearW], graph.LinearY)
		case graph.LinearDX:
			c.each(n, n.Args[graph.LinearDXW], graph.LinearDXDY)
		case graph.LinearDW:
			for k := 0; k < len(n.Args); k += graph.LinearDWDW2 - graph.LinearDWDW {
				one := *n
				one.Args = n.Args[k : k+graph.LinearDWDW2-graph.LinearDWDW]
				c.each(&one, one.Args[graph.LinearDWDW], graph.LinearDWDY)
			}
		case graph.BiasGrad:
			c.each(n, n.Args[graph.BiasGradDB], graph.BiasGradDY)
		default:
			c.node(n)
		}
	}
}

// each executes a node for each of the parameters of operand of, which are for the bands of operand by.
func (c *computed) each(n *graph.Node, of graph.Use, by int) {
	v := &c.g.Values[of.Value]
	if v.Params < 2 {
		c.node(n)
		return
	}
	from, _ := bandsOf(c.g, n.Args[by])
	for k := range v.Params {
		c.one(n, k, by, from+k)
	}
}

func (c *computed) node(n *graph.Node) { c.one(n, -1, -1, 0) }

// one executes a node, or if param is not negative, that for one parameter of several and one band of operand by.
func (c *computed) one(n *graph.Node, param, by, of int) {
	a := c.same(n)
	h := seedOp.hashInts(int(n.Op), 0).withString(fmt.Sprint(a, n.Chunked))
	contents := func(k int) (list []bandName) {
		u := n.Args[k]
		v := &c.g.Values[u.Value]
		switch from, to := bandsOf(c.g, u); {
		case v.Params > 0:
			kind := "parameter "
			if v.Kind == graph.ParamGrad {
				kind = "gradient of "
			}
			for i := range v.Params {
				if param < 0 || i == param {
					list = append(list, bandName{kind + c.g.Params[v.Param+i].Name, 0})
				}
			}
		case k == by:
			list = append(list, bandName{v.Name, of})
		default:
			for i := from; i < to; i++ {
				list = append(list, bandName{v.Name, i})
			}
		}
		return list
	}
	specs := n.Op.Info().Args
	for k, u := range n.Args {
		if u.Value < 0 || specs[k].Access == graph.Write || specs[k].Access == graph.Sum || n.Op == graph.CrossEntropy && k == graph.CrossEntropyParts {
			continue
		}
		h = h.hashInts(k, 0)
		for _, b := range contents(k) {
			h = h.hashWith(c.of[b]).withString(b.name).hashInts(b.index, 0)
		}
	}
	for k, u := range n.Args {
		if u.Value < 0 || specs[k].Access == graph.Read {
			continue
		}
		for i, b := range contents(k) {
			switch term := h.hashInts(k, i); {
			case specs[k].Access != graph.Sum:
				c.of[b] = term
			case n.Attr.Acc || c.g.Values[u.Value].Kind == graph.ParamGrad:
				c.of[b] = c.of[b].plus(term)
			case param > 0 && k != by:
				c.of[b] = c.of[b].plus(term)
			default:
				c.of[b] = noTerms.plus(term)
			}
		}
	}
}
