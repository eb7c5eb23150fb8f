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
	up := b.tokens(name+".up", m.Active*2*m.FeedForward, g.DType)
	b.each(up, x, p.param(), experts, false)
	act := b.tokens(name+".act", m.Active*m.FeedForward, g.DType)
	b.node(SwiGLU, Attr{Act: activationOf[m.Activation]}, b.all(act), b.all(up), b.all(weights))
	down := b.tokens(name+".down", m.Active*m.Width, g.DType)
	b.each(down, act, p.param(), experts, true)
	y := b.tokens(out, m.Width, g.DType)
	b.node(Combine, Attr{}, b.all(y), b.all(down), b.all(res))
	return y
}

// each appends y = x.w of each slot's expert, and what its adapter adds to it. slots says
// whether x has slots.
func (b *builder) each(y, x int, w Use, experts int, slots bool) {
	p := &b.g.Params[b.g.ParamOf(w.Value)]
	attr := Attr{WT: true, NF4: p.NF4, Slots: slots, Experts: p.Experts}
	b.node(ExpertLinear, attr, b.all(y), b.all(x), w, b.all(experts))
	if down, up, ok := b.m.Factors(p.Name); ok {
		low := b.tokens(b.g.Values[y].Name+".low", b.g.Values[experts].Cols*b.m.LoRA.Rank, b.g.DType)
		attr.NF4 = false
		b.node(ExpertLinear, attr, b.all(low), b.all(x), b.param(down), b.all(experts))
		if s := b.m.LoRA.Scale(); s != 1 {
			b.node(Scale, Attr{Scale: s}, b.all(low))
		}
		attr.Slots, attr.Acc = true, true
		b.node(ExpertLinear, attr, b.all(y), b.all(low), b.param(up), b.all(experts))
	}
}

func diffRoute(b *builder, n *Node) {
	weights, experts, logits := n.Args[0], n.Args[1], n.Args[2]
	dlogits, _ := b.into(logits)
	attr, args := n.Attr, []Use{dlogits, b.of(weights), weights, experts, logits}
	attr.Seq = 1 // rows do not depend on each other
	if m := b.m; m.Balance > 0 {
		attr.Seq = b.g.Seq
		attr.Scale = m.Balance * float64(m.Experts) / float64(m.Layers*m.Active*b.g.Seq)
		args = append(args, b.all(b.g.Scalars))
	}
	b.node(RouteBwd, attr, args...)
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
		b.expertDX(n, dy)
	}
	if b.trained(w) {
		attr := Attr{WT: n.Attr.WT, Experts: n.Attr.Experts, Seq: b.g.Seq, Cut: Cut(b.g.Seq, b.g.DType)}
		b.node(ExpertDW, attr, b.paramGrad(w), x, dy, experts)
	}
}

// expertDX appends the gradient of x, with slots if x has them, else summed over these.
func (b *builder) expertDX(n *Node, dy Use) {
	y, x, w, experts := n.Args[0], n.Args[1], n.Args[2], n.Args[3]
	attr := n.Attr
	attr.WT, attr.Slots = !attr.WT, dy.Hi-dy.Lo == y.Hi-y.Lo
	dx, acc := b.into(x)
	if n.Attr.Slots {
		attr.Acc = acc
		b.node(ExpertLinear, attr, dx, dy, w, experts)
		return
	}
	attr.Acc = false
	v := b.g.Values[x.Value]
	each := b.value(Value{Name: "d." + v.Name + ".slots", Kind: Gradient, DType: v.DType, PerToken: true, Cols: v.Cols * b.g.Values[experts.Value].Cols})
	b.node(ExpertLinear, attr, b.all(each), dy, w, experts)
	b.node(Combine, Attr{Acc: acc}, dx, b.all(each), absent)
}
