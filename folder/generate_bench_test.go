package folder

import (
	"context"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/athanor-llm/athanor/bench"
	"github.com/athanor-llm/athanor/device/cpu"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/stat"
	"github.com/athanor-llm/athanor/kernel/gemm"
	"github.com/athanor-llm/athanor/kernel/pool"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/model/family"
	"github.com/athanor-llm/athanor/session"
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
	check(b, g.session.Load(func(_ model.Param, _ int, dst []float32) error {
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

// BenchmarkSlots makes a step of 32 sequences and one of a single sequence in turn, with models with random weights and 100
// tokens in each cache: "times" is how many times as many tokens per second 32 sequences have, "one" how long the single
// sequence's step takes in slots beside that of a Generator, and "products" the part of the step of 32 in which its matrix
// products alone would be computed.
func BenchmarkSlots(b *testing.B) {
	for _, name := range []string{"smollm2-135m", "gpt2"} {
		for _, dtype := range []graph.DType{graph.F32, graph.BF16} {
			b.Run(name+" "+dtype.String(), func(b *testing.B) { stepSlots(b, name, dtype) })
		}
	}
}

func stepSlots(b *testing.B, name string, dtype graph.DType) {
	ctx := context.Background()
	m, err := family.Known(name)
	check(b, err)
	const sequences, read = 32, 100
	s := &Slots{Context: 128, Sequences: sequences, Vocab: m.Vocab, logits: make([]float64, sequences*m.Vocab)}
	check(b, s.open(ctx, &Folder{Model: m}, unbounded(cpu.New(cpu.Options{})), usefulBlocks(s.Context), dtype))
	defer s.Close()
	g, err := newGenerator(ctx, m, unbounded(cpu.New(cpu.Options{})), s.Context, dtype)
	check(b, err)
	defer g.Close()
	for _, of := range []*session.Session{g.session, s.session} {
		r := rand.New(rand.NewPCG(1, 1))
		check(b, of.Load(func(_ model.Param, _ int, dst []float32) error {
			for i := range dst {
				dst[i] = (r.Float32() - 0.5) / 16
			}
			return nil
		}))
	}
	prompt := make([]int32, read)
	var list []Placed
	for slot := range sequences {
		for at, next := -1, 0; at != next; {
			at = next
			next, err = s.read(ctx, slot, prompt, at)
			check(b, err)
		}
		list = append(list, Placed{1, slot, read - 1})
	}
	check(b, g.Extend(ctx, prompt...))
	multiply := newProducts(m, sequences, dtype)
	took := func(f func() error) float64 {
		start := time.Now()
		check(b, f())
		return time.Since(start).Seconds()
	}
	var alone, one, many, products []float64
	for b.Loop() {
		g.Keep(prompt)
		alone = append(alone, took(func() error { return g.Extend(ctx, 1) }))
		many = append(many, took(func() error { return s.Step(ctx, list) }))
		one = append(one, took(func() error { return s.Step(ctx, list[:1]) }))
		products = append(products, took(multiply))
	}
	b.ReportMetric(1/stat.Median(alone), "tokens/s")
	b.ReportMetric(sequences/stat.Median(many), "tokens/s-of-32")
	b.ReportMetric(sequences*stat.Median(alone)/stat.Median(many), "times")
	b.ReportMetric(stat.Median(one)/stat.Median(alone), "one")
	b.ReportMetric(stat.Median(products)/stat.Median(many), "products")
}

// newProducts returns a function that multiplies so many rows by each matrix of a model with tied embeddings.
func newProducts(m *model.Model, rows int, dtype graph.DType) func() error {
	e := gemm.New(pool.New(runtime.GOMAXPROCS(0)))
	matrix := func(r, c int) gemm.Matrix { // written, since all pages that nobody has written are one page in the cache
		if dtype == graph.BF16 {
			return gemm.Matrix{Half: slices.Repeat([]uint16{0x3c00}, r*c), Stride: c}
		}
		return gemm.Matrix{Data: slices.Repeat([]float32{1.0 / 128}, r*c), Stride: c}
	}
	var list []func()
	for i, p := range m.Params() {
		if p.Rows < 2 || i == 1 && !m.Rotary() { // a vector, or learned positions
			continue
		}
		form, in, out := gemm.NT, p.Cols, p.Rows
		if m.InOut() && i > 0 {
			form, in, out = gemm.NN, p.Rows, p.Cols
		}
		x, w, y := matrix(rows, in), matrix(p.Rows, p.Cols), matrix(rows, out)
		list = append(list, func() { e.Gemm(form, rows, out, in, x, w, y, gemm.Init{}) })
	}
	return func() error {
		for _, f := range list {
			f()
		}
		return nil
	}
}
