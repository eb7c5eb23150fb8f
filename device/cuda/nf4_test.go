//go:build linux

package cuda

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/kernel"
)

// TestNF4Panels: weights in 4 bits that are unpacked in several parts, for want of scratch memory, give
// the reference's results, and any rows by themselves give the same bits.
func TestNF4Panels(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	panelsAgree(t, machine, 1, 2)
}

// TestCompiledNF4Panels: the same for kernels made by NVIDIA's compiler.
func TestCompiledNF4Panels(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	panelsAgree(t, compiled, 2)
}

func panelsAgree(t *testing.T, machine maker, usual ...uint64) {
	t.Helper()
	for _, library := range []bool{false, true} {
		d, _ := machine(t, Options{}, imageBytes)
		if library {
			d = openedWith(t, withLibrary(t), Options{}, imageBytes)
		}
		d.arenas.room = 64 * 192 * 4 // for 64 columns of what is widest
		panels, samples := 0, 0
		for _, seed := range seedsOf(t, 4, usual...) { // each type, and both alignments
			for _, op := range []graph.Op{graph.Linear, graph.LinearDX} {
				s := packedSample(op, seed)
				s.poison()
				works, err := d.plan(d.target(), &s.call)
				if err != nil {
					t.Fatal(err)
				}
				panels, samples = panels+len(works)/2, samples+1
				got := execute(t, d, s.call, s.image)
				if err := s.check(bytes.Clone(got), s.reference()); err != nil {
					t.Fatalf("library %v, seed %d: %v: %v", library, seed, s, err)
				}
				rows := s.call.Args[0].Rows
				if rows > 1 && !bytes.Equal(got, executeAll(t, d, []device.Call{s.cut(0, rows/2), s.cut(rows/2, rows-rows/2)}, s.image)) {
					t.Errorf("seed %d: %v: in two parts the bits differ", seed, s)
				}
			}
		}
		if panels < 3*samples {
			t.Errorf("%d panels in %d samples", panels, samples)
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
	s.library()
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

// TestNF4TooWide: inputs that scratch memory has no room for are refused.
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

// TestPackedExperts: experts whose weights are in 4 bits give the bits of the same weights in unpacked
// bf16, on tensor cores of each kind and without.
func TestPackedExperts(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	packedExpertsAgree(t, machine)
}

func TestCompiledPackedExperts(t *testing.T) {
	testkit.Needs(t, testkit.All)
	packedExpertsAgree(t, compiled)
}

func packedExpertsAgree(t *testing.T, machine maker) {
	t.Helper()
	samples := uint64(8)
	if onGPU() {
		samples = 16
	}
	for _, seed := range seedsOf(t, samples, 0, 1, 3) {
		s := expertSample(graph.ExpertLinear, rand.New(rand.NewPCG(seed, 41)), true)
		if seed%4 == 3 { // for which there are no tensor cores
			y := s.place(graph.F32, s.call.Args[0].Rows, s.call.Args[0].Cols)
			s.call.Args = s.call.Args[:4]
			s.call.Args[0] = y
		}
		s.poison()
		plain, major := s.unpacked(), 8+int(seed%2)
		var results []kernel.Tensor
		for _, c := range []*sample{plain, s} {
			d, _ := machine(t, Options{}, imageBytes)
			d.chip.sms, d.chip.major = 1+s.IntN(20), major
			results = append(results, tensor(execute(t, d, c.call, c.image), c.call.Args[0]))
		}
		for r := range results[0].Rows {
			for c := range results[0].Cols {
				if g, w := results[1].At(r, c), results[0].At(r, c); g != w {
					t.Fatalf("seed %d: %v, compute capability %d: (%d,%d) is %v, of weights in bf16 %v", seed, s, major, r, c, g, w)
				}
			}
		}
	}
}

// unpacked is the same product of experts with unpacked weights.
func (s *sample) unpacked() *sample {
	u := *s
	u.image, u.call.Args, u.call.Attr.NF4 = bytes.Clone(s.image), slices.Clone(s.call.Args), false
	w, x, k := s.call.Args[2], s.call.Args[1], s.call.Args[3].Cols
	cols := s.call.Args[0].Cols / k
	if s.call.Attr.WT {
		if cols = x.Cols; s.call.Attr.Slots {
			cols /= k
		}
	}
	row, r := make([]float32, cols), 0
	to := u.fill(w.DType, w.Rows, cols, func() float64 {
		c := r % cols
		if c == 0 {
			kernel.UnpackNF4(row, s.image[w.Addr+int64(r/cols*w.Stride)*w.DType.Size():][:int64(w.Cols)*w.DType.Size()], cols)
		}
		r++
		return float64(row[c])
	})
	u.call.Args = u.call.Args[:len(s.call.Args)]
	u.call.Args[2] = to
	return &u
}

// TestPackedExpertsSuit: packed weights in bf16 whose rows begin at multiples of 4 bytes go to tensor
// cores, others to the plain kernel; all kernels are told that the weights are packed, and their
// extents.
func TestPackedExpertsSuit(t *testing.T) {
	op := func(d graph.DType, rows, cols, stride int) device.Operand {
		return device.Operand{DType: d, Rows: rows, Cols: cols, Stride: stride}
	}
	const bf16, f32 = graph.BF16, graph.F32
	for _, c := range []struct {
		d      graph.DType
		wt     bool
		stride int // of the packed weights, whose rows are two blocks: 36 bf16
		file   string
		hopper bool
	}{{bf16, true, 36, "expert_linear_mma", false}, {bf16, false, 36, "expert_linear_mma", false}, {bf16, true, 36, "expert_linear_wgmma", true},
		{bf16, true, 37, "expert_linear", false}, {bf16, false, 37, "expert_linear", true}, {f32, true, 18, "expert_linear", true}} {
		in, out := 104, 72
		rows, cols := in, out
		if c.wt {
			rows, cols = out, in
		}
		call := device.Call{Op: graph.ExpertLinear, Attr: graph.Attr{NF4: true, WT: c.wt, Experts: 4},
			Args: []device.Operand{op(c.d, 9, 2*out, 2*out), op(c.d, 9, in, in), op(c.d, 4*rows, graph.NF4Cols(cols, c.d), c.stride), op(graph.I32, 9, 2, 2)}}
		card := elsewhere
		card.hopper = c.hopper
		works, err := card.build(&call)
		if err != nil || len(works) != 3 {
			t.Fatalf("%+v: %v, %v", c, units(works), err)
		}
		l := works[2].launch
		if l.unit.File != c.file || !strings.HasSuffix(l.unit.Defines, " NF4=1") || l.args.t[2].cols != int32(cols) {
			t.Errorf("%+v: %v with %d columns, want %s with %d", c, l.unit, l.args.t[2].cols, c.file, cols)
		}
	}
}
