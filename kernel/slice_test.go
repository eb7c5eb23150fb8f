package kernel

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// whole is attention and its backward pass on one sequence. The operands are column bands
// of larger matrices, as in a layer.
type whole struct {
	graph.Attr
	n, width           int // rows; columns of q
	qkv, dqkv, dkv     Tensor
	o, do, lse, deltas Tensor
	starts             Tensor // absent: one document
	sinks              Tensor // absent: none
}

// whole returns a random sequence.
func (m *maker) whole(sum graph.DType) *whole {
	a, _ := m.heads()
	x := m.wholeOf(a, m.float(), sum)
	x.starts = m.starts(a, x.n, x.n)
	return x
}

func (m *maker) wholeOf(a graph.Attr, d, sum graph.DType) *whole {
	x := &whole{Attr: a, n: a.Seq, width: a.Heads * a.HeadDim}
	kv := 2 * a.KVHeads * a.HeadDim
	x.qkv, x.dqkv, x.dkv = m.mat(d, x.n, x.width+kv, 1), m.mat(d, x.n, x.width+kv, 1), m.mat(sum, x.n, kv, 1)
	x.o, x.do = m.mat(d, x.n, x.width, 1), m.mat(d, x.n, x.width, 1)
	x.lse, x.deltas = m.f32(x.n, a.Heads), m.f32(x.n, a.Heads)
	return x
}

// results returns copies of what a pass writes.
func (x *whole) results() []Tensor {
	return copies([]Tensor{x.o, x.lse, x.dqkv, x.dkv, x.deltas})
}

// run computes queries [lo, hi), forward or backward.
func (x *whole) run(e *Env, lo, hi int, back bool) {
	rows := func(t Tensor) Tensor {
		if t.Absent() {
			return t
		}
		return part(t, lo, hi, 0, t.Cols)
	}
	q, kv := part(x.qkv, lo, hi, 0, x.width), part(x.qkv, 0, hi, x.width, x.qkv.Cols)
	if !back {
		Lookup(graph.Attention).Fast(e, &x.Attr, []Tensor{rows(x.o), rows(x.lse), q, kv, rows(x.starts), x.sinks})
		return
	}
	a := x.Attr
	a.Acc = hi < x.n
	Lookup(graph.AttentionBwd).Fast(e, &a, []Tensor{part(x.dqkv, lo, hi, 0, x.width), part(x.dkv, 0, hi, 0, x.dkv.Cols),
		rows(x.deltas), rows(x.do), q, kv, rows(x.o), rows(x.lse), rows(x.starts)})
}

// cuts divides the rows at random multiples of unit.
func (x *whole) cuts(m *maker, unit int) []int {
	at := []int{0}
	for r := unit; r < x.n; r += unit {
		if m.IntN(3) == 0 {
			at = append(at, r)
		}
	}
	return append(at, x.n)
}

// TestSlices: a sequence cut into slices gives the bits of the whole sequence, on any
// number of workers: forward in ascending order, cut anywhere, and backward in descending
// order, cut at multiples of graph.SliceUnit. A bf16 dkv is rounded after every slice, so
// it is only close.
func TestSlices(t *testing.T) {
	for _, workers := range []int{1, 2, 5} {
		e := NewEnv(workers)
		defer e.Close()
		for seed := range uint64(testkit.Count(6, 50, 150)) {
			m := &maker{Rand: rand.New(rand.NewPCG(seed, 99)), mixed: seed%2 == 1}
			sum := graph.DType(graph.F32)
			if seed%5 == 0 {
				sum = graph.BF16
			}
			x := m.whole(sum)
			x.sinks = m.sinks(x.Attr)
			x.run(e, 0, x.n, false)
			x.run(e, 0, x.n, true)
			want := x.results()
			forward, backward := x.cuts(m, 1), x.cuts(m, graph.SliceUnit(x.Seq))
			for i := range len(forward) - 1 {
				x.run(e, forward[i], forward[i+1], false)
			}
			for i := len(backward) - 1; i > 0; i-- {
				x.run(e, backward[i-1], backward[i], true)
			}
			got := x.results()
			err := sameBits(got[:3], want[:3])
			if sum == graph.F32 && err == nil {
				err = sameBits(got[3:], want[3:])
			} else if err == nil {
				err = near(got[3:], want[3:], 1.0/128*float64(len(backward)), 0)
			}
			if err != nil {
				t.Fatalf("seed %d, %d workers, %+v, %v: cut at %v and %v: %v", seed, workers, x.Attr, x.qkv.DType, forward, backward, err)
			}
		}
	}
}

// TestSlicesOfWindows: queries whose first key is far inside the sequence sum over the
// same blocks of keys in any slice, in bf16 too.
func TestSlicesOfWindows(t *testing.T) {
	e := NewEnv(2)
	defer e.Close()
	for seed := range uint64(testkit.Count(4, 20, 40)) {
		m := &maker{Rand: rand.New(rand.NewPCG(seed, 92))}
		a := graph.Attr{Seq: 60 + m.IntN(400), Heads: 2, KVHeads: 1, HeadDim: 33, Scale: 0.2, Window: 20 + m.IntN(90)}
		x := m.wholeOf(a, graph.BF16, graph.F32)
		if seed%2 == 0 {
			x.Window, x.starts = 0, m.starts(a, x.n, x.n)
		}
		x.run(e, 0, x.n, false)
		want, at := x.results(), x.cuts(m, 1)
		for i := range len(at) - 1 {
			x.run(e, at[i], at[i+1], false)
		}
		if err := sameBits(x.results(), want); err != nil {
			t.Fatalf("seed %d, %+v, cut at %v: %v", seed, x.Attr, at, err)
		}
	}
}

// TestSlicesAnywhere: a backward pass cut elsewhere is close, not bit-equal.
func TestSlicesAnywhere(t *testing.T) {
	e := NewEnv(2)
	defer e.Close()
	for seed := range uint64(testkit.Count(6, 30, 60)) {
		m := &maker{Rand: rand.New(rand.NewPCG(seed, 98)), mixed: seed%2 == 1}
		x := m.whole(graph.F32)
		x.run(e, 0, x.n, false)
		x.run(e, 0, x.n, true)
		want := x.results()
		at := x.cuts(m, 1)
		for i := len(at) - 1; i > 0; i-- {
			x.run(e, at[i-1], at[i], true)
		}
		if err := near(x.results(), want, roundedFactors(x.qkv), 1); err != nil {
			t.Fatalf("seed %d, %+v: cut at %v: %v", seed, x.Attr, at, err)
		}
	}
}

// TestPosSlices: slices of a sequence have different positions, so the gradient of learned
// positions has the same bits in the backward pass's order of slices.
func TestPosSlices(t *testing.T) {
	e := NewEnv(2)
	defer e.Close()
	for seed := range uint64(30) {
		m := &maker{Rand: rand.New(rand.NewPCG(seed, 97)), mixed: seed%2 == 1}
		seq, c := 2+m.n(), m.n()
		a := graph.Attr{Seq: seq, PosOffset: m.IntN(3)}
		dx := m.any(seq, c)
		whole, slices := m.f32(seq+a.PosOffset, c), m.f32(seq+a.PosOffset, c)
		Lookup(graph.PosBwd).Fast(e, &a, []Tensor{whole, dx})
		for to := seq; to > 0; {
			from := m.IntN(to)
			a.Row0, a.Acc = from, to < seq
			Lookup(graph.PosBwd).Fast(e, &a, []Tensor{slices, part(dx, from, to, 0, c)})
			to = from
		}
		if err := near([]Tensor{slices}, []Tensor{whole}, 0, 0); err != nil {
			t.Fatalf("seed %d, %d rows: %v", seed, seq, err)
		}
	}
}

// BenchmarkSlices times a sequence whole and in four slices, in turn, and reports the
// ratio of times: both do the same arithmetic.
func BenchmarkSlices(b *testing.B) {
	e := NewEnv(0)
	defer e.Close()
	for _, shape := range [][3]int{{1024, 12, 12}, {1024, 12, 4}, {1024, 1, 1}, {4096, 2, 1}} {
		for _, d := range []graph.DType{graph.F32, graph.BF16} {
			seq := shape[0]
			m := &maker{Rand: rand.New(rand.NewPCG(1, 2))}
			x := m.wholeOf(graph.Attr{Seq: seq, Heads: shape[1], KVHeads: shape[2], HeadDim: 64, Scale: 0.125}, d, graph.F32)
			for direction, back := range map[string]bool{"forward": false, "backward": true} {
				x.run(e, 0, seq, false)
				b.Run(fmt.Sprintf("%v/%v/%s", shape, d, direction), func(b *testing.B) {
					var alone, cut time.Duration
					for b.Loop() {
						start := time.Now()
						x.run(e, 0, seq, back)
						middle := time.Now()
						for i := 4; i > 0; i-- {
							x.run(e, seq/4*(i-1), seq/4*i, back)
						}
						alone, cut = alone+middle.Sub(start), cut+time.Since(middle)
					}
					b.ReportMetric(cut.Seconds()/alone.Seconds(), "sliced/whole")
				})
			}
		}
	}
}
