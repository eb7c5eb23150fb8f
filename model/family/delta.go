package family

import (
	"slices"

	"github.com/athanor-llm/athanor/model"
)

// What families have in common in most of whose layers attention is linear (gated delta nets): Qwen3-Next, Qwen3.5 and later ones.

// deltaNames are the names where one matrix makes queries, keys, values and gates, and one the rest; splitNames those where each
// has its own.
func deltaNames(n model.TensorNames) model.TensorNames {
	n.DeltaQKV, n.DeltaB, n.DeltaConv = "linear_attn.in_proj_qkvz", "linear_attn.in_proj_ba", "linear_attn.conv1d"
	n.DeltaRate, n.DeltaBias, n.DeltaNorm, n.DeltaOut = "linear_attn.A_log", "linear_attn.dt_bias", "linear_attn.norm", "linear_attn.out_proj"
	return n
}

func splitNames(n model.TensorNames) model.TensorNames {
	n = deltaNames(n)
	n.DeltaQKV, n.DeltaZ, n.DeltaB, n.DeltaA = "linear_attn.in_proj_qkv", "linear_attn.in_proj_z", "linear_attn.in_proj_b", "linear_attn.in_proj_a"
	return n
}

// deltaFixed is what all models of these families have.
var deltaFixed = model.Model{QKNorm: model.QKNormHeads, UnitOffset: true, OutGate: true}

// deltaTable has the keys that all of them have.
var deltaTable = changed(llamaTable,
	row{key: "num_attention_heads", field: heads, def: 16},
	row{key: "head_dim", field: headDim, def: 256},
	row{key: "max_position_embeddings", field: maxPositions, def: 32768},
	attentionBias,
	row{key: "linear_num_value_heads", field: func(m *model.Model) any { return &m.Delta.Heads }, def: 32},
	row{key: "linear_num_key_heads", field: func(m *model.Model) any { return &m.Delta.Keys }, def: 16},
	row{key: "linear_key_head_dim", field: func(m *model.Model) any { return &m.Delta.KeyDim }, def: 128},
	row{key: "linear_value_head_dim", field: func(m *model.Model) any { return &m.Delta.ValueDim }, def: 128},
	row{key: "linear_conv_kernel_dim", field: func(m *model.Model) any { return &m.Delta.Taps }, def: 4},
	row{key: "attn_output_gate", only: true},
	row{key: "output_gate_type", only: "swish"},
	row{key: "layer_types", read: (*config).deltaLayers, write: writeDeltaLayers, own: true},
	share("partial_rotary_factor", 0.25),
	rope(rotary{partial: true, mrope: true}),
)

// deltaIgnored are keys of published files that nothing reads: of tokens predicted ahead, whose weights are carried, and in which type
// other software holds states.
var deltaIgnored = []string{"mtp_num_hidden_layers", "mtp_use_dedicated_embeddings", "mamba_ssm_dtype", "full_attention_interval"}

// deltaLayers reads which layers have linear attention.
func (c *config) deltaLayers(m *model.Model) {
	every := 4
	c.get("full_attention_interval", &every)
	var types []string
	if !c.get("layer_types", &types) {
		m.Delta.Layers = everyOther(m.Layers, every)
	}
	if types != nil && len(types) != m.Layers {
		c.fail("layer_types has %d entries for %d layers", len(types), m.Layers)
	}
	for i, t := range types {
		if t != "full_attention" && t != "linear_attention" {
			c.fail("layer_types: layer %d is %q: %w", i, t, ErrUnsupported)
		}
		m.Delta.Layers = append(m.Delta.Layers, t == "linear_attention")
	}
	m.Delta.Layers = slices.Clip(m.Delta.Layers[:period(m.Delta.Layers)])
}

func writeDeltaLayers(m *model.Model, kv map[string]any) {
	var types []string
	for l := range m.Layers {
		t := "full_attention"
		if m.Delta.HasLayer(l) {
			t = "linear_attention"
		}
		types = append(types, t)
	}
	kv["layer_types"] = types
}
