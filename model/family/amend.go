package family

import (
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/athanor-llm/athanor/model"
)

// keys are those of a config.json.
type keys = map[string]json.RawMessage

// Amend updates the config.json that a model was read from to match what is saved with
// it: fp32 weights, and the number of positions trained on. Everything else stays.
func Amend(m *model.Model, text []byte) ([]byte, error) {
	return edit(text, func(whole, part keys) (changed bool, err error) {
		set := func(kv keys, key, value string) {
			if old, ok := kv[key]; ok && string(old) != value {
				kv[key], changed = json.RawMessage(value), true
			}
		}
		if m.Files != (model.Files{}) {
			resize(m, whole, part)
			changed = true
		}
		for _, kv := range []keys{whole, part} {
			set(kv, "dtype", `"float32"`)
			set(kv, "torch_dtype", `"float32"`)
			if _, ok := kv["quantization_config"]; ok { // weights were dequantised when they were read
				delete(kv, "quantization_config")
				changed = true
			}
		}
		if model.Classifies(m) {
			label(m, whole)
			changed = true
		}
		if key := find(m.Family.Name).keyOf(m, &m.MaxPositions); m.Rotary() { // with learned positions the table already has that many rows
			if _, ok := part[key]; !ok {
				part[key] = nil
			}
			set(part, key, strconv.Itoa(m.MaxPositions))
		}
		if changed && m.LongRope() {
			err = explainLongRope(m, part)
		}
		return changed, err
	})
}

// label says that a model chooses among labels, or has a value.
func label(m *model.Model, whole keys) {
	if string(whole["problem_type"]) == strconv.Quote(regression) {
		delete(whole, "problem_type") // unless it still is one
	}
	writeLabels(m, func(key string, value any) {
		text, err := json.Marshal(value)
		if err != nil {
			panic("family: config.json: " + err.Error()) // names and numbers only
		}
		whole[key] = text
	})
	delete(whole, "num_labels") // as many as there are names
}

// Labelled updates a config.json to that of a model with labels.
func Labelled(m *model.Model, text []byte) ([]byte, error) {
	return edit(text, func(whole, _ keys) (bool, error) {
		label(m, whole)
		return true, nil
	})
}

// explainLongRope writes down the factor that readers otherwise derive from the number of positions.
func explainLongRope(m *model.Model, kv keys) error {
	for _, key := range []string{"rope_scaling", "rope_parameters"} {
		var scaling map[string]any
		if old, ok := kv[key]; ok && json.Unmarshal(old, &scaling) == nil && scaling != nil {
			scaling["attention_factor"] = m.RopeScaling.Attention
			text, err := json.Marshal(scaling)
			if err != nil {
				return fmt.Errorf("config.json: %s: %w", key, err)
			}
			kv[key] = text
		}
	}
	return nil
}

// Resized updates a config.json to a model that differs from its files, see model.Files.
func Resized(m *model.Model, text []byte) ([]byte, error) {
	return edit(text, func(whole, part keys) (bool, error) {
		resize(m, whole, part)
		return true, nil
	})
}

func resize(m *model.Model, whole, part keys) {
	part["vocab_size"] = json.RawMessage(strconv.Itoa(m.Vocab))
	if m.Files.Tied {
		part["tie_word_embeddings"] = json.RawMessage("false")
		whole["tie_word_embeddings"] = part["tie_word_embeddings"]
	}
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
	return edit(text, func(whole, part keys) (bool, error) {
		value := json.RawMessage(`"float32"`)
		if bf16 {
			value = json.RawMessage(`"bfloat16"`)
		}
		key := "torch_dtype" // which all versions of transformers read
		if _, ok := whole["dtype"]; ok {
			key = "dtype"
		}
		whole[key] = value
		for _, kv := range []keys{whole, part} {
			if isFP8(kv["quantization_config"]) {
				delete(kv, "quantization_config")
			}
		}
		for _, key := range []string{"torch_dtype", "dtype"} {
			if _, ok := part[key]; ok {
				part[key] = value
			}
		}
		return true, nil
	})
}
