package model

import "fmt"

// Mamba is what layers have that scan tokens with a selective state space: Mamba2 (2405.21060). Of what one product makes, a convolution
// mixes the last few tokens of x, b and c; each head has a state, which b*x is added to and c reads, and which fades as time passes. z
// gates what the heads compute. The zero value: no layer has one.
type Mamba struct {
	Heads, Groups int     // heads of x; groups of b and c, each for as many consecutive heads
	State         int     // columns of b and of c
	HeadDim       int     // columns of x that a head has
	Taps          int     // tokens that the convolution mixes, the last one included
	Layers        []bool  // which layers these are, repeated for all layers
	ConvBias      bool    // the convolution has a bias
	Bias          bool    // so have the products before and after
	Least, Most   float64 // bounds of time steps; Most 0: none
	Beside        bool    // attention reads the same as a scan, and adds to the stream what it computes, too
	Norm          ScanNorm
}

// ScanNorm says what a scan's results go through besides their gate.
type ScanNorm uint8

const (
	NormGated ScanNorm = iota // a norm of what the gate has multiplied, of each group by itself
	NormFirst                 // a norm before the gate
	NormNowhere
)

// Values returns the columns of x, of z, and of what the heads compute.
func (d *Mamba) Values() int { return d.Heads * d.HeadDim }

// Mixed returns the columns that the convolution mixes: x, b and c.
func (d *Mamba) Mixed() int { return d.Values() + 2*d.Groups*d.State }

// HasLayer reports whether a layer is one of these.
func (d *Mamba) HasLayer(layer int) bool { return len(d.Layers) > 0 && d.Layers[layer%len(d.Layers)] }

// Some reports whether any layer is.
func (d *Mamba) Some() bool { return len(d.Layers) > 0 }

// Resize returns the same for another width of the residual stream: as many times as wide, with heads as they are, or narrower where
// they do not divide that.
func (d Mamba) Resize(from, to int) Mamba {
	if !d.Some() || to < 1 {
		return d
	}
	values := max(1, d.Values()/from) * to
	for d.HeadDim = min(d.HeadDim, values); values%d.HeadDim != 0 || values/d.HeadDim%d.Groups != 0 && d.HeadDim > 1; d.HeadDim-- {
	}
	d.Heads = values / d.HeadDim
	return d
}

// check returns what is wrong with the sizes.
func (d *Mamba) check(f *Family) error {
	switch {
	case !d.Some():
		return nil
	case f.Tensors.MambaIn == "":
		return fmt.Errorf("layers of Mamba2 are not supported for %s; hint: use a family that has them, such as granitemoehybrid", f)
	}
	for _, n := range []int{d.Heads, d.Groups, d.State, d.HeadDim} {
		if n < 1 || n > maxWidth {
			return fmt.Errorf("Mamba2 has %d heads of %d columns, and %d groups of states of %d; hint: each must be from 1 to %d", d.Heads, d.HeadDim, d.Groups, d.State, maxWidth)
		}
	}
	switch {
	case d.Heads%d.Groups != 0:
		return fmt.Errorf("%d heads of Mamba2 cannot be divided evenly among %d groups; hint: the heads must be a multiple of the groups", d.Heads, d.Groups)
	case d.Mixed() > maxWidth || d.State*d.HeadDim > maxWidth:
		return fmt.Errorf("heads of Mamba2 with %d columns and states of %d are too wide; hint: all together must have at most %d, and so must their product", d.HeadDim, d.State, maxWidth)
	case d.Taps < 2 || d.Taps > MostTaps:
		return fmt.Errorf("the convolution of Mamba2 mixes %d tokens; hint: it must be from 2 to %d", d.Taps, MostTaps)
	case !(d.Least >= 0 && d.Most >= 0 && d.Least < 1e6 && d.Most < 1e6) || d.Most > 0 && d.Most < d.Least:
		return fmt.Errorf("the time steps of Mamba2 are bounded by %v and %v; hint: use positive numbers below 1e6, usually 0 and no upper one", d.Least, d.Most)
	}
	return nil
}

// mamba adds the parameters of such a layer, in the order in which it reads them.
func (b *paramList) mamba(n TensorNames, residual float64) {
	m, d := b.m, &b.m.Mamba
	b.linear(n.MambaIn, m.Width, d.Values()+d.Mixed()+d.Heads, d.Bias, m.InitStd)
	b.taps(n.MambaConv, d.Mixed(), d.Taps)
	if d.ConvBias {
		b.vector(n.MambaConv+".bias", d.Mixed(), Zeros)
	}
	b.vector(n.MambaRate, d.Heads, Rates)
	b.vector(n.MambaStep, d.Heads, Ones)
	b.vector(n.MambaSkip, d.Heads, Ones)
	if d.Norm != NormNowhere {
		b.vector(n.MambaNorm+".weight", d.Values(), Ones)
	}
	b.linear(n.MambaOut, d.Values(), m.Width, d.Bias, residual)
}
