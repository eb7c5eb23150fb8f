//go:build linux

package cuda

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cuda/internal/fake"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/kernel"
	"github.com/athanor-llm/athanor/model"
)

// square is a product of 64 x 64 matrices of bf16, from an address on.
func square(addr int64) device.Call {
	at := func(i int64) device.Operand {
		return device.Operand{DType: graph.BF16, Addr: addr + i*(64*64*2), Rows: 64, Cols: 64, Stride: 64}
	}
	return device.Call{Op: graph.Linear, Args: []device.Operand{at(0), at(1), at(2)}}
}

// TestRefused: a product whose algorithm, chosen for many rows, needs more workspace for its own rows
// than there is, runs on the plain kernel, and that is reported.
func TestRefused(t *testing.T) {
	for _, need := range []int64{workspaceBytes, workspaceBytes + 1} {
		g := fake.New()
		g.Workspace = need
		d := opened(t, &Libraries{g.Driver(), fake.Compiler{}, g.Lt()}, Options{}, []int64{1 << 20})
		n, err := d.Prepare([]device.Call{square(0), square(0)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		d.Launch(n)
		if err := d.Sync(); err != nil {
			t.Fatal(err)
		}
		told, calls := d.Refused(), g.Calls()
		if fits := need == workspaceBytes; fits != slices.Contains(calls, "LtMatmul") || fits == slices.Contains(calls, "LaunchKernel") {
			t.Errorf("with a workspace of %d: %v", need, calls)
		} else if fits && len(told) > 0 || !fits && (len(told) != 1 || !strings.Contains(told[0], "bf16[64x64/64] = bf16[64x64/64] bf16[64x64/64]: ") || !strings.Contains(told[0], "33554433 bytes")) {
			t.Errorf("with a workspace of %d: %q", need, told)
		}
	}
}

// TestOneAlgorithm: wherever a program puts a product's operands, which it aligns to 64 bytes, the
// library is asked for the same algorithm.
func TestOneAlgorithm(t *testing.T) {
	asked := map[algoKey]bool{}
	for _, addr := range []int64{0, 64, 128, 192, 256, 512} {
		c := square(addr)
		works, err := elsewhere.build(&c)
		if err != nil || len(works) != 1 || works[0].product == nil {
			t.Fatal(works, err)
		}
		p := works[0].product.describe(func(o device.Operand) uintptr { return elsewhere.base[o.Tier] + uintptr(o.Addr) })
		asked[algoKey{canonical(p)}] = true
	}
	if len(asked) != 1 {
		t.Errorf("%d questions: %v", len(asked), asked)
	}
}

// TestWholePacks: of rows that begin at packs but are not whole packs, such as those of 50257 logits,
// the library gets what is whole, and the combined results are the reference's. Where that would round
// a residual twice, or rows begin elsewhere, it gets everything.
func TestWholePacks(t *testing.T) {
	const n, width, vocab = 40, 24, 51
	lib := withLibrary(t)
	for _, c := range []struct {
		name   string
		op     graph.Op
		wt     bool
		pad    int // elements after a row of logits
		acc    bool
		extent int // columns or terms that the library gets
	}{
		{"logits", graph.Linear, true, 5, false, 48}, {"logits", graph.Linear, false, 5, false, 48}, {"logits, added", graph.Linear, true, 5, true, 48},
		{"their gradient", graph.LinearDX, true, 5, false, 48}, {"their gradient", graph.LinearDX, false, 5, false, 48}, {"their gradient, added", graph.LinearDX, true, 5, true, vocab},
		{"rows without gaps", graph.Linear, true, 0, false, vocab}, {"rows without gaps", graph.LinearDX, true, 0, false, vocab},
	} {
		d := openedWith(t, lib, Options{}, imageBytes)
		s := &sample{Rand: rand.New(rand.NewPCG(7, 7)), image: make([]byte, imageBytes), float: graph.BF16, wide: true, tol: 2e-5}
		s.call = device.Call{Op: c.op, Attr: graph.Attr{WT: c.wt, Acc: c.acc}}
		mat := func(rows, cols, stride int) {
			s.mat(rows, stride)
			s.call.Args[len(s.call.Args)-1].Cols = cols
		}
		sizes := [3][3]int{{n, vocab, vocab + c.pad}, {n, width, width}, {width, vocab, vocab + c.pad}}
		if c.wt {
			sizes[2] = [3]int{vocab, width, width}
		}
		if c.op == graph.LinearDX {
			sizes[0], sizes[1] = sizes[1], sizes[0]
		}
		for _, x := range sizes {
			mat(x[0], x[1], x[2])
		}
		s.early = 1. / 256 // the few terms that are added first
		s.poison()
		works, err := d.plan(d.target(), &s.call)
		if err != nil {
			t.Fatal(err)
		}
		extents := []int{}
		for _, w := range works {
			if p := w.product; p != nil && c.op == graph.Linear {
				extents = append(extents, p.y.Cols)
			} else if p != nil {
				extents = append(extents, p.a.Cols)
			}
		}
		if !slices.Equal(extents, []int{c.extent}) || len(works) != 1+min(vocab-c.extent, 1) {
			t.Errorf("%s, WT %v: the library gets %v in %d launches, want %d", c.name, c.wt, extents, len(works), c.extent)
		}
		cores := kernel.NewEnv(1)
		got := execute(t, d, s.call, s.image)
		if err := errors.Join(s.twice(cores, got), s.check(got, s.reference())); err != nil {
			t.Errorf("%s, WT %v: %v", c.name, c.wt, err)
		}
		cores.Close()
	}
}

// TestDerives: where the library can, it multiplies by the derivative of an activation. Where it
// cannot, or rejects that, a kernel does so after the product, which is not reported, since it is
// hardly slower. The results are the reference's.
func TestDerives(t *testing.T) {
	lib := withLibrary(t)
	cores := kernel.NewEnv(1)
	defer cores.Close()
	for _, c := range []struct {
		name                   string
		act                    model.Activation
		major, inner, pad, odd int
		fused, rejected        bool
	}{
		{"as it should be", model.GELUTanh, 9, 32, 0, 0, true, false},
		{"rejected", model.GELUTanh, 9, 32, 0, 0, true, true},
		{"another activation", model.ReLU, 9, 32, 0, 0, false, false},
		{"an older card", model.GELUTanh, 8, 32, 0, 0, false, false},
		{"a card for games", model.GELUTanh, 12, 32, 0, 0, false, false},
		{"terms that are no whole packs", model.GELUTanh, 9, 28, 4, 0, false, false},
		{"rows that begin anywhere", model.GELUTanh, 9, 32, 0, 3, false, false},
	} {
		libs := lib
		if !onGPU() {
			g := fake.New()
			g.Plain = c.rejected
			libs = &Libraries{g.Driver(), asText(t, g, false), g.Lt()}
		} else if c.rejected {
			continue
		}
		d := openedWith(t, libs, Options{}, imageBytes)
		d.chip.major = c.major
		s := &sample{Rand: rand.New(rand.NewPCG(8, 8)), image: make([]byte, imageBytes), float: graph.BF16, wide: true, tol: 2e-5, early: 1. / 256}
		s.call = device.Call{Op: graph.LinearDX, Attr: graph.Attr{Act: c.act}}
		mat := func(rows, cols, stride int) {
			s.mat(rows, stride)
			s.call.Args[len(s.call.Args)-1].Cols = cols
		}
		mat(40, 24, 24)
		mat(40, c.inner, c.inner+c.pad)
		mat(24, c.inner, c.inner+c.pad)
		mat(40, 24, 24+c.odd)
		s.poison()
		works, err := d.plan(d.target(), &s.call)
		if err != nil {
			t.Fatal(err)
		}
		if p := works[0].product; c.fused != (len(works) == 1 && p != nil && !p.x.Absent() && len(works[0].instead) == 2) || len(launches(works)) < 2 {
			t.Errorf("%s: %d works, the first of them %+v", c.name, len(works), works[0])
		}
		got := execute(t, d, s.call, s.image)
		if err := errors.Join(s.twice(cores, got), s.check(got, s.reference())); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if told := d.Refused(); told != nil {
			t.Errorf("%s: refused %q", c.name, told)
		}
	}
}
