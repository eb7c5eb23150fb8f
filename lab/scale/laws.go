package scale

import "math"

// Scaling laws of the loss. All are fits to published runs: good for proportions, not for the third digit, and
// meaningless far below the fitted sizes.

// Chinchilla is the law E + A/N^alpha + B/D^beta for the loss of N parameters trained on D tokens (Hoffmann et al.
// 2022, 2203.15556).
type Chinchilla struct {
	E, A, B, Alpha, Beta float64
}

// Hoffmann returns the constants as published.
func Hoffmann() Chinchilla { return Chinchilla{1.69, 406.4, 410.7, .34, .28} }

// Besiroglu returns the constants refitted to the same data (2404.10102), which corrects biased rounding of the
// published ones.
func Besiroglu() Chinchilla { return Chinchilla{1.8172, 482.01, 2085.43, .3478, .3658} }

// Loss returns the loss in nats per token.
func (c Chinchilla) Loss(parameters, tokens float64) float64 {
	return c.E + c.A/math.Pow(parameters, c.Alpha) + c.B/math.Pow(tokens, c.Beta)
}

// Optimum returns the model size N and the number of tokens D with the least loss for a budget of flops = 6 N D.
func (c Chinchilla) Optimum(flops float64) (parameters, tokens float64) {
	g := math.Pow(c.Alpha*c.A/(c.Beta*c.B), 1/(c.Alpha+c.Beta))
	n := flops / 6
	return g * math.Pow(n, c.Beta/(c.Alpha+c.Beta)), math.Pow(n, c.Alpha/(c.Alpha+c.Beta)) / g
}
