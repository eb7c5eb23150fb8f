package family

import "github.com/athanor-llm/athanor/model"

// qwen3 is Qwen3 (2505.09388): Qwen2 with norms of each head's queries and keys instead of biases.
var qwen3 = family{
	Family:     model.Family{Name: "qwen3", Tensors: llamaNames},
	class:      "Qwen3ForCausalLM",
	classifier: "Qwen3ForSequenceClassification",
	fixed:      model.Model{QKNorm: model.QKNormHeads},
	table: changed(llamaTable,
		row{key: "head_dim", field: headDim, def: 128},
		attentionBias,
		row{key: "use_mrope", only: false},
		qwenWindows,
		rope(rotary{}),
	),
	typical: "qwen3-0.6b",
	published: map[string]string{
		"qwen3-0.6b": `{"num_hidden_layers": 28, "hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 8, "intermediate_size": 3072,
			"vocab_size": 151936, "max_position_embeddings": 40960, "rope_theta": 1000000, "tie_word_embeddings": true}`,
		"qwen3-1.7b": `{"num_hidden_layers": 28, "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 8, "intermediate_size": 6144,
			"vocab_size": 151936, "max_position_embeddings": 40960, "rope_theta": 1000000, "tie_word_embeddings": true}`,
		"qwen3-4b": `{"num_hidden_layers": 36, "hidden_size": 2560, "num_key_value_heads": 8, "intermediate_size": 9728,
			"vocab_size": 151936, "max_position_embeddings": 40960, "rope_theta": 1000000, "tie_word_embeddings": true}`,
		"qwen3-8b": `{"num_hidden_layers": 36, "num_key_value_heads": 8, "intermediate_size": 12288,
			"vocab_size": 151936, "max_position_embeddings": 40960, "rope_theta": 1000000}`,
		"qwen3-14b": `{"num_hidden_layers": 40, "hidden_size": 5120, "num_attention_heads": 40, "num_key_value_heads": 8, "intermediate_size": 17408,
			"vocab_size": 151936, "max_position_embeddings": 40960, "rope_theta": 1000000}`,
		"qwen3-32b": `{"num_hidden_layers": 64, "hidden_size": 5120, "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 25600,
			"vocab_size": 151936, "max_position_embeddings": 40960, "rope_theta": 1000000}`,
	},
}
