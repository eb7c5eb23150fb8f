package flexgen

import (
	"math"
	"testing"
)

// opt30b is what the paper's table has for OPT-30B.
var opt30b = &Shape{Layers: 48, Width: 7168, FeedForward: 4 * 7168, Heads: 56, Prompt: 512, Tokens: 32}

// TestPublished: the numbers that the released equations give, as another solver (GLPK) found them.
func TestPublished(t *testing.T) {
	near := func(what string, got, want, by float64) {
		t.Helper()
		if !(math.Abs(got-want) <= by) {
			t.Errorf("%s is %v, want %v", what, got, want)
		}
	}
	m := T4()
	p := m.Estimate(opt30b, Policy{Each: 48, Batches: 3, Weights: [3]float64{0.2, 0.8, 0}, Caches: [3]float64{0, 1, 0}, Hidden: [3]float64{0, 1, 0}})
	near("prefill", p.Prefill, 4.3890, 5e-5)
	near("decode", p.Decode, 0.2924, 5e-5)
	near("tokens/s of the published policy", p.Rate, 7.136, 5e-4)
	p, ok := m.Solve(opt30b, 48, 3)
	if !ok {
		t.Fatal("nothing fits")
	}
	near("tokens/s of the best fractions", p.Rate, 6.974, 5e-4)
	near("weights on the device", p.Weights[0], 0.087, 5e-4)
	other := p // as good: what the host has no room for are caches, not weights
	other.Weights, other.Caches = [3]float64{p.Weights[0], 1 - p.Weights[0], 0}, [3]float64{0, 0.949, 0.051}
	near("tokens/s with some caches on the disk", m.Estimate(opt30b, other).Rate, p.Rate, 1e-6)
	p, ok = m.Search(opt30b)
	if !ok || p.Each != 32 || p.Batches != 5 {
		t.Errorf("%+v", p)
	}
	near("tokens/s of the best batches", p.Rate, 7.095, 5e-4)
}
