package session

import (
	"slices"

	"github.com/athanor-llm/athanor/graph"
)

// noise is what the tokens of a batch draw random numbers from: their keys, see graph.NoiseKey.
type noise []int32

// draw makes it that of a step: zeros, which are no noise, where nothing is trained.
func (n *noise) draw(tokens int, trains bool, sc Scalars) {
	*n = slices.Grow((*n)[:0], tokens)[:tokens]
	clear(*n)
	for t := range *n {
		if trains {
			(*n)[t] = graph.NoiseKey(sc.Seed, sc.Step, t)
		}
	}
}
