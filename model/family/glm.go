package family

import "github.com/athanor-llm/athanor/model"

// glm is GLM-4 (2406.12793), glm4 that of 2025, which also has norms after attention and feed-forward: rotary positions of a part of
// each head, whose columns are in pairs, and one matrix of gates and ups.
var (
	glm = family{
		Family: model.Family{Name: "glm", FusedGate: true, Paired: true, Tensors: glmNames()}, class: "GlmForCausalLM", classifier: "GlmForSequenceClassification",
		table:    glmTable,
		constant: map[string]any{"pad_token_id": nil},
		typical:  "glm-4-9b",
		published: map[string]string{
			"glm-4-9b": `{}`,
		},
	}
	glm4 = family{
		Family: model.Family{Name: "glm4", FusedGate: true, Paired: true, Tensors: glmNames()}, class: "Glm4ForCausalLM", classifier: "Glm4ForSequenceClassification",
		fixed:    model.Model{Norms: model.SandwichNorm},
		table:    glmTable,
		constant: map[string]any{"pad_token_id": nil},
		typical:  "glm-4-9b-0414",
		published: map[string]string{
			"glm-4-9b-0414": `{"max_position_embeddings": 32768, "rms_norm_eps": 1e-5, "attention_bias": false}`,
			"glm-4-32b-0414": `{"num_hidden_layers": 61, "hidden_size": 6144, "num_attention_heads": 48, "intermediate_size": 23040,
				"max_position_embeddings": 32768, "rms_norm_eps": 1e-5, "attention_bias": false}`,
		},
	}
)

var glmTable = changed(llamaTable,
	row{key: "vocab_size", field: vocab, def: 151552},
	row{key: "num_hidden_layers", field: layers, def: 40},
	row{key: "num_key_value_heads", field: kvHeads, def: 2},
	row{key: "head_dim", field: headDim, def: 128},
	row{key: "intermediate_size", field: feedForward, def: 13696},
	row{key: "max_position_embeddings", field: maxPositions, def: 131072},
	row{key: "rms_norm_eps", field: normEps, def: 1.5625e-7},
	row{key: "attention_bias", field: qkvBias, def: true},
	share("partial_rotary_factor", 0.5),
	fullAttention,
	rope(rotary{partial: true}),
)

func glmNames() model.TensorNames {
	n := llamaNames
	n.Gate, n.AttnNorm, n.MLPNorm = "mlp.gate_up_proj", "post_self_attn_layernorm", "post_mlp_layernorm"
	return n
}
