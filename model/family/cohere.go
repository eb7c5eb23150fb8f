package family

import (
	"cmp"
	"math"

	"github.com/athanor-llm/athanor/model"
)

// cohere is Cohere's Command R and Aya, cohere2 Command R7B and Command A: LayerNorm without biases, attention and feed-forward side by
// side with one norm for both, columns that are rotated together side by side, logits that are scaled. Cohere2 has windows in three of
// four layers; the others have no positions.
var (
	cohere = family{
		Family: model.Family{Name: "cohere", LayerNorm: true, Unbiased: true, OneNorm: true, Paired: true, Tensors: llamaNames},
		class:  "CohereForCausalLM",
		fixed:  model.Model{Parallel: true},
		table: changed(cohereTable,
			row{key: "use_qk_norm", only: false, own: true},
			fullAttention,
			rope(rotary{}),
			logitScale,
		),
		ignored:  []string{"model_max_length"},
		constant: map[string]any{"pad_token_id": nil},
		typical:  "aya-expanse-8b",
		published: map[string]string{
			"command-r-35b": `{"max_position_embeddings": 131072, "rope_theta": 8000000}`,
			"aya-expanse-8b": `{"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
				"rope_theta": 10000, "logit_scale": 0.125}`,
		},
	}
	cohere2 = family{
		Family: model.Family{Name: "cohere2", LayerNorm: true, Unbiased: true, OneNorm: true, Paired: true, Tensors: llamaNames},
		class:  "Cohere2ForCausalLM",
		fixed:  model.Model{Parallel: true},
		table: changed(cohereTable,
			row{key: "head_dim", read: evenHeads, write: func(m *model.Model, kv map[string]any) { kv["head_dim"] = m.HeadDim }},
			row{key: "layer_types", read: cohereWindows, write: writeExaoneWindows},
			rope(rotary{}),
			logitScale,
		),
		ignored:  []string{"layer_switch", "order_of_interleaved_layers", "position_embedding_type", "rotary_pct", "use_embedding_sharing", "use_gated_activation", "use_parallel_block", "use_parallel_embedding", "model_max_length"},
		constant: map[string]any{"pad_token_id": nil},
		typical:  "command-r7b",
		published: map[string]string{
			"command-r7b": `{"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
				"max_position_embeddings": 132096, "rope_theta": 50000, "logit_scale": 0.25}`,
			"command-a-111b": `{"num_hidden_layers": 64, "hidden_size": 12288, "num_attention_heads": 96, "num_key_value_heads": 8, "intermediate_size": 36864,
				"max_position_embeddings": 131072, "rope_theta": 50000, "logit_scale": 0.25}`,
		},
	}
)

// cohereTable has the keys that both have.
var cohereTable = changed(without(llamaTable, "rms_norm_eps"),
	row{key: "vocab_size", field: vocab, def: 256000},
	row{key: "num_hidden_layers", field: layers, def: 40},
	row{key: "hidden_size", field: width, def: 8192},
	row{key: "num_attention_heads", field: heads, def: 64},
	row{key: "intermediate_size", field: feedForward, def: 22528},
	row{key: "max_position_embeddings", field: maxPositions, def: 8192},
	row{key: "layer_norm_eps", field: normEps, def: 1e-5},
	row{key: "rope_theta", field: ropeTheta, def: 500000},
	row{key: "tie_word_embeddings", field: tied, def: true},
	attentionBias,
)

// logitScale is what logits are multiplied by. It follows the sizes of heads.
var logitScale = row{key: "logit_scale", own: true, read: func(c *config, m *model.Model) {
	scale := 0.0625
	c.get("logit_scale", &scale)
	switch {
	case !(scale > 1e-6 && scale < 1e6):
		c.fail("logit_scale is %v; hint: use a positive number, usually 0.0625", scale)
	case scale != 1:
		m.Multipliers = model.Multipliers{Embedding: 1, Residual: 1, Attention: 1 / math.Sqrt(float64(m.HeadDim)), Logits: 1 / scale}
	}
}, write: func(m *model.Model, kv map[string]any) {
	kv["logit_scale"] = asDecimal(1 / cmp.Or(m.Multipliers.Logits, 1))
}}

// evenHeads reads the size of heads, which the other sizes determine.
func evenHeads(c *config, m *model.Model) {
	m.HeadDim = perHead(m)
	size := m.HeadDim
	if c.get("head_dim", &size); size != m.HeadDim {
		c.fail("head_dim is %d: %w: only %d, the width divided by the heads, is supported", size, ErrUnsupported, m.HeadDim)
	}
}

// cohereWindows reads which layers have a window; the others have no positions.
func cohereWindows(c *config, m *model.Model) {
	if c.exaoneWindows(m); m.Window == 0 {
		m.NoRotary = []bool{true}
	}
}
