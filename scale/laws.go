package scale

import "math"

// Laws of loss. All are fits to other people's runs: good for proportions, not for the third digit, and meaningless far
// below the sizes that they were fitted on.

// Chinchilla is the loss E + A/N^alpha + B/D^beta of N parameters trained on D tokens (Hoffmann et al. 2022, 2203.15556).
type Chinchilla struct {
	E, A, B, Alpha, Beta float64
}

// Hoffmann are the constants as published.
func Hoffmann() Chinchilla { return Chinchilla{1.69, 406.4, 410.7, .34, .28} }

// Besiroglu are the constants refitted to the same data (2404.10102): the published ones were rounded with a bias.
func Besiroglu() Chinchilla { return Chinchilla{1.8172, 482.01, 2085.43, .3478, .3658} }

// Loss in nats per token.
func (c Chinchilla) Loss(parameters, tokens float64) float64 {
	return c.E + c.A/math.Pow(parameters, c.Alpha) + c.B/math.Pow(tokens, c.Beta)
}

// Optimum is the model size and the number of tokens that reach the least loss with a budget of 6 N D FLOPs.
func (c Chinchilla) Optimum(flops float64) (parameters, tokens float64) {
	g := math.Pow(c.Alpha*c.A/(c.Beta*c.B), 1/(c.Alpha+c.Beta))
	n := flops / 6
	return g * math.Pow(n, c.Beta/(c.Alpha+c.Beta)), math.Pow(n, c.Alpha/(c.Alpha+c.Beta)) / g
}
