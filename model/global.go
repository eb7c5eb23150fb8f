package model

import "fmt"

// Global is what layers without a window have that differs from those with one, as in Gemma 4. The zero value: nothing.
type Global struct {
	HeadDim, KVHeads int // 0: as in the others
	// KeysAsValues says that there is no weight of values: they are what the weight of keys makes, before norm and positions.
	KeysAsValues bool
}

// of reports whether a layer's attention is Global's.
func (g Global) of(m *Model, layer int) bool { return g != Global{} && m.WindowOf(layer) == 0 }

// HeadDimOf returns the columns of a layer's heads.
func HeadDimOf(m *Model, layer int) int {
	if m.Global.HeadDim > 0 && m.Global.of(m, layer) {
		return m.Global.HeadDim
	}
	return m.HeadDim
}

// KVHeadsOf returns the number of a layer's key and value heads.
func KVHeadsOf(m *Model, layer int) int {
	if m.Global.KVHeads > 0 && m.Global.of(m, layer) {
		return m.Global.KVHeads
	}
	return m.KVHeads
}

// KeysAreValues reports whether a layer has no weight of values, see Global.
func KeysAreValues(m *Model, layer int) bool { return m.Global.KeysAsValues && m.Global.of(m, layer) }

// check returns what is wrong with the sizes.
func (g *Global) check(m *Model) error {
	switch {
	case *g == Global{}:
		return nil
	case g.HeadDim < 0 || g.HeadDim%2 != 0 || m.Heads*g.HeadDim > maxWidth:
		return fmt.Errorf("global_head_dim is %d; hint: it must be even, and times heads at most %d", g.HeadDim, maxWidth)
	case g.KVHeads < 0 || g.KVHeads > 0 && m.Heads%g.KVHeads != 0:
		return fmt.Errorf("%d heads cannot be divided evenly among num_global_key_value_heads %d; hint: heads must be a multiple of it", m.Heads, g.KVHeads)
	case g.KeysAsValues && (m.QKNorm != QKNormHeads || !m.ValueNorm):
		return fmt.Errorf("keys can be values, too, only where the heads of queries, keys and values are normalised; hint: use a family that has such layers, such as gemma4_text")
	case m.FusedQKV() || m.Family.Paired || m.OutGate:
		return fmt.Errorf("layers without a window cannot have heads of their own in %s; hint: use a family that has such layers, such as gemma4_text", m.Family)
	}
	return nil
}
