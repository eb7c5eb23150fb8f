package planner

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/job"
	"github.com/athanor-llm/athanor/machine"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/model/family"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/search"
)

// TestTimed: operators of a policy's plan are timed on the machine at hand, like those of the search's plan:
// otherwise the two times cannot be compared.
func TestTimed(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	g, err := graph.Build(tiny(t), 16, graph.F32)
	check(t, err)
	c := config.Default()
	c.GlobalBatch, c.Limits.DiskPath = 4, t.TempDir()
	spec, err := job.Settle(config.ToPlan, &c, func(string) {})
	check(t, err)
	m, err := machine.Find(spec.Machine(), func(string) {})
	check(t, err)
	r, err := (&Task{Machine: m, Graph: g, Spec: spec}).PlanBy(t.Context(), "zero-3")
	check(t, err)
	for i := range r.Best.Program.Instrs {
		call := r.Best.Program.Call(i)
		if key := hardware.Key(&call); m.Hardware.Times[key] <= 0 {
			t.Fatalf("%s was not timed", key)
		}
	}
}

// TestOptimizer: plans, those of policies too, and what is said of memory are for the job's optimizer, and a plan.json for
// another one is refused.
func TestOptimizer(t *testing.T) {
	g, err := graph.Build(tiny(t), 16, graph.F32)
	check(t, err)
	elems := int64(0)
	for _, p := range g.Params {
		elems += p.Elems()
	}
	bytes := map[optimizer.Optimizer]int64{}
	for o := range optimizer.NumOptimizers {
		sizes := tiny(t)
		sizes.Indivisible = !o.Rule().Elementwise
		g, err := graph.Build(sizes, 16, graph.F32)
		check(t, err)
		c := config.Default()
		c.GlobalBatch, c.SequenceLength, c.Optimizer, c.Hardware.Name, c.Precision = 4, 16, o.String(), "l4", "fp32"
		c.Plan.MicroBatch = 1
		spec, err := job.Settle(config.ToPlan, &c, func(string) {})
		check(t, err)
		m, err := machine.Describe(spec.Machine(), func(string) {})
		check(t, err)
		task := &Task{Machine: m, Graph: g, Spec: spec}
		r, err := task.PlanAny(t.Context(), func(string) {})
		check(t, err)
		by, err := task.PlanBy(t.Context(), "zero-3")
		check(t, err)
		if r.Best.Plan.Optimizer != o || by.Best.Plan.Optimizer != o {
			t.Errorf("for %v: plans with %v and, by a policy, %v", o, r.Best.Plan.Optimizer, by.Best.Plan.Optimizer)
		}
		bytes[o], err = search.PlainBytes(t.Context(), task.Request())
		check(t, err)
		text, err := json.Marshal(r.Best.Plan)
		check(t, err)
		file := filepath.Join(t.TempDir(), "plan.json")
		check(t, os.WriteFile(file, text, 0o644))
		c.Plan, c.Optimizer = config.Plan{File: file}, ((o + 1) % optimizer.NumOptimizers).String()
		other, err := job.Settle(config.ToPlan, &c, func(string) {})
		check(t, err)
		if _, err := (&Task{Machine: m, Graph: g, Spec: other}).Plan(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "its updates are by "+o.String()) {
			t.Errorf("a plan for %v with %s: %v", o, c.Optimizer, err)
		}
	}
	if saved := bytes[optimizer.AdamW] - bytes[optimizer.Lion]; saved < 4*elems || saved > 4*elems+4096 {
		t.Errorf("lion saves %d bytes of %d for %d parameters, want 4 for each", saved, bytes[optimizer.AdamW], elems)
	}
}

// tiny is a model of two layers.
func tiny(t *testing.T) *model.Model {
	of, err := family.Known("gpt2")
	check(t, err)
	of.Layers, of.Width, of.Heads, of.KVHeads, of.HeadDim, of.FeedForward, of.Vocab = 2, 16, 2, 2, 8, 64, 80
	return of
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
