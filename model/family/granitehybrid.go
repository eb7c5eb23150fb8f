package family

import (
	"slices"

	"github.com/athanor-llm/athanor/model"
)

// graniteHybrid is Granite 4.0-H: scans of Mamba2 in most layers, attention without positions in the others, and Granite's constant
// factors.
var graniteHybrid = family{
	Family: model.Family{Name: "granitemoehybrid", FusedGate: true, Tensors: graniteHybridNames()},
	class:  "GraniteMoeHybridForCausalLM",
	table: changed(without(mambaTable, "intermediate_size"),
		row{key: "hidden_act", field: activation, def: "silu", only: []string{"silu"}}, // that of convolutions, too
		attentionBias,
		row{key: "embedding_multiplier", field: embeddingTimes, def: 1},
		row{key: "residual_multiplier", field: residualTimes, def: 1},
		row{key: "attention_multiplier", field: attentionTimes, def: 1},
		row{key: "logits_scaling", field: logitsOver, def: 1},
		row{key: "multipliers", read: (*config).someMultiplier},
		row{key: "shared_intermediate_size", field: feedForward, def: 1024},
		row{key: "num_local_experts", read: noExperts, write: func(_ *model.Model, kv map[string]any) { kv["num_local_experts"] = 0 }},
		row{key: "layer_types", read: mambaLayers, write: writeMambaLayers, own: true},
		row{key: "position_embedding_type", read: someTurned, write: writeSomeTurned},
		rope(rotary{}),
	),
	// What only models with experts read, and in what chunks others scan.
	ignored: []string{"intermediate_size", "num_experts_per_tok", "output_router_logits", "router_aux_loss_coef", "mamba_chunk_size", "init_method", "normalization_function"},
	typical: "granite-4.0-h-micro",
	published: map[string]string{
		"granite-4.0-h-micro": `{"num_hidden_layers": 40, "hidden_size": 2048, "num_key_value_heads": 8, "shared_intermediate_size": 8192, "num_local_experts": 0,
			"vocab_size": 100352, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "tie_word_embeddings": true,
			"embedding_multiplier": 12, "residual_multiplier": 0.22, "attention_multiplier": 0.015625, "logits_scaling": 8,
			"mamba_n_heads": 64, "mamba_d_state": 128, "layer_types": ` + graniteLayers + `}`,
	},
}

// graniteLayers are those of the model with 40: every tenth has attention.
const graniteLayers = `["mamba", "mamba", "mamba", "mamba", "mamba", "attention", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba",
	"attention", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "attention", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba",
	"mamba", "mamba", "mamba", "attention", "mamba", "mamba", "mamba", "mamba"]`

func graniteHybridNames() model.TensorNames {
	n := mambaNames(llamaNames, "mamba.")
	n.Gate, n.Up, n.Down = "shared_mlp.input_linear", "", "shared_mlp.output_linear"
	return n
}

// noExperts refuses what is not built.
func noExperts(c *config, _ *model.Model) {
	n := 8
	if c.get("num_local_experts", &n); n != 0 {
		c.fail("num_local_experts is %d: %w: of Granite 4.0-H only models without experts are supported, such as granite-4.0-h-micro", n, ErrUnsupported)
	}
}

// someTurned reads whether attention has rotary positions.
func someTurned(c *config, m *model.Model) {
	var kind string
	c.get("position_embedding_type", &kind)
	switch kind {
	case "rope":
	case "", "nope":
		m.NoRotary = []bool{true}
	default:
		c.fail("position_embedding_type %q: %w: only rope and nope are supported", kind, ErrUnsupported)
	}
}

func writeSomeTurned(m *model.Model, kv map[string]any) {
	if kv["position_embedding_type"] = nil; m.NoRotary == nil {
		kv["position_embedding_type"] = "rope"
	}
}

// mambaLayers reads which layers have scans.
func mambaLayers(c *config, m *model.Model) {
	var types []string
	if given := c.get("layer_types", &types); !given && !c.get("layers_block_type", &types) {
		types = slices.Repeat([]string{"mamba"}, min(m.Layers, model.MaxLayers))
	}
	if len(types) != min(m.Layers, model.MaxLayers) {
		c.fail("layer_types has %d entries for %d layers", len(types), m.Layers)
	}
	for i, t := range types {
		scans := t == "mamba" || t == "linear_attention"
		if !scans && t != "attention" && t != "full_attention" {
			c.fail("layer_types: layer %d is %q: %w", i, t, ErrUnsupported)
		}
		m.Mamba.Layers = append(m.Mamba.Layers, scans)
	}
	if m.Mamba.Layers = slices.Clip(m.Mamba.Layers[:period(m.Mamba.Layers)]); !slices.Contains(m.Mamba.Layers, true) {
		c.fail("layer_types: no layer is a mamba: %w; hint: check that this is the file that was published", ErrUnsupported)
	}
}

func writeMambaLayers(m *model.Model, kv map[string]any) {
	var types []string
	for l := range m.Layers {
		t := "full_attention"
		if m.Mamba.HasLayer(l) {
			t = "linear_attention"
		}
		types = append(types, t)
	}
	kv["layer_types"] = types
}
