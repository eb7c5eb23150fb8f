//go:build linux

package cuda

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
)

// TestNF4Panels: weights in 4 bits that are written out in several parts, for want of scratch
// memory, give the reference's results, and any rows by themselves the same bits.
func TestNF4Panels(t *testing.T) { panelsAgree(t, machine) }

// TestCompiledNF4Panels: so they do where NVIDIA's compiler made the kernels.
func TestCompiledNF4Panels(t *testing.T) { panelsAgree(t, compiled) }

func panelsAgree(t *testing.T, machine maker) {
	t.Helper()
	for _, library := range []bool{false, true} {
		d, _ := machine(t, Options{}, imageBytes)
		if library {
			d = openedWith(t, withLibrary(t), Options{}, imageBytes)
		}
		d.room = 64 * 192 * 4 // for 64 columns of what is widest
		panels, first := 0, fresh(t)
		for seed := first; seed < first+8; seed++ {
			for _, op := range []graph.Op{graph.Linear, graph.LinearDX} {
				s := packedSample(op, seed)
				s.poison()
				works, err := d.plan(d.target(), &s.call)
				if err != nil {
					t.Fatal(err)
				}
				panels += len(works) / 2
				got := execute(t, d, s.call, s.image)
				if err := s.check(bytes.Clone(got), s.reference()); err != nil {
					t.Fatalf("library %v, seed %d: %v: %v", library, seed, s, err)
				}
				rows := s.call.Args[0].Rows
				if !bytes.Equal(got, executeAll(t, d, []device.Call{s.cut(0, rows/2), s.cut(rows/2, rows-rows/2)}, s.image)) && rows > 1 {
					t.Errorf("seed %d: %v: in two parts the bits differ", seed, s)
				}
			}
		}
		if panels < 3*16 {
			t.Errorf("%d panels in 16 samples", panels)
		}
	}
}

// packedSample is a call with a weight in 4 bits that takes several panels.
func packedSample(op graph.Op, seed uint64) *sample {
	s := &sample{Rand: rand.New(rand.NewPCG(seed, 77)), image: make([]byte, imageBytes), wide: seed%2 == 0, tol: 2e-5}
	s.float = []graph.DType{graph.F32, graph.BF16}[seed/2%2]
	for i := range s.image {
		s.image[i] = 0xff
	}
	s.call = device.Call{Op: op, Attr: graph.Attr{WT: s.IntN(2) == 0}}
	n, x, y := 1+s.IntN(20), 130+s.IntN(60), 300+s.IntN(100) // inputs and outputs of the product
	s.mat(n, y)
	s.mat(n, x)
	if op == graph.LinearDX {
		s.packed(y, x)
		return s
	}
	s.packed(x, y)
	s.mat(1, y)
	s.mat(n, y)
	return s
}

// TestNF4TooWide: inputs for which scratch memory has no room are refused.
func TestNF4TooWide(t *testing.T) {
	op := func(rows, cols int) device.Operand {
		return device.Operand{DType: graph.BF16, Rows: rows, Cols: cols, Stride: cols}
	}
	const wide = 1 << 20
	c := device.Call{Op: graph.Linear, Attr: graph.Attr{NF4: true, WT: true},
		Args: []device.Operand{op(4, 64), op(4, wide), op(64, graph.NF4Cols(wide, graph.BF16))}}
	if _, err := elsewhere.build(&c); err == nil {
		t.Error("built")
	}
}
