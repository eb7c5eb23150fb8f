package session

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/torch"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/plan"
)

// loadFP8 loads a fixture whose layers multiply in FP8.
func loadFP8(t *testing.T, folder string, d graph.DType) *fixture {
	t.Helper()
	f := load(t, filepath.Join("../testdata/torch", folder, "config.json"))
	m := *f.graph.Model
	check(t, model.MultiplyFP8(&m))
	var err error
	f.graph, err = graph.Build(&m, f.graph.Seq, d)
	check(t, err)
	return f
}

// TestFP8 compares with torchao's formulas in PyTorch (tools/fp8_fixtures.py): logits, gradients and the first steps as closely as those
// in fp32. Where sums are in another order, a number close to the middle of two in E4M3 is sooner or later rounded to the other, so
// later steps are a little apart.
func TestFP8(t *testing.T) {
	for _, folder := range []string{"llama-tiny", "gpt2-tiny"} {
		t.Run(folder, func(t *testing.T) {
			f := loadFP8(t, folder, graph.F32)
			s := f.open(t, plan.Plain(f.graph, 4), lower.Logits)
			f.step(t, s, 1)
			want := torch.Tensor(t, f.dir, "fp8.safetensors", "logits")
			got := make([]float64, len(want))
			check(t, s.Engine(0).ReadBuffer("logits", got))
			if e := torch.Distance(got, want) / torch.Norm(want); e > 1e-5 {
				t.Errorf("logits differ by %.2g", e)
			}

			s = f.open(t, plan.Plain(f.graph, 4), lower.Grads)
			f.step(t, s, 1)
			for i, p := range f.graph.Params {
				want := torch.Tensor(t, f.dir, "fp8.safetensors", p.Name)
				got := make([]float32, len(want))
				check(t, s.Read(i, optimizer.Gradient, got))
				d, n := torch.Distance(torch.Widened(got), want), torch.Norm(want)
				if without := torch.Distance(torch.Tensor(t, f.dir, "grads.safetensors", p.Name), want); d > 1e-4*n || d > without/10 {
					t.Errorf("%s: differs by %.3g of %.3g, of which fp8 is %.3g", p.Name, d, n, without)
				}
			}

			var reference struct {
				Losses []float64
				Norms  []float64 `json:"grad_norms"`
			}
			text, err := os.ReadFile(filepath.Join(f.dir, "fp8.json"))
			check(t, err)
			check(t, json.Unmarshal(text, &reference))
			s = f.open(t, plan.Plain(f.graph, 4), lower.Train)
			for n := range 10 {
				out := f.step(t, s, n+1)
				near := 1e-5
				if n >= 3 {
					near = 3e-3
				}
				if e := math.Abs(out.Loss/reference.Losses[n] - 1); e > near {
					t.Errorf("step %d: loss %.6f, PyTorch %.6f", n+1, out.Loss, reference.Losses[n])
				}
				if e := math.Abs(out.Norm/reference.Norms[n] - 1); e > 10*near {
					t.Errorf("step %d: gradient norm %.6f, PyTorch %.6f", n+1, out.Norm, reference.Norms[n])
				}
			}
		})
	}
}

// TestFP8Plans is law L1 for products in FP8: no plan changes a bit, whatever it divides and recomputes, and Verify proves it beforehand.
func TestFP8Plans(t *testing.T) {
	(&formTest{seed: 37, cases: []formCase{
		{"llama-tiny", graph.BF16, plan.FP32State, optimizer.AdamW}, {"gpt2-tiny", graph.BF16, plan.BF16State, optimizer.Lion}, {"llama-tiny", graph.F32, plan.PackedMoments, optimizer.AdamW},
		{"qwen35-tiny", graph.BF16, plan.FP32State, optimizer.AdamW}, {"falcon-h1-tiny", graph.BF16, plan.BF16Moments, optimizer.AdamW}, {"gemma4-tiny", graph.BF16, plan.FP32State, optimizer.AdamW},
	}, fast: 2, usual: 3, plans: [3]int{1, 3, 8}, steps: 3,
		load: func(t *testing.T, c formCase) *fixture { return loadFP8(t, c.folder, c.dtype) },
		ranks: func(t *testing.T, r *rand.Rand, f *fixture) {
			f.sameAmongRanks(t, r, plan.Shardings()[r.IntN(4)], 2, 2)
		},
	}).run(t)
}
