package kernel

import (
	"math"

	"github.com/athanor-llm/athanor/graph"
)

// Preference: the loss of pairs, see graph.Preference. With s the sum of a document's log-probabilities, a chain in
// float64 over its tokens, rounded once, b Scale, and ref what the reference has:
//
//	ratio   s - ref, of chosen and rejected; exactly 0 for the weights that the reference was computed with
//	margin  m = b*(ratio of the chosen - ratio of the rejected)
//	loss    log(1 + exp(-m))
//	weights b/(1 + exp(m)) for the chosen's tokens, its negative for the rejected's: the derivative by their losses
//
// There are four bytes of a few operands per token, so one goroutine is enough, and Reference and Fast are the same.
func preference(_ *Env, a *graph.Attr, t []Tensor) {
	for first := 0; first < t[3].Rows; first += a.Seq {
		pair(a.Scale, t, first, first+a.Seq)
	}
}

// pair computes the rows [first, end) of a sequence.
func pair(scale float64, t []Tensor, first, end int) {
	loss, ratios, weights, nll, reference, targets, starts := &t[0], &t[1], &t[2], &t[3], &t[4], &t[5], &t[6]
	var sums [2]float64
	learnt := false
	for r := first; r < end; r++ {
		loss.Set(r, 0, 0)
		ratios.Set(r, 0, 0)
		weights.Set(r, 0, 0)
		if targets.I32[r*targets.Stride] >= 0 {
			sums[side(starts, r)] -= nll.At(r, 0)
			learnt = true
		}
	}
	if !learnt {
		return
	}
	for k := range sums {
		ratios.Set(first+k, 0, sums[k]) // rounds
		ratios.Set(first+k, 0, ratios.At(first+k, 0)-reference.At(first+k, 0))
	}
	m := scale * (ratios.At(first, 0) - ratios.At(first+1, 0))
	loss.Set(first, 0, max(-m, 0)+math.Log1p(math.Exp(-math.Abs(m))))
	pull := scale / (1 + math.Exp(m))
	for r := first; r < end; r++ {
		if targets.I32[r*targets.Stride] >= 0 {
			weights.Set(r, 0, pull*float64(1-2*side(starts, r)))
		}
	}
}

// side returns 0 for a token of the chosen document, 1 for one of the rejected.
func side(starts *Tensor, r int) int {
	if starts.I32[r*starts.Stride] == 0 {
		return 0
	}
	return 1
}
