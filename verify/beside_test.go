package verify

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/samples"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/program"
)

// TestBeside: an evaluation that is lowered on a training step leaves the step's state
// where it is and as it is, whatever the plan; one that loses, moves, renames or
// changes it is found, which Verify alone would not do.
func TestBeside(t *testing.T) {
	seed := testkit.Seed(t)
	rng := rand.New(rand.NewPCG(seed, 11))
	slipped := 0
	for round := 0; round < testkit.Count(3, 6, 6); {
		g := samples.BuildGraph(t, "llama", []graph.DType{graph.F32, graph.BF16}[rng.IntN(2)])
		pl := samples.RandomPlan(g, 4, rng)
		samples.DrawOptimizer(pl, g, rng)
		base, err := lowerMode(g, pl, 2, lower.Train, nil)
		if err != nil {
			continue // too little cache
		}
		round++
		evaluate := func() *program.Program {
			p, err := lowerMode(g, pl, 2, lower.Eval, base)
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		p := evaluate()
		if err := VerifyBeside(base, p); err != nil {
			t.Fatalf("plan %+v: %v", pl, err)
		}
		fails := func(p *program.Program, want string) {
			t.Helper()
			if err := VerifyBeside(base, p); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "hint: ") {
				t.Errorf("%v, want %q", err, want)
			}
		}
		used := make([]bool, len(p.Buffers))
		for i := range p.Instrs {
			for _, r := range p.Instrs[i].Args {
				used[r.Buf] = used[r.Buf] || !r.Absent()
			}
		}
		for i := len(p.Buffers) - 1; i >= 0 && !used[i]; i-- { // what only the base uses comes last
			if b := &p.Buffers[i]; rng.IntN(2) == 0 || b.Name == "clip" || strings.HasPrefix(b.Name, batchPrefix) {
				continue
			}
			q := evaluate()
			q.Buffers = slices.Delete(q.Buffers, i, i+1)
			fails(q, "is not kept by")
			if Verify(q) == nil {
				slipped++
			}
			q = evaluate()
			q.Buffers[i].Addr += q.Buffers[i].Align
			fails(q, "and at")
			q = evaluate()
			q.Buffers[i].Init = slices.Clone(q.Buffers[i].Init)
			q.Buffers[i].Init[0] = "other"
			fails(q, "has another type, shape, size or content")
		}
		for i := range p.Instrs {
			q := evaluate()
			in := &q.Instrs[i]
			if in.Op == graph.Copy && in.Stream == device.HostToDev && q.Buffers[in.Args[1].Buf].Class == program.ClassWeights {
				in.Args[0], in.Args[1], in.Stream = in.Args[1], in.Args[0], device.DevToHost
				fails(q, "is written")
				break
			}
		}
		p.Rank++
		fails(p, "the base program of rank 0")
	}
	if slipped == 0 {
		t.Error("Verify finds all that is lost by itself")
	}
}
