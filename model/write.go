package model

import (
	"cmp"
	"encoding/json"
	"strconv"
	"strings"
)

// Config writes the config.json that Parse and transformers read.
func (m *Model) Config() []byte {
	kv := map[string]any{
		"model_type": string(m.Family), "architectures": []string{families[m.Family].class}, "vocab_size": m.Vocab,
		"tie_word_embeddings": m.Tied, "torch_dtype": "float32", "use_cache": true, "bos_token_id": nil, "eos_token_id": nil,
	}
	switch m.Family {
	case GPT2:
		add(kv, map[string]any{
			"n_layer": m.Layers, "n_embd": m.Width, "n_head": m.Heads,
			"n_inner": m.FeedForward, "n_positions": m.MaxPositions, "activation_function": m.Activation,
			"layer_norm_epsilon": m.NormEps, "initializer_range": m.InitStd,
			"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0,
		})
	case OPT:
		add(kv, map[string]any{
			"num_hidden_layers": m.Layers, "hidden_size": m.Width,
			"word_embed_proj_dim": m.Width, "num_attention_heads": m.Heads, "ffn_dim": m.FeedForward,
			"max_position_embeddings": m.MaxPositions, "activation_function": m.Activation, "enable_bias": m.MLPBias,
			"do_layer_norm_before": true, "dropout": 0.0, "attention_dropout": 0.0, "init_std": m.InitStd,
		})
	case GPTNeoX:
		add(kv, map[string]any{
			"num_hidden_layers": m.Layers, "hidden_size": m.Width, "num_attention_heads": m.Heads, "intermediate_size": m.FeedForward,
			"max_position_embeddings": m.MaxPositions, "hidden_act": m.Activation, "layer_norm_eps": m.NormEps,
			"rotary_emb_base": m.RopeTheta, "rotary_pct": cmp.Or(m.RotaryPct, 1), "use_parallel_residual": m.Parallel, "attention_bias": m.QKVBias,
			"attention_dropout": 0.0, "hidden_dropout": 0.0, "initializer_range": m.InitStd,
		})
		m.ropeConfig(kv)
	default:
		m.llamaConfig(kv)
	}
	data, err := json.MarshalIndent(kv, "", "  ")
	if err != nil {
		panic("model: config.json: " + err.Error()) // finite numbers only: Validate
	}
	return append(data, '\n')
}

// llamaConfig adds the keys of Llama and all families after it.
func (m *Model) llamaConfig(kv map[string]any) {
	add(kv, map[string]any{
		"num_hidden_layers": m.Layers, "hidden_size": m.Width,
		"num_attention_heads": m.Heads, "num_key_value_heads": m.KVHeads, "head_dim": m.HeadDim,
		"intermediate_size": m.FeedForward, "max_position_embeddings": m.MaxPositions, "hidden_act": m.Activation,
		"rms_norm_eps": m.NormEps, "rope_theta": m.RopeTheta, "initializer_range": m.InitStd,
	})
	switch m.Family {
	case Llama:
		add(kv, map[string]any{"attention_bias": m.QKVBias, "mlp_bias": m.MLPBias})
	case Mistral:
		kv["sliding_window"] = orNull(m.Window)
	case Qwen2:
		m.windowConfig(kv)
	case Qwen3:
		kv["attention_bias"] = m.QKVBias
		m.windowConfig(kv)
	case OLMo2:
		kv["attention_bias"] = m.QKVBias
	case Phi3:
		add(kv, map[string]any{"sliding_window": orNull(m.Window), "pad_token_id": nil})
		if m.RotaryPct > 0 {
			kv["partial_rotary_factor"] = m.RotaryPct
		}
	case SmolLM3:
		add(kv, map[string]any{"attention_bias": m.QKVBias, "mlp_bias": m.MLPBias, "no_rope_layers": m.turnedLayers(), "pad_token_id": nil})
		m.windowConfig(kv)
	case Mixtral:
		add(kv, map[string]any{"sliding_window": orNull(m.Window), "num_local_experts": m.Experts, "num_experts_per_tok": m.Active})
	case Qwen3MoE:
		add(kv, map[string]any{"attention_bias": m.QKVBias, "moe_intermediate_size": m.FeedForward, "num_experts": m.Experts,
			"num_experts_per_tok": m.Active, "norm_topk_prob": m.NormedRoute, "decoder_sparse_step": 1, "mlp_only_layers": []int{}})
		m.windowConfig(kv)
	case OLMoE:
		add(kv, map[string]any{"attention_bias": m.QKVBias, "num_experts": m.Experts, "num_experts_per_tok": m.Active,
			"norm_topk_prob": m.NormedRoute, "pad_token_id": nil})
	case GPTOSS:
		add(kv, map[string]any{"attention_bias": m.QKVBias, "num_local_experts": m.Experts, "num_experts_per_tok": m.Active, "layer_types": m.layerTypes(),
			"swiglu_limit": decimal(m.GateLimit), "swiglu_alpha": decimal(m.GateAlpha),
			"sliding_window": cmp.Or(m.Window, 128), "pad_token_id": nil}) // transformers wants a window even where no layer has one
	case OLMo3:
		add(kv, map[string]any{"attention_bias": m.QKVBias, "layer_types": m.layerTypes(), "pad_token_id": nil})
		if m.Window > 0 { // null is not read even where no layer has one
			kv["sliding_window"] = m.Window
		}
	case StarCoder2:
		rename(kv, "rms_norm_eps", "norm_epsilon")
		add(kv, map[string]any{"use_bias": m.QKVBias, "sliding_window": orNull(m.Window)})
	case StableLM:
		rename(kv, "rms_norm_eps", "layer_norm_eps")
		add(kv, map[string]any{"use_qkv_bias": m.QKVBias, "use_parallel_residual": m.Parallel, "partial_rotary_factor": cmp.Or(m.RotaryPct, 1)})
	case Phi:
		rename(kv, "rms_norm_eps", "layer_norm_eps")
		kv["partial_rotary_factor"] = cmp.Or(m.RotaryPct, 1)
	case Granite:
		x := m.Multipliers
		add(kv, map[string]any{"attention_bias": m.QKVBias, "mlp_bias": m.MLPBias, "embedding_multiplier": x.Embedding, "residual_multiplier": x.Residual,
			"attention_multiplier": x.Attention, "logits_scaling": x.Logits})
	case Gemma3:
		rename(kv, "hidden_act", "hidden_activation")
		add(kv, map[string]any{
			"query_pre_attn_scalar": m.QueryScalar, "attention_bias": m.QKVBias,
			"layer_types": m.layerTypes(), "attn_logit_softcapping": nil, "final_logit_softcapping": nil,
		})
		if m.Window > 0 {
			add(kv, map[string]any{"sliding_window": m.Window, "rope_local_base_freq": m.LocalTheta})
		}
	}
	m.ropeConfig(kv)
}

// windowConfig adds Qwen's keys for windows.
func (m *Model) windowConfig(kv map[string]any) {
	kv["use_sliding_window"] = m.Window > 0
	if m.Window > 0 {
		add(kv, map[string]any{"sliding_window": m.Window, "layer_types": m.layerTypes()})
	}
}

// turnedLayers has a 1 for each layer with rotary positions, and a 0 for each without.
func (m *Model) turnedLayers() []int {
	turned := make([]int, m.Layers)
	for l := range turned {
		if m.Turned(l) {
			turned[l] = 1
		}
	}
	return turned
}

func (m *Model) layerTypes() (types []string) {
	for l := range m.Layers {
		t := "full_attention"
		if m.WindowOf(l) > 0 {
			t = "sliding_attention"
		}
		types = append(types, t)
	}
	return types
}

// decimal writes a number with a decimal point. Without one transformers takes it for an integer, and refuses
// it where it wants a float.
func decimal(x float64) json.RawMessage {
	text := strconv.FormatFloat(x, 'f', -1, 64)
	if !strings.Contains(text, ".") {
		text += ".0"
	}
	return json.RawMessage(text)
}

func rename(kv map[string]any, from, to string) {
	kv[to] = kv[from]
	delete(kv, from)
}

func orNull(n int) any {
	if n == 0 {
		return nil
	}
	return n
}
