package verify

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/samples"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
)

// TestDeferred: for random plans that defer updates, the step and the program of the updates are safe, also between
// each other's runs, and together compute exactly what the plain program computes after the updates. A step makes all
// updates that the same plan makes without deferring, each once, and those on the host's cores before the first operator
// if all are deferred. The program of the updates is a part of the step, at its addresses.
func TestDeferred(t *testing.T) {
	seed := testkit.Seed(t)
	rng := rand.New(rand.NewPCG(seed, 9))
	some := 0
	for n := 0; n < testkit.Count(8, 25, 60); {
		m := *samples.TinyModels[[]string{"gpt2", "llama", "qwen2"}[rng.IntN(3)]]
		g, err := graph.Build(&m, 4, []graph.DType{graph.F32, graph.BF16}[rng.IntN(2)])
		if err != nil {
			t.Fatal(err)
		}
		pl := samples.RandomPlan(g, 2, rng)
		samples.DrawOptimizer(pl, g, rng)
		now, err := lowerTrain(t, g, pl, 2)
		if err != nil {
			continue // too little cache
		}
		n++
		pl.Defer = true
		step, err := lowerTrain(t, g, pl, 2)
		if err != nil {
			t.Fatal(err)
		}
		updates, err := lowerMode(g, pl, 2, lower.Update, step)
		if err != nil {
			t.Fatal(err)
		}
		for _, err := range []error{Verify(step), Verify(updates), Shares(step, updates)} {
			if err != nil {
				t.Fatalf("%v\nplan %+v", err, pl)
			}
		}
		plain := plan.Plain(g, 2)
		plain.Optimizer, plain.State = pl.Optimizer, pl.State
		cuts, err := lower.Cuts(g, pl)
		if err != nil {
			t.Fatal(err)
		}
		opt := lower.Options{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Decay: 0.1, Clip: 1, RowUnit: 2, Cuts: cuts, Capacity: program.NoLimits}
		reference, err := lower.Lower(t.Context(), g, plain, opt)
		if err != nil {
			t.Fatal(err)
		}
		if eq, err := EquivalentDeferred([]*program.Program{step}, []*program.Program{updates}, []*program.Program{reference}); err != nil || eq != Exact {
			t.Fatalf("%v %v\nplan %+v", eq, err, pl)
		}
		if have, want := updated(step), updated(now); !slices.Equal(have, want) {
			t.Errorf("elements %v are updated, want %v", have, want)
		}
		if updates.Height != step.Height || len(updates.Buffers) != len(step.Buffers) {
			t.Errorf("updates take %v, the step %v", updates.Height, step.Height)
		}
		late := slices.IndexFunc(step.Instrs, func(in program.Instr) bool { return in.Key.Dir == program.Forward })
		deferred := len(updated(updates))
		some += deferred
		for i, in := range step.Instrs {
			if optimizer.Updating(in.Op) != nil && in.Stream == device.HostCompute && i > late && deferred == len(updated(step)) {
				t.Errorf("instruction %d updates on the host behind the first operator", i)
			}
		}
	}
	if some == 0 {
		t.Error("nothing was deferred")
	}
}

// updated lists the number of elements of each update of a program, ascending.
func updated(p *program.Program) (list []int) {
	for _, in := range p.Instrs {
		if optimizer.Updating(in.Op) != nil {
			list = append(list, in.Args[0].Rows*in.Args[0].Cols)
		}
	}
	slices.Sort(list)
	return list
}
