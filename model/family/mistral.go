package family

import "github.com/athanor-llm/athanor/model"

// mistral is Mistral (2310.06825): Llama, with a window in all layers or none. In config.json, null means no window and as
// many key heads as query heads; keys left out are those of Mistral 7B.
var mistral = family{
	Family:     model.Family{Name: "mistral", Tensors: llamaNames},
	class:      "MistralForCausalLM",
	classifier: "MistralForSequenceClassification",
	table: changed(llamaTable,
		row{key: "num_key_value_heads", field: kvHeads, def: 8, null: asHeads},
		row{key: "sliding_window", field: window, def: 4096, null: 0},
		fullAttention,
		rope(rotary{}),
	),
	typical: "mistral-7b",
	published: map[string]string{
		"mistral-7b": `{"intermediate_size": 14336, "max_position_embeddings": 32768, "rms_norm_eps": 1e-5, "rope_theta": 1000000, "sliding_window": null}`,
		"mistral-nemo": `{"num_hidden_layers": 40, "hidden_size": 5120, "head_dim": 128, "intermediate_size": 14336, "vocab_size": 131072,
			"max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 1000000, "sliding_window": null}`,
	},
}
