package family

import (
	"slices"

	"github.com/athanor-llm/athanor/model"
)

// fullAttention is layer_types where all layers are alike: with full attention or, if the family has windows, with these.
var fullAttention = row{key: "layer_types", read: func(c *config, m *model.Model) {
	var types []string
	c.get("layer_types", &types)
	for i, t := range types {
		if t != types[0] || t != "full_attention" && t != "sliding_attention" {
			c.fail("layer_types: layer %d is %q: %w: all layers must be of the same type", i, t, ErrUnsupported)
		}
	}
}}

// qwenWindows are Qwen's keys for layers that have a window: those in layer_types or, without that key, the last ones.
var qwenWindows = row{key: "use_sliding_window", read: func(c *config, m *model.Model) { c.qwenWindows(m, 28) }, write: writeWindows}

// qwenWindows reads which layers have a window. full is the number of layers without one if max_window_layers is missing.
func (c *config) qwenWindows(m *model.Model, full int) {
	use, size := false, c.sizeOr("sliding_window", 4096)
	c.get("use_sliding_window", &use)
	c.get("max_window_layers", &full)
	types := c.layerTypes(m)
	if !use {
		if slices.Contains(types, true) {
			c.fail("layer_types has sliding_attention, but use_sliding_window is false")
		}
		return
	}
	m.Window = size
	if types == nil {
		for l := range min(m.Layers, model.MaxLayers) {
			types = append(types, l >= full)
		}
	}
	slide(m, types)
}

// writeWindows adds Qwen's keys for windows.
func writeWindows(m *model.Model, kv map[string]any) {
	kv["use_sliding_window"] = m.Window > 0
	if m.Window > 0 {
		add(kv, map[string]any{"sliding_window": m.Window, "layer_types": layerTypes(m)})
	}
}

// layerTypes reads which layers have a window; nil if config.json does not say.
func (c *config) layerTypes(m *model.Model) (sliding []bool) {
	var types []string
	if !c.get("layer_types", &types) {
		return nil
	}
	if len(types) != m.Layers {
		c.fail("layer_types has %d entries for %d layers", len(types), m.Layers)
	}
	for i, t := range types {
		if t != "full_attention" && t != "sliding_attention" {
			c.fail("layer_types: layer %d is %q: %w", i, t, ErrUnsupported)
		}
		sliding = append(sliding, t == "sliding_attention")
	}
	return sliding
}

// layerTypes returns the value of layer_types.
func layerTypes(m *model.Model) (types []string) {
	for l := range m.Layers {
		t := "full_attention"
		if m.WindowOf(l) > 0 {
			t = "sliding_attention"
		}
		types = append(types, t)
	}
	return types
}

// sizeOr reads a size whose default differs from null, which is none.
func (c *config) sizeOr(key string, def int) (size int) {
	if _, ok := c.raw[key]; !ok {
		size = def
	}
	c.get(key, &size)
	return size
}

// everyOther returns which layers have a window: all but those whose number, from 1, is a multiple of every.
func everyOther(layers, every int) (sliding []bool) {
	for l := range min(layers, model.MaxLayers) {
		sliding = append(sliding, every < 1 || (l+1)%every != 0)
	}
	return sliding
}

// slide sets which layers have the window, as the shortest pattern.
func slide(m *model.Model, layers []bool) {
	switch {
	case m.Window == 0 || !slices.Contains(layers, true):
		m.Window, m.LocalTheta = 0, 0
		return
	case !slices.Contains(layers, false):
		return
	}
	m.Sliding = slices.Clip(layers[:period(layers)])
}

// needWindow rejects layers with a window of unknown size.
func (c *config) needWindow(m *model.Model, sliding []bool) {
	if slices.Contains(sliding, true) && m.Window == 0 {
		c.fail("sliding_window is missing, but layers have sliding_attention")
	}
}

// period returns the least n such that a list repeats its first n elements (Knuth, Morris and Pratt: the length
// without the longest border).
func period(list []bool) int {
	borders, k := make([]int, len(list)), 0
	for i := 1; i < len(list); i++ {
		for k > 0 && list[i] != list[k] {
			k = borders[k-1]
		}
		if list[i] == list[k] {
			k++
		}
		borders[i] = k
	}
	return len(list) - k
}
