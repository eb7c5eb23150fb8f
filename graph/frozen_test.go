package graph

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/model/family"
)

// live lists the backward operators of a graph that gradients of trained
// parameters depend on: dead code elimination, from the last operator to the
// first, of the backward pass of a graph in which everything is trained.
func live(g *Graph, frozen func(param int) bool) (list []string) {
	needed := map[int][]Use{} // columns, by value
	for s := range g.Segments {
		nodes := g.Segments[s].Backward
		for i := len(nodes) - 1; i >= 0; i-- {
			n := &nodes[i]
			use := false
			specs := n.Op.Info().Args
			for k, u := range n.Args {
				spec, v := specs[k], u.Value
				if spec.Access == Read || v < 0 {
					continue
				}
				if g.Values[v].Kind == ParamGrad {
					use = use || !frozen(g.Values[v].Param)
				} else {
					use = use || slices.ContainsFunc(needed[v], u.overlaps)
				}
			}
			if !use {
				continue
			}
			for k, u := range n.Args {
				if v := u.Value; v >= 0 && g.Values[v].Kind == Gradient && specs[k].Access != Write {
					needed[v] = append(needed[v], u)
				}
			}
			list = append(list, g.describe(n, frozen))
		}
	}
	return list
}

// describe returns a node's operator and operands; the gradient of a norm's bias looks
// the same whichever operator computes it.
func (g *Graph) describe(n *Node, frozen func(param int) bool) string {
	if n.Op == LayerNormDW && frozen(g.Values[n.Args[0].Value].Param) {
		n = &Node{Op: BiasGrad, Args: []Use{n.Args[1], n.Args[2]}}
	}
	text := fmt.Sprint(n.Op, n.Attr.Acc, n.Chunked)
	for _, u := range n.Args {
		if u.Value >= 0 {
			text += fmt.Sprintf(" %s[%d:%d]", g.Values[u.Value].Name, u.Lo, u.Hi)
		}
	}
	return text
}

// split replaces each backward operator on several weights by the operators on single weights that it stands
// for.
func split(g *Graph) {
	for s := range g.Segments {
		var single, list []Node
		for _, n := range g.Segments[s].Backward {
			if n.Op == LinearDW && len(n.Args) > 3 {
				second := n
				second.Args = n.Args[3:]
				single = append(single, second)
				n.Args = n.Args[:3]
			}
			single = append(single, n)
		}
		for _, n := range single {
			last := n.Args[len(n.Args)-1]
			switch {
			case n.Op == LinearDX && g.Values[n.Args[2].Value].Params > 1:
				list = append(list, g.each(n, 2, 1)...)
			case (n.Op == LinearDW || n.Op == BiasGrad) && g.Values[n.Args[0].Value].Params > 1:
				list = append(list, g.each(n, 0, slices.Index(n.Args, last))...)
			default:
				list = append(list, n)
			}
		}
		g.Segments[s].Backward = list
	}
}

// each lists the nodes that one node stands for, last parameter first: operand w has the parameters, dy their
// columns.
func (g *Graph) each(n Node, w, dy int) (list []Node) {
	v := g.Values[n.Args[w].Value]
	hi := n.Args[dy].Hi
	for k := v.Params - 1; k >= 0; k-- {
		p := &g.Params[v.Param+k]
		cols := p.Rows
		if p.Vector {
			cols = p.Cols
		}
		one := n
		one.Args = slices.Clone(n.Args)
		name := p.Name
		if v.Kind == ParamGrad {
			name = "d." + name
		}
		g.Values = append(g.Values, Value{Name: name, Kind: v.Kind, Rows: p.Rows, Cols: p.Cols, Param: v.Param + k, Params: 1})
		one.Args[w] = Use{len(g.Values) - 1, 0, p.Cols}
		one.Args[dy].Lo, one.Args[dy].Hi = hi-cols, hi
		one.Attr.Acc = n.Op == LinearDX && (n.Attr.Acc || k < v.Params-1)
		list, hi = append(list, one), hi-cols
	}
	return list
}

// TestFrozen: the backward pass with frozen parameters is what dead code elimination
// leaves of the full one, and saves the values that it reads.
func TestFrozen(t *testing.T) {
	seed := testkit.Seed(t)
	r := rand.New(rand.NewPCG(seed, 3))
	for range 200 {
		name := []string{"gpt2", "llama-2-7b", "opt-125m", "qwen2-0.5b", "mistral-7b", "qwen3-0.6b", "gemma-3-270m", "olmo-2-1b", "pythia-70m", "phi-3-mini", "smollm3-3b", "granite-3.0-2b", "starcoder2-3b", "stablelm-2-1.6b", "phi-2", "olmo-3-7b"}[r.IntN(16)]
		m, err := family.Known(name)
		if err != nil {
			t.Fatal(err)
		}
		m.Layers, m.Tied, m.Sinks = 3, r.IntN(2) == 0, m.RMS() && r.IntN(2) == 0
		full, err := Build(m, 16, F32)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		below, share := r.IntN(5)-1, r.Float64()
		for _, p := range full.Params {
			if p.Layer < below || r.Float64() < share {
				names = append(names, p.Name)
			}
		}
		if m.Freeze(names...) != nil { // half a norm, or all
			continue
		}
		g, err := Build(m, 16, F32)
		if err != nil {
			t.Fatal(err)
		}
		frozen := func(p int) bool { return g.Params[p].Frozen }
		split(full)
		split(g)
		want := live(full, func(p int) bool { return slices.Contains(m.Frozen, full.Params[p].Name) })
		var got []string
		for s := range g.Segments {
			seg := &g.Segments[s]
			for i := len(seg.Backward) - 1; i >= 0; i-- {
				n := &seg.Backward[i]
				got = append(got, g.describe(n, frozen))
				for _, u := range n.Args {
					if u.Value >= 0 && g.Values[u.Value].Kind == Forwarded && !g.Values[u.Value].Chunked && !slices.Contains(seg.Saved, u.Value) {
						t.Fatalf("%s: %s is read and not saved", name, g.Values[u.Value].Name)
					}
				}
			}
			if below := s > 0 && len(g.Segments[s-1].Backward) > 0; below != (seg.DIn >= 0) {
				t.Errorf("%s: the gradient of the input of %s is value %d, the segment below goes backwards: %v", name, seg.Name, seg.DIn, below)
			}
			if len(seg.Backward) == 0 && len(seg.Saved) > 0 {
				t.Errorf("%s: %s saves %v for nothing", name, seg.Name, seg.Saved)
			}
		}
		slices.Sort(got) // a product with several weights is not where the products with each of them are
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Fatalf("%s, frozen %v:\n%d operators %q\n%d are live %q", name, m.Frozen, len(got), got, len(want), want)
		}
	}
}

// TestAdapterScale: adapters of scale 1 cost no operator; others cost one forward and one backward for
// each weight, on matrices as wide as the rank.
func TestAdapterScale(t *testing.T) {
	for _, lora := range []model.LoRA{{Rank: 4}, {Rank: 4, Alpha: 4}, {Rank: 4, Alpha: 2, RSLoRA: true}, {Rank: 4, Alpha: 8}, {Rank: 4, RSLoRA: true}} {
		m, err := family.Known("gpt2")
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Adapt(lora); err != nil {
			t.Fatal(err)
		}
		g, err := Build(m, 16, F32)
		if err != nil {
			t.Fatal(err)
		}
		want := 2 * len(m.LoRA.Weights)
		if m.LoRA.Scale("") == 1 {
			want = 0
		}
		found := 0
		for _, seg := range g.Segments {
			for _, n := range slices.Concat(seg.Forward, seg.Backward) {
				if n.Op != Scale {
					continue
				}
				found++
				if cols := g.Values[n.Args[0].Value].Cols; cols != 4 || n.Attr.Scale != 2 {
					t.Errorf("%+v: %d columns are multiplied by %v", lora, cols, n.Attr.Scale)
				}
			}
		}
		if found != want {
			t.Errorf("%+v: %d operators that scale, want %d", lora, found, want)
		}
	}
}
