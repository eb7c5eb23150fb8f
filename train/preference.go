package train

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/athanor-llm/athanor/checkpoint"
	"github.com/athanor-llm/athanor/checkpoint/safetensors"
	"github.com/athanor-llm/athanor/data"
	"github.com/athanor-llm/athanor/folder"
	"github.com/athanor-llm/athanor/internal/stat"
	"github.com/athanor-llm/athanor/session"
)

// Preference optimisation. The reference, if the loss has one, is the model with which the run begins. Its log-probabilities of the data, two for
// each pair, never change, so they are computed once, by the evaluation between steps, before the first step. Later the
// weights have changed, so checkpoints hold these numbers, and a resumed run takes them from there.

// reference holds the log-probabilities of each pair's chosen and rejected document under the reference.
type reference struct {
	train, held []float32
	none        bool // the loss has none: all are zeros
}

// referenceState names the reference's group of tensors in a checkpoint, and the tensors in it.
const referenceState = "reference"

// preferring reports whether the run trains on pairs.
func (s *Setup) preferring() bool { return s.Graph.Preference() > 0 }

// refer computes the reference, unless it is known or there are no pairs. say receives progress messages; nil: there are none.
func (t *Run) refer(ctx context.Context, say func(text string)) error {
	if !t.Setup.preferring() || t.reference.train != nil {
		return nil
	}
	if say == nil {
		say = func(string) {}
	}
	train, held := t.Setup.Train, t.Setup.Held
	if !t.Setup.Spec.PairLoss.Rule().Reference { // it takes the place of none: zeros are subtracted
		n := 2 * train.Pairs(train.Count())
		t.reference = reference{make([]float32, n), make([]float32, 2*held.Pairs(held.Count())), true}
		return nil
	}
	all, began, told := train.Pairs(train.Count())+held.Pairs(held.Count()), time.Now(), time.Now()
	say(fmt.Sprintf("reference: computing the log-probabilities of %d pairs under the initial weights, once", all))
	list := make([]float32, 0, 2*all)
	for _, w := range []data.Windows{train, held} {
		for first := int64(0); first < w.Count(); {
			if err := ctx.Err(); err != nil {
				return err
			}
			n := min(w.Count()-first, int64(t.Setup.Spec.GlobalBatch))
			t.pairs.clear(len(t.batch.Tokens))
			for r := range n {
				w.Copy(t.row(int(r)), first+r)
				t.pair(int(r), w, first+r, nil)
			}
			out, _, err := t.evaluate(context.WithoutCancel(ctx), int(n))
			if err != nil {
				return err
			}
			for k, at := range t.pairs.begins {
				if x := out.Ratios[at]; !stat.Finite(float64(x)) {
					var documents []data.Stretch
					for r := range n {
						documents = append(documents, w.Stretches(first+r)...)
					}
					return fmt.Errorf("reference: the log-probability of an answer in tokens %d to %d of %s is %v: %w; hint: check that the initial weights are finite, or set precision: fp32",
						documents[k].First, documents[k].End, t.Setup.nameOf(documents[k].Tokens), x, folder.ErrNumeric)
				}
				list = append(list, out.Ratios[at])
			}
			first += n
			if time.Since(told) > 10*time.Second {
				told = time.Now()
				say(fmt.Sprintf("reference: %d of %d pairs", len(list)/2, all))
			}
		}
	}
	say(fmt.Sprintf("reference: done in %v", time.Since(began).Round(time.Second/10)))
	cut := 2 * train.Pairs(train.Count())
	t.reference = reference{train: list[:cut:cut], held: list[cut:]}
	return nil
}

// pairs are the pairs of a batch.
type pairs struct {
	begins    []int     // positions of their documents' first tokens, of chosen and rejected documents alternately
	reference []float32 // by token: the reference's log-probability of each document, at its first token
}

// clear removes all pairs from a batch of tokens.
func (p *pairs) clear(tokens int) {
	p.begins = p.begins[:0]
	p.reference = slices.Grow(p.reference[:0], tokens)[:tokens]
	clear(p.reference)
}

// pair records the pairs of window i, which occupies a row of the batch. The caller clears the pairs before the first row. known
// holds the reference's log-probabilities for all windows, or nil if they are not known yet. Without preferences it does nothing.
func (t *Run) pair(row int, w data.Windows, i int64, known []float32) {
	if !t.Setup.preferring() {
		return
	}
	p := &t.pairs
	n := len(p.begins)
	p.begins = w.Begins(p.begins, i)
	for k := n; k < len(p.begins); k++ {
		p.begins[k] += row * t.Setup.Spec.SequenceLength
		if known != nil {
			p.reference[p.begins[k]] = known[2*w.Pairs(i):][k-n]
		}
	}
}

// row returns a row of the batch: a window.
func (t *Run) row(r int) []int32 {
	n := t.Setup.Spec.SequenceLength + 1
	return t.rows[r*n : (r+1)*n]
}

// evaluate computes the loss of the first rows of the batch and counts their targets; the other rows have none.
func (t *Run) evaluate(ctx context.Context, rows int) (out session.Outcome, targets int, err error) {
	spec := t.Setup.Spec
	sc := session.Scalars{Targets: t.split(rows), Beta1: spec.Beta1, Beta2: spec.Beta2}
	if t.Setup.preferring() {
		sc.Reference = t.pairs.reference
	}
	out, err = t.Session.Step(ctx, evaluating, session.Batch(t.batch), sc)
	return out, sc.Targets, err
}

// groups returns the reference as a part of checkpoints.
func (r *reference) groups() []checkpoint.Group {
	if r.train == nil || r.none {
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

// load reads the reference of a checkpoint, which must cover the same number of pairs.
func (r *reference) load(ck *checkpoint.Checkpoint, s *Setup) error {
	set := ck.State(referenceState)
	if set == nil {
		return fmt.Errorf("the reference's log-probabilities are missing (state/%s.safetensors), and they cannot be computed again, since the weights have been trained; hint: resume from another checkpoint", referenceState)
	}
	for k, part := range r.parts() {
		w := []data.Windows{s.Train, s.Held}[k]
		want := []int{int(w.Pairs(w.Count())), 2}
		info, ok := set.Lookup(part.name)
		if !ok || !slices.Equal(info.Shape, want) {
			return fmt.Errorf("the reference's log-probabilities (%s) have shape %v, but the data requires %v; hint: resume with the data of the checkpoint", part.name, info.Shape, want)
		}
		*part.list = make([]float32, 2*want[0])
		if err := set.ReadFloat32(part.name, 0, *part.list); err != nil {
			return err
		}
	}
	return nil
}

// Rewards are what a batch of pairs yields besides its loss. A document's reward is beta times the logarithm of the ratio of its
// probability to that under the reference.
type Rewards struct {
	Pairs    int     `json:"pairs"`           // that the rest is about
	Accuracy float64 `json:"reward_accuracy"` // share of the pairs whose chosen document has the greater reward
	Margin   float64 `json:"reward_margin"`   // mean of the chosen reward minus the rejected one
	Chosen   float64 `json:"reward_chosen"`   // mean
	Rejected float64 `json:"reward_rejected"` // mean
}

// add adds a batch of pairs, whose ratios a step returned.
func (r *Rewards) add(p *pairs, ratios []float32, beta float64) {
	for k := 0; k+1 < len(p.begins); k += 2 {
		one, other := ratios[p.begins[k]], ratios[p.begins[k+1]]
		chosen, rejected := beta*float64(one), beta*float64(other)
		r.Chosen += chosen
		r.Rejected += rejected
		r.Margin += chosen - rejected
		if one > other {
			r.Accuracy++
		}
		r.Pairs++
	}
}

// mean returns the means over the pairs that were added.
func (r *Rewards) mean() *Rewards {
	n := float64(max(r.Pairs, 1))
	return &Rewards{r.Pairs, r.Accuracy / n, r.Margin / n, r.Chosen / n, r.Rejected / n}
}

// Text returns a line about them.
func (r *Rewards) Text() string {
	return fmt.Sprintf("reward margin %.4f  accuracy %.0f %%", r.Margin, 100*r.Accuracy)
}

// curves returns the points for TensorBoard.
func (r *Rewards) curves(prefix string) []scalar {
	return []scalar{{prefix + "/reward_accuracy", r.Accuracy}, {prefix + "/reward_margin", r.Margin}, {prefix + "/reward_chosen", r.Chosen}, {prefix + "/reward_rejected", r.Rejected}}
}
