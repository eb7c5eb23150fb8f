package family

import "github.com/athanor-llm/athanor/model"

// phi3 is Phi-3 (2404.14219) and Phi-4: Llama with fused matrices.
var phi3 = family{
	Family:     model.Family{Name: "phi3", FusedQKV: true, FusedGate: true, Tensors: phi3Names()},
	class:      "Phi3ForCausalLM",
	classifier: "Phi3ForSequenceClassification",
	table: changed(llamaTable,
		row{key: "vocab_size", field: vocab, def: 32064},
		row{key: "hidden_size", field: width, def: 3072},
		row{key: "intermediate_size", field: feedForward, def: 8192},
		row{key: "max_position_embeddings", field: maxPositions, def: 4096},
		row{key: "rms_norm_eps", field: normEps, def: 1e-5},
		row{key: "partial_rotary_factor", read: share("partial_rotary_factor", 1).read, write: writePhi3Share},
		row{key: "sliding_window", field: window, def: 0},
		row{key: "attention_bias", only: false},
		fullAttention,
		row{key: "rope_scaling", read: (*config).phi3Rope, write: writePhi3Rope},
	),
	constant: map[string]any{"pad_token_id": nil},
	typical:  "phi-3-mini",
	published: map[string]string{
		"phi-3-mini": `{"sliding_window": 2047}`,
		"phi-3-medium": `{"num_hidden_layers": 40, "hidden_size": 5120, "num_attention_heads": 40, "num_key_value_heads": 10, "intermediate_size": 17920,
			"sliding_window": 2047}`,
		"phi-4": `{"num_hidden_layers": 40, "hidden_size": 5120, "num_attention_heads": 40, "num_key_value_heads": 10, "intermediate_size": 17920,
			"vocab_size": 100352, "max_position_embeddings": 16384, "rope_theta": 250000}`,
	},
}

func phi3Names() model.TensorNames {
	n := llamaNames
	n.QKV, n.Gate = "self_attn.qkv_proj", "mlp.gate_up_proj"
	return n
}

// writePhi3Share writes only a share that is not all, which older versions of transformers do not know.
func writePhi3Share(m *model.Model, kv map[string]any) {
	if m.RotaryPct > 0 {
		kv["partial_rotary_factor"] = m.RotaryPct
	}
}

// phi3Rope reads how positions are scaled: by longrope only, from a context that is a key of its own.
func (c *config) phi3Rope(m *model.Model) {
	original := 4096
	c.get("original_max_position_embeddings", &original)
	m.RopeScaling = rotary{partial: true, longOnly: true, original: original}.scaling(c, m)
}

func writePhi3Rope(m *model.Model, kv map[string]any) {
	var r rotary
	if r.write(m, kv); m.RopeScaling != nil {
		kv["original_max_position_embeddings"] = m.RopeScaling.OriginalContext
	}
}
