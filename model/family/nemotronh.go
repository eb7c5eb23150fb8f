package family

import (
	"slices"
	"strings"

	"github.com/athanor-llm/athanor/model"
)

// nemotronH is Nemotron-H and Nemotron Nano 2: each layer has a scan of Mamba2, attention without positions, or a feed-forward of squared
// ReLU, behind one norm.
var nemotronH = family{
	Family: model.Family{Name: "nemotron_h", Ungated: true, Tensors: nemotronNames()},
	class:  "NemotronHForCausalLM",
	fixed:  model.Model{NoRotary: []bool{true}, RopeTheta: 1e4},
	table: changed(without(llamaTable, "num_hidden_layers", "hidden_act", "rms_norm_eps", "rope_theta", "rope_interleaved", "tie_word_embeddings"),
		row{key: "vocab_size", field: vocab, def: 131072},
		row{key: "num_key_value_heads", field: kvHeads, def: 8, null: asHeads},
		row{key: "head_dim", field: headDim, def: 128},
		row{key: "intermediate_size", field: feedForward, def: 21504},
		row{key: "max_position_embeddings", field: maxPositions, def: 4096},
		row{key: "layer_norm_epsilon", field: normEps, def: 1e-5},
		activated("mlp_hidden_act", "relu2"),
		attentionBias,
		row{key: "mlp_bias", field: mlpBias, def: false},
		row{key: "tie_word_embeddings", only: false},
		row{key: "residual_in_fp32", only: false},
		row{key: "sliding_window", never: "attention is over all tokens"},
		row{key: "mamba_num_heads", field: func(m *model.Model) any { return &m.Mamba.Heads }, def: 128},
		row{key: "mamba_head_dim", field: func(m *model.Model) any { return &m.Mamba.HeadDim }, def: 64},
		row{key: "n_groups", field: func(m *model.Model) any { return &m.Mamba.Groups }, def: 8},
		row{key: "ssm_state_size", field: func(m *model.Model) any { return &m.Mamba.State }, def: 128},
		row{key: "conv_kernel", field: func(m *model.Model) any { return &m.Mamba.Taps }, def: 4},
		row{key: "use_conv_bias", field: func(m *model.Model) any { return &m.Mamba.ConvBias }, def: true},
		row{key: "use_bias", field: func(m *model.Model) any { return &m.Mamba.Bias }, def: false},
		row{key: "mamba_hidden_act", only: "silu"},
		row{key: "time_step_limit", read: stepLimits, write: writeStepLimits},
		row{key: "layers_block_type", read: nemotronLayers, write: writeNemotronLayers, own: true},
	),
	// What other software reads, what only experts have, and how weights are drawn.
	ignored: []string{"attention_head_dim", "chunk_size", "expand", "mamba_proj_bias", "mamba_ssm_cache_dtype", "num_logits_to_keep", "num_query_groups", "rescale_layer", "rescale_prenorm_residual",
		"rms_norm_eps", "time_step_floor", "time_step_max", "time_step_min", "time_step_rank", "use_mamba_kernels", "moe_intermediate_size", "moe_latent_size", "moe_shared_expert_intermediate_size",
		"moe_shared_expert_overlap", "mtp_layers_block_type", "n_group", "n_routed_experts", "n_shared_experts", "norm_topk_prob", "num_experts_per_tok", "num_nextn_predict_layers", "output_router_logits",
		"routed_scaling_factor", "topk_group"},
	constant: map[string]any{"pad_token_id": nil},
	typical:  "nemotron-h-8b",
	published: map[string]string{
		"nemotron-h-8b": `{"max_position_embeddings": 8192, "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"}`,
	},
}

func nemotronNames() model.TensorNames {
	n := mambaNames(model.TensorNames{
		Embed: "backbone.embeddings.weight", Layer: "backbone.layers.%d.", FinalNorm: "backbone.norm_f", Norm1: "norm", Norm2: "norm",
		Q: "mixer.q_proj", K: "mixer.k_proj", V: "mixer.v_proj", AttnOut: "mixer.o_proj", Up: "mixer.up_proj", Down: "mixer.down_proj",
	}, "mixer.")
	return n
}

// nemotronLayers reads what each layer is, and so how many there are.
func nemotronLayers(c *config, m *model.Model) {
	types := []string{"linear_attention", "moe", "full_attention", "mlp"}
	var pattern string
	said := 0
	c.get("num_hidden_layers", &said)
	switch {
	case c.get("layers_block_type", &types) || c.get("layer_types", &types):
	case c.get("hybrid_override_pattern", &pattern):
		types = strings.Split(pattern, "")
	}
	c.used["layer_types"], c.used["hybrid_override_pattern"] = true, true
	if len(types) == 0 || len(types) > model.MaxLayers || said != 0 && said != len(types) {
		c.fail("layers_block_type has %d entries for %d layers", len(types), said)
	}
	m.Layers = len(types)
	for l, t := range types {
		half, scans := model.Mixes, false
		switch t {
		case "linear_attention", "mamba", "M":
			scans = true
		case "full_attention", "attention", "*":
		case "mlp", "-":
			half = model.Feeds
		default:
			c.fail("layers_block_type: layer %d is %q: %w: only scans, attention and feed-forwards are supported, as in nemotron-h-8b", l, t, ErrUnsupported)
		}
		m.Halves, m.Mamba.Layers = append(m.Halves, half), append(m.Mamba.Layers, scans)
	}
	if !slices.Contains(m.Mamba.Layers, true) {
		c.fail("layers_block_type: no layer has a scan: %w; hint: check that this is the file that was published", ErrUnsupported)
	}
	m.Halves, m.Mamba.Layers = slices.Clip(m.Halves), slices.Clip(m.Mamba.Layers)
}

func writeNemotronLayers(m *model.Model, kv map[string]any) {
	var types []string
	for l := range m.Layers {
		t := "full_attention"
		switch {
		case m.Mamba.HasLayer(l):
			t = "linear_attention"
		case !model.HasMixer(m, l):
			t = "mlp"
		}
		types = append(types, t)
	}
	kv["layers_block_type"], kv["num_hidden_layers"] = types, m.Layers
}
