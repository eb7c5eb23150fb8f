package planner

import (
	"testing"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/job"
	"github.com/athanor-llm/athanor/machine"
	"github.com/athanor-llm/athanor/model/family"
)

// TestTimed: operators of a policy's plan are timed on the machine at hand, like those of the search's plan:
// otherwise the two times cannot be compared.
func TestTimed(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	of, err := family.Known("gpt2")
	check(t, err)
	of.Layers, of.Width, of.Heads, of.KVHeads, of.HeadDim, of.FeedForward, of.Vocab = 2, 16, 2, 2, 8, 64, 80
	g, err := graph.Build(of, 16, graph.F32)
	check(t, err)
	c := config.Default()
	c.GlobalBatch, c.Limits.DiskPath = 4, t.TempDir()
	spec, err := job.Settle(config.ToPlan, &c, func(string) {})
	check(t, err)
	m, err := machine.Find(spec.Machine(), func(string) {})
	check(t, err)
	r, err := (&Task{m, g, spec}).PlanBy(t.Context(), "zero-3")
	check(t, err)
	for i := range r.Best.Program.Instrs {
		call := r.Best.Program.Call(i)
		if key := hardware.Key(&call); m.Hardware.Times[key] <= 0 {
			t.Fatalf("%s was not timed", key)
		}
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
