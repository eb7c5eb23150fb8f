package family

import (
	"slices"

	"github.com/athanor-llm/athanor/model"
)

// graniteHybrid is Granite 4.0-H: scans of Mamba2 in most layers, attention without positions in the others, and Granite's constant
// factors.
var graniteHybrid = family{
	Family: model.Family{Name: "granitemoehybrid", FusedGate: true, MayMix: true, Tensors: graniteHybridNames()},
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
		row{key: "num_local_experts", read: readGraniteExperts, write: writeGraniteExperts, own: true},
		routerLoss,
		row{key: "layer_types", read: mambaLayers, write: writeMambaLayers, own: true},
		row{key: "position_embedding_type", read: someTurned, write: writeSomeTurned},
		rope(rotary{}),
	),
	// What only models with experts have, and in what chunks others scan.
	ignored: []string{"intermediate_size", "num_experts_per_tok", "mamba_chunk_size", "init_method", "normalization_function"},
	typical: "granite-4.0-h-micro",
	published: map[string]string{
		"granite-4.0-h-micro": `{"num_hidden_layers": 40, "hidden_size": 2048, "num_key_value_heads": 8, "shared_intermediate_size": 8192, "num_local_experts": 0,
			"vocab_size": 100352, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "tie_word_embeddings": true,
			"embedding_multiplier": 12, "residual_multiplier": 0.22, "attention_multiplier": 0.015625, "logits_scaling": 8,
			"mamba_n_heads": 64, "mamba_d_state": 128, "layer_types": ` + graniteLayers + `}`,
		"granite-4.0-h-tiny": `{"num_hidden_layers": 40, "hidden_size": 1536, "num_attention_heads": 12, "num_key_value_heads": 4, "intermediate_size": 512, "shared_intermediate_size": 1024,
			"num_local_experts": 64, "num_experts_per_tok": 6, "vocab_size": 100352, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "tie_word_embeddings": true,
			"embedding_multiplier": 12, "residual_multiplier": 0.22, "attention_multiplier": 0.0078125, "logits_scaling": 6,
			"mamba_n_heads": 48, "mamba_d_state": 128, "layer_types": ` + graniteLayers + `}`,
		"granite-4.0-h-small": `{"num_hidden_layers": 40, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 768, "shared_intermediate_size": 1536,
			"num_local_experts": 72, "num_experts_per_tok": 10, "vocab_size": 100352, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "tie_word_embeddings": true,
			"embedding_multiplier": 12, "residual_multiplier": 0.22, "attention_multiplier": 0.0078125, "logits_scaling": 16,
			"mamba_n_heads": 128, "mamba_d_state": 128, "layer_types": ` + graniteLayers + `}`,
	},
}

// graniteLayers are those of the model with 40: every tenth has attention.
const graniteLayers = `["mamba", "mamba", "mamba", "mamba", "mamba", "attention", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba",
	"attention", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "attention", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba",
	"mamba", "mamba", "mamba", "attention", "mamba", "mamba", "mamba", "mamba"]`

func graniteHybridNames() model.TensorNames {
	n := mambaNames(graniteMoENames(), "mamba.")
	n.Gate, n.Up, n.Down = "shared_mlp.input_linear", "", "shared_mlp.output_linear"
	n.SharedGate, n.SharedDown = n.Gate, n.Down
	return n
}

// readGraniteExperts reads the experts beside the feed-forward, if there are any: that is then Shared.
func readGraniteExperts(c *config, m *model.Model) {
	n, active, width := 8, 2, 11008
	c.get("num_local_experts", &n)
	c.get("num_experts_per_tok", &active)
	if c.get("intermediate_size", &width); n != 0 {
		m.Experts, m.Active, m.Shared, m.FeedForward, m.NormedRoute = n, active, m.FeedForward, width, true
	}
}

func writeGraniteExperts(m *model.Model, kv map[string]any) {
	if kv["num_local_experts"] = m.Experts; m.Experts > 0 {
		add(kv, map[string]any{"num_experts_per_tok": m.Active, "shared_intermediate_size": m.Shared, "intermediate_size": m.FeedForward})
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
