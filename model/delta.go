package model

import "fmt"

// Delta is what layers have whose attention is linear: a gated delta net (2412.06464), as in Qwen3-Next. Each head has a state, a
// matrix that keys read and write; before, a convolution mixes the last few tokens. The zero value: no layer has one.
type Delta struct {
	Heads, Keys      int    // heads of values; of queries and keys, each for as many of the former
	KeyDim, ValueDim int    // columns of a head
	Taps             int    // tokens that the convolution mixes, the last one included
	Layers           []bool // which layers these are, repeated for all layers
}

// Mixed returns the columns that the convolution mixes: queries, keys and values.
func (d *Delta) Mixed() int { return 2*d.Keys*d.KeyDim + d.Values() }

// Values returns the columns of values, and of what the layer computes.
func (d *Delta) Values() int { return d.Heads * d.ValueDim }

// HasLayer reports whether a layer's attention is linear.
func (d *Delta) HasLayer(layer int) bool { return len(d.Layers) > 0 && d.Layers[layer%len(d.Layers)] }

// Some reports whether any layer's is.
func (d *Delta) Some() bool { return len(d.Layers) > 0 }

// MostTaps is the longest convolution that is built.
const MostTaps = 8

// check returns what is wrong with the sizes.
func (d *Delta) check(f *Family) error {
	switch sizes := []int{d.Heads, d.Keys, d.KeyDim, d.ValueDim}; {
	case !d.Some():
		return nil
	case f.Tensors.DeltaConv == "":
		return fmt.Errorf("gated delta nets are not supported for %s; hint: use a family that has them, such as qwen3_5_text", f)
	default:
		for _, n := range sizes {
			if n < 1 || n > maxWidth {
				return fmt.Errorf("the heads of linear attention are %d of values and %d of keys, of %d and %d columns; hint: each must be from 1 to %d", d.Heads, d.Keys, d.ValueDim, d.KeyDim, maxWidth)
			}
		}
	}
	switch {
	case d.Heads%d.Keys != 0:
		return fmt.Errorf("%d heads of values cannot be divided evenly among %d of keys; hint: linear_num_value_heads must be a multiple of linear_num_key_heads", d.Heads, d.Keys)
	case d.Mixed() > maxWidth || d.KeyDim*d.ValueDim > maxWidth:
		return fmt.Errorf("heads of linear attention with %d and %d columns are too wide; hint: all together must have at most %d, and so must their product", d.KeyDim, d.ValueDim, maxWidth)
	case d.Taps < 2 || d.Taps > MostTaps:
		return fmt.Errorf("linear_conv_kernel_dim is %d; hint: it must be from 2 to %d", d.Taps, MostTaps)
	}
	return nil
}

// delta adds the parameters of linear attention, in the order in which a layer reads them.
func (b *paramList) delta(n TensorNames, residual float64) {
	m, d, first := b.m, &b.m.Delta, len(b.list)
	if n.DeltaZ == "" { // one matrix, whose rows are those of a head of keys after the other
		group := d.Heads / d.Keys
		b.linear(n.DeltaQKV, m.Width, d.Mixed()+d.Values(), false, m.InitStd)
		k, v := d.KeyDim, group*d.ValueDim
		b.bands(first, d.Keys, Band{0, k}, Band{k, k}, Band{2 * k, v}, Band{2*k + v, v})
		first = len(b.list)
		b.linear(n.DeltaB, m.Width, 2*d.Heads, false, m.InitStd)
		b.bands(first, d.Keys, Band{0, group}, Band{group, group})
	} else {
		b.linear(n.DeltaQKV, m.Width, d.Mixed(), false, m.InitStd)
		b.linear(n.DeltaZ, m.Width, d.Values(), false, m.InitStd)
		b.linear(n.DeltaB, m.Width, d.Heads, false, m.InitStd)
		b.linear(n.DeltaA, m.Width, d.Heads, false, m.InitStd)
	}
	b.taps(n.DeltaConv, d.Mixed(), d.Taps)
	b.vector(n.DeltaRate, d.Heads, Rates)
	b.vector(n.DeltaBias, d.Heads, Ones)
	b.vector(n.DeltaNorm+".weight", d.ValueDim, Ones)
	b.linear(n.DeltaOut, d.Values(), m.Width, false, residual)
}

// bands says of the parameters from index first on, and of the factor that makes the rows of their adapter, how files order their
// rows, see Param.Bands.
func (b *paramList) bands(first, groups int, bands ...Band) {
	set := func(p *Param) { p.Groups = groups; copy(p.Bands[:], bands) }
	for i := first; i < len(b.list); i++ {
		set(&b.list[i])
	}
	if list := b.ofOutputs(); len(list) > 0 && b.m.LoRA.adapts(b.list[first].Name) {
		for i := range list {
			set(&list[i])
		}
	}
}

// gatedQueries adds the weight that makes queries and, of each head behind them, the gates of what it computes. Operators have all
// gates first.
func (b *paramList) gatedQueries(n TensorNames) {
	m, first := b.m, len(b.list)
	b.linear(n.Q, m.Width, 2*m.Heads*m.HeadDim, m.QKVBias, m.InitStd)
	b.bands(first, m.Heads, Band{m.HeadDim, m.HeadDim}, Band{0, m.HeadDim})
}

// reorderBands copies what is in the order of files to that of operators or, if back, the other way.
func (p Param) reorderBands(dst, src []float32, back bool) {
	width := p.Cols
	if p.Vector {
		width = 1
	}
	each, ours := len(src)/p.Groups, 0
	for _, band := range p.Bands {
		for g := range p.Groups {
			n, theirs := band.Rows*width, g*each+band.At*width
			if back {
				copy(dst[theirs:][:n], src[ours:])
			} else {
				copy(dst[ours:][:n], src[theirs:])
			}
			ours += n
		}
	}
}
