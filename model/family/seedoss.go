package family

import "github.com/athanor-llm/athanor/model"

// seedOSS is Seed-OSS: Llama with biases of queries, keys and values, and of the output of attention if config.json says so.
var seedOSS = family{
	Family:     model.Family{Name: "seed_oss", Tensors: llamaNames},
	class:      "SeedOssForCausalLM",
	classifier: "SeedOssForSequenceClassification",
	table: changed(llamaTable,
		row{key: "vocab_size", field: vocab, def: 155136},
		row{key: "num_hidden_layers", field: layers, def: 64},
		row{key: "num_attention_heads", field: heads, def: 80},
		row{key: "num_key_value_heads", field: kvHeads, def: 8, null: asHeads},
		row{key: "head_dim", field: headDim, def: 128, null: perHead},
		row{key: "intermediate_size", field: feedForward, def: 27648},
		row{key: "max_position_embeddings", field: maxPositions, def: 524288},
		row{key: "attention_bias", field: qkvBias, def: true},
		row{key: "attention_out_bias", field: outBias, def: false},
		row{key: "mlp_bias", field: mlpBias, def: false},
		fullAttention,
		rope(rotary{}),
	),
	constant: map[string]any{"attention_dropout": 0.0, "residual_dropout": 0.0, "pad_token_id": nil},
	typical:  "seed-oss-36b",
	published: map[string]string{
		"seed-oss-36b": `{"hidden_size": 5120, "rope_theta": 10000000}`,
	},
}
