package family

import (
	"encoding/json"
	"strconv"
	"strings"

	"github.com/athanor-llm/athanor/model"
)

// gptOSS is gpt-oss (2508.10925): a mixture of experts with biases everywhere, gates and ups that are bounded, windows in every
// other layer, and attention that may look at nothing. Defaults are those of the 120b model, as in transformers.
var gptOSS = family{
	Family:     model.Family{Name: "gpt_oss", Mixture: true, FusedMix: true, Tensors: gptOSSNames()},
	class:      "GptOssForCausalLM",
	classifier: "GptOssForSequenceClassification",
	fixed:      model.Model{MLPBias: true, Sinks: true, NormedRoute: true},
	table: changed(llamaTable,
		row{key: "vocab_size", field: vocab, def: 201088},
		row{key: "num_hidden_layers", field: layers, def: 36},
		row{key: "hidden_size", field: width, def: 2880},
		row{key: "num_attention_heads", field: heads, def: 64},
		row{key: "num_key_value_heads", field: kvHeads, def: 8, null: asHeads},
		row{key: "head_dim", field: headDim, def: 64, null: perHead},
		row{key: "intermediate_size", field: feedForward, def: 2880},
		row{key: "max_position_embeddings", field: maxPositions, def: 131072},
		row{key: "hidden_act", field: activation, def: "silu", only: []string{"silu"}}, // what the bounds are of
		row{key: "rms_norm_eps", field: normEps, def: 1e-5},
		row{key: "rope_theta", field: ropeTheta, def: 150000},
		row{key: "attention_bias", field: qkvBias, def: true, also: []field{outBias}},
		row{key: "num_local_experts", field: experts, def: 128},
		row{key: "num_experts_per_tok", field: active, def: 4},
		row{key: "experts_per_token", read: (*config).sameActive},
		decimal("swiglu_limit", gateLimit, 7),
		decimal("swiglu_alpha", gateAlpha, 1.702),
		row{key: "layer_types", read: (*config).ossWindows, write: writeOSSWindows},
		row{key: "quantization_config", read: (*config).mxfp4, own: true},
		routerLoss,
		rope(rotary{explicit: true}),
	),
	ignored:  []string{"initial_context_length"}, // of the program that trained the published models; rope_scaling has it too
	constant: map[string]any{"pad_token_id": nil},
	typical:  "gpt-oss-20b",
	published: map[string]string{
		"gpt-oss-20b":  `{"num_hidden_layers": 24, "num_local_experts": 32, "rope_scaling": ` + ossYarn + `}`,
		"gpt-oss-120b": `{"rope_scaling": ` + ossYarn + `}`,
	},
}

const ossYarn = `{"rope_type": "yarn", "factor": 32, "original_max_position_embeddings": 4096, "truncate": false}`

func gptOSSNames() model.TensorNames {
	n := llamaNames
	n.Router, n.Gate, n.Up, n.Down = "mlp.router", "mlp.experts.%d", "", "" // all experts are one tensor
	return n
}

// sameActive rejects another number under the second name of num_experts_per_tok.
func (c *config) sameActive(m *model.Model) {
	other := m.Active
	if c.get("experts_per_token", &other); other != m.Active {
		c.fail("num_experts_per_tok is %d and experts_per_token %d, which are two names of the same number; hint: give both the number of experts that each token goes through", m.Active, other)
	}
}

// ossWindows reads which layers have a window.
func (c *config) ossWindows(m *model.Model) {
	c.alternate(m, 128)
}

// alternate reads which layers have a window: if config.json does not say, every other one, from the first on.
func (c *config) alternate(m *model.Model, size int) {
	m.Window = c.sizeOr("sliding_window", size)
	types := c.layerTypes(m)
	if types == nil {
		types = everyOther(m.Layers, 2)
	}
	c.needWindow(m, types)
	slide(m, types)
}

func writeOSSWindows(m *model.Model, kv map[string]any) {
	add(kv, map[string]any{"layer_types": layerTypes(m), "sliding_window": m.Window})
	if m.Window == 0 { // transformers wants a window even where no layer has one
		kv["sliding_window"] = 128
	}
}

// mxfp4 accepts weights in MXFP4, which are dequantised when they are read.
func (c *config) mxfp4(*model.Model) {
	var q struct {
		Method string   `json:"quant_method"`
		Plain  []string `json:"modules_to_not_convert"` // the files show which tensors are in MXFP4
	}
	if c.get("quantization_config", &q) && q.Method != "mxfp4" {
		c.fail("quantization_config: quant_method %q: %w: only mxfp4 is supported", q.Method, ErrUnsupported)
	}
}

// decimal is a key whose number is written with a decimal point. Without one transformers takes it for an integer, and
// refuses it where it wants a float.
func decimal(key string, f field, def float64) row {
	return row{key: key, field: f, def: def, write: func(m *model.Model, kv map[string]any) { kv[key] = asDecimal(*f(m).(*float64)) }}
}

// asDecimal writes a number with a point.
func asDecimal(x float64) json.RawMessage {
	text := strconv.FormatFloat(x, 'f', -1, 64)
	if !strings.Contains(text, ".") {
		text += ".0"
	}
	return json.RawMessage(text)
}
