package family

import (
	"slices"

	"github.com/athanor-llm/athanor/model"
)

// exaone4 is EXAONE 4 (2507.11407): norms after attention and feed-forward alone, and of each head's queries and keys; in models
// that have windows, layers without one have no positions.
var exaone4 = family{
	Family:     model.Family{Name: "exaone4", Tensors: sandwichNames()},
	class:      "Exaone4ForCausalLM",
	classifier: "Exaone4ForSequenceClassification",
	fixed:      model.Model{QKNorm: model.QKNormHeads, Norms: model.PostNorm},
	table: changed(llamaTable,
		row{key: "vocab_size", field: vocab, def: 102400},
		row{key: "num_key_value_heads", field: kvHeads, def: 32},
		row{key: "intermediate_size", field: feedForward, def: 16384},
		row{key: "rms_norm_eps", field: normEps, def: 1e-5},
		row{key: "layer_types", read: (*config).exaoneWindows, write: writeExaoneWindows},
		rope(rotary{}),
	),
	typical: "exaone-4.0-1.2b",
	published: map[string]string{
		"exaone-4.0-1.2b": `{"num_hidden_layers": 30, "hidden_size": 2048, "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 4096,
			"max_position_embeddings": 65536, "rope_theta": 1000000, "tie_word_embeddings": true, "sliding_window": null,
			"rope_scaling": {"rope_type": "llama3", "factor": 16, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192}}`,
		"exaone-4.0-32b": `{"num_hidden_layers": 64, "hidden_size": 5120, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 27392,
			"max_position_embeddings": 131072, "rope_theta": 1000000, "sliding_window": 4096,
			"rope_scaling": {"rope_type": "llama3", "factor": 16, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192}}`,
	},
}

// exaoneWindows reads which layers have a window; if there are any, the others have no positions. Without layer_types, all layers
// have one but those whose number is a multiple of sliding_window_pattern, which otherwise may also be letters.
func (c *config) exaoneWindows(m *model.Model) {
	m.Window = c.sizeOr("sliding_window", 4096)
	types := c.layerTypes(m)
	c.used["sliding_window_pattern"] = true
	if types == nil {
		every := 4
		if c.get("sliding_window_pattern", &every); m.Window == 0 {
			every = 1
		} else if every < 1 {
			c.fail("sliding_window_pattern is %d; hint: it must be at least 1", every)
		}
		types = everyOther(m.Layers, every)
	}
	c.needWindow(m, types)
	if m.Window > 0 {
		unturned := make([]bool, len(types))
		for l, sliding := range types {
			unturned[l] = !sliding
		}
		if m.NoRotary = slices.Clip(unturned[:period(unturned)]); !slices.Contains(unturned, true) {
			m.NoRotary = nil
		}
	}
	slide(m, types)
}

func writeExaoneWindows(m *model.Model, kv map[string]any) {
	kv["layer_types"], kv["sliding_window"] = layerTypes(m), nil
	if m.Window > 0 || m.NoRotary != nil { // a window that no layer has still takes positions away
		kv["sliding_window"] = max(m.Window, 1)
	}
}
