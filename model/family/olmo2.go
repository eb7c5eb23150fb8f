package family

import "github.com/athanor-llm/athanor/model"

// olmo2 is OLMo 2 (2501.00656): Llama with norms after attention and feed-forward alone, and of all queries and all keys.
var olmo2 = family{
	Family:     model.Family{Name: "olmo2", Tensors: sandwichNames()},
	class:      "Olmo2ForCausalLM",
	classifier: "Olmo2ForSequenceClassification",
	fixed:      model.Model{QKNorm: model.QKNormWhole, Norms: model.PostNorm},
	table:      changed(olmoTable, fullAttention, rope(rotary{})),
	typical:    "olmo-2-1b",
	published: map[string]string{
		"olmo-2-1b": `{"num_hidden_layers": 16, "hidden_size": 2048, "num_attention_heads": 16, "intermediate_size": 8192,
			"vocab_size": 100352, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 500000}`,
		"olmo-2-7b": `{"vocab_size": 100352, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 500000}`,
		"olmo-2-13b": `{"num_hidden_layers": 40, "hidden_size": 5120, "num_attention_heads": 40, "intermediate_size": 13824,
			"vocab_size": 100352, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 500000}`,
	},
}

// olmoTable has the keys of OLMo 2 and 3.
var olmoTable = changed(llamaTable,
	row{key: "vocab_size", field: vocab, def: 50304},
	row{key: "rms_norm_eps", field: normEps, def: 1e-5},
	attentionBias,
)
