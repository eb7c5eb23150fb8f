package family

import "github.com/athanor-llm/athanor/model"

// ernie is ERNIE 4.5 without experts: Llama with columns that are rotated together side by side.
var ernie = family{
	Family: model.Family{Name: "ernie4_5", Paired: true, Tensors: llamaNames},
	class:  "Ernie4_5ForCausalLM",
	table: changed(llamaTable,
		row{key: "vocab_size", field: vocab, def: 103424},
		row{key: "num_hidden_layers", field: layers, def: 18},
		row{key: "hidden_size", field: width, def: 1024},
		row{key: "num_attention_heads", field: heads, def: 16},
		row{key: "num_key_value_heads", field: kvHeads, def: 2, null: asHeads},
		row{key: "head_dim", field: headDim, def: 128, null: perHead},
		row{key: "intermediate_size", field: feedForward, def: 3072},
		row{key: "max_position_embeddings", field: maxPositions, def: 131072},
		row{key: "rms_norm_eps", field: normEps, def: 1e-5},
		row{key: "rope_theta", field: ropeTheta, def: 5e5},
		row{key: "tie_word_embeddings", field: tied, def: true},
		row{key: "use_bias", field: qkvBias, def: false, also: []field{outBias, mlpBias}},
		fullAttention,
		rope(rotary{}),
	),
	constant: map[string]any{"pad_token_id": nil},
	typical:  "ernie-4.5-0.3b",
	published: map[string]string{
		"ernie-4.5-0.3b": `{}`,
	},
}
