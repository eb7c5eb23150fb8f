package session

import (
	"math"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
)

// loadMasked loads a fixture of which every third weight of the layers' matrices is 0, of either sign, and stays so.
func loadMasked(t *testing.T, folder string, d graph.DType, o optimizer.Optimizer) *fixture {
	t.Helper()
	f := load(t, filepath.Join("../testdata/torch", folder, "config.json"))
	m := *f.graph.Model
	m.Masked, m.Indivisible = true, !o.Rule().Elementwise
	var err error
	f.graph, err = graph.Build(&m, f.graph.Seq, d)
	check(t, err)
	f.updates, f.terms = o, optimizer.MuonTerms{}.Usual()
	return f
}

// gone says whether a weight of a masked fixture is 0, and what zero it is.
func gone(i int) (zero float32, is bool) {
	if i%6 == 0 {
		return float32(math.Copysign(0, -1)), true
	}
	return 0, i%3 == 0
}

// TestMaskedPlans is law L1 for sparse weights: whatever the optimizer, the formats, the plan and the ranks, weights that are 0 stay
// so and have no moments, others are trained, and every bit is that of the plain run; and Verify proves it beforehand.
func TestMaskedPlans(t *testing.T) {
	(&formTest{seed: 23, cases: []formCase{
		{"llama-tiny", graph.F32, plan.FP32State, optimizer.AdamW}, {"gpt2-tiny", graph.BF16, plan.FP32State, optimizer.Muon}, {"llama-tied", graph.BF16, plan.BF16State, optimizer.Lion},
		{"mixtral-tiny", graph.BF16, plan.FP32State, optimizer.AdamW}, {"llama-tiny", graph.F32, plan.BF16Moments, optimizer.Muon}, {"gpt2-tiny", graph.F32, plan.BF16Moments, optimizer.Lion},
		{"qwen2-tiny", graph.BF16, plan.BF16State, optimizer.Muon}, {"neox-tiny", graph.BF16, plan.BF16State, optimizer.AdamW},
	}, fast: 2, usual: 3, plans: [3]int{1, 2, 8}, steps: 3,
		load:  func(t *testing.T, c formCase) *fixture { return loadMasked(t, c.folder, c.dtype, c.o) },
		holds: func(t *testing.T, f *fixture, _ *program.Program, plain trace) { f.staySparse(t, plain) },
		ranks: func(t *testing.T, r *rand.Rand, f *fixture) {
			pl := f.plain()
			f.amongRanks(r, pl, 2)
			pl.Cache = pl.CacheNeeded(f.graph)
			_, got := f.train(t, pl, 3)
			f.staySparse(t, got)
		},
	}).run(t)
}

// staySparse checks the final state of a run: bits of weights that were 0, their moments, and that other weights are not 0.
func (f *fixture) staySparse(t *testing.T, tr trace) {
	t.Helper()
	at := 0
	for _, q := range f.graph.Params {
		for _, kind := range f.updates.For(q.Indivisible).State() {
			values := tr.state[at]
			at++
			if !q.Masked {
				continue
			}
			living := 0
			for i, v := range values {
				zero, is := gone(i)
				switch {
				case is && kind == optimizer.Weights && math.Float32bits(v) != math.Float32bits(zero), is && kind != optimizer.Weights && math.Float32bits(v) != 0:
					t.Fatalf("%s of %s: element %d is %v", kind.Words(), q.Name, i, v)
				case !is && v != 0:
					living++
				}
			}
			if living == 0 {
				t.Errorf("%s of %s: nothing is left", kind.Words(), q.Name)
			}
		}
	}
}

// TestCompactPlans is law L1 where only what is left is stored: weights, gradients that wait, and state. Every bit is that of the plain run,
// which stores all, wherever chunks are and whoever updates them; and Verify proves it beforehand.
func TestCompactPlans(t *testing.T) {
	(&formTest{seed: 29, cases: []formCase{
		{"llama-tiny", graph.F32, plan.FP32State, optimizer.AdamW}, {"gpt2-tiny", graph.BF16, plan.FP32State, optimizer.Lion}, {"mixtral-tiny", graph.BF16, plan.FP32State, optimizer.AdamW},
		{"neox-tiny", graph.F32, plan.FP32State, optimizer.Lion}, {"llama-tied", graph.BF16, plan.FP32State, optimizer.AdamW}, {"llama-tiny", graph.BF16, plan.FP32State, optimizer.SGD},
	}, fast: 2, usual: 3, plans: [3]int{2, 4, 30}, steps: 3,
		load: func(t *testing.T, c formCase) *fixture { return loadMasked(t, c.folder, c.dtype, c.o).knowKept(t) },
		change: func(t *testing.T, r *rand.Rand, f *fixture, pl *plan.Plan) {
			if pl.Ranks > 1 {
				t.Skip("ranks divide chunks")
			}
			some := false
			for i := range pl.Chunks {
				ch := &pl.Chunks[i]
				ch.Compact = ch.Sparse(f.graph) && r.IntN(4) > 0
				some = some || ch.Compact
			}
			if pl.Cache = max(pl.Cache, pl.CacheNeeded(f.graph)); !some {
				t.Skip("no chunk is compact")
			}
		},
	}).run(t)
}

// knowKept has the fixture's model know how many of its weights are stored where only those are that are not 0.
func (f *fixture) knowKept(t *testing.T) *fixture {
	t.Helper()
	m := *f.graph.Model
	m.Kept = map[string]int64{}
	for _, p := range f.graph.Params {
		for i := range int(p.Elems()) {
			if zero, is := gone(i); p.Masked && (!is || math.Signbit(float64(zero))) {
				m.Kept[p.Name]++
			}
		}
	}
	var err error
	f.graph, err = graph.Build(&m, f.graph.Seq, f.graph.DType)
	check(t, err)
	return f
}

// TestCompactRefused: a plan says why a chunk cannot do without zeros.
func TestCompactRefused(t *testing.T) {
	f := loadMasked(t, "llama-tiny", graph.BF16, optimizer.AdamW)
	dense := f.graph
	f.knowKept(t)
	for _, c := range []struct {
		says   string
		g      *graph.Graph
		change func(pl *plan.Plan)
	}{
		{"", f.graph, func(*plan.Plan) {}},
		{"no parameter of it is known", dense, func(*plan.Plan) {}},
		{"there are 2 ranks", f.graph, func(pl *plan.Plan) { pl.Ranks = 2 }},
		{"optimizer_state bf16_moments rounds each", f.graph, func(pl *plan.Plan) { pl.State = plan.BF16Moments }},
		{"muon updates its matrices as a whole", loadMasked(t, "llama-tiny", graph.BF16, optimizer.Muon).knowKept(t).graph, func(pl *plan.Plan) { pl.Optimizer = optimizer.Muon }},
	} {
		pl := plan.Plain(c.g, f.batch())
		for i := range pl.Chunks {
			pl.Chunks[i].Compact = pl.Chunks[i].Sparse(f.graph)
		}
		c.change(pl)
		pl.Cache = pl.CacheNeeded(c.g)
		err := pl.Validate(c.g)
		if c.says == "" {
			check(t, err)
		} else if err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "hint: leave out compact") {
			t.Errorf("want %q: %v", c.says, err)
		}
	}
}

// TestCompactBytes is laws L2 and L3 where only what is left is stored: of e elements of a matrix, of which n are left, there are 16n bytes
// of weights, moments and a gradient that waits, with n rounded up to 16, and 128 bytes of mask for each 992 of e; and links carry that mask and
// w bytes a weight before each use, the mask to compress the gradient, and 4 bytes a gradient back, besides the sums of squares. The device
// copies what is not compressed.
func TestCompactBytes(t *testing.T) {
	for _, d := range []graph.DType{graph.F32, graph.BF16} {
		f := loadMasked(t, "gpt2-untied", d, optimizer.AdamW)
		f.knowKept(t)
		pl := f.plain()
		var stored, vectors, masks, others, runs int64 // elements of layers' parameters, of vectors among these, bytes of masks, elements of other parameters
		within := plan.Runs(f.graph)
		for i := range pl.Chunks {
			c := &pl.Chunks[i]
			c.Weights, c.Grads, c.State, c.Compact = device.HostTier, device.HostTier, device.HostTier, c.Sparse(f.graph)
			for k, p := range f.graph.Params[c.First:c.Last] {
				if c.Compact && !within[c.First+k] { // none has more than one slot of the norm
					runs++
				}
				switch n := p.Elems(); {
				case !c.Compact:
					others += n
				case p.Masked:
					stored += (p.Kept + 15) / 16 * 16
					masks += (n + 991) / 992 * 128
				default:
					stored, vectors = stored+n, vectors+n
				}
			}
		}
		pl.Cache = pl.CacheNeeded(f.graph)
		_, tr := f.train(t, pl, 1)
		var want [device.NumTiers][device.NumTiers]int64
		w, tokens := d.Size(), int64(4*f.graph.Seq)
		want[device.HostTier][device.DeviceTier] = 2*(w*stored+masks) + masks + w*others + 2*4*tokens + 4*graph.NumScalars + 8
		want[device.DeviceTier][device.HostTier] = 4*(stored+others) + 8 + 8*runs
		want[device.DeviceTier][device.DeviceTier] = (2*w + 4) * vectors
		if tr.moved != want {
			t.Errorf("%v: moved %v, want %v", d, tr.moved, want)
		}
		p, err := lower.Lower(t.Context(), f.graph, pl, f.options())
		check(t, err)
		var have int64
		for _, b := range p.Buffers {
			if b.Tier == device.HostTier && (b.Class == program.ClassWeights || b.Class == program.ClassState || b.Class == program.ClassGrads) {
				have += b.Size
			}
		}
		if want := 16*(stored+others) + masks; have != want {
			t.Errorf("%v: %d bytes on the host, want %d", d, have, want)
		}
	}
}
