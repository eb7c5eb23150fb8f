//go:build linux

package cuda

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/kernel"
)

// TestEmbeddedSums: gradients of embeddings are one chain per element, tokens ascending, and have the
// bits of the CPU's kernel, whatever the tokens are.
func TestEmbeddedSums(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	embeddedSums(t, machine, 8)
}

func TestCompiledEmbeddedSums(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	embeddedSums(t, compiled, 3)
}

func embeddedSums(t *testing.T, machine maker, usual int) {
	t.Helper()
	cores := kernel.NewEnv(1)
	defer cores.Close()
	d, _ := machine(t, Options{}, imageBytes)
	again, _ := machine(t, Options{Serial: true}, imageBytes)
	kinds := []struct {
		name           string
		vocab, n, cols int
		id             func(r *rand.Rand, i int) int
	}{
		{"one", 3000, 1, 40, func(*rand.Rand, int) int { return 2999 }},
		{"equal", 700, 1100, 12, func(*rand.Rand, int) int { return 513 }}, // more than a block looks at together
		{"edges", 513, 90, 260, func(_ *rand.Rand, i int) int { return []int{0, 512, 256, 255}[i%4] }},
		{"turns", 1025, 1200, 8, func(_ *rand.Rand, i int) int { return i % 1025 }},
		{"frequent", 2000, 2100, 7, func(r *rand.Rand, _ int) int { return r.IntN(1 + r.IntN(2000)) }},
		{"runs", 260, 500, 16, func(_ *rand.Rand, i int) int { return i / 100 * 64 }},
	}
	all := make([]int, 4*len(kinds)) // of each kind, both types, each with acc and without
	for i := range all {
		all[i] = i
	}
	for _, i := range casesOf(all, usual) {
		c, dt, acc := kinds[i/4], []graph.DType{graph.F32, graph.BF16}[(i/2+i/12)%2], (i+i/4)%2 == 1
		t.Run(fmt.Sprint(c.name, " ", dt, " ", acc), func(t *testing.T) {
			s := &sample{Rand: rand.New(rand.NewPCG(7, uint64(c.n))), image: make([]byte, imageBytes), wide: c.cols%4 == 0, float: dt}
			s.call = device.Call{Op: graph.EmbedBwd, Attr: graph.Attr{Acc: acc}}
			s.f32(c.vocab, c.cols)
			s.mat(c.n, c.cols)
			i := -1
			s.fill(graph.I32, c.n, 1, func() float64 { i++; return float64(c.id(s.Rand, i)) })
			want := slices.Clone(s.image)
			kernel.Lookup(graph.EmbedBwd).Fast(cores, &s.call.Attr, []kernel.Tensor{tensor(want, s.call.Args[0]), tensor(want, s.call.Args[1]), tensor(want, s.call.Args[2])})
			for _, d := range []*Device{d, again} {
				if !bytes.Equal(execute(t, d, s.call, s.image), want) {
					t.Fatal("the CPU has other bits")
				}
			}
		})
	}
}

// TestEmbeddedParts: more tokens than scratch memory has room for are processed in parts that omit none
// and fit into it.
func TestEmbeddedParts(t *testing.T) {
	const vocab, n, cols, room = 50, 1000, 16, 20 * 300
	m := func(d graph.DType, rows, cols int) device.Operand {
		return device.Operand{DType: d, Rows: rows, Cols: cols, Stride: cols}
	}
	small := elsewhere
	small.room = room
	works, err := small.build(&device.Call{Op: graph.EmbedBwd, Attr: graph.Attr{Acc: true}, Args: []device.Operand{m(graph.F32, vocab, cols), m(graph.BF16, n, cols), m(graph.I32, n, 1)}})
	if err != nil {
		t.Fatal(err)
	}
	at := 0
	for i, w := range works {
		a := w.launch.args
		if got := int(a.t[2].p-uint64(small.base[0])) / 4; got != at || a.t[1].p-uint64(small.base[0]) != uint64(2*cols*at) || a.t[1].rows != a.t[2].rows || a.t[1].rows*20 > room {
			t.Errorf("launch %d: %d tokens from %d on, want them from %d on", i, a.t[1].rows, got, at)
		}
		at += int(a.t[1].rows) * (i % 2)
	}
	if at != n || len(works) != 8 {
		t.Errorf("%d launches for %d of %d tokens", len(works), at, n)
	}
}
