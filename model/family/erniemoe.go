package family

import "github.com/athanor-llm/athanor/model"

// ernieMoE is ERNIE 4.5 with a mixture of experts in all but the first layers, beside which all tokens go through more, in one
// feed-forward. Experts are scored by a softmax, and chosen with a bias as in GLM-4.5.
var ernieMoE = family{
	Family: model.Family{Name: "ernie4_5_moe", Mixture: true, Paired: true, Ahead: true, Tensors: ernieMoENames()},
	class:  "Ernie4_5_MoeForCausalLM",
	fixed:  model.Model{NormedRoute: true, Router: model.Router{Bias: true, Row: true}},
	table: changed(llamaTable,
		row{key: "vocab_size", field: vocab, def: 103424},
		row{key: "num_hidden_layers", field: layers, def: 28},
		row{key: "hidden_size", field: width, def: 2560},
		row{key: "num_attention_heads", field: heads, def: 20},
		row{key: "num_key_value_heads", field: kvHeads, def: 4, null: asHeads},
		row{key: "head_dim", field: headDim, def: perHead, null: perHead},
		row{key: "intermediate_size", field: denseWidth, def: 12288},
		row{key: "moe_intermediate_size", field: feedForward, def: 1536},
		row{key: "max_position_embeddings", field: maxPositions, def: 131072},
		row{key: "rms_norm_eps", field: normEps, def: 1e-5},
		row{key: "rope_theta", field: ropeTheta, def: 5e5},
		row{key: "tie_word_embeddings", field: tied, def: true},
		row{key: "use_bias", only: false},
		row{key: "moe_num_experts", field: experts, def: 64},
		row{key: "moe_k", field: active, def: 6},
		row{key: "moe_num_shared_experts", read: (*config).ernieShared, write: func(m *model.Model, kv map[string]any) { kv["moe_num_shared_experts"] = m.Shared / m.FeedForward }, own: true},
		row{key: "moe_layer_start_index", read: (*config).ernieLayers, write: func(m *model.Model, kv map[string]any) { kv["moe_layer_start_index"] = m.Dense }},
		row{key: "moe_norm_min", only: 1e-12},
		routerLoss,
		fullAttention,
		rope(rotary{}),
	),
	ignored:  []string{"moe_capacity", "moe_gate", "moe_use_aux_free", "num_nextn_predict_layers"},
	constant: map[string]any{"pad_token_id": nil},
	typical:  "ernie-4.5-21b-a3b",
	published: map[string]string{
		"ernie-4.5-21b-a3b": `{}`,
	},
}

func ernieMoENames() model.TensorNames {
	n := glm4MoENames()
	n.RouterBias = "mlp.moe_statics.e_score_correction_bias"
	return n
}

// ernieShared reads how many experts all tokens go through.
func (c *config) ernieShared(m *model.Model) {
	n := 2
	if c.get("moe_num_shared_experts", &n); n < 0 || n > 64 {
		c.fail("moe_num_shared_experts is %d: %w: only models with up to 64 are supported", n, ErrUnsupported)
	}
	m.Shared = n * m.FeedForward
}

// ernieLayers reads which layers have experts: all from one on.
func (c *config) ernieLayers(m *model.Model) {
	m.Dense = 1
	last, every := -1, 1
	c.get("moe_layer_start_index", &m.Dense)
	c.get("moe_layer_end_index", &last)
	if c.get("moe_layer_interval", &every); every != 1 || last != -1 && last != m.Layers-1 {
		c.fail("moe_layer_end_index %d, moe_layer_interval %d: %w: only models with experts in all layers from one on are supported", last, every, ErrUnsupported)
	}
}
