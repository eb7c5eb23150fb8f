package schedule

import (
	"fmt"
	"math"
)

// Cost is what tokens cost in a causal transformer, in FLOPs of a forward: a slice of n tokens that ends at prefix length
// L (inclusive) costs Linear*n + Quadratic*(n*L - n*n/2), because each token attends to all tokens before it.
type Cost struct {
	Linear    float64 // per token: projections, feed-forward, head
	Quadratic float64 // per token and token before it: attention
}

// TransformerCost is the cost of a GPT of this shape (Sun et al. 2024, Seq1F1B, 3.3).
func TransformerCost(layers, hidden, feedForward, heads, vocabulary int) Cost {
	l, h, f, a := float64(layers), float64(hidden), float64(feedForward), float64(heads)
	return Cost{
		Linear:    l*(8*h*h+4*h*f) + 4*h*float64(vocabulary),
		Quadratic: l * a * (4*h/a + 3),
	}
}

// Of is the cost of the n tokens that end at prefix length end.
func (c Cost) Of(n, end int) float64 {
	return c.Linear*float64(n) + c.Quadratic*(float64(n)*float64(end)-float64(n)*float64(n)/2)
}

// Partition cuts a sequence of tokens into slices of equal cost (Sun et al. 2024): later slices attend to more tokens, so
// they are shorter. Slices are multiples of a number of tokens (the tensor-parallel degree), except that the first takes
// what is left over.
//
// The slices are found from the end, where n tokens cost T/k if C/2 n^2 - (A+CL) n + T/k = 0.
func (c Cost) Partition(tokens, slices, multiple int) ([]int, error) {
	if tokens < 1 || slices < 1 || multiple < 1 || tokens > 1<<40 {
		return nil, &UsageError{fmt.Sprintf("%d tokens in %d splits of multiples of %d", tokens, slices, multiple),
			"all three are at least one", "give positive numbers"}
	}
	if tokens/multiple < slices {
		return nil, &UsageError{fmt.Sprintf("%d splits of %d tokens", slices, tokens),
			fmt.Sprintf("a split has at least %s", plural(multiple, "token")), fmt.Sprintf("take at most %s", plural(tokens/multiple, "split"))}
	}
	if !(c.Linear >= 0) || !(c.Quadratic >= 0) || c.Linear+c.Quadratic == 0 || math.IsInf(c.Linear+c.Quadratic, 0) {
		return nil, &UsageError{fmt.Sprintf("costs %g and %g per token", c.Linear, c.Quadratic), "costs are finite and positive", "check the model's sizes"}
	}
	share := c.Of(tokens, tokens) / float64(slices)
	cut := make([]int, slices)
	end := tokens
	for i := slices - 1; i > 0; i-- {
		b := c.Linear + c.Quadratic*float64(end)
		// the smaller root in the form that also holds for Quadratic = 0
		n := 2 * share / (b + math.Sqrt(math.Max(0, b*b-2*c.Quadratic*share)))
		most := (end - i*multiple) / multiple * multiple // leave something for the slices before
		cut[i] = min(max(int(n)/multiple*multiple, multiple), most)
		end -= cut[i]
	}
	cut[0] = end
	return cut, nil
}

// Factors are the costs of the slices relative to their mean, for Costs.Slices.
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
