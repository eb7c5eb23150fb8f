package verify

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/samples"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/program"
)

// Law L8, by mutation: a valid program is broken at random, and Verify or
// Equivalent must reject the mutant, unless the oracle, which runs it, finds
// that it is as good as the original.

// rewait gives a program the waits that its memory accesses require, whatever it
// computes: whatever is wrong with it then is not a race.
func rewait(p *program.Program) {
	if _, err := checkStructure(p); err != nil {
		return // its operands may be anything
	}
	for i := range p.Instrs {
		in := &p.Instrs[i]
		in.Waits = nil
		for j := range i {
			if p.Instrs[j].Stream != in.Stream && clash(p, j, i) {
				in.Waits = append(in.Waits, j)
			}
		}
	}
}

// copyOf returns a program that may be changed.
func copyOf(p *program.Program) *program.Program {
	q := *p
	q.Buffers, q.Instrs, q.Homes = slices.Clone(p.Buffers), slices.Clone(p.Instrs), slices.Clone(p.Homes)
	for i := range q.Buffers {
		b := &q.Buffers[i]
		b.Cuts, b.Init = slices.Clone(b.Cuts), slices.Clone(b.Init)
	}
	for i := range q.Instrs {
		in := &q.Instrs[i]
		in.Args, in.Waits, in.Peers = slices.Clone(in.Args), slices.Clone(in.Waits), slices.Clone(in.Peers)
	}
	return &q
}

// testMutants breaks a program n times and reports how many mutants of each
// kind were rejected; a mutant that is accepted must be harmless. Some are broken
// twice, and some get new waits, so that the defect is not found as a race.
func testMutants(t *testing.T, p *program.Program, n int, rng *rand.Rand, rejected map[string]int) (accepted int) {
	t.Helper()
	text := p.String()
	for made := 0; made < n; {
		q := copyOf(p)
		mu := mutations[rng.IntN(len(mutations))]
		did := mu.apply(&mutator{q, rng})
		if _, err := checkStructure(q); err == nil && did != "" && rng.IntN(4) == 0 {
			did += ", " + mutations[rng.IntN(len(mutations))].apply(&mutator{q, rng})
		}
		if did == "" || q.String() == text {
			continue
		}
		made++
		if rng.IntN(2) == 0 {
			rewait(q)
		}
		if err := check(q, p); err != nil {
			rejected[mu.name]++
			if !strings.Contains(err.Error(), "hint:") {
				t.Errorf("%s: error without a hint: %v", did, err)
			}
			continue
		}
		accepted++
		if why := harmless(q, p, rng); why != "" {
			t.Errorf("accepted, but %s: %s (%s) in %q", why, did, mu.name, p.Name)
		}
	}
	return accepted
}

func check(p, reference *program.Program) error {
	if err := Verify(p); err != nil {
		return err
	}
	eq, err := Equivalent([]*program.Program{p}, []*program.Program{reference})
	if err == nil && eq != Exact {
		err = fmt.Errorf("%v; hint: one rank keeps the order of sums", eq)
	}
	return err
}

// randomProgram lowers some plan of a tiny model, perhaps with frozen parameters, in
// some mode.
func randomProgram(name string, rng *rand.Rand) (*program.Program, error) {
	m := *samples.TinyModels[name]
	dt, mode := []graph.DType{graph.F32, graph.BF16}[rng.IntN(2)], []lower.Mode{lower.Train, lower.Train, lower.Grads, lower.Eval, lower.Logits, lower.Decode}[rng.IntN(6)]
	if rng.IntN(2) == 0 {
		samples.FreezeSome(&m, rng)
	}
	if mode == lower.Decode && rng.IntN(2) == 0 {
		p, _, err := batchPrograms(name, dt, rng)
		return p, err
	}
	if mode == lower.Decode {
		build := []func(*model.Model, int, int, graph.DType) (*graph.Graph, error){graph.BuildDecode, graph.BuildPrefill}[rng.IntN(2)]
		g, err := build(&m, 4, 2, dt)
		if err != nil {
			return nil, err
		}
		return lowerMode(g, samples.RandomPlan(g, 1, rng), 1, mode, nil)
	}
	docs := []*graph.Documents{nil, {Length: 3}}[rng.IntN(2)]
	if name == "pairs" {
		docs = &graph.Documents{Length: 3, Preference: 0.1}
	}
	g, err := graph.BuildDocuments(&m, 4, dt, docs)
	if err != nil {
		return nil, err
	}
	pl := samples.RandomPlan(g, 2, rng)
	pl.Defer = rng.IntN(2) == 0
	samples.DrawOptimizer(pl, g, rng)
	return lowerMode(g, pl, 2, mode, nil)
}

// TestOmittedOperands: whatever operands are omitted at the end, and with either value of flags, Verify looks at no operand that is not there.
func TestOmittedOperands(t *testing.T) {
	for _, p := range smallPrograms() {
		for i := range p.Instrs {
			in := &p.Instrs[i]
			was := *in
			for k := range was.Args {
				for flags := range 8 {
					in.Args = was.Args[:k:k]
					in.Attr.Acc, in.Attr.WT, in.Attr.Slots = flags&1 > 0, flags&2 > 0, flags&4 > 0
					if _, err := checkStructure(p); err == nil && k == 0 {
						t.Fatalf("instruction %d, %v, is accepted without operands", i, in.Op)
					}
				}
			}
			*in = was
		}
	}
}

func TestMutants(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	seed := testkit.Seed(t)
	rng := rand.New(rand.NewPCG(seed, 2))
	programs := smallPrograms()
	for i, p := range programs {
		if err := check(p, programs[0]); err != nil {
			t.Fatalf("variant %+v: %v", smallVariants[i], err)
		}
	}
	rejected := map[string]int{}
	accepted := 0
	for _, p := range programs {
		accepted += testMutants(t, p, testkit.Count(0, 120, 300), rng, rejected)
	}
	for _, name := range testkit.Sample(slices.Sorted(maps.Keys(samples.TinyModels)), 1, 8) {
		for n := 0; n < testkit.Count(1, 2, 3); {
			p, err := randomProgram(name, rng)
			if err != nil {
				continue // too little cache
			}
			n++
			accepted += testMutants(t, p, 40, rng, rejected)
		}
	}
	total := 0
	for _, name := range slices.Sorted(maps.Keys(rejected)) {
		t.Logf("%4d rejected: %s", rejected[name], name)
		total += rejected[name]
	}
	t.Logf("%4d rejected, %d accepted and harmless", total, accepted)
	for _, mu := range mutations {
		if rejected[mu.name] == 0 {
			t.Errorf("no mutant was rejected by: %s", mu.name)
		}
	}
	if total < 200 {
		t.Errorf("only %d mutants were rejected", total)
	}
}
