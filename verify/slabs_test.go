package verify

import (
	"fmt"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/samples"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/model/family"
	"github.com/athanor-llm/athanor/program"
)

// slabGraphs returns a tiny model's whole graph and that of one of n ranks that share its matrices.
func slabGraphs(t *testing.T, name string, n int) (whole, part *graph.Graph) {
	t.Helper()
	known, err := family.Known(name)
	if err != nil {
		t.Fatal(err)
	}
	m := *known
	m.Layers, m.Width, m.Heads, m.KVHeads, m.HeadDim, m.FeedForward, m.Vocab, m.MaxPositions, m.Window = 2, 16, 4, 4, 4, 32, 32, 64, 0
	if m.Family.Name != "gpt2" {
		m.KVHeads = 2
	}
	if m.Experts > 0 {
		m.Experts, m.Active, m.Shared, m.Vocab = 4, 2, min(m.Shared, 32), 32
	}
	build := func(build func() (*graph.Graph, error)) *graph.Graph {
		g, err := build()
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	return build(func() (*graph.Graph, error) { return graph.Build(&m, 16, graph.F32) }),
		build(func() (*graph.Graph, error) { return graph.BuildSlab(&m, 16, n, graph.F32, nil) })
}

// TestDivided: graphs of slabs are proved to be whole graphs divided, and every mutant in which a sum over ranks is missing, made
// twice, made of another value or made elsewhere is rejected.
func TestDivided(t *testing.T) {
	rng := testkit.Rand(t)
	for name, n := range map[string]int{"llama-2-7b": 2, "gpt2": 2, "qwen3-0.6b": 4, "qwen2-1.5b": 4, "qwen3-30b-a3b": 2, "gpt-oss-20b": 4} {
		whole, part := slabGraphs(t, name, n)
		if err := Divided(whole, part); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for s := range part.Segments {
			for _, pass := range []*[]graph.Node{&part.Segments[s].Forward, &part.Segments[s].Backward} {
				nodes := *pass
				for i := range nodes {
					if nodes[i].Op != graph.AllReduce {
						continue
					}
					sum := nodes[i]
					other := sum
					other.Args = []graph.Use{nodes[rng.IntN(i)].Args[0]}
					later := slices.Insert(slices.Delete(slices.Clone(nodes), i, i+1), min(i+1, len(nodes)-1), sum)
					for what, mutant := range map[string][]graph.Node{
						"missing": slices.Delete(slices.Clone(nodes), i, i+1),
						"twice":   slices.Insert(slices.Clone(nodes), i, sum),
						"before":  slices.Insert(slices.Delete(slices.Clone(nodes), i, i+1), i-1, sum),
						"later":   later,
						"other":   append(append(slices.Clone(nodes[:i]), other), nodes[i+1:]...),
					} {
						moved := what == "later" && (i+1 == len(nodes) || !touches(nodes[i+1], sum.Args[0].Value)) || what == "before" && !touches(nodes[i-1], sum.Args[0].Value)
						if *pass = mutant; Divided(whole, part) == nil && !moved && other.Args[0] != sum.Args[0] {
							t.Errorf("%s: a sum of %s in segment %s that is %s is accepted", name, part.Values[sum.Args[0].Value].Name, part.Segments[s].Name, what)
						}
					}
					*pass = nodes
				}
			}
		}
	}
}

// touches reports whether a node has a value as an operand.
func touches(n graph.Node, v int) bool {
	return slices.ContainsFunc(n.Args, func(u graph.Use) bool { return u.Value == v })
}

// TestRandomSlabs: random plans of ranks that share matrices are safe, and compute what the plain programs of as many ranks do.
func TestRandomSlabs(t *testing.T) {
	rng := testkit.Rand(t)
	for n := 0; n < testkit.Count(3, 15, 200); {
		g, pl := samples.RandomSlabs(t, rng)
		if err := pl.Validate(g); err != nil {
			t.Log(err)
			continue
		}
		n++
		if err := prove(g, pl, float64(rng.IntN(2)), lower.Mode(rng.IntN(int(lower.Logits)+1))); err != nil {
			t.Fatalf("%v\n%s\nplan %+v", err, pl.Model, pl)
		}
	}
}

// TestSlabOrder: ranks with other slabs begin the operations between ranks in one order, whatever each adds to a sum, so that none waits
// for another that waits for it.
func TestSlabOrder(t *testing.T) {
	rng := testkit.Rand(t)
	for n := 0; n < testkit.Count(10, 60, 600); {
		g, pl := samples.RandomSlabs(t, rng)
		if pl.Validate(g) != nil {
			continue
		}
		n++
		var first []string
		for rank := range pl.Sharers() {
			p, err := lower.Lower(t.Context(), g, pl, lower.Options{Rank: rank, Clip: 1, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Capacity: program.NoLimits})
			if err != nil {
				t.Fatal(err)
			}
			var order []string
			for i := range p.Instrs {
				if in := &p.Instrs[i]; in.Stream == device.Collective {
					order = append(order, fmt.Sprint(in.Op, in.Key))
				}
			}
			if first == nil {
				first = order
			}
			if !slices.Equal(order, first) {
				t.Fatalf("rank %d: %v\nrank 0: %v\n%s\nplan %+v", rank, order, first, pl.Model, pl)
			}
		}
	}
}

// TestAlikeNodes: a graph of slabs in which an operator is missing or has another constant is not the whole graph divided.
func TestAlikeNodes(t *testing.T) {
	for name, n := range map[string]int{"qwen2-1.5b": 4, "gpt-oss-20b": 4} {
		whole, part := slabGraphs(t, name, n)
		for s := range part.Segments {
			for _, pass := range []*[]graph.Node{&part.Segments[s].Forward, &part.Segments[s].Backward} {
				nodes := *pass
				for i := range nodes {
					if nodes[i].Op == graph.AllReduce || nodes[i].Op == graph.LossPart {
						continue
					}
					other := nodes[i]
					other.Attr.Seq++
					for what, mutant := range map[string][]graph.Node{
						"missing": slices.Delete(slices.Clone(nodes), i, i+1),
						"other":   append(append(slices.Clone(nodes[:i]), other), nodes[i+1:]...),
					} {
						if *pass = mutant; checkAlike(whole, part) == nil {
							t.Errorf("%s: %v that is %s in segment %s is accepted", name, nodes[i].Op, what, part.Segments[s].Name)
						}
					}
				}
				*pass = nodes
			}
		}
	}
}
