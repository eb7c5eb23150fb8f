//go:build linux

package cuda

import (
	"context"
	"fmt"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cuda/internal/fake"
	"github.com/athanor-llm/athanor/device/cuda/kernels"
	"github.com/athanor-llm/athanor/device/cuda/nv"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/model/family"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
)

// The least that cards since Ampere have: 8.6, 8.9 and 12.0 have the least shared memory per block.
const (
	leastShared    = 99 << 10
	leastRegisters = 64 << 10
)

// elsewhere is a machine for which calls are only built.
var elsewhere = target{base: [device.NumTiers]uintptr{1 << 40, 1 << 41, 0}, scratch: 1 << 42, room: scratchBytes, library: true,
	sumRows: 1024, sms: 108, shared: leastShared, major: 8, fp8: true}

// launchesOf returns all launches that calls would start, including those in the library's place.
func launchesOf(t *testing.T, calls []device.Call) (list []*launch) {
	t.Helper()
	for i := range calls {
		if c := &calls[i]; c.Op != graph.Copy && !isHost(c.Stream) {
			works, err := elsewhere.build(c)
			if err != nil {
				t.Errorf("%v: %v", c.Op, err)
			}
			list = append(list, launches(works)...)
		}
	}
	return list
}

// shorten leaves a model as few layers as do all that its layers do.
func shorten(m *model.Model) {
	layers := 1 + m.Dense
	for m.Global != (model.Global{}) && m.WindowOf(layers-1) > 0 { // up to the first whose heads are others
		layers++
	}
	if m.Lent.Keys > 0 { // up to the first that reads others' keys and values
		layers, m.Lent.Keys = m.Layers-m.Lent.Keys+1, 1
	}
	m.Layers = layers
}

// TestModelsFit: everything that a step of the known models starts, up to sequences of 131072 tokens,
// is within the limits of every card.
func TestModelsFit(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	for _, name := range family.Published() {
		for _, dt := range []graph.DType{graph.BF16, graph.F32} {
			for _, shape := range [][2]int{{1024, 64}, {131072, 2}} {
				m, err := family.Known(name)
				if err != nil {
					t.Fatal(err)
				}
				seq := shape[0]
				if r := m.RopeScaling; r != nil && r.Growth != 0 {
					seq = min(seq, r.OriginalContext) // longer ones are refused
				}
				shorten(m)
				m.MaxPositions = max(m.MaxPositions, seq)
				g, err := graph.Build(m, seq, dt)
				if err != nil {
					t.Fatal(err)
				}
				p, err := lower.Lower(context.Background(), g, plan.Plain(g, shape[1]), lower.Options{Clip: 1, Capacity: program.NoLimits})
				if err != nil {
					t.Fatal(err)
				}
				for _, l := range launchesOf(t, p.Calls()) {
					if l.block > 1024 || l.shared > leastShared {
						t.Errorf("%s, %d x %d: kernel %s of %s has %d threads and %d bytes of shared memory", name, shape[1], seq, l.kernel, l.unit, l.block, l.shared)
					}
				}
			}
		}
	}
}

// TestBlocksFit: blocks that grow with a row, up to 1024 threads, have registers for
// all of them.
func TestBlocksFit(t *testing.T) {
	c, err := nv.OpenNVRTC(nv.Local())
	if err != nil {
		t.Skipf("kernels are not compiled: %v", err)
	}
	blocks := map[kernels.Unit]*launch{}
	for i, cols := range []int{4101, 24576, 3200, 65536, 5760} {
		dt := []graph.DType{graph.BF16, graph.F32}[i%2]
		op := func(d graph.DType, cols int) device.Operand {
			return device.Operand{DType: d, Rows: 8, Cols: cols, Stride: cols}
		}
		x, stats, one := op(dt, cols), op(graph.F32, 2), op(dt, cols)
		one.Rows = 1
		for _, l := range launchesOf(t, []device.Call{
			{Op: graph.LayerNorm, Args: []device.Operand{x, stats, x, one, one}},
			{Op: graph.LayerNormDX, Args: []device.Operand{x, x, x, one, stats}},
			{Op: graph.CrossEntropy, Args: []device.Operand{op(graph.F32, 1), x, op(graph.I32, 1), op(graph.F32, 8)}},
		}) {
			blocks[l.unit] = l
		}
	}
	for u, l := range blocks {
		for _, arch := range []string{"sm_86", "sm_90"} {
			source, err := u.Source()
			if err != nil {
				t.Fatal(err)
			}
			code, _, err := c.Compile(u.File, source, u.Options(arch))
			if err != nil {
				t.Fatal(err)
			}
			uses, err := fake.Resources(code)
			if err != nil {
				t.Fatal(err)
			}
			if n := l.block * ((uses[l.kernel].Registers + 7) &^ 7); n == 0 || n > leastRegisters {
				t.Errorf("kernel %s of %s for %s: %d threads have %d registers together", l.kernel, u, arch, l.block, n)
			}
			t.Log(fmt.Sprint(u, " ", arch, " ", l.block, " threads ", uses[l.kernel]))
		}
	}
}

// TestRowThreads: threads have a whole row, in warps or, for a small row, in parts of one; and where at
// most an eighth more of them let each have three packs, each has.
func TestRowThreads(t *testing.T) {
	for packs := 1; packs <= 7*1024; packs++ {
		n, each := rowThreads(packs)
		if n%32 != 0 && (n != 8 && n != 16 || each > 1) || n > 1024 || each > 7 || n*each < packs || n > 32 && (n-32)*each >= packs {
			t.Fatalf("%d packs: %d threads with %d", packs, n, each)
		}
		for e := 3; e <= 7 && each < 3 && n > 16; e++ {
			if n := (packs + 32*e - 1) / (32 * e) * 32; n <= 1024 && 8*n*e <= 9*packs {
				t.Fatalf("%d packs: threads have %d, but %d could have %d", packs, each, n, e)
			}
		}
	}
}
