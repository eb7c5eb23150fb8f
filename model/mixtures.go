package model

import (
	"cmp"
	"slices"
)

// mixture reads what families with experts have beyond Llama.
func (c *config) mixture(m *Model) {
	switch m.Family {
	case Mixtral:
		m.FeedForward, m.NormEps = c.int("intermediate_size", 14336), c.num("rms_norm_eps", 1e-5)
		m.KVHeads, m.MaxPositions = c.int("num_key_value_heads", cmp.Or(c.absent("num_key_value_heads", 8), m.Heads)), c.int("max_position_embeddings", 131072)
		m.RopeTheta, m.Window = c.num("rope_theta", 1e6), c.int("sliding_window", 0)
		m.Experts, m.Active, m.NormedRoute = c.int("num_local_experts", 8), c.int("num_experts_per_tok", 2), true
		if c.num("router_jitter_noise", 0) != 0 {
			c.fail("router_jitter_noise: %w: only routers without noise are supported", ErrUnsupported)
		}
		c.fullAttention()
	case Qwen3MoE:
		c.qwen3MoE(m)
	case OLMoE:
		m.FeedForward, m.Vocab = c.int("intermediate_size", 2048), c.int("vocab_size", 50304)
		m.Layers, m.Heads = c.int("num_hidden_layers", 16), c.int("num_attention_heads", 16)
		m.KVHeads, m.HeadDim = c.int("num_key_value_heads", m.Heads), c.int("head_dim", m.Width/max(m.Heads, 1))
		m.MaxPositions, m.NormEps = c.int("max_position_embeddings", 4096), c.num("rms_norm_eps", 1e-5)
		m.QKVBias, m.QKNorm = c.bool("attention_bias", false), QKNormWhole
		m.OutBias = m.QKVBias
		m.Experts, m.Active, m.NormedRoute = c.int("num_experts", 64), c.int("num_experts_per_tok", 8), c.bool("norm_topk_prob", false)
		c.absentOr("clip_qkv", "clipping of queries, keys and values is not supported")
		c.fullAttention()
	case GPTOSS:
		c.gptOSS(m)
	}
	c.balance()
}

// gptOSS reads gpt-oss's keys. Defaults are those of the 120b model, as in transformers.
func (c *config) gptOSS(m *Model) {
	m.Width, m.Layers, m.Heads = c.int("hidden_size", 2880), c.int("num_hidden_layers", 36), c.int("num_attention_heads", 64)
	m.KVHeads, m.HeadDim = c.int("num_key_value_heads", cmp.Or(c.absent("num_key_value_heads", 8), m.Heads)), c.int("head_dim", c.absent("head_dim", 64))
	m.HeadDim = cmp.Or(m.HeadDim, m.Width/max(m.Heads, 1))
	m.FeedForward, m.Vocab, m.MaxPositions = c.int("intermediate_size", 2880), c.int("vocab_size", 201088), c.int("max_position_embeddings", 131072)
	m.NormEps, m.RopeTheta = c.num("rms_norm_eps", 1e-5), c.num("rope_theta", 150000)
	m.QKVBias, m.MLPBias = c.bool("attention_bias", true), true
	m.OutBias, m.Sinks = m.QKVBias, true
	m.Experts, m.Active, m.NormedRoute = c.int("num_local_experts", 128), c.int("num_experts_per_tok", 4), true
	if other := c.int("experts_per_token", m.Active); other != m.Active {
		c.fail("num_experts_per_tok is %d and experts_per_token %d, which are two names of the same number; hint: remove the wrong one", m.Active, other)
	}
	m.GateLimit, m.GateAlpha = c.num("swiglu_limit", 7), c.num("swiglu_alpha", 1.702)
	m.Window = c.int("sliding_window", c.absent("sliding_window", 128))
	types := c.layerTypes(m)
	if types == nil {
		types = everyOther(m.Layers, 2)
	}
	if slices.Contains(types, true) && m.Window == 0 {
		c.fail("sliding_window is missing, but layers have sliding_attention")
	}
	m.slide(types)
	c.used["initial_context_length"] = true // of the program that trained the published models; rope_scaling has it too
	if scaling, parameters := c.raw["rope_scaling"], c.raw["rope_parameters"]; len(scaling) == 0 && len(parameters) == 0 {
		c.fail("rope_scaling is missing: %w: transformers would then use that of the published models; hint: add it explicitly", ErrUnsupported)
	}
	c.quantization()
}

// quantization accepts weights in MXFP4, which are dequantised when they are read.
func (c *config) quantization() {
	var q struct {
		Method string   `json:"quant_method"`
		Plain  []string `json:"modules_to_not_convert"` // the files show which tensors are in MXFP4
	}
	if c.get("quantization_config", &q) && q.Method != "mxfp4" {
		c.fail("quantization_config: quant_method %q: %w: only mxfp4 is supported", q.Method, ErrUnsupported)
	}
}

func (c *config) qwen3MoE(m *Model) {
	m.Width, m.Layers, m.Heads = c.int("hidden_size", 2048), c.int("num_hidden_layers", 24), c.int("num_attention_heads", 32)
	m.KVHeads, m.HeadDim = c.int("num_key_value_heads", 4), c.int("head_dim", m.Width/max(m.Heads, 1))
	m.FeedForward, m.Vocab, m.MaxPositions = c.int("moe_intermediate_size", 768), c.int("vocab_size", 151936), c.int("max_position_embeddings", 32768)
	c.int("intermediate_size", 0) // of layers without experts, which are refused below
	m.QKVBias, m.QKNorm = c.bool("attention_bias", false), QKNormHeads
	m.OutBias = m.QKVBias
	m.Experts, m.Active, m.NormedRoute = c.int("num_experts", c.int("num_local_experts", 128)), c.int("num_experts_per_tok", 8), c.bool("norm_topk_prob", false)
	if local := c.int("num_local_experts", m.Experts); local != m.Experts {
		c.fail("num_experts is %d and num_local_experts %d, which are two names of the same number; hint: remove the wrong one", m.Experts, local)
	}
	var dense []int
	if c.get("mlp_only_layers", &dense); len(dense) > 0 || c.int("decoder_sparse_step", 1) != 1 {
		c.fail("mlp_only_layers %v, decoder_sparse_step %d: %w: only models with experts in all layers are supported", dense, c.int("decoder_sparse_step", 1), ErrUnsupported)
	}
	c.qwenWindows(m)
}

// balance reads the term that evens out how much experts are used. It is part of the loss
// only if the configuration asks for the router's logits.
func (c *config) balance() {
	c.num("router_aux_loss_coef", 0)
	c.want("output_router_logits", false)
}
