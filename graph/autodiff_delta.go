package graph

// Derivatives of what gated delta nets consist of. Their operands are bands of products' results, each read by one operator.

func diffGate(b *differentiator, n *Node) {
	gate, up := n.Args[GateGates], n.Args[GateUp]
	dgate, _ := b.into(gate) // other columns of the same value
	dup, _ := b.into(up)
	b.node(GateBwd, n.Attr, dgate, dup, b.of(n.Args[GateY]), gate, up)
}

func diffShortConv(b *differentiator, n *Node) {
	x, w, dy := n.Args[ShortConvX], n.Args[ShortConvW], b.of(n.Args[ShortConvY])
	rest := append([]Use{dy, x, w}, n.Args[ShortConvStarts:]...)
	if b.trained(w) { // or else no bias is, see model.Freeze
		args := append([]Use{b.paramGrad(w)}, rest...)
		if len(n.Args) > ShortConvBias && b.trained(n.Args[ShortConvBias]) {
			args = append(args, b.paramGrad(n.Args[ShortConvBias]))
		}
		b.node(ShortConvDW, n.Attr, args...)
	}
	if b.trained(x) {
		dx, _ := b.into(x)
		b.node(ShortConvDX, n.Attr, append([]Use{dx}, rest...)...)
	}
}

func diffDecay(b *differentiator, n *Node) {
	gates, ba, rate, bias := n.Args[DecayGates], n.Args[DecayBA], n.Args[DecayRate], n.Args[DecayBias]
	dgates := b.of(gates)
	if b.trained(rate) {
		b.node(DecayGrad, n.Attr, b.paramGrad(rate), dgates, gates)
	}
	if !b.trained(ba) && !b.trained(bias) {
		return
	}
	dba, _ := b.into(ba)
	b.node(DecayBwd, n.Attr, dba, dgates, ba, rate, bias)
	if b.trained(bias) {
		mid := (dba.Lo + dba.Hi) / 2
		b.node(BiasGrad, Attr{}, b.paramGrad(bias), Use{dba.Value, mid, dba.Hi})
	}
}

func diffDeltaRule(b *differentiator, n *Node) {
	qkv, gates := n.Args[DeltaRuleQKV], n.Args[DeltaRuleGates]
	dqkv, _ := b.into(qkv)
	dgates, _ := b.into(gates)
	args := []Use{dqkv, dgates, b.of(n.Args[DeltaRuleO]), qkv, gates, n.Args[DeltaRuleStates]}
	b.node(DeltaRuleBwd, n.Attr, append(args, n.Args[DeltaRuleStarts:]...)...)
}
