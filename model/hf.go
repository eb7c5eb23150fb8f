package model

import (
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
	is_llama_config transformers.js_config unsloth_fixed unsloth_version cache_implementation classifier_dropout auto_map`)

// dropouts are ignored with a note: training here uses none.
var dropouts = strings.Fields(`attn_pdrop embd_pdrop resid_pdrop dropout attention_dropout layerdrop activation_dropout hidden_dropout residual_dropout embedding_dropout summary_last_dropout`)

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
	read := readers[family]
	switch why, known := refused[family]; {
	case family == "":
		return nil, nil, fmt.Errorf("config.json: model_type is missing; hint: check that this is a Hugging Face model folder")
	case known:
		return nil, nil, fmt.Errorf("config.json: model_type %q: %w: %s; hint: %s are supported", family, ErrUnsupported, why, Families())
	case read == nil:
		return nil, nil, fmt.Errorf("config.json: model_type %q: %w; hint: %s are supported", family, ErrUnsupported, Families())
	}
	m = read(c, family)
	for _, k := range dropouts {
		if c.num(k, 0) != 0 {
			notes = append(notes, k+" is ignored: training uses no dropout")
		}
	}
	for _, k := range harmless {
		c.used[k] = true
	}
	for _, k := range slices.Sorted(maps.Keys(raw)) {
		if !c.used[k] {
			c.fail("%s: %w: the key is not known, nor what it changes; hint: remove it if it does not change the computation", k, ErrUnsupported)
		}
	}
	if c.err != nil {
		if errors.Is(c.err, ErrUnsupported) {
			c.err = suggest.Add(c.err, "use another model: with another value, this one would compute something else")
		}
		return nil, nil, fmt.Errorf("config.json: %w", c.err)
	}
	if err := m.Validate(); err != nil {
		return nil, nil, fmt.Errorf("config.json: %w", err)
	}
	return m, notes, nil
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

// absentOr rejects any value but null.
func (c *config) absentOr(key, why string) {
	var v any
	if c.get(key, &v) {
		c.fail("%s is %v: %w: %s", key, v, ErrUnsupported, why)
	}
}

// want rejects any value except the one that is implemented.
func (c *config) want(key string, value bool) {
	if c.bool(key, value) != value {
		c.fail("%s: %w: only %v is supported", key, ErrUnsupported, value)
	}
}

// only rejects any value except one.
func (c *config) only(key, value string) {
	if got := c.str(key, value); got != value {
		c.fail("%s %q: %w: only %s is supported", key, got, ErrUnsupported, value)
	}
}

func (c *config) activation(got string, built ...string) {
	if !slices.Contains(built, got) {
		c.fail("activation %q: %w; hint: supported are %s", got, ErrUnsupported, strings.Join(built, ", "))
	}
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
	if _, ok := kv["quantization_config"]; ok { // weights were dequantised when they were read
		delete(kv, "quantization_config")
		changed = true
	}
	if m.Rotary() { // with learned positions the table already has that many rows
		if _, ok := kv["max_position_embeddings"]; !ok {
			kv["max_position_embeddings"] = nil
		}
		set("max_position_embeddings", strconv.Itoa(m.MaxPositions))
	}
	for _, key := range []string{"rope_scaling", "rope_parameters"} {
		var scaling map[string]any
		if old, ok := kv[key]; ok && changed && m.LongRope() && json.Unmarshal(old, &scaling) == nil && scaling != nil {
			scaling["attention_factor"] = m.RopeScaling.Attention // otherwise readers derive it from the number of positions
			text, err := json.Marshal(scaling)
			if err != nil {
				return nil, fmt.Errorf("config.json: %s: %w", key, err)
			}
			kv[key] = text
		}
	}
	if !changed {
		return text, nil
	}
	text, err := json.MarshalIndent(kv, "", "  ")
	return append(text, '\n'), err
}

// Retyped updates a config.json for weights that are stored as bf16 or as fp32.
func Retyped(text []byte, bf16 bool) ([]byte, error) {
	var kv map[string]json.RawMessage
	if err := json.Unmarshal(text, &kv); err != nil {
		return nil, fmt.Errorf("config.json: %w", err)
	}
	value := json.RawMessage(`"float32"`)
	if bf16 {
		value = json.RawMessage(`"bfloat16"`)
	}
	key := "torch_dtype" // which all versions of transformers read
	if _, ok := kv["dtype"]; ok {
		key = "dtype"
	}
	kv[key] = value
	text, err := json.MarshalIndent(kv, "", "  ")
	return append(text, '\n'), err
}

func add(to, from map[string]any) { maps.Copy(to, from) }
