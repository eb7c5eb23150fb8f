package family

import "github.com/athanor-llm/athanor/model"

// llama is Llama (2302.13971, 2307.09288, 2407.21783): RMSNorm, rotary positions, gated feed-forwards, grouped queries. Most
// families after it are Llama with some changes.
var llama = family{
	Family:     model.Family{Name: "llama", Tensors: llamaNames},
	class:      "LlamaForCausalLM",
	classifier: "LlamaForSequenceClassification",
	table: changed(llamaTable,
		attentionBias,
		row{key: "mlp_bias", field: mlpBias, def: false},
		fullAttention,
		rope(rotary{}),
	),
	typical: "llama-2-7b",
	published: map[string]string{
		"llama-2-7b": `{"max_position_embeddings": 4096, "rms_norm_eps": 1e-5}`,
		"llama-2-13b": `{"num_hidden_layers": 40, "hidden_size": 5120, "num_attention_heads": 40, "intermediate_size": 13824,
			"max_position_embeddings": 4096, "rms_norm_eps": 1e-5}`,
		"llama-2-70b": `{"num_hidden_layers": 80, "hidden_size": 8192, "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 28672,
			"max_position_embeddings": 4096, "rms_norm_eps": 1e-5}`,
		"llama-3-8b": `{"num_key_value_heads": 8, "intermediate_size": 14336,
			"vocab_size": 128256, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000}`,
		"llama-3-70b": `{"num_hidden_layers": 80, "hidden_size": 8192, "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 28672,
			"vocab_size": 128256, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000}`,
		"llama-3.1-8b": `{"num_key_value_heads": 8, "intermediate_size": 14336,
			"vocab_size": 128256, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000,
			"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192}}`,
		"llama-3.1-70b": `{"num_hidden_layers": 80, "hidden_size": 8192, "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 28672,
			"vocab_size": 128256, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000,
			"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192}}`,
		"llama-3.1-405b": `{"num_hidden_layers": 126, "hidden_size": 16384, "num_attention_heads": 128, "num_key_value_heads": 8, "intermediate_size": 53248,
			"vocab_size": 128256, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000,
			"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192}}`,
		"llama-3.2-1b": `{"num_hidden_layers": 16, "hidden_size": 2048, "num_key_value_heads": 8, "intermediate_size": 8192,
			"vocab_size": 128256, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000, "tie_word_embeddings": true,
			"rope_scaling": {"rope_type": "llama3", "factor": 32, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192}}`,
		"llama-3.2-3b": `{"num_hidden_layers": 28, "hidden_size": 3072, "num_attention_heads": 24, "num_key_value_heads": 8, "intermediate_size": 8192,
			"vocab_size": 128256, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000, "tie_word_embeddings": true,
			"rope_scaling": {"rope_type": "llama3", "factor": 32, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192}}`,
		"llama-3.3-70b": `{"num_hidden_layers": 80, "hidden_size": 8192, "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 28672,
			"vocab_size": 128256, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000,
			"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192}}`,
		"tinyllama-1.1b": `{"num_hidden_layers": 22, "hidden_size": 2048, "num_key_value_heads": 4, "intermediate_size": 5632, "rms_norm_eps": 1e-5}`,
		"smollm2-135m": `{"num_hidden_layers": 30, "hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3, "intermediate_size": 1536,
			"vocab_size": 49152, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 100000, "tie_word_embeddings": true}`,
		"smollm2-360m": `{"hidden_size": 960, "num_attention_heads": 15, "num_key_value_heads": 5, "intermediate_size": 2560,
			"vocab_size": 49152, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 100000, "tie_word_embeddings": true}`,
		"smollm2-1.7b": `{"num_hidden_layers": 24, "hidden_size": 2048, "intermediate_size": 8192,
			"vocab_size": 49152, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 130000, "tie_word_embeddings": true}`,
	},
}

var llamaNames = model.TensorNames{
	Embed: "model.embed_tokens.weight", Layer: "model.layers.%d.", FinalNorm: "model.norm",
	Norm1: "input_layernorm", Q: "self_attn.q_proj", K: "self_attn.k_proj", V: "self_attn.v_proj",
	AttnOut: "self_attn.o_proj", Norm2: "post_attention_layernorm",
	Gate: "mlp.gate_proj", Up: "mlp.up_proj", Down: "mlp.down_proj",
	QNorm: "self_attn.q_norm", KNorm: "self_attn.k_norm", Sinks: "self_attn.sinks",
}

// llamaTable has the keys that Llama and most families after it have.
var llamaTable = []row{
	{key: "vocab_size", field: vocab, def: 32000},
	{key: "num_hidden_layers", field: layers, def: 32},
	{key: "hidden_size", field: width, def: 4096},
	{key: "num_attention_heads", field: heads, def: 32},
	{key: "num_key_value_heads", field: kvHeads, def: asHeads},
	{key: "head_dim", field: headDim, def: perHead},
	{key: "intermediate_size", field: feedForward, def: 11008},
	{key: "max_position_embeddings", field: maxPositions, def: 2048},
	activated("hidden_act", "silu"),
	{key: "rms_norm_eps", field: normEps, def: 1e-6},
	{key: "rope_theta", field: ropeTheta, def: 10000},
	{key: "rope_interleaved", only: false},
	{key: "tie_word_embeddings", field: tied, def: false},
	{key: "initializer_range", field: initStd, def: 0.02},
}

// attentionBias is the key of all of attention's biases.
var attentionBias = row{key: "attention_bias", field: qkvBias, def: false, also: []field{outBias}}
