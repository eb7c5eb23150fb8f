package folder

import (
	"context"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/athanor-llm/athanor/bench"
	"github.com/athanor-llm/athanor/device/cpu"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/model/family"
)

// BenchmarkGenerate generates tokens with GPT-2 124M with random weights and compares
// with memory reads in between: "bandwidth" is the speed at which the fastest token
// reads the weights, as a fraction of the fastest memory reads.
func BenchmarkGenerate(b *testing.B) {
	for _, dtype := range []graph.DType{graph.F32, graph.BF16} {
		b.Run(dtype.String(), func(b *testing.B) { generate(b, dtype) })
	}
}

func generate(b *testing.B, dtype graph.DType) {
	ctx := context.Background()
	m, err := family.Known("gpt2")
	check(b, err)
	g, err := newGenerator(ctx, m, unbounded(cpu.New(cpu.Options{})), 256, dtype)
	check(b, err)
	defer g.Close()
	r := rand.New(rand.NewPCG(1, 1))
	check(b, g.session.Load(func(_ string, dst []float32) error {
		for i := range dst {
			dst[i] = (r.Float32() - 0.5) / 16
		}
		return nil
	}))
	memory, err := bench.NewOperators(runtime.GOMAXPROCS(0))
	check(b, err)
	defer memory.Close()
	var bytes int64
	for i, p := range g.session.Graph.Params {
		if i != 1 { // of the learned positions only one row is read
			bytes += dtype.Size() * p.Elems()
		}
	}
	best, total, n := 1e9, 0.0, 0
	for b.Loop() {
		if g.Room() == 0 {
			g.Reset()
		}
		start := time.Now()
		check(b, g.Extend(ctx, int32(n%1000)))
		seconds := time.Since(start).Seconds()
		if total += seconds; seconds < best {
			best = seconds
		}
		if n++; n%8 == 0 {
			check(b, memory.Bandwidth())
		}
	}
	b.ReportMetric(float64(n)/total, "tokens/s")
	b.ReportMetric(1e3*best, "best-ms")
	b.ReportMetric(memory.Peaks.Read/1e9, "read-GB/s")
	b.ReportMetric(float64(bytes)/best/memory.Peaks.Read, "bandwidth")
}
