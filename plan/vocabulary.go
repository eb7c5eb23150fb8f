package plan

import (
	"errors"
	"fmt"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
)

// Vocabularies in parts, see graph.BuildVocabulary: what reads embedding and head are units of one part each.

// validateVocabulary checks the parts of a vocabulary.
func (pl *Plan) validateVocabulary(g *graph.Graph) error {
	switch n := max(pl.VocabularyParts, 1); {
	case n != max(g.Vocabulary.Parts, 1):
		return fmt.Errorf("plan: the vocabulary is in %d parts, but in the run in %d; hint: make a new plan, or set plan.vocabulary_parts: %[1]d", n, max(g.Vocabulary.Parts, 1))
	case n == 1:
		return nil
	case pl.State == PackedMoments:
		return fmt.Errorf("plan: optimizer_state %q has blocks that would be others in parts of a vocabulary; hint: leave out vocabulary_parts, or use another optimizer_state", pl.State)
	case pl.Ranks > 1:
		return errors.New("plan: vocabulary_parts is for one rank; hint: leave it out")
	}
	return nil
}

// CacheNeeded returns the minimum valid Plan.Cache: the maximum over segments of the
// bytes of cached chunks (compact, on the host or the disk, or sharded over ranks) that a segment reads.
func (pl *Plan) CacheNeeded(g *graph.Graph) (most int64) {
	bytes := make([]int64, len(g.Params)) // bytes by the first parameter of each cached chunk
	for _, c := range pl.Chunks {
		if c.Compact || c.Lookup == "" && c.Weights > device.DeviceTier || c.Shard == "weights" && pl.Replicas()*g.Terms(c.First) > pl.Sharers() {
			for i := c.First; i < c.Last; i++ {
				bytes[c.First] += g.Stored(i).Bytes()
			}
		}
	}
	for s := range g.Segments {
		for _, together := range g.Segments[s].ReadTogether() {
			var sum int64
			for _, p := range together {
				sum += bytes[p]
			}
			most = max(most, sum)
		}
	}
	return most
}
