package gemm

import (
	"fmt"
	"testing"
	"time"

	"github.com/athanor-llm/athanor/kernel/pool"
)

// The products of GPT-2 124M with 1024 tokens, and the logits of 64 tokens.
var benchShapes = [][3]int{
	{1024, 768, 768}, {1024, 3072, 768}, {1024, 768, 3072}, {1024, 50304, 768}, {64, 50304, 768}, {256, 256, 256},
	{64, 768, 768}, {192, 3072, 768}, {8, 3072, 768}, {1, 50304, 768},
}

// BenchmarkGemm reports GFLOP/s and the fraction of the multiply-add peak, which is measured before and after each
// product since cores are shared and clocks vary.
func BenchmarkGemm(b *testing.B) {
	for _, x := range sets() {
		if x == &portable {
			continue
		}
		for workers := 1; workers <= 2; workers++ {
			p := pool.New(workers)
			defer p.Close()
			e := newEngine(p, x)
			for _, shape := range benchShapes {
				for form := NN; form <= TN; form++ {
					m, n, k := shape[0], shape[1], shape[2]
					name := fmt.Sprintf("%s/workers=%d/%dx%dx%d/%s", x.name, workers, m, n, k, form)
					b.Run(name, func(b *testing.B) { benchGemm(b, e, workers, form, m, n, k) })
				}
			}
		}
	}
}

func benchGemm(b *testing.B, e *Engine, workers int, form Form, m, n, k int) {
	a, w, c := benchMatrix(b, m, k), benchMatrix(b, k, n), benchMatrix(b, m, n)
	switch form {
	case NT:
		w.Stride = k
	case TN:
		a.Stride = m
	}
	flops := 2 * float64(m) * float64(n) * float64(k)
	best, peak := 0.0, 0.0
	run := func() {
		start := time.Now()
		e.Gemm(form, m, n, k, a, w, c, Init{})
		best = max(best, flops/time.Since(start).Seconds())
	}
	for b.Loop() {
		for start := time.Now(); time.Since(start) < time.Millisecond; { // the workers of the pool stay awake
			run()
		}
		peak = max(peak, e.isa.peakRate(workers, 200*time.Microsecond))
	}
	peak = max(peak, e.isa.peakRate(workers, 20*time.Millisecond))
	b.ReportMetric(best/1e9, "GFLOP/s")
	b.ReportMetric(100*best/peak, "%peak")
}

func benchMatrix(b *testing.B, rows, cols int) Matrix {
	m := Matrix{hugeFloats(b, rows*cols), cols}
	for i := range m.Data {
		m.Data[i] = float32(i%17) / 17
	}
	return m
}
