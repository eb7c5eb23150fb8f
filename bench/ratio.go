package bench

import (
	"math"
	"math/rand/v2"
	"slices"
)

// Ratio is how much longer B takes than A, by rounds in which both ran in turn.
type Ratio struct {
	Rounds int     `json:"rounds"`
	Ratio  float64 `json:"ratio"` // the geometric mean of the rounds' ratios
	Low    float64 `json:"low"`   // of the interval that has the true one in 95 of 100 comparisons
	High   float64 `json:"high"`
	// More is about how many more rounds it takes to tell a ratio of this size from 1; 0: it is told already.
	More int `json:"more_rounds,omitempty"`
}

// Decided reports whether the two differ.
func (r *Ratio) Decided() bool { return r.Low > 1 || r.High < 1 }

// Resamples of a comparison, and the part of them left out at each end of the interval.
const (
	resamples = 2000
	tail      = 0.025
)

// mostRounds is more than anybody waits for.
const mostRounds = 1 << 20

// NewRatio compares the times of the same rounds of A and B, at least four. Load that lasts longer than a round slows both
// and leaves their ratio. The interval is the bootstrap's by studentized means of logarithms (Efron and Tibshirani, "An
// Introduction to the Bootstrap", 1993, section 12.5): with few rounds it is wider than by plain percentiles, which are wrong
// too often. The same times give the same interval.
func NewRatio(a, b []float64) *Ratio {
	n := len(a)
	logs := make([]float64, n)
	for i := range logs {
		logs[i] = math.Log(b[i] / a[i])
	}
	mean, err := meanAndError(logs)
	r := &Ratio{Rounds: n, Ratio: math.Exp(mean)}
	if err == 0 { // all rounds are alike
		r.Low, r.High = r.Ratio, r.Ratio
		return r
	}
	rng, again, t := rand.New(rand.NewPCG(1, 2)), make([]float64, n), make([]float64, 0, resamples)
	for range resamples {
		for i := range again {
			again[i] = logs[rng.IntN(n)]
		}
		if m, e := meanAndError(again); e > 0 {
			t = append(t, (m-mean)/e)
		}
	}
	slices.Sort(t)
	at := func(part float64) float64 { return t[min(int(part*float64(len(t))), len(t)-1)] }
	r.Low, r.High = math.Exp(mean-at(1-tail)*err), math.Exp(mean-at(tail)*err)
	if !r.Decided() {
		half := max(at(1-tail), -at(tail)) * err * math.Sqrt(float64(n)) // of the interval after one round
		r.More = int(min(math.Ceil(half*half/max(mean*mean, 1e-300))-float64(n), mostRounds))
		r.More = max(r.More, 1)
	}
	return r
}

// meanAndError returns the mean and its standard error.
func meanAndError(list []float64) (mean, err float64) {
	for _, x := range list {
		mean += x
	}
	mean /= float64(len(list))
	for _, x := range list {
		err += (x - mean) * (x - mean)
	}
	return mean, math.Sqrt(err / float64(len(list)-1) / float64(len(list)))
}
