package family

import "github.com/athanor-llm/athanor/model"

// gemma is Gemma (2403.08295): Llama with gains 1 + weight, scaled embeddings and GeGLU. Published files call the tangent's
// approximation of GELU gelu, as in the first version.
var gemma = family{
	Family:     model.Family{Name: "gemma", Tensors: llamaNames},
	class:      "GemmaForCausalLM",
	classifier: "GemmaForSequenceClassification",
	fixed:      model.Model{UnitOffset: true, ScaledEmbed: true},
	table: changed(llamaTable,
		row{key: "vocab_size", field: vocab, def: 256000},
		row{key: "num_hidden_layers", field: layers, def: 28},
		row{key: "hidden_size", field: width, def: 3072},
		row{key: "num_attention_heads", field: heads, def: 16},
		row{key: "num_key_value_heads", field: kvHeads, def: 16},
		row{key: "head_dim", field: headDim, def: 256},
		row{key: "intermediate_size", field: feedForward, def: 24576},
		row{key: "max_position_embeddings", field: maxPositions, def: 8192},
		row{key: "hidden_act", read: (*config).gemmaActivation, write: func(m *model.Model, kv map[string]any) { kv["hidden_act"] = m.Activation }},
		row{key: "tie_word_embeddings", field: tied, def: true},
		attentionBias,
		row{key: "use_bidirectional_attention", only: false},
		fullAttention,
		rope(rotary{}),
	),
	ignored: []string{"hidden_activation"},
	typical: "gemma-2b",
	published: map[string]string{
		"gemma-2b": `{"num_hidden_layers": 18, "hidden_size": 2048, "num_attention_heads": 8, "num_key_value_heads": 1, "intermediate_size": 16384}`,
		"gemma-7b": `{}`,
	},
}

// gemmaActivation reads the activation, which transformers takes for the approximation where it is called gelu.
func (c *config) gemmaActivation(m *model.Model) {
	named := activated("hidden_act", "gelu_pytorch_tanh")
	named.load(c, m)
	if m.Activation == "gelu" {
		m.Activation = "gelu_pytorch_tanh"
	}
}
