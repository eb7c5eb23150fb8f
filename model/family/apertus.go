package family

import "github.com/athanor-llm/athanor/model"

// apertus is Apertus (2509.14233): Llama without gates, with an activation that has parameters, and norms of each head's queries and keys.
var apertus = family{
	Family: model.Family{Name: "apertus", Ungated: true, XIELU: true, Tensors: apertusNames()},
	class:  "ApertusForCausalLM",
	fixed:  model.Model{QKNorm: model.QKNormHeads},
	table: changed(llamaTable,
		row{key: "vocab_size", field: vocab, def: 131072},
		row{key: "intermediate_size", field: feedForward, def: 14336},
		row{key: "max_position_embeddings", field: maxPositions, def: 65536},
		row{key: "hidden_act", field: activation, def: "xielu", only: []string{"xielu"}},
		row{key: "rms_norm_eps", field: normEps, def: 1e-5},
		row{key: "rope_theta", field: ropeTheta, def: apertusTheta},
		attentionBias,
		fullAttention,
		row{key: "rope_scaling", read: apertusScaling, write: writeApertusScaling, own: true},
	),
	// Published files say of the norms what is always so.
	ignored:  []string{"mlp_bias", "post_norm", "qk_norm"},
	constant: map[string]any{"pad_token_id": nil},
	typical:  "apertus-8b",
	published: map[string]string{
		"apertus-8b":  `{"num_key_value_heads": 8, "intermediate_size": 21504, ` + apertusRope + `}`,
		"apertus-70b": `{"num_hidden_layers": 80, "hidden_size": 8192, "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 43008, ` + apertusRope + `}`,
	},
}

const apertusRope = `"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192}`

// apertusScaling reads rotary positions, which are scaled unless config.json says that they are not. Without any word on them
// transformers takes a base of its own, too, whatever rope_theta is.
func apertusScaling(c *config, m *model.Model) {
	silent := true
	for _, key := range []string{"rope_scaling", "rope_parameters"} {
		silent = silent && (len(c.raw[key]) == 0 || string(c.raw[key]) == "null")
	}
	m.RopeScaling = rotary{}.scaling(c, m)
	if !silent {
		return
	}
	if m.RopeTheta != apertusTheta {
		c.fail("rope_theta is %v: %w: without rope_parameters only %v is read; hint: give rope_parameters", m.RopeTheta, ErrUnsupported, apertusTheta)
	}
	m.RopeScaling = &model.RopeScaling{Type: "llama3", Factor: 8, LowFreqFactor: 1, HighFreqFactor: 4, OriginalContext: 8192}
}

func writeApertusScaling(m *model.Model, kv map[string]any) {
	rotary{}.write(m, kv)
	if m.RopeScaling == nil {
		delete(kv, "rope_theta")
		kv["rope_parameters"] = map[string]any{"rope_type": "default", "rope_theta": asDecimal(m.RopeTheta)}
	}
}

// apertusTheta is the base of rotary positions.
const apertusTheta = 12e6

func apertusNames() model.TensorNames {
	n := llamaNames
	n.Norm1, n.Norm2, n.XIELU = "attention_layernorm", "feedforward_layernorm", "mlp.act_fn"
	return n
}
