package graph

// Mixtures of experts. A layer's feed-forward is a choice among many: each token goes
// through K of E of them, which a router picks, and their results are added.
//
//	logits [N,E]    = n2.router                    linear
//	weights, experts [N,K]                         route
//	up   [N,K*2F]   = n2.gate|up of each expert    expert_linear
//	act  [N,K*F]    = silu(gate)*up*weight         swiglu
//	down [N,K*D]    = act.down of each expert      expert_linear
//	y    [N,D]      = mid + the K slots of down    combine
//
// All results have a fixed shape, whatever the router picks: a token's slots are side by
// side, in ascending order of their experts. So every operator is row-wise, and micro-batches,
// row ranges, recomputation and swapping treat a mixture as they treat any layer. Only inside
// an operator are rows gathered by expert, so that each matrix is multiplied once.
//
// The weight is applied to act instead of down. That is the same but for rounding, and saves
// keeping down for its gradient: the backward pass has both factors, dy of each slot and
// silu(gate)*up, at hand in swiglu_bwd.
//
// Backwards, dact is dy times each expert's transposed matrix: dy has no slots, as n2 has
// none, so no copy of it is made for each of them.
//
// Known weakness: down is written to memory K times as wide as y, which a product that adds
// up the slots itself would avoid.

// mixture appends router and experts, and returns out, the sum of their results and res.
func (b *builder) mixture(name, out string, x int, p *next, res int) int {
	m, g := b.m, b.g
	logits := b.tokens(name+".router", m.Experts, g.DType)
	b.linear(b.all(logits), b.all(x), p, false, absent)
	weights := b.tokens(name+".weights", m.Active, F32)
	experts := b.tokens(name+".experts", m.Active, I32)
	b.node(Route, Attr{Normed: m.NormedRoute}, b.all(weights), b.all(experts), b.all(logits))
	each := Attr{WT: true, Experts: m.Experts}
	up := b.tokens(name+".up", m.Active*2*m.FeedForward, g.DType)
	b.node(ExpertLinear, each, b.all(up), b.all(x), p.param(), b.all(experts))
	act := b.tokens(name+".act", m.Active*m.FeedForward, g.DType)
	b.node(SwiGLU, Attr{Act: activationOf[m.Activation]}, b.all(act), b.all(up), b.all(weights))
	down := b.tokens(name+".down", m.Active*m.Width, g.DType)
	b.node(ExpertLinear, each, b.all(down), b.all(act), p.param(), b.all(experts))
	y := b.tokens(out, m.Width, g.DType)
	b.node(Combine, Attr{}, b.all(y), b.all(down), b.all(res))
	return y
}

func diffRoute(b *builder, n *Node) {
	weights, experts, logits := n.Args[0], n.Args[1], n.Args[2]
	dlogits, _ := b.into(logits)
	b.node(RouteBwd, n.Attr, dlogits, b.of(weights), weights, experts, logits)
}

// diffCombine: each slot has the gradient of the sum, so no copies of it are made.
func diffCombine(b *builder, n *Node) {
	y, x, res := n.Args[0], n.Args[1], n.Args[2]
	dy := b.of(y)
	if b.trained(x) {
		b.grad[x.Value] = dy.Value
	}
	if b.trained(res) {
		b.pass(res, dy)
	}
}

// diffExpertLinear: dy has slots, or is the same for all.
func diffExpertLinear(b *builder, n *Node) {
	y, x, w, experts := n.Args[0], n.Args[1], n.Args[2], n.Args[3]
	dy := b.all(b.grad[y.Value])
	if b.trained(x) {
		b.expertDX(n, x, dy)
	}
	if b.trained(w) {
		attr := n.Attr
		attr.Seq, attr.Cut = b.g.Seq, Cut(b.g.Seq, b.g.DType)
		b.node(ExpertDW, attr, b.paramGrad(w), x, dy, experts)
	}
}

// expertDX appends the gradient of x, with slots if x has them, else summed over these.
func (b *builder) expertDX(n *Node, x, dy Use) {
	w, experts := n.Args[2], n.Args[3]
	attr := n.Attr
	attr.WT = !attr.WT
	in := b.g.Values[w.Value].Cols
	if !n.Attr.WT {
		in = b.g.Values[w.Value].Rows / n.Attr.Experts
	}
	dx, acc := b.into(x)
	if slots := x.Hi - x.Lo; slots != in {
		b.node(ExpertLinear, attr, dx, dy, w, experts)
		return
	}
	each := b.value(Value{Name: "d." + b.g.Values[x.Value].Name + ".slots", Kind: Gradient, DType: b.g.DType, PerToken: true, Cols: in * b.g.Values[experts.Value].Cols})
	b.node(ExpertLinear, attr, b.all(each), dy, w, experts)
	b.node(Combine, Attr{Acc: acc}, dx, b.all(each), absent)
}
