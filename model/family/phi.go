package family

import "github.com/athanor-llm/athanor/model"

// phi is Phi-1.5 (2309.05463) and Phi-2: LayerNorm, biases, rotary positions of a part of each head, attention and feed-forward
// side by side with one norm for both, no gate.
var phi = family{
	Family:     model.Family{Name: "phi", LayerNorm: true, Ungated: true, OneNorm: true, HeadBias: true, Tensors: phiNames()},
	class:      "PhiForCausalLM",
	classifier: "PhiForSequenceClassification",
	fixed:      model.Model{QKVBias: true, OutBias: true, MLPBias: true, Parallel: true},
	table: changed(without(llamaTable, "rms_norm_eps"),
		row{key: "vocab_size", field: vocab, def: 51200},
		row{key: "num_hidden_layers", field: layers, def: 24},
		row{key: "hidden_size", field: width, def: 2048},
		row{key: "intermediate_size", field: feedForward, def: 8192},
		activated("hidden_act", "gelu_new"),
		row{key: "layer_norm_eps", field: normEps, def: 1e-5},
		row{key: "qk_layernorm", only: false},
		share("partial_rotary_factor", 0.5),
		rope(rotary{partial: true}),
	),
	ignored: []string{"rms_norm_eps"},
	typical: "phi-1.5",
	published: map[string]string{
		"phi-1.5": `{}`,
		"phi-2":   `{"num_hidden_layers": 32, "hidden_size": 2560, "intermediate_size": 10240, "partial_rotary_factor": 0.4}`,
	},
}

func phiNames() model.TensorNames {
	n := llamaNames
	n.FinalNorm, n.AttnOut, n.Up, n.Down = "model.final_layernorm", "self_attn.dense", "mlp.fc1", "mlp.fc2"
	return n
}
