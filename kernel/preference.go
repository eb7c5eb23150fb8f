package kernel

import (
	"math"

	"github.com/athanor-llm/athanor/graph"
)

// Preference: the loss of pairs, see graph.Preference. With s the sum of a document's log-probabilities (a
// chain in float64 over its tokens, rounded once), ref that of the reference, and b Scale:
//
//	ratio   s - ref, of chosen and rejected; exactly 0 for the weights that the reference was computed with
//	margin  m = b*(ratio of the chosen - ratio of the rejected)
//	loss    log(1 + exp(-m))
//	weights b/(1 + exp(m)) for the chosen's tokens, its negative for the rejected's: the derivative with respect to nll
//
// Each token has four bytes in each of a few operands, so one goroutine is enough, and Reference and Fast are the same.
func preference(_ *Env, a *graph.Attr, t []Tensor) {
	starts := &t[graph.PreferenceStarts]
	for first := 0; first < t[graph.PreferenceNLL].Rows; first += a.Seq {
		for chosen := first; chosen < first+a.Seq; {
			rejected := nextDocument(starts, chosen, first+a.Seq)
			end := nextDocument(starts, rejected, first+a.Seq)
			pair(a.Scale, t, chosen, rejected, end)
			chosen = end
		}
	}
}

// nextDocument returns the first row after the document that begins at row, at most end.
func nextDocument(starts *Tensor, row, end int) int {
	next := row
	for next < end && starts.I32[next*starts.Stride] == starts.I32[row*starts.Stride] {
		next++
	}
	return next
}

// pair computes the rows [chosen, rejected) of a document and [rejected, end) of the next. The latter is empty
// if the sequence ends before it: then they are no pair.
func pair(scale float64, t []Tensor, chosen, rejected, end int) {
	loss, ratios, weights := &t[graph.PreferenceLoss], &t[graph.PreferenceRatios], &t[graph.PreferenceWeights]
	nll, reference, targets := &t[graph.PreferenceNLL], &t[graph.PreferenceReference], &t[graph.PreferenceTargets]
	learnt := false
	sum := func(first, end int) (sum float64) {
		for r := first; r < end; r++ {
			loss.Set(r, 0, 0)
			ratios.Set(r, 0, 0)
			weights.Set(r, 0, 0)
			if targets.I32[r*targets.Stride] >= 0 {
				sum -= nll.At(r, 0)
				learnt = true
			}
		}
		return sum
	}
	one, other := sum(chosen, rejected), sum(rejected, end)
	if !learnt || rejected == end {
		return
	}
	ratio := func(r int, sum float64) float64 {
		ratios.Set(r, 0, sum) // rounds
		ratios.Set(r, 0, ratios.At(r, 0)-reference.At(r, 0))
		return ratios.At(r, 0)
	}
	m := scale * (ratio(chosen, one) - ratio(rejected, other))
	loss.Set(chosen, 0, max(-m, 0)+math.Log1p(math.Exp(-math.Abs(m))))
	pull := scale / (1 + math.Exp(m))
	weigh := func(first, end int, weight float64) {
		for r := first; r < end; r++ {
			if targets.I32[r*targets.Stride] >= 0 {
				weights.Set(r, 0, weight)
			}
		}
	}
	weigh(chosen, rejected, pull)
	weigh(rejected, end, -pull)
}
