package run

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/athanor-llm/athanor/checkpoint"
	"github.com/athanor-llm/athanor/checkpoint/safetensors"
	"github.com/athanor-llm/athanor/data"
	"github.com/athanor-llm/athanor/session"
)

// Preference optimisation. The reference is the model as the run begins with it. What it has of the data, two log-probabilities for
// each pair, never changes, so they are computed once, by the evaluation between steps, before the first step. Later the
// weights are others: checkpoints have the numbers, and a run that goes on takes them from there.

// reference holds the log-probabilities of each pair's chosen and rejected document under the reference.
type reference struct{ train, held []float32 }

// referenceState names the group of a checkpoint's tensors, and those in it.
const referenceState = "reference"

// preferring reports whether the run trains on pairs.
func (t *Trainer) preferring() bool { return t.Setup.Graph.Preference() > 0 }

// refer computes the reference, unless it is known or there are no pairs. say receives what it does; nil: it is silent.
func (t *Trainer) refer(ctx context.Context, say func(text string)) error {
	if !t.preferring() || t.reference.train != nil {
		return nil
	}
	if say == nil {
		say = func(string) {}
	}
	train, held := t.Setup.Train, t.Setup.Held
	all, began, told := train.Count()+held.Count(), time.Now(), time.Now()
	say(fmt.Sprintf("reference: the log-probabilities of %d pairs under the weights that the run begins with, once", all))
	list := make([]float32, 0, 2*all)
	for _, w := range []data.Windows{train, held} {
		for first := int64(0); first < w.Count(); {
			if err := ctx.Err(); err != nil {
				return err
			}
			n := int(min(w.Count()-first, int64(t.Setup.Config.GlobalBatch)))
			for r := range n {
				w.Copy(t.row(r), first+int64(r))
			}
			out, _, err := t.evaluate(context.WithoutCancel(ctx), n, nil)
			if err != nil {
				return err
			}
			if k := slices.IndexFunc(out.Ratios[:2*n], func(x float32) bool { return !finite(float64(x)) }); k >= 0 {
				at := w.Tokens(first + int64(k/2))
				return fmt.Errorf("reference: the log-probability of an answer in tokens %d to %d of %s is %v: %w; hint: are the weights that the run begins with whole? precision: fp32 has a wider range",
					at.First, at.End, t.Setup.nameOf(at.Tokens), out.Ratios[k], ErrNumeric)
			}
			list = append(list, out.Ratios[:2*n]...)
			first += int64(n)
			if time.Since(told) > 10*time.Second {
				told = time.Now()
				say(fmt.Sprintf("reference: %d of %d pairs", len(list)/2, all))
			}
		}
	}
	say(fmt.Sprintf("reference: done in %v", time.Since(began).Round(time.Second/10)))
	t.reference = reference{list[: 2*train.Count() : 2*train.Count()], list[2*train.Count():]}
	return nil
}

// row is a row of the batch: a window.
func (t *Trainer) row(r int) []int32 {
	n := t.Setup.Config.SequenceLength + 1
	return t.rows[r*n : (r+1)*n]
}

// evaluate computes the loss of the first rows of the batch, over so many targets; the other rows have none. reference is what it has of
// those rows, if they are pairs.
func (t *Trainer) evaluate(ctx context.Context, rows int, reference []float32) (out session.Outcome, targets int, err error) {
	c := t.Setup.Config
	sc := session.Scalars{Targets: t.split(rows), Beta1: c.Beta1, Beta2: c.Beta2}
	if len(reference) > 0 {
		sc.Reference = slices.Grow(reference, 2*c.GlobalBatch)[:2*c.GlobalBatch]
		clear(sc.Reference[2*rows:])
	}
	out, err = t.Session.Step(ctx, evaluating, t.tokens, t.targets, sc)
	return out, sc.Targets, err
}

// of returns what the reference has of a window, none where there are no pairs.
func of(list []float32, window int64) []float32 {
	if list == nil {
		return nil
	}
	return list[2*window : 2*window+2]
}

// groups returns the reference as a part of checkpoints.
func (r *reference) groups() []checkpoint.Group {
	if r.train == nil {
		return nil
	}
	g := checkpoint.Group{Name: referenceState}
	for _, part := range r.parts() {
		g.Tensors = append(g.Tensors, safetensors.Tensor{
			Info: safetensors.Info{Name: part.name, DType: safetensors.F32, Shape: []int{len(*part.list) / 2, 2}},
			Data: func(w io.Writer) error { return safetensors.WriteFloat32(w, safetensors.F32, *part.list) },
		})
	}
	return []checkpoint.Group{g}
}

type referencePart struct {
	name string
	list *[]float32
}

func (r *reference) parts() []referencePart {
	return []referencePart{{"train", &r.train}, {"held", &r.held}}
}

// load reads the reference of a checkpoint, which must be of as many pairs.
func (r *reference) load(ck *checkpoint.Checkpoint, s *Setup) error {
	set := ck.State(referenceState)
	if set == nil {
		return fmt.Errorf("the reference's log-probabilities are missing (state/%s.safetensors), and they cannot be computed with weights that are trained", referenceState)
	}
	for k, part := range r.parts() {
		want := []int{int([]data.Windows{s.Train, s.Held}[k].Count()), 2}
		info, ok := set.Lookup(part.name)
		if !ok || !slices.Equal(info.Shape, want) {
			return fmt.Errorf("the reference's log-probabilities %s have shape %v, and the data %v; hint: resume with the data of the checkpoint", part.name, info.Shape, want)
		}
		*part.list = make([]float32, 2*want[0])
		if err := set.ReadFloat32(part.name, 0, *part.list); err != nil {
			return err
		}
	}
	return nil
}

// Rewards are what a batch of pairs says beside its loss. A document's reward is beta times the logarithm of how much likelier it is than
// under the reference.
type Rewards struct {
	Accuracy float64 `json:"reward_accuracy"` // share of the pairs whose chosen document has the greater reward
	Margin   float64 `json:"reward_margin"`   // mean of the chosen's reward less the rejected's
	Chosen   float64 `json:"reward_chosen"`   // mean
	Rejected float64 `json:"reward_rejected"` // mean
}

// add adds pairs, whose ratios a step returned, as so many of the pairs of a mean.
func (r *Rewards) add(ratios []float32, beta float64, of int) {
	for k := 0; k+1 < len(ratios); k += 2 {
		chosen, rejected := beta*float64(ratios[k])/float64(of), beta*float64(ratios[k+1])/float64(of)
		r.Chosen += chosen
		r.Rejected += rejected
		r.Margin += chosen - rejected
		if ratios[k] > ratios[k+1] {
			r.Accuracy += 1 / float64(of)
		}
	}
}

// Text is a line about them.
func (r *Rewards) Text() string {
	return fmt.Sprintf("reward margin %.4f  accuracy %.0f %%", r.Margin, 100*r.Accuracy)
}

// curves are those of TensorBoard.
func (r *Rewards) curves(prefix string) []scalar {
	return []scalar{{prefix + "/reward_accuracy", r.Accuracy}, {prefix + "/reward_margin", r.Margin}, {prefix + "/reward_chosen", r.Chosen}, {prefix + "/reward_rejected", r.Rejected}}
}
