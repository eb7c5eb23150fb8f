package compare

import (
	"fmt"
	"math"
	"os"
	"testing"

	"github.com/athanor-llm/athanor/bench"
	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/job"
	"github.com/athanor-llm/athanor/machine"
	"github.com/athanor-llm/athanor/machine/machinetest"
)

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
	m, err := bench.Model("gpt2", config.Model{Layers: 2, Width: 16, Heads: 2, Vocab: 80}, 16)
	check(t, err)
	g, err := graph.Build(m, 16, graph.F32)
	check(t, err)
	c := config.Default()
	c.GlobalBatch = 2
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

// TestSweep: before a long run, and not before a short one, the chosen plan has
// really been tried; all plans reach the peaks that were planned, and the chosen one
// is as far behind as the turns say.
func TestSweep(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	for steps, tried := range map[int]bool{1: false, 1e9: true} {
		m, g, spec := here(t)
		m.Capacity[device.DeviceTier] = 90 << 10
		s := Sweep{Graph: g, Plans: 4, Steps: 1}
		r, err := s.measure(t.Context(), m, spec.WithSteps(steps), func(string) {})
		check(t, err)
		if len(r.Plans) < 2 || !r.Exact || r.Behind < 0 || r.Twin <= -1 || r.Twin == 0 || (r.Plans[0].Tried > 0) != tried {
			t.Errorf("a run of %d steps: %+v", steps, r)
		}
		for _, p := range r.Plans {
			if p.Measured <= 0 || math.Abs(p.Predicted/p.Measured-1-p.Error) > 1e-12 {
				t.Errorf("%+v", p)
			}
		}
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
