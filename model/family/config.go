package family

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"

	"github.com/athanor-llm/athanor/internal/jsonkeys"
	"github.com/athanor-llm/athanor/internal/suggest"
	"github.com/athanor-llm/athanor/model"
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
var dropouts = strings.Fields(`attn_pdrop embd_pdrop resid_pdrop dropout attention_dropout layerdrop activation_dropout hidden_dropout residual_dropout embedding_dropout summary_last_dropout
	attention_probs_dropout_prob hidden_dropout_prob`)

// Parse reads a Hugging Face config.json. Unknown keys, and keys that ask for a
// computation that is not implemented, are errors wrapping ErrUnsupported; notes
// lists settings that were ignored (dropout).
func Parse(data []byte) (m *model.Model, notes []string, err error) {
	var raw map[string]json.RawMessage
	data = finite(data)
	if err := cmp.Or(json.Unmarshal(data, &raw), jsonkeys.Unique(data)); err != nil {
		return nil, nil, fmt.Errorf("config.json: %w", suggest.Add(jsonkeys.Explain(data, err), "repair it, or fetch it again"))
	}
	var name string
	c := &config{raw: raw, used: map[string]bool{}}
	c.get("model_type", &name)
	w, f := wrapperOf(raw), find(name)
	switch {
	case c.err != nil:
		return nil, nil, fmt.Errorf("config.json: %w", c.err)
	case name == "":
		return nil, nil, fmt.Errorf("config.json: model_type is missing; hint: check that this is a Hugging Face model folder")
	case w != nil:
		m, notes, err = w.parse(raw)
	case f == nil || slices.Contains(parts, f):
		err = unsupported(name, "model_type")
	default:
		m, notes, err = f.parse(raw)
	}
	if err == nil {
		err = readLabels(c, m)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("config.json: %w", err)
	}
	return m, notes, nil
}

// unsupported returns the error for a model_type, read from a key, of no family.
func unsupported(name, key string) error {
	if why, known := refused[name]; known {
		return fmt.Errorf("%s %q: %w: %s; hint: %s", key, name, ErrUnsupported, why, supported())
	}
	return fmt.Errorf("%s %q: %w; hint: %s", key, name, ErrUnsupported, supported())
}

// parse reads the keys of a config.json of the family.
func (f *family) parse(raw map[string]json.RawMessage) (m *model.Model, notes []string, err error) {
	c := &config{raw: raw, used: map[string]bool{}}
	m = f.read(c)
	for _, k := range dropouts {
		var p float64
		if c.get(k, &p); p != 0 {
			notes = append(notes, k+" is ignored: training uses no dropout")
		}
	}
	for _, k := range slices.Concat(harmless, f.ignored) {
		c.used[k] = true
	}
	c.checkNames()
	c.checkTokens()
	checkZeros(c)
	for _, k := range slices.Sorted(maps.Keys(raw)) {
		if !c.used[k] {
			f.other(c, m, k)
		}
	}
	if errors.Is(c.err, ErrUnsupported) {
		c.err = suggest.Add(c.err, "use another model: with another value, this one would compute something else")
	}
	if c.err != nil {
		return nil, nil, c.err
	}
	return m, notes, m.Validate()
}

// checkZeros refuses 0 where transformers divides by it, or attends to nothing: it does not mean none, which is null.
func checkZeros(c *config) {
	if string(c.raw["use_sliding_window"]) != "false" {
		checkZero(c, "sliding_window", c.raw["sliding_window"])
	}
	for _, key := range []string{"rope_theta", "attn_logit_softcapping", "final_logit_softcapping"} {
		checkZero(c, key, c.raw[key])
	}
	for _, key := range []string{"rope_scaling", "rope_parameters"} {
		var inner map[string]json.RawMessage
		if json.Unmarshal(c.raw[key], &inner) == nil {
			checkZero(c, key+": rope_theta", inner["rope_theta"])
		}
	}
}

func checkZero(c *config, key string, raw json.RawMessage) {
	var v float64
	if len(raw) > 0 && string(raw) != "null" && json.Unmarshal(raw, &v) == nil && v == 0 && c.used[strings.Split(key, ":")[0]] {
		c.fail("%s is 0: %w: that does not mean none; hint: check that this is the file that was published, where none is null", key, ErrUnsupported)
	}
}

// read reads the keys of the family's table.
func (f *family) read(c *config) *model.Model {
	m := f.fixed
	m.Family = &f.Family
	for i := range f.table {
		f.table[i].load(c, &m)
	}
	if f.Square {
		m.KVHeads, m.HeadDim = m.Heads, perHead(&m)
	}
	return &m
}

// unread has keys of published files that no family's class in transformers reads, and what they say of a model.
var unread = []row{
	{key: "qkv_bias", field: qkvBias, def: false},
	{key: "use_qk_norm", read: (*config).headNorms},
	{key: "shared_expert_intermediate_size", only: 0},
	{key: "n_shared_experts", only: 0},
	{key: "num_shared_experts", only: 0},
}

// headNorms reads whether queries and keys have norms; which ones, the family says.
func (c *config) headNorms(m *model.Model) {
	has := m.QKNorm != model.NoQKNorm
	given := has
	if c.get("use_qk_norm", &given); given != has {
		c.fail("use_qk_norm is %v: %w", given, ErrUnsupported)
	}
}

// other accepts a key that the family does not have if other families do, or published files, and the key is null or
// says, in each of these, what the model computes anyway, such as that a factor is 1.
func (f *family) other(c *config, m *model.Model, key string) {
	var has []string
	same := true
	ask := func(name string, table []row) {
		for i := range table {
			if r := &table[i]; !r.own && r.keys()[key] {
				there, told := *m, &config{raw: c.raw, used: map[string]bool{}}
				r.load(told, &there)
				same = same && told.err == nil && reflect.DeepEqual(plain(there), plain(*m))
				has = append(has, name)
			}
		}
	}
	for _, g := range families {
		ask(g.Name, g.table)
	}
	ask("whoever wrote it", unread)
	switch null := string(c.raw[key]) == "null"; {
	case key == "quantization_config" && isFP8(c.raw[key]):
		checkFP8(c)
	case key == "quantization_config" && !null:
		c.fail("quantization_config: %w: weights of this kind are not read; hint: use the model that they were made from, with quantize: nf4 where it has to be small", ErrUnsupported)
	case has == nil:
		c.fail("%s: %w: the key is not known, nor what it changes; hint: use another model, or leave the key out if whoever wrote it says that it does not change what is computed", key, ErrUnsupported)
	case !same && !null:
		c.fail("%s is %s: %w: %s has no such key, and what it means for %s would change what is computed; hint: check model_type, or use another model", key, c.raw[key], ErrUnsupported, f.Name, has[0])
	}
}

// plain returns a model whose factors are given in one way of several that are equal.
func plain(m model.Model) model.Model {
	x := &m.Multipliers
	m.QueryScalar, x.Attention = 0, m.ScoreScale()
	x.Embedding, x.Residual, x.Logits = cmp.Or(x.Embedding, 1), cmp.Or(x.Residual, 1), cmp.Or(x.Logits, 1)
	return m
}

// Config writes the config.json that Parse and transformers read.
func Config(m *model.Model) []byte {
	f := find(m.Family.Name)
	kv := map[string]any{
		"model_type": f.Name, "architectures": []string{f.class}, "torch_dtype": "float32", "use_cache": true, "bos_token_id": nil, "eos_token_id": nil,
	}
	maps.Copy(kv, f.constant)
	for i := range f.table {
		f.table[i].store(m, kv)
	}
	if model.Classifies(m) {
		writeLabels(m, func(key string, value any) { kv[key] = value })
	}
	data, err := json.MarshalIndent(kv, "", "  ")
	if err != nil {
		panic("family: config.json: " + err.Error()) // finite numbers only: Validate
	}
	return append(data, '\n')
}

// config is a config.json that is being read. It records which keys were used, and the first error.
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

// checkNames refuses a type of numbers that is not a name.
func (c *config) checkNames() {
	for _, key := range []string{"torch_dtype", "dtype"} {
		var name string
		c.get(key, &name)
	}
}

// checkTokens refuses what cannot be ids of tokens. They do not change what training computes, but answers end at them.
// In files of the first Llama -1 stands for none.
func (c *config) checkTokens() {
	for _, key := range []string{"bos_token_id", "eos_token_id", "pad_token_id"} {
		var ids []int64
		if data := c.raw[key]; len(data) > 0 && data[0] == '[' {
			c.get(key, &ids)
		} else {
			id := int64(0)
			c.get(key, &id)
			ids = append(ids, id)
		}
		for _, id := range ids {
			if id < -1 || id > math.MaxInt32 {
				c.fail("%s is %d, which is no token; hint: check that this is the file that was published", key, id)
			}
		}
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
		c.fail("%s: %w", key, jsonkeys.Explain(data, err))
		return false
	}
	return true
}
