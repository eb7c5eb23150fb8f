package family

import "github.com/athanor-llm/athanor/model"

// granite is Granite 3: Llama with constant factors.
var granite = family{
	Family: model.Family{Name: "granite", Tensors: llamaNames},
	class:  "GraniteForCausalLM",
	table: changed(llamaTable,
		attentionBias,
		row{key: "mlp_bias", field: mlpBias, def: false},
		row{key: "embedding_multiplier", field: embeddingTimes, def: 1},
		row{key: "residual_multiplier", field: residualTimes, def: 1},
		row{key: "attention_multiplier", field: attentionTimes, def: 1},
		row{key: "logits_scaling", field: logitsOver, def: 1},
		row{key: "multipliers", read: (*config).someMultiplier},
		fullAttention,
		rope(rotary{}),
	),
	typical: "granite-3.0-2b",
	published: map[string]string{
		"granite-3.0-2b": `{"num_hidden_layers": 40, "hidden_size": 2048, "num_key_value_heads": 8, "intermediate_size": 8192,
			"vocab_size": 49155, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "tie_word_embeddings": true,
			"embedding_multiplier": 12, "residual_multiplier": 0.22, "attention_multiplier": 0.015625, "logits_scaling": 8}`,
		"granite-3.0-8b": `{"num_hidden_layers": 40, "num_key_value_heads": 8, "intermediate_size": 12800,
			"vocab_size": 49155, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "tie_word_embeddings": true,
			"embedding_multiplier": 12, "residual_multiplier": 0.22, "attention_multiplier": 0.0078125, "logits_scaling": 16}`,
	},
}

// someMultiplier rejects four zeros, which for Model are no multipliers at all.
func (c *config) someMultiplier(m *model.Model) {
	if m.Multipliers == (model.Multipliers{}) {
		c.fail("embedding_multiplier, residual_multiplier, attention_multiplier and logits_scaling are all 0; hint: use positive numbers")
	}
}
