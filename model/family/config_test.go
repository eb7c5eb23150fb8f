package family

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/checkpoint/safetensors"
	"github.com/athanor-llm/athanor/model"
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
		"phi-3-mini": 3821079552, "phi-4": 14659507200, "smollm3-3b": 3075098624,
		"granite-3.0-2b": 2533531648, "granite-3.0-8b": 8170848256, "granite-3.0-1b-a400m": 1334628352, "granite-3.0-3b-a800m": 3298793472,
		"granite-4.0-h-tiny": 6939037248, "granite-4.0-h-small": 32207337984, // as transformers counts them
		"starcoder2-3b": 3030371328, "stablelm-2-1.6b": 1644515328, "phi-1.5": 1418270720, "phi-2": 2779683840, "olmo-3-7b": 7298011136,
		"olmo-2-1b": 1484916736, "olmo-2-7b": 7298617344, "olmo-2-13b": 13716198400,
		"llama-2-70b": 68976648192, "llama-3-70b": 70553706496, "llama-3.1-8b": 8030261248, "llama-3.1-70b": 70553706496,
		"llama-3.1-405b": 405853388800, "llama-3.3-70b": 70553706496, "tinyllama-1.1b": 1100048384, "smollm2-135m": 134515008, "smollm2-360m": 361821120,
		"smollm2-1.7b": 1711376384, "mistral-nemo": 12247782400, "qwen2.5-3b": 3085938688, "qwen2.5-14b": 14770033664,
		"qwen2.5-32b": 32763876352, "qwen2.5-72b": 72706203648, "qwen3-14b": 14768307200, "qwen3-32b": 32762123264,
		"qwen3-30b-a3b": 30532122624, "qwen3-235b-a22b": 235093634560, "pythia-2.8b": 2775208960, "phi-3-medium": 13960238080,
		"starcoder2-7b": 7173923840, "starcoder2-15b": 15957889024,
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

// TestNames: models made by transformers have exactly our parameters, by name and shape, and those of their parts that are not text.
func TestNames(t *testing.T) {
	dirs, err := filepath.Glob("../../testdata/torch/*/config.json")
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
			if !model.Carried(m, info.Name) {
				theirs[info.Name] = info.Shape
			}
		}
		set.Close()
		ours := map[string][]int{}
		for _, p := range m.Params() {
			for _, t := range p.Tensors() {
				name, _ := t.NameIn(func(name string) bool { return theirs[name] != nil })
				ours[name] = t.Shape
			}
		}
		if !reflect.DeepEqual(ours, theirs) {
			t.Errorf("%s: parameters %v\nwant %v", config, slices.Sorted(maps.Keys(ours)), slices.Sorted(maps.Keys(theirs)))
		}
	}
}

// TestConfigRoundTrip: Parse(Config(m)) = m for every known model.
func TestConfigRoundTrip(t *testing.T) {
	for _, name := range Published() {
		m, err := Known(name)
		if err != nil {
			t.Fatal(err)
		}
		back, notes, err := Parse(Config(m))
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
		if err := json.Unmarshal(Config(m), &kv); err != nil {
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
		{"rope_scaling", map[string]any{"rope_type": "dynamic", "factor": 2.0}, "dynamic", false},
		{"rope_scaling", map[string]any{"rope_type": "linear", "factor": 2.0, "mrope_section": []int{1}}, "mrope_section", false},
		{"rope_scaling", map[string]any{"rope_type": "linear"}, "factor", true},
		{"rope_scaling", map[string]any{"rope_type": "yarn", "factor": 2.0}, "original_max_position_embeddings", true},
		{"rope_scaling", map[string]any{"rope_type": "yarn", "original_max_position_embeddings": 64}, "factor", true},
		{"rope_scaling", map[string]any{"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64, "beta_fast": 0.5}, "bounds", true},
		{"rope_scaling", map[string]any{"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64, "rope_theta": 1}, "rope_theta", true},
		{"rope_scaling", map[string]any{"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64, "mscale": 1, "mscale_all_dim": -1e9}, "attention_factor", true},
		{"rope_scaling", map[string]any{"rope_type": "longrope", "original_max_position_embeddings": 64, "short_factor": []int{1}}, "long_factor", true},
		{"rope_scaling", map[string]any{"rope_type": "longrope", "original_max_position_embeddings": 64, "short_factor": make([]int, 32), "long_factor": make([]int, 32)}, "positive", true},
		{"rope_scaling", map[string]any{"rope_type": "longrope", "original_max_position_embeddings": 1, "short_factor": make([]int, 32), "long_factor": make([]int, 32)}, "original", true},
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
		if err := json.Unmarshal(Config(m), &kv); err != nil {
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
		"qwen3-0.6b": {`{"attention_bias": false, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024, "intermediate_size": 3072,
			"max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 28,
			"num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null,
			"tie_word_embeddings": true, "use_sliding_window": false, "vocab_size": 151936}`, 596049920},
		"qwen3.5-0.8b": {`{"attention_bias": false, "attn_output_gate": true, "full_attention_interval": 4, "head_dim": 256, "hidden_act": "silu", "hidden_size": 1024,
			"intermediate_size": 3584, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 16,
			"linear_value_head_dim": 128, "mamba_ssm_dtype": "float32", "max_position_embeddings": 262144, "model_type": "qwen3_5_text", "mtp_num_hidden_layers": 1,
			"mtp_use_dedicated_embeddings": false, "num_attention_heads": 8, "num_hidden_layers": 24, "num_key_value_heads": 2, "partial_rotary_factor": 0.25,
			"rms_norm_eps": 1e-06, "rope_parameters": {"mrope_interleaved": true, "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25, "rope_theta": 10000000,
			"rope_type": "default"}, "tie_word_embeddings": true, "vocab_size": 248320}`, 752393024}, // here and below counted by transformers
		"qwen3-next-80b-a3b": {`{"decoder_sparse_step": 1, "full_attention_interval": 4, "hidden_size": 2048, "intermediate_size": 5120, "max_position_embeddings": 262144,
			"mlp_only_layers": [], "model_type": "qwen3_next", "norm_topk_prob": true, "num_experts": 512, "num_experts_per_tok": 10, "num_hidden_layers": 48,
			"partial_rotary_factor": 0.25, "rope_scaling": null, "rope_theta": 10000000, "router_aux_loss_coef": 0.001}`, 79674391296},
		"qwen3.5-35b-a3b": {`{"max_position_embeddings": 262144, "model_type": "qwen3_5_moe_text", "rope_parameters": {"rope_theta": 10000000, "rope_type": "default"}}`, 34660610688},
		"gemma-3-1b": {`{"attention_bias": false, "attn_logit_softcapping": null, "cache_implementation": "hybrid", "eos_token_id": [1, 106],
			"final_logit_softcapping": null, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152, "intermediate_size": 6912,
			"max_position_embeddings": 32768, "model_type": "gemma3_text", "num_attention_heads": 4, "num_hidden_layers": 26,
			"num_key_value_heads": 1, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000, "rope_scaling": null,
			"rope_theta": 1000000, "sliding_window": 512, "sliding_window_pattern": 6, "vocab_size": 262144}`, 999885952},
		"gemma-2-2b": {`{"attention_bias": false, "attn_logit_softcapping": 50.0, "cache_implementation": "hybrid", "eos_token_id": [1, 107],
			"final_logit_softcapping": 30.0, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2304,
			"intermediate_size": 9216, "max_position_embeddings": 8192, "model_type": "gemma2", "num_attention_heads": 8, "num_hidden_layers": 26,
			"num_key_value_heads": 4, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "sliding_window": 4096,
			"vocab_size": 256000}`, 2614341888},
		"gemma-2-9b": {`{"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "hidden_size": 3584, "intermediate_size": 14336, "model_type": "gemma2",
			"num_attention_heads": 16, "num_hidden_layers": 42, "num_key_value_heads": 8}`, 9241705984},
		"gemma-2-27b": {`{"head_dim": 128, "hidden_size": 4608, "intermediate_size": 36864, "model_type": "gemma2", "num_attention_heads": 32,
			"num_hidden_layers": 46, "num_key_value_heads": 16, "query_pre_attn_scalar": 144}`, 27227128320},
		"ernie-4.5-21b-a3b": {`{"hidden_act": "silu", "hidden_size": 2560, "intermediate_size": 12288, "max_position_embeddings": 131072, "model_type": "ernie4_5_moe",
			"moe_capacity": [64, 64, 64], "moe_gate": "topk", "moe_intermediate_size": 1536, "moe_k": 6, "moe_layer_end_index": 27, "moe_layer_interval": 1,
			"moe_layer_start_index": 1, "moe_num_experts": 64, "moe_num_shared_experts": 2, "moe_use_aux_free": true, "num_attention_heads": 20, "num_hidden_layers": 28,
			"num_key_value_heads": 4, "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 500000.0, "tie_word_embeddings": true, "use_bias": false,
			"vocab_size": 103424}`, 21825437888},
		"glm-4.5-air": {`{"attention_bias": true, "attention_dropout": 0.0, "first_k_dense_replace": 1, "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096,
			"intermediate_size": 10944, "max_position_embeddings": 131072, "model_type": "glm4_moe", "moe_intermediate_size": 1408, "n_group": 1, "n_routed_experts": 128,
			"n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 96, "num_experts_per_tok": 8, "num_hidden_layers": 46, "num_key_value_heads": 8,
			"num_nextn_predict_layers": 1, "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 1000000, "routed_scaling_factor": 1.0,
			"topk_group": 1, "use_qk_norm": false, "vocab_size": 151552}`, 106852251264}, // here and below with the biases of routers, counted by transformers
		"glm-4.5": {`{"attention_bias": true, "first_k_dense_replace": 3, "head_dim": 128, "hidden_size": 5120, "intermediate_size": 12288, "model_type": "glm4_moe",
			"moe_intermediate_size": 1536, "n_routed_experts": 160, "num_hidden_layers": 92, "rope_theta": 1000000, "routed_scaling_factor": 2.5, "use_qk_norm": true}`, 352797829024},
		"minimax-m2": {`{"attn_type_list": [1, 1], "head_dim": 128, "hidden_act": "silu", "hidden_size": 3072, "intermediate_size": 1536, "max_position_embeddings": 196608,
			"model_type": "minimax_m2", "mtp_transformer_layers": 1, "num_attention_heads": 48, "num_experts_per_tok": 8, "num_hidden_layers": 62, "num_key_value_heads": 8,
			"num_local_experts": 256, "num_mtp_modules": 3, "qk_norm_type": "per_layer", "rms_norm_eps": 1e-06, "rope_theta": 5000000, "rotary_dim": 64, "scoring_func": "sigmoid",
			"shared_intermediate_size": 0, "tie_word_embeddings": false, "use_mtp": true, "use_qk_norm": true, "use_routing_bias": true, "vocab_size": 200064}`, 228689764864},
		"olmo-2-1b": {`{"attention_bias": false, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 8192, "max_position_embeddings": 4096,
			"model_type": "olmo2", "num_attention_heads": 16, "num_hidden_layers": 16, "num_key_value_heads": 16, "rms_norm_eps": 1e-06,
			"rope_scaling": null, "rope_theta": 500000, "tie_word_embeddings": false, "vocab_size": 100352}`, 1484916736},
		"phi-3-mini": {`{"attention_bias": false, "attention_dropout": 0.0, "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config"}, "embd_pdrop": 0.0,
			"hidden_act": "silu", "hidden_size": 3072, "intermediate_size": 8192, "max_position_embeddings": 4096, "model_type": "phi3",
			"num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32, "original_max_position_embeddings": 4096,
			"pad_token_id": 32000, "resid_pdrop": 0.0, "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 10000.0, "sliding_window": 2047,
			"tie_word_embeddings": false, "vocab_size": 32064}`, 3821079552},
		"granite-3.0-2b": {`{"attention_bias": false, "attention_multiplier": 0.015625, "embedding_multiplier": 12.0, "hidden_act": "silu", "hidden_size": 2048,
			"intermediate_size": 8192, "logits_scaling": 8.0, "max_position_embeddings": 4096, "mlp_bias": false, "model_type": "granite",
			"num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8, "residual_multiplier": 0.22, "rms_norm_eps": 1e-05,
			"rope_scaling": null, "rope_theta": 10000, "tie_word_embeddings": true, "vocab_size": 49155}`, 2533531648},
		"starcoder2-3b": {`{"activation_function": "gelu", "attention_dropout": 0, "attention_softmax_in_fp32": true, "embedding_dropout": 0,
			"hidden_act": "gelu_pytorch_tanh", "hidden_size": 3072, "initializer_range": 0.018042, "intermediate_size": 12288, "layer_norm_epsilon": 1e-05,
			"max_position_embeddings": 16384, "mlp_type": "default", "model_type": "starcoder2", "norm_epsilon": 1e-05, "norm_type": "layer_norm",
			"num_attention_heads": 24, "num_hidden_layers": 30, "num_key_value_heads": 2, "residual_dropout": 0, "rope_theta": 999999.4420358813,
			"scale_attention_softmax_in_fp32": true, "scale_attn_weights": true, "sliding_window": 4096, "use_bias": true, "vocab_size": 49152}`, 3030371328},
		"stablelm-2-1.6b": {`{"hidden_act": "silu", "hidden_dropout": 0.0, "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 5632,
			"layer_norm_eps": 1e-05, "max_position_embeddings": 4096, "model_type": "stablelm", "num_attention_heads": 32, "num_hidden_layers": 24,
			"num_key_value_heads": 32, "partial_rotary_factor": 0.25, "qk_layernorm": false, "rope_scaling": null, "rope_theta": 10000,
			"tie_word_embeddings": false, "use_parallel_residual": false, "use_qkv_bias": true, "vocab_size": 100352}`, 1644515328},
		"phi-2": {`{"attention_dropout": 0.0, "embd_pdrop": 0.0, "hidden_act": "gelu_new", "hidden_size": 2560, "initializer_range": 0.02,
			"intermediate_size": 10240, "layer_norm_eps": 1e-05, "max_position_embeddings": 2048, "model_type": "phi", "num_attention_heads": 32,
			"num_hidden_layers": 32, "num_key_value_heads": 32, "partial_rotary_factor": 0.4, "qk_layernorm": false, "resid_pdrop": 0.1,
			"rope_scaling": null, "rope_theta": 10000.0, "tie_word_embeddings": false, "vocab_size": 51200}`, 2779683840},
		"olmo-3-7b": {`{"attention_bias": false, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 11008, "max_position_embeddings": 65536,
			"model_type": "olmo3", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32, "rms_norm_eps": 1e-06,
			"rope_scaling": {"attention_factor": 1.2079441541679836, "beta_fast": 32.0, "beta_slow": 1.0, "factor": 8.0,
			"original_max_position_embeddings": 8192, "rope_type": "yarn"}, "rope_theta": 500000, "sliding_window": 4096, "tie_word_embeddings": false,
			"vocab_size": 100278}`, 7298011136},
		"smollm3-3b": {`{"attention_bias": false, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 11008, "max_position_embeddings": 65536,
			"max_window_layers": 28, "mlp_bias": false, "model_type": "smollm3", "no_rope_layer_interval": 4, "num_attention_heads": 16,
			"num_hidden_layers": 36, "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 5000000.0,
			"sliding_window": null, "use_sliding_window": false, "vocab_size": 128256}`, 3075098624},
		"gpt-oss-20b": {`{"architectures": ["GptOssForCausalLM"], "attention_bias": true, "attention_dropout": 0.0, "eos_token_id": 200002, "experts_per_token": 4,
			"head_dim": 64, "hidden_act": "silu", "hidden_size": 2880, "initial_context_length": 4096, "initializer_range": 0.02, "intermediate_size": 2880,
			"layer_types": [` + alternating(24) + `], "max_position_embeddings": 131072, "model_type": "gpt_oss", "num_attention_heads": 64, "num_experts_per_tok": 4,
			"num_hidden_layers": 24, "num_key_value_heads": 8, "num_local_experts": 32, "output_router_logits": false, "pad_token_id": 199999,
			"quantization_config": {"modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"], "quant_method": "mxfp4"},
			"rms_norm_eps": 1e-05, "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096, "rope_type": "yarn", "truncate": false},
			"rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128, "swiglu_limit": 7.0, "tie_word_embeddings": false, "use_cache": true,
			"vocab_size": 201088}`, 20914757184},
		"gpt-oss-120b": {`{"model_type": "gpt_oss", "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
			"rope_type": "yarn", "truncate": false}}`, 116829156672},
		"pythia-70m": {`{"hidden_act": "gelu", "hidden_size": 512, "intermediate_size": 2048, "layer_norm_eps": 1e-05, "max_position_embeddings": 2048,
			"model_type": "gpt_neox", "num_attention_heads": 8, "num_hidden_layers": 6, "rotary_emb_base": 10000, "rotary_pct": 0.25,
			"tie_word_embeddings": false, "use_parallel_residual": true, "vocab_size": 50304}`, 70426624},
	} {
		m, _, err := Parse([]byte(c.text))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if got := m.ParamCount(); got != c.want {
			t.Errorf("%s: %d parameters, want %d", name, got, c.want)
		} else if same, err := Known(name); err == nil && !reflect.DeepEqual(m, same) {
			t.Errorf("%s: %+v\nknown as %+v", name, m, same)
		}
	}
}

// alternating lists the types of the given number of layers, every other of which has a window.
func alternating(layers int) string {
	list := strings.Repeat(`"sliding_attention", "full_attention", `, layers/2)
	return strings.TrimSuffix(list, ", ")
}

// TestSliding: which layers have a window, in each family's notation.
func TestSliding(t *testing.T) {
	const qwen = `"model_type": "qwen3", "num_hidden_layers": 4, "sliding_window": 9, `
	const olmo = `"model_type": "olmo3", "num_hidden_layers": 4, `
	const oss = `"model_type": "gpt_oss", "num_hidden_layers": 4, "rope_parameters": {"rope_type": "default"}, `
	const two = `"model_type": "gemma2", "num_hidden_layers": 4, `
	const gemma = `"model_type": "gemma3_text", "num_hidden_layers": 4, "sliding_window": 9, `
	for text, want := range map[string]string{
		qwen + `"use_sliding_window": false`:                                                                                               "0 0 0 0 <nil>",
		qwen + `"use_sliding_window": true, "max_window_layers": 3`:                                                                        "0 0 0 9 [false false false true]",
		qwen + `"use_sliding_window": true, "max_window_layers": 0`:                                                                        "9 9 9 9 <nil>",
		qwen + `"use_sliding_window": true, "max_window_layers": 4`:                                                                        "0 0 0 0 <nil>",
		qwen + `"use_sliding_window": true, "layer_types": ["full_attention", "sliding_attention", "full_attention", "sliding_attention"]`: "0 9 0 9 [false true]",
		gemma + `"sliding_window_pattern": 3`:                                                                                              "9 9 0 9 [true true false]",
		gemma + `"_sliding_window_pattern": 2`:                                                                                             "9 0 9 0 [true false]",
		gemma + `"layer_types": ["full_attention", "full_attention", "full_attention", "full_attention"]`:                                  "0 0 0 0 <nil>",
		olmo + `"sliding_window": 9`:                                                                                                       "9 9 9 0 [true true true false]",
		olmo + `"sliding_window": null, "layer_types": ["full_attention", "full_attention", "full_attention", "full_attention"]`:           "0 0 0 0 <nil>",
		olmo + `"sliding_window": 9, "rope_parameters": {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}`: "9 9 9 0 [true true true false]",
		olmo + `"sliding_window": 9, "rope_parameters": {"full_attention": {"rope_theta": 1e4}, "sliding_attention": {"rope_theta": 1e4}}`: "9 9 9 0 [true true true false]",
		olmo + `"sliding_window": 9, "rope_scaling": {"type": "linear", "factor": 2}`:                                                      "9 9 9 0 [true true true false]",
		two + `"sliding_window": 9`:                                                                                                        "9 0 9 0 [true false]",
		two + `"attn_logit_softcapping": null`:                                                                                             "4096 0 4096 0 [true false]",
		oss + `"sliding_window": 9`:                                                                                                        "9 0 9 0 [true false]",
		oss + `"sliding_window": null, "layer_types": ["full_attention", "full_attention", "full_attention", "full_attention"]`:            "0 0 0 0 <nil>",
		gemma + `"sliding_window_pattern": 6`:                                                                                              "9 9 9 9 <nil>",
	} {
		m, _, err := Parse([]byte("{" + text + "}"))
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		got := ""
		for l := range m.Layers {
			got += fmt.Sprint(m.WindowOf(l), " ")
		}
		if m.Sliding == nil {
			got += "<nil>"
		} else {
			got += fmt.Sprint(m.Sliding)
		}
		if got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
		if back, _, err := Parse(Config(m)); err != nil || !reflect.DeepEqual(m, back) {
			t.Errorf("%s: %+v\nreads back as %+v, %v", text, m, back, err)
		}
	}
}

// TestRefusedFamilies: what other families, or these with other settings, would compute is refused, naming the
// setting.
func TestRefusedFamilies(t *testing.T) {
	for text, want := range map[string]string{
		`"model_type": "gemma3"`:                                                                                                               "text_config is missing",
		`"model_type": "gemma3", "text_config": 3`:                                                                                             "text_config: json",
		`"model_type": "gemma3", "text_config": {"model_type": "gpt2"}`:                                                                        `"gpt2"`,
		`"model_type": "gemma3", "text_config": {"model_type": 5}`:                                                                             "model_type",
		`"model_type": "gemma3", "text_config": {"quantum_heads": 5}`:                                                                          "text_config: quantum_heads",
		`"model_type": "gemma3", "text_config": {}, "tie_word_embeddings": 5`:                                                                  "tie_word_embeddings",
		`"model_type": "mistral3", "text_config": {}, "quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 64]}`:           "quantization_config",
		`"model_type": "qwen2_vl", "hidden_act": "quick_gelu"`:                                                                                 "quick_gelu",
		`"model_type": "qwen3_vl_text"`:                                                                                                        "the text part of",
		`"model_type": "qwen3", "rope_scaling": {"rope_type": "default", "mrope_section": [1, 1, 2]}`:                                          "mrope_section",
		`"model_type": "ernie4_5_moe", "moe_layer_interval": 2`:                                                                                "moe_layer_interval 2",
		`"model_type": "glm4_moe", "n_shared_experts": 0`:                                                                                      "n_shared_experts is 0",
		`"model_type": "glm4_moe", "head_dim": 128, "n_group": 3`:                                                                              "3 groups",
		`"model_type": "glm4_moe", "head_dim": 128, "first_k_dense_replace": 46`:                                                               "46 of 46 layers",
		`"model_type": "minimax_m2", "rotary_dim": 200`:                                                                                        "rotary_dim is 200",
		`"model_type": "gemma2", "attn_logit_softcapping": -50`:                                                                                "soft caps",
		`"model_type": "gemma3_text", "use_bidirectional_attention": true`:                                                                     "use_bidirectional_attention",
		`"model_type": "gemma3_text", "hidden_activation": "tanh"`:                                                                             "tanh",
		`"model_type": "gemma3_text", "rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2}}`:                          "sliding_attention",
		`"model_type": "gemma3_text", "layer_types": ["full_attention"]`:                                                                       "layer_types has 1",
		`"model_type": "qwen3", "rope_parameters": {"sliding_attention": {"rope_theta": 5}}`:                                                   "sliding_attention",
		`"model_type": "qwen3", "num_hidden_layers": 1, "layer_types": ["sliding_attention"]`:                                                  "use_sliding_window",
		`"model_type": "qwen3", "num_hidden_layers": 1, "layer_types": ["linear_attention"]`:                                                   "linear_attention",
		`"model_type": "qwen3", "num_experts": 8`:                                                                                              "num_experts",
		`"model_type": "phi3", "rope_scaling": {"type": "longrope", "short_factor": [1], "long_factor": [1]}`:                                  "longrope",
		`"model_type": "phi3", "rope_scaling": {"type": "yarn", "factor": 2, "original_max_position_embeddings": 9}`:                           "yarn",
		`"model_type": "gpt_neox", "rotary_pct": 0`:                                                                                            "rotary_pct",
		`"model_type": "gemma3_text", "rope_parameters": {"full_attention": {"rope_type": "yarn", "truncate": true}}`:                          "truncate",
		`"model_type": "starcoder2", "mlp_type": "gated"`:                                                                                      "mlp_type",
		`"model_type": "starcoder2", "norm_type": "rms"`:                                                                                       "norm_type",
		`"model_type": "gpt_oss", "hidden_act": "gelu"`:                                                                                        "gelu",
		`"model_type": "starcoder2", "hidden_act": "tanh"`:                                                                                     "tanh",
		`"model_type": "stablelm", "qk_layernorm": true`:                                                                                       "qk_layernorm",
		`"model_type": "stablelm", "head_dim": 128`:                                                                                            "head_dim",
		`"model_type": "phi", "qk_layernorm": true`:                                                                                            "qk_layernorm",
		`"model_type": "phi", "partial_rotary_factor": 0`:                                                                                      "partial_rotary_factor",
		`"model_type": "olmo3", "rope_theta": 10000`:                                                                                           "rope_theta",
		`"model_type": "olmo3", "sliding_window": null`:                                                                                        "sliding_window",
		`"model_type": "olmo3", "rope_parameters": {"rope_type": "default", "rope_theta": 500000}`:                                             "full_attention",
		`"model_type": "olmo3", "rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2}}`:                                "sliding_attention",
		`"model_type": "olmo3", "rope_scaling": {"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": 64, "truncate": false}`: "truncate",
		`"model_type": "granite", "logits_scaling": 0`:                                                                                         "multipliers",
		`"model_type": "granite", "residual_multiplier": -1`:                                                                                   "multipliers",
		`"model_type": "granite", "embedding_multiplier": 0, "residual_multiplier": 0, "attention_multiplier": 0, "logits_scaling": 0`:         "multiplier",
		`"model_type": "smollm3", "no_rope_layers": [1]`:                                                                                       "no_rope_layers has 1",
		`"model_type": "olmo2", "clip_qkv": 8`:                                                                                                 "clip_qkv",
		`"model_type": "gpt_neox", "rotary_pct": 0.01`:                                                                                         "rotary",
		`"model_type": "gpt_neox", "rotary_pct": 1.5`:                                                                                          "rotary_pct",
		`"model_type": "gpt_neox", "hidden_act": "quick_gelu"`:                                                                                 "quick_gelu",
		`"model_type": "llama", "rope_parameters": {"partial_rotary_factor": 0.5}`:                                                             "partial_rotary_factor",
		`"model_type": "qwen2_moe", "mlp_only_layers": [0]`:                                                                                    "mlp_only_layers",
		`"model_type": "qwen2_moe", "shared_expert_intermediate_size": 0`:                                                                      "shared_expert_intermediate_size",
		`"model_type": "qwen3_moe", "mlp_only_layers": [0]`:                                                                                    "mlp_only_layers",
		`"model_type": "qwen3_moe", "decoder_sparse_step": 2`:                                                                                  "decoder_sparse_step",
		`"model_type": "mixtral", "output_router_logits": true`:                                                                                "output_router_logits",
		`"model_type": "mixtral", "router_jitter_noise": 0.1`:                                                                                  "router_jitter_noise",
		`"model_type": "mixtral", "num_experts_per_tok": 9`:                                                                                    "9 of 8 experts",
		`"model_type": "qwen3_moe", "num_experts": 8, "num_local_experts": 6`:                                                                  "num_experts is 8 and num_local_experts 6",
		`"model_type": "gpt_oss"`:                                                                                                              "rope_scaling is missing",
		`"model_type": "gpt_oss", "rope_scaling": null, "swiglu_limit": 0`:                                                                     "swiglu_limit 0",
		`"model_type": "gpt_oss", "rope_scaling": null, "swiglu_alpha": -1`:                                                                    "swiglu_alpha -1",
		`"model_type": "gpt_oss", "rope_scaling": null, "experts_per_token": 3`:                                                                "experts_per_token 3",
		`"model_type": "gpt_oss", "rope_scaling": null, "sliding_window": null`:                                                                "sliding_window",
		`"model_type": "gpt_oss", "rope_scaling": null, "quantization_config": {"quant_method": "fp8"}`:                                        "fp8",
		`"model_type": "gpt_oss", "rope_scaling": null, "quantization_config": 4`:                                                              "quantization_config",
		`"model_type": "mixtral", "quantization_config": {"quant_method": "mxfp4"}`:                                                            "quantization_config",
		`"model_type": "olmoe", "clip_qkv": 8`:                                                                                                 "clip_qkv",
	} {
		if _, _, err := Parse([]byte("{" + text + "}")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
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

// TestAmend: an amended config.json matches what is saved with it and keeps everything else.
func TestAmend(t *testing.T) {
	text := []byte(`{"model_type": "llama", "max_position_embeddings": 64, "dtype": "bfloat16", "eos_token_id": [1, 2]}`)
	m, _, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	m.MaxPositions = 128
	got, err := Amend(m, text)
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
	if again, err := Amend(m, got); err != nil || string(again) != string(got) {
		t.Errorf("what is right is written again: %s, %v", again, err)
	}
}

// TestAmendLongrope: what longrope multiplies tables by is derived from the number of positions unless it is
// given, so it is written when that number changes.
func TestAmendLongrope(t *testing.T) {
	text := []byte(`{"model_type": "phi3", "hidden_size": 32, "num_attention_heads": 8, "max_position_embeddings": 64, "original_max_position_embeddings": 16,
		"rope_scaling": {"type": "longrope", "short_factor": [1, 1.5], "long_factor": [2, 3]}}`)
	m, _, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if want := math.Sqrt(1.5); math.Abs(m.RopeScaling.Attention-want) > 1e-12 { // 1 + log(64/16)/log(16)
		t.Errorf("tables are multiplied by %v, want %v", m.RopeScaling.Attention, want)
	}
	m.MaxPositions = 4096
	got, err := Amend(m, text)
	if err != nil {
		t.Fatal(err)
	}
	back, _, err := Parse(got)
	if err != nil || !reflect.DeepEqual(m, back) {
		t.Errorf("%+v\nreads back as %+v, %v", m, back, err)
	}
}

// TestScaledRoundTrip: Parse(Config(m)) = m for each way to scale rotary positions.
func TestScaledRoundTrip(t *testing.T) {
	text, err := os.ReadFile("../../testdata/torch/rope.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Name   string
		Config json.RawMessage
	}
	if err := json.Unmarshal(text, &cases); err != nil || len(cases) == 0 {
		t.Fatal(err, len(cases))
	}
	for _, c := range cases {
		m, _, err := Parse(c.Config)
		if err != nil || m.RopeScaling == nil {
			t.Fatalf("%s: %+v, %v", c.Name, m, err)
		}
		if back, _, err := Parse(Config(m)); err != nil || !reflect.DeepEqual(m, back) {
			t.Errorf("%s: %+v\nreads back as %+v, %v", c.Name, m, back, err)
		}
	}
}

// TestDropout: dropout is accepted with a note.
func TestDropout(t *testing.T) {
	m, err := Known("gpt2")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(string(Config(m)), `"resid_pdrop": 0`, `"resid_pdrop": 0.1`, 1)
	if _, notes, err := Parse([]byte(text)); err != nil || len(notes) != 1 || !strings.Contains(notes[0], "resid_pdrop") {
		t.Errorf("notes %v, error %v", notes, err)
	}
}

// FuzzParse: no text makes it panic, and what it accepts has possible sizes.
func FuzzParse(f *testing.F) {
	for _, name := range Names() {
		m, err := Typical(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(Config(m))
	}
	f.Add([]byte(`{"model_type":"gpt2","n_layer":1e9}`))
	f.Add([]byte(`{"model_type":"phi3","hidden_size":32,"num_attention_heads":8,"rope_scaling":{"type":"longrope","short_factor":[1,2],"long_factor":[2,3]}}`))
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

// TestNothingGuessed: what no program writes and two programs would read differently is refused, with the key's name.
func TestNothingGuessed(t *testing.T) {
	m, err := Known("llama-3.2-1b")
	if err != nil {
		t.Fatal(err)
	}
	good := string(Config(m))
	with := func(more string) []byte { return []byte(strings.Replace(good, "{", "{"+more+",", 1)) }
	for key, values := range map[string][]string{
		"bos_token_id": {"-5", `"x"`, "1099511627776", "1.5"},
		"eos_token_id": {"-5", `"x"`, "[1, -2]", `[["a"]]`, "true"},
		"torch_dtype":  {"7", "[]"},
	} {
		for _, v := range values {
			text := strings.Replace(good, fmt.Sprintf(`"%s":`, key), fmt.Sprintf(`"%s": %s, "was_%s":`, key, v, key), 1)
			if _, _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), key) {
				t.Errorf("%s %s: %v", key, v, err)
			}
		}
	}
	for _, key := range []string{"hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"} {
		text := strings.Replace(good, fmt.Sprintf(`"%s":`, key), fmt.Sprintf(`"%s": null, "was":`, key), 1)
		if _, _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), key+" is null") {
			t.Errorf("%s null: %v", key, err)
		}
		if _, _, err := Parse(with(fmt.Sprintf(`"%s": 64`, key))); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q is given twice", key)) {
			t.Errorf("%s twice: %v", key, err)
		}
	}
	for text, want := range map[string]string{
		"\xef\xbb\xbf" + good: "a byte order mark", "version https://git-lfs.github.com/spec/v1\n": "a pointer of Git LFS", "": "it is empty", "// a\n" + good: "line 1: ",
		strings.Replace(good, `"hidden_size": 2048`, `"hidden_size": "2048"`, 1):                      "hidden_size: a text where a whole number",
		strings.Replace(good, `"hidden_size": 2048`, `"hidden_size": 2048.5`, 1):                      "hidden_size: 2048.5 where a whole number",
		strings.Replace(good, `"tie_word_embeddings": true`, `"tie_word_embeddings": "true"`, 1):      "tie_word_embeddings: a text where true or false",
		string(with(`"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": true}`)): "hint: use the model that they were made from",
		string(with(`"quantization_config": {"quant_method": "gptq", "bits": 4}`)):                    "hint: use the model that they were made from",
	} {
		if _, _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "hint: ") || strings.Contains(err.Error(), "Go ") {
			t.Errorf("%.60q: %v, want %q", text, err, want)
		}
	}
	for text, key := range map[string]string{
		`"model_type": "llama", "rope_theta": 0`:                                              "rope_theta",
		`"model_type": "llama", "rope_parameters": {"rope_type": "default", "rope_theta": 0}`: "rope_parameters: rope_theta",
		`"model_type": "gemma2", "attn_logit_softcapping": 0`:                                 "attn_logit_softcapping",
		`"model_type": "gemma2", "final_logit_softcapping": 0.0`:                              "final_logit_softcapping",
		`"model_type": "gemma3_text", "final_logit_softcapping": 0e1`:                         "final_logit_softcapping",
		`"model_type": "mixtral", "sliding_window": 0`:                                        "sliding_window",
		`"model_type": "phi3", "sliding_window": 0`:                                           "sliding_window",
		`"model_type": "qwen2", "sliding_window": 0, "use_sliding_window": false`:             "",
		`"model_type": "gemma2", "attn_logit_softcapping": null`:                              "",
	} {
		_, _, err := Parse([]byte("{" + text + "}"))
		if (key == "") != (err == nil) || err != nil && (!strings.Contains(err.Error(), key+" is 0") || strings.Count(err.Error(), "hint:") != 1) {
			t.Errorf("%s: %v", text, err)
		}
	}
	for _, more := range []string{`"pad_token_id": -1`, `"pad_token_id": null`, `"dtype": "bfloat16"`} {
		if _, _, err := Parse(with(more)); err != nil {
			t.Errorf("%s: %v", more, err)
		}
	}
}

// TestInfinity: bounds of time steps are read as transformers 5 and as earlier versions write them, where words inside strings stay.
func TestInfinity(t *testing.T) {
	const begin = `{"model_type": "granitemoehybrid", "num_local_experts": 0, "num_hidden_layers": 1, "_name_or_path": "\" Infinity", "time_step_limit": `
	for text, want := range map[string][2]float64{
		`[0.0, Infinity]`: {}, `[0.0, {"__float__": "Infinity"}]`: {}, `[0.01, 0.5]`: {0.01, 0.5}, `[0.01, Infinity]`: {0.01, 0}, `null`: {},
	} {
		m, _, err := Parse([]byte(begin + text + "}"))
		if err != nil {
			t.Errorf("%s: %v", text, err)
		} else if got := [2]float64{m.Mamba.Least, m.Mamba.Most}; got != want {
			t.Errorf("%s is read as %v, not %v", text, got, want)
		}
	}
	const plain = `{"a": "Infinity \" Infinity"}`
	if got := string(finite([]byte(plain))); got != plain {
		t.Errorf("%s became %s", plain, got)
	}
}
