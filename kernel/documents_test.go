package kernel

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// documents returns the bounds of the documents of the sequence.
func (x *whole) documents() []int {
	at := []int{0}
	for r := 1; r < x.n; r++ {
		if x.starts.At(r, 0) == float64(r) {
			at = append(at, r)
		}
	}
	return append(at, x.n)
}

// TestDocuments: a sequence of several documents gives the results of each document
// as its own sequence, and the same bits on any number of workers.
func TestDocuments(t *testing.T) {
	one, three := NewEnv(1), NewEnv(3)
	defer one.Close()
	defer three.Close()
	several, rounds := 0, testkit.Count(60, 300, 300)
	for seed := range uint64(rounds) {
		m := &maker{Rand: rand.New(rand.NewPCG(seed, 97)), mixed: seed%2 == 1}
		x := m.whole(graph.F32)
		if x.starts.Absent() {
			continue
		}
		x.run(three, 0, x.n, false)
		x.run(three, 0, x.n, true)
		have := x.results()
		x.run(one, 0, x.n, false)
		x.run(one, 0, x.n, true)
		if err := sameBits(x.results(), have); err != nil {
			t.Fatalf("seed %d, %+v: on one worker: %v", seed, x.Attr, err)
		}
		docs := x.documents()
		several += min(len(docs)-2, 1)
		for i, lo := range docs[:len(docs)-1] {
			y := x.document(lo, docs[i+1])
			y.run(one, 0, y.n, false)
			y.run(one, 0, y.n, true)
		}
		if err := near(have, x.results(), roundedFactors(x.qkv), 1); err != nil {
			t.Fatalf("seed %d, %+v %v, documents at %v: %v", seed, x.Attr, x.qkv.DType, docs, err)
		}
	}
	if several < rounds/6 {
		t.Errorf("%d samples have several documents", several)
	}
}

// document returns rows [lo, hi) as their own sequence.
func (x *whole) document(lo, hi int) *whole {
	y := *x
	y.n, y.Seq, y.starts = hi-lo, hi-lo, Tensor{}
	for _, p := range []*Tensor{&y.qkv, &y.dqkv, &y.dkv, &y.o, &y.do, &y.lse, &y.deltas} {
		*p = part(*p, lo, hi, 0, p.Cols)
	}
	return &y
}

// TestOneDocument: starts with one document per sequence change no bit.
func TestOneDocument(t *testing.T) {
	e := NewEnv(2)
	defer e.Close()
	for seed := range uint64(testkit.Count(6, 40, 100)) {
		m := &maker{Rand: rand.New(rand.NewPCG(seed, 96)), mixed: seed%2 == 1}
		x := m.whole(graph.F32)
		var have [2][]Tensor
		for i, starts := range []Tensor{{}, NewTensor(graph.I32, x.n, 1)} {
			x.starts = starts
			x.run(e, 0, x.n, false)
			x.run(e, 0, x.n, true)
			have[i] = x.results()
		}
		if err := sameBits(have[1], have[0]); err != nil {
			t.Fatalf("seed %d, %+v: %v", seed, x.Attr, err)
		}
	}
}

// TestDocumentsAreSkipped: queries do not read keys of earlier documents, nor keys
// queries of later ones, except for a few rows around the bounds.
func TestDocumentsAreSkipped(t *testing.T) {
	const n, cut = 900, 640 // a multiple of all cuts of keys and queries except blocks of keys
	for _, workers := range []int{1, 16} {
		e := NewEnv(workers) // one worker: all products of a head in one task; many: separate tasks for keys and queries
		defer e.Close()
		m := &maker{Rand: rand.New(rand.NewPCG(1, 95))}
		x := m.wholeOf(graph.Attr{Seq: n, Heads: 2, KVHeads: 2, HeadDim: 16, Scale: 0.25}, graph.F32, graph.F32)
		x.starts = NewTensor(graph.I32, n, 1)
		for r := cut; r < n; r++ {
			x.starts.Set(r, 0, cut)
		}
		run := func() []Tensor {
			x.run(e, 0, n, false)
			x.run(e, 0, n, true)
			return x.results()
		}
		want := run()
		for r := range cut {
			for c := range x.qkv.Cols {
				x.qkv.Set(r, c, poison)
			}
		}
		have := run()
		for i := range have {
			have[i], want[i] = part(have[i], cut, n, 0, have[i].Cols), part(want[i], cut, n, 0, want[i].Cols)
		}
		if err := sameBits(have, want); err != nil {
			t.Errorf("%d workers: %v", workers, err)
		}
	}
}

// TestStartsOfAnything: whatever starts holds, kernels change only the elements of their
// results: neither operands nor the poisoned gaps between and after rows.
func TestStartsOfAnything(t *testing.T) {
	e := NewEnv(2)
	defer e.Close()
	for seed := range uint64(60) {
		m := &maker{Rand: rand.New(rand.NewPCG(seed, 94))}
		x := m.whole(graph.F32)
		x.starts = NewTensor(graph.I32, x.n, 1)
		for r := range x.n {
			x.starts.I32[r] = int32(m.Uint32())
		}
		all := func() []Tensor { return copies([]Tensor{x.qkv, x.do, x.starts, x.o, x.lse, x.dqkv, x.dkv, x.deltas}) }
		before := all()
		x.run(e, 0, x.n, false)
		x.run(e, 0, x.n, true)
		after := all()
		for i := 3; i < len(after); i++ { // results
			blank(&before[i])
			blank(&after[i])
		}
		if err := sameBits(after, before); err != nil {
			t.Fatalf("seed %d, %+v: %v", seed, x.Attr, err)
		}
	}
}

// BenchmarkDocuments measures forward and backward attention of a sequence of
// equally long documents with GPT-2's heads, in turn with the same sequence as one
// document and with each document as its own sequence.
func BenchmarkDocuments(b *testing.B) {
	const n = 4096
	e := NewEnv(0)
	defer e.Close()
	m := &maker{Rand: rand.New(rand.NewPCG(1, 93))}
	joined := m.wholeOf(graph.Attr{Seq: n, Heads: 12, KVHeads: 12, HeadDim: 64, Scale: 0.125}, graph.F32, graph.F32)
	for _, length := range []int{100, 300, 1000, 3000} {
		b.Run(fmt.Sprint(length), func(b *testing.B) {
			separate, alone := *joined, *joined
			separate.starts, alone.Seq = NewTensor(graph.I32, n, 1), length
			for r := range n {
				separate.starts.I32[r] = int32(r / length * length)
			}
			var times [3][]float64
			for b.Loop() {
				for i, x := range []*whole{joined, &separate, &alone} {
					began := time.Now()
					x.run(e, 0, n, false)
					x.run(e, 0, n, true)
					times[i] = append(times[i], time.Since(began).Seconds())
				}
			}
			for _, list := range times {
				slices.Sort(list)
			}
			median := func(i int) float64 { return times[i][len(times[i])/2] }
			b.ReportMetric(1000*median(0), "ms-joined")
			b.ReportMetric(1000*median(1), "ms-separate")
			b.ReportMetric(1000*median(2), "ms-alone")
			b.ReportMetric(median(0)/median(1), "times")
		})
	}
}
