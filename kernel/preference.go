package kernel

import (
	"math"

	"github.com/athanor-llm/athanor/graph"
)

// Preference: the loss of pairs, see graph.Preference. With s the sum of a document's log-probabilities (a
// chain in float64 over its tokens) or their mean, rounded once, and ref that of the reference:
//
//	ratio   s - ref, of chosen and rejected; exactly 0 for the weights that the reference was computed with
//	loss    of the two ratios, see pairLosses
//	weights its derivative with respect to the nll of each token
//
// With verdicts each document has a loss of its own, of its ratio.
//
// Each token has four bytes in each of a few operands, so one goroutine is enough, and Reference and Fast are the same.
func preference(_ *Env, a *graph.Attr, t []Tensor) {
	starts := &t[graph.PreferenceStarts]
	for first := 0; first < t[graph.PreferenceNLL].Rows; first += a.Seq {
		for chosen := first; chosen < first+a.Seq; {
			end := nextDocument(starts, chosen, first+a.Seq)
			if graph.PairLoss(a.PairLoss).Rule().Unpaired {
				single(a, t, chosen, end)
			} else {
				rejected := end
				end = nextDocument(starts, rejected, first+a.Seq)
				pair(a, t, chosen, rejected, end)
			}
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

// pairLosses return the loss of the ratios c and r, of chosen and rejected, and minus its derivatives with respect to them. Those that
// are unpaired have a document's verdict in the place of r.
var pairLosses = [graph.NumPairLosses]func(a *graph.Attr, c, r float64) (loss, byC, byR float64){
	graph.DPO: sigmoidLoss,
	graph.IPO: func(a *graph.Attr, c, r float64) (loss, byC, byR float64) {
		d := c - r - 1/(2*a.Scale)
		return d * d, -2 * d, 2 * d
	},
	graph.SimPO: func(a *graph.Attr, c, r float64) (loss, byC, byR float64) {
		loss, pull := belowZero(a.Scale*(c-r) - a.Margin)
		return loss, a.Scale * pull, -a.Scale * pull
	},
	graph.ORPO: func(a *graph.Attr, c, r float64) (loss, byC, byR float64) {
		odds := func(x float64) (rest, z float64) { // 1 - the probability, and the logarithm of the odds
			rest = max(-math.Expm1(x), leastRest)
			return rest, x - math.Log(rest)
		}
		restC, oddsC := odds(c)
		restR, oddsR := odds(r)
		loss, pull := belowZero(oddsC - oddsR)
		return -c + a.Scale*loss, 1 + a.Scale*pull/restC, -a.Scale * pull / restR
	},
	graph.KTO:             verdictLoss,
	graph.APOZeroUnpaired: verdictLoss,
	graph.Reward:          sigmoidLoss,
}

// sigmoidLoss is the loss of how far apart the two ratios are.
func sigmoidLoss(a *graph.Attr, c, r float64) (loss, byC, byR float64) {
	loss, pull := belowZero(a.Scale * (c - r))
	return loss, a.Scale * pull, -a.Scale * pull
}

// verdictLoss is the loss of a document whose verdict is its weight, or minus it if it is undesirable. kl is in the ratio already.
func verdictLoss(a *graph.Attr, ratio, verdict float64) (loss, by, none float64) {
	s := 1 / (1 + math.Exp(math.Copysign(a.Scale, verdict)*ratio))
	return math.Abs(verdict) * s, verdict * a.Scale * s * (1 - s), 0
}

// leastRest bounds the odds of a document of whose tokens all are certain.
const leastRest = 1e-6

// belowZero returns -log sigmoid(m) and minus its derivative.
func belowZero(m float64) (loss, pull float64) {
	return max(-m, 0) + math.Log1p(math.Exp(-math.Abs(m))), 1 / (1 + math.Exp(m))
}

// pair computes the rows [chosen, rejected) of a document and [rejected, end) of the next. The latter is empty
// if the sequence ends before it: then they are no pair.
func pair(a *graph.Attr, t []Tensor, chosen, rejected, end int) {
	averages := graph.PairLoss(a.PairLoss).Rule().Averages
	one, n := likelihood(t, chosen, rejected)
	other, k := likelihood(t, rejected, end)
	if n+k == 0 || rejected == end {
		return
	}
	if n, k = max(n, 1), max(k, 1); averages {
		one, other = one/n, other/k
	} else {
		n, k = 1, 1
	}
	x, byC, byR := pairLosses[a.PairLoss](a, ratio(t, chosen, one), ratio(t, rejected, other))
	t[graph.PreferenceLoss].Set(chosen, 0, x)
	weigh(t, chosen, rejected, byC/n)
	weigh(t, rejected, end, byR/k)
}

// single computes the rows [first, end) of a document that is not one of a pair.
func single(a *graph.Attr, t []Tensor, first, end int) {
	sum, n := likelihood(t, first, end)
	if n == 0 {
		return
	}
	if !graph.PairLoss(a.PairLoss).Rule().Averages {
		n = 1
	}
	x, by, _ := pairLosses[a.PairLoss](a, ratio(t, first, sum/n), t[graph.PreferenceVerdicts].At(first, 0))
	t[graph.PreferenceLoss].Set(first, 0, x)
	weigh(t, first, end, by/n)
}

// likelihood clears the results of rows [first, end), and returns the sum of their log-probabilities and how many are learnt.
func likelihood(t []Tensor, first, end int) (sum, learnt float64) {
	nll, targets := &t[graph.PreferenceNLL], &t[graph.PreferenceTargets]
	for r := first; r < end; r++ {
		for _, result := range []int{graph.PreferenceLoss, graph.PreferenceRatios, graph.PreferenceWeights} {
			t[result].Set(r, 0, 0)
		}
		if targets.I32[r*targets.Stride] >= 0 {
			sum -= nll.At(r, 0)
			learnt++
		}
	}
	return sum, learnt
}

// ratio writes, rounded, and returns what a document that begins at row r has more than under the reference.
func ratio(t []Tensor, r int, sum float64) float64 {
	ratios := &t[graph.PreferenceRatios]
	ratios.Set(r, 0, sum) // rounds
	ratios.Set(r, 0, ratios.At(r, 0)-t[graph.PreferenceReference].At(r, 0))
	return ratios.At(r, 0)
}

// weigh gives a document's learnt tokens their weight.
func weigh(t []Tensor, first, end int, weight float64) {
	targets := &t[graph.PreferenceTargets]
	for r := first; r < end; r++ {
		if targets.I32[r*targets.Stride] >= 0 {
			t[graph.PreferenceWeights].Set(r, 0, weight)
		}
	}
}
