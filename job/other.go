package job

import (
	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/plan"
)

// WithSequence returns the job with sequences of so many tokens.
func (s *Spec) WithSequence(tokens int) *Spec {
	own := *s
	own.SequenceLength = tokens
	return &own
}

// WithPrecision returns the job in another precision.
func (s *Spec) WithPrecision(dt graph.DType) *Spec {
	own := *s
	own.Precision, own.Int8, own.FP8 = dt, false, false
	return &own
}

// WithInt8 returns the job with weights that are held and trained in int8.
func (s *Spec) WithInt8() *Spec {
	own := *s
	own.Precision, own.Int8, own.FP8 = graph.F32, true, false
	return &own
}

// WithState returns the job with the optimizer's state in the given format.
func (s *Spec) WithState(f plan.StateFormat) *Spec {
	own := *s
	own.OptimizerState = []plan.StateFormat{f}
	return &own
}

// WithRanks returns the job on so many ranks, and links between host and device throttled to a rate in bytes/s; 0:
// they are not.
func (s *Spec) WithRanks(ranks int, link float64) *Spec {
	own := *s
	own.Ranks, own.Hardware.H2D, own.Hardware.D2H = ranks, config.Rate(link), config.Rate(link)
	return &own
}

// WithPlan returns the job with other decisions that the search must keep.
func (s *Spec) WithPlan(p config.Plan) *Spec {
	own := *s
	own.Plan = p
	own.Share, own.Tensor = shared(&p)
	own.Vocabulary = vocabularyParts(&p)
	return &own
}

// WithShare returns the job with so many ranks to each sequence, and to each matrix.
func (s *Spec) WithShare(sequence, tensor int) *Spec {
	own := *s
	own.Share, own.Tensor = sequence, tensor
	return &own
}

// WithVocabulary returns the job with embedding and head in so many parts.
func (s *Spec) WithVocabulary(parts int) *Spec {
	own := *s
	own.Vocabulary = parts
	return &own
}

// WithSteps returns the job with so many steps, in which its learning rate rises and falls.
func (s *Spec) WithSteps(steps int) *Spec {
	own := *s
	own.asked = s.asked.WithSteps(steps)
	return &own
}

// OnCorpus returns the job for a corpus with that many training sequences, which settles how many steps max_epochs
// are.
func (s *Spec) OnCorpus(sequences int64) *Spec {
	own := *s
	own.asked = s.asked.OnCorpus(sequences)
	return &own
}

// WithoutClipping returns the job with gradients used as they come.
func (s *Spec) WithoutClipping() *Spec {
	own := *s
	own.Clip = 0
	return &own
}

// WithAdapters returns the job with adapters (LoRA) of a rank, which alone are trained.
func (s *Spec) WithAdapters(rank int) *Spec {
	own := *s
	own.LoRA = config.LoRA{Rank: rank}
	return &own
}

// WithQuantized returns the job with weights in 4 bits where they are not trained.
func (s *Spec) WithQuantized() *Spec {
	own := *s
	own.Quantize = config.NF4
	return &own
}

// WithBatch returns the job with steps of so many sequences.
func (s *Spec) WithBatch(sequences int) *Spec {
	own := *s
	own.GlobalBatch = sequences
	return &own
}

// WithFreePlan returns the job whose plan is left to the search, except for how many ranks share sequences and matrices, and for the parts
// of the vocabulary.
func (s *Spec) WithFreePlan() *Spec {
	own := *s
	own.Plan = config.Plan{Sequence: s.Plan.Sequence, Tensor: s.Plan.Tensor, VocabularyParts: s.Plan.VocabularyParts}
	return &own
}

// WithFrozen returns the job in which parameters of these names are not trained.
func (s *Spec) WithFrozen(names []string) *Spec {
	own := *s
	own.Freeze = names
	return &own
}

// ForTrial returns the job of so many steps from the beginning, at the peak of the learning rate, in a folder of their own.
func (s *Spec) ForTrial(out string, steps int) *Spec {
	own := *s
	own.asked = s.asked.WithSteps(steps)
	own.Out, own.Resume, own.Schedule, own.WarmupSteps, own.MaxTime = out, "auto", "constant", 0, 0
	own.Begun, own.Former = nil, nil
	return &own
}
