//go:build linux

package cuda

import (
	"bytes"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/kernel"
	"github.com/athanor-llm/athanor/model"
)

// slots draws how many experts a token goes to.
func (s *sample) slots() int { return 1 + s.IntN(4) }

// some returns k, or 1: then a token's slots share one row.
func (s *sample) some(k int) int { return []int{1, k}[s.IntN(2)] }

// experts makes matrices (in 4 bits if the call has them so), operands of n rows with the given widths,
// and the k experts of each row.
func (s *sample) experts(n, k, in, out int, d graph.DType, wide ...int) {
	all := s.call.Attr.Experts
	if s.call.Op == graph.ExpertLinear {
		s.call.Attr.Slots = s.call.Args[1].Cols != in
	}
	if s.call.Attr.WT {
		in, out = out, in
	}
	if s.call.Attr.NF4 {
		s.nf4(all*in, out)
	} else {
		s.fill(d, all*in, out, s.NormFloat64)
	}
	for _, cols := range wide {
		s.mat(n, cols)
	}
	s.chosen(n, k)
}

// chosen makes k different experts of each of n tokens.
func (s *sample) chosen(n, k int) {
	all := s.call.Attr.Experts
	t := tensor(s.image, s.place(graph.I32, n, k))
	few := k + s.IntN(all-k+1) // the others have no token
	for r := range n {
		ids := s.Perm(few)[:k]
		slices.Sort(ids)
		for c, id := range ids {
			t.Set(r, c, float64(id))
		}
	}
}

// biases makes biases of experts, sometimes, and sometimes weights that multiply them.
func (s *sample) biases(n, k, out int) {
	if s.acc || s.IntN(2) == 0 {
		return
	}
	if s.mat(s.call.Attr.Experts, out); s.IntN(2) == 0 {
		s.f32(n, k)
	}
}

// scored sometimes makes a router score experts by themselves, and multiply their weights.
func (s *sample) scored() {
	if s.call.Attr.Sigmoid = s.IntN(2) == 0; s.IntN(2) == 0 {
		s.call.Attr.Alpha = 2.5
	}
}

// bound sometimes bounds a SwiGLU's gates and ups.
func (s *sample) bound() {
	if s.IntN(2) == 0 {
		s.call.Attr.Act, s.call.Attr.Limit, s.call.Attr.Alpha = model.SiLU, 0.75, 1.702
	}
}

// TestExpertTiles: products of experts have the same bits in all tiles, however calls are cut, and are
// right, including matrices that end just after a tile and experts without tokens.
func TestExpertTiles(t *testing.T) {
	testkit.Needs(t, testkit.All) // compiling each as C++ takes seconds
	expertTilesAgree(t, machine)
}

// TestCompiledExpertTiles: the same for kernels made by NVIDIA's compiler.
func TestCompiledExpertTiles(t *testing.T) {
	testkit.Needs(t, testkit.All)
	expertTilesAgree(t, compiled)
}

// expertTilesAgree tries all tiles of each kind.
func expertTilesAgree(t *testing.T, machine maker) {
	t.Helper()
	seed := fresh(t)
	for _, major := range []int{8, 9} {
		d, _ := machine(t, Options{})
		d.chip.major = major
		for i, tile := range expertTiles[d.chip.hopper()] {
			expertsAgree(t, machine, graph.ExpertLinear, false, major, seed+uint64(i), tile)
			expertsAgree(t, machine, graph.ExpertDW, false, major, seed+uint64(i), tile)
		}
		for i, tile := range packedTiles[d.chip.hopper()] {
			expertsAgree(t, machine, graph.ExpertLinear, true, major, seed+uint64(i), tile)
		}
	}
}

// tileOf is the tile of a sample.
func tileOf(c target, s *sample) sumTile {
	y, n := s.call.Args[0], s.call.Attr.Experts
	if k := s.call.Args[3].Cols; s.call.Op == graph.ExpertLinear {
		return c.linearTile(y.Rows*k, y.Cols/k, n, s.call.Attr.NF4)
	}
	return c.dwTile(y.Rows/n, y.Cols, n)
}

// expertsAgree draws samples until some card uses the tile for one, and compares that card with others.
func expertsAgree(t *testing.T, machine maker, op graph.Op, packed bool, major int, seed uint64, want sumTile) {
	t.Helper()
	cards := []int{1, 2, 3, 4, 6, 8, 12, 20} // by their SMs
	r := rand.New(rand.NewPCG(seed, 23))
	s := expertSample(op, r, packed)
	for !slices.ContainsFunc(cards, func(sms int) bool { return tileOf(target{sms: sms, hopper: want.down == 0}, s) == want }) {
		s = expertSample(op, r, packed)
	}
	s.poison()
	reference := s.reference()
	var parts []device.Call
	for r0, all := 0, s.call.Args[3].Rows; r0 < all; {
		n := s.call.Attr.Seq * (1 + r.IntN(2))
		if op == graph.ExpertLinear {
			n = 1 + r.IntN(all)
		}
		parts = append(parts, s.cut(r0, min(n, all-r0)))
		r0 += min(n, all-r0)
	}
	first, used := []byte(nil), map[sumTile]bool{}
	for _, sms := range cards {
		tile := tileOf(target{sms: sms, hopper: want.down == 0}, s)
		if used[tile] {
			continue
		}
		used[tile] = true
		d, _ := machine(t, Options{}, imageBytes)
		d.chip.sms, d.chip.major = sms, major
		got := execute(t, d, s.call, s.image)
		if first == nil {
			first = got
		}
		if err := s.check(bytes.Clone(got), bytes.Clone(reference)); err != nil {
			t.Errorf("seed %d: %v in %+v: %v", seed, s, tile, err)
		}
		if !bytes.Equal(got, first) {
			t.Errorf("seed %d: %v in %+v has other bits", seed, s, tile)
		}
		if !bytes.Equal(got, executeAll(t, d, parts, s.image)) {
			t.Errorf("seed %d: %v in %+v: in %d parts the bits differ", seed, s, tile, len(parts))
		}
	}
	if !used[want] {
		t.Errorf("%v: of %+v none is %+v", s, used, want)
	}
}

// expertSample has several tiles of rows or columns, in bf16 and laid out as tensor cores need it.
func expertSample(op graph.Op, r *rand.Rand, packed bool) *sample {
	s := &sample{Rand: r, image: make([]byte, imageBytes), wide: true, float: graph.BF16, tol: 8e-3}
	n, k := 1+s.IntN(220), s.slots()
	in, out := 8*(1+s.IntN(12)), 8*(1+s.IntN(40))
	s.acc = s.IntN(2) == 0
	s.call = device.Call{Op: op, Attr: graph.Attr{WT: s.IntN(2) == 0, Experts: k + s.IntN(3), NF4: packed, Acc: s.acc}}
	if op == graph.ExpertLinear {
		s.mat(n, k*out)
		s.mat(n, s.some(k)*in)
		s.experts(n, k, in, out, graph.BF16)
		s.biases(n, k, out)
		return s
	}
	s.call.Attr.Seq = 1 + s.IntN(90)
	s.experts(n, k, in, out, graph.F32, s.some(k)*in, s.some(k)*out)
	return s
}

// TestManyTiles: if there are more tiles of rows than blocks process at a time with all columns, none
// is left out.
func TestManyTiles(t *testing.T) {
	testkit.Needs(t, testkit.All)
	manyTilesAgree(t, machine)
}

func TestCompiledManyTiles(t *testing.T) {
	testkit.Needs(t, testkit.All)
	manyTilesAgree(t, compiled)
}

func manyTilesAgree(t *testing.T, machine maker) {
	t.Helper()
	seed := fresh(t)
	for i, op := range []graph.Op{graph.ExpertLinear, graph.ExpertLinear, graph.ExpertDW, graph.ExpertDW} {
		s := &sample{Rand: rand.New(rand.NewPCG(seed, uint64(i))), image: make([]byte, imageBytes), wide: true, float: graph.BF16, tol: 8e-3}
		s.call = device.Call{Op: op, Attr: graph.Attr{Experts: 2, Seq: 9, WT: i%2 == 0}}
		if op == graph.ExpertLinear {
			const n = 2100
			s.mat(n, 264)
			s.mat(n, 8)
			s.experts(n, 1, 8, 264, graph.BF16)
		} else {
			s.call.Attr.Experts = 1
			s.experts(20, 1, 2200, 136, graph.F32, 2200, 136)
		}
		s.poison()
		want := s.reference()
		for _, major := range []int{8, 9} {
			d, _ := machine(t, Options{}, imageBytes)
			d.chip.major = major
			if err := s.check(execute(t, d, s.call, s.image), bytes.Clone(want)); err != nil {
				t.Errorf("seed %d: %v, compute capability %d: %v", seed, s, major, err)
			}
		}
	}
}

// TestRouteSpecial: whatever the logits are, including infinities and NaNs, the choice is the CPU's,
// and the weights are NaN where the CPU's are.
func TestRouteSpecial(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	specialRoutesAgree(t, machine, 0, 1, 6, 11)
}

func TestCompiledRouteSpecial(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	specialRoutesAgree(t, compiled, 0, 11)
}

func specialRoutesAgree(t *testing.T, machine maker, usual ...uint64) {
	t.Helper()
	cores := kernel.NewEnv(1)
	defer cores.Close()
	values := []float64{math.NaN(), math.Inf(1), math.Inf(-1), 0, math.Copysign(0, -1), 1, -1, 1e-30}
	d, _ := machine(t, Options{}, imageBytes)
	for _, seed := range seedsOf(t, 16, usual...) {
		s := &sample{Rand: rand.New(rand.NewPCG(seed, 3)), image: make([]byte, imageBytes), float: []graph.DType{graph.F32, graph.BF16}[seed%2]}
		s.call = device.Call{Op: graph.Route, Attr: graph.Attr{Normed: seed%4 < 2}}
		k, some := 1+s.IntN(8), values[s.IntN(4):]
		weights, experts := s.f32(40, k), s.place(graph.I32, 40, k)
		logits := s.fill(s.float, 40, k+s.IntN(60), func() float64 { return some[s.IntN(len(some))] })
		image := bytes.Clone(s.image)
		kernel.Lookup(graph.Route).Reference(cores, &s.call.Attr, []kernel.Tensor{tensor(image, weights), tensor(image, experts), tensor(image, logits), {}})
		got := execute(t, d, s.call, s.image)
		for r := range 40 {
			for c := range k {
				if x, y := tensor(got, experts), tensor(image, experts); x.At(r, c) != y.At(r, c) {
					t.Errorf("seed %d, row %d: expert %v, on the CPU %v", seed, r, x.At(r, c), y.At(r, c))
				}
				x, y := tensor(got, weights), tensor(image, weights)
				if g, w := x.At(r, c), y.At(r, c); math.IsNaN(g) != math.IsNaN(w) || math.Abs(g-w) > 1e-5 {
					t.Errorf("seed %d, row %d: weight %v, on the CPU %v", seed, r, g, w)
				}
			}
		}
	}
}

// TestExpertTilesFit: a block of every tile can run on the cards that the tile is for.
func TestExpertTilesFit(t *testing.T) {
	for hopper, most := range map[bool]int{false: leastShared, true: 227 << 10} {
		for _, s := range slices.Concat(expertTiles[hopper], packedTiles[hopper]) {
			_, _, _, dw := s.shape()
			if shared := max(dw, s.linearStages(false), s.linearStages(true)); shared > most || 2*s.rows*(s.cols+8) > s.linearStages(true) {
				t.Errorf("%+v has %d bytes of shared memory, of %d", s, shared, most)
			}
		}
	}
}

// TestExpertsSuit: operands whose rows or slots do not begin at multiples of 16 bytes, or that are in
// fp32, go to the other kernels. Refused are so few experts that a token cannot have different ones,
// and more slots than scratch memory has room to sort.
func TestExpertsSuit(t *testing.T) {
	op := func(d graph.DType, rows, cols int) device.Operand {
		return device.Operand{DType: d, Rows: rows, Cols: cols, Stride: (cols + 7) &^ 7}
	}
	const bf16, f32, i32 = graph.BF16, graph.F32, graph.I32
	at := func(o device.Operand, addr int64) device.Operand { o.Addr = addr; return o }
	for _, c := range []struct {
		op   graph.Op
		args []device.Operand
		file string // "": refused
	}{
		{graph.ExpertLinear, []device.Operand{op(bf16, 9, 32), op(bf16, 9, 24), op(bf16, 4*24, 16), op(i32, 9, 2)}, "expert_linear_mma"},
		{graph.ExpertLinear, []device.Operand{op(bf16, 9, 32), op(bf16, 9, 48), op(bf16, 4*24, 16), op(i32, 9, 2)}, "expert_linear_mma"},
		{graph.ExpertLinear, []device.Operand{op(bf16, 9, 36), op(bf16, 9, 24), op(bf16, 4*24, 18), op(i32, 9, 2)}, "expert_linear"},
		{graph.ExpertLinear, []device.Operand{op(bf16, 9, 32), op(bf16, 9, 40), op(bf16, 4*20, 16), op(i32, 9, 2)}, "expert_linear"},
		{graph.ExpertLinear, []device.Operand{op(bf16, 9, 32), at(op(bf16, 9, 24), 8), op(bf16, 4*24, 16), op(i32, 9, 2)}, "expert_linear"},
		{graph.ExpertLinear, []device.Operand{op(f32, 9, 32), op(bf16, 9, 24), op(bf16, 4*24, 16), op(i32, 9, 2)}, "expert_linear"},
		{graph.ExpertLinear, []device.Operand{op(bf16, 9, 80), op(bf16, 9, 24), op(bf16, 4*24, 16), op(i32, 9, 5)}, ""},
		{graph.ExpertLinear, []device.Operand{op(bf16, 9<<20, 32), op(bf16, 9<<20, 24), op(bf16, 4*24, 16), op(i32, 9<<20, 2)}, ""},
		{graph.ExpertDW, []device.Operand{op(f32, 4*24, 16), op(bf16, 9, 24), op(bf16, 9, 32), op(i32, 9, 2)}, "expert_dw_mma"},
		{graph.ExpertDW, []device.Operand{op(f32, 4*20, 18), op(bf16, 9, 20), op(bf16, 9, 18), op(i32, 9, 2)}, "expert_dw_mma"},
		{graph.ExpertDW, []device.Operand{op(f32, 4*24, 18), op(bf16, 9, 24), op(bf16, 9, 36), op(i32, 9, 2)}, "expert_dw"},
		{graph.ExpertDW, []device.Operand{op(f32, 4*24, 15), op(bf16, 9, 48), op(bf16, 9, 15), op(i32, 9, 2)}, "expert_dw"},
		{graph.ExpertDW, []device.Operand{op(f32, 4*24, 16), op(f32, 9, 24), op(bf16, 9, 32), op(i32, 9, 2)}, "expert_dw"},
	} {
		slots := c.op == graph.ExpertLinear && c.args[1].Cols != c.args[2].Rows/4
		call := device.Call{Op: c.op, Attr: graph.Attr{Experts: 4, Seq: 9, Slots: slots}, Args: c.args}
		works, err := elsewhere.build(&call)
		switch {
		case c.file == "" && err == nil:
			t.Errorf("%v %v: built", c.op, c.args)
		case c.file != "" && (err != nil || len(works) != 3 || works[2].launch.unit.File != c.file):
			t.Errorf("%v %v: %v, %v, want %s", c.op, c.args, units(works), err, c.file)
		}
	}
}
