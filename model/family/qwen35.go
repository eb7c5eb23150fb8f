package family

import "github.com/athanor-llm/athanor/model"

// qwen35 is the text model of Qwen3.5 and 3.6, qwen35MoE that of their mixtures of experts: three of four layers are gated delta nets,
// the others have attention whose results are gated.
var (
	qwen35 = family{
		Family: model.Family{Name: "qwen3_5_text", Ahead: true, Tensors: splitNames(llamaNames)},
		class:  "Qwen3_5ForCausalLM", classifier: "Qwen3_5TextForSequenceClassification",
		fixed: deltaFixed,
		table: changed(deltaTable,
			row{key: "vocab_size", field: vocab, def: 248320},
			row{key: "num_key_value_heads", field: kvHeads, def: 4},
			row{key: "intermediate_size", field: feedForward, def: 12288},
		),
		ignored: deltaIgnored,
		typical: "qwen3.5-9b",
		published: map[string]string{
			"qwen3.5-0.8b": `{"num_hidden_layers": 24, "hidden_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 3584,
				"linear_num_value_heads": 16, "max_position_embeddings": 262144, "rope_theta": 10000000, "tie_word_embeddings": true}`,
			"qwen3.5-4b": `{"hidden_size": 2560, "intermediate_size": 9216, "max_position_embeddings": 262144, "rope_theta": 10000000, "tie_word_embeddings": true}`,
			"qwen3.5-9b": `{"max_position_embeddings": 262144, "rope_theta": 10000000}`,
			"qwen3.5-27b": `{"num_hidden_layers": 64, "hidden_size": 5120, "num_attention_heads": 24, "intermediate_size": 17408, "linear_num_value_heads": 48,
				"max_position_embeddings": 262144, "rope_theta": 10000000}`,
		},
	}
	qwen35MoE = family{
		Family: model.Family{Name: "qwen3_5_moe_text", Mixture: true, Stacked: true, Ahead: true, Tensors: splitNames(qwen2MoENames())},
		class:  "Qwen3_5MoeForCausalLM",
		fixed:  deltaMixture,
		table: changed(without(deltaTable, "intermediate_size"),
			row{key: "vocab_size", field: vocab, def: 248320},
			row{key: "num_hidden_layers", field: layers, def: 40},
			row{key: "hidden_size", field: width, def: 2048},
			row{key: "num_key_value_heads", field: kvHeads, def: 2},
			row{key: "moe_intermediate_size", field: feedForward, def: 512},
			sharedBeside(512),
			row{key: "num_experts", field: experts, def: 256},
			row{key: "num_experts_per_tok", field: active, def: 8},
			row{key: "norm_topk_prob", only: true},
			routerLoss,
		),
		ignored: append([]string{"intermediate_size"}, deltaIgnored...),
		typical: "qwen3.5-35b-a3b",
		published: map[string]string{
			"qwen3.5-35b-a3b": `{"max_position_embeddings": 262144, "rope_theta": 10000000}`,
		},
	}
)

// deltaMixture is what all models have that are also mixtures of experts.
var deltaMixture = model.Model{QKNorm: model.QKNormHeads, UnitOffset: true, OutGate: true, SharedGate: true, NormedRoute: true}
