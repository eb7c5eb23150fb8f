package family

import (
	"slices"

	"github.com/athanor-llm/athanor/model"
)

// lfm2 is Liquid's LFM2: short convolutions that gates multiply before and after, with attention in some layers, whose queries and
// keys have norms.
var lfm2 = family{
	Family: model.Family{Name: "lfm2", Tensors: lfm2Names()},
	class:  "Lfm2ForCausalLM",
	fixed:  model.Model{QKNorm: model.QKNormHeads, Activation: "silu"},
	table: changed(lfm2Table,
		row{key: "intermediate_size", read: adjustedFeedForward, write: writeAdjusted},
	),
	// Published files repeat sizes under the names of the software that trained them.
	ignored: []string{"block_dim", "block_mlp_init_scale", "block_norm_eps", "block_out_init_scale", "block_use_swiglu", "block_use_xavier_init", "conv_dim",
		"conv_dim_out", "conv_use_xavier_init", "num_heads", "theta", "use_pos_enc"},
	constant: map[string]any{"block_auto_adjust_ff_dim": false, "pad_token_id": nil},
	typical:  "lfm2-1.2b",
	published: map[string]string{
		"lfm2-350m": `{"num_hidden_layers": 16, "hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 6656, "layer_types": ` + lfm2Layers + `}`,
		"lfm2-700m": `{"num_hidden_layers": 16, "hidden_size": 1536, "num_attention_heads": 24, "intermediate_size": 10240, "layer_types": ` + lfm2Layers + `}`,
		"lfm2-1.2b": `{"num_hidden_layers": 16, "hidden_size": 2048, "intermediate_size": 12288, "layer_types": ` + lfm2Layers + `}`,
	},
}

// lfm2MoE is LFM2 with a mixture of experts in all but the first layers, with a router as in GLM-4.5.
var lfm2MoE = family{
	Family: model.Family{Name: "lfm2_moe", Mixture: true, Tensors: lfm2MoENames()},
	class:  "Lfm2MoeForCausalLM",
	fixed:  model.Model{QKNorm: model.QKNormHeads, Activation: "silu", Router: model.Router{Sigmoid: true}},
	table: changed(lfm2Table,
		row{key: "hidden_size", field: width, def: 2048},
		row{key: "intermediate_size", field: denseWidth, def: 7168},
		row{key: "moe_intermediate_size", field: feedForward, def: 1792},
		row{key: "num_experts", field: experts, def: 32},
		row{key: "num_experts_per_tok", field: active, def: 4},
		row{key: "num_dense_layers", field: dense, def: 2, write: func(m *model.Model, kv map[string]any) { kv["num_dense_layers"] = m.Dense }},
		row{key: "norm_topk_prob", field: normedRoute, def: true},
		row{key: "use_expert_bias", field: func(m *model.Model) any { return &m.Router.Bias }, def: true},
		decimal("routed_scaling_factor", routeTimes, 1),
	),
	ignored:  []string{"theta", "use_pos_enc", "num_heads"},
	constant: map[string]any{"pad_token_id": nil},
	typical:  "lfm2-8b-a1b",
	published: map[string]string{
		"lfm2-8b-a1b": `{"num_hidden_layers": 24, "layer_types": ["conv", "conv", "full_attention", "conv", "conv", "conv", "full_attention", "conv", "conv", "conv", "full_attention",
			"conv", "conv", "conv", "full_attention", "conv", "conv", "conv", "full_attention", "conv", "conv", "full_attention", "conv", "conv"]}`,
	},
}

// lfm2Table has the keys that both have.
var lfm2Table = changed(without(llamaTable, "hidden_act", "rms_norm_eps", "tie_word_embeddings", "intermediate_size"),
	row{key: "vocab_size", field: vocab, def: 65536},
	row{key: "hidden_size", field: width, def: 2560},
	row{key: "num_key_value_heads", field: kvHeads, def: 8},
	row{key: "head_dim", field: headDim, def: perHead},
	row{key: "max_position_embeddings", field: maxPositions, def: 128000},
	row{key: "norm_eps", field: normEps, def: 1e-5},
	row{key: "rope_theta", field: ropeTheta, def: 1e6},
	row{key: "tie_word_embeddings", read: tiedEmbedding, write: func(m *model.Model, kv map[string]any) { kv["tie_word_embeddings"] = m.Tied }},
	row{key: "conv_bias", only: false},
	row{key: "conv_L_cache", field: func(m *model.Model) any { return &m.Conv.Taps }, def: 3},
	row{key: "layer_types", read: convLayers, write: writeConvLayers, own: true},
	rope(rotary{}),
)

func lfm2MoENames() model.TensorNames {
	n := lfm2Names()
	n.DenseGate, n.DenseUp, n.DenseDown = n.Gate, n.Up, n.Down
	n.Gate, n.Up, n.Down = "feed_forward.experts.%d.w1", "feed_forward.experts.%d.w3", "feed_forward.experts.%d.w2"
	n.Router, n.RouterBias = "feed_forward.gate", "feed_forward.expert_bias"
	return n
}

// lfm2Layers are the layers of the models with 16.
const lfm2Layers = `["conv", "conv", "full_attention", "conv", "conv", "full_attention", "conv", "conv", "full_attention", "conv", "full_attention", "conv",
	"full_attention", "conv", "full_attention", "conv"]`

func lfm2Names() model.TensorNames {
	n := llamaNames
	n.FinalNorm, n.Norm1, n.Norm2 = "model.embedding_norm", "operator_norm", "ffn_norm"
	n.AttnOut, n.QNorm, n.KNorm = "self_attn.out_proj", "self_attn.q_layernorm", "self_attn.k_layernorm"
	n.Gate, n.Up, n.Down = "feed_forward.w1", "feed_forward.w3", "feed_forward.w2"
	n.ConvIn, n.Conv, n.ConvOut = "conv.in_proj", "conv.conv", "conv.out_proj"
	return n
}

// adjustedFeedForward reads the width of the feed-forward, which is two thirds of what config.json says, rounded up, unless that
// says that it is not.
func adjustedFeedForward(c *config, m *model.Model) {
	f, adjust, times, of := 12288, true, 1.0, 256
	c.get("intermediate_size", &f)
	c.get("block_ff_dim", &f)
	c.get("block_auto_adjust_ff_dim", &adjust)
	c.get("block_ffn_dim_multiplier", &times)
	c.get("block_multiple_of", &of)
	if of < 1 || of > 1<<20 || f < 0 || f > 1<<30 || !(times > 0 && times < 1e3) {
		c.fail("a feed-forward of %d, adjusted by %v to multiples of %d, is impossible; hint: check that this is the file that was published", f, times, of)
		return
	}
	if adjust {
		f = int(times * float64(2*f/3))
		f = (f + of - 1) / of * of
	}
	m.FeedForward = f
}

func writeAdjusted(m *model.Model, kv map[string]any) { kv["intermediate_size"] = m.FeedForward }

// tiedEmbedding reads whether the head is the embedding, which has two keys.
func tiedEmbedding(c *config, m *model.Model) {
	m.Tied = true
	c.get("tie_word_embeddings", &m.Tied)
	c.get("tie_embedding", &m.Tied)
}

// convLayers reads which layers have convolutions.
func convLayers(c *config, m *model.Model) {
	var types []string
	var full []int
	given := c.get("layer_types", &types)
	if c.get("full_attn_idxs", &full); !given {
		for l := range min(m.Layers, model.MaxLayers) {
			types = append(types, "conv")
			if full == nil || slices.Contains(full, l) {
				types[l] = "full_attention"
			}
		}
	}
	if len(types) != m.Layers {
		c.fail("layer_types has %d entries for %d layers", len(types), m.Layers)
	}
	for i, t := range types {
		if t != "full_attention" && t != "conv" {
			c.fail("layer_types: layer %d is %q: %w", i, t, ErrUnsupported)
		}
		m.Conv.Layers = append(m.Conv.Layers, t == "conv")
	}
	if m.Conv.Layers = slices.Clip(m.Conv.Layers[:period(m.Conv.Layers)]); !slices.Contains(m.Conv.Layers, true) {
		m.Conv = model.Conv{}
	}
}

func writeConvLayers(m *model.Model, kv map[string]any) {
	var types []string
	for l := range m.Layers {
		t := "full_attention"
		if m.Conv.HasLayer(l) {
			t = "conv"
		}
		types = append(types, t)
	}
	kv["layer_types"] = types
}
