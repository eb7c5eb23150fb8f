package model

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/athanor-llm/athanor/internal/suggest"
)

// ErrUnsupported marks a configuration that asks for a computation that is not
// implemented.
var ErrUnsupported = errors.New("unsupported model configuration")

// harmless lists keys of config.json that do not change what training computes.
// Dropout is not among them: a value other than 0 is accepted with a note, see Parse.
var harmless = strings.Fields(`
	_name_or_path _attn_implementation_autoset _attn_implementation architectures bos_token_id eos_token_id pad_token_id
	unk_token_id sep_token_id decoder_start_token_id torch_dtype dtype transformers_version use_cache model_type name_or_path
	task_specific_params summary_activation summary_first_dropout summary_proj_to_labels summary_type summary_use_proj
	reorder_and_upcast_attn gradient_checkpointing pretraining_tp prefix id2label label2id output_attentions
	output_hidden_states return_dict torchscript is_decoder is_encoder_decoder n_ctx problem_type finetuning_task
	num_labels tokenizer_class use_bfloat16 chunk_size_feed_forward max_window_layers pruned_heads tie_encoder_decoder
	cross_attention_hidden_size remove_invalid_values exponential_decay_length_penalty suppress_tokens
	begin_suppress_tokens forced_bos_token_id forced_eos_token_id keep_scaled_init initializer_cutoff_factor
	max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty temperature top_k top_p
	typical_p repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids
	num_return_sequences output_scores return_dict_in_generate tf_legacy_loss
	_num_labels n_special predict_special_tokens output_past max_sequence_length
	is_llama_config transformers.js_config unsloth_fixed unsloth_version`)

// dropouts are ignored with a note: training here uses none.
var dropouts = strings.Fields(`attn_pdrop embd_pdrop resid_pdrop dropout attention_dropout layerdrop activation_dropout hidden_dropout summary_last_dropout`)

// Parse reads a Hugging Face config.json. Unknown keys, and keys that ask for a
// computation that is not implemented, are errors wrapping ErrUnsupported; notes
// lists settings that were ignored (dropout).
func Parse(data []byte) (m *Model, notes []string, err error) {
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(data, &raw); err != nil {
		return nil, nil, fmt.Errorf("config.json: %w", err)
	}
	c := &config{raw: raw, used: map[string]bool{}}
	family := Family(c.str("model_type", ""))
	switch family {
	case GPT2:
		m = c.gpt2()
	case Llama, Mistral, Qwen2:
		m = c.llama(family)
	case OPT:
		m = c.opt()
	case "":
		return nil, nil, fmt.Errorf("config.json: model_type is missing; hint: is this a Hugging Face model folder?")
	default:
		return nil, nil, fmt.Errorf("config.json: model_type %q: %w; hint: gpt2, llama, mistral, qwen2 and opt are built", family, ErrUnsupported)
	}
	for _, k := range dropouts {
		if c.num(k, 0) != 0 {
			notes = append(notes, k+" is set aside: training uses no dropout")
		}
	}
	for _, k := range harmless {
		c.used[k] = true
	}
	for _, k := range slices.Sorted(maps.Keys(raw)) {
		if !c.used[k] {
			c.fail("%s: %w: this key is not known, so what it changes is not either; hint: remove it if it does not change the computation", k, ErrUnsupported)
		}
	}
	if c.err != nil {
		if errors.Is(c.err, ErrUnsupported) {
			c.err = suggest.Add(c.err, "take another model: with another value this one would compute something else")
		}
		return nil, nil, fmt.Errorf("config.json: %w", c.err)
	}
	if err := m.Validate(); err != nil {
		return nil, nil, fmt.Errorf("config.json: %w", err)
	}
	return m, notes, nil
}

func (c *config) gpt2() *Model {
	d := c.int("n_embd", 768)
	h := c.int("n_head", 12)
	m := &Model{
		Family: GPT2, Layers: c.int("n_layer", 12), Width: d, Heads: h, KVHeads: h,
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
	c.activation(m.Activation, "silu")
	c.want("rope_interleaved", false)
	switch f {
	case Llama:
		m.QKVBias = c.bool("attention_bias", false)
		m.OutBias = m.QKVBias
		m.MLPBias = c.bool("mlp_bias", false)
	case Mistral: // null means no window, and as many key heads as query heads; omitted, both are Mistral 7B's
		m.Window = c.int("sliding_window", c.absent("sliding_window", 4096))
		m.KVHeads = c.int("num_key_value_heads", cmp.Or(c.absent("num_key_value_heads", 8), h))
	case Qwen2:
		m.QKVBias = true
		window := c.int("sliding_window", 0)
		if c.bool("use_sliding_window", false) {
			m.Window = window
			c.fail("use_sliding_window: %w: windows in only some layers are not built; hint: set it to false", ErrUnsupported)
		}
		c.want("use_mrope", false)
	}
	c.fullAttention()
	m.RopeScaling = c.rope(m)
	return m
}

func (c *config) opt() *Model {
	d := c.int("hidden_size", 768)
	h := c.int("num_attention_heads", 12)
	bias := c.bool("enable_bias", true)
	m := &Model{
		Family: OPT, Layers: c.int("num_hidden_layers", 12), Width: d, Heads: h, KVHeads: h,
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

// rope reads rope_scaling (and the newer rope_parameters, which holds
// rope_theta too).
func (c *config) rope(m *Model) *RopeScaling {
	var p struct {
		Type     string  `json:"rope_type"`
		OldType  string  `json:"type"`
		Theta    float64 `json:"rope_theta"`
		Factor   float64 `json:"factor"`
		Low      float64 `json:"low_freq_factor"`
		High     float64 `json:"high_freq_factor"`
		Original int     `json:"original_max_position_embeddings"`
		Partial  float64 `json:"partial_rotary_factor"`
	}
	for _, key := range []string{"rope_scaling", "rope_parameters"} {
		if !c.get(key, &p) {
			continue
		}
		if p.Theta != 0 {
			m.RopeTheta = p.Theta
		}
		if p.Partial != 0 && p.Partial != 1 {
			c.fail("%s: partial_rotary_factor %v: %w", key, p.Partial, ErrUnsupported)
		}
		if p.Type == "" {
			p.Type = p.OldType
		}
		switch p.Type {
		case "", "default":
		case "linear", "llama3":
			if !(p.Factor > 0) || p.Type == "llama3" && !(p.Low > 0 && p.High > p.Low && p.Original > 0) {
				c.fail("%s: factors of %s are missing or not positive", key, p.Type)
			}
			return &RopeScaling{Type: p.Type, Factor: p.Factor, LowFreqFactor: p.Low, HighFreqFactor: p.High, OriginalContext: p.Original}
		default:
			c.fail("%s: rope_type %q: %w; hint: default, linear and llama3 are built", key, p.Type, ErrUnsupported)
		}
	}
	return nil
}

// fullAttention rejects layer_types other than full attention (or, if all layers
// have a window, sliding attention).
func (c *config) fullAttention() {
	var types []string
	c.get("layer_types", &types)
	for i, t := range types {
		if t != types[0] || t != "full_attention" && t != "sliding_attention" {
			c.fail("layer_types: layer %d is %q: %w: all layers must be alike", i, t, ErrUnsupported)
		}
	}
}

// config reads keys and records which were used, and the first error.
type config struct {
	raw  map[string]json.RawMessage
	used map[string]bool
	err  error
}

func (c *config) fail(format string, a ...any) {
	if c.err == nil {
		c.err = fmt.Errorf(format, a...)
	}
}

// get decodes a key and reports whether it is present and not null.
func (c *config) get(key string, v any) bool {
	c.used[key] = true
	data, ok := c.raw[key]
	if !ok || string(data) == "null" {
		return false
	}
	if err := json.Unmarshal(data, v); err != nil {
		c.fail("%s: %w", key, err)
		return false
	}
	return true
}

func (c *config) int(key string, def int) int {
	v := def
	if c.get(key, &v) {
		return v
	}
	return def
}

// absent returns v if a key is absent, and 0 if it is present, as for null.
func (c *config) absent(key string, v int) int {
	if _, ok := c.raw[key]; ok {
		return 0
	}
	return v
}

func (c *config) num(key string, def float64) float64 {
	v := def
	if c.get(key, &v) {
		return v
	}
	return def
}

func (c *config) str(key, def string) string {
	v := def
	if c.get(key, &v) {
		return v
	}
	return def
}

func (c *config) bool(key string, def bool) bool {
	v := def
	if c.get(key, &v) {
		return v
	}
	return def
}

// want rejects any value except the one that is implemented.
func (c *config) want(key string, value bool) {
	if c.bool(key, value) != value {
		c.fail("%s: %w: only %v is built", key, ErrUnsupported, value)
	}
}

func (c *config) activation(got string, built ...string) {
	if !slices.Contains(built, got) {
		c.fail("activation %q: %w; hint: one of %s", got, ErrUnsupported, strings.Join(built, ", "))
	}
}

// Config writes the config.json that Parse and transformers read.
func (m *Model) Config() []byte {
	kv := map[string]any{
		"model_type": string(m.Family), "vocab_size": m.Vocab, "tie_word_embeddings": m.Tied,
		"torch_dtype": "float32", "use_cache": true, "bos_token_id": nil, "eos_token_id": nil,
	}
	switch m.Family {
	case GPT2:
		add(kv, map[string]any{
			"architectures": []string{"GPT2LMHeadModel"}, "n_layer": m.Layers, "n_embd": m.Width, "n_head": m.Heads,
			"n_inner": m.FeedForward, "n_positions": m.MaxPositions, "activation_function": m.Activation,
			"layer_norm_epsilon": m.NormEps, "initializer_range": m.InitStd,
			"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0,
		})
	case OPT:
		add(kv, map[string]any{
			"architectures": []string{"OPTForCausalLM"}, "num_hidden_layers": m.Layers, "hidden_size": m.Width,
			"word_embed_proj_dim": m.Width, "num_attention_heads": m.Heads, "ffn_dim": m.FeedForward,
			"max_position_embeddings": m.MaxPositions, "activation_function": m.Activation, "enable_bias": m.MLPBias,
			"do_layer_norm_before": true, "dropout": 0.0, "attention_dropout": 0.0, "init_std": m.InitStd,
		})
	default:
		arch := map[Family]string{Llama: "LlamaForCausalLM", Mistral: "MistralForCausalLM", Qwen2: "Qwen2ForCausalLM"}[m.Family]
		add(kv, map[string]any{
			"architectures": []string{arch}, "num_hidden_layers": m.Layers, "hidden_size": m.Width,
			"num_attention_heads": m.Heads, "num_key_value_heads": m.KVHeads, "head_dim": m.HeadDim,
			"intermediate_size": m.FeedForward, "max_position_embeddings": m.MaxPositions, "hidden_act": m.Activation,
			"rms_norm_eps": m.NormEps, "rope_theta": m.RopeTheta, "initializer_range": m.InitStd,
		})
		if m.Family == Llama {
			add(kv, map[string]any{"attention_bias": m.QKVBias, "mlp_bias": m.MLPBias})
		}
		if m.Family == Mistral {
			kv["sliding_window"] = nil
			if m.Window > 0 {
				kv["sliding_window"] = m.Window
			}
		}
		if s := m.RopeScaling; s != nil {
			scaling := map[string]any{"rope_type": s.Type, "factor": s.Factor}
			if s.Type == "llama3" {
				add(scaling, map[string]any{"low_freq_factor": s.LowFreqFactor, "high_freq_factor": s.HighFreqFactor,
					"original_max_position_embeddings": s.OriginalContext})
			}
			kv["rope_scaling"] = scaling
		}
	}
	data, err := json.MarshalIndent(kv, "", "  ")
	if err != nil {
		panic("model: config.json: " + err.Error()) // finite numbers only: Validate
	}
	return append(data, '\n')
}

// Amend updates the config.json that a model was read from to match what is saved with
// it: fp32 weights, and the number of positions trained on. Everything else stays.
func (m *Model) Amend(text []byte) ([]byte, error) {
	var kv map[string]json.RawMessage
	if err := json.Unmarshal(text, &kv); err != nil {
		return nil, fmt.Errorf("config.json: %w", err)
	}
	changed := false
	set := func(key, value string) {
		if old, ok := kv[key]; ok && string(old) != value {
			kv[key], changed = json.RawMessage(value), true
		}
	}
	set("dtype", `"float32"`)
	set("torch_dtype", `"float32"`)
	if m.Rotary() { // with learned positions the table already has that many rows
		if _, ok := kv["max_position_embeddings"]; !ok {
			kv["max_position_embeddings"] = nil
		}
		set("max_position_embeddings", strconv.Itoa(m.MaxPositions))
	}
	if !changed {
		return text, nil
	}
	text, err := json.MarshalIndent(kv, "", "  ")
	return append(text, '\n'), err
}

func add(to, from map[string]any) { maps.Copy(to, from) }
