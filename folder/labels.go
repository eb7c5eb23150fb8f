package folder

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

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
	Loss     float64    // mean over the texts, nats; of values the mean squared error
	Accuracy float64    // share of them whose label has the greatest logit
	Fit      *Closeness // of texts with values, instead
	Texts    int
	Footprint
}

// Guess evaluates a model that chooses among labels, or has values, on rows of a text and a label, in at most limit sequences of seq tokens; 0: as in training.
// A reward model has no labels: see Rank. The error is a *search.Misfit if the device has too little memory.
func Guess(ctx context.Context, f *Folder, texts Texts, seq, limit int, progress Progress) (*Guessed, error) {
	if f.Model.Regression {
		return fit(ctx, f, texts, seq, limit, progress)
	}
	g := &Guessed{}
	err := f.classify(ctx, texts, seq, limit, progress, g, func(c classified) {
		g.Loss += c.loss * float64(c.learnt)
		g.Texts += c.learnt
		g.Accuracy += float64(Correct(c.logits, c.targets, len(f.Model.Labels)))
	})
	g.Loss /= float64(max(g.Texts, 1))
	g.Accuracy /= float64(max(g.Texts, 1))
	return g, err
}

// fit is Guess of a regression.
func fit(ctx context.Context, f *Folder, texts Texts, seq, limit int, progress Progress) (*Guessed, error) {
	g, all := &Guessed{}, Fit{}
	err := f.classify(ctx, texts, seq, limit, progress, g, func(c classified) {
		g.Texts += c.learnt
		all.Add(c.logits, c.targets, c.values)
	})
	g.Loss, g.Fit = all.MeanSquare(), all.Closeness()
	return g, err
}

// Prediction is what a model says of a text.
type Prediction struct {
	Label       string   `json:"label,omitempty"`
	Probability float64  `json:"probability,omitempty"` // of the label
	Reward      *float64 `json:"reward,omitempty"`      // of a reward model, instead
	Value       *float64 `json:"value,omitempty"`       // of a regression, instead
}

// Predict returns what a model with labels says of the text of each row of a file, in their order.
func Predict(ctx context.Context, f *Folder, texts Texts, seq int, progress Progress) ([]Prediction, Footprint, error) {
	texts.unlabelled = true
	var list []Prediction
	var order []int64
	labels, g := len(f.Model.Labels), &Guessed{}
	err := f.classify(ctx, texts, seq, math.MaxInt, progress, g, func(c classified) {
		order = append(order, c.ends...)
		for row, target := range c.targets {
			if target >= 0 {
				list = append(list, predictionOf(f.Model, c.logits[row*labels:][:labels]))
			}
		}
	})
	if err != nil {
		return nil, g.Footprint, err
	}
	numbers := make([]int, len(list))
	for i := range numbers {
		numbers[i] = i
	}
	slices.SortFunc(numbers, func(a, b int) int { return cmp.Compare(order[a], order[b]) })
	sorted := make([]Prediction, len(list))
	for i, n := range numbers {
		sorted[i] = list[n]
	}
	return sorted, g.Footprint, nil
}

// predictionOf returns the prediction that logits are.
func predictionOf(m *model.Model, logits []float32) Prediction {
	switch number := float64(logits[0]); {
	case m.Regression:
		return Prediction{Value: &number}
	case len(m.Labels) == 1:
		return Prediction{Reward: &number}
	}
	best, sum := Greatest(logits), 0.0
	for _, x := range logits {
		sum += math.Exp(float64(x) - float64(logits[best]))
	}
	return Prediction{Label: m.Labels[best], Probability: 1 / sum}
}

// classified is what a model computes of a batch of texts.
type classified struct {
	loss    float64 // mean over the texts
	learnt  int     // texts
	logits  []float32
	targets []int32
	values  []float32 // of a regression, by token, see data.Windows.Values
	ends    []int64   // of the texts, see data.Windows.Ends
}

// classify calls found for each batch of the texts in at most limit sequences.
func (f *Folder) classify(ctx context.Context, texts Texts, seq, limit int, progress Progress, g *Guessed, found func(classified)) error {
	seq, err := f.length(seq)
	if err != nil {
		return err
	}
	t, err := f.tokens(ctx, texts, progress)
	if err != nil {
		return err
	}
	defer t.Close()
	if n := t.Stats().Empty; texts.unlabelled && n > 0 {
		return misuse{fmt.Errorf("%d rows or lines are empty, so predictions would not be of the rows beside them; hint: leave them out", n)}
	}
	w, p, err := t.Labelled(t.All(), seq)
	if err != nil {
		return misuse{err}
	}
	if len(f.Model.Labels) == 1 {
		w = w.Scored()
	}
	if p.TooLong > 0 {
		hint := ""
		if seq < f.Model.MaxPositions {
			hint = "; hint: a longer --sequence reads more of them"
		}
		texts.Note(fmt.Sprintf("texts whose end is cut off, since they have more than %d tokens: %d%s", seq, p.TooLong, hint))
	}
	if err := f.SeparateDocuments(); err != nil {
		return err
	}
	count := min(w.Count(), int64(limit))
	s, err := f.Session(ctx, seq, int(min(count, evalRows)), lower.Eval)
	if err != nil {
		return err
	}
	defer session.CloseAll(s.Devices)
	defer s.Close()
	g.Footprint = footprint(s, 1)
	return f.Blame(classifyWindows(ctx, s, w, count, found))
}

// classifyWindows evaluates the first windows.
func classifyWindows(ctx context.Context, s *session.Session, w data.Windows, count int64, found func(classified)) error {
	for first := int64(0); first < count; first += evalRows {
		var rows [][]int32
		c := classified{}
		if n := w.Sequence(); s.Graph.Regressed >= 0 {
			c.values = make([]float32, n*int(min(count, evalRows)))
			for i := first; i < min(count, first+evalRows); i++ {
				w.Values(c.values[int(i-first)*n:][:n], i)
			}
		}
		for i := first; i < min(count, first+evalRows); i++ {
			row := make([]int32, w.Sequence()+1)
			w.Copy(row, i)
			rows, c.ends = append(rows, row), w.Ends(c.ends, i)
		}
		b, n := flatten(rows, int(min(count, evalRows)), s.Graph)
		out, err := s.Step(ctx, 0, b, session.Scalars{Targets: n, Values: c.values})
		if err != nil {
			return err
		}
		if !stat.Finite(out.Loss) {
			return NotFinite(fmt.Errorf("the loss of sequences %d to %d is %v, which is not finite", first+1, first+int64(len(rows)), out.Loss))
		}
		if c.logits, err = session.Logits(s, 0); err != nil {
			return err
		}
		c.loss, c.learnt, c.targets = out.Loss, n, b.Targets
		found(c)
	}
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
