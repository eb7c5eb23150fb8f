package session

import (
	"context"
	"errors"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cpu"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/verify"
)

// deferring is a plan with everything on the host that defers updates, some of them made by the device.
func deferring(f *fixture) *plan.Plan {
	pl := plan.Plain(f.graph, f.batch())
	pl.Chunks = plan.Layout(f.graph, 3000)
	for i := range pl.Chunks {
		c := &pl.Chunks[i]
		c.Weights, c.Grads, c.State = device.HostTier, device.HostTier, device.HostTier
		if i%3 == 0 {
			c.Update = plan.UpdateOnDevice
		}
	}
	pl.Cache, pl.Defer = pl.CacheNeeded(f.graph), true
	return pl
}

// TestReadsSettle: whoever reads parameters, writes them or runs another step finds them updated, and reading them more often
// changes nothing. (That plans with deferred updates give the same bits as plans without is among the laws.)
func TestReadsSettle(t *testing.T) {
	f := load(t, filepath.Join("../testdata/torch", "gpt2-tiny", "config.json"))
	pl := deferring(f)
	seldom, often := f.openPlan(t, pl), f.openPlan(t, pl)
	now := *pl
	now.Defer = false
	plain := f.openPlan(t, &now)
	for n := 1; n <= 4; n++ {
		want := f.step(t, plain, n)
		for _, s := range []*Session{seldom, often} {
			if out := f.step(t, s, n); out.Loss != want.Loss || out.Norm != want.Norm || out.Skipped {
				t.Errorf("step %d: loss %v, norm %v, want %v and %v", n, out.Loss, out.Norm, want.Loss, want.Norm)
			}
		}
		if !slices.Equal(often.bits(t), plain.bits(t)) {
			t.Errorf("after step %d weights or moments are not what they should be", n)
		}
		check(t, often.Settle(t.Context())) // nothing is left
	}
	if !slices.Equal(seldom.bits(t), plain.bits(t)) {
		t.Error("at the end weights or moments are not what they should be")
	}
}

// TestStepThatDidNotStart: such a step leaves what the step before has deferred as it was, and can be repeated.
func TestStepThatDidNotStart(t *testing.T) {
	f := load(t, filepath.Join("../testdata/torch", "gpt2-tiny", "config.json"))
	pl := deferring(f)
	one, other := f.openPlan(t, pl), f.openPlan(t, pl)
	f.step(t, one, 1)
	f.step(t, other, 1)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	nothing := make([]int32, f.batch()*f.graph.Seq)
	if _, err := other.Step(gone, 0, Batch{nothing, nothing, nothing}, Scalars{Rate: 0.5, Step: 2, Beta1: 0.9, Beta2: 0.95, Targets: 1}); !errors.Is(err, context.Canceled) {
		t.Fatalf("the step was not cancelled: %v", err)
	}
	f.step(t, one, 2)
	f.step(t, other, 2)
	if !slices.Equal(one.bits(t), other.bits(t)) {
		t.Error("a step that did not start changes the updates of the one before")
	}
}

// TestNothingToDefer: a plan that may defer updates but has none to defer is like one that may not.
func TestNothingToDefer(t *testing.T) {
	f := load(t, filepath.Join("../testdata/torch", "gpt2-tiny", "config.json"))
	pl := plan.Plain(f.graph, f.batch())
	pl.Defer = true
	ps := f.lower(t, pl)
	updates, err := Updates(t.Context(), f.graph, pl, ps, f.options())
	if check(t, err); updates != nil || ps[0].Defers() {
		t.Error("something is deferred with everything on the device")
	}
}

// TestUnsettled: without programs for deferred updates, reading what they should have changed is an error.
func TestUnsettled(t *testing.T) {
	f := load(t, filepath.Join("../testdata/torch", "gpt2-tiny", "config.json"))
	d := cpu.New(cpu.Options{DiskPath: filepath.Join(t.TempDir(), "disk")})
	defer d.Close()
	s, err := Open(f.graph, []device.Device{d}, f.lower(t, deferring(f)))
	check(t, err)
	defer s.Close()
	check(t, s.Load(f.read))
	first := f.step(t, s, 1)
	if second := f.step(t, s, 2); math.IsNaN(second.Loss) || second.Loss >= first.Loss {
		t.Errorf("losses %v and %v", first.Loss, second.Loss)
	}
	if err := s.Read(0, optimizer.Weights, make([]float32, f.graph.Params[0].Elems())); err == nil || !strings.Contains(err.Error(), "hint:") {
		t.Errorf("parameters are read before they are updated: %v", err)
	}
}

// TestDeferredIsProved: Prove accepts plans that defer updates, as exact, and no program that makes other updates: with the
// scalars of another step, with other settings, or with one update missing.
func TestDeferredIsProved(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	f := load(t, filepath.Join("../testdata/torch", "gpt2-tiny", "config.json"))
	pl := deferring(f)
	ps := f.lower(t, pl)
	updates, err := Updates(t.Context(), f.graph, pl, ps, f.options())
	check(t, err)
	eq, err := Prove(t.Context(), f.graph, pl, ps, updates, f.options())
	if err != nil || eq != verify.Exact {
		t.Fatal(eq, err)
	}
	cuts, err := lower.Cuts(f.graph, pl)
	check(t, err)
	opt := f.options()
	opt.RowUnit, opt.Cuts = ps[0].RowUnit, cuts
	reference, err := lower.Lower(t.Context(), f.graph, plan.Plain(f.graph, f.batch()), opt)
	check(t, err)
	proved := func(step, update *program.Program) bool {
		eq, err := verify.EquivalentDeferred([]*program.Program{step}, []*program.Program{update}, []*program.Program{reference})
		return err == nil && eq == verify.Exact
	}
	if !proved(ps[0], updates[0]) {
		t.Fatal("what Prove accepts is not")
	}
	scalars := slices.IndexFunc(ps[0].Buffers, func(b program.Buffer) bool { return b.Name == program.StepScalars })
	tried := 0
	for _, which := range []int{0, 1} { // of the step, of the updates
		for i, in := range []*program.Program{ps[0], updates[0]}[which].Instrs {
			if in.Op.String() != "adamw" {
				continue
			}
			for _, edit := range []func(p *program.Program){
				func(p *program.Program) { p.Instrs[i].Attr.Beta1 = 0.5 },
				func(p *program.Program) {
					if in.Stream == device.HostCompute {
						p.Instrs[i].Args = slices.Clone(in.Args)
						p.Instrs[i].Args[5].Buf = scalars
					} else {
						p.Instrs[i].Attr.Eps = 1
					}
				},
				func(p *program.Program) { p.Instrs[i] = p.Instrs[(i+1)%len(p.Instrs)] },
			} {
				list := []program.Program{*ps[0], *updates[0]}
				list[which].Instrs = slices.Clone(list[which].Instrs)
				edit(&list[which])
				if tried++; proved(&list[0], &list[1]) {
					t.Errorf("an edit of instruction %d of program %d goes unnoticed", i, which)
				}
			}
		}
	}
	if tried < 20 {
		t.Errorf("%d edits", tried)
	}
}
