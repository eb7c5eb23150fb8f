package graph

import "slices"

// Reverse-mode differentiation, one rule per forward operator, applied to the
// nodes of each segment from last to first. A rule finds the gradient of its
// node's result in b.grad and adds to the gradients of its operands.
//
// The residual stream needs no additions: where y = f(x) + res, the gradient
// of y *is* the first contribution to that of res, and the same value is
// passed on; f's contribution is accumulated into it later, after every reader
// of the gradient of y has been listed. The gradient of an activation function
// likewise overwrites the incoming one. So a layer's backward pass works on one
// [N, D] gradient throughout.
//
// Where the gradient that reaches an activation function is the result of a product that
// nothing else has read, the product itself multiplies by the derivative: on a GPU this saves a
// kernel, and reading and writing the widest gradient of a layer once.
//
// A value has no gradient unless it depends on a trained parameter: rules consult
// needs before they contribute. So there is no backward pass below the lowest
// trained parameter, and a frozen weight costs neither its gradient nor the
// activations that only its gradient would read.
//
//	h.0 frozen      nothing
//	h.1 wv trained  its norms, wq, wk frozen: dx down to the input of wv
//	h.2 frozen      all dx, for h.1
//
// Known weakness: because the stream is updated in place, the weight gradients
// of a layer cannot be deferred beyond its input gradients without a copy
// (zero-bubble schedules need one).

type rule func(b *differentiator, n *Node)

var rules = map[Op]rule{
	Linear:       diffLinear,
	Direction:    diffDirection,
	Gain:         diffGain,
	LayerNorm:    diffNorm,
	RMSNorm:      diffNorm,
	RoPE:         diffRoPE,
	Attention:    diffAttention,
	Act:          diffAct,
	XIELU:        diffXIELU,
	SwiGLU:       diffSwiGLU,
	Gate:         diffGate,
	ShortConv:    diffShortConv,
	Decay:        diffDecay,
	DeltaRule:    diffDeltaRule,
	TimeSteps:    diffTimeSteps,
	StateScan:    diffStateScan,
	LatentKV:     diffLatentKV,
	HeadCols:     diffHeadCols,
	Route:        diffRoute,
	ExpertLinear: diffExpertLinear,
	Combine:      diffCombine,
	Cast:         func(b *differentiator, n *Node) { b.grad[n.Args[CastSrc].Value] = b.grad[n.Args[CastDst].Value] }, // of the same columns
	AllReduce:    func(*differentiator, *Node) {},                                                                    // each rank's term has the gradient of the sum
	Scale: func(b *differentiator, n *Node) {
		b.node(Scale, n.Attr, append([]Use{b.of(n.Args[ScaleY])}, n.Args[1:]...)...)
	},
	Drop:         diffDrop,
	Jitter:       func(*differentiator, *Node) {},
	SoftCap:      func(*differentiator, *Node) {}, // cross-entropy's gradient is of what was capped
	Embed:        diffEmbed,
	LossPart:     diffLossPart,
	CrossEntropy: diffCrossEntropy,
	Distil:       func(b *differentiator, n *Node) { b.grad[n.Args[DistilLogits].Value] = n.Args[DistilLogits].Value },
	TopLogs:      func(*differentiator, *Node) {}, // what a teacher says is not trained
	Preference:   func(*differentiator, *Node) {},
	LossSum:      func(*differentiator, *Node) {},
}

// differentiator appends the backward passes to a graph whose forward passes are built.
type differentiator struct {
	*builder
	needs [][]Use       // columns of forward values that depend on a trained parameter
	grad  map[int]int   // gradient value of a value, once it has a contribution
	parts map[int][]Use // columns of values that have one, where others have none yet
	pgrad map[int]int   // gradient value of a parameter
	held  *Node         // a weight's gradient that waits to be merged with another, see weightGrad
}

// differentiate appends the backward passes of all segments.
func (b *builder) differentiate() {
	d := &differentiator{builder: b, grad: map[int]int{}, parts: map[int][]Use{}, pgrad: map[int]int{}}
	d.appendBackward()
}

// node appends a node to the backward pass of the segment.
func (b *differentiator) node(op Op, attr Attr, args ...Use) {
	attr.Unit = b.g.unit(args)
	n := Node{Op: op, Attr: attr, Args: args, Chunked: b.chunk, Turn: b.turn}
	if h := b.held; h != nil && (n.Writes(h.Args[LinearDWX].Value) || n.Writes(h.Args[LinearDWDY].Value)) {
		b.release()
	}
	b.seg.Backward = append(b.seg.Backward, n)
}

// appendBackward appends the backward passes, from the last segment to the first.
func (b *differentiator) appendBackward() {
	b.need()
	for s := b.g.Head(); s >= 0; s-- {
		b.seg, b.turn = &b.g.Segments[s], 0
		b.seg.DOut = b.gradientOf(b.seg.Out)
		for i := len(b.seg.Forward) - 1; i >= 0; i-- {
			n := &b.seg.Forward[i]
			b.chunk = n.Chunked
			if b.trained(n.Args[0]) {
				if b.spread[n.Args[0].Value] {
					delete(b.spread, n.Args[0].Value) // what is multiplied in place is written twice
					b.node(AllReduce, Attr{}, b.of(n.Args[0]))
				}
				b.narrow(n.Args[0].Value)
				rules[n.Op](b, n)
			}
		}
		b.release()
		b.seg.DIn = b.gradientOf(b.seg.In)
		b.seg.Saved = b.saved()
	}
}

// need finds the values, or columns of them, that depend on a trained parameter.
func (b *differentiator) need() {
	b.needs = make([][]Use, len(b.g.Values), 2*len(b.g.Values))
	for i := range b.g.Values {
		if v := &b.g.Values[i]; v.Kind == ParamValue && !b.g.Params[v.Param].Frozen {
			b.needs[i] = []Use{b.all(i)}
		}
	}
	for s := range b.g.Segments {
		for _, n := range b.g.Segments[s].Forward {
			if !slices.ContainsFunc(n.Args, b.trained) {
				continue
			}
			for i, u := range n.Args {
				if u.Value >= 0 && n.Op.Info().Args[i].Access != Read {
					b.needs[u.Value] = append(b.needs[u.Value], u)
				}
			}
		}
	}
}

// trained reports whether an operand has a gradient.
func (b *differentiator) trained(u Use) bool {
	return u.Value >= 0 && slices.ContainsFunc(b.needs[u.Value], u.overlaps)
}

// gradientOf returns the current gradient value of a boundary value, -1 if none.
func (b *differentiator) gradientOf(v int) int {
	if d, ok := b.grad[v]; ok {
		return d
	}
	return -1
}

// saved lists the forward values of the segment, its input included, that its backward pass reads.
func (b *differentiator) saved() []int {
	var list []int
	for i := range b.seg.Backward {
		n := &b.seg.Backward[i]
		for _, u := range n.Args {
			if u.Value < 0 {
				continue
			}
			v := &b.g.Values[u.Value]
			if v.Kind == Forwarded && !v.Chunked && !slices.Contains(list, u.Value) && (u.Value == b.seg.In || b.seg.Makes(u.Value)) {
				list = append(list, u.Value)
			}
		}
	}
	slices.Sort(list)
	return list
}

// of returns the existing gradient of an operand.
func (b *differentiator) of(u Use) Use { return Use{b.grad[u.Value], u.Lo, u.Hi} }

// into returns the destination of a contribution to an operand's gradient, and
// whether it must be added to earlier contributions.
func (b *differentiator) into(u Use) (to Use, acc bool) {
	d, has := b.grad[u.Value]
	if !has {
		d = b.gradient(u.Value)
		b.grad[u.Value] = d
	}
	if parts := b.parts[u.Value]; !has || parts != nil {
		has = slices.ContainsFunc(parts, u.overlaps)
		b.parts[u.Value] = append(parts, u)
	}
	return Use{d, u.Lo, u.Hi}, has
}

// gradient makes the gradient value of a forward value. It has all rows even if
// contributions come in chunks of rows.
func (b *differentiator) gradient(of int) int {
	v := b.g.Values[of]
	if b.wide[of] {
		v.Name, v.DType = v.Name+".sum", F32
	}
	return b.value(Value{Name: "d." + v.Name, Kind: Gradient, DType: v.DType, PerToken: true, Cols: v.Cols, Cuts: v.Cuts})
}

// paramGrad returns the gradient of a parameter, or of several spanned by one value: a sum over
// micro-batches. Only the lowering knows which contribution comes first and so is not accumulated.
func (b *differentiator) paramGrad(u Use) Use {
	v := b.g.Values[u.Value]
	d, ok := b.pgrad[v.Param]
	if !ok {
		d = b.value(Value{Name: "d." + v.Name, Kind: ParamGrad, DType: F32, Rows: v.Rows, Cols: v.Cols, Param: v.Param, Params: v.Params})
		b.pgrad[v.Param] = d
	}
	return b.all(d)
}

func diffLinear(b *differentiator, n *Node) {
	y, x, w, bias := n.Args[LinearY], n.Args[LinearX], n.Args[LinearW], n.Args[LinearBias]
	res := n.Args[LinearRes]
	dy := b.of(y)
	dropped := b.droppedBy(x)
	if b.trained(w) && dropped != nil { // x is drawn again, and forgotten before there is a gradient of its size
		b.productGrad(n, b.redraw(dropped), dy)
	}
	if b.trained(x) {
		dx, acc := b.into(x)
		b.node(LinearDX, Attr{WT: n.Attr.WT, NF4: n.Attr.NF4, FP8: n.Attr.FP8, Acc: acc}, dx, dy, w)
	}
	if b.trained(w) && dropped == nil {
		b.productGrad(n, x, dy)
	}
	if b.trained(bias) {
		b.node(BiasGrad, Attr{}, b.paramGrad(bias), dy)
	}
	if b.trained(res) {
		b.pass(res, dy)
	}
}

// productGrad appends the gradient of the weight of a product of x.
func (b *differentiator) productGrad(n *Node, x, dy Use) {
	attr := Attr{WT: n.Attr.WT, Cut: Cut(b.g.Sequence(), b.g.DType)}
	b.weightGrad(Node{Op: LinearDW, Attr: attr, Args: []Use{b.paramGrad(n.Args[LinearW]), x, dy}, Chunked: b.chunk})
}

// weightGrad appends the gradient of a weight. The gradient of a product into the residual stream waits for
// that of the product out of it, if the latter's weight is stored directly before: then one operator computes
// both, once everything they read is known.
//
//	x -> qkv -> attention -> proj -> x      up -> act -> down
//	          linear_dw dqkv dproj             linear_dw dup ddown
//
// On an H200 GPT-2's 768 x 768 reaches 224 TFLOP/s by itself and 768 x 2304 some 500, for want of tiles; see device/cuda/wgrad.go.
func (b *differentiator) weightGrad(n Node) {
	p := &b.g.Params[b.g.ParamOf(n.Args[LinearDWDW].Value)]
	if n.Chunked || p.Adapter {
		b.node(n.Op, n.Attr, n.Args...)
		return
	}
	if h := b.held; h != nil && b.leads(&n, h) {
		b.held = nil
		b.node(n.Op, n.Attr, append(n.Args, h.Args...)...)
		return
	}
	b.release()
	b.held = &n
}

// leads reports whether the weight of product n is stored directly before that of product to, whose result goes
// back into the stream that n reads.
func (b *differentiator) leads(n, to *Node) bool {
	v := &b.g.Values[n.Args[LinearDWDW].Value]
	ins, _ := b.g.wholeSides(n)
	_, outs := b.g.wholeSides(to)
	w := b.g.ParamOf(to.Args[LinearDWDW].Value)
	return v.Param+v.Params == w && b.g.Terms(v.Param) == b.g.Terms(w) && n.Attr == to.Attr && ins == outs
}

// release appends the gradient that waits, if any.
func (b *differentiator) release() {
	if n := b.held; n != nil {
		b.held = nil
		b.node(n.Op, n.Attr, n.Args...)
	}
}

// pass makes dy, the gradient of a node's result, the first contribution to the gradient of
// res, which the node adds.
func (b *differentiator) pass(res, dy Use) {
	if _, ok := b.grad[res.Value]; ok {
		panic("graph: " + b.g.Values[res.Value].Name + " has a gradient that would be lost")
	}
	b.grad[res.Value] = dy.Value
}

func diffNorm(b *differentiator, n *Node) {
	y, stats, x, g := n.Args[LayerNormY], n.Args[LayerNormStats], n.Args[LayerNormX], n.Args[LayerNormGain] // or of RMSNorm
	dy := b.of(y)
	dx, acc := absent, false
	switch {
	case !b.trained(x):
	case y.Hi-y.Lo < b.g.Values[y.Value].Cols: // queries, keys or values: nothing else reads their gradient, so it is overwritten
		dx, acc = Use{dy.Value, x.Lo, x.Hi}, x.Lo != y.Lo // but values that are keys are added to these
		b.grad[x.Value] = dy.Value
	default:
		dx, acc = b.into(x)
	}
	if n.Op == RMSNorm && len(n.Args) > RMSNormRes && b.trained(n.Args[RMSNormRes]) {
		b.pass(n.Args[RMSNormRes], dy)
	}
	// Gains first: the input's gradient may overwrite dy.
	input := LayerNormDX
	switch {
	case n.Op == RMSNorm:
		input = RMSNormDX
		if b.trained(g) {
			b.node(RMSNormDW, n.Attr, b.paramGrad(g), dy, x, stats)
		}
	case b.trained(g): // then so is the bias, if there is one, see model.Freeze
		db := absent
		if len(n.Args) > LayerNormBias {
			db = b.paramGrad(n.Args[LayerNormBias])
		}
		b.node(LayerNormDW, n.Attr, b.paramGrad(g), db, dy, x, stats)
	case len(n.Args) > LayerNormBias && b.trained(n.Args[LayerNormBias]): // the same sum as LayerNormDW's
		b.node(BiasGrad, Attr{}, b.paramGrad(n.Args[LayerNormBias]), dy)
	}
	if b.trained(x) {
		attr := n.Attr
		attr.Acc = acc
		b.node(input, attr, dx, dy, x, g, stats)
	}
}

func diffRoPE(b *differentiator, n *Node) {
	attr := n.Attr
	attr.Inverse = true
	b.node(RoPE, attr, b.of(n.Args[RoPEQKV]), n.Args[RoPETable])
}

func diffAttention(b *differentiator, n *Node) {
	o, lse, q, kv := n.Args[AttentionO], n.Args[AttentionLSE], n.Args[AttentionQ], n.Args[AttentionKV]
	delta := b.value(Value{Name: "d." + b.g.Values[lse.Value].Name, Kind: Gradient, DType: F32, PerToken: true, Cols: n.Attr.Heads})
	dq, _ := b.into(q)
	attr := n.Attr
	dkv, acc := b.into(kv) // other columns of the same value, without contributions yet, or another layer's
	attr.Acc = acc
	args := []Use{dq, dkv, b.all(delta), b.of(o), q, kv, o, lse}
	if len(n.Args) > AttentionStarts && n.Args[AttentionStarts].Value >= 0 {
		args = append(args, n.Args[AttentionStarts])
	}
	b.node(AttentionBwd, attr, args...)
	if len(n.Args) > AttentionSinks && b.trained(n.Args[AttentionSinks]) {
		b.node(SinkGrad, Attr{}, b.paramGrad(n.Args[AttentionSinks]), b.all(delta), lse, n.Args[AttentionSinks])
	}
}

func diffAct(b *differentiator, n *Node) {
	y, x := n.Args[ActY], n.Args[ActX]
	dy := b.of(y)
	b.grad[x.Value] = dy.Value
	if p := b.latest(dy); p.Op == LinearDX && !p.Attr.Acc && p.Args[LinearDXDX] == dy && p.Chunked == b.chunk {
		p.Attr.Act, p.Args = n.Attr.Act, append(p.Args, x)
		return
	}
	b.node(ActBwd, n.Attr, dy, dy, x)
}

// latest returns the last node of the segment's backward pass that has an operand in common with u.
func (b *differentiator) latest(u Use) *Node {
	for i := len(b.seg.Backward) - 1; i >= 0; i-- {
		if n := &b.seg.Backward[i]; slices.ContainsFunc(n.Args, u.overlaps) {
			return n
		}
	}
	return &Node{}
}

func diffSwiGLU(b *differentiator, n *Node) {
	y, gu := n.Args[SwiGLUY], n.Args[SwiGLUGateUp]
	b.release() // memory peaks here, at the gradient of gates and ups: a gradient that waits must not keep y alive
	dgu, _ := b.into(gu)
	attr, args := n.Attr, []Use{dgu, b.of(y), gu}
	if len(n.Args) > SwiGLUWeights {
		weights, dweights := n.Args[SwiGLUWeights], absent
		if b.trained(weights) {
			dweights, attr.Acc = b.into(weights)
		}
		args = append(args, weights, dweights)
	}
	b.node(SwiGLUBwd, attr, args...)
}

func diffEmbed(b *differentiator, n *Node) {
	x, tokens, wte, wpe := n.Args[EmbedX], n.Args[EmbedTokens], n.Args[EmbedWTE], n.Args[EmbedWPE]
	dx, attr, first := b.of(x), n.Attr, len(b.seg.Backward) == 0
	attr.Acc = false
	if b.trained(wte) {
		if b.g.Vocabulary.Parts > 1 && !first {
			b.turn++
		}
		b.node(EmbedBwd, attr, b.paramGrad(wte), dx, tokens)
	}
	if b.trained(wpe) && (first || n.Attr.Vocab == 0) {
		b.node(PosBwd, attr, b.paramGrad(wpe), dx)
	}
}

// diffCrossEntropy: the gradient replaces the logits. If it was not known when they were computed, they are recomputed.
func diffCrossEntropy(b *differentiator, n *Node) {
	logits := n.Args[CrossEntropyLogits]
	if n.Attr.Grad {
		b.grad[logits.Value] = logits.Value
		return
	}
	v := b.g.Values[logits.Value]
	again := Use{b.tokens("again", v.Cols, v.DType, v.Cuts...), logits.Lo, logits.Hi}
	made := slices.IndexFunc(b.seg.Forward, func(n Node) bool { return n.Args[0] == logits })
	for _, n := range b.seg.Forward[made:] { // with those of an adapter
		if n.Op == CrossEntropy {
			break
		}
		args := slices.Clone(n.Args)
		if args[0] == logits {
			args[0] = again
		}
		b.node(n.Op, n.Attr, args...)
	}
	b.node(CrossEntropy, Attr{Grad: true, Limit: n.Attr.Limit, Score: n.Attr.Score}, b.all(b.tokens("nll.again", 1, F32)), again, n.Args[CrossEntropyTargets], n.Args[CrossEntropyScalars], b.all(b.pull))
	b.grad[logits.Value] = again.Value
}
