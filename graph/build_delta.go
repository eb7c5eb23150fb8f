package graph

import (
	"fmt"

	"github.com/athanor-llm/athanor/model"
)

// mix appends what mixes tokens in a layer: attention, a gated delta net, a convolution, or a scan. It returns the value that is projected into the stream.
func (b *builder) mix(l, x int, p *next) int {
	name := fmt.Sprintf("h%d", l)
	if b.m.Delta.HasLayer(l) {
		return b.delta(name, x, p)
	}
	if b.m.Conv.HasLayer(l) {
		return convolve(b, name, x, p)
	}
	if b.m.Mamba.HasLayer(l) && !b.m.Mamba.Beside {
		return mamba(b, name, x, p)
	}
	if b.m.Latent.Some() {
		o, _ := b.attention(l, b.latent(name, x, p), p)
		return b.narrow(name, o)
	}
	qkv := b.qkv(l, x, p)
	if k := &b.m.Mup; k.Some() {
		q, kv := b.m.Heads*b.m.HeadDim, b.m.KVHeads*b.m.HeadDim
		scaleBy(b, Use{qkv, 0, q}, k.Attention)
		scaleBy(b, Use{qkv, q, q + kv}, k.Attention*k.Keys)
		scaleBy(b, Use{qkv, q + kv, q + 2*kv}, k.Attention*k.Mixed) // as attention's results, which the backward pass reads
	}
	o, gates := b.attention(l, qkv, p)
	if !b.m.OutGate {
		return o
	}
	y := b.tokens(name+".gated", b.g.Values[o].Cols, b.g.DType)
	b.node(Gate, Attr{Act: model.Sigmoid}, b.all(y), gates, b.all(o))
	return y
}

// gates returns the columns of gates before those of queries, keys and values.
func (b *builder) gates() int {
	if b.m.OutGate {
		return b.m.Heads * b.m.HeadDim
	}
	return 0
}

// delta appends a gated delta net:
//
//	in    = x.w            queries, keys, values | z | b | a
//	mixed = act(conv(in))  of the first three
//	rule                   of mixed and of decays, which b and a make
//	gated = act(z)*norm(rule), by heads
func (b *builder) delta(name string, x int, p *next) int {
	d, g := &b.m.Delta, b.g
	mixed, z := d.Mixed(), d.Mixed()+d.Values()
	in := b.tokens(name+".in", z+2*d.Heads, g.DType, mixed, z, z+d.Heads)
	bands := []Use{{in, 0, mixed}, {in, mixed, z}, {in, z, z + d.Heads}, {in, z + d.Heads, z + 2*d.Heads}}
	if b.m.Family.Tensors.DeltaZ == "" {
		bands = []Use{{in, 0, z}, {in, z, z + 2*d.Heads}}
	}
	b.linears(bands, b.all(x), p, false)
	qkv := shortConv(b, name, Use{in, 0, mixed}, p, b.act, false)
	gates, o := b.tokens(name+".decays", 2*d.Heads, F32), b.tokens(name+".rule", d.Values(), g.DType)
	b.node(Decay, Attr{}, b.all(gates), Use{in, z, z + 2*d.Heads}, p.param(), p.param())
	attr := Attr{Heads: d.Heads, KVHeads: d.Keys, HeadDim: d.KeyDim}
	if g.Context > 0 {
		state := b.value(Value{Name: name + ".state", Kind: Cache, DType: F32, Rows: d.Heads * d.KeyDim * max(g.Slots, 1), Cols: d.ValueDim})
		b.node(DeltaRuleAt, attr, b.all(o), b.all(state), b.all(qkv), b.all(gates), b.all(g.Pos))
	} else {
		attr.Seq = g.Seq
		states := b.tokens(name+".states", d.Heads*DeltaStateCols(g.Seq, d.KeyDim*d.ValueDim), F32)
		b.node(DeltaRule, attr, trimmed(b.all(o), b.all(states), b.all(qkv), b.all(gates), b.starts())...)
	}
	normed, y := b.tokens(name+".normed", d.Values(), g.DType), b.tokens(name+".gated", d.Values(), g.DType)
	stats := b.tokens(name+".normed.stats", d.Heads, F32)
	b.node(RMSNorm, Attr{Eps: b.m.NormEps, Heads: d.Heads}, b.all(normed), b.all(stats), b.all(o), p.param())
	b.node(Gate, Attr{Act: model.SiLU}, b.all(y), Use{in, mixed, z}, b.all(normed))
	return y
}

// starts returns where documents begin, absent if sequences are whole.
func (b *builder) starts() Use {
	if b.g.Documents == nil {
		return absent
	}
	return b.all(b.g.Starts)
}
