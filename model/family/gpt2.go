package family

import "github.com/athanor-llm/athanor/model"

// gpt2 is GPT-2 (Radford et al. 2019): LayerNorm, learned positions, one fused matrix of queries, keys and values.
var gpt2 = family{
	Family: model.Family{
		Name: "gpt2", LayerNorm: true, Learned: true, Ungated: true, InOut: true, FusedQKV: true, Square: true, Shrunk: true,
		Tensors: model.TensorNames{
			Embed: "transformer.wte.weight", Positions: "transformer.wpe.weight", Layer: "transformer.h.%d.",
			FinalNorm: "transformer.ln_f", Norm1: "ln_1", QKV: "attn.c_attn", AttnOut: "attn.c_proj",
			Norm2: "ln_2", Up: "mlp.c_fc", Down: "mlp.c_proj",
		},
		Buffers: []string{".attn.bias", ".attn.masked_bias"},
	},
	class:      "GPT2LMHeadModel",
	classifier: "GPT2ForSequenceClassification",
	fixed:      model.Model{QKVBias: true, OutBias: true, MLPBias: true},
	table: []row{
		{key: "vocab_size", field: vocab, def: 50257},
		{key: "n_layer", field: layers, def: 12},
		{key: "n_embd", field: width, def: 768},
		{key: "n_head", field: heads, def: 12},
		{key: "n_inner", field: feedForward, def: fourWidth},
		{key: "n_positions", field: maxPositions, def: 1024},
		activated("activation_function", "gelu_new"),
		{key: "layer_norm_epsilon", field: normEps, def: 1e-5},
		{key: "initializer_range", field: initStd, def: 0.02},
		{key: "tie_word_embeddings", field: tied, def: true},
		{key: "scale_attn_weights", only: true},
		{key: "scale_attn_by_inverse_layer_idx", only: false},
		{key: "add_cross_attention", only: false},
	},
	constant: map[string]any{"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0},
	typical:  "gpt2",
	published: map[string]string{
		"gpt2":        `{}`,
		"gpt2-medium": `{"n_layer": 24, "n_embd": 1024, "n_head": 16}`,
		"gpt2-large":  `{"n_layer": 36, "n_embd": 1280, "n_head": 20}`,
		"gpt2-xl":     `{"n_layer": 48, "n_embd": 1600, "n_head": 25}`,
		// The models measured in the Elixir paper (2212.05339), with untied heads.
		"gpt2-4b":  `{"n_layer": 32, "n_embd": 3072, "n_head": 24, "tie_word_embeddings": false}`,
		"gpt2-10b": `{"n_layer": 48, "n_embd": 4096, "n_head": 32, "tie_word_embeddings": false}`,
		"gpt2-15b": `{"n_layer": 18, "n_embd": 8192, "n_head": 64, "tie_word_embeddings": false}`,
		"gpt2-20b": `{"n_layer": 24, "n_embd": 8192, "n_head": 64, "tie_word_embeddings": false}`,
	},
}
