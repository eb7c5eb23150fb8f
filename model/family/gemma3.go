package family

import "github.com/athanor-llm/athanor/model"

// gemma3 is the text model of Gemma 3 (2503.19786): norms before and after attention and feed-forward, with gains 1 + weight,
// and of each head's queries and keys; windows in most layers, with a rotary base of their own; GeGLU.
var gemma3 = family{
	Family:     model.Family{Name: "gemma3_text", Tensors: sandwichNames()},
	class:      "Gemma3ForCausalLM",
	classifier: "Gemma3TextForSequenceClassification",
	fixed:      model.Model{QKNorm: model.QKNormHeads, Norms: model.SandwichNorm, UnitOffset: true, ScaledEmbed: true},
	table: changed(without(llamaTable, "hidden_act"),
		row{key: "vocab_size", field: vocab, def: 262208},
		row{key: "num_hidden_layers", field: layers, def: 26},
		row{key: "hidden_size", field: width, def: 2304},
		row{key: "num_attention_heads", field: heads, def: 8},
		row{key: "num_key_value_heads", field: kvHeads, def: 4},
		row{key: "head_dim", field: headDim, def: 256},
		row{key: "intermediate_size", field: feedForward, def: 9216},
		row{key: "max_position_embeddings", field: maxPositions, def: 131072},
		activated("hidden_activation", "gelu_pytorch_tanh"),
		row{key: "rope_theta", field: ropeTheta, def: 1e6},
		row{key: "tie_word_embeddings", field: tied, def: true},
		row{key: "query_pre_attn_scalar", field: queryScalar, def: 256},
		attentionBias,
		softCap("attn_logit_softcapping", scoreCap, 0),
		softCap("final_logit_softcapping", logitCap, 0),
		row{key: "use_bidirectional_attention", only: false},
		row{key: "layer_types", read: (*config).gemmaWindows, write: writeGemmaWindows},
		rope(rotary{byLayer: true}),
	),
	ignored: []string{"hidden_act"},
	typical: "gemma-3-270m",
	published: map[string]string{
		"gemma-3-270m": `{"num_hidden_layers": 18, "hidden_size": 640, "num_attention_heads": 4, "num_key_value_heads": 1, "intermediate_size": 2048,
			"vocab_size": 262144, "max_position_embeddings": 32768, "sliding_window": 512}`,
		"gemma-3-1b": `{"hidden_size": 1152, "num_attention_heads": 4, "num_key_value_heads": 1, "intermediate_size": 6912,
			"vocab_size": 262144, "max_position_embeddings": 32768, "sliding_window": 512}`,
	},
}

// sandwichNames are also OLMo 2's and 3's, which have fewer norms: what Llama calls the norm after attention is the one
// before the feed-forward.
func sandwichNames() model.TensorNames {
	n := llamaNames
	n.AttnNorm, n.Norm2, n.MLPNorm = "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"
	return n
}

// gemmaWindows reads which layers have a window, and their rotary base.
func (c *config) gemmaWindows(m *model.Model) {
	every := 6
	c.get("_sliding_window_pattern", &every)
	c.get("sliding_window_pattern", &every)
	m.Window, m.LocalTheta = 4096, 1e4
	c.get("sliding_window", &m.Window)
	c.get("rope_local_base_freq", &m.LocalTheta)
	types := c.layerTypes(m)
	if types == nil {
		types = everyOther(m.Layers, every)
	}
	slide(m, types)
}

func writeGemmaWindows(m *model.Model, kv map[string]any) {
	kv["layer_types"] = layerTypes(m)
	if m.Window > 0 {
		add(kv, map[string]any{"sliding_window": m.Window, "rope_local_base_freq": m.LocalTheta})
	}
}
