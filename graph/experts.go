package graph

import (
	"math"

	"github.com/athanor-llm/athanor/model"
)

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
// A feed-forward beside the experts, which all tokens go through, adds to mid before.
//
// All results have a fixed shape, whatever the router picks: a token's slots are side by
// side, in ascending order of their experts. So every operator is row-wise, and micro-batches,
// row ranges, recomputation and swapping treat a mixture as they treat any layer. Only inside
// an operator are rows gathered by expert, so that each matrix is multiplied once.
//
// The weight is applied to act instead of down. That is the same but for rounding, and down
// need not be kept for the weight's gradient: swiglu_bwd has both factors at hand, dy of each
// slot and silu(gate)*up.
//
// In the backward pass, dact is dy times each expert's transposed matrix. Like n2, dy has no
// slots, so it is not copied for each of them.
//
// gpt-oss has biases: an expert's sums start from its row of them. The weight multiplies the
// sum of down and its bias, so down starts from weight*bias, which again is the same but for
// rounding. In the backward pass, the weight's gradient has a second part, dy times the bias: a
// product of experts like any other, whose matrices are the biases, with one output.
//
// Known weakness: down is written to memory K times as wide as y, which a product that adds
// up the slots itself would avoid.

// mixture appends what a layer has instead of a feed-forward. Its values' names begin with name.
type mixture struct {
	*builder
	p    *next
	name string
}

// addTo appends router and experts, and returns out, the sum of their results and res.
func (b *mixture) addTo(out string, x, res int) int {
	m, g, name, p := b.m, b.g, b.name, b.p
	logits, bias := b.tokens(name+".router", m.Experts, g.DType), absent
	if m.Router.Bias {
		bias = b.param(model.RouterBiasOf(m, b.list[p.i].Name))
	}
	b.linear(b.all(logits), b.all(x), p, m.MLPBias, absent)
	weights, experts := b.route(logits, bias)
	down := b.multiply(x, weights, experts)
	if m.Shared > 0 {
		res = b.shared(x, res)
	}
	y := b.tokens(out, m.Width, g.DType)
	b.node(Combine, Attr{}, b.all(y), b.all(down), b.all(res))
	b.reduce(y)
	return y
}

// route appends the choice of experts.
func (b *mixture) route(logits int, bias Use) (weights, experts int) {
	m, name := b.m, b.name
	weights = b.tokens(name+".weights", m.Active, F32)
	experts = b.tokens(name+".experts", m.Active, I32)
	route := Attr{Normed: m.NormedRoute, Sigmoid: m.Router.Sigmoid, Alpha: m.Router.Scale}
	if m.Router.Groups > 1 {
		route.Groups, route.Best = m.Router.Groups, m.Router.Best
	}
	b.node(Route, route, trimmed(b.all(weights), b.all(experts), b.all(logits), bias)...)
	return weights, experts
}

// multiply appends the experts of each token, and returns their results, side by side.
func (b *mixture) multiply(x, weights, experts int) int {
	m, g, name := b.m, b.g, b.name
	up := b.tokens(name+".up", m.Active*2*m.FeedForward, g.DType)
	b.each(up, x, experts, absent)
	act := b.tokens(name+".act", m.Active*m.FeedForward, g.DType)
	b.node(SwiGLU, Attr{Act: b.act, Limit: m.GateLimit, Alpha: m.GateAlpha}, b.all(act), b.all(up), b.all(weights))
	down := b.tokens(name+".down", m.Active*m.Width, g.DType)
	b.each(down, act, experts, b.all(weights))
	return down
}

// addNormed appends a feed-forward and experts beside it, each with norms of its own (see model.NormsExperts), and returns out, the norm of
// their sum added to the residual stream:
//
//	shared  = norm(down.act(up.x))
//	weights = softmax of the best of norm(stream)*gain.router over the root of its width, times a gain of each expert
//	out     = stream + norm(norm(experts of norm(stream)) + shared)
//
// A gain of each expert is a product with one number, so it needs no operator of its own.
func (b *mixture) addNormed(out string, x, stream int) int {
	m, g, name, p := b.m, b.g, b.name, b.p
	plain := b.shared(x, -1)
	shared := b.tokens(name+".shared.norm", m.Width, g.DType)
	b.normTo(name+".shared.norm", b.all(shared), b.all(plain), 0, m.NormEps, p, absent)
	routed := b.tokens(name+".routed", m.Width, g.DType)
	b.normWith(name+".routed", b.all(routed), b.all(stream), Attr{Eps: m.NormEps}, p.param(), absent)
	logits := b.tokens(name+".router", m.Experts, g.DType)
	b.linear(b.all(logits), b.all(routed), p, false, absent)
	b.node(Scale, Attr{Scale: 1 / math.Sqrt(float64(m.Width))}, b.all(logits))
	own := b.norm(name+".experts.norm", stream, p)
	even, experts := b.route(logits, absent)
	weights := b.tokens(name+".gained", m.Active, F32)
	b.node(ExpertLinear, Attr{WT: true, Slots: true, Experts: m.Experts}, b.all(weights), b.all(even), p.param(), b.all(experts))
	slots := b.multiply(own, weights, experts)
	sum := b.tokens(name+".sum", m.Width, g.DType)
	b.node(Combine, Attr{}, b.all(sum), b.all(slots), absent)
	both := b.tokens(name+".both", m.Width, g.DType)
	b.normTo(name+".both.norm", b.all(both), b.all(sum), 0, m.NormEps, p, b.all(shared))
	y := b.tokens(out, m.Width, g.DType)
	b.normTo(out+".norm", b.all(y), b.all(both), 0, m.NormEps, p, b.all(stream))
	return y
}

// shared appends the feed-forward that all tokens go through, whose result is added to res, if there is one. Its gate is a router of one expert.
func (b *mixture) shared(x, res int) int {
	m, g, f, name, p := b.m, b.g, b.m.Shared, b.name+".shared", b.p
	weights := absent
	if m.SharedGate {
		logits := b.tokens(name+".router", 1, g.DType)
		b.linear(b.all(logits), b.all(x), p, false, absent)
		weights = b.all(b.tokens(name+".weights", 1, F32))
		b.node(Route, Attr{Sigmoid: true}, weights, b.all(b.tokens(name+".experts", 1, I32)), b.all(logits))
	}
	up := b.tokens(name+".up", 2*f, g.DType, f)
	if m.FusedGate() {
		b.linear(b.all(up), b.all(x), p, false, absent)
	} else {
		b.linears([]Use{{up, 0, f}, {up, f, 2 * f}}, b.all(x), p, false)
	}
	act := b.tokens(name+".act", f, g.DType)
	b.node(SwiGLU, Attr{Act: b.act}, trimmed(b.all(act), b.all(up), weights)...)
	y := b.tokens(name, m.Width, g.DType)
	sum := absent
	if res >= 0 {
		sum = b.all(res)
	}
	b.linear(b.all(y), b.all(act), p, false, sum)
	return y
}

// each appends y = x.w with each slot's expert, with biases if the model has them, and what its
// adapter adds: w and the biases are the next parameters. If x has slots, these have been
// multiplied by weights, and the biases are too.
func (b *mixture) each(y, x, experts int, weights Use) {
	w := b.p.param()
	of := &b.g.Params[b.g.ParamOf(w.Value)]
	attr := Attr{WT: true, NF4: of.NF4, Slots: weights.Value >= 0, Experts: of.Experts}
	bias := b.p.optional(b.m.MLPBias)
	if bias == absent {
		weights = absent
	}
	b.node(ExpertLinear, attr, trimmed(b.all(y), b.all(x), w, b.all(experts), bias, weights)...)
	if down, up, ok := b.m.Factors(of.Name); ok {
		low := b.tokens(b.g.Values[y].Name+".low", b.g.Values[experts].Cols*b.m.LoRA.Rank, b.g.DType)
		attr.NF4 = false
		b.node(ExpertLinear, attr, b.all(low), b.all(x), b.param(down), b.all(experts))
		if s := b.m.LoRA.Scale(of.Name); s != 1 {
			b.node(Scale, Attr{Scale: s}, b.all(low))
		}
		attr.Slots, attr.Acc = true, true
		b.node(ExpertLinear, attr, b.all(y), b.all(low), b.param(up), b.all(experts))
	}
}

func diffRoute(b *differentiator, n *Node) {
	weights, experts, logits := n.Args[RouteWeights], n.Args[RouteExperts], n.Args[RouteLogits]
	dlogits, _ := b.into(logits)
	attr, args := n.Attr, []Use{dlogits, b.of(weights), weights, experts, logits}
	attr.Seq = 1 // rows do not depend on each other
	if m := b.m; m.Balance > 0 && !attr.Sigmoid {
		attr.Seq = b.g.Seq
		attr.Scale = m.Balance * float64(m.Experts) / float64((m.Layers-m.Dense)*m.Active*b.g.Seq)
		args = append(args, b.all(b.g.Scalars))
	}
	b.node(RouteBwd, attr, args...)
}

// diffCombine: each slot has the gradient of the sum, so no copies of it are made.
func diffCombine(b *differentiator, n *Node) {
	y, x, res := n.Args[CombineY], n.Args[CombineX], n.Args[CombineRes]
	dy := b.of(y)
	if b.trained(x) {
		b.grad[x.Value] = dy.Value
	}
	if b.trained(res) {
		b.pass(res, dy)
	}
}

// diffExpertLinear: dy has slots, or is the same for all slots.
func diffExpertLinear(b *differentiator, n *Node) {
	y, x, w := n.Args[ExpertLinearY], n.Args[ExpertLinearX], n.Args[ExpertLinearW]
	experts := n.Args[ExpertLinearExperts]
	dy := b.all(b.grad[y.Value])
	if b.trained(x) {
		b.expertDX(n, dy)
	}
	if b.trained(w) {
		attr := Attr{WT: n.Attr.WT, Experts: n.Attr.Experts, Seq: b.g.Seq, Cut: Cut(b.g.Sequence(), b.g.DType)}
		b.node(ExpertDW, attr, b.paramGrad(w), x, dy, experts)
	}
	if len(n.Args) > ExpertLinearBias {
		b.diffExpertBias(n, dy)
	}
}

// diffExpertBias appends the gradients of biases, and of the weights that multiply them.
func (b *differentiator) diffExpertBias(n *Node, dy Use) {
	experts, bias, weights := n.Args[ExpertLinearExperts], n.Args[ExpertLinearBias], absent
	if len(n.Args) > ExpertLinearWeights {
		weights = n.Args[ExpertLinearWeights]
	}
	if b.trained(bias) {
		b.node(ExpertDB, Attr{Experts: n.Attr.Experts}, trimmed(b.paramGrad(bias), dy, experts, weights)...)
	}
	if b.trained(weights) { // the first part; swiglu_bwd, which comes later, adds the other
		dweights, _ := b.into(weights)
		b.node(ExpertLinear, Attr{WT: true, Experts: n.Attr.Experts}, dweights, dy, bias, experts)
	}
}

// expertDX appends the gradient of x, with slots if x has them, else summed over the slots.
func (b *differentiator) expertDX(n *Node, dy Use) {
	y, x, w := n.Args[ExpertLinearY], n.Args[ExpertLinearX], n.Args[ExpertLinearW]
	experts := n.Args[ExpertLinearExperts]
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

// expertFLOPs counts 2 * slots * in * out.
func expertFLOPs(a *Attr, d []Dim) int64 {
	in := d[ExpertLinearX].Cols
	if a.Slots {
		in /= max(d[ExpertLinearExperts].Cols, 1)
	}
	return 2 * d[ExpertLinearY].Elems() * int64(in)
}

func expertDWFLOPs(a *Attr, d []Dim) int64 {
	return 2 * d[ExpertDWDW].Elems() / int64(max(a.Experts, 1)) * d[ExpertDWExperts].Elems()
}

// expertBytes counts the weights of as many experts as there are slots, at most all of them.
func expertBytes(a *Attr, d []Dim) int64 {
	e := int64(max(a.Experts, 1))
	experts := d[ExpertLinearExperts]
	return d[ExpertLinearY].Bytes() + d[ExpertLinearX].Bytes() + experts.Bytes() + d[ExpertLinearW].Bytes()/e*min(e, experts.Elems())
}
