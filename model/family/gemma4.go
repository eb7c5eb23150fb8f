package family

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/athanor-llm/athanor/model"
)

// gemma4 is the text model of Gemma 4: Gemma 3 with gains that are weights, values that are normalised, too, a factor for each
// layer, and, in layers without a window, larger heads, of whose pairs only the fastest rotate and whose values are keys. In the
// small models layers read embeddings of their own, and the last ones the keys and values of others.
var gemma4 = family{
	Family: model.Family{Name: "gemma4_text", MayMix: true, Apart: true, Tensors: gemma4Names()},
	class:  "Gemma4ForCausalLM",
	fixed:  gemma4Fixed,
	table: changed(gemma4Table,
		row{key: "max_position_embeddings", field: maxPositions, def: 131072},
		row{key: "layer_types", read: func(c *config, m *model.Model) { c.gemma4Layers(m, 512) }, write: writeGemma4Layers, own: true},
		row{key: "hidden_size_per_layer_input", read: readGemma4PerLayer, write: writeGemma4PerLayer, own: true},
		row{key: "enable_moe_block", read: (*config).gemma4Experts, write: writeGemma4Experts, own: true},
	),
	ignored: []string{"hidden_act", "expert_intermediate_size"},
	typical: "gemma-4-31b",
	published: map[string]string{
		"gemma-4-31b": `{"num_hidden_layers": 60, "hidden_size": 5376, "num_attention_heads": 32, "num_key_value_heads": 16, "intermediate_size": 21504,
			"num_global_key_value_heads": 4, "attention_k_eq_v": true, "max_position_embeddings": 262144, "sliding_window": 1024,
			"final_logit_softcapping": 30.0, "hidden_size_per_layer_input": 0}`,
		"gemma-4-e2b": `{"num_hidden_layers": 35, "hidden_size": 1536, "num_attention_heads": 8, "num_key_value_heads": 1, "intermediate_size": 6144,
			"num_kv_shared_layers": 20, "use_double_wide_mlp": true, "sliding_window": 512, "final_logit_softcapping": 30.0,
			"layer_types": [` + strings.Repeat(gemma4Five+", ", 6) + gemma4Five + `]}`,
		"gemma-4-e4b": `{"num_hidden_layers": 42, "hidden_size": 2560, "num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 10240,
			"num_kv_shared_layers": 18, "sliding_window": 512, "final_logit_softcapping": 30.0}`,
		"gemma-4-26b-a4b": `{"num_hidden_layers": 30, "hidden_size": 2816, "num_attention_heads": 16, "num_key_value_heads": 8, "intermediate_size": 2112,
			"num_global_key_value_heads": 2, "attention_k_eq_v": true, "max_position_embeddings": 262144, "sliding_window": 1024, "final_logit_softcapping": 30.0,
			"hidden_size_per_layer_input": 0, "enable_moe_block": true, "num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704}`,
	},
}

// gemma4Five are the kinds of five layers.
const gemma4Five = `"sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention", "full_attention"`

// gemma4Unified is the text part of the models of Gemma 4 that read images and sound without an encoder.
var gemma4Unified = family{
	Family: model.Family{Name: "gemma4_unified_text", Tensors: gemma4Names()},
	class:  "Gemma4UnifiedForCausalLM",
	fixed:  gemma4Fixed,
	table: changed(gemma4Table,
		row{key: "max_position_embeddings", field: maxPositions, def: 262144},
		row{key: "layer_types", read: func(c *config, m *model.Model) { c.gemma4Layers(m, 1024) }, write: writeGemma4Layers, own: true},
	),
	ignored: append([]string{"hidden_size_per_layer_input", "vocab_size_per_layer_input", "enable_moe_block", "num_experts", "top_k_experts", "moe_intermediate_size"}, gemma4.ignored...),
}

var gemma4Fixed = model.Model{QKNorm: model.QKNormHeads, ValueNorm: true, Norms: model.SandwichNorm, LayerScale: true, ScaledEmbed: true, QueryScalar: 1}

// gemma4Table has the keys that both have.
var gemma4Table = changed(without(llamaTable, "hidden_act", "rope_theta"),
	row{key: "vocab_size", field: vocab, def: 262144},
	row{key: "num_hidden_layers", field: layers, def: 30},
	row{key: "hidden_size", field: width, def: 2304},
	row{key: "num_attention_heads", field: heads, def: 8},
	row{key: "num_key_value_heads", field: kvHeads, def: 4},
	row{key: "head_dim", field: headDim, def: 256},
	row{key: "intermediate_size", field: feedForward, def: 9216},
	activated("hidden_activation", "gelu_pytorch_tanh"),
	row{key: "tie_word_embeddings", field: tied, def: true},
	attentionBias,
	softCap("final_logit_softcapping", logitCap, 0),
	row{key: "use_bidirectional_attention", read: (*config).causalText, own: true},
	row{key: "layer_types"}, // each has its own, here since the next reads what it sets
	row{key: "num_kv_shared_layers", read: readGemma4Lent, write: writeGemma4Lent, own: true},
	row{key: "rope_parameters", read: (*config).gemma4Rope, write: writeGemma4Rope},
)

func gemma4Names() model.TensorNames {
	n := sandwichNames()
	n.LayerScale = "layer_scalar"
	n.PerLayerTable, n.PerLayerProjection, n.PerLayerNorm = "model.embed_tokens_per_layer.weight", "model.per_layer_model_projection", "model.per_layer_projection_norm"
	n.PerLayerGate, n.PerLayerOut, n.PerLayerOutNorm = "per_layer_input_gate", "per_layer_projection", "post_per_layer_input_norm"
	n.SharedGate, n.SharedUp, n.SharedDown, n.SharedNorm = n.Gate, n.Up, n.Down, "post_feedforward_layernorm_1"
	n.Experts = "experts."
	n.Router, n.RouterGain, n.ExpertGain = "router.proj", "router.scale", "router.per_expert_scale"
	n.ExpertNorm, n.ExpertOutNorm = "pre_feedforward_layernorm_2", "post_feedforward_layernorm_2"
	return n
}

// readGemma4PerLayer reads what layers read of each token by itself.
func readGemma4PerLayer(c *config, m *model.Model) {
	rows := 262144
	m.PerLayer = 256
	c.get("hidden_size_per_layer_input", &m.PerLayer)
	if c.get("vocab_size_per_layer_input", &rows); m.PerLayer > 0 && rows != m.Vocab {
		c.fail("vocab_size_per_layer_input is %d, but vocab_size %d: %w: layers can only have embeddings of all tokens", rows, m.Vocab, ErrUnsupported)
	}
}

func writeGemma4PerLayer(m *model.Model, kv map[string]any) {
	add(kv, map[string]any{"hidden_size_per_layer_input": m.PerLayer, "vocab_size_per_layer_input": m.Vocab})
}

// readGemma4Lent reads which layers have keys and values of others.
func readGemma4Lent(c *config, m *model.Model) {
	c.get("num_kv_shared_layers", &m.Lent.Keys)
	if c.get("use_double_wide_mlp", &m.Lent.Wide); m.Lent.Keys == 0 { // then no layer is
		m.Lent.Wide = false
	}
}

func writeGemma4Lent(m *model.Model, kv map[string]any) {
	add(kv, map[string]any{"num_kv_shared_layers": m.Lent.Keys, "use_double_wide_mlp": m.Lent.Wide})
}

// gemma4Experts reads the experts beside the feed-forward, if there are any: that is then Shared.
func (c *config) gemma4Experts(m *model.Model) {
	has := false
	c.get("enable_moe_block", &has)
	var n, active, width int
	c.get("num_experts", &n)
	c.get("top_k_experts", &active)
	if c.get("moe_intermediate_size", &width); has {
		m.Experts, m.Active, m.Shared, m.FeedForward, m.NormedRoute = n, active, m.FeedForward, width, true
	}
}

func writeGemma4Experts(m *model.Model, kv map[string]any) {
	if kv["enable_moe_block"] = m.Experts > 0; m.Experts > 0 {
		add(kv, map[string]any{"num_experts": m.Experts, "top_k_experts": m.Active, "intermediate_size": m.Shared, "moe_intermediate_size": m.FeedForward})
	}
}

// causalText reads how tokens of images see each other, which says nothing about text unless it is all tokens.
func (c *config) causalText(*model.Model) {
	var how string
	if c.get("use_bidirectional_attention", &how); how != "" && how != "vision" {
		c.fail("use_bidirectional_attention is %q: %w: text can only be read forward", how, ErrUnsupported)
	}
}

// perLayer are the sizes of a layer that differ from the model's, as transformers 5 writes them.
type perLayer struct {
	HeadDim int `json:"head_dim"`
	KVHeads int `json:"num_key_value_heads"`
}

// gemma4Layers reads which layers have a window, by default so long, and what the others have instead.
func (c *config) gemma4Layers(m *model.Model, window int) {
	m.Window, m.LocalTheta, m.Global.HeadDim = window, 1e4, 512
	c.get("sliding_window", &m.Window)
	c.get("global_head_dim", &m.Global.HeadDim)
	c.get("attention_k_eq_v", &m.Global.KeysAsValues)
	kv := 0
	if c.get("num_global_key_value_heads", &kv); m.Global.KeysAsValues { // else transformers does not look at it
		m.Global.KVHeads = kv
	}
	types := c.layerTypes(m)
	if types == nil {
		types = everyOther(m.Layers, 6)
	}
	if n := len(types); n > 0 {
		types[n-1] = false // whatever config.json says
	}
	c.gemma4Sizes(m, types)
	if slide(m, types); m.Window == 0 { // all layers are alike
		m.HeadDim, m.KVHeads = cmp.Or(m.Global.HeadDim, m.HeadDim), cmp.Or(m.Global.KVHeads, m.KVHeads)
	}
	if m.Global.HeadDim == m.HeadDim {
		m.Global.HeadDim = 0
	}
	if m.Global.KVHeads == m.KVHeads {
		m.Global.KVHeads = 0
	}
}

// gemma4Sizes reads per_layer_config, which replaces the keys for layers without a window.
func (c *config) gemma4Sizes(m *model.Model, sliding []bool) {
	var sizes map[int]perLayer
	if !c.get("per_layer_config", &sizes) {
		return
	}
	global := perLayer{m.HeadDim, m.KVHeads}
	if l := slices.Index(sliding, false); l >= 0 {
		global = perLayer{cmp.Or(sizes[l].HeadDim, m.HeadDim), cmp.Or(sizes[l].KVHeads, m.KVHeads)}
	}
	for l, s := range sliding {
		want := global
		if s {
			want = perLayer{m.HeadDim, m.KVHeads}
		}
		if got := (perLayer{cmp.Or(sizes[l].HeadDim, m.HeadDim), cmp.Or(sizes[l].KVHeads, m.KVHeads)}); got != want {
			c.fail("per_layer_config: layer %d has heads of %d and %d for keys, others of its kind %d and %d: %w", l, got.HeadDim, got.KVHeads, want.HeadDim, want.KVHeads, ErrUnsupported)
		}
	}
	m.Global.HeadDim, m.Global.KVHeads = global.HeadDim, global.KVHeads
}

// gemma4Rope reads rotary positions by type of layer.
func (c *config) gemma4Rope(m *model.Model) {
	m.RopeTheta, m.RopeScaling = 1e6, &model.RopeScaling{Type: "proportional", Factor: 1, Share: 0.25}
	if v := c.raw["rope_parameters"]; len(v) > 0 && string(v) != "null" {
		m.RopeScaling = rotary{byLayer: true, nested: true, proportional: true}.scaling(c, m)
	}
}

func writeGemma4Rope(m *model.Model, kv map[string]any) {
	full := map[string]any{"rope_type": "default"}
	maps.Copy(full, scalingConfig(m))
	full["rope_theta"] = m.RopeTheta
	kv["rope_parameters"] = map[string]any{"full_attention": full,
		"sliding_attention": map[string]any{"rope_type": "default", "rope_theta": cmp.Or(m.LocalTheta, m.RopeTheta)}}
}

func writeGemma4Layers(m *model.Model, kv map[string]any) {
	last := m.Layers - 1
	add(kv, map[string]any{"layer_types": layerTypes(m), "global_head_dim": model.HeadDimOf(m, last), "attention_k_eq_v": model.KeysAreValues(m, last)})
	if model.KeysAreValues(m, last) {
		kv["num_global_key_value_heads"] = model.KVHeadsOf(m, last)
	}
	if m.Window > 0 {
		kv["sliding_window"] = m.Window
	}
}
