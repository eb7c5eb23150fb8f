package graph

import (
	"fmt"

	"github.com/athanor-llm/athanor/model"
)

// latent appends what makes queries, keys and values from latents, see model.Latent:
//
//	qkv = norm(x.down).up | keys and values of norm(latent).up and the columns that all keys have in common
func (b *builder) latent(name string, x int, p *next) int {
	m, g, l := b.m, b.g, &b.m.Latent
	width := m.Heads * m.HeadDim
	qkv := b.tokens(name+".qkv", 3*width, g.DType, width)
	made := x
	if l.Queries > 0 {
		low := b.tokens(name+".qlow", l.Queries, g.DType)
		b.linear(b.all(low), b.all(x), p, false, absent)
		made = b.tokens(name+".qlow.norm", l.Queries, g.DType)
		b.normTo(name+".qlow.norm", b.all(made), b.all(low), 0, model.LatentEps, p, absent)
	}
	b.linear(Use{qkv, 0, width}, b.all(made), p, false, absent)
	low := b.tokens(name+".kvlow", l.Turned+l.KV, g.DType, l.Turned)
	b.linear(b.all(low), b.all(x), p, false, absent)
	norm := b.tokens(name+".kvlow.norm", l.KV, g.DType)
	b.normTo(name+".kvlow.norm", b.all(norm), Use{low, l.Turned, l.Turned + l.KV}, 0, model.LatentEps, p, absent)
	up := b.tokens(name+".kvup", m.Heads*(l.Plain+l.Value), g.DType)
	b.linear(b.all(up), b.all(norm), p, false, absent)
	b.node(LatentKV, Attr{Heads: m.Heads, KVHeads: m.Heads, HeadDim: m.HeadDim}, Use{qkv, width, 3 * width}, b.all(up), Use{low, 0, l.Turned})
	return qkv
}

// narrow appends a copy of what attention computes without the columns that values do not have.
func (b *builder) narrow(name string, o int) int {
	l := &b.m.Latent
	if l.Value == b.m.HeadDim {
		return o
	}
	y := b.tokens(name+".values", b.m.Heads*l.Value, b.g.DType)
	b.node(HeadCols, Attr{Heads: b.m.Heads}, b.all(y), b.all(o))
	return y
}

func diffLatentKV(b *differentiator, n *Node) {
	dup, _ := b.into(n.Args[LatentKVUp])
	dturned, _ := b.into(n.Args[LatentKVTurned])
	b.node(LatentKVBwd, n.Attr, dup, dturned, b.of(n.Args[LatentKVKV]))
}

func diffHeadCols(b *differentiator, n *Node) {
	dx, _ := b.into(n.Args[HeadColsX])
	b.node(HeadCols, n.Attr, dx, b.of(n.Args[HeadColsY]))
}

// latentHeads: keys and values fit what they are made of.
func latentHeads(up, turned int) requirement {
	return func(a *Attr, d []Dim) string {
		each, rest := d[up].Cols/a.KVHeads, a.HeadDim-d[turned].Cols
		if d[up].Cols%a.KVHeads != 0 || rest < 0 || each <= rest || each-rest > a.HeadDim {
			return fmt.Sprintf("%d heads of %d columns cannot be made of %d columns and %d that they have in common", a.KVHeads, a.HeadDim, d[up].Cols, d[turned].Cols)
		}
		return ""
	}
}

// headWise: both operands have the columns of as many heads.
func headWise(a *Attr, d []Dim) string {
	if n := a.Heads; n < 1 || d[HeadColsX].Cols%n != 0 || d[HeadColsY].Cols%n != 0 {
		return fmt.Sprintf("%d and %d columns are no %d heads", d[HeadColsY].Cols, d[HeadColsX].Cols, n)
	}
	return ""
}
