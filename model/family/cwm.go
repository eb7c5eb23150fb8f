package family

import "github.com/athanor-llm/athanor/model"

// cwm is Code World Model (2510.02387): Llama with windows in three of four layers.
var cwm = family{
	Family: model.Family{Name: "cwm", Tensors: llamaNames},
	class:  "CwmForCausalLM",
	table: changed(llamaTable,
		row{key: "vocab_size", field: vocab, def: 128256},
		row{key: "num_hidden_layers", field: layers, def: 64},
		row{key: "hidden_size", field: width, def: 6144},
		row{key: "num_attention_heads", field: heads, def: 48},
		row{key: "num_key_value_heads", field: kvHeads, def: 8},
		row{key: "head_dim", field: headDim, def: 128},
		row{key: "intermediate_size", field: feedForward, def: 21504},
		row{key: "max_position_embeddings", field: maxPositions, def: 131072},
		row{key: "rms_norm_eps", field: normEps, def: 1e-5},
		row{key: "rope_theta", field: ropeTheta, def: 1e6},
		row{key: "layer_types", read: (*config).cwmWindows, write: writeOlmo3Windows},
		rope(rotary{explicit: true}),
	),
	constant: map[string]any{"bos_token_id": 0}, // transformers refuses null
	typical:  "cwm",
	published: map[string]string{
		"cwm": `{"rope_scaling": {"rope_type": "llama3", "factor": 16, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192}}`,
	},
}

// cwmWindows reads which layers have a window: all but every fourth, from the first on.
func (c *config) cwmWindows(m *model.Model) {
	m.Window = c.sizeOr("sliding_window", 8192)
	types := c.layerTypes(m)
	if types == nil {
		for l := range min(m.Layers, model.MaxLayers) {
			types = append(types, l%4 != 0)
		}
	}
	c.needWindow(m, types)
	slide(m, types)
}
