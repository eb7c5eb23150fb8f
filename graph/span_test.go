package graph

import (
	"fmt"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/model/family"
)

// TestSpans: which weights of the first layer form one product, and whose gradients one operator computes.
func TestSpans(t *testing.T) {
	for _, c := range []struct {
		name      string
		set       func(m *model.Model) error
		products  []int // weights of each, in order
		gradients []int // weights of each operator, backwards
	}{
		{"gpt2", nil, []int{1, 1, 1, 1}, []int{2, 2}},
		{"llama-3.2-1b", nil, []int{3, 1, 2, 1}, []int{1, 2, 4}}, // at the gradient of gates and ups nothing waits
		{"qwen2-0.5b", nil, []int{3, 1, 2, 1}, []int{1, 2, 4}},
		{"phi-3-mini", nil, []int{1, 1, 1, 1}, []int{1, 1, 2}},
		{"llama-3.2-1b", func(m *model.Model) error { return m.Freeze("*.0.self_attn.k_proj.weight") }, []int{1, 1, 1, 1, 2, 1}, []int{1, 2, 2, 1}},
		{"llama-3.2-1b", func(m *model.Model) error { return m.Freeze("model.layers.0.*") }, []int{3, 1, 2, 1}, nil},
		{"qwen2-0.5b", func(m *model.Model) error { return m.Freeze("*.0.self_attn.k_proj.bias") }, []int{1, 1, 1, 1, 2, 1}, []int{1, 2, 2, 1, 1}},
	} {
		m, err := family.Known(c.name)
		if err != nil {
			t.Fatal(err)
		}
		m.Layers = 2
		if c.set != nil {
			if err := c.set(m); err != nil {
				t.Fatal(err)
			}
		}
		g, err := Build(m, 16, F32)
		if err != nil {
			t.Fatal(err)
		}
		var products, gradients []int
		for _, n := range g.Segments[1].Forward {
			if n.Op == Linear {
				products = append(products, g.Values[n.Args[2].Value].Params)
			}
		}
		for _, n := range g.Segments[1].Backward {
			if n.Op == LinearDW {
				sum := 0
				for i := 0; i < len(n.Args); i += 3 {
					sum += g.Values[n.Args[i].Value].Params
				}
				gradients = append(gradients, sum)
			}
		}
		if what := fmt.Sprintf("%s, frozen %v", c.name, m.Frozen); !slices.Equal(products, c.products) || !slices.Equal(gradients, c.gradients) {
			t.Errorf("%s: products of %v weights, gradients of %v, want %v and %v", what, products, gradients, c.products, c.gradients)
		}
	}
}
