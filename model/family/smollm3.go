package family

import (
	"slices"

	"github.com/athanor-llm/athanor/model"
)

// smolLM3 is SmolLM3: Llama with some layers without positions.
var smolLM3 = family{
	Family:     model.Family{Name: "smollm3", Tensors: llamaNames},
	class:      "SmolLM3ForCausalLM",
	classifier: "SmolLM3ForSequenceClassification",
	table: changed(llamaTable,
		row{key: "vocab_size", field: vocab, def: 128256},
		row{key: "num_hidden_layers", field: layers, def: 36},
		row{key: "hidden_size", field: width, def: 2048},
		row{key: "num_attention_heads", field: heads, def: 16},
		row{key: "num_key_value_heads", field: kvHeads, def: 4, null: asHeads},
		row{key: "max_position_embeddings", field: maxPositions, def: 32768},
		row{key: "rope_theta", field: ropeTheta, def: 2e6},
		row{key: "tie_word_embeddings", field: tied, def: true},
		attentionBias,
		row{key: "mlp_bias", field: mlpBias, def: false},
		row{key: "no_rope_layers", read: (*config).smolPositions, write: writeSmolPositions},
		row{key: "use_sliding_window", read: (*config).smolWindows, write: writeWindows},
		rope(rotary{}),
	),
	constant: map[string]any{"pad_token_id": nil},
	typical:  "smollm3-3b",
	published: map[string]string{
		"smollm3-3b": `{"max_position_embeddings": 65536, "rope_theta": 5000000}`,
	},
}

// smolPositions reads which layers have no rotary positions.
func (c *config) smolPositions(m *model.Model) {
	var turned []int
	every := 4
	c.get("no_rope_layer_interval", &every)
	if !c.get("no_rope_layers", &turned) {
		for l := range min(m.Layers, model.MaxLayers) {
			turned = append(turned, l+1)
			if every > 0 {
				turned[l] %= every
			}
		}
	}
	if len(turned) != min(m.Layers, model.MaxLayers) {
		c.fail("no_rope_layers has %d entries for %d layers", len(turned), m.Layers)
	}
	unturned := make([]bool, len(turned))
	for l, t := range turned {
		unturned[l] = t == 0
	}
	if slices.Contains(unturned, true) {
		m.NoRotary = slices.Clip(unturned[:period(unturned)])
	}
}

// writeSmolPositions has a 1 for each layer with rotary positions, and a 0 for each without.
func writeSmolPositions(m *model.Model, kv map[string]any) {
	turned := make([]int, m.Layers)
	for l := range turned {
		if m.HasRotary(l) {
			turned[l] = 1
		}
	}
	kv["no_rope_layers"] = turned
}

// smolWindows reads which layers have a window: without layer_types, those without rotary positions.
func (c *config) smolWindows(m *model.Model) {
	types := c.layerTypes(m)
	size, use := 0, false
	c.get("sliding_window", &size)
	if c.get("use_sliding_window", &use); !use {
		return
	}
	m.Window = size
	if types == nil {
		for l := range min(m.Layers, model.MaxLayers) {
			types = append(types, !m.HasRotary(l))
		}
	}
	slide(m, types)
}
