package train

import (
	"context"

	"github.com/athanor-llm/athanor/data"
)

// Single answers that are good or bad (KTO, Ethayarajh et al., 2402.01306).
//
// Each loss is relative to kl, an estimate of how far the model has moved from the reference, of which no gradient is taken. It is the mean, over
// the prompts of the whole batch, of how much likelier an answer to another prompt has become, or 0 if that is negative. Which answer a
// prompt gets is fixed with the windows (data.Windows.Mismatched). The estimate is computed before the step, by the evaluation
// between steps, so it is one number whatever the plan does with the batch, and enters the step as a part of what the
// reference says of each document.

// estimate computes the kl of the batch that consists of windows of answers, whose mismatched ones and their log-probabilities under
// the reference are given. It leaves another batch.
func (t batched) estimate(ctx context.Context, mismatched data.Windows, numbers []int64, known []float32) (kl float64, err error) {
	list, err := t.ratios(ctx, mismatched, numbers, known)
	for _, x := range list {
		kl += float64(x)
	}
	return max(kl/float64(max(len(list), 1)), 0), err
}

// judge adds to a batch of answers, which fill has made of windows, their verdicts and kl.
func (t batched) judge(w data.Windows, numbers []int64, kl float64) {
	p, weights := &t.pairs, t.Setup.Spec.Preference
	p.kl, p.good = kl, p.good[:0]
	for _, i := range numbers {
		p.good = w.Good(p.good, i)
	}
	for k, at := range p.begins {
		p.reference[at] = float32(float64(p.reference[at]) + kl)
		if p.verdicts[at] = float32(weights.DesirableWeight); !p.good[k] {
			p.verdicts[at] = -float32(weights.UndesirableWeight)
		}
	}
}

// prepare makes windows, of text to train on or of held text, the batch: with what the reference has of them, and verdicts.
func (t batched) prepare(ctx context.Context, numbers []int64, held bool) error {
	s, r, kl := t.Setup, &t.reference, 0.0
	w, known, mismatched, others := s.Train, r.train, s.mismatched.train, r.mismatched.train
	if held {
		w, known, mismatched, others = s.Held, r.held, s.mismatched.held, r.mismatched.held
	}
	if s.Spec.Mismatched() {
		var err error
		if kl, err = t.estimate(ctx, mismatched, numbers, others); err != nil {
			return err
		}
	}
	t.fill(w, numbers, known)
	if s.Spec.Unpaired() {
		t.judge(w, numbers, kl)
	}
	return nil
}
