package graph

import (
	"cmp"

	"github.com/athanor-llm/athanor/model"
)

// mamba appends a layer of Mamba2:
//
//	in    = x.w            z | x, b, c | time steps
//	mixed = silu(conv(in)) of x, b, c
//	scan                   of mixed and of gates, which the time steps make
//	y     = norm(silu(z)*scan), by groups; or the norm is before the gate, or nowhere
func mamba(b *builder, name string, x int, p *next) int {
	d, g := &b.m.Mamba, b.g
	values, mixed := d.Values(), d.Values()+d.Mixed()
	cuts, k := []int{values, mixed}, &b.m.Mup
	if k.Some() {
		cuts = []int{values, 2 * values, 2*values + d.Groups*d.State, mixed}
	}
	in := b.tokens(name+".in", mixed+d.Heads, g.DType, cuts...)
	b.linear(b.all(in), b.all(x), p, d.Bias, absent)
	if k.Some() {
		for i, by := range k.Scans {
			scaleBy(b, Use{in, append([]int{0}, cuts...)[i], append(cuts, mixed+d.Heads)[i]}, k.Scan*by)
		}
	}
	xbc := shortConv(b, name, Use{in, values, mixed}, p, model.SiLU, d.ConvBias)
	gates, o := b.tokens(name+".steps", 2*d.Heads, F32), b.tokens(name+".scan", values, g.DType)
	b.node(TimeSteps, Attr{Least: d.Least, Limit: d.Most}, b.all(gates), Use{in, mixed, mixed + d.Heads}, p.param(), p.param())
	attr, skip := Attr{Heads: d.Heads, KVHeads: d.Groups, HeadDim: d.State}, p.param()
	if g.Context > 0 {
		state := b.value(Value{Name: name + ".state", Kind: Cache, DType: F32, Rows: d.Heads * d.State * max(g.Slots, 1), Cols: d.HeadDim})
		b.node(StateScanAt, attr, b.all(o), b.all(state), b.all(xbc), b.all(gates), skip, b.all(g.Pos))
	} else {
		attr.Seq = g.Seq
		states := b.tokens(name+".states", d.Heads*ScanStateCols(g.Seq, d.State*d.HeadDim), F32)
		b.node(StateScan, attr, trimmed(b.all(o), b.all(states), b.all(xbc), b.all(gates), skip, b.starts())...)
	}
	if d.Norm == model.NormFirst {
		o = normGroups(b, name+".normed", o, d.Groups, p)
	}
	y := b.tokens(name+".gated", values, g.DType)
	b.node(Gate, Attr{Act: model.SiLU}, b.all(y), Use{in, 0, values}, b.all(o))
	if d.Norm == model.NormGated {
		y = normGroups(b, name+".normed", y, d.Groups, p)
	}
	scaleBy(b, b.all(y), cmp.Or(k.Scanned, 1))
	return y
}

// normGroups appends a norm of groups of columns, each by itself, whose gains are the columns'.
func normGroups(b *builder, name string, x, groups int, p *next) int {
	cols := b.g.Values[x].Cols
	y := b.tokens(name, cols, b.g.DType)
	if groups == 1 {
		b.normWith(name, b.all(y), b.all(x), Attr{Eps: b.m.NormEps}, p.param(), absent)
		return y
	}
	b.normWith(name, b.all(y), b.all(x), Attr{Eps: b.m.NormEps, Heads: groups}, b.ones(cols/groups), absent)
	z := b.tokens(name+".gained", cols, b.g.DType)
	b.node(Gain, Attr{}, b.all(z), b.all(y), p.param())
	return z
}

func diffTimeSteps(b *differentiator, n *Node) {
	gates, x, rate, bias := n.Args[TimeStepsGates], n.Args[TimeStepsX], n.Args[TimeStepsRate], n.Args[TimeStepsBias]
	dgates := b.of(gates)
	if b.trained(rate) {
		b.node(DecayGrad, Attr{}, b.paramGrad(rate), dgates, gates)
	}
	if !b.trained(x) && !b.trained(bias) {
		return
	}
	dx, _ := b.into(x)
	b.node(TimeStepsBwd, n.Attr, dx, dgates, x, rate, bias)
	if b.trained(bias) {
		b.node(BiasGrad, Attr{}, b.paramGrad(bias), dx)
	}
}

// diffStateScan: the gradient of gates also has what each token contributes to that of skip.
func diffStateScan(b *differentiator, n *Node) {
	xbc, gates, skip := n.Args[StateScanXBC], n.Args[StateScanGates], n.Args[StateScanSkip]
	heads := n.Attr.Heads
	dgates := b.value(Value{Name: "d." + b.g.Values[gates.Value].Name, Kind: Gradient, DType: F32, PerToken: true, Cols: 3 * heads, Cuts: []int{2 * heads}})
	b.grad[gates.Value] = dgates
	dxbc, _ := b.into(xbc)
	bands := absent
	if cols := ScanRoom(&n.Attr); cols > 0 {
		bands = b.all(b.value(Value{Name: "d." + b.g.Values[xbc.Value].Name + ".bands", Kind: Gradient, DType: F32, PerToken: true, Cols: cols}))
	}
	args := []Use{dxbc, b.all(dgates), b.of(n.Args[StateScanO]), xbc, gates, skip, n.Args[StateScanStates], bands}
	b.node(StateScanBwd, n.Attr, trimmed(append(args, n.Args[StateScanStarts:]...)...)...)
	if b.trained(skip) {
		b.node(BiasGrad, Attr{}, b.paramGrad(skip), Use{dgates, 2 * heads, 3 * heads})
	}
}
