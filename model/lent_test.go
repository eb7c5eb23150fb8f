package model_test

import (
	"testing"

	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/model/family"
)

// TestLent: layers of Gemma 4 E2B and E4B read the keys and values of the last layer that has its own and a window like theirs. Their own
// weights of keys, which published files have, are carried, and no others.
func TestLent(t *testing.T) {
	for name, lenders := range map[string]map[int]int{
		"gemma-4-e2b": {14: 14, 15: 13, 18: 13, 19: 14, 33: 13, 34: 14},
		"gemma-4-e4b": {23: 23, 24: 22, 28: 22, 29: 23, 41: 23},
	} {
		m, err := family.Known(name)
		if err != nil {
			t.Fatal(err)
		}
		for l, want := range lenders {
			if got := model.LenderOf(m, l); got != want {
				t.Errorf("%s: layer %d reads keys of layer %d, want %d", name, l, got, want)
			}
		}
		for tensor, want := range map[string]bool{
			"model.layers.33.self_attn.k_proj.weight": true, "model.layers.33.self_attn.v_proj.weight": true, "model.layers.33.self_attn.k_norm.weight": true,
			"model.language_model.layers.33.self_attn.k_proj.weight": true, "model.layers.13.self_attn.k_proj.weight": false,
			"model.layers.33.self_attn.q_proj.weight": false, "model.layers.99.self_attn.k_proj.weight": false, "model.layers.x.self_attn.k_proj.weight": false,
		} {
			if got := model.Carried(m, tensor); got != want {
				t.Errorf("%s: %s carried: %v", name, tensor, got)
			}
		}
	}
}

// TestLentSizes: sizes that leave a layer nothing to read are refused.
func TestLentSizes(t *testing.T) {
	for name, change := range map[string]func(m *model.Model){
		"all layers":              func(m *model.Model) { m.Lent.Keys = m.Layers },
		"negative":                func(m *model.Model) { m.Lent.Keys = -1 },
		"none without a window":   func(m *model.Model) { m.Lent.Keys = 33 },
		"too wide":                func(m *model.Model) { m.PerLayer = 1 << 16 },
		"a vocabulary that grows": func(m *model.Model) { m.Resize(m.Vocab + 1) },
	} {
		m, err := family.Known("gemma-4-e2b")
		if err != nil {
			t.Fatal(err)
		}
		if change(m); m.Validate() == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
