package family

import "github.com/athanor-llm/athanor/model"

// stableLM is StableLM 2 (2402.17834): LayerNorm, rotary positions of a part of each head; in some models, attention and
// feed-forward side by side with one norm for both.
var stableLM = family{
	Family:     model.Family{Name: "stablelm", LayerNorm: true, OneNorm: true, Tensors: llamaNames},
	class:      "StableLmForCausalLM",
	classifier: "StableLmForSequenceClassification",
	table: changed(without(llamaTable, "rms_norm_eps"),
		row{key: "vocab_size", field: vocab, def: 50304},
		row{key: "hidden_size", field: width, def: 2560},
		row{key: "num_key_value_heads", field: kvHeads, def: 32},
		row{key: "head_dim", read: (*config).perHead, write: writeHeadDim},
		row{key: "intermediate_size", field: feedForward, def: 6912},
		row{key: "max_position_embeddings", field: maxPositions, def: 4096},
		activated("hidden_act", "silu"),
		row{key: "layer_norm_eps", field: normEps, def: 1e-5},
		row{key: "use_qkv_bias", field: qkvBias, def: false},
		row{key: "use_parallel_residual", field: parallel, def: false},
		row{key: "qk_layernorm", only: false},
		share("partial_rotary_factor", 0.25),
		rope(rotary{partial: true}),
	),
	ignored: []string{"rms_norm_eps"},
	typical: "stablelm-2-1.6b",
	published: map[string]string{
		"stablelm-2-1.6b": `{"num_hidden_layers": 24, "hidden_size": 2048, "intermediate_size": 5632, "vocab_size": 100352, "use_qkv_bias": true}`,
	},
}

// perHead sets head_dim, which transformers does not read here.
func (c *config) perHead(m *model.Model) {
	m.HeadDim = perHead(m)
	given := m.HeadDim
	if c.get("head_dim", &given); given != m.HeadDim {
		c.fail("head_dim %d: %w: only hidden_size / num_attention_heads is supported", given, ErrUnsupported)
	}
}

func writeHeadDim(m *model.Model, kv map[string]any) { kv["head_dim"] = m.HeadDim }
