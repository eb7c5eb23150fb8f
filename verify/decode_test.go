package verify

import (
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/samples"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
)

// TestDecodePrograms: programs of generation are safe, read back from their
// text, share weights and caches with the program that reads the prompt, and do
// the same whatever the plan.
func TestDecodePrograms(t *testing.T) {
	seed := testkit.Seed(t)
	rng := rand.New(rand.NewPCG(seed, 0))
	for _, name := range testkit.Sample(slices.Sorted(maps.Keys(samples.TinyModels)), 2, 9) {
		for _, dt := range []graph.DType{graph.F32, graph.BF16} {
			m := samples.BuildGraph(t, name, dt).Model
			var base *program.Program
			for _, n := range []graph.Generation{
				{Context: 8, Rows: 4}, {Context: 8, Rows: 4, Reads: true}, {Context: 8, Rows: 1},
				{Context: 8, Slots: 3, Rows: 6, Reads: true}, {Context: 8, Slots: 3, Rows: 3}, {Context: 8, Slots: 3, Rows: 1},
			} {
				rows := n.Rows
				g, err := n.Build(m, dt)
				if err != nil {
					t.Fatal(err)
				}
				if n.Reads && n.Slots > 0 { // the first of those with several sequences
					base = nil
				}
				plain, err := lowerMode(g, plan.Plain(g, 1), 1, lower.Decode, base)
				if err != nil {
					t.Fatal(err)
				}
				if err := Verify(plain); err != nil {
					t.Fatalf("%s %v, %d rows: %v", name, dt, rows, err)
				}
				if q, err := program.Parse(plain.String()); err != nil || !reflect.DeepEqual(plain, q) {
					t.Fatalf("%s %v: text does not read back: %v", name, dt, err)
				}
				if base != nil {
					shared(t, base, plain)
					if err := VerifyBeside(base, plain); err != nil {
						t.Fatal(err)
					}
				}
				base = plain
				for range testkit.Count(3, 5, 10) {
					pl := samples.RandomPlan(g, 1, rng)
					p, err := lowerMode(g, pl, 1, lower.Decode, nil)
					if err != nil {
						continue // too few cache blocks
					}
					if err := check(p, plain); err != nil {
						t.Fatalf("%s %v, %d rows, plan %+v: %v", name, dt, rows, pl, err)
					}
				}
			}
		}
	}
}

// TestBatchPrograms: programs that generate layer by layer for several batches of sequences, or read their prompts, are safe, read back from
// their text and do what those do that have one micro-batch after the other and all on the device, wherever caches and hidden states are and
// whoever attends.
func TestBatchPrograms(t *testing.T) {
	seed := testkit.Seed(t)
	rng := rand.New(rand.NewPCG(seed, 2))
	for _, name := range testkit.Sample(slices.DeleteFunc(slices.Sorted(maps.Keys(samples.TinyModels)), func(name string) bool { return model.Remembers(samples.TinyModels[name]) }), 2, 9) {
		for _, dt := range []graph.DType{graph.F32, graph.BF16} {
			for range testkit.Count(4, 8, 30) {
				p, plain, err := batchPrograms(name, dt, rng)
				if err != nil {
					t.Fatal(err)
				}
				if err := check(p, plain); err != nil {
					t.Fatalf("%s %v: %v", name, dt, err)
				}
				if q, err := program.Parse(p.String()); err != nil || !reflect.DeepEqual(p, q) {
					t.Fatalf("%s %v: text does not read back: %v", name, dt, err)
				}
			}
		}
	}
}

// batchPrograms lowers a random plan for batches of sequences, and the reference.
func batchPrograms(name string, dt graph.DType, rng *rand.Rand) (p, reference *program.Program, err error) {
	n := graph.Generation{Context: 4, Slots: 1 + rng.IntN(2), Rows: 2, Reads: rng.IntN(2) == 0}
	g, err := n.Build(samples.TinyModels[name], dt)
	if err != nil {
		return nil, nil, err
	}
	each := 1
	if n.Reads {
		each = n.Slots
	}
	batches := 1 + rng.IntN(3)
	if reference, err = lowerMode(g, plan.InBatches(g, batches, each), 1, lower.Decode, nil); err != nil {
		return nil, nil, err
	}
	pl := samples.RandomPlan(g, 1, rng)
	samples.DrawBatches(pl, g, batches, each, rng)
	p, err = lowerMode(g, pl, 1, lower.Decode, nil)
	return p, reference, err
}

// shared: what is kept from step to step is at the same addresses in both.
func shared(t *testing.T, base, p *program.Program) {
	t.Helper()
	at := map[string]int64{}
	for _, b := range base.Buffers {
		at[b.Name] = b.Addr
	}
	caches := 0
	for _, b := range p.Buffers {
		addr, ok := at[b.Name]
		if own := strings.HasPrefix(b.Name, "pos") || b.Name == "logits"; own && !ok { // input and result of this program alone
			continue
		}
		if b.Persistent && (!ok || addr != b.Addr) {
			t.Errorf("%s is at %d, in the base at %d", b.Name, b.Addr, addr)
		}
		if strings.HasSuffix(b.Name, ".kv") {
			caches++
		}
	}
	if caches == 0 {
		t.Error("no caches")
	}
}

// TestDecodeMode: graphs of training and of generation are not mixed up.
func TestDecodeMode(t *testing.T) {
	train := samples.BuildGPT(t, 1, 8, 2, 16, 4, true)
	decode, err := graph.BuildDecode(train.Model, 4, 1, graph.F32)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		g         *graph.Graph
		sequences int
		mode      lower.Mode
	}{{train, 1, lower.Decode}, {decode, 1, lower.Train}, {decode, 1, lower.Logits}, {decode, 2, lower.Decode}} {
		if _, err := lowerMode(c.g, plan.Plain(c.g, c.sequences), 0, c.mode, nil); err == nil || !strings.Contains(err.Error(), "hint: ") {
			t.Errorf("mode %d, %d sequences: %v", c.mode, c.sequences, err)
		}
	}
	for _, c := range [][2]int{{0, 1}, {4, 0}, {4, 5}, {5, 1}} {
		if _, err := graph.BuildDecode(train.Model, c[0], c[1], graph.F32); err == nil || !strings.Contains(err.Error(), "hint: ") {
			t.Errorf("context %d, %d rows: %v", c[0], c[1], err)
		}
	}
}
