package graph

import (
	"fmt"
	"math"

	"github.com/athanor-llm/athanor/model"
)

// Values that layers read of segments below them besides the residual stream, see model.Crosses. They are on the device from where
// they are made to the last backward pass that reads them; gradients of several readers add up from the last layer to the first.

// perLayer appends, to the embedding's segment, what layers read of each token by itself, P columns for each layer side by side:
//
//	rows  = (norms(x0.w) + table[tokens]*sqrt(P)) / sqrt(2)
//
// The projection is not divided by the root of the width before the norms, but they add an epsilon that is as much larger.
func perLayer(b *builder, x0, at int) {
	m, g := b.m, b.g
	cols := m.Layers * m.PerLayer
	var cuts []int
	for l := 1; l < m.Layers; l++ {
		cuts = append(cuts, l*m.PerLayer)
	}
	p := &next{b: b, i: at}
	table := b.tokens("layers.rows", cols, g.DType, cuts...)
	attr := Attr{Scale: g.DType.Round(math.Sqrt(float64(m.PerLayer)))}
	if g.Context > 0 {
		b.node(EmbedAt, attr, b.all(table), b.all(g.Tokens), p.param(), absent, b.all(g.Pos))
	} else {
		attr.Seq = g.Sequence()
		b.node(Embed, attr, b.all(table), b.all(g.Tokens), p.param(), absent)
	}
	from := b.tokens("layers.projected", cols, g.DType, cuts...)
	b.linear(b.all(from), b.all(x0), p, false, absent)
	b.below.rows = b.tokens("layers.in", cols, g.DType, cuts...)
	b.normTo("layers.norm", b.all(b.below.rows), b.all(from), m.Layers, m.NormEps*float64(m.Width), p, b.all(table))
	b.node(Scale, Attr{Scale: 1 / math.Sqrt2}, b.all(b.below.rows))
}

// addPerLayer appends what a layer adds to the stream x of its columns of those: norm((act(x.gate) * columns).out).
func addPerLayer(b *builder, l, x int, p *next) int {
	n, name := b.m.PerLayer, fmt.Sprintf("h%d.in", l)
	gates, y := b.tokens(name+".gates", n, b.g.DType), b.tokens(name+".gated", n, b.g.DType)
	b.linear(b.all(gates), b.all(x), p, false, absent)
	b.node(Gate, Attr{Act: b.act}, b.all(y), b.all(gates), Use{b.below.rows, l * n, (l + 1) * n})
	return b.project(fmt.Sprintf("x%d", l+1), y, p, false, x)
}

// below is what layers may read of segments below them.
type below struct {
	rows int         // see perLayer
	lent map[int]Use // keys and values, or caches of them, by layer
}

// of returns the keys and values that a layer reads, or the cache of them: those that make returns are its own if it has any.
func (v *below) of(m *model.Model, l int, make func() Use) Use {
	if from := model.LenderOf(m, l); from != l {
		return v.lent[from]
	}
	own := make()
	v.lent[l] = own
	return own
}

// attends: queries come with the keys and values of their tokens, or alone where the cache has these already.
func attends(a *Attr, d []Dim) string {
	if q, cols := a.Heads*a.HeadDim, d[AttentionAtQKV].Cols; cols != q && cols != q+2*a.KVHeads*a.HeadDim {
		return fmt.Sprintf("%d columns are neither %d heads of %d nor these with %d of keys and values", cols, a.Heads, a.HeadDim, 2*a.KVHeads)
	}
	return ""
}
