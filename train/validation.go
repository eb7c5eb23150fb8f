package train

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/athanor-llm/athanor/checkpoint"
	"github.com/athanor-llm/athanor/folder"
	"github.com/athanor-llm/athanor/internal/stat"
	"github.com/athanor-llm/athanor/session"
)

// Losses on held-out text.

// errInterrupted ends a validation, of which a run may have hours, because the run is to stop.
var errInterrupted = errors.New("interrupted")

// report validates, and reports whether this step's checkpoint is to be kept as the best.
func (t *Run) report(ctx context.Context, o Observer) (better bool, err error) {
	began := time.Now()
	loss, err := t.Validate(ctx)
	if errors.Is(err, errInterrupted) {
		o.Event(fmt.Sprintf("step %d: the validation is broken off, since the run is to stop", t.Step))
	}
	if err != nil {
		return false, err
	}
	t.timing.last = time.Since(began)
	if math.IsNaN(loss) {
		o.Event(fmt.Sprintf("step %d: nothing to validate: no token of the held-out text is learnt; hint: set a larger validation_fraction, or other text as validation", t.Step))
		return false, nil
	}
	t.stall.add(t.Step, loss)
	text := fmt.Sprintf("step %d: validation loss %.4f, perplexity %s", t.Step, loss, stat.Number(math.Exp(loss), 1))
	if t.bitsPerByte > 0 {
		text += fmt.Sprintf(", %.4f bits per byte", t.bitsPerByte)
	}
	if t.accuracy != nil {
		text = fmt.Sprintf("step %d: validation loss %.4f, accuracy %.1f %%", t.Step, loss, 100**t.accuracy)
	}
	if t.fit != nil {
		text = fmt.Sprintf("step %d: validation loss %.4f, %s", t.Step, loss, t.fit)
	}
	if t.rewards != nil {
		text = fmt.Sprintf("step %d: validation loss %.4f, %s", t.Step, loss, t.rewards.Text())
	}
	if better = t.Setup.Spec.KeepBest && (t.Best == nil || loss < t.Best.Loss); better {
		t.Best = &checkpoint.Best{Step: int64(t.Step), Loss: loss}
		text += ", the best so far"
	}
	o.Event(text)
	return better, t.endures.logged(t, t.log.validated(t.Step, loss, t.bitsPerByte, t.accuracy, t.fit, t.rewards), o)
}

// Validate returns the mean loss in nats per token, or per pair, over held-out windows. The
// windows are the same every time: at most EvalBatches batches, spread evenly over the held-out
// text, since it consists of long documents in sequence. NaN: none of their tokens is learnt. If the run is to stop,
// it returns errInterrupted after the batch under way.
func (t *Run) Validate(ctx context.Context) (float64, error) {
	if err := t.refer(context.WithoutCancel(ctx), nil); err != nil {
		return 0, err
	}
	spec := t.Setup.Spec
	t.ValLoss, t.bitsPerByte, t.accuracy, t.fit = math.NaN(), 0, nil, nil
	held := validation{t}
	windows := held.windows()
	var sum float64
	var rewards folder.Rewards
	var fit folder.Fit
	all, bytes, correct := 0, int64(0), 0
	for first := int64(0); first < windows; first += int64(spec.GlobalBatch) {
		if t.Setup.stopping(ctx) {
			return 0, errInterrupted
		}
		out, targets, err := held.batch(first, windows)
		if err != nil {
			return 0, err
		}
		sum += out.Loss * float64(targets)
		all += targets
		if t.Setup.Spec.Classifies() {
			if err := t.guess(&correct, &fit); err != nil {
				return 0, err
			}
		} else {
			bytes += t.Setup.Tokenizer.Bytes(t.batch.Targets)
		}
		if t.Setup.preferring() {
			t.pairs.reward(&rewards, out.Ratios, spec.Preference.Beta)
		}
	}
	if all == 0 {
		return t.ValLoss, nil
	}
	loss := sum / float64(all)
	if !stat.Finite(loss) {
		return 0, held.broken(loss)
	}
	t.ValLoss = loss
	switch share := float64(correct) / float64(all); {
	case t.Setup.Spec.Regresses():
		t.fit = fit.Closeness()
	case t.Setup.Spec.Classifies():
		t.accuracy = &share
	case t.Setup.preferring():
		t.rewards = rewards.Mean()
	default:
		t.bitsPerByte = stat.BitsPerByte(sum, bytes)
	}
	return t.ValLoss, nil
}

// validation is the held-out windows that a run validates with.
type validation struct{ *Run }

// windows returns their number.
func (t validation) windows() int64 {
	return min(t.Setup.Held.Count(), int64(t.Setup.Spec.EvalBatches*t.Setup.Spec.GlobalBatch))
}

// lasts returns how long a validation takes at so many seconds per step, of which it computes the forward passes.
func (t validation) lasts(step float64) time.Duration {
	batch := int64(t.Setup.Spec.GlobalBatch)
	return time.Duration(float64((t.windows()+batch-1)/batch) * step * t.Setup.forwardShare() * float64(time.Second))
}

// forwardShare is the forward pass's share of a step.
func (s *Setup) forwardShare() float64 {
	forward, backward := s.Graph.FLOPs()
	return float64(forward) / float64(forward+backward)
}

// LastValidation returns how long the validation after a run's last step is expected to take.
func LastValidation(t *Run) time.Duration { return t.timing.last }

// batch evaluates the windows from number first on, of so many, and returns the number of their targets.
func (t validation) batch(first, windows int64) (session.Outcome, int, error) {
	held := t.Setup.Held
	rows := int(min(windows-first, int64(t.Setup.Spec.GlobalBatch)))
	t.drawn = t.drawn[:0]
	for r := range rows {
		t.drawn = append(t.drawn, (first+int64(r))*held.Count()/windows)
	}
	if err := (batched{t.Run}).prepare(context.Background(), t.drawn, true); err != nil {
		return session.Outcome{}, 0, err
	}
	return t.evaluate(context.Background(), rows)
}

// sound returns an error if the weights give no finite loss of the first batch.
func (t validation) sound() error {
	if err := t.refer(context.Background(), nil); err != nil || t.windows() == 0 {
		return err
	}
	out, targets, err := t.batch(0, t.windows())
	if err == nil && targets > 0 && !stat.Finite(out.Loss) {
		err = t.broken(out.Loss)
	}
	return err
}

// broken is the error of weights that an update has made useless.
func (t validation) broken(loss float64) error {
	return folder.NotFinite(fmt.Errorf("step %d: the validation loss is %v: numbers are not finite; hint: %s; use a lower learning_rate", t.Step, loss, t.lastCheckpoint()))
}
