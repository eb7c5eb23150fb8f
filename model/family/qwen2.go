package family

import "github.com/athanor-llm/athanor/model"

// qwen2 is Qwen2 (2407.10671) and Qwen2.5: Llama with biases of queries, keys and values, and windows in some layers.
var qwen2 = family{
	Family:     model.Family{Name: "qwen2", Tensors: llamaNames},
	class:      "Qwen2ForCausalLM",
	classifier: "Qwen2ForSequenceClassification",
	fixed:      model.Model{QKVBias: true},
	table:      changed(llamaTable, row{key: "use_mrope", only: false}, qwenWindows, rope(rotary{})),

	typical: "qwen2-0.5b",
	published: map[string]string{
		"qwen2-0.5b":   qwen2Half,
		"qwen2-1.5b":   qwen2OneHalf,
		"qwen2-7b":     qwen2Seven,
		"qwen2.5-0.5b": qwen2Half,
		"qwen2.5-1.5b": qwen2OneHalf,
		"qwen2.5-3b": `{"num_hidden_layers": 36, "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 2, "intermediate_size": 11008,
			"vocab_size": 151936, "max_position_embeddings": 32768, "rope_theta": 1000000, "tie_word_embeddings": true}`,
		"qwen2.5-7b": qwen2Seven,
		"qwen2.5-14b": `{"num_hidden_layers": 48, "hidden_size": 5120, "num_attention_heads": 40, "num_key_value_heads": 8, "intermediate_size": 13824,
			"vocab_size": 152064, "max_position_embeddings": 32768, "rope_theta": 1000000}`,
		"qwen2.5-32b": `{"num_hidden_layers": 64, "hidden_size": 5120, "num_attention_heads": 40, "num_key_value_heads": 8, "intermediate_size": 27648,
			"vocab_size": 152064, "max_position_embeddings": 32768, "rope_theta": 1000000}`,
		"qwen2.5-72b": `{"num_hidden_layers": 80, "hidden_size": 8192, "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 29568,
			"vocab_size": 152064, "max_position_embeddings": 32768, "rope_theta": 1000000}`,
	},
}

// Sizes that Qwen2 and Qwen2.5 have in common.
const (
	qwen2Half = `{"num_hidden_layers": 24, "hidden_size": 896, "num_attention_heads": 14, "num_key_value_heads": 2, "intermediate_size": 4864,
		"vocab_size": 151936, "max_position_embeddings": 32768, "rope_theta": 1000000, "tie_word_embeddings": true}`
	qwen2OneHalf = `{"num_hidden_layers": 28, "hidden_size": 1536, "num_attention_heads": 12, "num_key_value_heads": 2, "intermediate_size": 8960,
		"vocab_size": 151936, "max_position_embeddings": 32768, "rope_theta": 1000000, "tie_word_embeddings": true}`
	qwen2Seven = `{"num_hidden_layers": 28, "hidden_size": 3584, "num_attention_heads": 28, "num_key_value_heads": 4, "intermediate_size": 18944,
		"vocab_size": 152064, "max_position_embeddings": 32768, "rope_theta": 1000000}`
)
