package family

import "github.com/athanor-llm/athanor/model"

// qwen3Next is Qwen3-Next: gated delta nets in three of four layers, attention whose results are gated in the others, and a mixture of
// experts in each, beside which all tokens go through one more.
var qwen3Next = family{
	Family:     model.Family{Name: "qwen3_next", Mixture: true, Ahead: true, Tensors: deltaNames(qwen2MoENames())},
	class:      "Qwen3NextForCausalLM",
	classifier: "Qwen3NextForSequenceClassification",
	fixed:      deltaMixture,
	table: changed(without(deltaTable, "intermediate_size"), // which is of layers without experts
		row{key: "vocab_size", field: vocab, def: 151936},
		row{key: "num_hidden_layers", field: layers, def: 48},
		row{key: "hidden_size", field: width, def: 2048},
		row{key: "num_key_value_heads", field: kvHeads, def: 2},
		row{key: "moe_intermediate_size", field: feedForward, def: 512},
		sharedBeside(512),
		row{key: "num_experts", field: experts, def: 512},
		row{key: "num_experts_per_tok", field: active, def: 10},
		row{key: "norm_topk_prob", field: normedRoute, def: true},
		row{key: "mlp_only_layers", read: (*config).expertsEverywhere},
		routerLoss,
	),
	ignored:  append([]string{"intermediate_size"}, deltaIgnored...),
	constant: map[string]any{"decoder_sparse_step": 1, "mlp_only_layers": []int{}},
	typical:  "qwen3-next-80b-a3b",
	published: map[string]string{
		"qwen3-next-80b-a3b": `{"max_position_embeddings": 262144, "rope_theta": 10000000}`,
	},
}
