package graph

import "github.com/athanor-llm/athanor/model"

// activate appends the activation of a feed-forward that has no gate.
func activate(b *builder, l int, y, x Use, p *next) {
	if !b.m.Family.XIELU {
		b.node(Act, Attr{Act: b.act}, y, x)
		return
	}
	positive, negative := p.param(), p.param()
	beta, eps := model.XIELUOf(b.m, l)
	b.node(XIELU, Attr{}, y, x, positive, negative, b.param(beta), b.param(eps))
}

// diffXIELU: the gradient of x takes the place of that of y, and those of the parameters are sums over tokens of what each has
// contributed.
func diffXIELU(b *differentiator, n *Node) {
	x, dy := n.Args[XIELUX], b.of(n.Args[XIELUY])
	b.grad[x.Value] = dy.Value
	args := append([]Use{dy, dy, x}, n.Args[XIELUPositive:]...)
	positive, negative := n.Args[XIELUPositive], n.Args[XIELUNegative]
	if !b.trained(positive) && !b.trained(negative) {
		b.node(XIELUBwd, n.Attr, args...)
		return
	}
	terms := b.value(Value{Name: "d" + b.g.Values[x.Value].Name + ".terms", Kind: Gradient, DType: F32, PerToken: true, Cols: 2, Cuts: []int{1}})
	b.node(XIELUBwd, n.Attr, append(args, b.all(terms))...)
	for i, param := range []Use{positive, negative} {
		if b.trained(param) {
			b.node(BiasGrad, Attr{}, b.paramGrad(param), Use{terms, i, i + 1})
		}
	}
}
