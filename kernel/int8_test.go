package kernel

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// int8s returns weights in int8, with gaps between rows, and the same numbers in another type.
func (m *maker) int8s(d graph.DType, rows, cols int, unit float32) (q, wide Tensor) {
	gap := m.IntN(3)
	q, wide = NewTensor(graph.I8, rows, cols+gap), m.mat(d, rows, cols, 1)
	q.Cols, q.Unit = cols, unit
	for r := range rows {
		for c := range cols {
			x := int8(m.IntN(255) - 127)
			q.I8[r*q.Stride+c] = x
			wide.Set(r, c, float64(float32(x)*unit))
		}
	}
	return q, wide
}

// TestInt8Reads: operators that read weights in int8 have the bits of those that read the same numbers in fp32 or bf16, however many
// panels a product takes, and the reference reads the same numbers.
func TestInt8Reads(t *testing.T) {
	e := NewEnv(2)
	defer e.Close()
	for seed := range uint64(testkit.Count(10, 60, 200)) {
		m := &maker{Rand: rand.New(rand.NewPCG(seed, 8))}
		e.panelElems = 1 + m.IntN(1<<13)
		n, in, out := 1+m.IntN(40), 1+m.IntN(300), 1+m.IntN(300)
		a := graph.Attr{WT: m.IntN(2) == 0, Acc: m.IntN(2) == 0, Unit: 1. / 256}
		d := []graph.DType{graph.F32, graph.BF16}[m.IntN(2)]
		rows, cols := in, out
		if a.WT {
			rows, cols = out, in
		}
		w, wide := m.int8s(d, rows, cols, float32(a.Unit))
		tokens := NewTensor(graph.I32, n, 1)
		for i := range n {
			tokens.I32[i] = int32(m.IntN(rows))
		}
		pos, widePos := m.int8s(d, n, cols, float32(a.Unit))
		for _, c := range []struct {
			op    graph.Op
			attr  graph.Attr
			t     []Tensor
			at    int    // of w
			other Tensor // positions, in the other type
		}{
			{op: graph.Linear, attr: a, t: []Tensor{m.mat(d, n, out, 1), m.mat(d, n, in, 1), w, {}, {}}, at: 2},
			{op: graph.LinearDX, attr: a, t: []Tensor{m.mat(d, n, in, 1), m.mat(d, n, out, 1), w, {}}, at: 2},
			{op: graph.Embed, attr: graph.Attr{Unit: a.Unit, Seq: n, Scale: float64(m.IntN(2)) * 3}, t: []Tensor{m.mat(d, n, cols, 1), tokens, w, pos}, at: 2, other: widePos},
		} {
			got, want, plain := copies(c.t), copies(c.t), copies(c.t)
			if want[c.at] = wide; !c.other.Absent() {
				want[3] = c.other
			}
			Lookup(c.op).Fast(e, &c.attr, got)
			Lookup(c.op).Fast(e, &c.attr, want)
			Lookup(c.op).Reference(e, &c.attr, plain)
			for r := range got[0].Rows {
				for k := range got[0].Cols {
					x, y, ref := got[0].At(r, k), want[0].At(r, k), plain[0].At(r, k)
					if x != y || math.Abs(x-ref) > 0.02*(1+math.Abs(ref)) {
						t.Fatalf("seed %d: %v in %v: element %d, %d is %v, of plain weights %v, by the reference %v", seed, c.op, d, r, k, x, y, ref)
					}
				}
			}
		}
	}
}

// TestInt8Updates: updates of weights in int8 are those of the same weights in fp32, rounded up or down by the numbers of elements,
// wherever a call ends. A skipped step leaves their bits.
func TestInt8Updates(t *testing.T) {
	seed := testkit.Seed(t)
	r := rand.New(rand.NewPCG(seed, 10))
	e := NewEnv(2)
	defer e.Close()
	const n, unit = 20000, 1. / 64
	a := graph.Attr{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, Decay: 0.1, Param: 3, Unit: unit}
	whole := updated(r, graph.F32, graph.F32, n)
	held := copies(whole)
	held[0] = NewTensor(graph.I8, 1, n)
	held[0].Unit = unit
	for i := range n {
		held[0].I8[i] = int8(r.IntN(255) - 127)
		whole[0].F32[i] = float32(held[0].I8[i]) * unit
	}
	for _, list := range [][]Tensor{whole, held} {
		list[graph.AdamWClip] = NewTensor(graph.F32, 1, 2)
		list[graph.AdamWClip].F32[0] = 1
		list[graph.AdamWScalars].F32[graph.ScalarChance] = graph.Chance(seed, 4)
	}
	before := slices.Clone(held[0].I8)
	Lookup(graph.AdamW).Fast(e, &a, whole)
	low, high := graph.ChanceKey(graph.Chance(seed, 4), a.Param, 0)
	want := make([]int8, n)
	draw8(want, whole[0].F32, unit, 0, low, high)
	at := r.IntN(n)
	for _, piece := range [][2]int{{0, at}, {at, n}} {
		cut, b := slices.Clone(held), a
		b.First = piece[0]
		for _, i := range []int{0, 1, 2, 3} {
			cut[i] = part(held[i], 0, 1, piece[0], piece[1])
		}
		Lookup(graph.AdamW).Fast(e, &b, cut)
	}
	if !slices.Equal(held[0].I8, want) || slices.Equal(want, before) {
		t.Error("the update is not that of the same weights in fp32, rounded")
	}
	held[graph.AdamWClip].F32[0] = 0
	Lookup(graph.AdamW).Fast(e, &a, held)
	if !slices.Equal(held[0].I8, want) {
		t.Error("a skipped step changes weights")
	}
}

// TestRoundInt8: over all random numbers the mean is the number that is rounded; whole numbers stay, what is beyond
// the range ends there, and what is not finite stays not finite.
func TestRoundInt8(t *testing.T) {
	const draws = 1 << 16
	for _, x := range []float32{0, 0.25, -0.25, 1e-3, -63.7, 126.99, -126.5, 5} {
		sum := 0
		for u := range uint32(draws) {
			sum += int(graph.RoundInt8(x, u))
		}
		if got := float64(sum) / draws; math.Abs(got-float64(x)) > 1./draws {
			t.Errorf("%v is rounded to %v on average", x, got)
		}
	}
	for x, want := range map[float32]int8{3: 3, -127: -127, 200: 127, -1e9: -127, 2.49: 2, 2.51: 3, -0.51: -1} {
		if got := graph.RoundInt8(x, draws/2); got != want {
			t.Errorf("%v is nearest to %d, not to %d", x, want, got)
		}
	}
	for _, x := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		if got := graph.FromInt8(graph.RoundInt8(float32(x), 0)); got == got {
			t.Errorf("%v becomes %v", x, got)
		}
	}
}
