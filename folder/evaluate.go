package folder

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/athanor-llm/athanor/checkpoint"
	"github.com/athanor-llm/athanor/data"
	"github.com/athanor-llm/athanor/data/bpe"
	"github.com/athanor-llm/athanor/data/chat"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/stat"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/session"
)

// Evaluated is what a model computes on given sequences.
type Evaluated struct {
	Loss      float64   // mean over all targets, nats
	Tokens    int       // targets
	Bytes     int64     // of text that targets stand for; 0: the folder has no tokenizer
	Logits    []float32 // [sequences, length-1, vocabulary], if asked for
	Grads     []Grad    // of Loss with respect to what is trained, if asked for
	Footprint           // of the evaluation, without the gradients'
}

// Grad is the gradient of a parameter.
type Grad struct {
	Name   string
	Shape  []int
	Values []float32
}

// evalRows is how many sequences are evaluated at a time if only the loss is
// wanted.
const evalRows = 8

// Evaluate runs a model, on Folder.Device in Folder.DType, on sequences of equal length. All tokens but the last are
// inputs, all but the first are targets. The error is a *search.Misfit if the device has too little memory.
func Evaluate(ctx context.Context, f *Folder, rows [][]int32, logits, grads bool) (*Evaluated, error) {
	e := &Evaluated{}
	batch := min(len(rows), evalRows)
	if logits || grads {
		batch = len(rows)
	}
	mode := lower.Eval
	if logits {
		mode = lower.Logits
	}
	if grads { // first, since they take more memory
		if err := e.gradients(ctx, f, rows); err != nil {
			return e, err
		}
	}
	return e, f.Blame(e.losses(ctx, f, rows, batch, mode))
}

func (e *Evaluated) losses(ctx context.Context, f *Folder, rows [][]int32, batch int, mode lower.Mode) error {
	seq := len(rows[0]) - 1
	s, err := f.Session(ctx, seq, batch, mode)
	if err != nil {
		return err
	}
	defer session.CloseAll(s.Devices)
	defer s.Close()
	e.Footprint = footprint(s, 1)
	tokenizer, none := f.Tokenizer() // of a folder without one there are still losses per token
	var sum float64
	for first := 0; first < len(rows); first += batch {
		b, n := flatten(rows[first:min(len(rows), first+batch)], batch, s.Graph)
		out, err := s.Step(ctx, 0, b, session.Scalars{Targets: n})
		if err != nil {
			return err
		}
		if !stat.Finite(out.Loss) {
			return NotFinite(fmt.Errorf("the loss of sequences %d to %d is %v, which is not finite", first+1, min(len(rows), first+batch), out.Loss))
		}
		sum += out.Loss * float64(n)
		e.Tokens += n
		if none == nil {
			e.Bytes += tokenizer.Bytes(b.Targets)
		}
	}
	if e.Tokens == 0 {
		return misuse{errors.New("nothing to evaluate: all tokens of these sequences are given (prompts), and none is learnt; hint: use a longer --sequence, more --batches, or other text")}
	}
	e.Loss = sum / float64(e.Tokens)
	if mode != lower.Logits {
		return nil
	}
	e.Logits = make([]float32, len(rows)*seq*f.Model.Vocab)
	wide := make([]float64, len(e.Logits))
	if err := s.Engine(0).ReadBuffer("logits", wide); err != nil {
		return err
	}
	for i, v := range wide {
		e.Logits[i] = float32(v)
	}
	return nil
}

func (e *Evaluated) gradients(ctx context.Context, f *Folder, rows [][]int32) error {
	s, err := f.Session(ctx, len(rows[0])-1, len(rows), lower.Grads)
	if err != nil {
		return err
	}
	defer session.CloseAll(s.Devices)
	defer s.Close()
	b, n := flatten(rows, len(rows), s.Graph)
	if _, err := s.Step(ctx, 0, b, session.Scalars{Targets: n}); err != nil {
		return err
	}
	for i, p := range s.Graph.Params {
		if p.Frozen {
			continue
		}
		whole := make([]float32, p.Elems())
		if err := s.Read(i, optimizer.Gradient, whole); err != nil {
			return err
		}
		for _, t := range p.Tensors() {
			e.Grads = append(e.Grads, Grad{Name: t.Name, Shape: t.Shape, Values: whole[t.First:][:t.Elems()]})
		}
	}
	return nil
}

// flatten lays rows out as a batch. Missing rows and tokens that are given have targets -1, which do not count. n is the
// number of targets.
func flatten(rows [][]int32, batch int, g *graph.Graph) (b session.Batch, n int) {
	seq := len(rows[0]) - 1
	all := data.NewBatch(batch * seq)
	for r := range batch {
		if r < len(rows) {
			n += all.Fill(r, rows[r], g.End())
			continue
		}
		all.Fill(r, make([]int32, seq+1), g.End())
		all.Leave(r, seq)
	}
	return session.Batch(all), n
}

// usualSequence is the default sequence length, in tokens.
const usualSequence = 256

// usualLabelled is the default sequence length, in tokens, of models with labels whose run is unknown: a text's end counts.
const usualLabelled = 1024

// trained is part of what a run records of itself, see package train.
type trained struct {
	Sequence   int         `json:"sequence_length"`
	Begin      string      `json:"bos"`
	Chat       string      `json:"chat_template"`
	TextField  []string    `json:"text_field"`
	Labels     []string    `json:"labels"`
	Valued     bool        `json:"regression"`
	Preference *Preference `json:"preference"`
}

// readTrained returns what a folder tells of the run that wrote it; false: it is from elsewhere.
func readTrained(dir string) (t trained, ok bool) {
	ck, err := checkpoint.Open(checkpoint.Disk{}, dir)
	if err != nil {
		return t, false
	}
	defer ck.Close()
	return t, json.Unmarshal(ck.Trainer.Plan, &t) == nil
}

// reading returns how the texts were read that the model was trained on, as far as the folder tells.
func (f *Folder) reading(t *bpe.Tokenizer) (o data.Options) {
	o.Begin = t.Start()
	o.Labels = f.Model.Labels
	trained, ok := readTrained(f.Path)
	if !ok {
		return o
	}
	if o.TextField = trained.TextField; trained.Begin == "" && trained.Chat == "" {
		o.Begin = nil
	}
	return o
}

// Texts says what to read.
type Texts struct {
	Patterns  []string // files
	TextField []string // of rows; none: as in training
	SkipBad   bool     // leave out rows that are no document
	Note      func(text string)

	unlabelled bool // labels are not read
	pairs      bool // of a row that has both a pair and another document, the pair; labels are not read
}

// HeldOut returns at most limit sequences of seq+1 tokens from the start of a
// corpus. If seq is 0, it is usualSequence or the model's number of positions,
// whichever is less. A corpus of pairs is ErrPairs.
func HeldOut(ctx context.Context, f *Folder, texts Texts, seq, limit int, progress Progress) ([][]int32, error) {
	seq, err := f.length(seq)
	if err != nil {
		return nil, err
	}
	t, err := f.tokens(ctx, texts, progress)
	if err != nil {
		return nil, err
	}
	defer t.Close()
	if n := t.Stats().Pairs(); n > 0 {
		return nil, misuse{fmt.Errorf("the corpus has %d %w of a chosen and a rejected answer, and text is wanted; hint: `athanor eval` compares them", n, ErrPairs)}
	}
	if t.Len() <= int64(seq) {
		return nil, misuse{fmt.Errorf("the corpus has %d tokens, but a sequence needs %d and one more to predict; hint: use a shorter --sequence, or more text", t.Len(), seq)}
	}
	w, err := t.Windows(t.All(), seq)
	if err != nil {
		return nil, err
	}
	var rows [][]int32
	for i := range min(w.Count(), int64(limit)) {
		row := make([]int32, w.Sequence()+1)
		w.Copy(row, i)
		rows = append(rows, row)
	}
	return rows, nil
}

// length returns the length of sequences if so many tokens are asked for; 0: usualSequence or, of a model with labels, as in training,
// or the model's positions if there are fewer.
func (f *Folder) length(seq int) (int, error) {
	most := f.Model.MaxPositions
	if seq > most {
		return 0, misuse{fmt.Errorf("--sequence is %d tokens, but the model has %d positions; hint: use 1 to %d", seq, most, most)}
	}
	if seq > 0 {
		return seq, nil
	}
	seq = usualSequence
	if model.Classifies(f.Model) {
		t, _ := readTrained(f.Path)
		seq = cmp.Or(t.Sequence, usualLabelled)
	}
	return min(seq, most), nil
}

// tokens reads a corpus as the texts were read that the model was trained on. Close them after use.
func (f *Folder) tokens(ctx context.Context, texts Texts, progress Progress) (*data.Tokens, error) {
	tokenizer, err := f.Tokenizer()
	if err != nil {
		return nil, err
	}
	template, err := f.Chat()
	if err != nil {
		return nil, err
	}
	corpus, err := data.OpenCorpus(texts.Patterns...)
	if err != nil {
		return nil, misuse{err}
	}
	o := f.reading(tokenizer)
	o.Chat, o.SkipBad, o.Unlabelled, o.Pairs = template, texts.SkipBad, texts.unlabelled, texts.pairs
	if texts.pairs {
		o.Labels = nil
	}
	o.Progress = func(done, total int64) { progress("reading the corpus", done, total) }
	if len(texts.TextField) > 0 {
		o.TextField = texts.TextField
	}
	t, err := Tokenize(ctx, corpus, tokenizer, o)
	if errors.Is(err, chat.ErrNone) || errors.Is(err, data.ErrContent) {
		err = misuse{err}
	}
	if err != nil {
		return nil, err
	}
	if s := t.Stats(); s.Bad > 0 {
		texts.Note(fmt.Sprintf("%d rows are bad and left out (first: %s)", s.Bad, s.FirstBad))
	}
	if largest := t.Largest(); int(largest) >= f.Model.Vocab {
		return nil, errors.Join(misuse{fmt.Errorf("the text has the token %d, but the model's vocabulary is %d: its tokenizer has %d tokens; hint: use the tokenizer that it was trained with, or train with resize_vocab: true, which adds rows to the model", largest, f.Model.Vocab, tokenizer.VocabularySize())}, t.Close())
	}
	return t, nil
}
