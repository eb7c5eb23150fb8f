package planner

import (
	"context"
	"errors"
	"fmt"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/job"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/search"
)

// Into how many parts embedding and head are divided, where the configuration leaves it open.
//
// Approach. Whole ones are faster: their logits are computed once, and each is brought to the device once. So parts are considered only where
// nothing fits; then twice as many as before, until something does.
//
// Known weakness: where a plan with a whole head fits, but recomputes and swaps for want of memory, one in parts might be faster.

// vocabularyKey names the decision in configurations.
const vocabularyKey = "plan.vocabulary_parts"

// checkVocabulary refuses a vocabulary that cannot be in as many parts as the configuration wants.
func checkVocabulary(spec *job.Spec, m *model.Model, docs *graph.Documents) error {
	n, asked := spec.Vocabulary, spec.Plan.VocabularyParts
	switch p := &spec.Plan; {
	case spec.Given(vocabularyKey) && asked < 1:
		return spec.Fault(vocabularyKey, fmt.Sprintf("there cannot be %d parts; hint: use at least 1, or leave it out", asked))
	case n <= 1:
		return nil
	case max(spec.Ranks, 1) > 1 || p.Pipeline > 1:
		return spec.Fault(vocabularyKey, "parts of a vocabulary are for one rank; hint: leave it out: ranks divide embedding and head with plan.tensor or zero stages")
	}
	if state, settled := spec.State(); settled && state == plan.PackedMoments {
		return spec.Fault(vocabularyKey, fmt.Sprintf("blocks of optimizer_state %s would be others in parts of a matrix; hint: use bf16_moments, or leave plan.vocabulary_parts out", state))
	}
	if err := graph.CheckVocabulary(m, n, docs); err != nil {
		return spec.Fault(vocabularyKey, err.Error())
	}
	return nil
}

// planInParts plans with a vocabulary in parts, for a task for which the device is too small otherwise. If nothing fits, it returns the
// misfit of the plan that lacks least.
func planInParts(ctx context.Context, t *Task, note func(string), misfit error) (*search.Result, error) {
	var e *search.Misfit
	if !errors.As(misfit, &e) || e.Tier != device.DeviceTier || t.Spec.Given(vocabularyKey) || t.Spec.Plan.File != "" || t.Machine.Ranks() > 1 || t.Spec.TrainWithin > 0 {
		return nil, misfit
	}
	for n := 2; n <= graph.MostVocabParts; n *= 2 {
		part := *t
		part.Spec = t.Spec.WithVocabulary(n)
		g, err := BuildGraph(part.Spec, t.Graph.Model, t.Graph.Documents)
		if err != nil {
			return nil, misfit // there cannot be parts, or not so many
		}
		part.Graph = g
		if 2*n <= graph.MostVocabParts && largestPart(g) > t.Machine.Capacity[device.DeviceTier] {
			continue
		}
		note(fmt.Sprintf("embedding and head in %d parts", n))
		best, err := part.planAny(ctx, note, false)
		if !errors.Is(err, search.ErrDoesNotFit) {
			return best, err
		}
		if lack(err) >= lack(misfit) {
			return nil, misfit // it is not the vocabulary that is too large
		}
		misfit = err
	}
	return nil, misfit
}

// largestPart returns the bytes of a part of the vocabulary, and of its gradient, which are on the device at once.
func largestPart(g *graph.Graph) (most int64) {
	for i := range g.Params {
		if g.Vocabulary.Part(i) == 0 {
			continue
		}
		bytes := g.Stored(i).Bytes()
		if !g.Params[i].Frozen {
			bytes += g.Stored(i).Elems() * graph.F32.Size()
		}
		most = max(most, bytes)
	}
	return most
}
