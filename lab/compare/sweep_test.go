package compare

import (
	"fmt"
	"math"
	"os"
	"strings"
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
func here(t *testing.T, tokens int) (*machine.Machine, *graph.Graph, *job.Spec) {
	t.Helper()
	m, err := bench.Model("gpt2", config.Model{Layers: 2, Width: 16, Heads: 2, Vocab: 80}, tokens)
	check(t, err)
	g, err := graph.Build(m, tokens, graph.F32)
	check(t, err)
	c := config.Default()
	c.GlobalBatch, c.SequenceLength = 2, tokens
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
		m, g, spec := here(t, 16)
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

// TestSweepShares: with several ranks plans that share sequences, either way, and matrices are rivals, run, and reach the peaks that were planned.
func TestSweepShares(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	_, g, spec := here(t, 128)
	spec = spec.WithRanks(2, 0).WithSteps(1)
	m, err := machine.Find(spec.Machine(), func(string) {})
	check(t, err)
	if m.Hardware, err = hardware.KnownRank("a100-40", 2); err != nil {
		t.Fatal(err)
	}
	m.Capacity = [device.NumTiers]int64{1 << 30, 1 << 30, 1 << 30}
	s := Sweep{Graph: g, Plans: 4, Steps: 1}
	r, err := s.measure(t.Context(), m, spec, func(string) {})
	check(t, err)
	var labels string
	for _, p := range r.Plans {
		labels += p.Plan + "\n"
	}
	for _, kind := range []string{"to a sequence exchange keys", "to a sequence exchange heads", "to a matrix"} {
		if !strings.Contains(labels, kind) {
			t.Errorf("no plan with 2 ranks %s:\n%s", kind, labels)
		}
	}
	if !r.Exact {
		t.Error("peaks are not as planned")
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
