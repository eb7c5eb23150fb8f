// Package flexgen decides as FlexGen does (2303.06865): how many sequences are generated together, in how many batches, and which
// fractions of weights, caches and hidden states are on the device, the host and the disk.
//
// Approach: how long a layer takes is linear in the fractions, given the batches, and so is the memory. So for each number
// of sequences of a batch, and each number of batches, a linear program finds the fractions; a loop around it tries such
// numbers. The equations are those of the released code, in which the device waits for weights before it computes:
//
//	prefill  max(weights in + disk reads, caches out + disk writes, computing)
//	decode   weights in + max(hidden states out, disk reads, disk writes, computing)
//
// Example: OPT-30B on their machine with a T4, 3 batches of 48: 4.389 and 0.2924 s per layer, 7.136 tokens/s.
//
// Known weaknesses, theirs: constants are fitted to one machine; fractions of a cache are of rows, which no plan can place so; hidden states are never on the
// disk; the loop over batches stops at the first that is slower.
package flexgen

import (
	"math"
	"slices"

	"github.com/athanor-llm/athanor/internal/simplex"
)

// Shape is a model and what is generated: OPT's layers, in fp16.
type Shape struct {
	Layers, Width, FeedForward, Heads int
	Prompt, Tokens                    int
	Most                              int // sequences at once; 0: as many as fit
}

// Machine has the constants of the cost model: bytes and FLOPs per second, and bytes.
type Machine struct {
	ToDevice                        float64 // from the host
	CachesToHost, HiddenToHost      float64 // from the device
	FromDisk                        float64
	PromptToDisk, TokenToDisk       float64 // caches of prompts, and of tokens
	PromptProducts, TokenProducts   float64 // matrix products
	PromptAttention, TokenAttention float64
	HostAttention                   float64
	Memory                          [3]float64 // of device, host and disk
	Usable                          float64    // which part of the memory a policy may take
	WidthGain, BatchLoss, WidthLoss float64    // of attention on the host, for small batches and narrow models
}

const (
	gib  = 1 << 30
	tera = 1e12
)

// T4 is the machine that the authors fitted their constants to: a T4 with 16 GiB, 200 GiB of the host and 1500 of its disk.
func T4() *Machine {
	return &Machine{
		ToDevice: 12.89 * gib, CachesToHost: 0.97 * gib, HiddenToHost: 4.82 * gib, FromDisk: 0.473 * gib, PromptToDisk: 0.746 * gib, TokenToDisk: 2.015 * gib,
		PromptProducts: 21.24 * tera, TokenProducts: 4.3 * tera, PromptAttention: 9.97 * tera, TokenAttention: 0.079 * tera, HostAttention: 0.0123 * tera,
		Memory: [3]float64{16 * gib, 200 * gib, 1500 * gib}, Usable: 0.8, WidthGain: 0.0168, BatchLoss: 0.0328, WidthLoss: 0.0621,
	}
}

// Policy is what is decided. Fractions are of device, host and disk.
type Policy struct {
	Each, Batches           int // sequences of a batch, and batches
	Weights, Caches, Hidden [3]float64
	Prefill, Decode         float64 // predicted seconds of a layer
	Rate                    float64 // predicted tokens per second
}

// The variables of the linear program.
const (
	weightsOnDevice = iota
	weightsOnHost
	cachesOnDevice
	cachesOnHost
	hiddenOnDevice
	prefill
	decode
	variables
)

// linear is a linear function of the fractions, with a constant.
type linear struct {
	of       [prefill]float64
	constant float64
}

// fraction is a variable by itself.
func fraction(v int) (l linear) {
	l.of[v] = 1
	return l
}

// times returns a multiple.
func (l linear) times(f float64) linear {
	for v := range l.of {
		l.of[v] *= f
	}
	l.constant *= f
	return l
}

// sum adds up functions.
func sum(list ...linear) (s linear) {
	for _, l := range list {
		for v := range l.of {
			s.of[v] += l.of[v]
		}
		s.constant += l.constant
	}
	return s
}

// fixed is a constant.
func fixed(x float64) linear { return linear{constant: x} }

// complement is what some fractions leave.
func complement(list ...linear) linear { return sum(fixed(1), sum(list...).times(-1)) }

// at returns the value for given fractions.
func (l linear) at(x []float64) float64 {
	for v, f := range l.of {
		l.constant += f * x[v]
	}
	return l.constant
}

// model is the cost of a number of batches: each list's largest is what counts.
type model struct {
	prefill, decode []linear    // seconds of a layer
	memory          [3][]linear // bytes, of device, host and disk
}

// model returns the cost of batches.
func (m *Machine) model(s *Shape, each, batches int) *model {
	h1, h2, heads, layers := float64(s.Width), float64(s.FeedForward), float64(s.Heads), float64(s.Layers)
	prompt, n, gbs := float64(s.Prompt), float64(s.Tokens), float64(each)
	all, context := gbs*float64(batches), prompt+n
	wg, wc, cg, cc, hg := fraction(weightsOnDevice), fraction(weightsOnHost), fraction(cachesOnDevice), fraction(cachesOnHost), fraction(hiddenOnDevice)
	wd, cd, hc := complement(wg, wc), complement(cg, cc), complement(hg)
	weights := 8*h1*h1 + 4*h1*h2 // bytes of a layer
	hidden := 2 * h1             // of a token
	middle := prompt + n/2       // tokens in a cache, on average
	host := m.hostAttention(s, each)

	in := sum(complement(wg).times(weights), hc.times(hidden*prompt*all)).times(1 / m.ToDevice)
	out := sum(complement(cg).times(4*(prompt+1)*h1*all/m.CachesToHost), hc.times(hidden*prompt*all/m.HiddenToHost))
	compute := all*prompt*(8*h1*h1+4*h1*h2)/m.PromptProducts + 4*all*prompt*prompt*h1/m.PromptAttention
	c := &model{prefill: []linear{sum(in, wd.times(weights/m.FromDisk)), sum(out, cd.times(4*all*(prompt+1)*h1/m.PromptToDisk)), fixed(compute)}}

	in = sum(complement(wg).times(weights), hc.times(hidden*all)).times(1 / m.ToDevice)
	computing := sum(fixed(all*(8*h1*h1+4*h1*h2)/m.TokenProducts), cg.times(4*all*middle*h1/m.TokenAttention), complement(cg).times(4*all*middle*h1/host))
	for _, beside := range []linear{
		hc.times(hidden * all / m.HiddenToHost),
		sum(cd.times(4*all*middle*h1/m.FromDisk), wd.times(weights/(0.95*m.FromDisk))),
		cd.times(4 * all * h1 / m.TokenToDisk),
		computing,
	} {
		c.decode = append(c.decode, sum(in, beside))
	}

	room := 4 * context * h1 * all * layers // of all caches
	c.memory[0] = []linear{
		sum(wg.times(weights*layers), hg.times(hidden*prompt*all), cg.times(room), complement(wg).times(2*weights), hc.times(hidden*prompt*gbs),
			fixed(gbs*(18*prompt*h1+2*heads*prompt*prompt+2*prompt*h2))),
		sum(wg.times(weights*layers), hg.times(hidden*all), cg.times(room), complement(wg).times(2*weights), hc.times(hidden*gbs),
			cg.times(4*gbs*context*h1), fixed(gbs*(14*h1+2*h2)), cg.times(gbs*(4*h1+4*context*h1+2*heads*context))),
	}
	c.memory[1] = []linear{
		sum(wc.times(weights*layers), hc.times(hidden*prompt*all), cc.times(4*prompt*h1*all*layers), complement(wg).times(weights), hc.times(hidden*prompt*gbs)),
		sum(wc.times(weights*layers), hc.times(hidden*all), cc.times(room), wd.times(weights), cd.times(8*context*h1*gbs), fixed(2*heads*context*gbs+2*h1*gbs)),
	}
	c.memory[2] = []linear{sum(wd.times(weights*layers), cd.times(room))}
	return c
}

// unit returns a time near those of layers: what is solved should be near 1.
func (c *model) unit() (most float64) {
	for _, l := range slices.Concat(c.prefill, c.decode) {
		most = max(most, math.Abs(l.constant))
	}
	return most
}

// hostAttention is the rate of attention on the host, which small batches and narrow models slow down.
func (m *Machine) hostAttention(s *Shape, each int) float64 {
	u, v := max(0, math.Log2(64/float64(each))), max(0, math.Log2(4096/float64(s.Width)))
	return m.HostAttention * max(0.1, 1+m.WidthGain*u*v-m.BatchLoss*u-m.WidthLoss*v)
}

// Estimate predicts a policy whose fractions are given, whether or not it fits.
func (m *Machine) Estimate(s *Shape, p Policy) Policy {
	x := []float64{p.Weights[0], p.Weights[1], p.Caches[0], p.Caches[1], p.Hidden[0]}
	c := m.model(s, p.Each, p.Batches)
	p.Prefill, p.Decode = 0, 0
	for _, l := range c.prefill {
		p.Prefill = max(p.Prefill, l.at(x))
	}
	for _, l := range c.decode {
		p.Decode = max(p.Decode, l.at(x))
	}
	p.Rate = float64(p.Each*p.Batches*s.Tokens) / (float64(s.Layers) * (p.Prefill + float64(s.Tokens-1)*p.Decode))
	return p
}

// Solve finds the best fractions for a number of batches, or reports that none fit.
func (m *Machine) Solve(s *Shape, each, batches int) (p Policy, ok bool) {
	c, lp := m.model(s, each, batches), &simplex.Program{}
	for v := range variables {
		lp.Variable([]float64{prefill: 1, decode: float64(s.Tokens - 1)}[v], 1e-12, 1e9)
	}
	for _, pair := range [][2]int{{weightsOnDevice, weightsOnHost}, {cachesOnDevice, cachesOnHost}} {
		lp.Add(-1, simplex.Term{Variable: pair[0], Factor: -1}, simplex.Term{Variable: pair[1], Factor: -1})
	}
	lp.Add(-1, simplex.Term{Variable: hiddenOnDevice, Factor: -1})
	atMost := func(l linear, terms ...simplex.Term) { // l <= terms
		for v, f := range l.of {
			terms = append(terms, simplex.Term{Variable: v, Factor: -f})
		}
		lp.Add(l.constant, terms...)
	}
	unit := c.unit()
	for _, l := range c.prefill {
		atMost(l.times(1/unit), simplex.Term{Variable: prefill, Factor: 1})
	}
	for _, l := range c.decode {
		atMost(l.times(1/unit), simplex.Term{Variable: decode, Factor: 1})
	}
	for t, list := range c.memory {
		for _, l := range list {
			atMost(sum(l.times(1/max(1, m.Usable*m.Memory[t])), fixed(-1)))
		}
	}
	x, _, ok := lp.Solve()
	if !ok {
		return p, false
	}
	return m.Estimate(s, Policy{Each: each, Batches: batches, Weights: split(x[weightsOnDevice], x[weightsOnHost]), Caches: split(x[cachesOnDevice], x[cachesOnHost]), Hidden: split(x[hiddenOnDevice], 1-x[hiddenOnDevice])}), true
}

// split returns the fractions of device, host and disk.
func split(device, host float64) [3]float64 {
	return [3]float64{device, host, max(0, 1-device-host)}
}

// Search finds a policy: the best of those of All.
func (m *Machine) Search(s *Shape) (best Policy, ok bool) {
	for _, p := range m.All(s) {
		if p.Rate > best.Rate {
			best, ok = p, true
		}
	}
	return best, ok
}

// All returns a policy for each number of sequences of a batch, until nothing fits: more and more batches are tried while the rate grows.
func (m *Machine) All(s *Shape) (list []Policy) {
	for each := 1; ; {
		var best Policy
		for batches := 1; s.Most == 0 || each*batches <= s.Most; batches++ {
			p, fits := m.Solve(s, each, batches)
			if !fits || p.Rate < best.Rate {
				break
			}
			best = p
		}
		if best.Each == 0 {
			return list
		}
		list = append(list, best)
		if each++; each > 4 {
			each = 2 * (each - 1)
		}
	}
}
