package folder

import (
	"context"
	"errors"
	"fmt"

	"github.com/athanor-llm/athanor/data"
	"github.com/athanor-llm/athanor/internal/stat"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/session"
)

// Greatest returns the index of the greatest of some numbers, the first of several.
func Greatest(list []float32) (best int) {
	for i, x := range list {
		if x > list[best] {
			best = i
		}
	}
	return best
}

// Guessed says how well a model guesses the labels of texts.
type Guessed struct {
	Loss     float64 // mean over the texts, nats
	Accuracy float64 // share of them whose label has the greatest logit
	Texts    int
	Footprint
}

// Guess evaluates a model that chooses among labels on rows of a text and a label, in at most limit sequences of seq tokens; 0: as HeldOut.
// The error is a *search.Misfit if the device has too little memory.
func Guess(ctx context.Context, f *Folder, texts Texts, seq, limit int, progress Progress) (*Guessed, error) {
	if len(f.Model.Labels) < 2 {
		return nil, misuse{errors.New("a reward model has no labels to guess; hint: the run that trains it says how many pairs it ranks rightly")}
	}
	seq, err := f.length(seq)
	if err != nil {
		return nil, err
	}
	t, err := f.tokens(ctx, texts, progress)
	if err != nil {
		return nil, err
	}
	defer t.Close()
	w, _, err := t.Labelled(t.All(), seq)
	if err != nil {
		return nil, misuse{err}
	}
	if err := f.SeparateDocuments(); err != nil {
		return nil, err
	}
	count := min(w.Count(), int64(limit))
	s, err := f.Session(ctx, seq, int(min(count, evalRows)), lower.Eval)
	if err != nil {
		return nil, err
	}
	defer session.CloseAll(s.Devices)
	defer s.Close()
	g := &Guessed{Footprint: footprint(s, 1)}
	return g, f.Blame(g.evaluate(ctx, s, w, count))
}

// evaluate adds the first windows.
func (g *Guessed) evaluate(ctx context.Context, s *session.Session, w data.Windows, count int64) error {
	labels := model.Outcomes(s.Graph.Model)
	for first := int64(0); first < count; first += evalRows {
		var rows [][]int32
		for i := first; i < min(count, first+evalRows); i++ {
			row := make([]int32, w.Sequence()+1)
			w.Copy(row, i)
			rows = append(rows, row)
		}
		b, n := flatten(rows, int(min(count, evalRows)), s.Graph)
		out, err := s.Step(ctx, 0, b, session.Scalars{Targets: n})
		if err != nil {
			return err
		}
		if !stat.Finite(out.Loss) {
			return NotFinite(fmt.Errorf("the loss of sequences %d to %d is %v, which is not finite", first+1, first+int64(len(rows)), out.Loss))
		}
		logits, err := session.Logits(s, 0)
		if err != nil {
			return err
		}
		g.Loss += out.Loss * float64(n)
		g.Texts += n
		g.Accuracy += float64(Correct(logits, b.Targets, labels))
	}
	g.Loss /= float64(g.Texts)
	g.Accuracy /= float64(g.Texts)
	return nil
}

// Correct counts the texts of a batch whose greatest logit is that of their label. targets are those of the batch, negative where no text ends.
func Correct(logits []float32, targets []int32, labels int) (n int) {
	for row, target := range targets {
		if target >= 0 && Greatest(logits[row*labels:][:labels]) == int(target) {
			n++
		}
	}
	return n
}
