package graph

import (
	"fmt"
	"slices"

	"github.com/athanor-llm/athanor/model"
)

// norm appends a norm of the residual stream.
func (b *builder) norm(name string, x int, p *next) int {
	y := b.tokens(name, b.m.Width, b.g.DType)
	b.normTo(name, b.all(y), b.all(x), 0, b.m.NormEps*b.m.Stream()*b.m.Stream(), p, absent)
	return y
}

// normTo appends y = norm(x) + res, by groups of columns if there are several. Only
// RMSNorm has groups and a residual.
func (b *builder) normTo(name string, y, x Use, groups int, eps float64, p *next, res Use) {
	attr := Attr{Eps: eps, Heads: groups, UnitOffset: b.m.UnitOffset}
	if b.m.RMS() {
		b.normWith(name, y, x, attr, p.param(), res)
		return
	}
	stats := b.tokens(name+".stats", 2, F32)
	g := p.param()
	b.node(LayerNorm, attr, trimmed(y, b.all(stats), x, g, p.optional(!b.m.Family.Unbiased))...)
}

// normQK appends the norms of queries and keys, and returns a value that holds the results and
// a copy of the values. The backward pass reads both what is normalised and what attention
// reads. The latter is cheap to recompute (its class is LightAct, like that of all results of
// norms), so a plan may keep only the former, which is as much as without norms. That is why
// the values are copied: a norm in place could not be undone, since gains may be 0.
//
// Where keys are values, too, these come first: in the backward pass the gradient that goes through the norm of keys then
// lies where the other is added.
func (b *builder) normQK(l int, name string, qkv int, p *next) int {
	m, first, size, groups := b.m, b.gates(), model.HeadDimOf(b.m, l), []int{b.m.Heads, model.KVHeadsOf(b.m, l)}
	if model.Borrows(m, l) { // queries alone
		y := b.tokens(name+".heads", groups[0]*size, b.g.DType)
		b.normTo(name+".qnorm", b.all(y), b.all(qkv), groups[0], m.NormEps, p, absent)
		return y
	}
	q, k := first+groups[0]*size, first+(groups[0]+groups[1])*size
	cols, v := k+groups[1]*size, b.g.Values[qkv]
	values := Use{qkv, k, cols}
	if model.KeysAreValues(m, l) {
		v.Cuts, values = append(slices.Clip(v.Cuts), k), Use{qkv, q, k}
	}
	y := b.tokens(name+".heads", cols, v.DType, v.Cuts...)
	if m.ValueNorm {
		b.normWith(name+".vnorm", Use{y, k, cols}, values, Attr{Eps: m.NormEps, Heads: groups[1]}, b.ones(size), absent)
	}
	if m.QKNorm == model.QKNormWhole {
		groups = []int{0, 0}
	}
	b.normTo(name+".qnorm", Use{y, first, q}, Use{qkv, first, q}, groups[0], m.NormEps, p, absent)
	b.normTo(name+".knorm", Use{y, q, k}, Use{qkv, q, k}, groups[1], m.NormEps, p, absent)
	if !m.ValueNorm {
		b.node(Cast, Attr{}, Use{y, k, cols}, values)
	}
	if first > 0 {
		b.node(Cast, Attr{}, Use{y, 0, first}, Use{qkv, 0, first})
	}
	return y
}

// normWith appends y = x/rms(x)*gain + res.
func (b *builder) normWith(name string, y, x Use, attr Attr, gain, res Use) {
	b.node(RMSNorm, attr, trimmed(y, b.all(b.tokens(name+".stats", max(1, attr.Heads), F32)), x, gain, res)...)
}

// ones returns n gains of a norm that has none.
func (b *builder) ones(n int) Use {
	name := fmt.Sprintf("ones%d", n)
	for v := range b.g.Values {
		if b.g.Values[v].Name == name {
			return b.all(v)
		}
	}
	return b.all(b.value(Value{Name: name, Kind: Constant, DType: b.g.DType, Rows: 1, Cols: n}))
}
