package family

import "github.com/athanor-llm/athanor/model"

// graniteMoE is the mixture of Granite 3: Granite with experts in each layer, of which files have all in one tensor.
var graniteMoE = family{
	Family: model.Family{Name: "granitemoe", Mixture: true, Tensors: graniteMoENames()},
	class:  "GraniteMoeForCausalLM",
	fixed:  model.Model{NormedRoute: true},
	table: changed(granite.table,
		row{key: "mlp_bias", only: false},
		row{key: "num_local_experts", field: experts, def: 8},
		row{key: "num_experts_per_tok", field: active, def: 2},
		routerLoss,
	),
	typical: "granite-3.0-3b-a800m",
	published: map[string]string{
		"granite-3.0-1b-a400m": `{"num_hidden_layers": 24, "hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 8, "intermediate_size": 512,
			"num_local_experts": 32, "num_experts_per_tok": 8, "vocab_size": 49155, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "tie_word_embeddings": true,
			"embedding_multiplier": 12, "residual_multiplier": 0.22, "attention_multiplier": 0.015625, "logits_scaling": 6}`,
		"granite-3.0-3b-a800m": `{"num_hidden_layers": 32, "hidden_size": 1536, "num_attention_heads": 24, "num_key_value_heads": 8, "intermediate_size": 512,
			"num_local_experts": 40, "num_experts_per_tok": 8, "vocab_size": 49155, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "tie_word_embeddings": true,
			"embedding_multiplier": 12, "residual_multiplier": 0.22, "attention_multiplier": 0.015625, "logits_scaling": 6}`,
	},
}

func graniteMoENames() model.TensorNames {
	n := llamaNames
	n.Router, n.Experts = "block_sparse_moe.router.layer", "block_sparse_moe.experts."
	n.ExpertsUp, n.ExpertsDown = "block_sparse_moe.input_linear.weight", "block_sparse_moe.output_linear.weight"
	return n
}
