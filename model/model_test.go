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

// TestNames: the parameters of the models that transformers made are ours, by
// name and shape, and there are no others.
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

// TestRefused: what is not built is a named error, never a silent default.
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

// TestDropout is accepted with a note.
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
	for _, name := range []string{"gpt2", "opt-125m", "llama-3.2-1b", "mistral-7b", "qwen2-0.5b"} {
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
