package graph

import "github.com/athanor-llm/athanor/model"

// convolve appends a layer's convolution:
//
//	in = x.w                 first | second | third part
//	y  = second * conv(first * third)
func convolve(b *builder, name string, x int, p *next) int {
	w := b.m.Width
	in := b.tokens(name+".in", 3*w, b.g.DType, w, 2*w)
	b.linear(b.all(in), b.all(x), p, false, absent)
	times := Attr{Act: model.Identity}
	fed, y := b.tokens(name+".fed", w, b.g.DType), b.tokens(name+".gated", w, b.g.DType)
	b.node(Gate, times, b.all(fed), Use{in, 0, w}, Use{in, 2 * w, 3 * w})
	mixed := shortConv(b, name, b.all(fed), p, model.Identity, false)
	b.node(Gate, times, b.all(y), Use{in, w, 2 * w}, b.all(mixed))
	return y
}

// shortConv appends the convolution of columns, whose weights are the next parameter, and then its bias, if it has one.
func shortConv(b *builder, name string, x Use, p *next, act model.Activation, biased bool) int {
	g, w, bias := b.g, p.param(), p.optional(biased)
	y := b.tokens(name+".mixed", x.Hi-x.Lo, g.DType)
	if g.Context > 0 {
		past := b.value(Value{Name: name + ".past", Kind: Cache, DType: g.DType, Rows: (g.Values[w.Value].Cols - 1) * max(g.Slots, 1), Cols: x.Hi - x.Lo})
		b.node(ShortConvAt, Attr{Act: act}, trimmed(b.all(y), b.all(past), x, w, b.all(g.Pos), bias)...)
	} else {
		b.node(ShortConv, Attr{Seq: g.Seq, Act: act}, trimmed(b.all(y), x, w, b.starts(), bias)...)
	}
	return y
}
