package model

import (
	"fmt"
	"math"
)

// Int8Deviations is how many standard deviations of its first, random numbers a matrix in int8 has room for. Weights grow while they are
// trained, and what grows beyond stays at the greatest magnitude there is.
const Int8Deviations = 16

// HoldInt8 holds all matrices in int8, trained or not: see graph.MaxInt8. It changes what the model computes.
func HoldInt8(m *Model) error {
	for _, no := range []struct {
		what string
		has  bool
	}{
		{"adapters", m.LoRA != nil}, {"weights in 4 bits", m.NF4}, {"experts", m.Experts > 0}, {"latent attention", m.Latent.Some()},
		{"linear attention", m.Delta.Some()}, {"convolutions", m.Conv.Some()}, {"scans", m.Mamba.Some()}, {"embeddings of each layer", m.PerLayer > 0},
		{"matrices that are updated as a whole (muon)", m.Indivisible}, {"weights that stay zero (keep_mask)", m.Masked},
	} {
		if no.has {
			return fmt.Errorf("int8 is not built for %s; hint: use fp32 or bf16", no.what)
		}
	}
	m.Int8 = true
	return nil
}

// unitOf returns what the weights of a parameter are multiples of in int8, the least power of two of which as many as there are levels
// reach as far as they have to; 0: it is not held so.
func unitOf(m *Model, p *Param) float64 {
	reach := Int8Deviations * p.Std
	if x := m.Largest[p.Name]; x > 0 {
		reach = x
	}
	if !m.Int8 || p.Vector || p.State || reach <= 0 {
		return 0
	}
	const levels = math.MaxInt8
	return math.Exp2(math.Ceil(math.Log2(reach / levels)))
}
