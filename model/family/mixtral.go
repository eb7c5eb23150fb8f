package family

import "github.com/athanor-llm/athanor/model"

// mixtral is Mixtral (2401.04088): Mistral with a mixture of experts in each layer.
var mixtral = family{
	Family:     model.Family{Name: "mixtral", Mixture: true, Tensors: mixtralNames()},
	class:      "MixtralForCausalLM",
	classifier: "MixtralForSequenceClassification",
	fixed:      model.Model{NormedRoute: true},
	table: changed(llamaTable,
		row{key: "num_key_value_heads", field: kvHeads, def: 8, null: asHeads},
		row{key: "intermediate_size", field: feedForward, def: 14336},
		row{key: "max_position_embeddings", field: maxPositions, def: 131072},
		row{key: "rms_norm_eps", field: normEps, def: 1e-5},
		row{key: "rope_theta", field: ropeTheta, def: 1e6},
		row{key: "sliding_window", field: window, def: 0},
		row{key: "num_local_experts", field: experts, def: 8},
		row{key: "num_experts_per_tok", field: active, def: 2},
		row{key: "router_jitter_noise", only: 0.0},
		routerLoss,
		fullAttention,
		rope(rotary{}),
	),
	typical: "mixtral-8x7b",
	published: map[string]string{
		"mixtral-8x7b": `{"max_position_embeddings": 32768}`,
	},
}

func mixtralNames() model.TensorNames {
	n := llamaNames
	n.Router, n.Gate, n.Up, n.Down = "block_sparse_moe.gate", "block_sparse_moe.experts.%d.w1", "block_sparse_moe.experts.%d.w3", "block_sparse_moe.experts.%d.w2"
	return n
}

// routerLoss are the keys of the term that evens out how much experts are used. It is part of the loss only if
// config.json asks for the router's logits.
var routerLoss = row{key: "output_router_logits", read: func(c *config, m *model.Model) {
	var coefficient float64
	c.get("router_aux_loss_coef", &coefficient)
	off := row{key: "output_router_logits", only: false}
	off.load(c, m)
}}
