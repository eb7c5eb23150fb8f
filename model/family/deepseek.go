package family

import (
	"slices"

	"github.com/athanor-llm/athanor/model"
)

// Families whose attention is made from latents: DeepSeek-V2 (2405.04434) and V3 (2412.19437), whose class is Moonlight's, too, and
// GLM-4.7-Flash. All are mixtures in all but the first layers, beside whose experts all tokens go through one more feed-forward.
var (
	deepseek2 = family{
		Family: model.Family{Name: "deepseek_v2", Mixture: true, Tensors: latentNames()},
		class:  "DeepseekV2ForCausalLM", classifier: "DeepseekV2ForSequenceClassification",
		table: changed(latentTable,
			row{key: "vocab_size", field: vocab, def: 102400},
			row{key: "intermediate_size", field: denseWidth, def: 11008},
			row{key: "moe_intermediate_size", field: feedForward, def: 1407},
			row{key: "max_position_embeddings", field: maxPositions, def: 2048},
			latents(model.Latent{Queries: 1536, KV: 512, Plain: 128, Turned: 64, Value: 128}),
			row{key: "n_routed_experts", field: experts, def: 64},
			row{key: "num_experts_per_tok", field: active, def: 0},
			manyShared(2),
			decimal("routed_scaling_factor", routeTimes, 1),
			row{key: "first_k_dense_replace", field: dense, def: 0},
			row{key: "norm_topk_prob", only: false},
			row{key: "scoring_func", only: "softmax", own: true},
			row{key: "topk_method", only: "greedy", own: true},
		),
		ignored: append([]string{"n_group", "topk_group"}, latentIgnored...), // of another method
		typical: "deepseek-v2-lite",
		published: map[string]string{
			"deepseek-v2-lite": `{"num_hidden_layers": 27, "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 16, "intermediate_size": 10944,
				"moe_intermediate_size": 1408, "max_position_embeddings": 163840, "q_lora_rank": null, "num_experts_per_tok": 6, "first_k_dense_replace": 1, "rope_theta": 10000,
				"rope_scaling": {"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 0.707, "original_max_position_embeddings": 4096}}`,
		},
	}
	deepseek3 = family{
		Family: model.Family{Name: "deepseek_v3", Mixture: true, Ahead: true, Tensors: latentNames()},
		class:  "DeepseekV3ForCausalLM", classifier: "DeepseekV3ForSequenceClassification",
		fixed: model.Model{Router: model.Router{Sigmoid: true, Bias: true}},
		table: changed(scoredLatentTable,
			row{key: "vocab_size", field: vocab, def: 129280},
			row{key: "num_hidden_layers", field: layers, def: 61},
			row{key: "hidden_size", field: width, def: 7168},
			row{key: "num_attention_heads", field: heads, def: 128},
			row{key: "num_key_value_heads", field: kvHeads, def: 128, null: asHeads},
			row{key: "intermediate_size", field: denseWidth, def: 18432},
			row{key: "moe_intermediate_size", field: feedForward, def: 2048},
			row{key: "max_position_embeddings", field: maxPositions, def: 4096},
			latents(model.Latent{Queries: 1536, KV: 512, Plain: 128, Turned: 64, Value: 128}),
			row{key: "n_routed_experts", field: experts, def: 256},
			row{key: "num_experts_per_tok", field: active, def: 8},
			manyShared(1),
			decimal("routed_scaling_factor", routeTimes, 2.5),
			atLeastOne("n_group", groups, 8),
			atLeastOne("topk_group", bestGroups, 4),
			row{key: "first_k_dense_replace", field: dense, def: 3},
		),
		ignored: append([]string{"num_nextn_predict_layers", "num_mtp_layers"}, latentIgnored...), // of layers beyond the last, which are carried
		// None, so that transformers does not ask for their weights.
		constant: map[string]any{"num_nextn_predict_layers": 0},
		typical:  "moonlight-16b-a3b",
		published: map[string]string{
			"deepseek-v3": `{"max_position_embeddings": 163840, "rope_theta": 10000,
				"rope_scaling": {"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096}}`,
			"moonlight-16b-a3b": `{"vocab_size": 163840, "num_hidden_layers": 27, "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 16, "intermediate_size": 11264,
				"moe_intermediate_size": 1408, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 50000, "q_lora_rank": null, "n_routed_experts": 64, "num_experts_per_tok": 6,
				"n_shared_experts": 2, "routed_scaling_factor": 2.446, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}`,
		},
	}
	glm4MoELite = family{
		Family: model.Family{Name: "glm4_moe_lite", Mixture: true, Ahead: true, Tensors: latentNames()},
		class:  "Glm4MoeLiteForCausalLM",
		fixed:  model.Model{Router: model.Router{Sigmoid: true, Bias: true}},
		table: changed(scoredLatentTable,
			row{key: "vocab_size", field: vocab, def: 154880},
			row{key: "num_hidden_layers", field: layers, def: 47},
			row{key: "hidden_size", field: width, def: 2048},
			row{key: "num_attention_heads", field: heads, def: 20},
			row{key: "num_key_value_heads", field: kvHeads, def: 20},
			row{key: "intermediate_size", field: denseWidth, def: 10240},
			row{key: "moe_intermediate_size", field: feedForward, def: 1536},
			row{key: "max_position_embeddings", field: maxPositions, def: 202752},
			row{key: "rms_norm_eps", field: normEps, def: 1e-5},
			latents(model.Latent{Queries: 768, KV: 512, Plain: 192, Turned: 64, Value: 256}),
			row{key: "n_routed_experts", field: experts, def: 64},
			row{key: "num_experts_per_tok", field: active, def: 4},
			manyShared(1),
			decimal("routed_scaling_factor", routeTimes, 1.8),
			atLeastOne("n_group", groups, 1),
			atLeastOne("topk_group", bestGroups, 1),
			row{key: "mlp_layer_types", read: (*config).denseLayers, write: writeDenseLayers, own: true},
		),
		ignored:  append([]string{"num_nextn_predict_layers", "num_mtp_layers", "first_k_dense_replace", "partial_rotary_factor"}, latentIgnored...),
		constant: map[string]any{"num_nextn_predict_layers": 0},
		typical:  "glm-4.7-flash",
		published: map[string]string{
			"glm-4.7-flash": `{"rope_theta": 1000000}`,
		},
	}
)

// latentTable has the keys that all of them have, scoredLatentTable those of families whose experts are scored by sigmoids, and chosen
// with a bias.
var (
	latentTable = changed(without(llamaTable, "head_dim"),
		attentionBias,
		row{key: "mlp_bias", only: false},
		row{key: "kv_lora_rank"}, // each has its own, here since the next reads what it sets
		row{key: "rope_interleave", only: true, own: true},
		row{key: "moe_layer_freq", only: 1, own: true},
		fullAttention,
		rope(rotary{scores: true}),
	)
	scoredLatentTable = changed(latentTable,
		row{key: "norm_topk_prob", field: normedRoute, def: true},
		row{key: "scoring_func", only: "sigmoid", own: true},
		row{key: "topk_method", only: "noaux_tc", own: true},
	)
	// latentIgnored are keys of published files that transformers' classes do not read: terms of losses, how experts were
	// distributed, and what follows from other keys.
	latentIgnored = []string{"aux_loss_alpha", "seq_aux", "ep_size", "head_dim", "qk_head_dim", "output_router_logits", "router_aux_loss_coef"}
)

func latentNames() model.TensorNames {
	n := glm4MoENames()
	n.QueryDown, n.QueryNorm, n.QueryUp = "self_attn.q_a_proj", "self_attn.q_a_layernorm", "self_attn.q_b_proj"
	n.KVDown, n.KVNorm, n.KVUp = "self_attn.kv_a_proj_with_mqa", "self_attn.kv_a_layernorm", "self_attn.kv_b_proj"
	return n
}

// latents are the keys of latents' sizes.
func latents(def model.Latent) row {
	return row{key: "kv_lora_rank", own: true,
		read: func(c *config, m *model.Model) {
			l := &m.Latent
			*l = def
			c.get("kv_lora_rank", &l.KV)
			if string(c.raw["q_lora_rank"]) == "null" {
				l.Queries = 0
			}
			c.get("q_lora_rank", &l.Queries)
			c.get("qk_nope_head_dim", &l.Plain)
			c.get("qk_rope_head_dim", &l.Turned)
			c.get("v_head_dim", &l.Value)
			m.HeadDim = l.Plain + l.Turned
		},
		write: func(m *model.Model, kv map[string]any) {
			l := &m.Latent
			add(kv, map[string]any{"kv_lora_rank": l.KV, "q_lora_rank": nil, "qk_nope_head_dim": l.Plain, "qk_rope_head_dim": l.Turned, "v_head_dim": l.Value})
			if l.Queries > 0 {
				kv["q_lora_rank"] = l.Queries
			}
		},
	}
}

// manyShared is how many experts all tokens go through: together they are one feed-forward.
func manyShared(def int) row {
	return row{key: "n_shared_experts", read: func(c *config, m *model.Model) { c.sharedExperts(m, def) }, write: writeSharedExperts, own: true}
}

// denseLayers reads how many layers, the first ones, have a feed-forward instead of experts.
func (c *config) denseLayers(m *model.Model) {
	m.Dense = 1
	var types []string
	if !c.get("mlp_layer_types", &types) {
		return
	}
	if len(types) != m.Layers {
		c.fail("mlp_layer_types has %d entries for %d layers", len(types), m.Layers)
	}
	m.Dense = max(slices.Index(types, "sparse"), 0)
	for i, t := range types {
		if want := map[bool]string{true: "dense", false: "sparse"}[i < m.Dense]; t != want {
			c.fail("mlp_layer_types: layer %d is %q: %w: only the first layers can be dense", i, t, ErrUnsupported)
		}
	}
}

func writeDenseLayers(m *model.Model, kv map[string]any) {
	types := slices.Repeat([]string{"sparse"}, m.Layers)
	for l := range m.Dense {
		types[l] = "dense"
	}
	kv["mlp_layer_types"] = types
}
