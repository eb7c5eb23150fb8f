package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/kernel/gemm"
	"github.com/athanor-llm/athanor/model"
)

// BenchmarkKernel runs every operator at the sizes of a GPT-2 124M (and, for SwiGLU
// and RMSNorm, of a Llama of that width) on 1024 tokens, in fp32. It reports GB/s
// over the bytes or GFLOP/s over the operations that the graph table states, and
// the fraction of the machine's limit, measured in the same run: fused
// multiply-adds in registers, or y = max(0, x) over 128 MiB. Operands that fit the
// last-level cache exceed that bandwidth.
func BenchmarkKernel(b *testing.B) {
	const n, d, f, vocab, heads, size = 1024, 768, 3072, 50257, 12, 64
	r := rand.New(rand.NewPCG(1, 2))
	m := &maker{Rand: r}
	mat := func(rows, cols int) Tensor {
		t := Tensor{Rows: rows, Cols: cols, Stride: cols, F32: hugeFloats(b, rows*cols)}
		for i := range t.F32 {
			t.F32[i] = float32(int32(i*2654435761)) / (1 << 31) * 2
		}
		return t
	}
	attn := graph.Attr{Seq: n, Heads: heads, KVHeads: heads, HeadDim: size, Scale: 1 / math.Sqrt(size)}
	llama := attn
	llama.KVHeads = 4
	scalars := mat(1, graph.NumScalars)
	copy(scalars.F32, []float32{1e-3, 0.1, 0.05, 1e-3, 12345})
	adam := graph.Attr{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Decay: 0.1}
	half := func() Tensor { return NewTensor(graph.BF16, 1, 1<<24) }
	clip := NewTensor(graph.F32, 1, 2)
	clip.F32[0] = 1
	second := mat(1, 1<<24)
	for i, v := range second.F32 {
		second.F32[i] = v * v
	}
	qkv, dqkv, do, o, lse := mat(n, 3*d), mat(n, 3*d), mat(n, d), mat(n, d), mat(n, heads)
	q, kv, dq, dkv := part(qkv, 0, n, 0, d), part(qkv, 0, n, d, 3*d), part(dqkv, 0, n, 0, d), part(dqkv, 0, n, d, 3*d)
	e := NewEnv(0)
	defer e.Close()
	Lookup(graph.Attention).Fast(e, &attn, []Tensor{o, lse, q, kv})
	big := func() Tensor { return mat(1, 1<<24) }
	flopPeak := gemm.Peak(e.Pool.Workers(), 200*time.Millisecond) / 1e9
	bytePeak := bandwidth(e, big(), big())
	for _, c := range []struct {
		op   graph.Op
		name string
		attr graph.Attr
		t    []Tensor
	}{
		{graph.Linear, "", graph.Attr{}, []Tensor{mat(n, f), mat(n, d), mat(d, f), mat(1, f), {}}},
		{graph.LinearDX, "", graph.Attr{}, []Tensor{mat(n, d), mat(n, f), mat(d, f), {}}},
		{graph.LinearDW, "", graph.Attr{Acc: true}, []Tensor{mat(d, f), mat(n, d), mat(n, f)}},
		{graph.BiasGrad, "", graph.Attr{Acc: true}, []Tensor{mat(1, f), mat(n, f)}},
		{graph.LayerNorm, "", graph.Attr{Eps: 1e-5}, []Tensor{mat(n, d), mat(n, 2), mat(n, d), mat(1, d), mat(1, d)}},
		{graph.LayerNormDX, "", graph.Attr{Acc: true}, []Tensor{mat(n, d), mat(n, d), mat(n, d), mat(1, d), mat(n, 2)}},
		{graph.LayerNormDW, "", graph.Attr{Acc: true}, []Tensor{mat(1, d), mat(1, d), mat(n, d), mat(n, d), mat(n, 2)}},
		{graph.RMSNorm, "", graph.Attr{Eps: 1e-5}, []Tensor{mat(n, d), mat(n, 1), mat(n, d), mat(1, d)}},
		{graph.RMSNormDX, "", graph.Attr{Acc: true}, []Tensor{mat(n, d), mat(n, d), mat(n, d), mat(1, d), mat(n, 1)}},
		{graph.RMSNormDW, "", graph.Attr{Acc: true}, []Tensor{mat(1, d), mat(n, d), mat(n, d), mat(n, 1)}},
		{graph.RMSNorm, "/heads", graph.Attr{Eps: 1e-5, Heads: heads}, []Tensor{mat(n, d), mat(n, heads), mat(n, d), mat(1, size)}},
		{graph.RMSNormDX, "/heads", graph.Attr{Heads: heads}, []Tensor{mat(n, d), mat(n, d), mat(n, d), mat(1, size), mat(n, heads)}},
		{graph.RMSNormDW, "/heads", graph.Attr{Acc: true, Heads: heads}, []Tensor{mat(1, size), mat(n, d), mat(n, d), mat(n, heads)}},
		{graph.RoPE, "", attn, []Tensor{mat(n, 3*d), mat(n, size)}},
		{graph.Attention, "", attn, []Tensor{mat(n, d), mat(n, heads), q, kv}},
		{graph.Attention, "/T256", short(attn, 256), []Tensor{mat(n, d), mat(n, heads), q, kv}},
		{graph.Attention, "/T64", short(attn, 64), []Tensor{mat(n, d), mat(n, heads), q, kv}},
		{graph.Attention, "/GQA", llama, []Tensor{mat(n, d), mat(n, heads), q, mat(n, 2*4*size)}},
		{graph.Attention, "/sinks", attn, []Tensor{mat(n, d), mat(n, heads), q, kv, {}, mat(1, heads)}},
		{graph.SinkGrad, "", graph.Attr{Acc: true}, []Tensor{mat(1, heads), mat(n, heads), lse, mat(1, heads)}},
		{graph.AttentionBwd, "", attn, []Tensor{dq, dkv, mat(n, heads), do, q, kv, o, lse}},
		{graph.AttentionBwd, "/T256", short(attn, 256), []Tensor{dq, dkv, mat(n, heads), do, q, kv, o, lse}},
		{graph.AttentionBwd, "/T64", short(attn, 64), []Tensor{dq, dkv, mat(n, heads), do, q, kv, o, lse}},
		{graph.Act, "/gelu_tanh", graph.Attr{}, []Tensor{mat(n, f), mat(n, f)}},
		{graph.ActBwd, "/gelu_tanh", graph.Attr{}, []Tensor{mat(n, f), mat(n, f), mat(n, f)}},
		{graph.Act, "/gelu", graph.Attr{Act: model.GELUErf}, []Tensor{mat(n, f), mat(n, f)}},
		{graph.ActBwd, "/gelu", graph.Attr{Act: model.GELUErf}, []Tensor{mat(n, f), mat(n, f), mat(n, f)}},
		{graph.SwiGLU, "", graph.Attr{Act: model.SiLU}, []Tensor{mat(n, 2048), mat(n, 4096)}},
		{graph.SwiGLUBwd, "", graph.Attr{Act: model.SiLU}, []Tensor{mat(n, 4096), mat(n, 2048), mat(n, 4096)}},
		{graph.Embed, "", graph.Attr{Seq: n}, []Tensor{mat(n, d), m.ints(n, 0, vocab), mat(vocab, d), mat(n, d)}},
		{graph.EmbedBwd, "", graph.Attr{Acc: true}, []Tensor{mat(vocab, d), mat(n, d), m.ints(n, 0, vocab)}},
		{graph.PosBwd, "", graph.Attr{Acc: true, Seq: n}, []Tensor{mat(n, d), mat(n, d)}},
		{graph.CrossEntropy, "", graph.Attr{Grad: true}, []Tensor{mat(n, 1), mat(n, vocab), m.ints(n, 0, vocab), scalars, {}}},
		{graph.CrossEntropy, "/loss", graph.Attr{}, []Tensor{mat(n, 1), mat(n, vocab), m.ints(n, 0, vocab), scalars, {}}},
		{graph.NormPart, "", graph.Attr{}, []Tensor{NewTensor(graph.F64, 1, 1<<24/graph.NormPiece), big()}},
		{graph.AdamW, "", adam, []Tensor{big(), big(), second, big(), clip, scalars, {}}},
		{graph.AdamW, "/bf16_moments", adam, []Tensor{big(), half(), half(), big(), clip, scalars, {}}},
		{graph.AdamW, "/bf16", adam, []Tensor{half(), half(), half(), big(), clip, scalars, {}}},
		{graph.Cast, "/narrow", graph.Attr{}, []Tensor{NewTensor(graph.BF16, 1, 1<<24), big()}},
		{graph.Cast, "/widen", graph.Attr{}, []Tensor{big(), NewTensor(graph.BF16, 1, 1<<24)}},
		{graph.Add, "", graph.Attr{}, []Tensor{mat(n, f), mat(n, f)}},
		{graph.Scale, "", graph.Attr{Scale: 2}, []Tensor{mat(n, f)}},
	} {
		b.Run(fmt.Sprintf("%v%s", c.op, c.name), func(b *testing.B) {
			dims := make([]graph.Dim, len(c.t))
			for i, t := range c.t {
				dims[i] = graph.Dim{DType: t.DType, Rows: t.Rows, Cols: t.Cols}
			}
			for b.Loop() {
				Lookup(c.op).Fast(e, &c.attr, c.t)
			}
			ns := float64(b.Elapsed().Nanoseconds()) / float64(b.N)
			if flops := c.op.FLOPs(&c.attr, dims); flops > 0 {
				b.ReportMetric(float64(flops)/ns, "GFLOP/s")
				b.ReportMetric(100*float64(flops)/ns/flopPeak, "%peak")
			} else {
				rate := float64(c.op.Bytes(&c.attr, dims)) / ns
				b.ReportMetric(rate, "GB/s")
				b.ReportMetric(100*rate/bytePeak, "%peak")
			}
		})
	}
}

// bandwidth returns the best rate of y = max(0, x), in GB/s.
func bandwidth(e *Env, y, x Tensor) float64 {
	var best float64
	for range 10 {
		start := time.Now()
		Lookup(graph.Act).Fast(e, &graph.Attr{Act: model.ReLU}, []Tensor{y, x})
		best = max(best, 8*float64(x.Cols)/float64(time.Since(start).Nanoseconds()))
	}
	return best
}

func short(a graph.Attr, seq int) graph.Attr {
	a.Seq = seq
	return a
}
