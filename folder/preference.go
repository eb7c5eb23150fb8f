package folder

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/athanor-llm/athanor/data"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/stat"
	"github.com/athanor-llm/athanor/internal/suggest"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/session"
)

// Evaluation of pairs of a chosen and a rejected answer. Each sequence has as many pairs as fit, as in training, and the same operator gives
// losses and ratios. A reference is evaluated first, with the same programs, and closed: the two models are never in memory together.

// ErrPairs reports that a corpus has pairs of answers, where text was wanted.
var ErrPairs = errors.New("pairs")

// Preference says how pairs are compared, as a run records it. See package config for its keys.
type Preference struct {
	Loss      string  `json:"loss"`
	Beta      float64 `json:"beta"`
	Margin    float64 `json:"margin,omitempty"`
	Reference string  `json:"reference,omitempty"` // folder of the model that the run began with; "": the loss has none, or it began with random weights
}

// Ranked says how well a model tells chosen answers from rejected ones.
type Ranked struct {
	Loss float64 // mean over pairs
	By   graph.PairLoss
	Rewards
	Footprint // the greater, of model and reference
}

// Preference returns how pairs are compared: as asked, and where that is silent, as the run did that wrote the folder, or as is usual.
func (f *Folder) Preference(asked Preference) (p Preference, loss graph.PairLoss, err error) {
	own := Preference{}
	if t, _ := readTrained(f.Path); t.Preference != nil {
		own = *t.Preference
	}
	if model.Classifies(f.Model) {
		own.Loss = graph.Reward.String()
	}
	if own.Loss == "" && asked.Loss == "" {
		return p, 0, misuse{fmt.Errorf("%s does not say by which loss pairs are compared, as no run with preference wrote it; hint: --preference simpo, or --preference dpo --reference FOLDER with the folder of the model to compare with", f.Path)}
	}
	p = Preference{Loss: cmp.Or(asked.Loss, own.Loss), Beta: asked.Beta, Reference: cmp.Or(asked.Reference, own.Reference)}
	if loss, err = graph.PairLossNamed(p.Loss); err != nil {
		return p, 0, misuse{fmt.Errorf("--preference: %w", err)}
	}
	rule := loss.Rule()
	if p.Loss == own.Loss {
		p.Beta, p.Margin = cmp.Or(p.Beta, own.Beta), own.Margin
	} else {
		p.Margin = rule.Margin
	}
	p.Beta = cmp.Or(p.Beta, rule.Beta)
	switch {
	case !(p.Beta > 0 && p.Beta <= 1e3):
		err = fmt.Errorf("--beta is %v; hint: use a number above 0 and up to 1000, such as %v", p.Beta, rule.Beta)
	case rule.Unpaired:
		err = fmt.Errorf("%s is a loss of single answers, and eval compares pairs; hint: --preference dpo, whose rewards are the same", p.Loss)
	case rule.Scored && !model.Classifies(f.Model):
		err = fmt.Errorf("the rewards of %s are those of a reward model, and %s is a language model; hint: --preference simpo or orpo, or dpo with a --reference", p.Loss, f.Path)
	case !rule.Scored && model.Classifies(f.Model):
		err = fmt.Errorf("%s compares probabilities of text, and %s is a reward model; hint: leave out --preference", p.Loss, f.Path)
	case !rule.Reference && asked.Reference != "":
		err = fmt.Errorf("%s has no reference; hint: leave out --reference, or set --preference dpo", p.Loss)
	case rule.Reference && p.Reference == "":
		err = fmt.Errorf("%s compares with a reference, and %s does not say which model its run began with; hint: --reference FOLDER", p.Loss, f.Path)
	}
	if err != nil {
		err = misuse{err}
	}
	return p, loss, err
}

// Rank evaluates a model on a corpus of pairs, in at most limit sequences of seq tokens, spread evenly over it; 0: as in training. quantize holds the layers of the
// reference in 4 bits, as Folder.Quantize does.
func Rank(ctx context.Context, f *Folder, texts Texts, asked Preference, seq, limit int, quantize bool, progress Progress) (*Ranked, error) {
	p, loss, err := f.Preference(asked)
	if err != nil {
		return nil, err
	}
	texts.pairs = true
	if seq == 0 {
		t, _ := readTrained(f.Path)
		seq = min(cmp.Or(t.Sequence, usualLabelled), f.Model.MaxPositions)
	}
	if seq, err = f.length(seq); err != nil {
		return nil, err
	}
	t, err := f.tokens(ctx, texts, progress)
	if err != nil {
		return nil, err
	}
	defer t.Close()
	w, packing, err := t.Preferences(t.All(), seq)
	if err != nil {
		return nil, misuse{err}
	}
	if packing.TooLong > 0 {
		texts.Note(fmt.Sprintf("pairs left out, since an answer with its prompt and the other have more than %d tokens: %d; hint: a longer --sequence reads more of them", seq+1, packing.TooLong))
	}
	if loss.Rule().Scored {
		w = w.Scored()
	}
	f.Documents = &graph.Documents{End: t.EndOfText(), Length: t.PairLength(seq), Preference: p.Beta, Pairs: loss, Margin: p.Margin}
	pairs := ranking{windows: w, numbers: spread(w.Count(), limit)}
	r := &Ranked{By: loss}
	if loss.Rule().Reference {
		if err := pairs.refer(ctx, f, p.Reference, t.Largest(), quantize, r, progress); err != nil {
			return nil, err
		}
	}
	var sum Rewards
	err = f.Blame(pairs.run(ctx, f, r, progress, "evaluating", func(out session.Outcome, begins []int) {
		sum.AddPairs(begins, out.Ratios, p.Beta)
		r.Loss += out.Loss * float64(len(begins)/2)
	}))
	r.Rewards = *sum.Mean()
	r.Loss /= float64(max(r.Pairs, 1))
	if all := w.Pairs(w.Count()); int64(r.Pairs) < all {
		texts.Note(fmt.Sprintf("evaluated: %d of %d pairs; hint: a larger --batches reads more of them", r.Pairs, all))
	}
	return r, err
}

// spread returns at most limit of count numbers, evenly.
func spread(count int64, limit int) (list []int64) {
	n := min(count, int64(limit))
	for k := range n {
		list = append(list, k*count/n)
	}
	return list
}

// ranking is windows of pairs that are evaluated.
type ranking struct {
	windows data.Windows
	numbers []int64   // of the windows
	known   []float32 // log-probabilities of their documents under the reference; nil: there is none, or they are not known yet
}

// refer computes what the reference in a folder says of the pairs. largest is the greatest of their tokens.
func (p *ranking) refer(ctx context.Context, f *Folder, dir string, largest int32, quantize bool, r *Ranked, progress Progress) error {
	ref, err := Open(dir)
	if err != nil {
		return misuse{suggest.Add(fmt.Errorf("the reference: %w", err), "--reference FOLDER, with the model that the run began with")}
	}
	defer ref.Close()
	if int(largest) >= ref.Model.Vocab {
		return misuse{fmt.Errorf("the reference, %s, has a vocabulary of %d, and the text has the token %d of %s; hint: --reference FOLDER, with a model of the same tokenizer", dir, ref.Model.Vocab, largest, f.Path)}
	}
	ref.Documents, ref.Device, ref.DType, ref.Limit = f.Documents, f.Device, f.DType, f.Limit
	if quantize {
		if err := ref.Quantize(); err != nil {
			return err
		}
	}
	known := []float32{}
	err = ref.Blame(p.run(ctx, ref, r, progress, "evaluating the reference", func(out session.Outcome, begins []int) {
		for _, at := range begins {
			known = append(known, out.Ratios[at])
		}
	}))
	p.known = known
	return err
}

// run evaluates the windows, and calls found for each batch with the positions at which its documents begin.
func (p *ranking) run(ctx context.Context, f *Folder, r *Ranked, progress Progress, what string, found func(out session.Outcome, begins []int)) error {
	seq, batch := p.windows.Sequence(), min(len(p.numbers), evalRows)
	s, err := f.Session(ctx, seq, batch, lower.Eval)
	if err != nil {
		return err
	}
	defer session.CloseAll(s.Devices)
	defer s.Close()
	used, before := footprint(s, 1), r.Footprint
	r.Footprint = Footprint{max(used.Device, before.Device), max(used.Host, before.Host), max(used.Streamed, before.Streamed)}
	known := p.known
	for first := 0; first < len(p.numbers); first += batch {
		numbers := p.numbers[first:min(first+batch, len(p.numbers))]
		reference := make([]float32, batch*seq)
		var rows [][]int32
		var begins []int
		for k, i := range numbers {
			row, n := make([]int32, seq+1), len(begins)
			p.windows.Copy(row, i)
			rows, begins = append(rows, row), p.windows.Begins(begins, i)
			for d := n; d < len(begins); d++ {
				begins[d] += k * seq
				if known != nil {
					reference[begins[d]], known = known[0], known[1:]
				}
			}
		}
		b, _ := flatten(rows, batch, s.Graph)
		out, err := s.Step(ctx, 0, b, session.Scalars{Targets: len(begins) / 2, Reference: reference})
		if err != nil {
			return err
		}
		if !stat.Finite(out.Loss) {
			return NotFinite(fmt.Errorf("%s: the loss of the pairs of sequences %d to %d is %v, which is not finite", what, first+1, first+len(rows), out.Loss))
		}
		found(out, begins)
		progress(what, int64(first+len(rows)), int64(len(p.numbers)))
	}
	return nil
}
