package kernel

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestDropLaw: Drop keeps each element with the same probability, independently of the element beside it, below it, and at its place in
// another mask; Jitter's numbers are evenly distributed. Bounds are six standard deviations.
func TestDropLaw(t *testing.T) {
	r := rand.New(rand.NewPCG(testkit.Seed(t), 7))
	const rows, cols = 256, 512
	keys := NewTensor(graph.I32, rows, 1)
	seed, step := r.Uint64(), 1+r.IntN(1000)
	for i := range keys.I32 {
		keys.I32[i] = graph.NoiseKey(seed, step, i)
	}
	e := NewEnv(1)
	defer e.Close()
	ones := NewTensor(graph.F32, rows, cols)
	for i := range ones.F32 {
		ones.F32[i] = 1
	}
	for _, rate := range []float64{0.05, 0.1, 0.5, 0.9} {
		masks := [2]Tensor{NewTensor(graph.F32, rows, cols), NewTensor(graph.F32, rows, cols)}
		first := int(r.Uint32())
		for k := range masks {
			drop(e, &graph.Attr{Rate: rate, Param: first + k}, []Tensor{masks[k], ones, keys})
		}
		zero := func(k, i int) float64 {
			if masks[k].F32[i] == 0 {
				return 1
			}
			return 0
		}
		for name, other := range map[string]func(i int) float64{
			"itself": func(int) float64 { return 1 }, "beside": func(i int) float64 { return zero(0, i+1) },
			"below": func(i int) float64 { return zero(0, i+cols) }, "in another mask": func(i int) float64 { return zero(1, i) },
		} {
			const n = (rows - 1) * cols
			p, sum := rate*rate, 0.0
			if name == "itself" {
				p = rate
			}
			for i := range n {
				sum += zero(0, i) * other(i)
			}
			if off := (sum - p*n) / math.Sqrt(p*(1-p)*n); math.Abs(off) > 6 {
				t.Errorf("rate %v: dropped together with what is %s in %v of %d places, %.1f standard deviations off", rate, name, sum, n, off)
			}
		}
		for i, v := range masks[0].F32 {
			if v != 0 && v != float32(1/(1-rate)) {
				t.Fatalf("rate %v: element %d of ones is %v", rate, i, v)
			}
		}
	}
	y := NewTensor(graph.F32, rows, cols)
	jitter(e, &graph.Attr{Scale: 1, Param: 1}, []Tensor{y, keys})
	var sum, squares float64
	for _, v := range y.F32 {
		sum, squares = sum+float64(v), squares+float64(v)*float64(v)
		if math.Abs(float64(v)) >= 1 {
			t.Fatalf("noise of %v", v)
		}
	}
	const n = rows * cols
	if off := sum / math.Sqrt(n/3.0); math.Abs(off) > 6 {
		t.Errorf("the mean of the noise is %.1f standard deviations off", off)
	}
	if off := (squares - n/3.0) / math.Sqrt(n*(1/5.0-1/9.0)); math.Abs(off) > 6 {
		t.Errorf("the variance of the noise is %.1f standard deviations off", off)
	}
}
