package model

import "fmt"

// Conv is what layers have that mix tokens by a convolution alone, as in LFM2: of what one product makes, the first part is
// multiplied by the third, convolved over the last few tokens, and multiplied by the second. The zero value: no layer has one.
type Conv struct {
	Taps   int    // tokens that the convolution mixes, the last one included
	Layers []bool // which layers these are, repeated for all layers
}

// HasLayer reports whether a layer has a convolution instead of attention.
func (c *Conv) HasLayer(layer int) bool { return len(c.Layers) > 0 && c.Layers[layer%len(c.Layers)] }

// Some reports whether any layer has.
func (c *Conv) Some() bool { return len(c.Layers) > 0 }

// check returns what is wrong with the sizes.
func (c *Conv) check(f *Family) error {
	switch {
	case !c.Some():
		return nil
	case f.Tensors.Conv == "":
		return fmt.Errorf("layers of convolutions are not supported for %s; hint: use a family that has them, such as lfm2", f)
	case c.Taps < 2 || c.Taps > MostTaps:
		return fmt.Errorf("conv_L_cache is %d; hint: it must be from 2 to %d", c.Taps, MostTaps)
	}
	return nil
}

// Remembers reports whether layers hand states from token to token, in another form than keys and values: those cannot go back, and
// no token can be computed before them.
func Remembers(m *Model) bool { return m.Delta.Some() || m.Conv.Some() || m.Mamba.Some() }

// HasAttention reports whether a layer mixes tokens by attention.
func HasAttention(m *Model, layer int) bool {
	return HasMixer(m, layer) && !m.Delta.HasLayer(layer) && !m.Conv.HasLayer(layer) && (!m.Mamba.HasLayer(layer) || m.Mamba.Beside)
}

// conv adds the parameters of a convolution, in the order in which a layer reads them.
func (b *paramList) conv(n TensorNames, residual float64) {
	m := b.m
	b.linear(n.ConvIn, m.Width, 3*m.Width, false, m.InitStd)
	b.taps(n.Conv, m.Width, m.Conv.Taps)
	b.linear(n.ConvOut, m.Width, m.Width, false, residual)
}

// taps adds the weights of a convolution of each column by itself.
func (b *paramList) taps(name string, cols, taps int) {
	b.matrix(name+".weight", cols, taps, b.m.InitStd)
	b.list[len(b.list)-1].Taps = true
}
