package bench

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/athanor-llm/athanor/graph"
)

// Case is an operator with the extents of its operands.
type Case struct {
	op   graph.Op
	name string // what sets it apart
	attr graph.Attr
	dims []graph.Dim
}

// Matches reports whether the case's name contains a text.
func (c *Case) Matches(text string) bool {
	return strings.Contains(c.op.String()+" "+c.shape()+" "+c.storage().String(), text)
}

// bytes returns the size of the operands.
func (c *Case) bytes() (sum int64) {
	for _, d := range c.dims {
		sum += (d.Bytes() + 4095) &^ 4095
	}
	return sum
}

// Stores reports whether any operand is stored as t.
func (c *Case) Stores(t graph.DType) bool {
	return slices.ContainsFunc(c.dims, func(d graph.Dim) bool { return d.DType == t && !d.Absent() })
}

// storage returns bf16 if any operand is bf16.
func (c *Case) storage() graph.DType {
	if c.Stores(graph.BF16) {
		return graph.BF16
	}
	return graph.F32
}

// shape returns M,N,K and the form of a product, else the extents of the first
// operand.
func (c *Case) shape() string {
	d := c.dims[0]
	switch c.op {
	case graph.Linear:
		form := "NN"
		if c.attr.WT {
			form = "NT"
		}
		return fmt.Sprintf("%d,%d,%d %s", d.Rows, d.Cols, c.dims[1].Cols, form)
	case graph.LinearDW:
		return fmt.Sprintf("%d,%d,%d TN", d.Rows, d.Cols, c.dims[1].Rows)
	case graph.CrossEntropy, graph.EmbedBwd, graph.BiasGrad, graph.LayerNormDW, graph.RMSNormDW, graph.NormPart:
		d = c.dims[len(c.dims)-1] // the first one says little
		for _, x := range c.dims {
			if x.Elems() > d.Elems() {
				d = x
			}
		}
	}
	return strings.TrimSpace(fmt.Sprintf("%d,%d %s", d.Rows, d.Cols, c.name))
}

const vocabulary = 50257

// products are M, N, K of the matrix products of GPT-2 124M on 1024 tokens, of
// its logits for 64 tokens, and of one token's.
var products = [][3]int{{1024, 768, 768}, {1024, 3072, 768}, {1024, 768, 3072}, {1024, 50304, 768}, {64, 50304, 768}, {1, 50304, 768}}

// Cases lists the operators of training with the sizes of GPT-2 124M
// (RMSNorm, RoPE, SwiGLU: of a Llama of that width) on 1024 tokens, storing
// activations and weights as t.
func Cases(t graph.DType) []Case {
	const n, d, f, vocab, heads, size, params = 1024, 768, 3072, vocabulary, 12, 64, 1 << 24
	s := func(rows, cols int) graph.Dim { return graph.Dim{DType: t, Rows: rows, Cols: cols} }
	f32 := func(rows, cols int) graph.Dim { return graph.Dim{Rows: rows, Cols: cols} }
	index := graph.Dim{DType: graph.I32, Rows: n, Cols: 1}
	attention := func(seq, kv int) graph.Attr {
		return graph.Attr{Seq: seq, Heads: heads, KVHeads: kv, HeadDim: size, Scale: 1 / math.Sqrt(size)}
	}
	eps, acc := graph.Attr{Eps: 1e-5}, graph.Attr{Acc: true}
	none := graph.Attr{}
	qkv, q, kv, gqa, lse, scalars := s(n, 3*d), s(n, d), s(n, 2*d), s(n, 2*4*size), f32(n, heads), f32(1, graph.NumScalars)

	var list []Case
	add := func(op graph.Op, name string, a graph.Attr, dims ...graph.Dim) {
		list = append(list, Case{op, name, a, dims})
	}
	for _, p := range products {
		m, n, k := p[0], p[1], p[2]
		add(graph.Linear, "", graph.Attr{WT: true}, s(m, n), s(m, k), s(n, k))
		add(graph.Linear, "", none, s(m, n), s(m, k), s(k, n))
		if m > 1 {
			add(graph.LinearDW, "", graph.Attr{Cut: graph.Cut(k, t)}, f32(m, n), s(k, m), s(k, n))
		}
	}
	for _, seq := range []int{1024, 256, 64} {
		name := map[int]string{1024: "T1024", 256: "T256", 64: "T64"}[seq]
		add(graph.Attention, name, attention(seq, heads), q, lse, q, kv)
		add(graph.AttentionBwd, name, attention(seq, heads), q, kv, lse, q, q, kv, q, lse)
	}
	add(graph.Attention, "T1024 GQA", attention(n, 4), q, lse, q, gqa)
	add(graph.AttentionBwd, "T1024 GQA", attention(n, 4), q, gqa, lse, q, q, gqa, q, lse)
	// The last quarter of a sequence in slices.
	slice, last := attention(n, heads), f32(n/4, heads)
	add(graph.Attention, "T1024 slice", slice, s(n/4, d), last, s(n/4, d), kv)
	add(graph.AttentionBwd, "T1024 slice", slice, s(n/4, d), f32(n, 2*d), last, s(n/4, d), s(n/4, d), kv, s(n/4, d), last)
	add(graph.LayerNorm, "", eps, s(n, d), f32(n, 2), s(n, d), s(1, d), s(1, d))
	add(graph.LayerNormDX, "", acc, s(n, d), s(n, d), s(n, d), s(1, d), f32(n, 2))
	add(graph.LayerNormDW, "", acc, f32(1, d), f32(1, d), s(n, d), s(n, d), f32(n, 2))
	add(graph.RMSNorm, "", eps, s(n, d), f32(n, 1), s(n, d), s(1, d))
	add(graph.RMSNormDX, "", acc, s(n, d), s(n, d), s(n, d), s(1, d), f32(n, 1))
	add(graph.RMSNormDW, "", acc, f32(1, d), s(n, d), s(n, d), f32(n, 1))
	add(graph.RoPE, "", attention(n, heads), qkv, f32(n, size))
	for _, a := range []graph.Activation{graph.GELUTanh, graph.GELUErf} {
		add(graph.Act, a.String(), graph.Attr{Act: a}, s(n, f), s(n, f))
		add(graph.ActBwd, a.String(), graph.Attr{Act: a}, s(n, f), s(n, f), s(n, f))
	}
	add(graph.SwiGLU, "", none, s(n, 2048), s(n, 4096))
	add(graph.SwiGLUBwd, "", none, s(n, 4096), s(n, 2048), s(n, 4096))
	add(graph.BiasGrad, "", acc, f32(1, f), s(n, f))
	add(graph.Embed, "", graph.Attr{Seq: n}, s(n, d), index, s(vocab, d), s(n, d))
	add(graph.EmbedBwd, "", acc, f32(vocab, d), s(n, d), index)
	add(graph.PosBwd, "", graph.Attr{Acc: true, Seq: n}, f32(n, d), s(n, d))
	add(graph.CrossEntropy, "", graph.Attr{Grad: true}, f32(n, 1), s(n, vocab), index, scalars)
	add(graph.Add, "", none, s(n, f), s(n, f))
	add(graph.NormPart, "", none, graph.Dim{DType: graph.F64, Rows: 1, Cols: graph.NormPieces(params)}, f32(1, params))
	big := f32(1, params)
	adam := []graph.Dim{big, big, big, big, f32(1, 2), scalars, {}}
	if t == graph.BF16 {
		adam[6] = s(1, params)
		add(graph.Cast, "narrow", none, s(1, params), big)
	}
	add(graph.AdamW, "", graph.Attr{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Decay: 0.1}, adam...)
	return list
}
