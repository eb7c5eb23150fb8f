package verify

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/athanor-llm/athanor/graph"
)

// Matrices that ranks share. Programs of ranks with slabs are compared with the plain programs of as many ranks, since a product whose
// inputs are divided has no value on one rank. That these compute what one rank does is a matter of the graph, and is proved here.
//
// The graph of a slab must have the operators of the whole graph on the same values, but for sums over ranks between them. Each value
// is held in one of three ways, which follow from operator to operator:
//
//	same   every rank has all columns, and the same numbers
//	own    every rank has columns of its own; together they are all
//	term   every rank has all columns of a term; their sum is the value
//
//	                     x      w             y
//	linear               same   its outputs   own
//	linear               own    its inputs    term
//	linear               term   whole         term
//	all_reduce                                term -> same
//	norm, embed, loss    same                 same
//	rope, attention      own                  own     by heads
//	activation           own                  own     by elements
//	norm by heads        own                  own     and a term of the gain's gradient
//
// So a sum that is missing, made twice or made of whole values is a fault, and so is a gradient that is held otherwise than its parameter.
//
// Known weakness: bias and residual stream, which a product of terms adds, are assumed to be added on one rank only.

// holding is how ranks hold a value.
type holding uint8

const (
	unknown holding = iota
	same
	own
	term
)

func (h holding) String() string {
	return [...]string{"nothing", "the same on all ranks", "divided by columns", "a term of a sum over ranks"}[h]
}

// Divided proves that ranks with the slabs of part compute together what one rank with the whole graph does, up to the order of sums.
func Divided(whole, part *graph.Graph) error {
	d := &division{part: part, held: make([]holding, len(part.Values))}
	for i := range part.Params {
		if err := covers(whole, part, i); err != nil {
			return err
		}
	}
	for s := range part.Segments {
		p, w := &part.Segments[s], &whole.Segments[s]
		for _, pass := range [...][2][]graph.Node{{p.Forward, w.Forward}, {p.Backward, w.Backward}} {
			if err := alikeNodes(whole, part, pass[1], pass[0]); err != nil {
				return fmt.Errorf("segment %s: %w", p.Name, err)
			}
		}
	}
	for s := range part.Segments {
		if err := d.follow(part.Segments[s].Name, part.Segments[s].Forward); err != nil {
			return err
		}
	}
	for s := range slices.Backward(part.Segments) {
		if err := d.follow(part.Segments[s].Name, part.Segments[s].Backward); err != nil {
			return err
		}
	}
	for v := range part.Values {
		if p := &part.Values[v]; p.Kind == graph.ParamGrad && d.held[v] != d.gradient(p) {
			return fmt.Errorf("the gradient %s is %v, not %v; hint: add it up over the ranks", p.Name, d.held[v], d.gradient(p))
		}
	}
	return nil
}

// covers checks that the slabs of all ranks have each element of parameter i once.
func covers(whole, part *graph.Graph, i int) error {
	p := &whole.Params[i]
	slab, divided := part.Slab(i)
	if part.Params[i].Name != p.Name || !divided && part.Stored(i) != whole.Stored(i) {
		return fmt.Errorf("parameter %s is another one in the graph of a slab; hint: build both of one model", p.Name)
	}
	if !divided || p.Elems() > 1<<16 && p.Vector { // vectors are divided as matrices are
		return nil
	}
	if rows, cols := part.Held(i); int64(rows)*int64(cols)*int64(part.Shared()) != p.Elems() || slab.ByRows && cols != p.Cols || !slab.ByRows && rows != p.Rows || !slab.ByRows && p.NF4 && cols%graph.NF4Block != 0 {
		return fmt.Errorf("%d slabs of %d x %d are not parameter %s, which is %d x %d; hint: divide rows or columns evenly", part.Shared(), rows, cols, p.Name, p.Rows, p.Cols)
	}
	sum := 0
	for _, band := range slab.Bands {
		if sum += band; band%part.Shared() != 0 {
			return fmt.Errorf("a band of %d of parameter %s cannot be divided among %d ranks; hint: divide bands evenly", band, p.Name, part.Shared())
		}
	}
	if n := p.Cols; slab.ByRows && sum != p.Rows || !slab.ByRows && sum != n {
		return fmt.Errorf("the bands of parameter %s are %d together, not all; hint: divide all of it", p.Name, sum)
	}
	return nil
}

// alikeNodes checks that nodes are those of the whole graph, with sums over ranks between them.
func alikeNodes(whole, part *graph.Graph, want, have []graph.Node) error {
	have = slices.DeleteFunc(slices.Clone(have), func(n graph.Node) bool { return n.Op == graph.AllReduce })
	if len(have) != len(want) {
		return fmt.Errorf("%d operators, in the whole graph %d; hint: build both of one model", len(have), len(want))
	}
	for i := range have {
		h, w := &have[i], &want[i]
		attr := h.Attr
		attr.Heads, attr.KVHeads = attr.Heads*part.Shared(), attr.KVHeads*part.Shared() // of attention, or Heads of a norm
		equal := h.Op == w.Op && attr == w.Attr && h.Chunked == w.Chunked && len(h.Args) == len(w.Args)
		for k := range h.Args {
			equal = equal && nameOf(part, h.Args[k]) == nameOf(whole, w.Args[k])
		}
		if !equal {
			return fmt.Errorf("operator %d is %v, in the whole graph %v, or has other operands or attributes; hint: build both of one model", i, h.Op, w.Op)
		}
	}
	return nil
}

// nameOf names an operand's value and which of its bands the operand begins and ends with.
func nameOf(g *graph.Graph, u graph.Use) string {
	if u.Value < 0 {
		return ""
	}
	v := &g.Values[u.Value]
	ends := append(append([]int{0}, v.Cuts...), v.Cols)
	return fmt.Sprintf("%s %d %d", v.Name, slices.Index(ends, u.Lo), slices.Index(ends, u.Hi))
}

// division follows how values are held.
type division struct {
	part *graph.Graph
	held []holding
}

// param returns how ranks hold the parameter that a value is, or is the gradient of.
func (d *division) param(v *graph.Value) holding {
	if d.part.Divided(v.Param) {
		return own
	}
	return same
}

// gradient returns how ranks must hold the gradient of a parameter: as the parameter, or as a term if the plan's groups add it up.
func (d *division) gradient(v *graph.Value) holding {
	if d.part.Partial(v.Param) {
		return term
	}
	return d.param(v)
}

// of returns how ranks hold an operand; unknown if it is absent or the same by nature, as tokens are.
func (d *division) of(u graph.Use) holding {
	if u.Value < 0 {
		return unknown
	}
	switch v := &d.part.Values[u.Value]; v.Kind {
	case graph.ParamValue:
		return d.param(v)
	case graph.Input, graph.Constant, graph.Scalars:
		return unknown
	}
	return d.held[u.Value]
}

// follow goes through a pass of a segment.
func (d *division) follow(segment string, nodes []graph.Node) error {
	for i := range nodes {
		n := &nodes[i]
		h, err := d.result(n)
		if err != nil {
			return fmt.Errorf("segment %s: %v: %w", segment, n.Op, err)
		}
		for k, u := range n.Args {
			if u.Value < 0 || n.Op.Info().Args[k].Access == graph.Read {
				continue
			}
			was := d.held[u.Value]
			if n.Attr.Acc && n.Op.Info().Args[k].Access == graph.Sum && was != h {
				return fmt.Errorf("segment %s: %v adds to %s, which is %v, what is %v; hint: add it up over the ranks before", segment, n.Op, d.part.Values[u.Value].Name, was, h)
			}
			d.held[u.Value] = h
		}
	}
	return nil
}

// result returns how ranks hold the results of a node.
func (d *division) result(n *graph.Node) (holding, error) {
	arg := func(k int) holding {
		if k >= len(n.Args) {
			return unknown
		}
		return d.of(n.Args[k])
	}
	switch n.Op {
	case graph.AllReduce:
		return same, d.must(n, graph.AllReduceX, term)
	case graph.Linear:
		return d.product(n, arg(graph.LinearX), n.Args[graph.LinearW], false)
	case graph.LinearDX:
		h, err := d.product(n, arg(graph.LinearDXDY), n.Args[graph.LinearDXW], true)
		if x := arg(graph.LinearDXX); err == nil && x != unknown && x != h {
			err = fmt.Errorf("what is %v is multiplied by derivatives that are %v; hint: add it up over the ranks before", h, x)
		}
		return h, err
	case graph.LinearDW:
		for k := graph.LinearDWDW; k < len(n.Args); k += graph.LinearDWDW2 - graph.LinearDWDW {
			v := &d.part.Values[n.Args[k].Value]
			if h, err := d.weightGradient(n, n.Args[k], arg(k+graph.LinearDWX), arg(k+graph.LinearDWDY)); err != nil || h != d.gradient(v) {
				return unknown, cmp.Or(err, fmt.Errorf("%s is %v, not %v; hint: look for a sum over ranks too much or too few", v.Name, h, d.gradient(v)))
			}
		}
		return d.gradient(&d.part.Values[n.Args[graph.LinearDWDW].Value]), nil
	case graph.Scale:
		return arg(graph.ScaleY), nil
	}
	if n.Attr.Heads > 0 && slices.Contains(headNorms, n.Op) {
		return d.headNorm(n)
	}
	return d.alikeOperands(n)
}

// headNorms are operators that may work by heads, with a gain that all heads share.
var headNorms = []graph.Op{graph.RMSNorm, graph.RMSNormDX, graph.RMSNormDW}

// headNorm returns how the results of a norm by heads are held: the heads are divided, and each rank has a term of the gain's gradient.
func (d *division) headNorm(n *graph.Node) (holding, error) {
	for k, u := range n.Args {
		if u.Value < 0 || n.Op.Info().Args[k].Access == graph.Write || n.Op.Info().Args[k].Access == graph.Sum {
			continue
		}
		want := own
		if d.part.Values[u.Value].Kind == graph.ParamValue {
			want = same
		}
		if err := d.must(n, k, want); err != nil {
			return unknown, err
		}
	}
	if n.Op == graph.RMSNormDW {
		return term, nil
	}
	return own, nil
}

// must checks how an operand is held.
func (d *division) must(n *graph.Node, k int, want holding) error {
	if have := d.of(n.Args[k]); have != want {
		return fmt.Errorf("operand %s is %v, but must be %v; hint: look for a sum over ranks too much or too few", n.Op.Info().Args[k].Name, have, want)
	}
	return nil
}

// product returns how the result of a product of x and a matrix is held, or of its transposed.
func (d *division) product(n *graph.Node, x holding, w graph.Use, turned bool) (holding, error) {
	res := unknown
	if n.Op == graph.Linear && len(n.Args) > graph.LinearRes {
		res = d.of(n.Args[graph.LinearRes])
	}
	switch outs, divided := d.outputs(w, n.Attr.WT); {
	case !divided && x == same && res <= same:
		return same, nil
	case !divided && x == term && res == unknown:
		return term, nil
	case divided && outs != turned && x == same && res == unknown:
		return own, nil
	case divided && outs == turned && x == own && res <= same:
		return term, nil
	}
	return unknown, fmt.Errorf("its input is %v, its weight %s %v; hint: look for a sum over ranks too much or too few", x, d.part.Values[w.Value].Name, d.of(w))
}

// outputs reports whether ranks divide a weight, and by its outputs rather than its inputs.
func (d *division) outputs(w graph.Use, turned bool) (outs, divided bool) {
	slab, divided := d.part.Slab(d.part.ParamOf(w.Value))
	return slab.ByRows == turned, divided
}

// weightGradient returns how a weight's gradient is held.
func (d *division) weightGradient(n *graph.Node, dw graph.Use, x, dy holding) (holding, error) {
	outs, divided := d.outputs(dw, n.Attr.WT)
	switch {
	case !divided && x == same && dy == same:
		return same, nil
	case !divided && (x == same && dy == term || x == term && dy == same):
		return term, nil
	case divided && outs && x == same && dy == own, divided && !outs && x == own && dy == same:
		return own, nil
	}
	return unknown, fmt.Errorf("%s is the product of what is %v and of what is %v; hint: look for a sum over ranks too much or too few", d.part.Values[dw.Value].Name, x, dy)
}

// byColumns are operators whose ranks need no columns of others: they work by heads or by elements.
var byColumns = []graph.Op{graph.RoPE, graph.Attention, graph.AttentionBwd, graph.SinkGrad, graph.Act, graph.ActBwd, graph.SwiGLU, graph.SwiGLUBwd, graph.BiasGrad, graph.Cast}

// alikeOperands returns how the results of other operators are held: as all that they read.
func (d *division) alikeOperands(n *graph.Node) (holding, error) {
	h := unknown
	for k, u := range n.Args {
		if n.Op.Info().Args[k].Access == graph.Write || n.Op.Info().Args[k].Access == graph.Sum {
			continue
		}
		switch x := d.of(u); {
		case x == unknown:
		case x == term || h != unknown && x != h || x == own && !slices.Contains(byColumns, n.Op):
			return unknown, fmt.Errorf("operand %s is %v; hint: look for a sum over ranks too much or too few", n.Op.Info().Args[k].Name, x)
		default:
			h = x
		}
	}
	return h, nil
}
