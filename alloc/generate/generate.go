// Package generate makes allocation problems whose difficulty is understood:
// for the allocator's tests and for anyone who compares solvers. Validate checks what
// they return, and shares no code with them.
//
// Each generator takes its randomness from the caller, so a seed names an
// instance. Guillotine, Pinwheel and Nest know the optimum by construction.
package generate

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/athanor-llm/athanor/alloc"
)

func buffer(n int, lower, upper, size int64) alloc.Buffer {
	return alloc.Buffer{ID: fmt.Sprint(n), Lower: lower, Upper: upper, Size: size, Fixed: alloc.Free}
}

// Random scatters n buffers over steps moments; lifetimes last up to length
// moments and sizes reach size, small ones being more frequent.
func Random(rng *rand.Rand, n int, steps, length, size int64) alloc.Problem {
	var p alloc.Problem
	for i := range n {
		lower := rng.Int64N(steps)
		upper := lower + 1 + rng.Int64N(length)
		p.Buffers = append(p.Buffers, buffer(i, lower, upper, 1+rng.Int64N(1+rng.Int64N(size))))
	}
	return p
}

// Scales scatters n buffers over steps moments with lifetimes and sizes of all
// scales: the logarithms are uniform, up to length moments and size bytes.
func Scales(rng *rand.Rand, n int, steps, length, size int64) alloc.Problem {
	var p alloc.Problem
	scale := func(most int64) int64 { return max(1, int64(math.Pow(float64(most), rng.Float64()))) }
	for i := range n {
		lower := rng.Int64N(steps)
		p.Buffers = append(p.Buffers, buffer(i, lower, lower+scale(length), scale(size)))
	}
	return p
}

// Even scatters n buffers over steps moments; lifetimes up to length and sizes
// up to size are equally likely.
func Even(rng *rand.Rand, n int, steps, length, size int64) alloc.Problem {
	var p alloc.Problem
	for i := range n {
		lower := rng.Int64N(steps)
		p.Buffers = append(p.Buffers, buffer(i, lower, lower+1+rng.Int64N(length), 1+rng.Int64N(size)))
	}
	return p
}

// Nest returns n lifetimes that nest like brackets: the optimum is the largest sum
// at one moment. It defeats allocators that place small buffers first, and those
// that copy the rest at every level.
func Nest(rng *rand.Rand, n int) alloc.Problem {
	var p alloc.Problem
	var open []int
	for now := int64(0); len(p.Buffers) < n || len(open) > 0; now++ {
		if len(p.Buffers) < n && (len(open) == 0 || rng.IntN(8) < 5) {
			open = append(open, len(p.Buffers))
			p.Buffers = append(p.Buffers, buffer(len(p.Buffers), now, now+1, 1+rng.Int64N(1000)))
			continue
		}
		p.Buffers[open[len(open)-1]].Upper = now
		open = open[:len(open)-1]
	}
	return p
}

// Training describes the memory of one training step of a GPT-like model.
type Training struct {
	Layers    int
	Hidden    int64 // bytes of one activation row block: batch x sequence x hidden
	Weights   int64 // bytes of one layer's parameters
	Transient int   // buffers born and dead inside one layer's pass
	Recompute bool  // keep only layer inputs, recompute the rest in backward
	Align     int64
}

// Problem returns the buffers of the step: weights, gradients and optimizer state
// alive throughout, activations from forward to backward, and gradients of
// activations and scratch in between.
func (t Training) Problem(rng *rand.Rand) alloc.Problem {
	var p alloc.Problem
	pass := int64(4 + 2*t.Transient) // steps in a layer's forward
	end := int64(t.Layers) * pass * 2
	add := func(lower, upper, size int64) {
		if a := t.Align; a > 1 {
			size = (size + a - 1) / a * a
		}
		b := buffer(len(p.Buffers), lower, upper, size)
		b.Align = t.Align
		p.Buffers = append(p.Buffers, b)
	}
	units := []int64{1, 1, 1, 1, 1, 1, 1, 1, 4, 4} // MEMO's skeletal set
	for l := range int64(t.Layers) {
		fwd, bwd := l*pass, end-(l+1)*pass
		for range 4 { // weight, gradient, two moments
			add(0, end, t.Weights)
		}
		for i, u := range units {
			at := fwd + int64(i)*pass/int64(len(units))
			last := bwd + int64(len(units)-i)*pass/int64(len(units))
			if t.Recompute && i > 0 {
				add(at, fwd+pass, u*t.Hidden)
				add(bwd, last, u*t.Hidden)
				continue
			}
			add(at, last, u*t.Hidden)
		}
		for i := range int64(t.Transient) {
			size := t.Hidden * (1 + int64(rng.IntN(8))) / 2
			add(fwd+2*i, fwd+2*i+2+rng.Int64N(4), size)
			add(bwd+2*i, min(end, bwd+2*i+3+rng.Int64N(6)), size)
		}
	}
	return p
}
