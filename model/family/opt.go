package family

import "github.com/athanor-llm/athanor/model"

// opt is OPT (2205.01068): LayerNorm, learned positions with an offset, ReLU.
var opt = family{
	Family: model.Family{
		Name: "opt", LayerNorm: true, Learned: true, Ungated: true, Offset: 2, Square: true,
		Tensors: model.TensorNames{
			Embed: "model.decoder.embed_tokens.weight", Positions: "model.decoder.embed_positions.weight",
			Layer: "model.decoder.layers.%d.", FinalNorm: "model.decoder.final_layer_norm",
			Norm1: "self_attn_layer_norm", Q: "self_attn.q_proj", K: "self_attn.k_proj", V: "self_attn.v_proj",
			AttnOut: "self_attn.out_proj", Norm2: "final_layer_norm", Up: "fc1", Down: "fc2",
		},
		Buffers: []string{".decoder.version"},
	},
	class:      "OPTForCausalLM",
	classifier: "OPTForSequenceClassification",
	fixed:      model.Model{NormEps: 1e-5},
	table: []row{
		{key: "vocab_size", field: vocab, def: 50272},
		{key: "num_hidden_layers", field: layers, def: 12},
		{key: "hidden_size", field: width, def: 768},
		sameAs("word_embed_proj_dim", width),
		{key: "num_attention_heads", field: heads, def: 12},
		{key: "ffn_dim", field: feedForward, def: 3072},
		{key: "max_position_embeddings", field: maxPositions, def: 2048},
		activated("activation_function", "relu"),
		{key: "enable_bias", field: mlpBias, def: true, also: []field{qkvBias, outBias}},
		{key: "tie_word_embeddings", field: tied, def: true},
		{key: "init_std", field: initStd, def: 0.02},
		{key: "do_layer_norm_before", only: true},
		{key: "_remove_final_layer_norm", only: false},
		{key: "layer_norm_elementwise_affine", only: true},
	},
	constant: map[string]any{"do_layer_norm_before": true, "dropout": 0.0, "attention_dropout": 0.0},
	typical:  "opt-125m",
	published: map[string]string{
		"opt-125m": `{}`,
		"opt-1.3b": `{"num_hidden_layers": 24, "hidden_size": 2048, "num_attention_heads": 32, "ffn_dim": 8192}`,
	},
}
