package graph

import (
	"math"
	"slices"

	"github.com/athanor-llm/athanor/model"
)

// Constant returns the content of a value of kind Constant.
func (g *Graph) Constant(v int) []float32 {
	value := &g.Values[v]
	if v == g.Rope || v == g.LocalRope {
		return RopeTable(g.Model, value.Rows, v == g.LocalRope)
	}
	return slices.Repeat([]float32{1}, value.Cols)
}

// RopeTable returns the content of a rotary table: per position the cosines of RotaryDim/2
// angles, then their sines (1104.09864). local selects the table of layers with a window, where
// these have a base of their own, which is not scaled.
//
// A table may be multiplied by a constant (RopeScaling.Attention): the derivative of a rotation
// that also stretches is still the inverse rotation with the same table.
func RopeTable(m *model.Model, seq int, local bool) []float32 {
	gain := 1.0
	if s := m.RopeScaling; s != nil && s.Attention > 0 && !local {
		gain = s.Attention
	}
	n := m.RotaryDim(local)
	half := n / 2
	t := make([]float32, seq*n)
	for i, f := range ropeFrequencies(m, seq, local) {
		for pos := range seq {
			sin, cos := math.Sincos(float64(pos) * f)
			t[pos*n+i] = float32(gain * cos)
			t[pos*n+half+i] = float32(gain * sin)
		}
	}
	return t
}

// ropeFrequencies returns the angle per position of each pair. With longrope it depends on the
// number of positions for which the graph is made: so text generation uses one rule from its
// first token to its last, that of its whole context.
func ropeFrequencies(m *model.Model, seq int, local bool) []float64 {
	theta, s := m.RopeTheta, m.RopeScaling
	if local {
		theta, s = m.LocalTheta, nil
	}
	n := m.RotaryDim(local)
	list := make([]float64, n/2)
	for i := range list {
		f := math.Pow(theta, -2*float64(i)/float64(n))
		if s != nil {
			f = scaled(s, f, theta, i, n, seq)
		}
		list[i] = f
	}
	return list
}

// scaled returns the scaled frequency of pair i, unscaled f, for base theta and n columns.
func scaled(s *model.RopeScaling, f, theta float64, i, n, seq int) float64 {
	kept := 0.0 // the share of f that is not slowed
	switch s.Type {
	case "proportional": // the others have frequencies as if all did
		if i >= int(s.Share*float64(n))/2 {
			return 0
		}
	case "longrope": // 2402.13753
		slower, _ := s.Pairs(seq)
		return f / slower[i]
	case "llama3":
		turns := float64(s.OriginalContext) * f / (2 * math.Pi)
		kept = (turns - s.LowFreqFactor) / (s.HighFreqFactor - s.LowFreqFactor)
	case "yarn": // 2309.00071: as llama3, but linear in the pair's index
		first, last := pairOf(s, s.HighFreqFactor, theta, n), pairOf(s, s.LowFreqFactor, theta, n)
		if !s.Unrounded {
			first, last = math.Floor(first), math.Ceil(last)
		}
		first, last = max(first, 0), min(last, float64(n-1)) // n-1 as in transformers, though there are n/2 pairs
		if first == last {
			last += 0.001
		}
		kept = 1 - (float64(i)-first)/(last-first)
	}
	kept = min(max(kept, 0), 1)
	return (1-kept)*f/s.Factor + kept*f
}

// pairOf returns the index, with a fraction, of the pair that turns that many times over the
// original context.
func pairOf(s *model.RopeScaling, turns, theta float64, n int) float64 {
	return float64(n) * math.Log(float64(s.OriginalContext)/(turns*2*math.Pi)) / (2 * math.Log(theta))
}
