package family

import "github.com/athanor-llm/athanor/model"

// gemma2 is Gemma 2 (2408.00118): Gemma with norms before and after attention and feed-forward, windows in every other layer, and
// soft caps on scores and logits.
var gemma2 = family{
	Family:     model.Family{Name: "gemma2", Tensors: sandwichNames()},
	class:      "Gemma2ForCausalLM",
	classifier: "Gemma2ForSequenceClassification",
	fixed:      model.Model{Norms: model.SandwichNorm, UnitOffset: true, ScaledEmbed: true},
	table: changed(without(llamaTable, "hidden_act"),
		row{key: "vocab_size", field: vocab, def: 256000},
		row{key: "num_hidden_layers", field: layers, def: 26},
		row{key: "hidden_size", field: width, def: 2304},
		row{key: "num_attention_heads", field: heads, def: 8},
		row{key: "num_key_value_heads", field: kvHeads, def: 4},
		row{key: "head_dim", field: headDim, def: 256},
		row{key: "intermediate_size", field: feedForward, def: 9216},
		row{key: "max_position_embeddings", field: maxPositions, def: 8192},
		activated("hidden_activation", "gelu_pytorch_tanh"),
		row{key: "tie_word_embeddings", field: tied, def: true},
		row{key: "query_pre_attn_scalar", field: queryScalar, def: 256},
		attentionBias,
		softCap("attn_logit_softcapping", scoreCap, 50),
		softCap("final_logit_softcapping", logitCap, 30),
		row{key: "use_bidirectional_attention", only: false},
		row{key: "layer_types", read: func(c *config, m *model.Model) { c.alternate(m, 4096) }, write: writeOSSWindows},
		rope(rotary{}),
	),
	ignored: []string{"hidden_act"},
	typical: "gemma-2-2b",
	published: map[string]string{
		"gemma-2-2b": `{}`,
		"gemma-2-9b": `{"num_hidden_layers": 42, "hidden_size": 3584, "num_attention_heads": 16, "num_key_value_heads": 8, "intermediate_size": 14336}`,
		"gemma-2-27b": `{"num_hidden_layers": 46, "hidden_size": 4608, "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128,
			"intermediate_size": 36864, "query_pre_attn_scalar": 144}`,
	},
}

// softCap is the row of a soft cap; null: there is none.
func softCap(key string, f field, def float64) row {
	r := decimal(key, f, def)
	r.null = 0.0
	number := r.write
	r.write = func(m *model.Model, kv map[string]any) {
		if number(m, kv); *f(m).(*float64) == 0 {
			kv[key] = nil
		}
	}
	return r
}
