package family

import "github.com/athanor-llm/athanor/model"

// hunyuan is Hunyuan without experts: Llama with norms of each head's queries and keys after their rotation.
var hunyuan = family{
	Family:     model.Family{Name: "hunyuan_v1_dense", Tensors: hunyuanNames()},
	class:      "HunYuanDenseV1ForCausalLM",
	classifier: "HunYuanDenseV1ForSequenceClassification",
	fixed:      model.Model{QKNorm: model.QKNormTurned},
	table: changed(llamaTable,
		row{key: "vocab_size", field: vocab, def: 290943},
		row{key: "rms_norm_eps", field: normEps, def: 1e-5},
		attentionBias,
		fullAttention,
		rope(rotary{alpha: true}),
	),
	ignored:  []string{"eod_token_id", "use_cla", "cla_share_factor", "im_end_id", "im_newline_id", "im_start_id", "sep_id", "mask_init_id", "text_end_id", "text_start_id"},
	constant: map[string]any{"pad_token_id": nil},
	typical:  "hunyuan-7b",
	published: map[string]string{
		"hunyuan-7b": `{"num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 14336, "vocab_size": 128167, "max_position_embeddings": 32768, "tie_word_embeddings": true}`,
	},
}

func hunyuanNames() model.TensorNames {
	n := llamaNames
	n.QNorm, n.KNorm = "self_attn.query_layernorm", "self_attn.key_layernorm"
	return n
}
