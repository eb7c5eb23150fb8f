package model

import (
	"cmp"
	"slices"
	"strings"
)

// readers maps each family to the method that reads its config.json.
var readers = map[Family]func(c *config, f Family) *Model{
	GPT2: (*config).gpt2, OPT: (*config).opt, Llama: (*config).llamas, Mistral: (*config).llamas, Qwen2: (*config).llamas,
	Qwen3: (*config).llamas, Gemma3: (*config).gemma3, OLMo2: (*config).llamas, GPTNeoX: (*config).gptNeoX,
	Phi3: (*config).llamas, SmolLM3: (*config).llamas, Granite: (*config).llamas,
	StarCoder2: (*config).starCoder2, StableLM: (*config).stableLM, Phi: (*config).phi, OLMo3: (*config).llamas,
	Mixtral: (*config).llamas, Qwen3MoE: (*config).llamas, OLMoE: (*config).llamas, GPTOSS: (*config).llamas,
}

// refused lists families that people will try, and what they need that is not built.
var refused = map[Family]string{
	"gemma2":      "its scores and logits are soft-capped, which is not supported",
	"gemma3":      "only the text model is supported, whose model_type is gemma3_text",
	"qwen2_moe":   "shared experts, which all tokens go through, are not supported",
	"deepseek_v3": "its attention and its router are not supported",
}

func (c *config) gpt2(f Family) *Model {
	d := c.int("n_embd", 768)
	h := c.int("n_head", 12)
	m := &Model{
		Family: f, Layers: c.int("n_layer", 12), Width: d, Heads: h, KVHeads: h,
		Vocab: c.int("vocab_size", 50257), MaxPositions: c.int("n_positions", 1024),
		FeedForward: c.int("n_inner", 4*d), Activation: c.str("activation_function", "gelu_new"),
		NormEps: c.num("layer_norm_epsilon", 1e-5), Tied: c.bool("tie_word_embeddings", true),
		QKVBias: true, OutBias: true, MLPBias: true, InitStd: c.num("initializer_range", 0.02),
	}
	if h > 0 {
		m.HeadDim = d / h
	}
	c.want("scale_attn_weights", true)
	c.want("scale_attn_by_inverse_layer_idx", false)
	c.want("add_cross_attention", false)
	c.activation(m.Activation, "gelu_new", "gelu_pytorch_tanh", "gelu", "relu")
	return m
}

// llama reads what Llama and all families after it have.
func (c *config) llama(f Family) *Model {
	d := c.int("hidden_size", 4096)
	h := c.int("num_attention_heads", 32)
	m := &Model{
		Family: f, Layers: c.int("num_hidden_layers", 32), Width: d, Heads: h, KVHeads: c.int("num_key_value_heads", h),
		FeedForward: c.int("intermediate_size", 11008), Vocab: c.int("vocab_size", 32000),
		MaxPositions: c.int("max_position_embeddings", 2048), Activation: c.str("hidden_act", "silu"),
		NormEps: c.num("rms_norm_eps", 1e-6), RopeTheta: c.num("rope_theta", 10000),
		Tied: c.bool("tie_word_embeddings", false), InitStd: c.num("initializer_range", 0.02),
	}
	m.HeadDim = c.int("head_dim", d/max(h, 1))
	c.want("rope_interleaved", false)
	return m
}

func (c *config) llamas(f Family) *Model {
	m := c.llama(f)
	c.activation(m.Activation, "silu")
	switch f {
	case Llama:
		m.QKVBias = c.bool("attention_bias", false)
		m.OutBias = m.QKVBias
		m.MLPBias = c.bool("mlp_bias", false)
		c.fullAttention()
	case Mistral: // null means no window, and as many key heads as query heads; omitted, both are Mistral 7B's
		m.Window = c.int("sliding_window", c.absent("sliding_window", 4096))
		m.KVHeads = c.int("num_key_value_heads", cmp.Or(c.absent("num_key_value_heads", 8), m.Heads))
		c.fullAttention()
	case Qwen2:
		m.QKVBias = true
		c.qwenWindows(m)
	case Qwen3:
		m.QKVBias = c.bool("attention_bias", false)
		m.OutBias = m.QKVBias
		m.QKNorm = QKNormHeads
		m.HeadDim = c.int("head_dim", 128)
		c.qwenWindows(m)
	case OLMo2, OLMo3:
		m.QKVBias = c.bool("attention_bias", false)
		m.OutBias = m.QKVBias
		m.QKNorm, m.Norms = QKNormWhole, PostNorm
		m.Vocab, m.NormEps = c.int("vocab_size", 50304), c.num("rms_norm_eps", 1e-5)
		if f == OLMo3 {
			return c.olmo3(m)
		}
		c.fullAttention()
	case Phi3:
		m.Width, m.FeedForward = c.int("hidden_size", 3072), c.int("intermediate_size", 8192)
		m.HeadDim = c.int("head_dim", m.Width/max(m.Heads, 1))
		m.Vocab, m.NormEps = c.int("vocab_size", 32064), c.num("rms_norm_eps", 1e-5)
		m.MaxPositions, m.RotaryPct = c.int("max_position_embeddings", 4096), c.share("partial_rotary_factor", c.num("partial_rotary_factor", 1))
		m.Window = c.int("sliding_window", 0)
		c.int("original_max_position_embeddings", 0) // see ropeScaling
		c.want("attention_bias", false)
		c.fullAttention()
	case SmolLM3:
		c.smolLM3(m)
	case Mixtral, Qwen3MoE, OLMoE, GPTOSS:
		c.mixture(m)
	case Granite:
		m.QKVBias, m.MLPBias = c.bool("attention_bias", false), c.bool("mlp_bias", false)
		m.OutBias = m.QKVBias
		m.Multipliers = Multipliers{Embedding: c.num("embedding_multiplier", 1), Residual: c.num("residual_multiplier", 1),
			Attention: c.num("attention_multiplier", 1), Logits: c.num("logits_scaling", 1)}
		if m.Multipliers == (Multipliers{}) {
			c.fail("embedding_multiplier, residual_multiplier, attention_multiplier and logits_scaling are all 0; hint: use positive numbers")
		}
		c.fullAttention()
	}
	m.RopeScaling = c.rope(m)
	return m
}

// olmo3Theta is the base of rotary positions where config.json has none. Some versions of transformers use it
// for layers with a window even if rope_theta differs.
const olmo3Theta = 5e5

// olmo3 reads which layers have a window, and positions by type of layer.
func (c *config) olmo3(m *Model) *Model {
	m.RopeTheta = c.num("rope_theta", olmo3Theta)
	m.Window = c.int("sliding_window", c.absent("sliding_window", 4096))
	types := c.layerTypes(m)
	if types == nil {
		types = everyOther(m.Layers, 4)
	}
	if slices.Contains(types, true) && m.Window == 0 {
		c.fail("sliding_window is missing, but layers have sliding_attention")
	}
	m.slide(types)
	m.RopeScaling = c.rope(m)
	switch told := m.LocalTheta > 0; {
	case m.Window == 0:
	case !told && m.RopeTheta != olmo3Theta:
		c.fail("rope_theta is %v: %w: it does not say which base the layers with a window have; hint: give rope_parameters with full_attention and sliding_attention", m.RopeTheta, ErrUnsupported)
	case !told && m.RopeScaling != nil:
		m.LocalTheta = olmo3Theta
	case m.LocalTheta == m.RopeTheta && m.RopeScaling == nil:
		m.LocalTheta = 0
	}
	return m
}

// everyOther returns which layers have a window: all but those whose number, from 1, is a multiple of every.
func everyOther(layers, every int) (sliding []bool) {
	for l := range min(layers, maxLayers) {
		sliding = append(sliding, every < 1 || (l+1)%every != 0)
	}
	return sliding
}

// smolLM3 reads which layers have no rotary positions, and which a window.
func (c *config) smolLM3(m *Model) {
	m.Layers, m.Width = c.int("num_hidden_layers", 36), c.int("hidden_size", 2048)
	m.Heads, m.KVHeads = c.int("num_attention_heads", 16), c.int("num_key_value_heads", c.absent("num_key_value_heads", 4))
	m.KVHeads = cmp.Or(m.KVHeads, m.Heads)
	m.HeadDim = c.int("head_dim", m.Width/max(m.Heads, 1))
	m.Vocab, m.MaxPositions = c.int("vocab_size", 128256), c.int("max_position_embeddings", 32768)
	m.RopeTheta, m.Tied = c.num("rope_theta", 2e6), c.bool("tie_word_embeddings", true)
	m.QKVBias, m.MLPBias = c.bool("attention_bias", false), c.bool("mlp_bias", false)
	m.OutBias = m.QKVBias
	var turned []int
	every := c.int("no_rope_layer_interval", 4)
	if !c.get("no_rope_layers", &turned) {
		for l := range min(m.Layers, maxLayers) {
			turned = append(turned, l+1)
			if every > 0 {
				turned[l] %= every
			}
		}
	}
	if len(turned) != min(m.Layers, maxLayers) {
		c.fail("no_rope_layers has %d entries for %d layers", len(turned), m.Layers)
	}
	unturned := make([]bool, len(turned))
	for l, t := range turned {
		unturned[l] = t == 0
	}
	if slices.Contains(unturned, true) {
		m.Unturned = slices.Clip(unturned[:period(unturned)])
	}
	types := c.layerTypes(m)
	window := c.int("sliding_window", 0)
	if c.bool("use_sliding_window", false) {
		m.Window = window
		if types == nil {
			types = unturned
		}
		m.slide(types)
	}
}

// qwenWindows reads which layers have a window: those in layer_types or, without that key, the last ones.
func (c *config) qwenWindows(m *Model) {
	c.want("use_mrope", false)
	window, full := c.int("sliding_window", c.absent("sliding_window", 4096)), c.int("max_window_layers", 28)
	types := c.layerTypes(m)
	if !c.bool("use_sliding_window", false) {
		if slices.Contains(types, true) {
			c.fail("layer_types has sliding_attention, but use_sliding_window is false")
		}
		return
	}
	m.Window = window
	if types == nil {
		for l := range min(m.Layers, maxLayers) {
			types = append(types, l >= full)
		}
	}
	m.slide(types)
}

// gemma3 reads the text part of Gemma 3.
func (c *config) gemma3(f Family) *Model {
	m := c.llama(f)
	m.QKNorm, m.Norms, m.UnitOffset, m.ScaledEmbed = QKNormHeads, SandwichNorm, true, true
	m.Vocab, m.Width = c.int("vocab_size", 262208), c.int("hidden_size", 2304)
	m.Layers, m.FeedForward = c.int("num_hidden_layers", 26), c.int("intermediate_size", 9216)
	m.Heads, m.KVHeads, m.HeadDim = c.int("num_attention_heads", 8), c.int("num_key_value_heads", 4), c.int("head_dim", 256)
	m.MaxPositions, m.Tied = c.int("max_position_embeddings", 131072), c.bool("tie_word_embeddings", true)
	m.RopeTheta, m.LocalTheta = c.num("rope_theta", 1e6), c.num("rope_local_base_freq", 1e4)
	m.QueryScalar, m.Window = c.num("query_pre_attn_scalar", 256), c.int("sliding_window", 4096)
	m.QKVBias = c.bool("attention_bias", false)
	m.OutBias = m.QKVBias
	m.Activation = c.str("hidden_activation", "gelu_pytorch_tanh")
	c.activation(m.Activation, "gelu_pytorch_tanh", "gelu_new", "gelu", "silu")
	c.absentOr("attn_logit_softcapping", "soft-capping of attention scores is not supported")
	c.absentOr("final_logit_softcapping", "soft-capping of logits is not supported")
	c.want("use_bidirectional_attention", false)
	every := c.int("sliding_window_pattern", c.int("_sliding_window_pattern", 6))
	types := c.layerTypes(m)
	if types == nil {
		types = everyOther(m.Layers, every)
	}
	m.slide(types)
	m.RopeScaling = c.rope(m)
	return m
}

func (c *config) opt(f Family) *Model {
	d := c.int("hidden_size", 768)
	h := c.int("num_attention_heads", 12)
	bias := c.bool("enable_bias", true)
	m := &Model{
		Family: f, Layers: c.int("num_hidden_layers", 12), Width: d, Heads: h, KVHeads: h,
		FeedForward: c.int("ffn_dim", 3072), Vocab: c.int("vocab_size", 50272),
		MaxPositions: c.int("max_position_embeddings", 2048), Activation: c.str("activation_function", "relu"),
		NormEps: 1e-5, Tied: c.bool("tie_word_embeddings", true), QKVBias: bias, OutBias: bias, MLPBias: bias,
		InitStd: c.num("init_std", 0.02),
	}
	if h > 0 {
		m.HeadDim = d / h
	}
	c.want("do_layer_norm_before", true)
	c.want("_remove_final_layer_norm", false)
	c.want("layer_norm_elementwise_affine", true)
	if p := c.int("word_embed_proj_dim", d); p != d {
		c.fail("word_embed_proj_dim %d differs from hidden_size %d: %w", p, d, ErrUnsupported)
	}
	c.activation(m.Activation, "relu", "gelu", "gelu_new")
	return m
}

func (c *config) starCoder2(f Family) *Model {
	m := c.llama(f)
	m.Layers, m.Width, m.FeedForward = c.int("num_hidden_layers", 30), c.int("hidden_size", 3072), c.int("intermediate_size", 12288)
	m.Heads, m.KVHeads = c.int("num_attention_heads", 24), c.int("num_key_value_heads", 2)
	m.HeadDim = c.int("head_dim", m.Width/max(m.Heads, 1))
	m.Vocab, m.MaxPositions, m.NormEps = c.int("vocab_size", 49152), c.int("max_position_embeddings", 4096), c.num("norm_epsilon", 1e-5)
	m.Tied, m.Window, m.InitStd = c.bool("tie_word_embeddings", true), c.int("sliding_window", 0), c.num("initializer_range", 0.018042)
	m.QKVBias = c.bool("use_bias", true)
	m.OutBias, m.MLPBias = m.QKVBias, m.QKVBias
	m.Activation = c.str("hidden_act", "gelu_pytorch_tanh")
	c.activation(m.Activation, "gelu_pytorch_tanh", "gelu_new", "gelu", "relu")
	c.fullAttention()
	for _, key := range strings.Fields("activation_function layer_norm_epsilon attention_softmax_in_fp32 scale_attention_softmax_in_fp32 scale_attn_weights") {
		c.used[key] = true // of the program that trained the published models; transformers reads others
	}
	c.only("mlp_type", "default")
	c.only("norm_type", "layer_norm")
	m.RopeScaling = c.rope(m)
	return m
}

func (c *config) stableLM(f Family) *Model {
	m := c.llama(f)
	m.Width, m.FeedForward = c.int("hidden_size", 2560), c.int("intermediate_size", 6912)
	m.KVHeads = c.int("num_key_value_heads", 32)
	if m.HeadDim = m.Width / max(m.Heads, 1); c.int("head_dim", m.HeadDim) != m.HeadDim {
		c.fail("head_dim %d: %w: only hidden_size / num_attention_heads is supported", c.int("head_dim", 0), ErrUnsupported)
	}
	m.Vocab, m.MaxPositions, m.NormEps = c.int("vocab_size", 50304), c.int("max_position_embeddings", 4096), c.num("layer_norm_eps", 1e-5)
	m.QKVBias, m.Parallel = c.bool("use_qkv_bias", false), c.bool("use_parallel_residual", false)
	c.partRotary(m, 0.25)
	c.activation(m.Activation, "silu", "gelu", "gelu_pytorch_tanh", "gelu_new")
	return m
}

func (c *config) phi(f Family) *Model {
	m := c.llama(f)
	m.Layers, m.Width, m.FeedForward = c.int("num_hidden_layers", 24), c.int("hidden_size", 2048), c.int("intermediate_size", 8192)
	m.HeadDim = c.int("head_dim", m.Width/max(m.Heads, 1))
	m.Vocab, m.NormEps = c.int("vocab_size", 51200), c.num("layer_norm_eps", 1e-5)
	m.QKVBias, m.OutBias, m.MLPBias, m.Parallel = true, true, true, true
	c.partRotary(m, 0.5)
	m.Activation = c.str("hidden_act", "gelu_new")
	c.activation(m.Activation, "gelu_new", "gelu_pytorch_tanh", "gelu", "relu")
	return m
}

// partRotary reads the rest of what StableLM and Phi have in common.
func (c *config) partRotary(m *Model, pct float64) {
	c.want("qk_layernorm", false)
	m.RotaryPct = c.share("partial_rotary_factor", c.num("partial_rotary_factor", pct))
	m.RopeScaling = c.rope(m)
}

func (c *config) gptNeoX(f Family) *Model {
	d := c.int("hidden_size", 6144)
	h := c.int("num_attention_heads", 64)
	bias := c.bool("attention_bias", true)
	m := &Model{
		Family: f, Layers: c.int("num_hidden_layers", 44), Width: d, Heads: h, KVHeads: h, HeadDim: d / max(h, 1),
		FeedForward: c.int("intermediate_size", 24576), Vocab: c.int("vocab_size", 50432),
		MaxPositions: c.int("max_position_embeddings", 2048), Activation: c.str("hidden_act", "gelu"),
		NormEps: c.num("layer_norm_eps", 1e-5), RopeTheta: c.num("rotary_emb_base", 10000), RotaryPct: c.share("rotary_pct", c.num("rotary_pct", 0.25)),
		Parallel: c.bool("use_parallel_residual", true), Tied: c.bool("tie_word_embeddings", false),
		QKVBias: bias, OutBias: bias, MLPBias: true, InitStd: c.num("initializer_range", 0.02),
	}
	c.activation(m.Activation, "gelu", "gelu_new", "gelu_pytorch_tanh", "relu")
	m.RopeScaling = c.rope(m)
	return m
}

// layerTypes reads which layers have a window; nil if config.json does not say.
func (c *config) layerTypes(m *Model) (sliding []bool) {
	var types []string
	if !c.get("layer_types", &types) {
		return nil
	}
	if len(types) != m.Layers {
		c.fail("layer_types has %d entries for %d layers", len(types), m.Layers)
	}
	for i, t := range types {
		if t != "full_attention" && t != "sliding_attention" {
			c.fail("layer_types: layer %d is %q: %w", i, t, ErrUnsupported)
		}
		sliding = append(sliding, t == "sliding_attention")
	}
	return sliding
}

// slide sets which layers have the window, as the shortest pattern.
func (m *Model) slide(layers []bool) {
	switch {
	case m.Window == 0 || !slices.Contains(layers, true):
		m.Window, m.LocalTheta = 0, 0
		return
	case !slices.Contains(layers, false):
		return
	}
	m.Sliding = slices.Clip(layers[:period(layers)])
}

// period returns the least n such that a list repeats its first n elements (Knuth, Morris and Pratt: the length
// without the longest border).
func period(list []bool) int {
	borders, k := make([]int, len(list)), 0
	for i := 1; i < len(list); i++ {
		for k > 0 && list[i] != list[k] {
			k = borders[k-1]
		}
		if list[i] == list[k] {
			k++
		}
		borders[i] = k
	}
	return len(list) - k
}

// fullAttention rejects layer_types other than full attention (or, if all layers
// have a window, sliding attention).
func (c *config) fullAttention() {
	var types []string
	c.get("layer_types", &types)
	for i, t := range types {
		if t != types[0] || t != "full_attention" && t != "sliding_attention" {
			c.fail("layer_types: layer %d is %q: %w: all layers must be of the same type", i, t, ErrUnsupported)
		}
	}
}
