package family

import "github.com/athanor-llm/athanor/model"

// qwen3MoE is Qwen3 with a mixture of experts in each layer.
var qwen3MoE = family{
	Family:     model.Family{Name: "qwen3_moe", Mixture: true, Tensors: expertNames()},
	class:      "Qwen3MoeForCausalLM",
	classifier: "Qwen3MoeForSequenceClassification",
	fixed:      model.Model{QKNorm: model.QKNormHeads},
	table: changed(without(llamaTable, "intermediate_size"), // which is of layers without experts
		row{key: "vocab_size", field: vocab, def: 151936},
		row{key: "num_hidden_layers", field: layers, def: 24},
		row{key: "hidden_size", field: width, def: 2048},
		row{key: "num_key_value_heads", field: kvHeads, def: 4},
		row{key: "moe_intermediate_size", field: feedForward, def: 768},
		row{key: "max_position_embeddings", field: maxPositions, def: 32768},
		attentionBias,
		row{key: "num_experts", read: (*config).qwenExperts, write: writeQwenExperts},
		row{key: "num_experts_per_tok", field: active, def: 8},
		row{key: "norm_topk_prob", field: normedRoute, def: false},
		row{key: "mlp_only_layers", read: (*config).expertsEverywhere},
		row{key: "use_mrope", only: false},
		qwenWindows,
		routerLoss,
		rope(rotary{}),
	),
	ignored:  []string{"intermediate_size"},
	constant: map[string]any{"decoder_sparse_step": 1, "mlp_only_layers": []int{}},
	typical:  "qwen3-30b-a3b",
	published: map[string]string{
		"qwen3-30b-a3b": `{"num_hidden_layers": 48, "head_dim": 128,
			"max_position_embeddings": 40960, "rope_theta": 1000000, "norm_topk_prob": true}`,
		"qwen3-235b-a22b": `{"num_hidden_layers": 94, "hidden_size": 4096, "num_attention_heads": 64, "head_dim": 128, "moe_intermediate_size": 1536,
			"max_position_embeddings": 40960, "rope_theta": 1000000, "norm_topk_prob": true}`,
	},
}

// expertNames are also OLMoE's.
func expertNames() model.TensorNames {
	n := llamaNames
	n.Router, n.Gate, n.Up, n.Down = "mlp.gate", "mlp.experts.%d.gate_proj", "mlp.experts.%d.up_proj", "mlp.experts.%d.down_proj"
	return n
}

// qwenExperts reads the number of experts, which has two names.
func (c *config) qwenExperts(m *model.Model) {
	local := 128
	c.get("num_local_experts", &local)
	m.Experts = local
	if c.get("num_experts", &m.Experts); c.raw["num_local_experts"] != nil && m.Experts != local {
		c.fail("num_experts is %d and num_local_experts %d, which are two names of the same number; hint: give both the number of experts that the weights have", m.Experts, local)
	}
}

func writeQwenExperts(m *model.Model, kv map[string]any) {
	add(kv, map[string]any{"num_experts": m.Experts, "intermediate_size": m.FeedForward})
}

// expertsEverywhere rejects layers without experts.
func (c *config) expertsEverywhere(*model.Model) {
	var dense []int
	step := 1
	c.get("decoder_sparse_step", &step)
	if c.get("mlp_only_layers", &dense); len(dense) > 0 || step != 1 {
		c.fail("mlp_only_layers %v, decoder_sparse_step %d: %w: only models with experts in all layers are supported", dense, step, ErrUnsupported)
	}
}
