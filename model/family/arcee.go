package family

import "github.com/athanor-llm/athanor/model"

// arcee is Arcee's foundation model: Llama without gates, with the square of ReLU.
var arcee = family{
	Family:     model.Family{Name: "arcee", Ungated: true, Tensors: llamaNames},
	class:      "ArceeForCausalLM",
	classifier: "ArceeForSequenceClassification",
	table: changed(llamaTable,
		row{key: "hidden_size", field: width, def: 2560},
		row{key: "intermediate_size", field: feedForward, def: 18432},
		row{key: "max_position_embeddings", field: maxPositions, def: 4096},
		activated("hidden_act", "relu2"),
		row{key: "rms_norm_eps", field: normEps, def: 1e-5},
		attentionBias,
		row{key: "mlp_bias", field: mlpBias, def: false},
		fullAttention,
		rope(rotary{}),
	),
	typical: "afm-4.5b",
	published: map[string]string{
		"afm-4.5b": `{"num_hidden_layers": 36, "num_attention_heads": 20, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 128004, "max_position_embeddings": 65536,
			"rope_scaling": {"rope_type": "yarn", "factor": 20, "original_max_position_embeddings": 4096}}`,
	},
}
