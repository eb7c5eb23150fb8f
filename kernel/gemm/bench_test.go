package gemm

import (
	"fmt"
	"testing"
	"time"
	"unsafe"

	"github.com/athanor-llm/athanor/internal/float16"
	"github.com/athanor-llm/athanor/internal/stat"
	"github.com/athanor-llm/athanor/kernel/pool"
)

// The products of GPT-2 124M with 1024 tokens, and the logits of 64 tokens.
var benchShapes = [][3]int{
	{1024, 768, 768}, {1024, 3072, 768}, {1024, 768, 3072}, {1024, 50304, 768}, {64, 50304, 768}, {256, 256, 256},
	{64, 768, 768}, {192, 3072, 768}, {8, 3072, 768}, {1, 50304, 768}, {64, 768, 50304}, {50304, 768, 256},
}

// BenchmarkGemm reports GFLOP/s and the fraction of the multiply-add peak, which is measured in turn with the products
// since cores are shared and clocks vary. Both are the best of the run.
func BenchmarkGemm(b *testing.B) {
	for _, x := range sets() {
		if x == &portable {
			continue
		}
		if x.peakDot == nil { // in fp32 the others equal avx512
			benchShapesWith(b, x, "fp32", kinds{})
		}
		benchShapesWith(b, x, "bf16", kinds{a: true, b: true})
		benchShapesWith(b, x, "bf16-out", kinds{a: true, b: true, c: true})
	}
}

func benchShapesWith(b *testing.B, x *isa, kind string, half kinds) {
	for workers := 1; workers <= 2; workers++ {
		p := pool.New(workers)
		defer p.Close()
		e := newEngine(p, x)
		for _, shape := range benchShapes {
			for form := NN; form <= TNB; form++ {
				if form == TNB && (!half.a || x.tiles[0][0] == nil) {
					continue // does the same as TN
				}
				name := fmt.Sprintf("%s/%s/workers=%d/%dx%dx%d/%s", x.name, kind, workers, shape[0], shape[1], shape[2], form)
				b.Run(name, func(b *testing.B) { benchGemm(b, e, workers, form, shape, half) })
			}
		}
	}
}

func benchGemm(b *testing.B, e *Engine, workers int, form Form, shape [3]int, half kinds) {
	m, n, k := shape[0], shape[1], shape[2]
	a, w, c := benchMatrix(b, m, k, half.a), benchMatrix(b, k, n, half.b), benchMatrix(b, m, n, half.c)
	switch form {
	case NT:
		w.Stride = k
	case TN, TNB:
		a.Stride = m
	}
	loop, flopsPerRound := e.isa.peak, e.isa.peakFlops
	if half.a && half.b && e.isa.peakDot != nil {
		loop, flopsPerRound = e.isa.peakDot, e.isa.peakDotFlops
	}
	flops := 2 * float64(m) * float64(n) * float64(k)
	best, peak := 0.0, 0.0
	for b.Loop() {
		for start := time.Now(); time.Since(start) < time.Millisecond; { // keep the pool's workers awake
			start := time.Now()
			e.Gemm(form, m, n, k, a, w, c, Init{})
			best = max(best, flops/time.Since(start).Seconds())
		}
		peak = max(peak, rate(loop, flopsPerRound, workers, 200*time.Microsecond))
	}
	peak = max(peak, rate(loop, flopsPerRound, workers, 20*time.Millisecond))
	b.ReportMetric(best/1e9, "GFLOP/s")
	b.ReportMetric(100*best/peak, "%peak")
}

func benchMatrix(b *testing.B, rows, cols int, half bool) Matrix {
	floats := hugeFloats(b, rows*cols)
	if half {
		h := unsafe.Slice((*uint16)(unsafe.Pointer(&floats[0])), rows*cols)
		for i := range h {
			h[i] = float16.ToBF16(float32(i%17) / 17)
		}
		return Matrix{Half: h, Stride: cols}
	}
	for i := range floats {
		floats[i] = float32(i%17) / 17
	}
	return Matrix{Data: floats, Stride: cols}
}

// BenchmarkStream reports how fast one row is multiplied by matrices that come from memory: of SmolLM2-135M, and larger.
func BenchmarkStream(b *testing.B) {
	x, p := sets()[0], pool.New(2)
	defer p.Close()
	e := newEngine(p, x)
	data := benchMatrix(b, 400, 1<<18, false).Data
	for _, half := range []bool{false, true} {
		kind, perFloat := "fp32", 1
		if half {
			kind, perFloat = "bf16", 2
		}
		for _, form := range []Form{NT, NN} {
			for _, s := range [][2]int{{1536, 576}, {576, 1536}, {8192, 2048}, {2048, 8192}} {
				n, k := s[0], s[1]
				w := Matrix{Stride: n}
				if form == NT {
					w.Stride = k
				}
				a, c := benchMatrix(b, 1, k, half), benchMatrix(b, 1, n, half)
				b.Run(fmt.Sprintf("%s/%dx%d/%s", kind, n, k, form), func(b *testing.B) {
					floats := n * k / perFloat
					var rates []float64
					for b.Loop() {
						start, bytes := time.Now(), 0
						for i := 0; i+floats <= len(data); i += floats {
							w.Data = data[i : i+floats]
							if half {
								w.Data, w.Half = nil, unsafe.Slice((*uint16)(unsafe.Pointer(&data[i])), n*k)
							}
							e.Gemm(form, 1, n, k, a, w, c, Init{})
							bytes += 4 * floats
						}
						rates = append(rates, float64(bytes)/time.Since(start).Seconds())
					}
					b.ReportMetric(stat.Median(rates)/1e9, "GB/s")
				})
			}
		}
	}
}

// BenchmarkSerial measures the small products inside attention, all in cache.
func BenchmarkSerial(b *testing.B) {
	x := sets()[0]
	for _, shape := range [][3]int{{64, 64, 64}, {64, 128, 64}, {64, 64, 128}, {128, 128, 128}} {
		for form := NN; form <= TN; form++ {
			b.Run(fmt.Sprintf("%dx%dx%d/%s", shape[0], shape[1], shape[2], form), func(b *testing.B) {
				m, n, k := shape[0], shape[1], shape[2]
				s := &Serial{isa: x}
				a, w, c := benchMatrix(b, m, k, false), benchMatrix(b, k, n, false), benchMatrix(b, m, n, false)
				switch form {
				case NT:
					w.Stride = k
				case TN:
					a.Stride = m
				}
				best, peak := time.Hour, 0.0
				for b.Loop() {
					start := time.Now()
					for range 20 {
						s.Gemm(form, m, n, k, a, w, c, Init{})
					}
					best = min(best, time.Since(start)/20)
				}
				peak = rate(x.peak, x.peakFlops, 1, 20*time.Millisecond)
				flops := 2 * float64(m) * float64(n) * float64(k) / best.Seconds()
				b.ReportMetric(flops/1e9, "GFLOP/s")
				b.ReportMetric(100*flops/peak, "%peak")
			})
		}
	}
}
