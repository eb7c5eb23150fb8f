package family

import "github.com/athanor-llm/athanor/model"

// glm4MoE is GLM-4.5, 4.6 and Air (2508.06471): a mixture of experts in all but the first layers, beside which all tokens go through
// one more; experts are scored by sigmoids, and chosen with a bias, which evened out their use when the models were trained.
var glm4MoE = family{
	Family: model.Family{Name: "glm4_moe", Mixture: true, Ahead: true, Tensors: glm4MoENames()},
	class:  "Glm4MoeForCausalLM",
	fixed:  model.Model{Router: model.Router{Sigmoid: true, Bias: true}},
	table: changed(llamaTable,
		row{key: "vocab_size", field: vocab, def: 151552},
		row{key: "num_hidden_layers", field: layers, def: 46},
		row{key: "num_attention_heads", field: heads, def: 96},
		row{key: "num_key_value_heads", field: kvHeads, def: 8},
		row{key: "head_dim", field: headDim, def: perHead, null: perHead},
		row{key: "intermediate_size", field: denseWidth, def: 10944},
		row{key: "moe_intermediate_size", field: feedForward, def: 1408},
		row{key: "max_position_embeddings", field: maxPositions, def: 131072},
		row{key: "rms_norm_eps", field: normEps, def: 1e-5},
		row{key: "attention_bias", field: qkvBias, def: false},
		row{key: "n_routed_experts", field: experts, def: 128},
		row{key: "num_experts_per_tok", field: active, def: 8},
		manyShared(1),
		row{key: "norm_topk_prob", field: normedRoute, def: true},
		decimal("routed_scaling_factor", routeTimes, 1),
		atLeastOne("n_group", groups, 1),
		atLeastOne("topk_group", bestGroups, 1),
		row{key: "first_k_dense_replace", field: dense, def: 1},
		row{key: "use_qk_norm", read: (*config).maybeQKNorm, write: writeMaybeQKNorm},
		share("partial_rotary_factor", 0.5),
		routerLoss,
		fullAttention,
		rope(rotary{partial: true}),
	),
	ignored:  []string{"num_nextn_predict_layers", "num_mtp_layers"}, // of layers beyond the last, which are carried
	constant: map[string]any{"pad_token_id": nil, "num_nextn_predict_layers": 0},
	typical:  "glm-4.5-air",
	published: map[string]string{
		"glm-4.5-air": `{"head_dim": 128, "attention_bias": true, "rope_theta": 1000000}`,
		"glm-4.5": `{"num_hidden_layers": 92, "hidden_size": 5120, "head_dim": 128, "intermediate_size": 12288, "moe_intermediate_size": 1536,
			"n_routed_experts": 160, "routed_scaling_factor": 2.5, "first_k_dense_replace": 3, "use_qk_norm": true, "attention_bias": true, "rope_theta": 1000000}`,
		"glm-4.6": `{"num_hidden_layers": 92, "hidden_size": 5120, "head_dim": 128, "intermediate_size": 12288, "moe_intermediate_size": 1536, "max_position_embeddings": 202752,
			"n_routed_experts": 160, "routed_scaling_factor": 2.5, "first_k_dense_replace": 3, "use_qk_norm": true, "attention_bias": true, "rope_theta": 1000000}`,
	},
}

func glm4MoENames() model.TensorNames {
	n := expertNames()
	n.RouterBias = "mlp.gate.e_score_correction_bias"
	n.SharedGate, n.SharedUp, n.SharedDown = "mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj", "mlp.shared_experts.down_proj"
	n.DenseGate, n.DenseUp, n.DenseDown = llamaNames.Gate, llamaNames.Up, llamaNames.Down
	return n
}

// atLeastOne is a number of groups of experts, of which one is none.
func atLeastOne(key string, f field, def int) row {
	return row{key: key, field: f, def: def, write: func(m *model.Model, kv map[string]any) { kv[key] = max(1, *f(m).(*int)) }}
}

// sharedExperts reads how many experts all tokens go through.
func (c *config) sharedExperts(m *model.Model, n int) {
	if c.get("n_shared_experts", &n); n < 1 || n > 64 {
		c.fail("n_shared_experts is %d: %w: only models with 1 to 64 are supported", n, ErrUnsupported)
	}
	m.Shared = n * m.FeedForward
}

func writeSharedExperts(m *model.Model, kv map[string]any) {
	kv["n_shared_experts"] = m.Shared / m.FeedForward
}

// maybeQKNorm reads whether queries and keys are normalised.
func (c *config) maybeQKNorm(m *model.Model) {
	use := false
	if c.get("use_qk_norm", &use); use {
		m.QKNorm = model.QKNormHeads
	}
}

func writeMaybeQKNorm(m *model.Model, kv map[string]any) {
	kv["use_qk_norm"] = m.QKNorm != model.NoQKNorm
}
