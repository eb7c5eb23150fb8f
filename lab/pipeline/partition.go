package pipeline

import (
	"fmt"
	"math"

	"github.com/athanor-llm/athanor/schedule"
)

// Cost models the FLOPs of the forward of a causal transformer. A slice of n tokens that
// ends at position L of its sequence takes Linear*n + Quadratic*(n*L - n*n/2), because
// each token attends to all tokens before it.
type Cost struct {
	Linear    float64 // FLOPs per token: projections, feed-forward, head
	Quadratic float64 // FLOPs per pair of a token and one before it: attention
}

// TransformerCost returns the cost of a GPT of this shape (Sun et al. 2024, Seq1F1B, 3.3).
func TransformerCost(layers, hidden, feedForward, heads, vocabulary int) Cost {
	l, h, f, a := float64(layers), float64(hidden), float64(feedForward), float64(heads)
	return Cost{
		Linear:    l*(8*h*h+4*h*f) + 4*h*float64(vocabulary),
		Quadratic: l * a * (4*h/a + 3),
	}
}

// Of returns the FLOPs of the n tokens that end at position end.
func (c Cost) Of(n, end int) float64 {
	return c.Linear*float64(n) + c.Quadratic*(float64(n)*float64(end)-float64(n)*float64(n)/2)
}

// Partition divides a sequence of the given length into slices of equal cost and returns
// their lengths (Sun et al. 2024, Seq1F1B). Later slices attend to more tokens, so they
// are shorter. Lengths are multiples of multiple (the tensor-parallel degree), except
// that the first slice gets the remainder. The error is a *UsageError.
//
// It proceeds from the last slice: n tokens that end at L cost the share T/k of the total
// T if Q/2 n^2 - (A+QL) n + T/k = 0, with A = Linear and Q = Quadratic.
func (c Cost) Partition(tokens, slices, multiple int) ([]int, error) {
	if tokens < 1 || slices < 1 || multiple < 1 || tokens > 1<<40 {
		return nil, &schedule.UsageError{What: fmt.Sprintf("%d tokens in %d splits of multiples of %d", tokens, slices, multiple),
			Why: "all three must be at least one", Hint: "give positive numbers"}
	}
	if tokens/multiple < slices {
		return nil, &schedule.UsageError{What: fmt.Sprintf("%d splits of %d tokens", slices, tokens),
			Why: "a split needs at least " + numbered(multiple, "token"), Hint: "take at most " + numbered(tokens/multiple, "split")}
	}
	if !(c.Linear >= 0) || !(c.Quadratic >= 0) || c.Linear+c.Quadratic == 0 || math.IsInf(c.Linear+c.Quadratic, 0) {
		return nil, &schedule.UsageError{What: fmt.Sprintf("costs %g and %g per token", c.Linear, c.Quadratic), Why: "costs must be finite, not negative and not both 0", Hint: "check the model's sizes"}
	}
	share := c.Of(tokens, tokens) / float64(slices)
	cut := make([]int, slices)
	end := tokens
	for i := slices - 1; i > 0; i-- {
		b := c.Linear + c.Quadratic*float64(end)
		// the smaller root, in the form that also works for Quadratic = 0
		n := 2 * share / (b + math.Sqrt(math.Max(0, b*b-2*c.Quadratic*share)))
		most := (end - i*multiple) / multiple * multiple // leave enough for the slices before
		cut[i] = min(max(int(n)/multiple*multiple, multiple), most)
		end -= cut[i]
	}
	cut[0] = end
	return cut, nil
}

// Factors returns the costs of slices of these lengths relative to their mean, for
// Costs.Slices.
func (c Cost) Factors(cut []int) []float64 {
	factors := make([]float64, len(cut))
	end, total := 0, 0.0
	for i, n := range cut {
		end += n
		factors[i] = c.Of(n, end)
		total += factors[i]
	}
	for i := range factors {
		factors[i] *= float64(len(cut)) / total
	}
	return factors
}

// numbered returns a number with its noun.
func numbered(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}
