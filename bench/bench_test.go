package bench

import (
	"context"
	"fmt"
	"math"
	"os"
	"testing"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cpu"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/job"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/machine"
	"github.com/athanor-llm/athanor/machine/machinetest"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/session"
)

// TestBenchCases: every case is a call that a device takes, and several copies
// of it fit the arena; all operators that do arithmetic or move much are there.
func TestBenchCases(t *testing.T) {
	for _, d := range []graph.DType{graph.F32, graph.BF16} {
		seen := map[graph.Op]bool{graph.Copy: true, graph.Cast: true, graph.LossSum: true, graph.NormAll: true,
			graph.LinearDX: true,                                                                                                                         // a product like Linear
			graph.EmbedAt:  true, graph.RoPEAt: true, graph.AttentionAt: true, graph.ShortConvAt: true, graph.DeltaRuleAt: true, graph.StateScanAt: true} // of generation, which is bound by Linear
		for _, c := range Cases(d) {
			seen[c.op] = true
			call := device.Call{Op: c.op, Attr: c.attr}
			for _, x := range c.dims {
				call.Args = append(call.Args, device.Operand{DType: x.DType, Rows: x.Rows, Cols: x.Cols, Stride: x.Cols})
			}
			if err := device.Check(&call, [device.NumTiers]int64{arenaBytes}); err != nil {
				t.Errorf("%v %s: %v", c.op, c.shape(), err)
			}
			if c.bytes() > arenaBytes {
				t.Errorf("%v %s: %d bytes of operands exceed the arena", c.op, c.shape(), c.bytes())
			}
			for i, a := range c.dims {
				if a.DType == graph.I32 && a.Bytes() > indexBytes {
					t.Errorf("%v %s: operand %d has more indices than there are", c.op, c.shape(), i)
				}
			}
		}
		for op := graph.None + 1; op < graph.NumOps; op++ {
			if !seen[op] && !op.Info().Between {
				t.Errorf("%v is not measured", op)
			}
		}
	}
}

// TestBound: a product is bound by its arithmetic, an addition by its bytes.
func TestBound(t *testing.T) {
	p := Peaks{F32: 100e9, BF16: 200e9, Read: 20e9, Copy: 10e9, Moved: 12e9}
	for _, c := range []struct {
		op     graph.Op
		dims   []graph.Dim
		want   float64
		memory bool
	}{
		{graph.Linear, []graph.Dim{{Rows: 100, Cols: 200}, {Rows: 100, Cols: 300}, {Rows: 300, Cols: 200}}, 2 * 100 * 200 * 300 / 100e9, false},
		{graph.Linear, []graph.Dim{{DType: graph.BF16, Rows: 100, Cols: 200}, {DType: graph.BF16, Rows: 100, Cols: 300}, {DType: graph.BF16, Rows: 300, Cols: 200}},
			2 * 100 * 200 * 300 / 200e9, false},
		{graph.Linear, []graph.Dim{{Rows: 1, Cols: 5000}, {Rows: 1, Cols: 300}, {Rows: 300, Cols: 5000}}, 4 * (5000 + 300 + 300*5000) / 20e9, true},
		{graph.Add, []graph.Dim{{Rows: 10, Cols: 100}, {Rows: 10, Cols: 100}}, 12000 / 12e9, true},
	} {
		if got, memory := p.bound(c.op, &graph.Attr{}, c.dims); math.Abs(got/c.want-1) > 1e-12 || memory != c.memory {
			t.Errorf("%v %v: bound %v, memory %v; want %v, %v", c.op, c.dims, got, memory, c.want, c.memory)
		}
	}
}

// TestStepBench: the peaks that a measured step reached are the program's, and
// the breakdown accounts for every instruction and for the whole step.
func TestStepBench(t *testing.T) {
	m, err := Model("llama-2-7b", config.Model{Layers: 2, Width: 24, Heads: 4, KVHeads: 2, FeedForward: 40, Vocab: 90}, 16)
	check(t, err)
	if m.HeadDim != 6 || m.KVHeads != 2 || m.Vocab != 90 || m.FeedForward != 40 {
		t.Errorf("sizes: %+v", m)
	}
	g, err := graph.Build(m, 16, graph.F32)
	check(t, err)
	opt := lower.Options{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Decay: 0.1, Clip: 1, Capacity: program.NoLimits}
	p, err := lower.Lower(t.Context(), g, plan.Plain(g, 2), opt)
	check(t, err)
	d := cpu.New(cpu.Options{})
	defer d.Close()
	before := 0
	b := session.StepBench{Graph: g, Programs: []*program.Program{p}, Devices: []device.Device{d}, Sequences: 2, Warmup: 1, Steps: 3, Before: func() error { before++; return nil }}
	steps, err := b.Run(context.Background())
	check(t, err)
	if len(steps) != 3 || before != 3 || steps[0].Seconds > steps[2].Seconds {
		t.Fatalf("%d steps, %d calls before them: %v", len(steps), before, steps)
	}
	if s := d.Stats(); s.Peak != p.Height {
		t.Errorf("peaks %v, planned %v", s.Peak, p.Height)
	}
	peaks := Peaks{Cores: 1, F32: 1e9, BF16: 1e9, Read: 1e9, Copy: 1e9, Moved: 1e9}
	for _, byCall := range []bool{false, true} {
		calls, compute := 0, 0.0
		for _, o := range Breakdown(p, &steps[1], nil, &peaks, byCall) {
			calls += o.Calls
			if o.Stream == device.Compute.String() {
				compute += o.Seconds
			}
		}
		if calls != len(p.Instrs) || math.Abs(compute/steps[1].Seconds-1) > 1e-6 {
			t.Errorf("by call %v: %d calls of %d, %v s of %v s", byCall, calls, len(p.Instrs), compute, steps[1].Seconds)
		}
	}
}

// TestGeometric: budgets fall strictly, and their ends are exact.
func TestGeometric(t *testing.T) {
	last := int64(math.MaxInt64)
	for i := range 12 {
		v := Geometric(4629576, 826376, i, 12)
		if v >= last {
			t.Errorf("budget %d is %d after %d", i, v, last)
		}
		last = v
	}
	if first := Geometric(4629576, 826376, 0, 12); first != 4629576 || last != 826376 {
		t.Errorf("from %d to %d", first, last)
	}
}

func TestMain(m *testing.M) {
	code, err := machinetest.Run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

// here is a machine at hand whose rates are another's, with a model and a
// job for it.
func here(t *testing.T) (*machine.Machine, *graph.Graph, *job.Spec) {
	t.Helper()
	m, err := Model("gpt2", config.Model{Layers: 2, Width: 16, Heads: 2, Vocab: 80}, 16)
	check(t, err)
	g, err := graph.Build(m, 16, graph.F32)
	check(t, err)
	c := config.Default()
	c.GlobalBatch = 4
	c.Plan.MicroBatch = 4
	h, err := hardware.KnownRank("a100-40", 1)
	check(t, err)
	c.Limits.DiskPath = t.TempDir()
	spec, err := job.Settle(config.ToPlan, &c, func(string) {})
	check(t, err)
	mach, err := machine.Find(spec.Machine(), func(string) {})
	check(t, err)
	mach.Hardware, mach.Capacity = h, [device.NumTiers]int64{1 << 30, 1 << 30, 1 << 30}
	return mach, g, spec
}

// TestBudgets: every budget is kept, and what was planned was reached.
func TestBudgets(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	mach, g, spec := here(t)
	var got []BudgetRun
	b := Budgets{Machine: mach, Graph: g, Spec: spec, Count: 3, Steps: 1}
	check(t, b.Run(t.Context(), func(string) {}, func(r BudgetRun) { got = append(got, r) }))
	for i, r := range got {
		if !r.Exact || r.Reached.Device[0] > r.Budget || i > 0 && r.Budget >= got[i-1].Budget {
			t.Errorf("budget %d: %+v", i, r)
		}
	}
	if len(got) != 3 || mach.Capacity[device.DeviceTier] != 1<<30 {
		t.Errorf("%d budgets, and the machine's limit became %d", len(got), mach.Capacity[device.DeviceTier])
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
