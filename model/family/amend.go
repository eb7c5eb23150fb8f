package family

import (
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/athanor-llm/athanor/model"
)

// Amend updates the config.json that a model was read from to match what is saved with
// it: fp32 weights, and the number of positions trained on. Everything else stays.
func Amend(m *model.Model, text []byte) ([]byte, error) {
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
	if m.Files != (model.Files{}) {
		var err error
		if text, err = Resized(m, text); err == nil {
			err = json.Unmarshal(text, &kv)
		}
		if err != nil {
			return nil, err
		}
	}
	set("dtype", `"float32"`)
	set("torch_dtype", `"float32"`)
	if _, ok := kv["quantization_config"]; ok { // weights were dequantised when they were read
		delete(kv, "quantization_config")
		changed = true
	}
	if key := find(m.Family.Name).keyOf(m, &m.MaxPositions); m.Rotary() { // with learned positions the table already has that many rows
		if _, ok := kv[key]; !ok {
			kv[key] = nil
		}
		set(key, strconv.Itoa(m.MaxPositions))
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

// Resized updates a config.json to a model that differs from its files, see model.Files.
func Resized(m *model.Model, text []byte) ([]byte, error) {
	var kv map[string]json.RawMessage
	if err := json.Unmarshal(text, &kv); err != nil {
		return nil, fmt.Errorf("config.json: %w", err)
	}
	kv["vocab_size"] = json.RawMessage(strconv.Itoa(m.Vocab))
	if m.Files.Tied {
		kv["tie_word_embeddings"] = json.RawMessage("false")
	}
	text, err := json.MarshalIndent(kv, "", "  ")
	return append(text, '\n'), err
}

// keyOf returns the key of a field of a model.
func (f *family) keyOf(m *model.Model, field any) string {
	for _, r := range f.table {
		if r.field != nil && r.field(m) == field {
			return r.key
		}
	}
	panic("family: config.json of " + f.Name + " does not have the field")
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
