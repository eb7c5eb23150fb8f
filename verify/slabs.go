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
//	twin   own, but neighbouring ranks have the same: keys and values of which there are fewer heads than ranks
//	part   columns as of twins, but of a term; the sum over neighbours is the value
//
//	                     x      w             y
//	linear               same   its outputs   own, or twin
//	linear               own    its inputs    term
//	linear               term   whole         term
//	all_reduce                                term -> same
//	expert_linear        as linear
//	combine, route_bwd   term                 term
//	swiglu_bwd           own                  own     and a term of the gradient of a router's weights
//	norm, embed, loss    same                 same
//	embed                       its rows      term
//	loss_part, its sum   own, same            term, same; with it, the loss of columns is the same, and their gradient own
//	rope                 any                  the same, by heads
//	attention            own                  own     by heads; of gradients that of twins is a part, and of what is the same a term
//	activation           own                  own     by elements
//	norm by heads        own                  own     and a term of the gain's gradient; of twins and parts, too
//
// Bands of one value, such as queries and keys, may be held in different ways.
//
// So a sum that is missing, made twice or made of whole values is a fault, and so is a gradient that is held otherwise than its parameter.
//
// Known weakness: what a sum of terms adds besides is assumed to be added on one rank only: bias, position and residual stream, and of the gradient
// of a router what comes from biases of experts, and from the loss term that evens out how these are used.

// holding is how ranks hold a value.
type holding uint8

const (
	unknown holding = iota
	same
	own
	term
	twin
	part
	mixed
)

func (h holding) String() string {
	return [...]string{"nothing", "the same on all ranks", "divided by columns", "a term of a sum over ranks", "the same on neighbouring ranks", "a term of a sum over neighbouring ranks", "in part one, in part another"}[h]
}

// Divided proves that ranks with the slabs of part compute together what one rank with the whole graph does, up to the order of sums.
func Divided(whole, part *graph.Graph) error {
	d := &division{part: part, held: map[band]holding{}}
	for i := range part.Params {
		if err := covers(whole, part, i); err != nil {
			return err
		}
	}
	if err := checkAlike(whole, part); err != nil {
		return err
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
		if p := &part.Values[v]; p.Kind == graph.ParamGrad && d.held[band{v, 0}] != d.gradient(p) {
			return fmt.Errorf("the gradient %s is %v, not %v; hint: add it up over the ranks", p.Name, d.held[band{v, 0}], d.gradient(p))
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
	if rows, cols := part.Held(i); slab.Parts*slab.Alike != part.Shared() || int64(rows)*int64(cols)*int64(slab.Parts) != p.Elems() || slab.ByRows && cols != p.Cols || !slab.ByRows && rows != p.Rows || !slab.ByRows && p.NF4 && cols%graph.NF4Block != 0 {
		return fmt.Errorf("%d slabs of %d x %d are not parameter %s, which is %d x %d; hint: divide rows or columns evenly", slab.Parts, rows, cols, p.Name, p.Rows, p.Cols)
	}
	sum := 0
	for _, band := range slab.Bands {
		if sum += band; band%slab.Parts != 0 {
			return fmt.Errorf("a band of %d of parameter %s cannot be divided into %d slabs; hint: divide bands evenly", band, p.Name, slab.Parts)
		}
	}
	if n := p.Cols; slab.ByRows && sum != p.Rows || !slab.ByRows && sum != n {
		return fmt.Errorf("the bands of parameter %s are %d together, not all; hint: divide all of it", p.Name, sum)
	}
	return nil
}

// division follows how values are held.
type division struct {
	part *graph.Graph
	held map[band]holding
}

// param returns how ranks hold the parameter that a value is, or is the gradient of.
func (d *division) param(v *graph.Value) holding {
	switch slab, divided := d.part.Slab(v.Param); {
	case !divided:
		return same
	case slab.Alike > 1:
		return twin
	}
	return own
}

// gradient returns how ranks must hold the gradient of a parameter: as the parameter, or as a term if the plan's groups add it up.
func (d *division) gradient(v *graph.Value) holding {
	switch h, terms := d.param(v), d.part.Terms(v.Param); {
	case h == twin && terms > 1:
		return part
	case h == same && terms > 1:
		return term
	case terms > 1:
		return unknown
	default:
		return h
	}
}

// of returns how ranks hold an operand; unknown if it is absent or the same by nature, as tokens are, mixed if its bands differ.
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
	from, to := bandsOf(d.part, u)
	h := d.held[band{u.Value, from}]
	for k := from + 1; k < to; k++ {
		if d.held[band{u.Value, k}] != h {
			return mixed
		}
	}
	return h
}

// hold records how ranks hold an operand.
func (d *division) hold(u graph.Use, h holding) {
	from, to := bandsOf(d.part, u)
	for k := from; k < to; k++ {
		d.held[band{u.Value, k}] = h
	}
}

// follow goes through a pass of a segment.
func (d *division) follow(segment string, nodes []graph.Node) error {
	for i := range nodes {
		n := &nodes[i]
		if n.Op == graph.RoPE { // it turns each head by itself, and a sum of what is turned is the sum, turned
			continue
		}
		h, err := d.result(n)
		if err != nil {
			return fmt.Errorf("segment %s: %v: %w", segment, n.Op, err)
		}
		for k, u := range n.Args {
			if u.Value < 0 || n.Op.Info().Args[k].Access == graph.Read {
				continue
			}
			to := h
			switch {
			case n.Op == graph.AttentionBwd && k == graph.AttentionBwdDKV:
				to = gradients[d.of(n.Args[graph.AttentionBwdKV])]
			case n.Op == graph.CrossEntropy && k == graph.CrossEntropyLogits:
				to = d.of(u)
			case n.Op == graph.SwiGLUBwd && k == graph.SwiGLUBwdDWeights && h == own:
				to = term
			}
			was := d.of(u)
			if n.Attr.Acc && n.Op.Info().Args[k].Access == graph.Sum && was != to {
				return fmt.Errorf("segment %s: %v adds to %s, which is %v, what is %v; hint: add it up over the ranks before", segment, n.Op, d.part.Values[u.Value].Name, was, to)
			}
			d.hold(u, to)
		}
	}
	return nil
}

// gradients says how ranks hold the gradients of keys and values that some of them hold in the same way, each for queries of its own.
var gradients = map[holding]holding{own: own, twin: part, same: term}

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
	case graph.ExpertLinear:
		if w := n.Args[graph.ExpertLinearW]; d.part.Params[d.part.ParamOf(w.Value)].Vector {
			return term, d.must(n, graph.ExpertLinearX, same)
		}
		return d.product(n, arg(graph.ExpertLinearX), n.Args[graph.ExpertLinearW], false)
	case graph.ExpertDW:
		return d.weightGradient(n, n.Args[graph.ExpertDWDW], arg(graph.ExpertDWX), arg(graph.ExpertDWDY))
	case graph.ExpertDB:
		if len(n.Args) > graph.ExpertDBWeights {
			return arg(graph.ExpertDBDY), d.must(n, graph.ExpertDBWeights, same)
		}
		return arg(graph.ExpertDBDY), nil
	case graph.Combine:
		return d.combined(arg(graph.CombineX), arg(graph.CombineRes))
	case graph.Embed:
		if d.param(&d.part.Values[n.Args[graph.EmbedWTE].Value]) == own {
			return term, nil
		}
		return same, nil
	case graph.EmbedBwd:
		return d.gradient(&d.part.Values[n.Args[graph.EmbedBwdDWTE].Value]), d.must(n, graph.EmbedBwdDX, same)
	case graph.LossPart:
		return term, d.must(n, graph.LossPartLogits, own)
	case graph.CrossEntropy:
		if len(n.Args) > graph.CrossEntropyParts && n.Args[graph.CrossEntropyParts].Value >= 0 {
			return same, cmp.Or(d.must(n, graph.CrossEntropyParts, same), d.must(n, graph.CrossEntropyLogits, own))
		}
	case graph.RouteBwd:
		return arg(graph.RouteBwdDWeights), d.must(n, graph.RouteBwdLogits, same)
	case graph.SwiGLU, graph.SwiGLUBwd:
		return d.gated(n)
	}
	switch {
	case n.Attr.Heads > 0 && slices.Contains(headNorms, n.Op):
		return d.headNorm(n)
	case n.Op == graph.Attention:
		return own, d.attention(n, graph.AttentionQ, graph.AttentionKV)
	case n.Op == graph.AttentionBwd:
		return own, d.attention(n, graph.AttentionBwdQ, graph.AttentionBwdKV)
	}
	return d.alikeOperands(n)
}

// attention checks that each rank has its own queries, and all keys that they are for.
func (d *division) attention(n *graph.Node, q, kv int) error {
	for k, u := range n.Args {
		if h := d.of(u); k != kv && h != own && h != unknown && n.Op.Info().Args[k].Access == graph.Read {
			return d.must(n, k, own)
		}
	}
	heads := d.part.Model.KVHeads
	switch d.of(n.Args[kv]) {
	case own:
		return d.must(n, q, own)
	case twin:
		if n.Attr.KVHeads == 1 && d.part.Shared()%heads == 0 {
			return d.must(n, q, own)
		}
	case same:
		if n.Attr.KVHeads == 1 && heads == 1 {
			return d.must(n, q, own)
		}
	}
	return fmt.Errorf("the keys are %v, %d of %d heads of them; hint: give each rank the keys of its queries", d.of(n.Args[kv]), n.Attr.KVHeads, heads)
}

// combined returns how the sum of experts' results and of what is added to it is held: if they are terms, both or the one that is added
// on one rank only.
func (d *division) combined(x, res holding) (holding, error) {
	if x != same && x != term || res != unknown && res != same && res != x {
		return unknown, fmt.Errorf("%v is added to what is %v; hint: look for a sum over ranks too much or too few", res, x)
	}
	return x, nil
}

// gated returns how results of units are held: as what they are computed from, but for weights of experts, which all ranks have.
func (d *division) gated(n *graph.Node) (holding, error) {
	h, weights := d.of(n.Args[1]), graph.SwiGLUWeights // gates and ups, or the gradient
	if n.Op == graph.SwiGLUBwd {
		weights = graph.SwiGLUBwdWeights
		if err := d.must(n, graph.SwiGLUBwdGateUp, h); err != nil {
			return unknown, err
		}
	}
	if h != own && h != same {
		return unknown, fmt.Errorf("units are %v; hint: look for a sum over ranks too much or too few", h)
	}
	if len(n.Args) > weights && n.Args[weights].Value >= 0 {
		return h, d.must(n, weights, same)
	}
	return h, nil
}

// headNorms are operators that may work by heads, with a gain that all heads share.
var headNorms = []graph.Op{graph.RMSNorm, graph.RMSNormDX, graph.RMSNormDW}

// headNorm returns how the results of a norm by heads are held: the heads are divided, and each rank has a term of the gain's gradient.
// Of keys and values that all ranks have, each has what it reads all the same; their gradients may be terms.
func (d *division) headNorm(n *graph.Node) (holding, error) {
	x, gain, dy := n.Args[graph.RMSNormX], graph.RMSNormGain, unknown
	switch n.Op {
	case graph.RMSNormDX:
		x, gain, dy = n.Args[graph.RMSNormDXX], graph.RMSNormDXGain, d.of(n.Args[graph.RMSNormDXDY])
	case graph.RMSNormDW:
		x, gain, dy = n.Args[graph.RMSNormDWX], -1, d.of(n.Args[graph.RMSNormDWDY])
	}
	have := d.of(x)
	if gain >= 0 {
		if err := d.must(n, gain, same); err != nil {
			return unknown, err
		}
	}
	if want, ok := gradients[have]; !ok || n.Op != graph.RMSNorm && dy != want {
		return unknown, fmt.Errorf("heads that are %v have a gradient that is %v; hint: look for a sum over ranks too much or too few", have, dy)
	}
	switch n.Op {
	case graph.RMSNormDW:
		return term, nil
	case graph.RMSNormDX:
		return dy, nil
	}
	return have, nil
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
		return d.of(w), nil
	case divided && outs == turned && d.of(w) == twin: // the other way, so x is a gradient
		if x == part && res == unknown {
			return term, nil
		}
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
	case divided && outs && x == same && dy == d.gradient(&d.part.Values[dw.Value]):
		return dy, nil
	case divided && !outs && x == own && dy == same:
		return own, nil
	}
	return unknown, fmt.Errorf("%s is the product of what is %v and of what is %v; hint: look for a sum over ranks too much or too few", d.part.Values[dw.Value].Name, x, dy)
}

// byColumns are operators whose ranks need no columns of others: they work by heads or by elements.
var byColumns = []graph.Op{graph.SinkGrad, graph.Act, graph.ActBwd, graph.BiasGrad, graph.SoftCap, graph.Cast}

// alikeOperands returns how the results of other operators are held: as all that they read. Only a bias's gradient may be one of terms.
func (d *division) alikeOperands(n *graph.Node) (holding, error) {
	h := unknown
	for k, u := range n.Args {
		if n.Op.Info().Args[k].Access == graph.Write || n.Op.Info().Args[k].Access == graph.Sum {
			continue
		}
		switch x := d.of(u); {
		case x == unknown:
		case x == mixed || h != unknown && x != h || x != same && !slices.Contains(byColumns, n.Op), (x == term || x == part) && n.Op != graph.BiasGrad:
			return unknown, fmt.Errorf("operand %s is %v; hint: look for a sum over ranks too much or too few", n.Op.Info().Args[k].Name, x)
		default:
			h = x
		}
	}
	return h, nil
}
