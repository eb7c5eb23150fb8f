package family

import "github.com/athanor-llm/athanor/model"

// miniMaxM2 is MiniMax-M2: Mixtral's layers, of many small experts, with norms of all queries and of all keys of a token, rotary
// positions of half of each head, and a router as in GLM-4.5.
var miniMaxM2 = family{
	Family: model.Family{Name: "minimax_m2", Mixture: true, Tensors: miniMaxM2Names()},
	class:  "MiniMaxM2ForCausalLM",
	fixed:  model.Model{NormedRoute: true, QKNorm: model.QKNormWhole, Router: model.Router{Sigmoid: true, Bias: true}},
	table: changed(llamaTable,
		row{key: "vocab_size", field: vocab, def: 200064},
		row{key: "num_hidden_layers", field: layers, def: 62},
		row{key: "hidden_size", field: width, def: 3072},
		row{key: "num_attention_heads", field: heads, def: 48},
		row{key: "num_key_value_heads", field: kvHeads, def: 8},
		row{key: "head_dim", field: headDim, def: 128},
		row{key: "intermediate_size", field: feedForward, def: 1536},
		row{key: "max_position_embeddings", field: maxPositions, def: 196608},
		row{key: "rms_norm_eps", field: normEps, def: 1e-6},
		row{key: "rope_theta", field: ropeTheta, def: 5e6},
		row{key: "num_local_experts", field: experts, def: 256},
		row{key: "num_experts_per_tok", field: active, def: 8},
		row{key: "router_jitter_noise", only: 0.0},
		row{key: "rotary_dim", read: (*config).rotaryColumns, write: func(m *model.Model, kv map[string]any) { kv["rotary_dim"] = m.RotaryDim(false) }, own: true},
		routerLoss,
		fullAttention,
		rope(rotary{partial: true}),
	),
	// What transformers does not read: it computes what these say in the published files.
	ignored: []string{"attn_type_list", "mtp_transformer_layers", "num_mtp_modules", "use_mtp", "qk_norm_type", "use_qk_norm", "scoring_func", "shared_intermediate_size",
		"use_routing_bias"},
	constant: map[string]any{"pad_token_id": nil},
	typical:  "minimax-m2",
	published: map[string]string{
		"minimax-m2": `{"rotary_dim": 64}`,
	},
}

func miniMaxM2Names() model.TensorNames {
	n := mixtralNames()
	n.QNorm, n.KNorm, n.RouterBias = "self_attn.q_norm", "self_attn.k_norm", "block_sparse_moe.e_score_correction_bias"
	return n
}

// rotaryColumns reads how many of a head's columns are rotated, which published files say instead of their share.
func (c *config) rotaryColumns(m *model.Model) {
	n := m.HeadDim
	if c.get("rotary_dim", &n); n < 1 || n > m.HeadDim {
		c.fail("rotary_dim is %d of a head's %d columns; hint: check that this is the file that was published", n, m.HeadDim)
		return
	}
	if n < m.HeadDim {
		m.RotaryPct = float64(n) / float64(m.HeadDim)
	}
}
