package session

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/device/cpu"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/plan"
)

// TestSkippedSteps: a step whose norm is above the bound or is not finite changes no bit of the
// weights and moments, wherever a plan keeps them and whatever updates them; and a run goes on as
// if the step had never happened.
func TestSkippedSteps(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	seed := testkit.Seed(t)
	r := rand.New(rand.NewPCG(seed, 11))
	for _, name := range testkit.Sample([]string{"gpt2-tiny", "llama-tied bf16", "gpt2-tiny fp32, bf16_moments", "gpt2-tiny bf16, bf16", "gpt2-untied on 2", "gpt2-untied on 4"}, 1, 4) {
		folder, how, _ := strings.Cut(name, " ")
		f := load(t, filepath.Join("../testdata/torch", folder, "config.json"))
		if strings.HasPrefix(how, "bf16") {
			f.store(t, graph.BF16)
		}
		if _, state, ok := strings.Cut(name, ", "); ok {
			check(t, f.state.UnmarshalText([]byte(state)))
		}
		for k := range testkit.Count(1, 2, 4) {
			t.Run(fmt.Sprintf("%s/%d", name, k), func(t *testing.T) {
				pl := randomPlan(r, f)
				ranks := 1
				if _, err := fmt.Sscanf(how, "on %d", &ranks); err == nil {
					f.amongRanks(r, pl, ranks)
				}
				straight, interrupted := f.openPlan(t, pl), f.openPlan(t, pl)
				for n := 1; n <= 3; n++ {
					want := f.step(t, straight, n)
					before := interrupted.bits(t)
					out := f.bounded(t, interrupted, n, want.Norm*0.99)
					if !out.Skipped || out.Loss != want.Loss || out.Norm != want.Norm {
						t.Errorf("skipped %v, loss %v, norm %v; want %v, %v", out.Skipped, out.Loss, out.Norm, want.Loss, want.Norm)
					}
					if !slices.Equal(before, interrupted.bits(t)) {
						t.Fatalf("the norm is above the bound, and weights or moments have changed; plan %+v", pl)
					}
					if out = f.bounded(t, interrupted, n, want.Norm); out.Skipped || want.Skipped {
						t.Error("an update within the bound is skipped")
					}
				}
				if !slices.Equal(straight.bits(t), interrupted.bits(t)) {
					t.Errorf("steps after one that is skipped differ; plan %+v", pl)
				}
				f.poison(t, interrupted, r.IntN(len(f.graph.Params)), []float32{float32(math.NaN()), float32(math.Inf(1))}[r.IntN(2)])
				before := interrupted.bits(t)
				if out := f.step(t, interrupted, 4); !out.Skipped || !math.IsNaN(out.Norm) && !math.IsInf(out.Norm, 1) {
					t.Errorf("skipped %v, norm %v", out.Skipped, out.Norm)
				}
				if !slices.Equal(before, interrupted.bits(t)) {
					t.Errorf("the norm is none, and weights or moments have changed; plan %+v", pl)
				}
			})
		}
	}
}

// openPlan opens a session of a plan's programs on all ranks, with the fixture's weights.
func (f *fixture) openPlan(t *testing.T, pl *plan.Plan) *Session {
	t.Helper()
	devices := cpu.OpenRanks(cpu.Options{DiskPath: filepath.Join(t.TempDir(), "disk"), Workers: 1}, pl.Ranks)
	s := f.begin(t, devices, pl, f.lower(t, pl))
	t.Cleanup(func() { s.Close(); CloseAll(devices) })
	return s
}

// bounded is step n with a bound on the norm.
func (f *fixture) bounded(t *testing.T, s *Session, n int, bound float64) Outcome {
	t.Helper()
	out, err := s.Step(context.Background(), 0, f.text(),
		Scalars{Rate: 1e-3, Step: n, Beta1: 0.9, Beta2: 0.95, Targets: len(f.targets), Bound: bound})
	check(t, err)
	return out
}

// poison sets all elements of a parameter.
func (f *fixture) poison(t *testing.T, s *Session, param int, value float32) {
	t.Helper()
	check(t, s.Write(param, optimizer.Weights, slices.Repeat([]float32{value}, int(f.graph.Params[param].Elems()))))
}

// bits returns all weights and moments, bit by bit, so that NaN equals itself.
func (s *Session) bits(t *testing.T) (list []uint32) {
	t.Helper()
	for i, p := range s.Graph.Params {
		for _, kind := range optimizer.AdamW.Rule().State() {
			buf := make([]float32, p.Elems())
			check(t, s.Read(i, kind, buf))
			for _, x := range buf {
				list = append(list, math.Float32bits(x))
			}
		}
	}
	return list
}
