package memo

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/model/family"

	"pgregory.net/rapid"
)

// near fails if got differs from want by more than a fraction share.
func near(t *testing.T, what string, got, want, share float64) {
	t.Helper()
	if !(math.Abs(got-want) <= share*math.Abs(want)+1e-12) {
		t.Errorf("%s: %.8g, want %.8g", what, got, want)
	}
}

func workOf(t testing.TB, m *model.Model, tokens int) Work {
	t.Helper()
	g, err := graph.Build(m, tokens, graph.BF16)
	if err != nil {
		t.Fatal(err)
	}
	w, err := Of(g)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func seven(t testing.TB, tokens int) Work {
	t.Helper()
	m, err := Known("7b", tokens)
	if err != nil {
		t.Fatal(err)
	}
	return workOf(t, m, tokens)
}

// TestUnits derives the paper's list from the graph: ten tensors, 16 units; sizes at 1M tokens.
func TestUnits(t *testing.T) {
	w := seven(t, 1<<20)
	var names []string
	unit := 0.0
	for _, x := range w.Tensors {
		if x.Class == Input {
			unit = float64(x.Bytes)
		}
	}
	units := map[string]float64{}
	for _, x := range w.Tensors {
		name := x.Name[strings.Index(x.Name, ".")+1:]
		names = append(names, name)
		units[name] = float64(x.Bytes) / unit
	}
	want := map[string]float64{"x0": 1, "norm1": 1, "qkv": 3, "attn": 1, "mid": 1, "norm2": 1, "up": 4, "act": 4}
	if len(units) != len(want) {
		t.Errorf("skeletal tensors %v", names)
	}
	for name, u := range want {
		near(t, name, units[name], u, 0)
	}
	near(t, "units", w.Units(), 16, 0)
	near(t, "a unit, GiB", unit/gib, 8, 0)
	layer := 0.0
	for _, b := range w.Bytes() {
		layer += float64(b)
	}
	near(t, "layer, GiB", layer/gib, 128, 0)
	near(t, "model, GiB", layer*32/gib, 4096, 0)
	near(t, "inputs, GiB", 32*unit/gib, 256, 0) // the paper's text says 128, which contradicts its own unit
	b := w.Bytes()
	for class, u := range []float64{1, 1, 8, 6} {
		near(t, Class(class).String(), float64(b[class])/unit, u, 0)
	}
	// Omitted in the paper: log-sum-exp of 32 heads, mean and deviation of two norms, in fp32.
	near(t, "aside", float64(w.Aside), float64(1<<20*(32+2*2)*4), 0)
	near(t, "working", float64(w.Working)/unit, 6, 0) // the backward of the feed-forward: stream, gradient of 4, and of the norm
}

// TestFLOPs: a layer's forward pass is 24 s h^2 + 2 s (s+1) h; recomputing everything except attention and the last
// product is 16 s h^2 of that. The model's count is three times the forward pass.
func TestFLOPs(t *testing.T) {
	const h, s = 4096.0, 1 << 20
	w := seven(t, s)
	near(t, "forward", float64(w.Forward), 24*s*h*h+2*s*(s+1)*h, 1e-12)
	near(t, "parameters", float64(w.Parameters), 12*32*h*h+50257*h, 1e-12)
	var redo [Classes]float64
	for _, x := range w.Tensors {
		redo[x.Class] += float64(x.FLOPs)
	}
	for class, want := range []float64{0, 2 * s * (s + 1) * h, 16 * s * h * h, 0} {
		near(t, "again: "+Class(class).String(), redo[class], want, 1e-12)
	}
	sample := SampleFLOPs(32, h, s, float64(w.Parameters))
	near(t, "sample", sample, 9.07e17, 1e-3)
	near(t, "sample of the graph", 3*(32*float64(w.Forward)+float64(w.Head)), sample, 1e-5)
	near(t, "seconds at 52.30 %", sample/(0.5230*8*312e12), 694, 1e-3)
	near(t, "tokens/GPU/s", s/8/694.0, 189, 1e-3)
	near(t, "MFU", MFU(sample, 694.8, 8*312e12), 0.523, 1e-3)

	at := seven(t, 576<<10)
	near(t, "attention's share at 576K", at.AttentionShare(), 12.0/13, 1e-5)
	near(t, "attention's share at 576K", at.AttentionShare(), 0.923, 1e-3)
}

// TestFamilies compares other models, chosen at random, with closed forms. Grouped queries save less than 16 units,
// gated feed-forwards three times their width: gate and up, and their product.
func TestFamilies(t *testing.T) {
	testkit.Check(t, func(r *rapid.T) {
		heads := rapid.SampledFrom([]int{2, 4, 8}).Draw(r, "heads")
		m := model.Model{Layers: rapid.IntRange(1, 3).Draw(r, "layers"), Heads: heads, HeadDim: 2 * rapid.IntRange(1, 4).Draw(r, "half head"),
			Vocab: 50, Activation: "gelu", NormEps: 1e-5, RopeTheta: 1e4}
		m.Width = heads * m.HeadDim
		m.FeedForward = rapid.IntRange(1, 40).Draw(r, "feed-forward")
		tokens := rapid.IntRange(1, 9).Draw(r, "tokens")
		m.MaxPositions = tokens
		m.KVHeads = heads
		m.Family = rapid.SampledFrom([]*model.Family{family.Named("gpt2"), family.Named("opt"), family.Named("llama"), family.Named("qwen2")}).Draw(r, "family")
		last := 2.0
		if m.RMS() {
			m.KVHeads = rapid.SampledFrom([]int{1, 2, heads}).Draw(r, "kv heads")
			last, m.Activation = 3, "silu"
		}
		g, err := graph.Build(&m, tokens, graph.F32)
		if err != nil {
			r.Fatal(err)
		}
		w, err := Of(g)
		if err != nil {
			r.Fatal(err)
		}
		h := float64(m.Width)
		want := 5 + float64(heads+2*m.KVHeads)/float64(heads) + last*float64(m.FeedForward)/h
		if math.Abs(w.Units()-want) > 1e-9 {
			r.Errorf("%g units, want %g", w.Units(), want)
		}
		var redo int64
		for _, x := range w.Tensors {
			redo += x.FLOPs
		}
		lastProduct := int64(2 * tokens * m.FeedForward * m.Width)
		if redo != w.Forward-lastProduct {
			r.Errorf("again %d FLOPs, the forward without its last product has %d", redo, w.Forward-lastProduct)
		}
		forward, _ := g.FLOPs()
		if got := int64(m.Layers)*w.Forward + w.Head; got != forward {
			r.Errorf("forward %d, the graph says %d", got, forward)
		}
	})
}

// TestOf: models that Of cannot describe are errors.
func TestOf(t *testing.T) {
	m, err := Known("7B", 8)
	if err != nil {
		t.Fatal(err)
	}
	g, err := graph.BuildDecode(m, 8, 1, graph.F32)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Of(g); err == nil || !strings.Contains(err.Error(), "hint:") {
		t.Errorf("a graph of generation: %v", err)
	}
	if g, err = graph.Build(m, 8, graph.F32); err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(g.Segments[3].Forward, func(n graph.Node) bool { return n.Op == graph.Act })
	g.Segments[3].Forward = slices.Delete(g.Segments[3].Forward, at, at+1)
	g.Segments[3].Saved = g.Segments[3].Saved[1:]
	if _, err := Of(g); err == nil || !strings.Contains(err.Error(), "layer 2") {
		t.Errorf("a layer unlike the others: %v", err)
	}
	if _, err := Known("8B", 8); err == nil {
		t.Error("8B is not in the paper")
	}
}
