package model

import "fmt"

// Lent is what the last layers have of layers below them instead of making it themselves, as in Gemma 3n and the small models of
// Gemma 4. The zero value: nothing.
type Lent struct {
	// Keys is how many of the last layers have no keys and values of their own: they read those of the last layer below them all
	// that has a window like they, or none like they.
	Keys int
	Wide bool // the feed-forward of these layers is twice as wide
}

// LenderOf returns the layer whose keys and values a layer reads; its own number, if they are its own.
func LenderOf(m *Model, layer int) int {
	first := m.Layers - m.Lent.Keys
	if layer < first {
		return layer
	}
	for l := first - 1; l >= 0; l-- {
		if (m.WindowOf(l) > 0) == (m.WindowOf(layer) > 0) {
			return l
		}
	}
	return layer
}

// Borrows reports whether a layer reads another's keys and values.
func Borrows(m *Model, layer int) bool { return LenderOf(m, layer) != layer }

// Crosses reports whether a layer reads more of what is below it than the residual stream.
func Crosses(m *Model) bool { return m.Lent.Keys > 0 || m.PerLayer > 0 }

// check returns what is wrong with the sizes.
func (t *Lent) check(m *Model) error {
	switch {
	case *t == Lent{}:
		return nil
	case t.Keys < 1 || t.Keys >= m.Layers:
		return fmt.Errorf("num_kv_shared_layers is %d of %d layers; hint: it must be at least 0, and at most as many as leave one layer that makes keys and values", t.Keys, m.Layers)
	case t.Wide && m.Experts > 0:
		return fmt.Errorf("use_double_wide_mlp with experts is not built; hint: use a model that has only one of the two")
	case m.FusedQKV() || m.OutGate || m.Sinks || m.QKVBias || m.QKNorm == QKNormWhole || m.QKNorm == QKNormTurned || m.Latent.Some() || Remembers(m) || m.Shares > 0:
		return fmt.Errorf("layers of %s cannot read the keys and values of others; hint: use a family that has such layers, such as gemma4_text", m.Family)
	}
	for l := m.Layers - t.Keys; l < m.Layers; l++ {
		if !Borrows(m, l) {
			return fmt.Errorf("layer %d reads the keys and values of a layer below with a window like it, or without one like it, and there is none; hint: num_kv_shared_layers must leave a layer of each kind", l)
		}
	}
	return nil
}

// checkPerLayer returns what is wrong with Model.PerLayer.
func checkPerLayer(m *Model) error {
	switch {
	case m.PerLayer == 0:
		return nil
	case m.PerLayer < 0 || m.PerLayer > maxWidth || m.PerLayer*m.Layers > maxWidth:
		return fmt.Errorf("hidden_size_per_layer_input is %d; hint: it must be positive, and times the layers at most %d", m.PerLayer, maxWidth)
	case m.Files.Vocab > 0 && m.Files.Vocab != m.Vocab:
		return fmt.Errorf("the vocabulary of %s cannot grow from %d to %d tokens: each layer has embeddings of its own, and what those of new tokens are is not known; hint: use a tokenizer that has no more tokens than the model", m.Family, m.Files.Vocab, m.Vocab)
	case m.Family.Tensors.PerLayerTable == "" || m.Norms != SandwichNorm || !m.Rotary() || m.Shares > 0:
		return fmt.Errorf("layers of %s have no embeddings of their own; hint: use a family that has them, such as gemma4_text", m.Family)
	}
	return nil
}
