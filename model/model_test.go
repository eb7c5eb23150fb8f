package model

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/checkpoint/safetensors"
)

// TestParamCounts: the published numbers of parameters.
func TestParamCounts(t *testing.T) {
	for name, want := range map[string]int64{
		"gpt2": 124439808, "gpt2-medium": 354823168, "gpt2-large": 774030080, "gpt2-xl": 1557611200,
		"opt-125m": 125239296, "llama-2-7b": 6738415616, "llama-2-13b": 13015864320, "llama-3-8b": 8030261248,
		"llama-3.2-1b": 1235814400, "llama-3.2-3b": 3212749824, "mistral-7b": 7241732096,
		"qwen2-0.5b": 494032768, "qwen2-1.5b": 1543714304, "qwen2-7b": 7615616512, "qwen2.5-7b": 7615616512,
		"qwen3-0.6b": 596049920, "qwen3-1.7b": 1720574976, "qwen3-4b": 4022468096, "qwen3-8b": 8190735360,
		"gemma-3-270m": 268098176, "gemma-3-1b": 999885952,
		"pythia-70m": 70426624, "pythia-160m": 162322944, "pythia-410m": 405334016, "pythia-1b": 1011781632, "pythia-1.4b": 1414647808,
		"olmo-2-1b": 1484916736, "olmo-2-7b": 7298617344,
	} {
		m, err := Known(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := m.ParamCount(); got != want {
			t.Errorf("%s has %d parameters, want %d", name, got, want)
		}
	}
}

// TestNames: models made by transformers have exactly our parameters, by name and shape.
func TestNames(t *testing.T) {
	dirs, err := filepath.Glob("../testdata/torch/*/config.json")
	if err != nil || len(dirs) == 0 {
		t.Fatalf("no fixtures: %v", err)
	}
	for _, config := range dirs {
		text, err := os.ReadFile(config)
		if err != nil {
			t.Fatal(err)
		}
		m, _, err := Parse(text)
		if err != nil {
			t.Fatalf("%s: %v", config, err)
		}
		set, err := safetensors.OpenFolder(filepath.Dir(config))
		if err != nil {
			t.Fatal(err)
		}
		theirs := map[string][]int{}
		for _, info := range set.Tensors() {
			theirs[info.Name] = info.Shape
		}
		set.Close()
		ours := map[string][]int{}
		for _, p := range m.Params() {
			ours[p.Name] = p.Shape()
		}
		if !reflect.DeepEqual(ours, theirs) {
			t.Errorf("%s: parameters %v\nwant %v", config, slices.Sorted(maps.Keys(ours)), slices.Sorted(maps.Keys(theirs)))
		}
	}
}

// TestConfigRoundTrip: Parse(Config(m)) = m for every known model.
func TestConfigRoundTrip(t *testing.T) {
	for _, name := range Names() {
		m, err := Known(name)
		if err != nil {
			t.Fatal(err)
		}
		back, notes, err := Parse(m.Config())
		if err != nil || len(notes) > 0 {
			t.Fatalf("%s: %v %v", name, err, notes)
		}
		if !reflect.DeepEqual(m, back) {
			t.Errorf("%s: %+v\nreads back as %+v", name, m, back)
		}
	}
}

// TestRefused: unsupported settings are errors that name them, never silent defaults.
func TestRefused(t *testing.T) {
	base := func() map[string]any {
		m, err := Known("llama-3.2-1b")
		if err != nil {
			t.Fatal(err)
		}
		var kv map[string]any
		if err := json.Unmarshal(m.Config(), &kv); err != nil {
			t.Fatal(err)
		}
		return kv
	}
	for _, tc := range []struct {
		key   string
		value any
		want  string
		other bool // not ErrUnsupported: an impossible value
	}{
		{"quantum_heads", 3, "quantum_heads", false},
		{"hidden_act", "swish2", "swish2", false},
		{"rope_scaling", map[string]any{"rope_type": "yarn", "factor": 2.0}, "yarn", false},
		{"rope_scaling", map[string]any{"rope_type": "llama3", "factor": 2.0}, "llama3", true},
		{"model_type", "mamba", "mamba", false},
		{"hidden_size", -5, "width", true},
		{"hidden_size", 1 << 40, "width", true},
		{"num_hidden_layers", 1 << 50, "layers", true},
		{"num_attention_heads", 0, "heads", true},
		{"num_key_value_heads", 5, "heads", true},
		{"head_dim", 7, "odd", true},
		{"vocab_size", 0, "vocab", true},
		{"vocab_size", "many", "vocab_size", true},
		{"hidden_size", 1e300, "hidden_size", true},
		{"rms_norm_eps", 0, "epsilon", true},
		{"rope_interleaved", true, "rope_interleaved", false},
		{"rope_theta", -1, "rope_theta", true},
	} {
		kv := base()
		kv[tc.key] = tc.value
		text, err := json.Marshal(kv)
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = Parse(text)
		if err == nil || !strings.Contains(err.Error(), tc.want) || errors.Is(err, ErrUnsupported) == tc.other {
			t.Errorf("%s = %v: %v", tc.key, tc.value, err)
		} else if !tc.other && strings.Count(err.Error(), "hint:") != 1 {
			t.Errorf("%s = %v: not one hint: %v", tc.key, tc.value, err)
		}
	}
	for key, value := range map[string]any{"scale_attn_by_inverse_layer_idx": true, "add_cross_attention": true, "activation_function": "tanh"} {
		m, err := Known("gpt2")
		if err != nil {
			t.Fatal(err)
		}
		var kv map[string]any
		if err := json.Unmarshal(m.Config(), &kv); err != nil {
			t.Fatal(err)
		}
		kv[key] = value
		text, err := json.Marshal(kv)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := Parse(text); !errors.Is(err, ErrUnsupported) {
			t.Errorf("%s = %v: %v", key, value, err)
		}
	}
}

// TestPublished: the config.json of published models is read correctly, including keys
// that other programs left in it.
func TestPublished(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want int64
	}{
		"distilgpt2": {`{"_num_labels": 1, "activation_function": "gelu_new", "attn_pdrop": 0.1, "id2label": {"0": "LABEL_0"}, "model_type": "gpt2",
			"n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 6, "n_positions": 1024, "vocab_size": 50257}`, 81912576},
		"gpt2-medium": {`{"activation_function": "gelu_new", "model_type": "gpt2", "n_ctx": 1024, "n_embd": 1024, "n_head": 16, "n_layer": 24,
			"n_positions": 1024, "n_special": 0, "output_past": true, "predict_special_tokens": true, "vocab_size": 50257}`, 354823168},
		"qwen2.5-0.5b": {`{"hidden_act": "silu", "hidden_size": 896, "intermediate_size": 4864, "max_position_embeddings": 32768,
			"max_window_layers": 24, "model_type": "qwen2", "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2,
			"rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": true, "use_mrope": false,
			"use_sliding_window": false, "vocab_size": 151936}`, 494032768},
		"smollm2-135m": {`{"attention_bias": false, "hidden_act": "silu", "hidden_size": 576, "intermediate_size": 1536, "is_llama_config": true,
			"max_position_embeddings": 8192, "model_type": "llama", "num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3,
			"pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_interleaved": false, "rope_scaling": null, "rope_theta": 100000,
			"tie_word_embeddings": true, "transformers.js_config": {"kv_cache_dtype": {"fp16": "float16"}}, "vocab_size": 49152}`, 134515008},
	} {
		m, _, err := Parse([]byte(c.text))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if got := m.ParamCount(); got != c.want {
			t.Errorf("%s: %d parameters, want %d", name, got, c.want)
		}
	}
}

// TestMistralLeftOut: keys missing from a Mistral config.json default to those of Mistral
// 7B, not Llama's; null means something else.
func TestMistralLeftOut(t *testing.T) {
	for text, want := range map[string][2]int{
		``:                           {8, 4096},
		`, "sliding_window": null`:   {8, 0},
		`, "sliding_window": 7`:      {8, 7},
		`, "num_key_value_heads": 4`: {4, 4096},
		`, "num_key_value_heads": null, "sliding_window": null`: {16, 0},
	} {
		m, _, err := Parse([]byte(`{"model_type": "mistral", "num_attention_heads": 16` + text + `}`))
		if err != nil {
			t.Fatal(err)
		}
		if got := [2]int{m.KVHeads, m.Window}; got != want {
			t.Errorf("%s: %d key heads and a window of %d, want %v", text, got[0], got[1], want)
		}
	}
}

// TestAmend: an amended config.json matches what is saved beside it and keeps all else.
func TestAmend(t *testing.T) {
	text := []byte(`{"model_type": "llama", "max_position_embeddings": 64, "dtype": "bfloat16", "eos_token_id": [1, 2]}`)
	m, _, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	m.MaxPositions = 128
	got, err := m.Amend(text)
	if err != nil {
		t.Fatal(err)
	}
	var kv map[string]any
	if err := json.Unmarshal(got, &kv); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"model_type": "llama", "max_position_embeddings": 128.0, "dtype": "float32", "eos_token_id": []any{1.0, 2.0}}
	if !reflect.DeepEqual(kv, want) {
		t.Errorf("%v, want %v", kv, want)
	}
	if again, err := m.Amend(got); err != nil || string(again) != string(got) {
		t.Errorf("what is right is written again: %s, %v", again, err)
	}
}

// TestDropout: dropout is accepted with a note.
func TestDropout(t *testing.T) {
	m, err := Known("gpt2")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(string(m.Config()), `"resid_pdrop": 0`, `"resid_pdrop": 0.1`, 1)
	if _, notes, err := Parse([]byte(text)); err != nil || len(notes) != 1 || !strings.Contains(notes[0], "resid_pdrop") {
		t.Errorf("notes %v, error %v", notes, err)
	}
}

// FuzzParse: no text makes it panic, and what it accepts has possible sizes.
func FuzzParse(f *testing.F) {
	for _, name := range []string{"gpt2", "opt-125m", "llama-3.2-1b", "mistral-7b", "qwen2-0.5b", "qwen3-0.6b", "gemma-3-1b", "olmo-2-1b", "pythia-70m"} {
		m, err := Known(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(m.Config())
	}
	f.Add([]byte(`{"model_type":"gpt2","n_layer":1e9}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		m, _, err := Parse(text)
		if err != nil {
			return
		}
		if err := m.Validate(); err != nil {
			t.Fatalf("accepted, but %v", err)
		}
	})
}
