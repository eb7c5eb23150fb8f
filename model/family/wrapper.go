package family

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/athanor-llm/athanor/model"
)

// Models that also see or hear, of which the text part is read: a model of one of the families, whose config.json is the key
// text_config and whose parameters have longer names. For text alone, the rest computes nothing.
//
//	{"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", ...}, "vision_config": {...}}
//	model.language_model.layers.0.mlp.up_proj.weight    see Tensor.NameIn for other names in files
//	model.vision_tower...                               not read, but carried wherever the whole model is written
//
// The keys beside text_config stay as they are, except for those that say how the head or the type of numbers changed.

// wrapper is a kind of such models.
type wrapper struct {
	name   string  // model_type
	text   *family // what text_config is if it does not say; else it may be any family whose tensors begin with "model."
	tied   bool    // whether the head is the embedding where config.json does not say
	inside string  // see model.Model.Inside
	// flat says that text_config may be missing and its keys be beside the wrapper's own, which are these and all that say which token
	// stands for what.
	flat    []string
	ignored []string // keys that published files have in text_config, but which nothing reads
}

const languageModel, textModel = "model.language_model.", "model.text_model."

// wrappers are all of them.
var wrappers = []wrapper{
	{name: "gemma3", text: &gemma3, tied: true, inside: languageModel},
	{name: "gemma4", text: &gemma4, tied: true, inside: languageModel},
	{name: "gemma4_unified", text: &gemma4Unified, tied: true, inside: languageModel},
	{name: "mistral3", text: &mistral, inside: languageModel},
	{name: "qwen2_vl", text: &qwen2VL, inside: languageModel, flat: []string{"vision_config"}},
	{name: "qwen2_5_vl", text: &qwen25VL, inside: languageModel, flat: []string{"vision_config"}},
	{name: "qwen3_vl", text: &qwen3VL, inside: languageModel},
	{name: "qwen3_5", text: &qwen35, inside: languageModel},
	{name: "qwen3_5_moe", text: &qwen35MoE, inside: languageModel},
	{name: "llava", text: &llama, inside: languageModel},
	{name: "llava_next", text: &llama, inside: languageModel},
	{name: "llava_onevision", text: &qwen2, inside: languageModel},
	{name: "internvl", text: &qwen2, tied: true, inside: languageModel},
	{name: "idefics3", text: &llama, inside: textModel, ignored: vllamaKeys},
	{name: "smolvlm", text: &llama, inside: textModel, ignored: vllamaKeys},
}

// parts are families that are only found inside wrappers.
var parts = []*family{&qwen2VL, &qwen25VL, &qwen3VL, &gemma4Unified}

// vllamaKeys are left in published files of Idefics 3 and SmolVLM by the program that trained them.
var vllamaKeys = strings.Fields("_flash_attn_2_enabled neftune_noise_alpha perceiver_config pixel_shuffle_factor qk_layer_norms use_resampler vision_config")

// Wrappers lists the kinds of models of which the text part is read, in alphabetical order.
func Wrappers() (list []string) {
	for _, w := range wrappers {
		list = append(list, w.name)
	}
	slices.Sort(list)
	return list
}

// wrapperOf returns the wrapper of a config.json; nil: it is that of a text model.
func wrapperOf(kv keys) *wrapper {
	var name string
	if err := json.Unmarshal(kv["model_type"], &name); err != nil {
		return nil
	}
	if i := slices.IndexFunc(wrappers, func(w wrapper) bool { return w.name == name }); i >= 0 {
		return &wrappers[i]
	}
	return nil
}

// inner returns the keys of the text model. nested says whether they are in text_config.
func (w *wrapper) inner(kv keys) (text keys, nested bool, err error) {
	if there := kv["text_config"]; len(there) > 0 && string(there) != "null" {
		if err := json.Unmarshal(there, &text); err != nil {
			return nil, true, fmt.Errorf("text_config: %w", err)
		}
		return text, true, nil
	}
	if w.flat == nil {
		return nil, false, fmt.Errorf("text_config is missing; hint: check that this is the file that was published")
	}
	text = keys{}
	for key, v := range kv {
		if !slices.Contains(w.flat, key) && !strings.HasSuffix(key, "_token_id") || slices.Contains(harmless, key) {
			text[key] = v
		}
	}
	text["model_type"] = json.RawMessage(fmt.Sprintf("%q", w.text.Name))
	return text, false, nil
}

// parse reads the text model of a config.json.
func (w *wrapper) parse(kv keys) (m *model.Model, notes []string, err error) {
	text, nested, err := w.inner(kv)
	if err != nil {
		return nil, nil, err
	}
	f, err := w.family(text)
	if err != nil {
		return nil, nil, err
	}
	if text["tie_word_embeddings"], err = w.tie(kv, text); err != nil {
		return nil, nil, err
	}
	if v, ok := kv["quantization_config"]; ok { // which is about the text part, too
		text["quantization_config"] = v
	}
	for _, key := range w.ignored {
		delete(text, key)
	}
	if m, notes, err = f.parse(text); err != nil {
		if nested {
			err = fmt.Errorf("text_config: %w", err)
		}
		return nil, nil, err
	}
	m.Inside = w.inside
	return m, append(notes, "only the text part of this "+w.name+" model is used; the rest is kept as it is"), nil
}

// family returns the family of a text_config.
func (w *wrapper) family(text keys) (*family, error) {
	name := w.text.Name
	if v, ok := text["model_type"]; ok {
		if err := json.Unmarshal(v, &name); err != nil {
			return nil, fmt.Errorf("text_config: model_type: %w", err)
		}
	}
	if f := find(name); f != nil && strings.HasPrefix(f.Tensors.Embed, "model.") {
		return f, nil
	}
	return nil, unsupported(name, "text_config: model_type")
}

// tie returns whether the head is the embedding. transformers 5 reads it beside text_config, older versions wrote it inside.
func (w *wrapper) tie(kv, text keys) (json.RawMessage, error) {
	tied, told := w.tied, false
	for _, keys := range []keys{text, kv} {
		v, ok := keys["tie_word_embeddings"]
		if !ok || string(v) == "null" {
			continue
		}
		var says bool
		if err := json.Unmarshal(v, &says); err != nil {
			return nil, fmt.Errorf("tie_word_embeddings: %w", err)
		}
		tied, told = says || told && tied, true
	}
	return json.Marshal(tied)
}

// edit changes keys of a config.json: those of the whole model and those of its text part, which are the same map if it is a text
// model. If change returns false, the text remains as it is.
func edit(text []byte, change func(whole, part keys) (changed bool, err error)) ([]byte, error) {
	var whole keys
	if err := json.Unmarshal(finite(text), &whole); err != nil {
		return nil, fmt.Errorf("config.json: %w", err)
	}
	part, nested := whole, false
	if w := wrapperOf(whole); w != nil {
		inner, inside, err := w.inner(whole)
		if err != nil {
			return nil, fmt.Errorf("config.json: %w", err)
		}
		if inside {
			part, nested = inner, true
		}
	}
	changed, err := change(whole, part)
	if err != nil || !changed {
		return text, err
	}
	if nested {
		if whole["text_config"], err = json.Marshal(part); err != nil {
			return nil, fmt.Errorf("config.json: %w", err)
		}
	}
	text, err = json.MarshalIndent(whole, "", "  ")
	return append(text, '\n'), err
}
