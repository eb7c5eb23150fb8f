package run

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/data"
	"github.com/athanor-llm/athanor/data/bpe"
	"github.com/athanor-llm/athanor/data/chat"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/bounded"
	"github.com/athanor-llm/athanor/internal/paths"
	"github.com/athanor-llm/athanor/internal/suggest"
	"github.com/athanor-llm/athanor/machine"
	"github.com/athanor-llm/athanor/model"
)

// Setup is the result of reading a configuration, before any planning: the text as
// tokens, the model and its graph. Without text, which plans may do without, Tokenizer, Tokens and what is made of them are nil.
type Setup struct {
	Config    *config.Config
	Model     *model.Model
	Folder    string // the Hugging Face folder that the model came from, or ""
	Adapter   string // the folder of the adapter that Model has, with which training begins, or ""
	Tokenizer *bpe.Tokenizer
	Chat      *chat.Template // beside the tokenizer; nil: there is none
	Tokens    *data.Tokens
	Train     data.Windows
	Held      data.Windows // held out for validation
	HeldRange data.Range
	Pairs     *data.Preferences // the same of pairs; nil: there are none
	Packing   data.Packing      // of whole documents in Train, if these are asked for
	Graph     *graph.Graph
	Notes     []string // messages for the user: what was recognised or ignored
	base      string   // fingerprint of the weights that adapters are trained on, else ""
}

// Progress receives the progress of a long operation, which what names.
type Progress func(what string, done, total int64)

// Prepare reads the corpus, if there is one, the tokenizer and the model, and builds the graph.
// Errors of the configuration are config faults. Close the Setup after use.
func Prepare(ctx context.Context, c *config.Config, progress Progress) (*Setup, error) {
	s := &Setup{Config: c}
	if err := s.prepare(ctx, progress); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *Setup) prepare(ctx context.Context, progress Progress) error {
	c := s.Config
	text, err := OpenText(ctx, c, progress)
	if err != nil {
		return err
	}
	s.Tokenizer, s.Chat, s.Tokens = text.Tokenizer, text.Chat, text.Tokens
	if s.Tokens != nil {
		if err := s.sequences(); err != nil {
			return err
		}
	}
	s.Model, s.Folder, s.Notes, err = resolveModel(c, text.vocabulary())
	if err != nil {
		return err
	}
	if s.Model.LoRA != nil {
		s.Adapter = c.Model.Name
	}
	if s.Tokens != nil {
		if err := s.agree(); err != nil {
			return err
		}
	}
	docs, err := Documents(c, s.Tokens)
	if err != nil {
		return err
	}
	s.Graph, err = machine.BuildGraph(c, s.Model, docs)
	if err == nil && s.Graph.Model.LoRA != nil && s.Folder != "" {
		s.base, err = fingerprintOf(s.Folder)
	}
	return err
}

// agree checks whether text and model belong together.
func (s *Setup) agree() error {
	c := s.Config
	path := tokenizerOf(c.Model.Name)
	if own, err := bpe.Load(path); s.Folder != "" && err == nil && own.Hash() != s.Tokenizer.Hash() {
		s.Notes = append(s.Notes, fmt.Sprintf("the tokenizer is not that of %s, whose weights were trained on other token ids; hint: tokenizer: %s", s.Folder, filepath.Dir(path)))
	}
	if stats := s.Tokens.Stats(); stats.Conversations()+stats.Prompts() > 0 && s.Pairs == nil && c.Documents != config.Whole {
		s.Notes = append(s.Notes, "where a window ends, an answer is cut from what it answers; hint: documents: whole keeps them together")
	}
	if s.Model.Vocab < s.Tokenizer.VocabularySize() {
		return c.Fault("tokenizer", fmt.Sprintf("it has %d tokens, but the model's vocabulary is %d; hint: use the model's own tokenizer, or leave the model's vocabulary out", s.Tokenizer.VocabularySize(), s.Model.Vocab))
	}
	if c.Sample.Tokens > 0 { // else this would fail only after the last step
		ids, err := promptIDs(s.Tokenizer, c.Sample.Prompt)
		if n := len(ids); err == nil && n > s.Model.MaxPositions {
			err = fmt.Errorf("it has %d tokens, the model takes %d; hint: a shorter prompt", n, s.Model.MaxPositions)
		}
		if err != nil {
			return c.Fault("sample.prompt", err.Error())
		}
	}
	return nil
}

// Reading describes the text of a run and how often the run reads it.
func (s *Setup) Reading() string {
	c := s.Config
	text := fmt.Sprintf("corpus: %v; %d tokens of %s, %d of them held out", s.Tokens.Stats(), s.Tokens.Len(), c.Tokenizer, s.HeldRange.Len())
	if p := s.Pairs; p != nil {
		text += fmt.Sprintf("; %d pairs to train on and %d to validate with, a sequence each, of which %.0f %% is padding", p.Train.Count(), p.Held.Count(),
			100*float64(p.Padding)/float64(max(p.Padding+p.Tokens, 1)))
		if p.TooLong > 0 {
			text += fmt.Sprintf("; %d pairs are left out, which have more than %d tokens", p.TooLong, c.SequenceLength+1)
		}
	}
	if c.Documents == config.Whole && s.Pairs == nil {
		p := s.Packing
		text += fmt.Sprintf("; %d windows of whole documents to train on, of which %.0f %% is padding", s.Train.Count(), 100*float64(p.Padding)/float64(p.Padding+p.Tokens))
		if p.Cut > 0 {
			text += fmt.Sprintf("; %d documents are cut, which have more than %d tokens", p.Cut, c.SequenceLength+1)
		}
	}
	if !c.Timed() {
		text += fmt.Sprintf("; %d steps read it %.3g times", c.MaxSteps, float64(c.MaxSteps)*float64(c.GlobalBatch)/float64(s.Train.Count()))
	}
	return text
}

// folderOf returns the folder with the weights of a parameter.
func (s *Setup) folderOf(p model.Param) string {
	if p.Adapter && s.Adapter != "" {
		return s.Adapter
	}
	return s.Folder
}

// Close unmaps the tokens.
func (s *Setup) Close() {
	if s.Tokens != nil {
		s.Tokens.Close()
	}
}

// sequences divides the text into windows, and checks that there are enough.
func (s *Setup) sequences() error {
	c := s.Config
	if err := s.windows(); err != nil {
		return c.Fault("data", err.Error())
	}
	c.Pass(s.Train.Count())
	if _, err := data.NewSampler(s.Train, c.Seed, c.GlobalBatch); err != nil { // fail before planning
		return c.Fault("global_batch", err.Error())
	}
	return nil
}

// windows divides the tokens into training and validation, cut into windows.
func (s *Setup) windows() error {
	c, pairs := s.Config, s.Tokens.Stats().Pairs()
	if c.Preference.Beta > 0 {
		p, err := s.Tokens.Preferences(c.Validation, c.SequenceLength)
		if err != nil {
			return err
		}
		s.Train, s.Held, s.HeldRange, s.Pairs = p.Train, p.Held, p.HeldRange, p
		return nil
	}
	if pairs > 0 {
		return fmt.Errorf("there are %d pairs of a chosen and a rejected answer, which are not learnt as they are; hint: preference: {beta: 0.1}", pairs)
	}
	train, held, err := s.Tokens.Split(c.Validation, c.SequenceLength)
	if err != nil {
		return err
	}
	s.HeldRange = held
	if c.Documents == config.Whole {
		if s.Train, s.Packing, err = s.Tokens.Whole(train, c.SequenceLength); err == nil {
			s.Held, _, err = s.Tokens.Whole(held, c.SequenceLength)
		}
		return err
	}
	if s.Train, err = s.Tokens.Windows(train, c.SequenceLength); err == nil {
		s.Held, err = s.Tokens.Windows(held, c.SequenceLength)
	}
	return err
}

// Text is a corpus as tokens; all is nil where there is none. Close it after use.
type Text struct {
	Corpus    *data.Corpus
	Tokenizer *bpe.Tokenizer
	Chat      *chat.Template // beside the tokenizer; nil: there is none
	Tokens    *data.Tokens
}

// Close unmaps the tokens.
func (t *Text) Close() {
	if t.Tokens != nil {
		t.Tokens.Close()
	}
}

// vocabulary returns the number of token ids, or 0.
func (t *Text) vocabulary() int {
	if t.Tokenizer == nil {
		return 0
	}
	return t.Tokenizer.VocabularySize()
}

// OpenText reads the corpus and the tokenizer of a configuration, if it names a corpus. It needs no other
// fields but the run's folder, and that only if there is one.
func OpenText(ctx context.Context, c *config.Config, progress Progress) (*Text, error) {
	t := &Text{}
	if len(c.Data) == 0 {
		return t, nil
	}
	var err error
	if t.Corpus, err = data.OpenCorpus(c.Data...); err != nil {
		return nil, c.Fault("data", err.Error())
	}
	opt := func(what string) data.Options {
		return data.Options{Progress: func(done, total int64) { progress(what, done, total) }}
	}
	if t.Tokenizer, err = openTokenizer(ctx, c, t.Corpus, opt("training the tokenizer")); err != nil {
		return nil, err
	}
	dir, err := machine.CacheDir()
	if err != nil {
		return nil, err
	}
	reading := opt("reading the corpus")
	t.Chat = openChat(c, t.Tokenizer)
	reading.Chat, reading.Pairs = t.Chat, c.Preference.Beta > 0
	t.Tokens, err = data.Tokenize(ctx, t.Corpus, t.Tokenizer, filepath.Join(dir, "tokens"), reading)
	switch {
	case errors.Is(err, data.ErrNoEnd):
		err = c.Fault("tokenizer", data.ErrNoEnd.Error())
	case errors.Is(err, chat.ErrNone):
		err = c.Fault("tokenizer", err.Error())
	case errors.Is(err, data.ErrContent):
		err = c.Fault("data", err.Error())
	}
	return t, err
}

// AtLength returns copies of a configuration that differ in sequence_length, with
// their graphs, to which the text matters by its vocabulary and documents.
func (t *Text) AtLength(c *config.Config) machine.AtLength {
	return func(tokens int) (*config.Config, *graph.Graph, error) {
		long := *c
		long.SequenceLength = tokens
		m, _, _, err := resolveModel(&long, t.vocabulary())
		if err != nil {
			return nil, nil, err
		}
		docs, err := Documents(&long, t.Tokens)
		if err != nil {
			return nil, nil, err
		}
		g, err := machine.BuildGraph(&long, m, docs)
		return &long, g, err
	}
}

// resolveModel finds the architecture as findModel does. Rotary positions are
// unbounded: a model that is trained on longer sequences than its config.json
// states gets that length, so that readers of its checkpoints use it.
func resolveModel(c *config.Config, vocab int) (m *model.Model, folder string, notes []string, err error) {
	m, folder, notes, err = findModel(c, vocab)
	if err == nil && m.Rotary() && m.MaxPositions < c.SequenceLength {
		notes = append(notes, fmt.Sprintf("max_position_embeddings is raised from %d to %d, the length of the sequences", m.MaxPositions, c.SequenceLength))
		m.MaxPositions = c.SequenceLength
	}
	if err == nil && m.LongRope() {
		_, key := m.RopeScaling.Pairs(c.SequenceLength)
		notes = append(notes, fmt.Sprintf("rotary positions (longrope) are those of %s, since sequences have %d tokens and the original context %d", key, c.SequenceLength, m.RopeScaling.OriginalContext))
	}
	if err == nil {
		err = balance(c, m, folder)
	}
	return m, folder, notes, err
}

// balance sets the term of the loss that evens out the use of experts. Trained routers have
// learnt whom to send where: what they gain by it is less than what they would unlearn.
func balance(c *config.Config, m *model.Model, folder string) error {
	const usual = 0.01
	switch {
	case c.ExpertBalance == config.Derived && m.Experts > 0 && folder == "":
		m.Balance = usual
	case c.ExpertBalance > 0:
		m.Balance = c.ExpertBalance
	}
	if err := m.Validate(); err != nil {
		return c.Fault("expert_balance", err.Error())
	}
	return nil
}

// findModel takes inline sizes, a known name, or the config.json of a folder; of an adapter's, that of its model. vocab
// is the tokenizer's vocabulary size, the default of inline sizes. folder is that of the weights.
func findModel(c *config.Config, vocab int) (m *model.Model, folder string, notes []string, err error) {
	fail := func(err error) error {
		return c.Fault("model", suggest.Add(err, "a known name such as gpt2, a Hugging Face folder, or sizes such as {type: gpt2, layers: 6, width: 256, heads: 4}").Error())
	}
	if c.Model.Name == "" {
		m, err := inline(c, vocab)
		if err != nil {
			return nil, "", nil, fail(err)
		}
		return m, "", nil, nil
	}
	if isAdapter(c.Model.Name) {
		if m, folder, notes, err = adaptedModel(c.Model.Name); err != nil {
			err = fail(err)
		}
		return m, folder, notes, err
	}
	text, err := readModel(c.Model.Name)
	switch {
	case err == nil:
		m, notes, err = model.Parse(text)
		if err != nil {
			return nil, "", nil, fail(err)
		}
		return m, c.Model.Name, notes, nil
	case !errors.Is(err, fs.ErrNotExist):
		return nil, "", nil, fail(err)
	}
	if m, err = model.Known(c.Model.Name); err != nil {
		if st, statErr := os.Stat(c.Model.Name); statErr == nil && st.IsDir() {
			err = fmt.Errorf("the folder %q has no config.json; hint: a Hugging Face folder, or a checkpoint of a run", c.Model.Name)
		} else if paths.IsHub(c.Model.Name) {
			err = fmt.Errorf("%q is neither a folder nor downloaded from the hub; hint: hf download %s", c.Model.Name, c.Model.Name)
		}
		return nil, "", nil, fail(err)
	}
	return m, "", nil, nil
}

// maxModel bounds the bytes of a model's config.json.
const maxModel = 1 << 20

// readModel reads the config.json of a folder.
func readModel(dir string) ([]byte, error) {
	return bounded.ReadFile(filepath.Join(dir, "config.json"), maxModel)
}

// inline makes a model from sizes; omitted ones take the family's defaults.
func inline(c *config.Config, vocab int) (*model.Model, error) {
	m, err := model.Typical(model.Family(c.Model.Type))
	if err != nil {
		return nil, err
	}
	in := c.Model
	or := func(v, def int) int {
		if v != 0 {
			return v
		}
		return def
	}
	m.Layers, m.Width, m.Heads = in.Layers, in.Width, in.Heads
	if in.Layers < 1 || in.Width < 1 || in.Heads < 1 {
		return nil, errors.New("layers, width and heads must be given and positive; hint: such as {type: gpt2, layers: 6, width: 256, heads: 4}")
	}
	if in.HeadDim == 0 && m.Width%m.Heads != 0 {
		return nil, fmt.Errorf("a width of %d does not divide over %d heads; hint: a multiple of heads, or give head_dim", m.Width, m.Heads)
	}
	m.KVHeads = or(in.KVHeads, m.Heads)
	m.HeadDim = or(in.HeadDim, m.Width/m.Heads)
	wide := 4 * m.Width
	if m.Gated() { // the same number of parameters with three matrices, in steps of 32
		wide = (8*m.Width/3 + 31) / 32 * 32
	}
	m.Experts, m.Active = in.Experts, in.Active
	if m.Mixture() {
		m.Experts = or(in.Experts, 8)
		m.Active = or(in.Active, min(2, m.Experts))
		wide = (max(wide/max(m.Active, 1), 1) + 31) / 32 * 32 // together those of a token are as wide
	}
	m.FeedForward = or(in.FeedForward, wide)
	if m.Vocab = or(in.Vocab, vocab); m.Vocab == 0 {
		return nil, errors.New("vocabulary is missing, and there is no tokenizer to have one; hint: such as vocabulary: 32000")
	}
	m.MaxPositions = or(in.Positions, c.SequenceLength)
	if m.Window = in.Window; m.Window == 0 { // none has a base of its own then
		m.Sliding, m.LocalTheta = nil, 0
	}
	if m.RopeScaling != nil { // of a longer context than the sizes say; the bases are the same
		m.RopeScaling, m.LocalTheta = nil, 0
	}
	if m.QueryScalar > 0 {
		m.QueryScalar = float64(m.HeadDim)
	}
	if m.Multipliers.Attention > 0 {
		m.Multipliers.Attention = 1 / float64(m.HeadDim)
	}
	if in.RopeTheta != 0 {
		if !m.Rotary() {
			return nil, fmt.Errorf("rope_theta %v, but %s has learned positions; hint: leave it out, or another type", in.RopeTheta, m.Family)
		}
		m.RopeTheta = in.RopeTheta
	}
	if in.Tied != nil {
		m.Tied = *in.Tied
	}
	return m, m.Validate()
}

// Documents returns where attention ends if the configuration confines it to
// documents of the text, else nil.
func Documents(c *config.Config, t *data.Tokens) (*graph.Documents, error) {
	if c.Documents == config.Joined {
		return nil, nil
	}
	if t == nil {
		return nil, c.Fault("data", "missing: where attention ends with documents, their lengths decide about the plan; hint: data and tokenizer, or neither documents nor preference")
	}
	docs := &graph.Documents{End: t.EndOfText(), Preference: c.Preference.Beta}
	if docs.Preference > 0 {
		docs.Length = t.PairLength(c.SequenceLength)
	} else {
		docs.Length = t.DocumentLength(c.SequenceLength)
	}
	return docs, nil
}
