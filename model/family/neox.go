package family

import "github.com/athanor-llm/athanor/model"

// gptNeoX is GPT-NeoX (2204.06745): LayerNorm, rotary positions of a part of each head, attention and feed-forward side by
// side, one fused matrix of queries, keys and values that is stored head by head.
var gptNeoX = family{
	Family: model.Family{
		Name: "gpt_neox", LayerNorm: true, Ungated: true, FusedQKV: true, ByHead: true, Square: true,
		Tensors: model.TensorNames{
			Embed: "gpt_neox.embed_in.weight", Layer: "gpt_neox.layers.%d.", FinalNorm: "gpt_neox.final_layer_norm",
			Norm1: "input_layernorm", QKV: "attention.query_key_value", AttnOut: "attention.dense", Norm2: "post_attention_layernorm",
			Up: "mlp.dense_h_to_4h", Down: "mlp.dense_4h_to_h", Head: "embed_out.weight",
		},
		Buffers: []string{".attention.bias", ".attention.masked_bias"},
	},
	class:      "GPTNeoXForCausalLM",
	classifier: "GPTNeoXForSequenceClassification",
	fixed:      model.Model{MLPBias: true},
	table: []row{
		{key: "vocab_size", field: vocab, def: 50432},
		{key: "num_hidden_layers", field: layers, def: 44},
		{key: "hidden_size", field: width, def: 6144},
		{key: "num_attention_heads", field: heads, def: 64},
		{key: "intermediate_size", field: feedForward, def: 24576},
		{key: "max_position_embeddings", field: maxPositions, def: 2048},
		activated("hidden_act", "gelu"),
		{key: "layer_norm_eps", field: normEps, def: 1e-5},
		{key: "rotary_emb_base", field: ropeTheta, def: 10000},
		share("rotary_pct", 0.25),
		{key: "use_parallel_residual", field: parallel, def: true},
		{key: "attention_bias", field: qkvBias, def: true, also: []field{outBias}},
		{key: "tie_word_embeddings", field: tied, def: false},
		{key: "initializer_range", field: initStd, def: 0.02},
		rope(rotary{partial: true}),
	},
	constant: map[string]any{"attention_dropout": 0.0, "hidden_dropout": 0.0},
	typical:  "pythia-70m",
	published: map[string]string{
		"pythia-70m":  `{"num_hidden_layers": 6, "hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 2048, "vocab_size": 50304}`,
		"pythia-160m": `{"num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072, "vocab_size": 50304}`,
		"pythia-410m": `{"num_hidden_layers": 24, "hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096, "vocab_size": 50304}`,
		"pythia-1b":   `{"num_hidden_layers": 16, "hidden_size": 2048, "num_attention_heads": 8, "intermediate_size": 8192, "vocab_size": 50304}`,
		"pythia-1.4b": `{"num_hidden_layers": 24, "hidden_size": 2048, "num_attention_heads": 16, "intermediate_size": 8192, "vocab_size": 50304}`,
		"pythia-2.8b": `{"num_hidden_layers": 32, "hidden_size": 2560, "num_attention_heads": 32, "intermediate_size": 10240, "vocab_size": 50304}`,
	},
}
