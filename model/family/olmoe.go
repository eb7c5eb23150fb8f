package family

import "github.com/athanor-llm/athanor/model"

// olmoE is OLMoE (2409.02060): Llama with norms of all queries and all keys, and a mixture of experts in each layer.
var olmoE = family{
	Family: model.Family{Name: "olmoe", Mixture: true, Tensors: expertNames()},
	class:  "OlmoeForCausalLM",
	fixed:  model.Model{QKNorm: model.QKNormWhole},
	table: changed(llamaTable,
		row{key: "vocab_size", field: vocab, def: 50304},
		row{key: "num_hidden_layers", field: layers, def: 16},
		row{key: "num_attention_heads", field: heads, def: 16},
		row{key: "intermediate_size", field: feedForward, def: 2048},
		row{key: "max_position_embeddings", field: maxPositions, def: 4096},
		row{key: "rms_norm_eps", field: normEps, def: 1e-5},
		attentionBias,
		row{key: "num_experts", field: experts, def: 64},
		row{key: "num_experts_per_tok", field: active, def: 8},
		row{key: "norm_topk_prob", field: normedRoute, def: false},
		row{key: "clip_qkv", never: "clipping of queries, keys and values is not supported"},
		routerLoss,
		fullAttention,
		rope(rotary{}),
	),
	constant: map[string]any{"pad_token_id": nil},
	typical:  "olmoe-1b-7b",
	published: map[string]string{
		"olmoe-1b-7b": `{"hidden_size": 2048, "intermediate_size": 1024}`,
	},
}
