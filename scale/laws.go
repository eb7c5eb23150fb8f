package scale

import "math"

// Laws of loss, and of time against batch size. All are fits to other people's runs: good for proportions, not for the
// third digit, and meaningless far below the sizes that they were fitted on.

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

// Slower says what a batch costs that is share times the critical one: steps over the least possible steps, and samples
// over the least possible samples (McCandlish et al. 2018: (S/Smin - 1)(E/Emin - 1) = 1).
func Slower(share float64) (steps, samples float64) { return 1 + 1/share, 1 + share }

// Shape is a transformer with its head, for the formulas of Megatron-LM (Narayanan et al. 2021, 2104.04473).
type Shape struct {
	Layers, Hidden, Vocabulary, Sequence int
}

// Parameters of the model with its embeddings.
func (s Shape) Parameters() float64 {
	l, h := float64(s.Layers), float64(s.Hidden)
	return 12 * l * h * h * (1 + 13/(12*h) + float64(s.Vocabulary+s.Sequence)/(12*l*h))
}

// FLOPs of one step over a batch of sequences, with full recomputation.
func (s Shape) FLOPs(batch int) float64 {
	l, h, n := float64(s.Layers), float64(s.Hidden), float64(s.Sequence)
	return 96 * float64(batch) * n * l * h * h * (1 + n/(6*h) + float64(s.Vocabulary)/(16*l*h))
}

// TrainingDays is the rule of thumb 8 T P / (n X).
func TrainingDays(parameters, tokens float64, gpus int, flops float64) float64 {
	return 8 * tokens * parameters / (float64(gpus) * flops) / day
}
