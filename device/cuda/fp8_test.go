//go:build linux

package cuda

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestFP8Panels: products in FP8 that are computed in several parts, for want of scratch memory, give the reference's results, with the
// library, which gets all that it takes, and without; and any rows by themselves give the same bits.
func TestFP8Panels(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	codesAgree(t, machine, 1, 2, 6)
}

// TestCompiledFP8Panels: the same for kernels made by NVIDIA's compiler.
func TestCompiledFP8Panels(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	codesAgree(t, compiled, 2)
}

func codesAgree(t *testing.T, machine maker, usual ...uint64) {
	t.Helper()
	for _, library := range []bool{false, true} {
		d, _ := machine(t, Options{}, imageBytes)
		if library {
			d = openedWith(t, withLibrary(t), Options{}, imageBytes)
		}
		d.arenas.room = 2 * 33 * (192 + 4) // for 32 columns of what is deepest
		for _, seed := range seedsOf(t, 8, usual...) {
			for _, op := range []graph.Op{graph.Linear, graph.LinearDX} {
				s := codesSample(op, seed)
				s.poison()
				works, err := d.plan(d.target(), &s.call)
				if err != nil {
					t.Fatal(err)
				}
				products := 0
				for _, w := range works {
					if w.product != nil && w.product.a.DType == graph.U8 {
						products++
					}
				}
				y := s.call.Args[0]
				if want := y.Cols % codesPack; library && (want == 0 && y.Stride%8 == 0) != (products > 2) {
					t.Errorf("seed %d: %v: the library gets %d of %d pieces of work", seed, s, products, len(works))
				}
				got := execute(t, d, s.call, s.image)
				if err := s.check(bytes.Clone(got), s.reference()); err != nil {
					t.Fatalf("library %v, seed %d: %v: %v", library, seed, s, err)
				}
				if rows := y.Rows; rows > 1 && !bytes.Equal(got, executeAll(t, d, []device.Call{s.cut(0, rows/2), s.cut(rows/2, rows-rows/2)}, s.image)) {
					t.Errorf("seed %d: %v: in two parts the bits differ", seed, s)
				}
			}
		}
	}
}

// codesSample is a product in FP8 that takes several panels; every other one suits the library.
func codesSample(op graph.Op, seed uint64) *sample {
	s := &sample{Rand: rand.New(rand.NewPCG(seed, 78)), image: make([]byte, imageBytes), wide: seed%2 == 0, acc: seed/2%2 > 0, tol: 2e-5}
	s.float = []graph.DType{graph.BF16, graph.F32}[seed/4%2]
	for i := range s.image {
		s.image[i] = 0xff
	}
	s.call = device.Call{Op: op, Attr: graph.Attr{WT: s.IntN(2) == 0, FP8: true, Acc: s.acc}}
	n, x, y := 1+s.IntN(40), 130+s.IntN(60), 16*(5+s.IntN(3)) // inputs and outputs of the product
	if seed%2 > 0 {
		y += 1 + s.IntN(15)
	}
	s.mat(n, y)
	s.mat(n, x)
	if in, out := x, y; op == graph.Linear {
		s.weight(s.float, in, out)
	} else {
		s.weight(s.float, out, in)
	}
	return s
}

// TestFP8Refused: a card whose tensor cores have no FP8, and inputs that scratch memory has no room for, are refused.
func TestFP8Refused(t *testing.T) {
	op := func(rows, cols int) device.Operand {
		return device.Operand{Tier: device.DeviceTier, DType: graph.BF16, Rows: rows, Cols: cols, Stride: cols}
	}
	call := func(inputs int) *device.Call {
		return &device.Call{Op: graph.Linear, Attr: graph.Attr{FP8: true, WT: true}, Args: []device.Operand{op(4, 64), op(4, inputs), op(64, inputs)}}
	}
	old := elsewhere
	old.fp8 = false
	if _, err := old.build(call(64)); err == nil || !strings.Contains(err.Error(), "no FP8") || !strings.Contains(err.Error(), "hint: ") {
		t.Errorf("an older card: %v", err)
	}
	if _, err := elsewhere.build(call(2 << 20)); err == nil || !strings.Contains(err.Error(), "scratch memory") || !strings.Contains(err.Error(), "hint: ") {
		t.Errorf("too many inputs: %v", err)
	}
	for capability, want := range map[int]bool{80: false, 86: false, 89: true, 90: true, 100: true, 120: true} {
		if c := (chip{capability: capability}); c.fp8() != want {
			t.Errorf("compute capability %d has FP8: %v", capability, !want)
		}
	}
}
