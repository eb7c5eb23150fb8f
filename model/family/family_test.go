package family

import (
	"encoding/json"
	"errors"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/model"
)

// TestFamilies: each family can be found by its name, which no other has, has a typical model, has names for all of its
// tensors, and knows each of its keys once.
func TestFamilies(t *testing.T) {
	classes := map[string]string{}
	for _, f := range families {
		t.Run(f.Name, func(t *testing.T) {
			if Named(f.Name) != &f.Family || slices.Index(Names(), f.Name) < 0 {
				t.Error("another family has this name")
			}
			if other, ok := classes[f.class]; ok || f.class == "" {
				t.Errorf("class %q is also that of %q", f.class, other)
			}
			classes[f.class] = f.Name
			if _, ok := f.published[f.typical]; !ok {
				t.Errorf("typical model %q is not among the published ones", f.typical)
			}
			for name := range f.published {
				m, err := Known(name)
				if err != nil || m.Family != &f.Family {
					t.Errorf("%s is known as a model of %v, %v", name, m.Family, err)
				}
				names := map[string]bool{}
				for _, p := range m.Params() {
					if names[p.Name] || strings.Contains(p.Name, "..") || strings.ContainsAny(p.Name, "%! ") || strings.HasPrefix(p.Name, ".") {
						t.Fatalf("%s: name %q is made wrong, or twice", name, p.Name)
					}
					names[p.Name] = true
				}
			}
			keys := map[string]bool{}
			for i := range f.table {
				r := &f.table[i]
				if r.field != nil && r.def == nil {
					t.Errorf("%s has no default", r.key)
				}
				for k := range r.keys() {
					if keys[k] && k != "layer_types" && k != "max_window_layers" && k != "sliding_window" {
						t.Errorf("two rows read %s", k)
					}
					keys[k] = true
				}
			}
		})
	}
}

// TestFixtures: for each family, and each kind of model of which the text part is read, transformers has computed a tiny model, with
// whose numbers others compare.
func TestFixtures(t *testing.T) {
	files, err := filepath.Glob("../../testdata/torch/*/config.json")
	if err != nil {
		t.Fatal(err)
	}
	has := map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		m, _, err := Parse(text)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		has[m.Family.Name] = true
		var kind struct {
			Name string `json:"model_type"`
		}
		if err := json.Unmarshal(text, &kind); err != nil {
			t.Fatal(err)
		}
		has[kind.Name] = true
	}
	for _, name := range slices.Concat(Names(), Wrappers()) {
		if !has[name] {
			t.Errorf("testdata/torch has no model of %s; hint: add one in tools/torch_fixtures.py", name)
		}
	}
}

// TestReadsWhatItWrote: a family reads the config.json that it wrote as the same model, whatever the keys were set to.
func TestReadsWhatItWrote(t *testing.T) {
	const wanted = 100
	for _, f := range families {
		t.Run(f.Name, func(t *testing.T) {
			r, read := testkit.Rand(t), 0
			keys := map[string]*row{}
			for i := range f.table {
				for k := range f.table[i].keys() {
					keys[k] = &f.table[i]
				}
			}
			for range 20 * wanted {
				text := f.drawn(t, r, keys)
				m, _, err := Parse(text)
				if err != nil {
					continue
				}
				if read++; read == wanted {
					break
				}
				wrote := Config(m)
				if back, notes, err := Parse(wrote); err != nil || len(notes) > 0 || !reflect.DeepEqual(m, back) {
					t.Fatalf("%s\nis %+v\nwrites %s\nand reads %+v, %v, %v", text, m, wrote, back, notes, err)
				}
			}
			if read < wanted {
				t.Errorf("only %d config.json could be read", read)
			}
		})
	}
}

// drawn returns the config.json of a model of four layers, some of whose keys are set to something else, which may be
// impossible.
func (f *family) drawn(t *testing.T, r *rand.Rand, keys map[string]*row) []byte {
	m := *f.sized(f.published[f.typical])
	m.Layers, m.LocalTheta = 4, 0
	m.Window, m.Sliding, m.NoRotary, m.RopeScaling = 0, nil, nil, nil
	var kv map[string]any
	if err := json.Unmarshal(Config(&m), &kv); err != nil {
		t.Fatal(err)
	}
	const full, sliding = "full_attention", "sliding_attention"
	others := []any{nil, true, false, 0, 1, 2, 4, 0.5, 1e4, []int{}, []int{1, 0, 1, 0}, []string{full, full, full, full}, []string{sliding, full, sliding, full},
		[]string{sliding, sliding, sliding, sliding}, map[string]any{"rope_type": "linear", "factor": 2},
		map[string]any{"type": "yarn", "factor": 2, "original_max_position_embeddings": 64}}
	names := slices.Sorted(maps.Keys(keys))
	for range r.IntN(8) {
		name := names[r.IntN(len(names))]
		row := keys[name]
		kv[name] = others[r.IntN(len(others))]
		if row.field == nil {
			continue
		}
		switch row.field(&m).(type) {
		case *int:
			kv[name] = 1 << r.IntN(8)
		case *bool:
			kv[name] = r.IntN(2) == 0
		case *float64:
			kv[name] = r.Float64()
		case *string:
			kv[name] = row.only.([]string)[r.IntN(len(row.only.([]string)))]
		}
	}
	text, err := json.Marshal(kv)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestActivationNames: each name that transformers has for a function is read as that function, by every family that has
// its name; GPT-NeoX-20B was published with gelu_fast.
func TestActivationNames(t *testing.T) {
	names := map[model.Activation][]string{
		model.GELUTanh: {"gelu_new", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_fast", "gelu_accurate"},
		model.GELUErf:  {"gelu", "gelu_python"},
		model.ReLU:     {"relu"},
		model.SiLU:     {"silu", "swish"},
		model.ReLU2:    {"relu2"},
		model.Sigmoid:  {"sigmoid"},
		model.Identity: {"linear"},
	}
	for want, list := range names {
		for _, name := range list {
			m, _, err := Parse([]byte(`{"model_type": "gpt_neox", "hidden_act": "` + name + `"}`))
			if err != nil {
				t.Error(err)
			} else if got, ok := model.ActivationOf(m.Activation); !ok || got != want {
				t.Errorf("%s is read as %v, not %v", name, got, want)
			}
		}
	}
	if all := slices.Concat(slices.Collect(maps.Values(names))...); len(all) != len(model.ActivationNames()) {
		t.Errorf("of the names %v only %v are compared", model.ActivationNames(), all)
	}
}

// TestOtherFamiliesKeys: a key that only other families have is accepted where it says what is computed anyway, and
// refused where it would change it, without the advice to remove it.
func TestOtherFamiliesKeys(t *testing.T) {
	for text, want := range map[string]string{
		`"model_type": "mistral", "attention_bias": false, "mlp_bias": false`:                                                            "",
		`"model_type": "llama", "sliding_window": null, "use_sliding_window": false`:                                                     "",
		`"model_type": "llama", "partial_rotary_factor": 1.0, "qk_layernorm": false`:                                                     "",
		`"model_type": "gpt2", "rope_scaling": null, "num_key_value_heads": 12`:                                                          "",
		`"model_type": "qwen2", "attention_multiplier": null, "clip_qkv": null`:                                                          "",
		`"model_type": "olmo2", "output_router_logits": false, "num_experts": 0`:                                                         "",
		`"model_type": "qwen3_moe", "qkv_bias": false, "use_qk_norm": true, "shared_expert_intermediate_size": 0`:                        "",
		`"model_type": "llama", "qkv_bias": false, "use_qk_norm": false, "n_shared_experts": null`:                                       "",
		`"model_type": "qwen2", "qkv_bias": true, "num_shared_experts": 0`:                                                               "",
		`"model_type": "gpt_neox", "attention_probs_dropout_prob": 0, "hidden_dropout_prob": 0.1`:                                        "",
		`"model_type": "qwen3_moe", "qkv_bias": true`:                                                                                    "qkv_bias is true",
		`"model_type": "qwen3", "use_qk_norm": false`:                                                                                    "use_qk_norm is false",
		`"model_type": "mixtral", "shared_expert_intermediate_size": 5632`:                                                               "shared_expert_intermediate_size is 5632",
		`"model_type": "mistral", "attention_bias": true`:                                                                                "mistral has no such key",
		`"model_type": "llama", "sliding_window": 4096`:                                                                                  "llama has no such key",
		`"model_type": "llama", "partial_rotary_factor": 0.5`:                                                                            "llama has no such key",
		`"model_type": "gpt2", "num_key_value_heads": 4`:                                                                                 "gpt2 has no such key",
		`"model_type": "qwen2", "logits_scaling": 8`:                                                                                     "qwen2 has no such key",
		`"model_type": "llama", "quantization_config": {"quant_method": "mxfp4"}`:                                                        "quantization_config",
		`"model_type": "llama", "query_pre_attn_scalar": 64, "final_logit_softcapping": 30.0`:                                            "final_logit_softcapping",
		`"model_type": "opt", "mlp_type": "gated"`:                                                                                       "mlp_type",
		`"model_type": "llama", "quantum_heads": null`:                                                                                   "quantum_heads",
		`"model_type": "starcoder2", "attention_multiplier": 1`:                                                                          "attention_multiplier",
		`"model_type": "starcoder2", "hidden_size": 1536, "embedding_multiplier": 1, "logits_scaling": 1, "attention_multiplier": 0.125`: "",
	} {
		_, _, err := Parse([]byte("{" + text + "}"))
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: %v", text, err)
		case want != "" && (!errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), want) || strings.Count(err.Error(), "hint:") != 1 || strings.Contains(err.Error(), "remove")):
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
