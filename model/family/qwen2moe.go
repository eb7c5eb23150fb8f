package family

import "github.com/athanor-llm/athanor/model"

// qwen2MoE is Qwen1.5-MoE and Qwen2-MoE: Qwen2 with a mixture of experts in each layer, beside which all tokens go through one more.
var qwen2MoE = family{
	Family:     model.Family{Name: "qwen2_moe", Mixture: true, Tensors: qwen2MoENames()},
	class:      "Qwen2MoeForCausalLM",
	classifier: "Qwen2MoeForSequenceClassification",
	fixed:      model.Model{SharedGate: true},
	table: changed(without(llamaTable, "intermediate_size", "head_dim"), // the former is of layers without experts
		row{key: "vocab_size", field: vocab, def: 151936},
		row{key: "num_hidden_layers", field: layers, def: 24},
		row{key: "hidden_size", field: width, def: 2048},
		row{key: "num_attention_heads", field: heads, def: 16},
		row{key: "num_key_value_heads", field: kvHeads, def: 16, null: asHeads},
		row{key: "head_dim", read: (*config).perHead, write: writeHeadDim},
		row{key: "moe_intermediate_size", field: feedForward, def: 1408},
		sharedBeside(5632),
		row{key: "max_position_embeddings", field: maxPositions, def: 32768},
		row{key: "qkv_bias", field: qkvBias, def: true},
		row{key: "num_experts", field: experts, def: 60},
		row{key: "num_experts_per_tok", field: active, def: 4},
		row{key: "norm_topk_prob", field: normedRoute, def: false},
		row{key: "mlp_only_layers", read: (*config).expertsEverywhere},
		row{key: "use_sliding_window", only: false},
		fullAttention,
		routerLoss,
		rope(rotary{}),
	),
	ignored:  []string{"intermediate_size", "sliding_window", "max_window_layers"},
	constant: map[string]any{"decoder_sparse_step": 1, "mlp_only_layers": []int{}},
	typical:  "qwen1.5-moe-a2.7b",
	published: map[string]string{
		"qwen1.5-moe-a2.7b": `{"max_position_embeddings": 8192, "rope_theta": 1000000}`,
		"qwen2-57b-a14b": `{"num_hidden_layers": 28, "hidden_size": 3584, "num_attention_heads": 28, "num_key_value_heads": 4, "moe_intermediate_size": 2560,
			"shared_expert_intermediate_size": 20480, "num_experts": 64, "num_experts_per_tok": 8, "max_position_embeddings": 131072, "rope_theta": 1000000}`,
	},
}

// sharedBeside is the width of the feed-forward beside the experts.
func sharedBeside(def int) row {
	return row{
		key: "shared_expert_intermediate_size", own: true,
		read:  func(c *config, m *model.Model) { c.qwenShared(m, def) },
		write: func(m *model.Model, kv map[string]any) { kv["shared_expert_intermediate_size"] = m.Shared },
	}
}

func (c *config) qwenShared(m *model.Model, def int) {
	m.Shared = def
	if c.get("shared_expert_intermediate_size", &m.Shared); m.Shared < 1 {
		c.fail("shared_expert_intermediate_size is %d; hint: check that this is the file that was published, which has a positive number", m.Shared)
	}
}

func qwen2MoENames() model.TensorNames {
	n := expertNames()
	n.SharedGate, n.SharedUp, n.SharedDown, n.SharedRouter = "mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj", "mlp.shared_expert.down_proj", "mlp.shared_expert_gate"
	return n
}
