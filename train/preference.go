package train

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"time"

	"github.com/athanor-llm/athanor/checkpoint"
	"github.com/athanor-llm/athanor/checkpoint/safetensors"
	"github.com/athanor-llm/athanor/data"
	"github.com/athanor-llm/athanor/folder"
	"github.com/athanor-llm/athanor/internal/stat"
	"github.com/athanor-llm/athanor/session"
)

// Preference optimisation. The reference, if the loss has one, is the model with which the run begins. Its log-probabilities of the data, one for
// each document, never change, so they are computed once, by the evaluation between steps, before the first step. Later the
// weights have changed, so checkpoints hold these numbers, and a resumed run takes them from there.

// reference holds the log-probabilities of each document under the reference: of pairs, of chosen and rejected ones alternately.
type reference struct {
	train, held []float32
	mismatched  struct{ train, held []float32 } // of Setup.mismatched
	none        bool                            // the loss has none: all are zeros
}

// referenceState names the reference's group of tensors in a checkpoint, and the tensors in it.
const referenceState = "reference"

// preferring reports whether the run trains on pairs, or on single answers that are good or bad.
func (s *Setup) preferring() bool { return s.Graph.Preference() > 0 }

// refer computes the reference, unless it is known or there are no pairs. say receives progress messages; nil: there are none.
func (t *Run) refer(ctx context.Context, say func(text string)) error {
	if !t.Setup.preferring() || t.reference.train != nil {
		return nil
	}
	if say == nil {
		say = func(string) {}
	}
	var r reference
	r.none = !t.Setup.Spec.PairLoss.Rule().Reference // it takes the place of none: zeros are subtracted
	parts, all, done := r.parts(t.Setup), int64(0), int64(0)
	for _, part := range parts {
		all += part.windows.Documents(part.windows.Count())
		*part.list = make([]float32, part.windows.Documents(part.windows.Count()))
	}
	if r.none {
		t.reference = r
		return nil
	}
	what, each := "pairs", int64(2)
	if t.Setup.Spec.Unpaired() {
		what, each = "documents", 1
	}
	began, told := time.Now(), time.Now()
	say(fmt.Sprintf("reference: computing the log-probabilities of %d %s under the initial weights, once", all/each, what))
	for _, part := range parts {
		rest := *part.list
		for first := int64(0); first < part.windows.Count(); {
			if err := ctx.Err(); err != nil {
				return err
			}
			n := min(part.windows.Count()-first, int64(t.Setup.Spec.GlobalBatch))
			t.drawn = t.drawn[:0]
			for i := range n {
				t.drawn = append(t.drawn, first+i)
			}
			list, err := batched{t}.ratios(context.WithoutCancel(ctx), part.windows, t.drawn, nil)
			if err != nil {
				return err
			}
			done += int64(copy(rest, list))
			rest = rest[len(list):]
			first += n
			if time.Since(told) > 10*time.Second {
				told = time.Now()
				say(fmt.Sprintf("reference: %d of %d %s", done/each, all/each, what))
			}
		}
	}
	say(fmt.Sprintf("reference: done in %v", time.Since(began).Round(time.Second/10)))
	t.reference = r
	return nil
}

// batched is the batch of a run on pairs or answers.
type batched struct{ *Run }

// ratios evaluates windows and returns how much likelier each of their documents is than known, the list of the reference for these
// windows, says; nil: their log-probabilities. They are valid until the next call.
func (t batched) ratios(ctx context.Context, w data.Windows, numbers []int64, known []float32) ([]float32, error) {
	t.fill(w, numbers, known)
	out, _, err := t.evaluate(ctx, len(numbers))
	if err != nil {
		return nil, err
	}
	list := t.pairs.list[:0]
	for k, at := range t.pairs.begins {
		x := out.Ratios[at]
		if known == nil && !stat.Finite(float64(x)) {
			return nil, t.notFinite(w, numbers, k, x)
		}
		list = append(list, x)
	}
	t.pairs.list = list
	return list, nil
}

// notFinite is the error of a document of windows whose log-probability is x.
func (t batched) notFinite(w data.Windows, numbers []int64, document int, x float32) error {
	for _, i := range numbers {
		n := int(w.Documents(i+1) - w.Documents(i))
		if document >= n {
			document -= n
			continue
		}
		list := w.Stretches(i)
		d := list[document*(len(list)/n)] // of a mismatched one, its prompt
		return fmt.Errorf("reference: the log-probability of an answer in tokens %d to %d of %s is %v: %w; hint: check that the initial weights are finite, or set precision: fp32",
			d.First, d.End, t.Setup.nameOf(d.Tokens), x, folder.ErrNumeric)
	}
	return folder.ErrNumeric
}

// pairs are the documents of a batch of pairs, or of single answers.
type pairs struct {
	begins    []int     // positions of their first tokens; of pairs, of chosen and rejected documents alternately
	reference []float32 // by token: what is subtracted from the log-probability of each document, at its first token
	verdicts  []float32 // by token, of single answers: see graph.Preference
	values    []float32 // by token, of texts that have one: see data.Windows.Values
	kl        float64   // which is in reference, of single answers
	good      []bool
	list      []float32 // of ratios
}

// reward adds the batch, whose ratios a step returned, to rewards.
func (p *pairs) reward(sum *folder.Rewards, ratios []float32, beta float64) {
	if len(p.good) > 0 {
		sum.AddAnswers(p.begins, p.good, ratios, p.kl, beta)
		return
	}
	sum.AddPairs(p.begins, ratios, beta)
}

// clear removes all documents from a batch of tokens.
func (p *pairs) clear(tokens int) {
	p.begins, p.kl = p.begins[:0], 0
	for _, list := range []*[]float32{&p.reference, &p.verdicts} {
		*list = slices.Grow((*list)[:0], tokens)[:tokens]
		clear(*list)
	}
}

// fill makes windows the rows of the batch. known holds the reference's log-probabilities of the documents of all windows, or nil if they are
// not known yet or there are no preferences.
func (t batched) fill(w data.Windows, numbers []int64, known []float32) {
	for row, i := range numbers {
		w.Copy(t.row(row), i)
	}
	t.pair(w, numbers, known)
}

// pair records the documents of windows that are the rows of the batch, as fill does, or their values. Without either it does nothing.
func (t batched) pair(w data.Windows, numbers []int64, known []float32) {
	if n := t.Setup.Spec.SequenceLength; t.Setup.Spec.Regresses() {
		values := slices.Grow(t.pairs.values[:0], len(t.batch.Tokens))[:len(t.batch.Tokens)]
		for row, i := range numbers {
			w.Values(values[row*n:][:n], i)
		}
		t.pairs.values = values
	}
	if !t.Setup.preferring() {
		return
	}
	p := &t.pairs
	p.clear(len(t.batch.Tokens))
	for row, i := range numbers {
		n := len(p.begins)
		p.begins = w.Begins(p.begins, i)
		for k := n; k < len(p.begins); k++ {
			p.begins[k] += row * t.Setup.Spec.SequenceLength
			if known != nil {
				p.reference[p.begins[k]] = known[w.Documents(i):][k-n]
			}
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
	sc := session.Scalars{Targets: t.split(rows), Beta1: spec.Beta1, Beta2: spec.Beta2, Values: t.pairs.values}
	if t.Setup.preferring() {
		sc.Reference, sc.Verdicts = t.pairs.reference, t.pairs.verdicts
	}
	out, err = t.Session.Step(ctx, evaluating, session.Batch(t.batch), sc)
	return out, sc.Targets, err
}

// preferred returns how the run compares answers, for those who evaluate; nil: it does not.
func (s *Setup) preferred() *folder.Preference {
	if !s.preferring() {
		return nil
	}
	p := &folder.Preference{Loss: s.Spec.PairLoss.String(), Beta: s.Spec.Preference.Beta, Margin: s.Spec.Preference.Margin}
	if s.Spec.PairLoss.Rule().Reference {
		p.Reference = cmp.Or(s.Adapter, s.Folder)
		if whole, err := filepath.Abs(p.Reference); err == nil && p.Reference != "" {
			p.Reference = whole
		}
	}
	return p
}

// groups returns the reference as a part of checkpoints.
func (r *reference) groups(s *Setup) []checkpoint.Group {
	if r.train == nil || r.none {
		return nil
	}
	g := checkpoint.Group{Name: referenceState}
	for _, part := range r.parts(s) {
		g.Tensors = append(g.Tensors, safetensors.Tensor{
			Info: safetensors.Info{Name: part.name, DType: safetensors.F32, Shape: part.shape},
			Data: func(w io.Writer) error { return safetensors.WriteFloat32(w, safetensors.F32, *part.list) },
		})
	}
	return []checkpoint.Group{g}
}

type referencePart struct {
	name    string
	list    *[]float32
	windows data.Windows // whose documents it is about
	shape   []int        // in a checkpoint: pairs x 2, or answers
}

func (r *reference) parts(s *Setup) []referencePart {
	list := []referencePart{{name: "train", list: &r.train, windows: s.Train}, {name: "held", list: &r.held, windows: s.Held}}
	if s.Spec.Mismatched() {
		list = append(list, referencePart{name: "mismatched.train", list: &r.mismatched.train, windows: s.mismatched.train},
			referencePart{name: "mismatched.held", list: &r.mismatched.held, windows: s.mismatched.held})
	}
	for k := range list {
		n := int(list[k].windows.Documents(list[k].windows.Count()))
		if list[k].shape = []int{n}; !s.Spec.Unpaired() {
			list[k].shape = []int{n / 2, 2}
		}
	}
	return list
}

// load reads the reference of a checkpoint, which must cover the same number of documents.
func (r *reference) load(ck *checkpoint.Checkpoint, s *Setup) error {
	set := ck.State(referenceState)
	if set == nil {
		return fmt.Errorf("the reference's log-probabilities are missing (state/%s.safetensors), and they cannot be computed again, since the weights have been trained; hint: resume from another checkpoint", referenceState)
	}
	for _, part := range r.parts(s) {
		info, ok := set.Lookup(part.name)
		if !ok || !slices.Equal(info.Shape, part.shape) {
			return fmt.Errorf("the reference's log-probabilities (%s) have shape %v, but the data requires %v; hint: resume with the data of the checkpoint", part.name, info.Shape, part.shape)
		}
		*part.list = make([]float32, part.windows.Documents(part.windows.Count()))
		if err := set.ReadFloat32(part.name, 0, *part.list); err != nil {
			return err
		}
	}
	return nil
}
