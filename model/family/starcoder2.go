package family

import "github.com/athanor-llm/athanor/model"

// starCoder2 is StarCoder2 (2402.19173): Llama with LayerNorm, biases and no gate.
var starCoder2 = family{
	Family:     model.Family{Name: "starcoder2", LayerNorm: true, Ungated: true, Tensors: starCoder2Names()},
	class:      "Starcoder2ForCausalLM",
	classifier: "Starcoder2ForSequenceClassification",
	table: changed(without(llamaTable, "rms_norm_eps"),
		row{key: "vocab_size", field: vocab, def: 49152},
		row{key: "num_hidden_layers", field: layers, def: 30},
		row{key: "hidden_size", field: width, def: 3072},
		row{key: "num_attention_heads", field: heads, def: 24},
		row{key: "num_key_value_heads", field: kvHeads, def: 2},
		row{key: "intermediate_size", field: feedForward, def: 12288},
		row{key: "max_position_embeddings", field: maxPositions, def: 4096},
		activated("hidden_act", "gelu_pytorch_tanh"),
		row{key: "norm_epsilon", field: normEps, def: 1e-5},
		row{key: "tie_word_embeddings", field: tied, def: true},
		row{key: "initializer_range", field: initStd, def: 0.018042},
		row{key: "use_bias", field: qkvBias, def: true, also: []field{outBias, mlpBias}},
		row{key: "sliding_window", field: window, def: 0},
		row{key: "mlp_type", only: "default"},
		row{key: "norm_type", only: "layer_norm"},
		fullAttention,
		rope(rotary{}),
	),
	ignored: []string{"rms_norm_eps", "activation_function", "layer_norm_epsilon", "attention_softmax_in_fp32", // the last four are of the
		"scale_attention_softmax_in_fp32", "scale_attn_weights"}, // program that trained the published models
	typical: "starcoder2-3b",
	published: map[string]string{
		"starcoder2-3b": `{"max_position_embeddings": 16384, "rope_theta": 999999.4420358813, "sliding_window": 4096}`,
		"starcoder2-7b": `{"num_hidden_layers": 32, "hidden_size": 4608, "num_attention_heads": 36, "num_key_value_heads": 4, "intermediate_size": 18432,
			"max_position_embeddings": 16384, "rope_theta": 1000000, "sliding_window": 4096}`,
		"starcoder2-15b": `{"num_hidden_layers": 40, "hidden_size": 6144, "num_attention_heads": 48, "num_key_value_heads": 4, "intermediate_size": 24576,
			"max_position_embeddings": 16384, "rope_theta": 100000, "sliding_window": 4096, "tie_word_embeddings": false}`,
	},
}

func starCoder2Names() model.TensorNames {
	n := llamaNames
	n.Up, n.Down = "mlp.c_fc", "mlp.c_proj"
	return n
}
