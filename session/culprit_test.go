package session

import (
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
)

// edit changes the elements of the parameter whose name ends so.
func (f *fixture) edit(t *testing.T, s *Session, suffix string, change func(w []float32)) {
	t.Helper()
	for i, p := range f.graph.Params {
		if strings.HasSuffix(p.Name, suffix) {
			buf := make([]float32, p.Elems())
			check(t, s.Read(i, optimizer.Weights, buf))
			change(buf)
			check(t, s.Write(i, optimizer.Weights, buf))
			return
		}
	}
	t.Fatalf("no parameter %s", suffix)
}

func fill(x float32) func(w []float32) {
	return func(w []float32) {
		for i := range w {
			w[i] = x
		}
	}
}

// TestDiagnose: the first number that is not finite is found where it was caused, whatever the plan; in a step in
// which all numbers are finite, nothing is found.
func TestDiagnose(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	seed := testkit.Seed(t)
	r := rand.New(rand.NewPCG(seed, 12))
	const most = 3e38
	f := load(t, filepath.Join("../testdata/torch", "gpt2-untied", "config.json"))
	sc := Scalars{Rate: 1e-3, Step: 2, Beta1: 0.9, Beta2: 0.95, Targets: len(f.targets)}
	once := slices.IndexFunc(f.tokens, func(id int32) bool { // a token that the batch has only once
		n := 0
		for _, other := range f.tokens {
			if other == id {
				n++
			}
		}
		return n == 1
	})
	if once < 0 {
		t.Fatal("every token occurs again")
	}
	for k := range testkit.Count(4, 8, 24) {
		layer := r.IntN(f.graph.Model.Layers)
		at, segment := fmt.Sprintf("h.%d.", layer), fmt.Sprintf("h%d", layer)
		cases := map[string]struct {
			cause func(s *Session)
			want  func(c *Culprit) bool
		}{
			"none": {func(*Session) {}, func(c *Culprit) bool { return c == nil }},
			"weight": {
				func(s *Session) {
					f.edit(t, s, at+"mlp.c_fc.weight", func(w []float32) { w[r.IntN(len(w))] = float32(math.Inf(-1)) })
				},
				func(c *Culprit) bool {
					return c.Before && math.IsInf(c.Value, -1) && strings.HasSuffix(c.Operand, at+"mlp.c_fc.weight")
				},
			},
			"forward": { // the products of numbers that float32 still holds
				func(s *Session) {
					f.edit(t, s, at+"mlp.c_fc.weight", fill(0))
					f.edit(t, s, at+"mlp.c_fc.bias", fill(1e30))
					f.edit(t, s, at+"mlp.c_proj.weight", fill(1e30))
				},
				func(c *Culprit) bool {
					return c.Instr.Op == graph.Linear && c.Forward() && c.Segment == segment && c.Operand == fmt.Sprintf("x%d", layer+1) &&
						slices.ContainsFunc(c.Inputs, func(in Input) bool {
							return in.Largest == float64(float32(1e30)) && strings.HasSuffix(in.Name, "mlp.c_proj.weight")
						})
				},
			},
			"backward": { // what the forward pass multiplies by zero, the backward pass does not
				func(s *Session) {
					f.edit(t, s, "ln_f.weight", fill(1e4))
					f.edit(t, s, at+"mlp.c_fc.weight", fill(0))
					f.edit(t, s, at+"mlp.c_fc.bias", fill(0))
					f.edit(t, s, at+"mlp.c_proj.weight", fill(most))
				},
				func(c *Culprit) bool {
					return c.Instr.Op == graph.LinearDX && c.Instr.Key.Dir == program.Backward && c.Segment == segment && strings.HasPrefix(c.Operand, "d."+segment+".")
				},
			},
			"token": {
				func(s *Session) {
					width := f.graph.Model.Width
					f.edit(t, s, "wte.weight", func(w []float32) { fill(most)(w[int(f.tokens[once])*width:][:width]) })
				},
				func(c *Culprit) bool {
					row, seq := once/f.graph.Seq, f.graph.Seq
					return c.Instr.Op == graph.LayerNorm && c.Segment == "h0" && c.First == row && c.Last == row+1 && c.Token == once%seq
				},
			},
		}
		for name, tc := range cases {
			how := []string{"one rank", "replicas", "slices", "pipeline"}[k%4]
			t.Run(fmt.Sprintf("%s/%d %s", name, k, how), func(t *testing.T) {
				pl := randomPlan(r, f)
				switch how {
				case "replicas":
					f.amongRanks(r, pl, 2)
				case "pipeline", "slices":
					pl = plan.Plain(f.graph, 1)
					pl.Ranks, pl.MicroBatches = 2, 4
					pl.Defer = false
					pl.Pipeline = &plan.Pipeline{Schedule: "1f1b", Ranks: 2, Slices: 1, Stages: []int{0, len(f.graph.Segments) / 2}}
					if how == "slices" {
						pl.Pipeline.Schedule, pl.Pipeline.Slices = "seq1f1b", 2
					}
				}
				s := f.openPlan(t, pl)
				f.step(t, s, 1)
				tc.cause(s)
				before := s.bits(t)
				if out := f.step(t, s, 2); out.Skipped != (name != "none") {
					t.Fatalf("loss %v, norm %v", out.Loss, out.Norm)
				}
				if name != "none" && !slices.Equal(before, s.bits(t)) {
					t.Fatal("the step has changed the state")
				}
				c, err := s.Diagnose(f.text(), sc)
				check(t, err)
				if !tc.want(c) {
					t.Errorf("layer %d: %v; sequences %+v\nplan %+v", layer, c, c, pl)
				}
			})
		}
	}
}
