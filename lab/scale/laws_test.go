package scale

import (
	"errors"
	"math"
	"testing"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/model/family"
)

func TestLaws(t *testing.T) {
	for _, x := range []struct {
		law                      Chinchilla
		flops                    float64
		parameters, tokens, loss float64
	}{
		{Hoffmann(), 1e20, 6.449e8, 2.585e10, 2.5998},
		{Besiroglu(), 1e20, 8.535e8, 1.953e10, 2.5534},
		{Hoffmann(), 5.76e23, 3.219e10, 5.76e23 / 6 / 3.219e10, math.NaN()},
		{Besiroglu(), 5.76e23, 7.225e10, 5.76e23 / 6 / 7.225e10, math.NaN()},
	} {
		n, d := x.law.Optimum(x.flops)
		near(t, "parameters", n, x.parameters, 3e-4)
		near(t, "tokens", d, x.tokens, 3e-4)
		if !math.IsNaN(x.loss) {
			near(t, "loss", x.law.Loss(n, d), x.loss, 5e-5)
		}
		for _, f := range []float64{.9, 1.1} { // an optimum: neighbours at the same cost are worse
			if x.law.Loss(n*f, d/f) < x.law.Loss(n, d) {
				t.Errorf("%g parameters are better than the optimum %g", n*f, n)
			}
		}
	}
	near(t, "GPT-3's critical batch", Model{Parameters: 175e9, Sequence: 1}.CriticalBatch(), 3.2e6, .01)
}

// gpt returns a model with the sizes that Megatron-LM counts.
func gpt(t *testing.T, layers, hidden, vocab, sequence int) *model.Model {
	t.Helper()
	m, err := family.Known("gpt2")
	if err != nil {
		t.Fatal(err)
	}
	m.Layers, m.Width, m.FeedForward, m.Vocab, m.MaxPositions = layers, hidden, 4*hidden, vocab, sequence
	m.HeadDim, m.Heads, m.KVHeads = 64, hidden/64, hidden/64
	return m
}

// TestMegatron: sizes, operations and times that Megatron-LM's papers print (Narayanan et al. 2021, 2104.04473).
func TestMegatron(t *testing.T) {
	for _, x := range []struct {
		h, n int
		want float64
	}{{2304, 24, 1.7e9}, {3072, 30, 3.6e9}, {4096, 36, 7.5e9}, {6144, 40, 18.4e9}, {8192, 48, 39.1e9}, {10240, 60, 76.1e9},
		{12288, 80, 145.6e9}, {16384, 96, 310.1e9}, {20480, 105, 529.6e9}, {25600, 128, 1008e9}} {
		near(t, "Table 1", float64(gpt(t, x.n, x.h, 51200, 2048).ParamCount()), x.want, .0505e9/x.want) // printed with one decimal
	}
	for _, x := range []struct {
		name             string
		m                *model.Model
		parameters, days float64
		tokens, flops    float64 // flops is per GPU
		gpus             int
	}{
		{"GPT-3", gpt(t, 96, 12288, 51200, 2048), 1.7462e11, 33.8, 300e9, 140e12, 1024},
		{"1T", gpt(t, 128, 25600, 51200, 2048), 1.008e12, 83.9, 450e9, 163e12, 3072},
	} {
		m := Model{Layers: x.m.Layers, Hidden: x.m.Width, Heads: x.m.Heads, Sequence: x.m.MaxPositions, Parameters: float64(x.m.ParamCount())}
		near(t, x.name, m.Parameters, x.parameters, 1e-4)
		free := Hardware{FLOPS: x.flops, Node: 1, Link: math.Inf(1), Network: math.Inf(1)} // communication is already in the measured rate
		work := Work{Steps: 1, Batch: x.tokens / float64(m.Sequence)}
		days := EvaluateWork(m, free, work, Config{Data: x.gpus, Pipe: 1, Tensor: 1, Micros: 1, Batch: 1}).Days
		near(t, x.name+": days", days, x.days, 2e-3)
	}
	for _, x := range []struct {
		m     *model.Model
		batch int
		want  float64
	}{{gpt(t, 96, 12288, 51200, 2048), 1536, 4.51097e18}, {gpt(t, 2, 64, 256, 32), 4, 121634816}} {
		g, err := graph.Build(x.m, x.m.MaxPositions, graph.BF16)
		if err != nil {
			t.Fatal(err)
		}
		// They recompute all layers, and also count pairs of tokens that attention masks.
		n, h, s := x.m.Layers, x.m.Width, x.m.MaxPositions
		forward, _ := g.FLOPs()
		head := int64(2 * s * h * x.m.Vocab)
		layers := forward - head + int64(4*n*h*(s*s-s*(s+1)/2))
		near(t, "FLOP", float64(int64(x.batch)*(4*layers+3*head)), x.want, 1e-6)
	}
}

// TestFit: with all the GPUs that the critical batch can use, the search is at least as fast as the paper's rule;
// fewer GPUs, less memory or a slower network never make it faster; and Fit reports whether a model fits.
func TestFit(t *testing.T) {
	m := Family(160)
	w := DefaultWork(m)
	full := Cluster{Hardware: a100(), GPUs: 38640}
	plan, err := Fit(m, full, w)
	if err != nil {
		t.Fatal(err)
	}
	if plan.Days > 6.75*1.01 {
		t.Errorf("%+v", plan)
	}
	last := plan.Days
	for _, edit := range []func(c *Cluster){
		func(c *Cluster) { c.Network /= 8 },
		func(c *Cluster) { c.GPUs /= 10 },
		func(c *Cluster) { c.Memory /= 2 },
		func(c *Cluster) { c.Node = 4 },
	} {
		edit(&full)
		p, err := Fit(m, full, w)
		if err != nil {
			t.Fatal(err)
		}
		if p.Days < last*(1-1e-9) {
			t.Errorf("%+v is faster (%g days) than with more (%g)", full, p.Days, last)
		}
		if p.GPUs > full.GPUs || p.need(false) > full.Memory || float64(p.Data*p.Micros*p.Batch) > w.Batch {
			t.Errorf("%+v breaks a limit of %+v", p, full)
		}
		for _, l := range p.Limits {
			if l.Speedup < 1-1e-9 {
				t.Errorf("lifting %q makes it slower", l.Name)
			}
		}
		last = p.Days
	}
	small := Cluster{Hardware: a100(), GPUs: 8}
	var misfit *MisfitError
	if _, err := Fit(m, small, w); !errors.As(err, &misfit) || misfit.Need <= small.Memory {
		t.Errorf("a trillion parameters on 8 GPUs: %v", err)
	}
	small.Offload = true
	if _, err := Fit(m, small, w); err != nil {
		t.Errorf("offloaded: %v", err)
	}
	var usage *UsageError
	for _, bad := range []Cluster{{}, {Hardware: a100()}, {Hardware: a100(), GPUs: -1}, {Hardware: Hardware{FLOPS: math.NaN()}, GPUs: 1}} {
		if _, err := Fit(m, bad, w); !errors.As(err, &usage) {
			t.Errorf("%+v was accepted: %v", bad, err)
		}
	}
}
