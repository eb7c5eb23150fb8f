package bench

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/optimizer"
)

// Case is an operator with the extents of its operands.
type Case struct {
	op   graph.Op
	name string // what distinguishes it
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
	case graph.CrossEntropy, graph.Distil, graph.TopLogs, graph.LossPart, graph.EmbedBwd, graph.BiasGrad, graph.SinkGrad, graph.LayerNormDW, graph.RMSNormDW, graph.NormPart:
		d = c.dims[len(c.dims)-1] // the first one says little
		for _, x := range c.dims {
			if x.Elems() > d.Elems() {
				d = x
			}
		}
	}
	return strings.TrimSpace(fmt.Sprintf("%d,%d %s", d.Rows, d.Cols, c.name))
}

// Sizes of GPT-2 124M on one sequence.
const (
	gpt2Tokens  = 1024
	gpt2Width   = 768
	gpt2Wide    = 3072 // of the feed-forward
	gpt2Heads   = 12
	gpt2HeadDim = 64
	gpt2Vocab   = 50257
)

// products are M, N, K of the matrix products of GPT-2 124M on 1024 tokens, and of
// its logits for 64 tokens and for one.
var products = [][3]int{{1024, 768, 768}, {1024, 3072, 768}, {1024, 768, 3072}, {1024, 50304, 768}, {64, 50304, 768}, {1, 50304, 768}}

// Cases lists the operators of training with the sizes of GPT-2 124M (RMSNorm, RoPE,
// SwiGLU: of a Llama of that width) on 1024 tokens, storing activations and weights
// as t.
func Cases(t graph.DType) []Case {
	l := cases{stored: t}
	l.products()
	l.attention()
	l.norms()
	l.mixture()
	l.elementwise()
	l.linearAttention()
	l.scans()
	l.latents()
	l.ends()
	l.optimizer()
	return l.list
}

// cases collects cases of one data type.
type cases struct {
	stored graph.DType
	list   []Case
}

func (l *cases) add(op graph.Op, name string, a graph.Attr, dims ...graph.Dim) {
	l.list = append(l.list, Case{op, name, a, dims})
}

// of returns the extents of activations or weights; f32 returns those of what is always fp32.
func (l *cases) of(rows, cols int) graph.Dim {
	return graph.Dim{DType: l.stored, Rows: rows, Cols: cols}
}

func f32(rows, cols int) graph.Dim { return graph.Dim{Rows: rows, Cols: cols} }

func (l *cases) products() {
	for _, p := range products {
		m, n, k := p[0], p[1], p[2]
		l.add(graph.Linear, "", graph.Attr{WT: true}, l.of(m, n), l.of(m, k), l.of(n, k))
		l.add(graph.Linear, "", graph.Attr{}, l.of(m, n), l.of(m, k), l.of(k, n))
		if m > 1 {
			l.add(graph.LinearDW, "", graph.Attr{Cut: graph.Cut(k, l.stored)}, f32(m, n), l.of(k, m), l.of(k, n))
		}
	}
}

// heads returns the attributes of attention, or of RoPE, with kv heads for keys and
// values.
func heads(seq, kv int) graph.Attr {
	return graph.Attr{Seq: seq, Heads: gpt2Heads, KVHeads: kv, HeadDim: gpt2HeadDim, Scale: 1 / math.Sqrt(gpt2HeadDim)}
}

func (l *cases) attention() {
	const n, d = gpt2Tokens, gpt2Width
	q, kv, gqa, lse := l.of(n, d), l.of(n, 2*d), l.of(n, 2*4*gpt2HeadDim), f32(n, gpt2Heads)
	for _, seq := range []int{1024, 256, 64} {
		name := fmt.Sprintf("T%d", seq)
		l.add(graph.Attention, name, heads(seq, gpt2Heads), q, lse, q, kv)
		l.add(graph.AttentionBwd, name, heads(seq, gpt2Heads), q, kv, lse, q, q, kv, q, lse)
	}
	l.add(graph.Attention, "T1024 GQA", heads(n, 4), q, lse, q, gqa)
	l.add(graph.AttentionBwd, "T1024 GQA", heads(n, 4), q, gqa, lse, q, q, gqa, q, lse)
	sinks := l.of(1, gpt2Heads)
	l.add(graph.Attention, "T1024 sinks", heads(n, gpt2Heads), q, lse, q, kv, graph.Dim{}, sinks)
	capped := heads(n, gpt2Heads)
	capped.Limit = 50
	l.add(graph.Attention, "T1024 capped", capped, q, lse, q, kv)
	l.add(graph.AttentionBwd, "T1024 capped", capped, q, kv, lse, q, q, kv, q, lse)
	l.add(graph.SinkGrad, "", graph.Attr{}, f32(1, gpt2Heads), lse, lse, sinks)
	// The last quarter of a sequence in slices.
	a, part, last := heads(n, gpt2Heads), l.of(n/4, d), f32(n/4, gpt2Heads)
	l.add(graph.Attention, "T1024 slice", a, part, last, part, kv)
	l.add(graph.AttentionBwd, "T1024 slice", a, part, f32(n, 2*d), last, part, part, kv, part, last)
}

func (l *cases) norms() {
	const n, d = gpt2Tokens, gpt2Width
	eps, acc := graph.Attr{Eps: 1e-5}, graph.Attr{Acc: true}
	x, row := l.of(n, d), l.of(1, d)
	l.add(graph.LayerNorm, "", eps, x, f32(n, 2), x, row, row)
	l.add(graph.LayerNormDX, "", acc, x, x, x, row, f32(n, 2))
	l.add(graph.LayerNormDW, "", acc, f32(1, d), f32(1, d), x, x, f32(n, 2))
	l.add(graph.RMSNorm, "", eps, x, f32(n, 1), x, row)
	l.add(graph.RMSNormDX, "", acc, x, x, x, row, f32(n, 1))
	l.add(graph.RMSNormDW, "", acc, f32(1, d), x, x, f32(n, 1))
}

// Experts of a mixture of GPT-2's width, and those of each token.
const benchExperts, benchSlots = 16, 2

// mixture adds a mixture's operators. Experts are as wide as the model.
func (l *cases) mixture() {
	const n, d = gpt2Tokens, gpt2Width
	const e, k = benchExperts, benchSlots
	x, slots, logits, weights := l.of(n, d), l.of(n, k*d), l.of(n, e), f32(n, k)
	ids := graph.Dim{DType: graph.I32, Rows: n, Cols: k}
	l.add(graph.Route, "", graph.Attr{}, weights, ids, logits)
	l.add(graph.RouteBwd, "", graph.Attr{Seq: 1}, logits, weights, weights, ids, logits)
	l.add(graph.ExpertLinear, "NT", graph.Attr{WT: true, Experts: e}, slots, x, l.of(e*d, d), ids)
	l.add(graph.ExpertLinear, "NN", graph.Attr{Slots: true, Experts: e}, slots, slots, l.of(e*d, d), ids)
	l.add(graph.ExpertDW, "", graph.Attr{WT: true, Experts: e, Seq: n, Cut: graph.Cut(n, l.stored)}, f32(e*d, d), x, slots, ids)
	l.add(graph.ExpertDB, "", graph.Attr{Acc: true, Experts: e}, f32(e, d), x, ids, weights)
	l.add(graph.Combine, "", graph.Attr{}, x, slots, x)
}

func (l *cases) elementwise() {
	const n = gpt2Tokens
	wide, half, llama := l.of(n, gpt2Wide), l.of(n, 2048), l.of(n, 4096)
	l.add(graph.RoPE, "", heads(n, gpt2Heads), l.of(n, 3*gpt2Width), f32(n, gpt2HeadDim))
	for _, a := range []model.Activation{model.GELUTanh, model.GELUErf} {
		l.add(graph.Act, a.String(), graph.Attr{Act: a}, wide, wide)
		l.add(graph.ActBwd, a.String(), graph.Attr{Act: a}, wide, wide, wide)
	}
	row, rank := l.of(1, gpt2Wide), l.of(16, gpt2Width)
	l.add(graph.Direction, "", graph.Attr{Scale: 1}, wide, rank, l.of(gpt2Wide, gpt2Width), l.of(gpt2Wide, 16))
	l.add(graph.Gain, "", graph.Attr{}, wide, wide, row)
	l.add(graph.GainGrad, "", graph.Attr{}, f32(1, gpt2Wide), wide, wide)
	one := l.of(1, 1)
	l.add(graph.XIELU, "", graph.Attr{}, wide, wide, one, one, one, one)
	l.add(graph.XIELUBwd, "", graph.Attr{}, wide, wide, wide, one, one, one, one, f32(wide.Rows, 2))
	l.add(graph.SwiGLU, "", graph.Attr{Act: model.SiLU}, half, llama)
	l.add(graph.SwiGLUBwd, "", graph.Attr{Act: model.SiLU}, llama, half, llama)
	l.add(graph.BiasGrad, "", graph.Attr{Acc: true}, f32(1, gpt2Wide), wide)
	l.add(graph.Gate, "", graph.Attr{Act: model.SiLU}, half, half, half)
	l.add(graph.GateBwd, "", graph.Attr{Act: model.SiLU}, half, half, half, half, half)
}

// linearAttention adds a gated delta net with some heads of the usual size.
func (l *cases) linearAttention() {
	const n, keys, values, size, taps = gpt2Tokens, 4, 8, 128, 4
	a := graph.Attr{Seq: n, Heads: values, KVHeads: keys, HeadDim: size}
	gates, heads, o, qkv := f32(n, 2*values), l.of(1, values), l.of(n, values*size), l.of(n, (2*keys+values)*size)
	states, ba, w := f32(n, values*graph.DeltaStateCols(n, size*size)), l.of(n, 2*values), l.of((2*keys+values)*size, taps)
	l.add(graph.ShortConv, "", graph.Attr{Seq: n, Act: model.SiLU}, qkv, qkv, w)
	l.add(graph.ShortConvDX, "", graph.Attr{Seq: n, Act: model.SiLU}, qkv, qkv, qkv, w)
	l.add(graph.ShortConvDW, "", graph.Attr{Seq: n, Act: model.SiLU}, f32(w.Rows, w.Cols), qkv, qkv, w)
	l.add(graph.Decay, "", graph.Attr{}, gates, ba, heads, heads)
	l.add(graph.DecayBwd, "", graph.Attr{}, ba, gates, ba, heads, heads)
	l.add(graph.DecayGrad, "", graph.Attr{}, f32(1, values), gates, gates)
	l.add(graph.DeltaRule, "", a, o, states, qkv, gates)
	l.add(graph.DeltaRuleBwd, "", a, qkv, gates, o, qkv, gates, states)
}

// scans adds a scan with as many heads in a group as Granite 4.0-H has in its smallest models.
func (l *cases) scans() {
	const n, heads, size, state = gpt2Tokens, 48, 32, 128
	a := graph.Attr{Seq: n, Heads: heads, KVHeads: 1, HeadDim: state}
	gates, steps, vector, o, xbc := f32(n, 2*heads), l.of(n, heads), l.of(1, heads), l.of(n, heads*size), l.of(n, heads*size+2*state)
	states := f32(n, heads*graph.ScanStateCols(n, state*size))
	l.add(graph.TimeSteps, "", graph.Attr{}, gates, steps, vector, vector)
	l.add(graph.TimeStepsBwd, "", graph.Attr{}, steps, gates, steps, vector, vector)
	l.add(graph.StateScan, "", a, o, states, xbc, gates, vector)
	l.add(graph.StateScanBwd, "", a, xbc, f32(n, 3*heads), o, xbc, gates, vector, states, f32(n, graph.ScanRoom(&a)))
}

// latents adds the layout of keys and values made from latents, of DeepSeek-V2-Lite's heads.
func (l *cases) latents() {
	const n, heads, plain, turned, value = gpt2Tokens, 16, 128, 64, 128
	a := graph.Attr{Heads: heads, KVHeads: heads, HeadDim: plain + turned}
	kv, up, common, o := l.of(n, 2*heads*(plain+turned)), l.of(n, heads*(plain+value)), l.of(n, turned), l.of(n, heads*(plain+turned))
	l.add(graph.LatentKV, "", a, kv, up, common)
	l.add(graph.LatentKVBwd, "", a, up, common, kv)
	l.add(graph.HeadCols, "", graph.Attr{Heads: heads}, l.of(n, heads*value), o)
}

// ends adds the embedding and the loss.
func (l *cases) ends() {
	const n, d, vocab = gpt2Tokens, gpt2Width, gpt2Vocab
	x, ids := l.of(n, d), graph.Dim{DType: graph.I32, Rows: n, Cols: 1}
	l.add(graph.Embed, "", graph.Attr{Seq: n}, x, ids, l.of(vocab, d), x)
	l.add(graph.EmbedBwd, "", graph.Attr{Acc: true}, f32(vocab, d), x, ids)
	l.add(graph.PosBwd, "", graph.Attr{Acc: true, Seq: n}, f32(n, d), x)
	l.add(graph.CrossEntropy, "", graph.Attr{Grad: true}, f32(n, 1), l.of(n, vocab), ids, f32(1, graph.NumScalars))
	l.add(graph.Distil, "", graph.Attr{Grad: true, Rate: 0.5, Scale: 1}, f32(n, 1), l.of(n, vocab), ids, f32(1, graph.NumScalars), graph.Dim{DType: graph.I32, Rows: n, Cols: 2}, f32(n, 2))
	l.add(graph.TopLogs, "", graph.Attr{Scale: 1}, graph.Dim{DType: graph.I32, Rows: n, Cols: 2}, f32(n, 2), l.of(n, vocab))
	l.add(graph.LossPart, "", graph.Attr{}, f32(n, 4), l.of(n, vocab), ids)
	l.add(graph.Preference, "", graph.Attr{Seq: n, Scale: 0.1}, f32(n, 1), f32(n, 1), f32(n, 1), f32(n, 1), f32(n, 1), ids, ids)
	l.add(graph.Preference, "unpaired", graph.Attr{Seq: n, Scale: 0.1, PairLoss: int(graph.KTO)}, f32(n, 1), f32(n, 1), f32(n, 1), f32(n, 1), f32(n, 1), ids, ids, f32(n, 1))
	l.add(graph.Add, "", graph.Attr{}, l.of(n, gpt2Wide), l.of(n, gpt2Wide))
	l.add(graph.Scale, "", graph.Attr{Scale: 2}, l.of(n, gpt2Wide))
	l.add(graph.Drop, "", graph.Attr{Rate: 0.1, Param: 1}, x, x, ids)
	l.add(graph.Jitter, "", graph.Attr{Scale: 0.1, Param: 1}, x, ids)
	l.add(graph.SoftCap, "", graph.Attr{Limit: 30}, l.of(n, gpt2Wide))
	all, kept, mask := l.of(1, 1<<15), l.of(1, 1<<14), graph.Dim{DType: graph.I32, Rows: 1, Cols: graph.MaskWords(1 << 15)}
	l.add(graph.Compress, "", graph.Attr{}, kept, all, mask)
	l.add(graph.Expand, "", graph.Attr{}, all, kept, mask)
}

// optimizer adds the operators that update parameters.
func (l *cases) optimizer() {
	const params = 1 << 24
	big := f32(1, params)
	l.add(graph.NormPart, "", graph.Attr{}, graph.Dim{DType: graph.F64, Rows: 1, Cols: graph.NormPieces(params)}, big)
	var narrow graph.Dim
	if l.stored == graph.BF16 {
		narrow = l.of(1, params)
		l.add(graph.Cast, "narrow", graph.Attr{}, narrow, big)
	}
	const side = 1 << 10
	square := f32(side, side)
	l.add(graph.Muon, "", graph.Attr{Beta1: 0.95, Eps: graph.MuonEps, Decay: 0.1, Scale: 1},
		square, square, square, f32(1, 2), f32(1, graph.NumScalars), graph.Dim{}, graph.Dim{}, l.of(1, graph.MuonPlacesOf(side, side).Len))
	for o := range optimizer.NumOptimizers {
		rule := o.Rule()
		if !rule.Elementwise {
			continue
		}
		operands := slices.Repeat([]graph.Dim{big}, rule.ClipAt())
		operands = append(operands, f32(1, 2), f32(1, graph.NumScalars), narrow)
		l.add(rule.Op, "", graph.Attr{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Decay: 0.1}, operands...)
	}
}
