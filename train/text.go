package train

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/data"
	"github.com/athanor-llm/athanor/data/bpe"
	"github.com/athanor-llm/athanor/data/chat"
	"github.com/athanor-llm/athanor/folder"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/job"
	"github.com/athanor-llm/athanor/planner"
)

// Text holds the corpora of a run, as tokens; it is empty if there are none. Close it after use.
type Text struct {
	Sources    []Source // of the corpus, as the configuration has them
	Validation *Source  // nil: a part held out of the sources
	Tokenizer  *bpe.Tokenizer
	Chat       *chat.Template // next to the tokenizer; nil: there is none
	Begin      []int32        // what documents other than conversations begin with
	Notes      []string       // messages for the user
}

// Source is text that is read equally often throughout.
type Source struct {
	Name   string // its patterns
	Times  float64
	Corpus *data.Corpus
	Tokens *data.Tokens
	key    string // the configuration's key that names it
}

// OpenText reads the corpora and the tokenizer of a configuration, if it names a corpus. It needs no other
// fields except the run's folder, and that only if there is one. A file that several sources name
// belongs to the last of them, but never to a source that is trained on if it is also a validation file.
func OpenText(ctx context.Context, spec *job.Spec, progress folder.Progress) (*Text, error) {
	t := &Text{}
	if len(spec.Data) == 0 {
		return t, nil
	}
	for _, s := range spec.Data {
		t.Sources = append(t.Sources, Source{Name: strings.Join(s.Files, ", "), Times: s.Times, key: "data"})
		if err := t.Sources[len(t.Sources)-1].open(spec, s.Files); err != nil {
			return nil, err
		}
	}
	if len(spec.Validation) > 0 {
		t.Validation = &Source{Name: strings.Join(spec.Validation, ", "), key: "validation"}
		if err := t.Validation.open(spec, spec.Validation); err != nil {
			return nil, err
		}
	}
	if err := t.divide(spec); err != nil {
		return nil, err
	}
	for _, s := range t.all() {
		t.Notes = append(t.Notes, s.Corpus.Notes()...)
	}
	opt := func(what string) data.Options {
		return data.Options{SkipBad: spec.OnBadRow == "skip", TextField: spec.TextField, Verdicts: spec.Unpaired(), Labels: rowLabels(spec),
			Progress: func(done, total int64) { progress(what, done, total) }}
	}
	var err error
	if t.Tokenizer, err = openTokenizer(ctx, spec, t.Corpus(), opt("training the tokenizer")); err != nil {
		return nil, err
	}
	if size, trained := trainedSize(spec.Tokenizer); trained && t.Tokenizer.VocabularySize() < size {
		t.Notes = append(t.Notes, fmt.Sprintf("%s has %d tokens: the text has no more pairs that occur twice", spec.Tokenizer, t.Tokenizer.VocabularySize()))
	}
	t.Chat = openChat(spec, t.Tokenizer)
	t.Begin = beginsWith(spec, t.Tokenizer)
	reading := opt("reading the corpus (new or changed)")
	reading.Chat, reading.Pairs, reading.Begin = t.Chat, spec.Preference.Beta > 0, t.Begin
	for _, s := range t.all() {
		s.Tokens, err = folder.Tokenize(ctx, s.Corpus, t.Tokenizer, reading)
		switch {
		case errors.Is(err, data.ErrNoEnd):
			err = spec.Fault("tokenizer", data.ErrNoEnd.Error())
		case errors.Is(err, chat.ErrNone):
			err = spec.Fault("tokenizer", err.Error())
		case errors.Is(err, data.ErrContent):
			err = spec.Fault(s.key, err.Error())
		}
		if err != nil {
			t.Close()
			return nil, err
		}
	}
	if note := t.beginsNote(); note != "" {
		t.Notes = append(t.Notes, note)
	}
	return t, nil
}

// rowLabels returns the names of the labels that rows have.
func rowLabels(spec *job.Spec) []string {
	if spec.Classifies() {
		return spec.Labels
	}
	return nil
}

// beginsNote says what texts begin with; "" if there are none that begin with anything.
func (t *Text) beginsNote() string {
	if len(t.Begin) == 0 || t.Stats().Texts() == 0 {
		return ""
	}
	text, err := t.Tokenizer.Decode(t.Begin)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("texts begin with %s, as the tokenizer has it, which is given and not learnt; hint: bos: none leaves it out", text)
}

// beginsWith returns the tokens with which documents begin. A run that began without them goes on without.
func beginsWith(spec *job.Spec, t *bpe.Tokenizer) []int32 {
	if spec.BOS == "none" || spec.Begun != nil && spec.Begun.Begin == "" {
		return nil
	}
	return t.Start()
}

// String describes one of several sources.
func (s Source) String() string {
	return fmt.Sprintf("%s: %v; %d tokens, times %v", s.Name, s.Tokens.Stats(), s.Tokens.Len(), s.Times)
}

// open finds the files of a source.
func (s *Source) open(spec *job.Spec, patterns []string) (err error) {
	if s.Corpus, err = data.OpenCorpus(patterns...); err != nil {
		err = spec.Fault(s.key, err.Error())
	}
	return err
}

// divide assigns every file to the last source that names it.
func (t *Text) divide(spec *job.Spec) error {
	all := t.all()
	if len(all) == 1 {
		return nil
	}
	var list []*data.Corpus
	for _, s := range all {
		list = append(list, s.Corpus)
	}
	rest, gone := data.Divide(list)
	for k, s := range all {
		s.Corpus = rest[k]
		for to, n := range gone[k] {
			if n > 0 {
				t.Notes = append(t.Notes, fmt.Sprintf("%d files of %s also belong to %s, and are read only as part of the latter", n, s.Name, all[to].Name))
			}
		}
		if rest[k].Bytes() == 0 {
			return spec.Fault(s.key, fmt.Sprintf("all text of %s is named again by a later source or by validation, and a file is read only as part of the last that names it; hint: use patterns that leave some text here", s.Name))
		}
	}
	return nil
}

// Empty reports whether there is no text.
func (t *Text) Empty() bool { return len(t.Sources) == 0 }

// vocabulary returns the number of token ids, or 0.
func (t *Text) vocabulary() int {
	if t.Tokenizer == nil {
		return 0
	}
	return t.Tokenizer.VocabularySize()
}

// all returns the sources and, if there is one, the corpus to validate with.
func (t *Text) all() (list []*Source) {
	for k := range t.Sources {
		list = append(list, &t.Sources[k])
	}
	if t.Validation != nil {
		list = append(list, t.Validation)
	}
	return list
}

// Corpus returns the files of all sources.
func (t *Text) Corpus() *data.Corpus {
	var list []*data.Corpus
	for _, s := range t.Sources {
		list = append(list, s.Corpus)
	}
	return data.Union(list...)
}

// Stats returns what was found in all sources.
func (t *Text) Stats() (sum data.Stats) {
	for _, s := range t.Sources {
		sum.Add(s.Tokens.Stats())
	}
	return sum
}

// Len returns the number of tokens of all sources.
func (t *Text) Len() (n int64) {
	for _, s := range t.Sources {
		n += s.Tokens.Len()
	}
	return n
}

// hash identifies the tokens that a run learns from, in the order of the sources, and those of pairs or answers that it validates
// with, whose reference is computed once.
func (t *Text) hash(spec *job.Spec) string {
	h := sha256.New()
	for _, s := range t.all() {
		if stats := s.Tokens.Stats(); s == t.Validation && (stats.Pairs()+stats.Tagged() == 0 || spec.Classifies()) {
			continue
		}
		sum := s.Tokens.Hash()
		h.Write(sum[:])
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:8])
}

// validationTokens returns the number of tokens of the validation corpus, 0 if there is none.
func (t *Text) validationTokens() int64 {
	if t.Validation == nil {
		return 0
	}
	return t.Validation.Tokens.Len()
}

// Mixed reports whether the corpus is anything but a single source that a pass reads once.
func (t *Text) Mixed() bool { return len(t.Sources) > 1 || t.Sources[0].Times != 1 }

// Share returns a source's share of the tokens that a pass reads.
func (t *Text) Share(source int) float64 {
	sum := 0.0
	for _, s := range t.Sources {
		sum += s.Times * float64(s.Tokens.Len())
	}
	return t.Sources[source].Times * float64(t.Sources[source].Tokens.Len()) / sum
}

// nameOf names the text that tokens come from.
func (t *Text) nameOf(tokens *data.Tokens) string {
	for _, s := range t.all() {
		if s.Tokens == tokens && (s == t.Validation || t.Mixed()) {
			return s.Name
		}
	}
	return "the corpus"
}

// Close unmaps the tokens.
func (t *Text) Close() {
	for _, s := range t.all() {
		if s.Tokens != nil {
			s.Tokens.Close()
		}
	}
}

// Documents returns where attention ends if the configuration confines it to
// documents of the text, else nil. Without a text, when only plans are made, each
// document fills its window, or half of one if it belongs to a pair.
func (t *Text) Documents(spec *job.Spec) *graph.Documents {
	if spec.Documents == config.Joined {
		return nil
	}
	docs := &graph.Documents{Preference: spec.Preference.Beta}
	if docs.Preference > 0 {
		docs.Pairs, docs.Margin = spec.PairLoss, spec.Preference.Margin
	}
	if t.Empty() {
		docs.Length = spec.SequenceLength
		if docs.Preference > 0 && !spec.Unpaired() {
			docs.Length = max(1, docs.Length/2)
		}
		return docs
	}
	docs.End = t.Sources[0].Tokens.EndOfText()
	length := 0.0 // the cost of attention is proportional to it
	for k, s := range t.Sources {
		of := s.Tokens.DocumentLength
		switch {
		case spec.Classifies():
			of = s.Tokens.LabelledLength
		case spec.Unpaired():
			of = func(n int) int { return s.Tokens.ExampleLength(n, spec.Mismatched()) }
		case docs.Preference > 0:
			of = s.Tokens.PairLength
		case spec.Documents == config.Whole:
			of = s.Tokens.WholeLength
		}
		length += t.Share(k) * float64(of(spec.SequenceLength))
	}
	docs.Length = max(1, int(math.Round(length)))
	return docs
}

// AtLength returns copies of a configuration that differ in sequence_length, with
// their graphs, which depend on the text's vocabulary and documents.
func (t *Text) AtLength(spec *job.Spec) planner.AtLength {
	return func(tokens int) (*job.Spec, *graph.Graph, error) {
		long := spec.WithSequence(tokens)
		m, _, _, err := resolveModel(long, t.vocabulary())
		if err != nil {
			return nil, nil, err
		}
		g, err := planner.BuildGraph(long, m, t.Documents(long))
		return long, g, err
	}
}

// windowed is text as windows, and what they were made of.
type windowed struct {
	windows data.Windows
	packing data.Packing
	text    data.Stretch
}

// cut makes windows of a range of tokens.
func cut(spec *job.Spec, t *data.Tokens, r data.Range) (windowed, error) {
	s := windowed{text: data.Stretch{Tokens: t, Range: r}}
	var err error
	switch pairs := t.Stats().Pairs(); {
	case spec.Classifies():
		if s.windows, s.packing, err = t.Labelled(r, spec.SequenceLength); spec.Regresses() {
			s.windows = s.windows.Scored()
		}
	case spec.Unpaired():
		s.windows, s.packing, err = t.Examples(r, spec.SequenceLength, spec.Mismatched())
	case spec.Preference.Beta > 0:
		if s.windows, s.packing, err = t.Preferences(r, spec.SequenceLength); spec.PairLoss.Rule().Scored {
			s.windows = s.windows.Scored()
		}
	case pairs > 0:
		err = fmt.Errorf("there are %d pairs of a chosen and a rejected answer, which need preference to train on; hint: set preference: {beta: 0.1}", pairs)
	case spec.Documents == config.Whole:
		s.windows, s.packing, err = t.WholeDocuments(r, spec.SequenceLength)
	default:
		s.windows, err = t.Windows(r, spec.SequenceLength)
	}
	return s, err
}

// holdOut makes windows of all tokens, and reserves the last part for validation.
func holdOut(spec *job.Spec, t *data.Tokens) (train, held windowed, err error) {
	split := t.Split
	switch {
	case spec.Classifies():
		split = t.SplitLabelled
	case spec.Unpaired():
		split = t.SplitExamples
	case spec.Preference.Beta > 0:
		split = t.SplitPairs
	}
	first, last, err := split(spec.HeldOut, spec.SequenceLength)
	if err != nil {
		return train, held, err
	}
	if train, err = cut(spec, t, first); err == nil {
		held, err = cut(spec, t, last)
	}
	return train, held, err
}
