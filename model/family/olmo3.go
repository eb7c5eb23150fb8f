package family

import (
	"maps"

	"github.com/athanor-llm/athanor/model"
)

// olmo3 is OLMo 3 (2512.13961): OLMo 2 with windows in most layers, whose rotary positions are not scaled.
var olmo3 = family{
	Family:     model.Family{Name: "olmo3", Tensors: sandwichNames()},
	class:      "Olmo3ForCausalLM",
	classifier: "Olmo3ForSequenceClassification",
	fixed:      model.Model{QKNorm: model.QKNormWhole, Norms: model.PostNorm},
	table: changed(olmoTable,
		row{key: "rope_theta", field: ropeTheta, def: olmo3Theta},
		row{key: "layer_types", read: (*config).olmo3Windows, write: writeOlmo3Windows},
		row{key: "rope_scaling", read: (*config).olmo3Rope, write: writeOlmo3Rope},
	),
	constant: map[string]any{"pad_token_id": nil},
	typical:  "olmo-3-7b",
	published: map[string]string{
		"olmo-3-7b": `{"vocab_size": 100278, "max_position_embeddings": 65536, "rms_norm_eps": 1e-6,
			"rope_scaling": {"rope_type": "yarn", "factor": 8, "original_max_position_embeddings": 8192}}`,
	},
}

// olmo3Theta is the base of rotary positions where config.json has none. Some versions of transformers use it
// for layers with a window even if rope_theta differs.
const olmo3Theta = 5e5

// olmo3Windows reads which layers have a window.
func (c *config) olmo3Windows(m *model.Model) {
	m.Window = c.sizeOr("sliding_window", 4096)
	types := c.layerTypes(m)
	if types == nil {
		types = everyOther(m.Layers, 4)
	}
	c.needWindow(m, types)
	slide(m, types)
}

func writeOlmo3Windows(m *model.Model, kv map[string]any) {
	kv["layer_types"] = layerTypes(m)
	if m.Window > 0 { // null is not read even where no layer has one
		kv["sliding_window"] = m.Window
	}
}

// olmo3Rope reads rotary positions by type of layer.
func (c *config) olmo3Rope(m *model.Model) {
	m.RopeScaling = rotary{byLayer: true, nested: true}.scaling(c, m)
	switch told := m.LocalTheta > 0; {
	case m.Window == 0:
	case !told && m.RopeTheta != olmo3Theta:
		c.fail("rope_theta is %v: %w: it does not say which base the layers with a window have; hint: give rope_parameters with full_attention and sliding_attention", m.RopeTheta, ErrUnsupported)
	case !told && m.RopeScaling != nil:
		m.LocalTheta = olmo3Theta
	case m.LocalTheta == m.RopeTheta && m.RopeScaling == nil:
		m.LocalTheta = 0
	}
}

func writeOlmo3Rope(m *model.Model, kv map[string]any) {
	scaling, local := scalingConfig(m), m.LocalTheta
	if local == 0 {
		local = m.RopeTheta
	}
	switch {
	case m.RopeTheta != olmo3Theta || local != olmo3Theta:
		delete(kv, "rope_theta")
		full := map[string]any{"rope_type": "default"}
		maps.Copy(full, scaling)
		full["rope_theta"] = m.RopeTheta
		kv["rope_parameters"] = map[string]any{"full_attention": full, "sliding_attention": map[string]any{"rope_type": "default", "rope_theta": local}}
	case scaling != nil:
		kv["rope_scaling"] = scaling
	}
}
