package graph

// directed appends y = (x.w + what the adapter adds)/lengths * magnitudes + bias + res, where lengths are those of the rows of the
// weight with its adapter: DoRA (2402.09353). Lengths have no gradient, as the paper proposes (section 4.3).
func directed(b *builder, y, x, w, bias, res Use, magnitude string) {
	weight := &b.g.Params[b.g.ParamOf(w.Value)]
	v := &b.g.Values[y.Value]
	dir := b.tokens(v.Name+".dir"+part(v, y), y.Hi-y.Lo, b.g.DType)
	b.node(Linear, Attr{WT: true, NF4: weight.NF4, FP8: weight.FP8}, b.all(dir), x, w, absent, absent)
	b.adapter(weight.Name, b.all(dir), x)
	down, up, _ := b.m.Factors(weight.Name)
	b.node(Direction, Attr{Scale: b.m.LoRA.Scale(weight.Name), NF4: weight.NF4}, b.all(dir), b.param(down), w, b.param(up))
	b.node(Gain, Attr{}, trimmed(y, b.all(dir), b.param(magnitude), bias, res)...)
}

func diffDirection(b *differentiator, n *Node) {
	b.node(Direction, n.Attr, append([]Use{b.of(n.Args[DirectionY])}, n.Args[1:]...)...)
}

func diffGain(b *differentiator, n *Node) {
	y, x, g := n.Args[GainY], n.Args[GainX], n.Args[GainBy]
	dy := b.of(y)
	if b.trained(g) {
		b.node(GainGrad, Attr{}, b.paramGrad(g), dy, x)
	}
	if len(n.Args) > GainBias && b.trained(n.Args[GainBias]) {
		b.node(BiasGrad, Attr{}, b.paramGrad(n.Args[GainBias]), dy)
	}
	if b.trained(x) {
		dx, _ := b.into(x) // nothing else reads it
		b.node(Gain, Attr{}, dx, dy, g)
	}
	if len(n.Args) > GainRes && b.trained(n.Args[GainRes]) {
		b.pass(n.Args[GainRes], dy)
	}
}

// directionFLOPs counts the product of the factors, and the lengths.
func directionFLOPs(a *Attr, d []Dim) int64 {
	return 2 * (int64(d[DirectionDown].Rows) + 1) * int64(d[DirectionUp].Rows) * int64(d[DirectionDown].Cols)
}
