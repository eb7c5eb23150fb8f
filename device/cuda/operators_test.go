//go:build linux

package cuda

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/kernel"
	"github.com/athanor-llm/athanor/optimizer"
)

var tiers = []device.Tier{device.DeviceTier, device.HostTier, device.DiskTier}

// poison overwrites the operands that are only written.
func (s *sample) poison() {
	for i, spec := range s.call.Op.Info().Args {
		if i >= len(s.call.Args) || s.call.Args[i].Absent() {
			continue
		}
		if spec.Access == graph.Write || spec.Access == graph.Sum && !s.call.Attr.Acc {
			t := tensor(s.image, s.call.Args[i])
			for r := range t.Rows {
				for c := range t.Cols {
					t.Set(r, c, math.NaN())
				}
			}
		}
	}
}

// reference is the image after the reference's call.
func (s *sample) reference() []byte {
	image := bytes.Clone(s.image)
	list := make([]kernel.Tensor, len(s.call.Op.Info().Args))
	for i, o := range s.call.Args {
		list[i] = tensor(image, o)
	}
	kernel.Lookup(s.call.Op).Reference(nil, &s.call.Attr, list)
	return image
}

// compressed reports whether operand i is a cache whose bytes are not numbers.
func (s *sample) compressed(i int) bool { return s.call.Attr.CacheBits > 0 && i == graph.AttentionAtKV }

// check compares an image with the reference's: what is written within the tolerance,
// everything else bit by bit.
func (s *sample) check(got, want []byte) error {
	for i, o := range s.call.Args {
		if o.Absent() || s.call.Op.Info().Args[i].Access == graph.Read {
			continue
		}
		room := s.call.Op.Info().Args[i].Room
		if s.compressed(i) { // all bytes are to be the reference's
			continue
		}
		x, y := tensor(got, o), tensor(want, o)
		var largest float64
		for r := range y.Rows {
			for c := range y.Cols {
				largest = max(largest, math.Abs(y.At(r, c)))
			}
		}
		for r := range y.Rows {
			for c := range y.Cols {
				g, w := x.At(r, c), y.At(r, c)
				bound := s.tol*largest + s.floor
				if o.DType == graph.BF16 {
					bound += math.Abs(w)/128 + s.early*largest
				}
				if !(math.Abs(g-w) <= bound) && o.DType != graph.U16 && o.DType != graph.U8 && !room { // these jump, see twice
					return fmt.Errorf("%s (%d,%d): %v, reference %v, bound %.3g", s.call.Op.Info().Args[i].Name, r, c, g, w, bound)
				}
				x.Set(r, c, 0)
				y.Set(r, c, 0)
			}
		}
	}
	for i := range got {
		if got[i] != want[i] {
			return fmt.Errorf("byte %d, outside of the operands, was changed", i)
		}
	}
	return nil
}

// execute runs a call by itself on an image of the arena.
func execute(t *testing.T, d *Device, c device.Call, image []byte) []byte {
	t.Helper()
	return executeAll(t, d, []device.Call{c}, image)
}

func executeAll(t *testing.T, d *Device, calls []device.Call, image []byte) []byte {
	t.Helper()
	if err := d.Write(device.DeviceTier, 0, image); err != nil {
		t.Fatal(err)
	}
	n, err := d.Prepare(calls, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range calls {
		d.Launch(n + i)
	}
	if err := d.Sync(); err != nil {
		t.Fatal(err)
	}
	out := make([]byte, len(image))
	if err := d.Read(device.DeviceTier, 0, out); err != nil {
		t.Fatal(err)
	}
	return out
}

// twice checks that what was written is on average at most twice as far from the reference as what the
// CPU's kernel writes with the same types. The reference's results are not rounded to bf16 for that.
func (s *sample) twice(cores *kernel.Env, got []byte) error {
	image := bytes.Clone(s.image)
	list, exact := make([]kernel.Tensor, len(s.call.Op.Info().Args)), make([]kernel.Tensor, len(s.call.Op.Info().Args))
	for i, o := range s.call.Args {
		list[i] = tensor(image, o)
		if s.compressed(i) {
			exact[i] = tensor(bytes.Clone(s.image), o)
			continue
		}
		if exact[i] = tensor(s.image, o); !o.Absent() && s.call.Op.Info().Args[i].Access != graph.Read {
			d := o.DType
			if d == graph.BF16 {
				d = graph.F32
			}
			exact[i] = kernel.NewTensor(d, o.Rows, o.Cols)
			for r := range o.Rows {
				for c := range o.Cols {
					exact[i].Set(r, c, list[i].At(r, c))
				}
			}
		}
	}
	kernel.Lookup(s.call.Op).Reference(nil, &s.call.Attr, exact)
	kernel.Lookup(s.call.Op).Fast(cores, &s.call.Attr, list)
	for i, o := range s.call.Args {
		if spec := s.call.Op.Info().Args[i]; o.Absent() || spec.Access == graph.Read || spec.Name == "delta" || spec.Room || s.compressed(i) || o.DType == graph.U16 || o.DType == graph.U8 {
			continue // delta is scratch; lower halves jump where upper ones do, packed moments between values, and updatesAgree compares their bits
		}
		var ours, theirs, size float64
		x, y, z := tensor(got, o), list[i], exact[i]
		for r := range z.Rows {
			for c := range z.Cols {
				w := z.At(r, c)
				ours += (x.At(r, c) - w) * (x.At(r, c) - w)
				theirs += (y.At(r, c) - w) * (y.At(r, c) - w)
				size += w * w
			}
		}
		if !(math.Sqrt(ours) <= 2*math.Sqrt(theirs)+1e-5*math.Sqrt(size)+s.floor*math.Sqrt(float64(z.Rows*z.Cols))) {
			return fmt.Errorf("%s is %.3g off, the CPU's %.3g, of %.3g", s.call.Op.Info().Args[i].Name, math.Sqrt(ours), math.Sqrt(theirs), math.Sqrt(size))
		}
	}
	return nil
}

// TestOperators compares every operator with the reference in float64 and with the CPU's errors, and
// requires the same bits from a second run and, on the fake, from threads that run in the opposite
// order.
func TestOperators(t *testing.T) { operatorsAgree(t, machine, 8, int(graph.NumOps), 2) }

// operatorsAgree takes this many samples of attention, which has tiles of many shapes and, on Hopper,
// kernels of its own, and usually so many of so many operators.
func operatorsAgree(t *testing.T, machine maker, attentions, some, usual int) {
	t.Helper()
	var ops []graph.Op
	for op := graph.Op(1); op < graph.NumOps; op++ {
		if op != graph.Copy && !op.Info().Between { // between ranks: TestCollectives
			ops = append(ops, op)
		}
	}
	if testkit.AtLevel() == testkit.Fast {
		some, usual = 5, 1
	}
	for _, op := range testkit.Sample(ops, some, some) {
		n := uint64(rounds(op, attentions))
		t.Run(op.String(), func(t *testing.T) { operatorAgrees(t, machine, op, seedsOf(t, n, usualSeeds(op)[:usual]...), 9) })
		if op == graph.Attention || op == graph.AttentionBwd {
			t.Run(op.String()+", other cards", func(t *testing.T) { operatorAgrees(t, machine, op, seedsOf(t, n, usualSeeds(op)[:usual]...), 8) })
		}
	}
}

// usualSeeds are those of a sample in fp32 with odd extents and of one in bf16 with whole packs, one of which adds
// to what is there.
func usualSeeds(op graph.Op) []uint64 { return [][]uint64{{6, 1}, {3, 4}}[op%2] }

// operatorAgrees tests the kernels for cards of a compute capability.
func operatorAgrees(t *testing.T, machine maker, op graph.Op, seeds []uint64, major int) {
	t.Helper()
	cores := kernel.NewEnv(1)
	defer cores.Close()
	d, g := machine(t, Options{}, imageBytes)
	again, h := machine(t, Options{Serial: true}, imageBytes)
	if major < 9 {
		d.chip.major, again.chip.major = major, major
	}
	defer func() {
		if g != nil && t.Failed() {
			t.Log(g.Failure(), h.Failure())
		}
	}()
	for _, seed := range seeds {
		s := newSample(op, seed)
		s.poison()
		want := s.reference()
		got := execute(t, d, s.call, s.image)
		if !bytes.Equal(got, execute(t, again, s.call, s.image)) {
			t.Errorf("seed %d: %v: two runs differ", seed, s)
		}
		if err := errors.Join(s.twice(cores, got), s.check(got, want)); err != nil {
			t.Fatalf("seed %d: %v: %v", seed, s, err)
		}
	}
}

// TestUpdatesAlike: where a plan has the optimizer run makes no difference: the GPU writes the CPU's
// bits, including those that chance rounds.
func TestUpdatesAlike(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	updatesAgree(t, machine, 1, 6, 10, 13)
}

func updatesAgree(t *testing.T, machine maker, usual ...uint64) {
	t.Helper()
	cores := kernel.NewEnv(1)
	defer cores.Close()
	if cores.V.Name == "portable" {
		t.Skip("the portable functions round otherwise")
	}
	d, _ := machine(t, Options{}, imageBytes)
	for o := range optimizer.NumOptimizers {
		if !o.Rule().Elementwise { // products have other bits there
			continue
		}
		for _, seed := range seedsOf(t, 16, usual...) {
			s := newSample(o.Rule().Op, seed)
			image := bytes.Clone(s.image)
			list := make([]kernel.Tensor, len(s.call.Op.Info().Args))
			for i, o := range s.call.Args {
				list[i] = tensor(image, o)
			}
			kernel.Lookup(s.call.Op).Fast(cores, &s.call.Attr, list)
			if !bytes.Equal(execute(t, d, s.call, s.image), image) {
				t.Errorf("seed %d: %v: the CPU has other bits", seed, s)
			}
		}
	}
}

// cut is the call on token rows [r0, r0+n).
func (s *sample) cut(r0, n int) device.Call {
	c := s.call
	c.Args = append([]device.Operand(nil), c.Args...)
	for i, spec := range c.Op.Info().Args {
		if spec.Token && i < len(c.Args) {
			c.Args[i] = rowsOf(c.Args[i], r0, n)
		}
	}
	c.Attr.Row0 += r0
	if c.Op.Info().Kind == graph.TokenSum && r0 > 0 {
		c.Attr.Acc = true
	}
	return c
}

// TestCuts: operators whose rows are tokens give the same bits on any rows by themselves, and those
// that sum over tokens do when the tokens are split at multiples of SumRows. Law L1 needs this of the
// kernels.
func TestCuts(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	cutsAgree(t, machine, int(graph.NumOps))
}

// cutsAgree usually tries so many operators.
func cutsAgree(t *testing.T, machine maker, some int) {
	t.Helper()
	first := func(op graph.Op) int { // of its operands whose rows are tokens
		return slices.IndexFunc(op.Info().Args, func(a graph.ArgSpec) bool { return a.Token })
	}
	var ops []graph.Op
	for op := graph.Op(1); op < graph.NumOps; op++ {
		if kind := op.Info().Kind; first(op) >= 0 && (kind == graph.RowWise || kind == graph.TokenSum) {
			ops = append(ops, op)
		}
	}
	for _, op := range casesOf(ops, some) {
		kind, token := op.Info().Kind, first(op)
		t.Run(op.String(), func(t *testing.T) {
			for i, cut := range []int{32, 20} {
				d, _ := machine(t, Options{SumRows: cut}, imageBytes)
				if op == graph.Linear || op == graph.LinearDX || op == graph.LinearDW {
					d = openedWith(t, withLibrary(t), Options{SumRows: cut}, imageBytes)
				}
				cutAgrees(t, d, op, token, cut, seedsOf(t, 7, usualSeeds(op)[i]))
				if kind == graph.RowWise {
					break
				}
			}
		})
	}
}

// cutAgrees splits samples of an operator's tokens, with operand token among them, where that is
// allowed.
func cutAgrees(t *testing.T, d *Device, op graph.Op, token, cut int, seeds []uint64) {
	t.Helper()
	for _, seed := range seeds {
		s := newSample(op, seed)
		if op == graph.ExpertDW {
			s.call.Attr.Seq = cut // its tokens are cut at sequences
		}
		if op == graph.ShortConvDW { // and this one's, too
			s.wholeSequences(cut)
		}
		s.poison()
		var parts []device.Call
		for r0, all := 0, s.call.Args[token].Rows; r0 < all; {
			n := 1 + s.IntN(40)
			if op.Info().Kind == graph.TokenSum {
				n = cut * (1 + s.IntN(2))
			}
			n = min(n, all-r0)
			parts = append(parts, s.cut(r0, n))
			r0 += n
		}
		if !bytes.Equal(execute(t, d, s.call, s.image), executeAll(t, d, parts, s.image)) {
			t.Errorf("seed %d: %v: in %d parts the bits differ", seed, s, len(parts))
		}
	}
}

// TestLossOfOddSequences: if sums may be cut after every 1021 tokens, which is a prime, each token is a
// piece, there are more pieces than a block processes at a time, and all of them are one chain.
func TestLossOfOddSequences(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	oddLosses(t, machine)
}

func oddLosses(t *testing.T, machine maker) {
	t.Helper()
	d, _ := machine(t, Options{SumRows: 1021}, imageBytes)
	s := &sample{Rand: rand.New(rand.NewPCG(3, 3)), image: make([]byte, imageBytes)}
	s.call = device.Call{Op: graph.LossSum, Attr: graph.Attr{Acc: true}}
	total, loss := s.fill(graph.F64, 1, 1, s.NormFloat64), s.f32(2*1021+5, 1)
	want := tensor(s.image, total).F64[0]
	for r := range loss.Rows {
		want += float64(tensor(s.image, loss).F32[r*loss.Stride])
	}
	if got := tensor(execute(t, d, s.call, s.image), total).F64[0]; got != want {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestSequenceSlices: a sequence cut into slices gives the bits of the whole one: forward from the
// first slice, backward at multiples of graph.SliceUnit from the last. A bf16 dkv, which is rounded
// after every slice, is close.
func TestSequenceSlices(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	slicesAgree(t, machine, 1, 2)
}

func slicesAgree(t *testing.T, machine maker, usual ...uint64) {
	t.Helper()
	d, _ := machine(t, Options{}, imageBytes)
	for _, seed := range seedsOf(t, 24, usual...) {
		wide := seed-fresh(t) >= 8
		if wide && seed%4 != 2 { // only in bf16, for tensor cores
			continue
		}
		s := &sample{Rand: rand.New(rand.NewPCG(seed, 5)), image: make([]byte, imageBytes), wide: seed%2 == 0, float: []graph.DType{graph.F32, graph.BF16}[seed/2%2]}
		s.heads()
		a := &s.call.Attr
		if a.Row0, a.Heads = 0, 2*a.KVHeads; wide {
			a.HeadDim += 128
		}
		width := (a.Heads + 2*a.KVHeads) * a.HeadDim
		n, w := a.Seq, a.Heads*a.HeadDim
		q, kv, do := s.mat(n, w), s.mat(n, width-w), s.mat(n, w)
		o, lse, delta := s.place(s.float, n, w), s.place(graph.F32, n, a.Heads), s.place(graph.F32, n, a.Heads)
		dq, dkv := s.place(s.float, n, w), s.place(s.float, n, width-w)
		starts, sinks := s.starts(n, n), device.Operand{}
		if s.IntN(2) == 0 {
			sinks = s.mat(1, a.Heads)
		}
		slice := func(lo, k int) device.Operand {
			if starts.Absent() {
				return starts
			}
			return rowsOf(starts, lo, k)
		}
		calls := func(forward, backward []int) (list []device.Call) {
			for i := range len(forward) - 1 {
				lo, k := forward[i], forward[i+1]-forward[i]
				list = append(list, device.Call{Op: graph.Attention, Attr: *a, Args: []device.Operand{rowsOf(o, lo, k), rowsOf(lse, lo, k), rowsOf(q, lo, k), rowsOf(kv, 0, lo+k), slice(lo, k), sinks}})
			}
			for i := len(backward) - 2; i >= 0; i-- {
				lo, k, at := backward[i], backward[i+1]-backward[i], *a
				at.Acc = lo+k < n
				part := func(o device.Operand) device.Operand { return rowsOf(o, lo, k) }
				list = append(list, device.Call{Op: graph.AttentionBwd, Attr: at,
					Args: []device.Operand{part(dq), rowsOf(dkv, 0, lo+k), part(delta), part(do), part(q), rowsOf(kv, 0, lo+k), part(o), part(lse), slice(lo, k)}})
			}
			return list
		}
		cuts := func(unit int) []int {
			list := []int{0}
			for {
				next := list[len(list)-1] + unit*(1+s.IntN(max(1, n/unit/2)))
				if next >= n {
					return append(list, n)
				}
				list = append(list, next)
			}
		}
		forward, backward := cuts(1), cuts(graph.SliceUnit(n))
		want := executeAll(t, d, calls([]int{0, n}, []int{0, n}), s.image)
		got := executeAll(t, d, calls(forward, backward), s.image)
		if s.float == graph.BF16 {
			s.call.Args, s.call.Op, s.tol = []device.Operand{dkv}, graph.AttentionBwd, 1.0/128*float64(len(backward))
			if err := s.check(got, want); err != nil {
				t.Errorf("seed %d: %+v cut at %v and %v: %v", seed, *a, forward, backward, err)
			}
		} else if !bytes.Equal(got, want) {
			t.Errorf("seed %d: %+v cut at %v and %v: the bits differ", seed, *a, forward, backward)
		}
	}
}

func rounds(op graph.Op, attentions int) int {
	switch {
	case onGPU():
		return 24
	case op == graph.Attention || op == graph.AttentionBwd:
		return attentions
	}
	return 6
}
