package family

import "github.com/athanor-llm/athanor/model"

// ministral3 is the text model of Ministral 3 (2601.08584): Mistral whose queries grow beyond the context that it was first trained
// with, which is where its positions are scaled, too.
var ministral3 = family{
	Family:     model.Family{Name: "ministral3", Tensors: llamaNames},
	class:      "Ministral3ForCausalLM",
	classifier: "Ministral3ForSequenceClassification",
	table: changed(llamaTable,
		row{key: "vocab_size", field: vocab, def: 131072},
		row{key: "num_hidden_layers", field: layers, def: 34},
		row{key: "num_key_value_heads", field: kvHeads, def: 8, null: asHeads},
		row{key: "head_dim", field: headDim, def: 128, null: perHead},
		row{key: "intermediate_size", field: feedForward, def: 14336},
		row{key: "max_position_embeddings", field: maxPositions, def: 262144},
		row{key: "rms_norm_eps", field: normEps, def: 1e-5},
		row{key: "rope_theta", field: ropeTheta, def: 1e6},
		row{key: "sliding_window", field: window, def: 0},
		fullAttention,
		rope(rotary{explicit: true, queries: true}),
	),
	constant: map[string]any{"pad_token_id": nil},
	typical:  "ministral-3-8b",
	published: map[string]string{
		"ministral-3-3b": `{"num_hidden_layers": 26, "hidden_size": 3072, "intermediate_size": 9216, "tie_word_embeddings": true, "rope_parameters": ` + ministralYarn + `}`,
		"ministral-3-8b": `{"rope_parameters": ` + ministralYarn + `}`,
		"ministral-3-14b": `{"num_hidden_layers": 40, "hidden_size": 5120, "intermediate_size": 16384,
			"rope_parameters": {"type": "yarn", "rope_theta": 1000000000, "factor": 16, "original_max_position_embeddings": 16384, "beta_fast": 32, "beta_slow": 1,
				"mscale": 1, "mscale_all_dim": 1, "llama_4_scaling_beta": 0.1}}`,
	},
}

const ministralYarn = `{"type": "yarn", "rope_theta": 1000000, "factor": 16, "original_max_position_embeddings": 16384, "beta_fast": 32, "beta_slow": 1,
	"mscale": 1, "mscale_all_dim": 1, "llama_4_scaling_beta": 0.1}`
