// Package advise finds which model to train in a given time: how large, with what batch and learning rate.
//
// Approach. A law (Law) says what loss a model of so many parameters reaches after so many tokens. It is fitted to short runs on the
// user's own text and machine (Pilots), never to constants of other people's scale, which mean nothing at that of a desk (at 1.2e13
// FLOPs Chinchilla's would predict a loss of 14.4, more than that of guessing). How fast a model trains is planned, not tried. The
// advice is the model with the least predicted loss after the tokens that it can read in the time left.
//
//	time -> tokens/s of each model (planned) -> pilots: learning rate and batch, then 3 sizes for 1 to 3 lengths each -> law -> model
//
// Known weaknesses. The longest pilot reads a tenth or less of what the run does, so the law is extrapolated by as much; few points do
// not decide its exponents, which are held near those that small models on source code had. Text that is read again is discounted as in
// a study of large models, and that a model learns it by heart is not foreseen. The vocabulary and the length of sequences stay as they
// are.
package advise

import (
	"errors"
	"fmt"
	"math"
)

// Law says that a model with N parameters besides its embeddings, which has read D tokens, has the loss E + A/N^Alpha + B/D^Beta
// (Hoffmann et al., 2203.15556, section 3.3), in nats per token.
type Law struct{ E, A, Alpha, B, Beta float64 }

// Loss returns the loss.
func (l Law) Loss(n, d float64) float64 { return l.E + l.OfSize(n) + l.OfText(d) }

// OfSize returns what a larger model would gain at most, OfText what more text would.
func (l Law) OfSize(n float64) float64 { return l.A / math.Pow(n, l.Alpha) }
func (l Law) OfText(d float64) float64 { return l.B / math.Pow(d, l.Beta) }

// Point is what a run reached.
type Point struct {
	Params, Tokens float64
	Loss           float64 // on held-out text
}

const (
	usualOfSize    = 0.35 // exponents: of models of 1e5 to 2e6 parameters
	usualOfText    = 0.15 // after 5e5 to 4e6 tokens
	exponentSpread = 0.5  // of their logarithms: how far they may be from that
	lossNoise      = 0.01 // of a point's loss, relative
)

// FitLaw returns the law closest to at least three points: for each pair of exponents the other three follow by least squares of
// relative errors, and none is negative. Exponents far from the usual ones count as errors, so that few points do not decide them.
func FitLaw(points []Point) (Law, error) {
	if len(points) < 3 {
		return Law{}, fmt.Errorf("a law cannot be fitted to %d runs; hint: allow a larger share of the time", len(points))
	}
	for _, p := range points {
		if !(p.Loss > 0 && p.Params > 0 && p.Tokens > 0) || math.IsInf(p.Loss, 0) {
			return Law{}, fmt.Errorf("a run of %.4g parameters and %.4g tokens has the loss %v; hint: try a lower learning_rate", p.Params, p.Tokens, p.Loss)
		}
	}
	best, least := Law{}, math.Inf(1)
	for centre, width := [2]float64{0, 0}, 1.5; width > 0.005; width /= 4 { // logarithms of exponents over the usual one
		from := centre
		for i := -8; i <= 8; i++ {
			for j := -8; j <= 8; j++ {
				at := [2]float64{from[0] + width*float64(i)/8, from[1] + width*float64(j)/8}
				law := Law{Alpha: usualOfSize * math.Exp(at[0]), Beta: usualOfText * math.Exp(at[1])}
				err := law.fitTerms(points)/(lossNoise*lossNoise) + (at[0]*at[0]+at[1]*at[1])/(exponentSpread*exponentSpread)
				if err < least {
					best, least, centre = law, err, at
				}
			}
		}
	}
	if math.IsInf(least, 1) {
		return Law{}, errors.New("no law fits the runs; hint: allow a larger share of the time")
	}
	return best, nil
}

// fitTerms sets E, A and B for the exponents, and returns the sum of squared relative errors. Of the solutions in which some of them
// are 0, it takes the best without a negative one.
func (l *Law) fitTerms(points []Point) float64 {
	least := math.Inf(1)
	for used := 1; used < 8; used++ {
		var normal [3][4]float64 // of the least squares, with their right-hand side
		for _, p := range points {
			row := [4]float64{1 / p.Loss, math.Pow(p.Params, -l.Alpha) / p.Loss, math.Pow(p.Tokens, -l.Beta) / p.Loss, 1}
			for i := range 3 {
				for j := range 4 {
					if used>>i&1 == 1 && (j == 3 || used>>j&1 == 1) {
						normal[i][j] += row[i] * row[j]
					}
				}
			}
		}
		for i := range 3 {
			if used>>i&1 == 0 {
				normal[i][i] = 1
			}
		}
		x, ok := solve(normal)
		if !ok || x[0] < 0 || x[1] < 0 || x[2] < 0 {
			continue
		}
		try := Law{x[0], x[1], l.Alpha, x[2], l.Beta}
		if sum := try.squaredErrors(points); sum < least {
			*l, least = try, sum
		}
	}
	return least
}

// squaredErrors returns the sum of the squares of relative errors.
func (l Law) squaredErrors(points []Point) (sum float64) {
	for _, p := range points {
		e := l.Loss(p.Params, p.Tokens)/p.Loss - 1
		sum += e * e
	}
	return sum
}

// solve solves three linear equations by elimination with pivots.
func solve(m [3][4]float64) (x [3]float64, ok bool) {
	scale := [3]float64{} // of columns, which differ by many orders of magnitude
	for j := range 3 {
		if scale[j] = math.Sqrt(m[j][j]); !(scale[j] > 0) {
			return x, false
		}
	}
	for i := range 3 {
		for j := range 3 {
			m[i][j] /= scale[i] * scale[j]
		}
		m[i][3] /= scale[i]
	}
	for k := range 3 {
		pivot := k
		for i := k + 1; i < 3; i++ {
			if math.Abs(m[i][k]) > math.Abs(m[pivot][k]) {
				pivot = i
			}
		}
		if m[k], m[pivot] = m[pivot], m[k]; math.Abs(m[k][k]) < 1e-12 {
			return x, false
		}
		for i := range 3 {
			if i == k {
				continue
			}
			f := m[i][k] / m[k][k]
			for j := k; j < 4; j++ {
				m[i][j] -= f * m[k][j]
			}
		}
	}
	for k := range 3 {
		x[k] = m[k][3] / m[k][k] / scale[k]
	}
	return x, true
}

// Spread returns by how much the prediction is uncertain, relative: how far laws without one of the points each predict from
// the law with all of them, and how far the law is from the points.
func (l Law) Spread(points []Point, n, d float64) float64 {
	worst := math.Sqrt(l.squaredErrors(points) / float64(len(points)))
	for i := range points {
		rest := append(append([]Point(nil), points[:i]...), points[i+1:]...)
		if other, err := FitLaw(rest); err == nil {
			worst = max(worst, math.Abs(other.Loss(n, d)/l.Loss(n, d)-1))
		}
	}
	return worst
}

// repeats is how many times text that is read again counts as new at most. The form is Muennighoff et al.'s (2305.16264, section 3.1), who
// found 15.4 for large models; this is between what models of 6e5 and of 2e6 parameters showed that read a million tokens of source code
// 12 and 23 times (docs/measurements). Short runs cannot show it: on a part of the text, models of any size learn it by heart sooner.
const repeats = 10

// Worth returns how many tokens of new text are worth as much as reading this many where there are only unique different ones.
func Worth(tokens, unique float64) float64 {
	if tokens <= unique {
		return tokens
	}
	return unique + unique*repeats*(1-math.Exp(-(tokens/unique-1)/repeats))
}
