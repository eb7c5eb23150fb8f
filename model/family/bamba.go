package family

import (
	"slices"

	"github.com/athanor-llm/athanor/model"
)

// bamba is Bamba: Llama with scans of Mamba2 instead of attention in most layers, and rotary positions of half of each head in the others.
var bamba = family{
	Family: model.Family{Name: "bamba", Tensors: falconNames()},
	class:  "BambaForCausalLM",
	table: changed(mambaTable,
		row{key: "vocab_size", field: vocab, def: 128000},
		row{key: "num_key_value_heads", field: kvHeads, def: 8, null: asHeads},
		row{key: "intermediate_size", field: feedForward, def: 14336},
		row{key: "max_position_embeddings", field: maxPositions, def: 262144},
		row{key: "hidden_act", field: activation, def: "silu", only: []string{"silu"}}, // that of convolutions, too
		row{key: "rms_norm_eps", field: normEps, def: 1e-5},
		attentionBias,
		row{key: "mlp_bias", field: mlpBias, def: false},
		row{key: "attn_layer_indices", read: bambaLayers, write: writeBambaLayers, own: true},
		share("partial_rotary_factor", 0.5),
		rope(rotary{partial: true}),
		row{key: "z_loss_coefficient", read: bambaChecks},
	),
	ignored:  []string{"mamba_chunk_size", "num_logits_to_keep"},
	constant: map[string]any{"pad_token_id": nil},
	typical:  "bamba-9b",
	published: map[string]string{
		"bamba-9b": `{"vocab_size": 128256, "mamba_d_state": 128, "attn_layer_indices": [9, 18, 27]}`,
	},
}

// bambaLayers reads which layers have attention instead of scans.
func bambaLayers(c *config, m *model.Model) {
	var attention []int
	c.get("attn_layer_indices", &attention)
	for l := range min(m.Layers, model.MaxLayers) {
		m.Mamba.Layers = append(m.Mamba.Layers, !slices.Contains(attention, l))
	}
	if m.Mamba.Layers = slices.Clip(m.Mamba.Layers[:period(m.Mamba.Layers)]); !slices.Contains(m.Mamba.Layers, true) {
		c.fail("attn_layer_indices: no layer has a scan: %w; hint: check that this is the file that was published", ErrUnsupported)
	}
}

func writeBambaLayers(m *model.Model, kv map[string]any) {
	attention := []int{}
	for l := range m.Layers {
		if !m.Mamba.HasLayer(l) {
			attention = append(attention, l)
		}
	}
	kv["attn_layer_indices"] = attention
}

// bambaChecks refuses what transformers computes otherwise, or not at all here: it rotates half of each head whatever the file says.
func bambaChecks(c *config, m *model.Model) {
	var z float64
	if c.get("z_loss_coefficient", &z); z != 0 {
		c.fail("z_loss_coefficient is %v: %w: only 0 is supported", z, ErrUnsupported)
	}
	if m.RotaryPct != 0.5 {
		c.fail("partial_rotary_factor is %v: %w: only 0.5 is supported", m.RotaryPct, ErrUnsupported)
	}
}
