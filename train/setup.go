package train

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/data"
	"github.com/athanor-llm/athanor/data/bpe"
	"github.com/athanor-llm/athanor/folder"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/paths"
	"github.com/athanor-llm/athanor/internal/suggest"
	"github.com/athanor-llm/athanor/job"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/model/family"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/planner"
)

// Setup is what a job reads before any planning: the text as
// tokens, the model and its graph. Plans may do without text: then Text is empty and everything made of it nil.
type Setup struct {
	Spec    *job.Spec // of what is trained, with the length that the text gives it
	Model   *model.Model
	Folder  string // the Hugging Face folder that the model came from, or ""
	Adapter string // the folder of Model's adapter, from which training starts, or ""
	*Text
	Train    data.Windows
	Held     data.Windows   // for validation
	HeldText []data.Stretch // the text of Held
	Graph    *graph.Graph
	Notes    []string // messages for the user: what was recognised or ignored
	teacher  string   // fingerprint of the weights of the teacher, or ""
	base     string   // fingerprint of the weights that adapters are trained on, else ""

	chosen *Chosen // what a run that goes on trains, with train_within; else nil

	mismatched           struct{ train, held data.Windows } // beside Train and Held, if the loss wants them
	packing, heldPacking data.Packing                       // of whole documents or pairs in the sources, and in Validation
}

// Prepare reads the corpus, if there is one, the tokenizer and the model, and builds the graph.
// Errors of the configuration are config faults. Close the Setup after use.
func Prepare(ctx context.Context, spec *job.Spec, progress folder.Progress) (*Setup, error) {
	s := &Setup{Spec: spec}
	if err := s.prepare(ctx, progress); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *Setup) prepare(ctx context.Context, progress folder.Progress) error {
	var err error
	if s.Text, err = OpenText(ctx, s.Spec, progress); err != nil {
		return err
	}
	if !s.Empty() {
		if err := s.sequences(); err != nil {
			return err
		}
	}
	spec := s.Spec // which has its length now
	var notes []string
	s.Model, s.Folder, notes, err = resolveModel(spec, s.vocabulary())
	if err != nil {
		return err
	}
	s.Notes = append(s.Text.Notes, notes...)
	if s.Model.LoRA != nil {
		s.Adapter = spec.Model.Name
	}
	if !s.Empty() {
		if err := errors.Join(s.agree(), s.checkTeacher()); err != nil {
			return err
		}
	}
	docs := s.Documents(spec)
	if docs != nil && s.Empty() {
		s.Notes = append(s.Notes, "there is no text: documents are assumed to be as long as windows allow, which is the slowest case")
	}
	s.Graph, err = planner.BuildGraph(spec, s.Model, docs)
	if err == nil && spec.TrainWithin > 0 && spec.Begun != nil {
		err = s.keep()
	}
	if err == nil && s.Graph.Model.LoRA != nil && s.Folder != "" {
		s.base, err = folder.Fingerprint(s.Folder)
		if errors.Is(err, fs.ErrNotExist) { // plans do without weights; CheckOut asks for them
			err = nil
		}
	}
	return err
}

// Follow makes the setup one with so many ranks to each sequence, and to each matrix, and parts of the vocabulary, as a plan has it.
func (s *Setup) Follow(pl *plan.Plan) (err error) {
	sequence, tensor, parts := pl.Parts(), pl.Sharers(), max(pl.VocabularyParts, 1)
	if sequence != s.Graph.Parts() || tensor != s.Graph.Shared() || parts != max(s.Graph.Vocabulary.Parts, 1) {
		s.Spec = s.Spec.WithShare(sequence, tensor).WithVocabulary(parts)
		s.Graph, err = planner.BuildGraph(s.Spec, s.Model, s.Graph.Documents)
	}
	return err
}

// agree checks whether text and model belong together.
func (s *Setup) agree() error {
	spec := s.Spec
	dir := folder.TokenizerFolder(spec.Model.Name)
	if own, err := bpe.Load(dir); s.Folder != "" && err == nil && own.Hash() != s.Tokenizer.Hash() {
		s.Notes = append(s.Notes, fmt.Sprintf("the tokenizer is not that of %s, whose weights were trained on other token ids; hint: set tokenizer: %s", s.Folder, dir))
	}
	if stats := s.Stats(); stats.Conversations()+stats.Prompts() > 0 && spec.Preference.Beta == 0 && spec.Documents != config.Whole && !spec.Classifies() {
		s.Notes = append(s.Notes, "the end of a window may cut an answer off from its prompt; hint: set documents: whole to keep them together")
	}
	if s.Model.Vocab < s.Tokenizer.VocabularySize() {
		hint := "use the model's own tokenizer, or set resize_vocab: true, which adds rows to embedding and head"
		if spec.Model.Name == "" {
			hint = "leave the model's vocabulary out"
		}
		return spec.Fault("tokenizer", fmt.Sprintf("it has %d tokens, but the model's vocabulary is %d; hint: %s", s.Tokenizer.VocabularySize(), s.Model.Vocab, hint))
	}
	if spec.Sample.Tokens > 0 { // else this would fail only after the last step
		ids, err := folder.PromptIDs(s.Tokenizer, spec.Sample.Prompt)
		if n := len(ids); err == nil && n > s.Model.MaxPositions {
			err = fmt.Errorf("it has %d tokens, but the model takes at most %d; hint: shorten it", n, s.Model.MaxPositions)
		}
		if err != nil {
			return spec.Fault("sample.prompt", err.Error())
		}
	}
	return nil
}

// Reading describes the text of a run and how often the run reads it.
func (s *Setup) Reading() string {
	spec := s.Spec
	text := fmt.Sprintf("corpus: %v; %d tokens of %s", s.Stats(), s.Len(), spec.Tokenizer)
	if s.Validation == nil {
		n := int64(0)
		for _, h := range s.HeldText {
			n += h.Len()
		}
		text += fmt.Sprintf(", %d of them held out", n)
	}
	p := s.packing
	p.Add(s.heldPacking)
	empty := 100 * float64(p.Padding) / float64(max(p.Padding+p.Tokens, 1))
	switch {
	case spec.Classifies():
		text += fmt.Sprintf("; texts to train on: %s; to validate with: %s; in %d and %d windows, of which %.0f %% is padding",
			s.labelled(s.Train), s.labelled(s.Held), s.Train.Count(), s.Held.Count(), empty)
	case spec.Unpaired():
		good, bad := s.Train.Verdicts()
		heldGood, heldBad := s.Held.Verdicts()
		text += fmt.Sprintf("; %d good and %d bad answers to train on, %d and %d to validate with, in %d and %d windows, of which %.0f %% is padding",
			good, bad, heldGood, heldBad, s.Train.Count(), s.Held.Count(), empty)
	case spec.Preference.Beta > 0:
		text += fmt.Sprintf("; %d pairs to train on and %d to validate with, in %d and %d windows, of which %.0f %% is padding",
			s.Train.Pairs(s.Train.Count()), s.Held.Pairs(s.Held.Count()), s.Train.Count(), s.Held.Count(), empty)
	case spec.Documents == config.Whole:
		text += fmt.Sprintf("; %d windows of whole documents to train on and %d to validate with, of which %.0f %% is padding", s.Train.Count(), s.Held.Count(), empty)
	}
	if p.Alike > 0 {
		text += fmt.Sprintf("; %d pairs have identical answers, from which nothing is learnt", p.Alike)
	}
	text += s.tooLong(s.packing)
	if !spec.Timed() && spec.MaxSteps > 0 {
		text += fmt.Sprintf("; %d steps read it %.3g times", spec.MaxSteps, float64(spec.MaxSteps)*float64(spec.GlobalBatch)/float64(s.Train.Pass()))
	}
	if s.Mixed() {
		for k, source := range s.Sources {
			text += fmt.Sprintf("\n  %v, %.1f %% of the sequences of a pass", source, 100*s.Train.Share(k))
		}
	}
	if s.Validation != nil {
		text += fmt.Sprintf("\nvalidation: %v; %d tokens%s", s.Validation.Tokens.Stats(), s.Validation.Tokens.Len(), s.tooLong(s.heldPacking))
	}
	return text
}

// tooLong says what did not fit into windows.
func (s *Setup) tooLong(p data.Packing) string {
	what := "; documents cut, since they have more than %d tokens: %d"
	switch {
	case s.Spec.Classifies():
		what = "; texts whose end is cut off, since they have more than %d tokens: %d"
	case s.Spec.Unpaired():
		what = "; answers left out, since they have more than %d tokens with their prompts: %d"
	case s.Spec.Preference.Beta > 0:
		what = "; pairs left out, since they have more than %d tokens: %d"
	}
	if p.TooLong == 0 {
		return ""
	}
	most := s.Spec.SequenceLength + 1
	if s.Spec.Classifies() { // labels take the place of the last one
		most--
	}
	return fmt.Sprintf(what, most, p.TooLong)
}

// folderOf returns the folder with the weights of a parameter.
func (s *Setup) folderOf(p model.Param) string {
	if p.InAdapter() && s.Adapter != "" {
		return s.Adapter
	}
	return s.Folder
}

// Close closes the text.
func (s *Setup) Close() {
	if s.Text != nil {
		s.Text.Close()
	}
}

// sequences makes windows of the text, and checks that there are enough.
func (s *Setup) sequences() error {
	spec := s.Spec
	if err := s.windows(); err != nil {
		return err
	}
	s.Spec = spec.OnCorpus(s.Train.Pass())
	if _, err := data.NewSampler(s.Train, spec.Seed, spec.GlobalBatch); err != nil { // fail before planning
		return spec.Fault("global_batch", err.Error())
	}
	return nil
}

// windows makes windows of the text, to train on and to validate with.
func (s *Setup) windows() error {
	spec := s.Spec
	var train, validate []data.Part
	hold := func(x windowed) {
		validate = append(validate, data.Part{Windows: x.windows, Times: 1})
		s.HeldText = append(s.HeldText, x.text)
	}
	for _, source := range s.Sources {
		var own, last windowed
		var err error
		if s.Validation != nil {
			own, err = cut(spec, source.Tokens, source.Tokens.All())
		} else if own, last, err = holdOut(spec, source.Tokens); err == nil {
			hold(last)
			s.packing.Add(last.packing)
		}
		if err != nil && s.Mixed() {
			err = fmt.Errorf("%s: %w", source.Name, err)
		}
		if err != nil {
			return spec.Fault("data", err.Error())
		}
		if n := own.packing.Alike; n > 0 && n == own.windows.Pairs(own.windows.Count()) {
			return spec.Fault("data", fmt.Sprintf("all %d pairs of %s to train on have identical answers: nothing can be learnt; hint: look at chosen and rejected, and at what the chat template and the tokenizer make of them", n, source.Name))
		}
		train = append(train, data.Part{Windows: own.windows, Times: source.Times})
		s.packing.Add(own.packing)
	}
	if v := s.Validation; v != nil {
		all, err := cut(spec, v.Tokens, v.Tokens.All())
		if err != nil {
			return spec.Fault("validation", err.Error())
		}
		hold(all)
		s.heldPacking = all.packing
	}
	s.Train, s.Held = data.Mix(train...), data.Mix(validate...)
	if note := s.oneSided(); note != "" {
		s.Text.Notes = append(s.Text.Notes, note)
	}
	if spec.Mismatched() {
		s.mismatched.train, s.mismatched.held = s.Train.Mismatched(), s.Held.Mismatched()
	}
	return nil
}

// resolveModel finds the architecture as findModel does. Rotary positions are
// unbounded: a model that is trained on longer sequences than its config.json
// states gets that length, so that readers of its checkpoints use it.
func resolveModel(spec *job.Spec, vocab int) (m *model.Model, from string, notes []string, err error) {
	if m, from, notes, err = findModel(spec, vocab); err == nil {
		err = giveLabels(spec, m)
	}
	if err == nil && m.Rotary() && m.MaxPositions < spec.SequenceLength {
		notes = append(notes, fmt.Sprintf("max_position_embeddings is raised from %d to %d, the length of the sequences", m.MaxPositions, spec.SequenceLength))
		m.MaxPositions = spec.SequenceLength
	}
	if err == nil && m.LongRope() {
		_, key := m.RopeScaling.Pairs(spec.SequenceLength)
		notes = append(notes, fmt.Sprintf("rotary positions (longrope) are those of %s, since sequences have %d tokens and the original context %d", key, spec.SequenceLength, m.RopeScaling.OriginalContext))
	}
	if err == nil && spec.ResizeVocab && m.Vocab < vocab {
		notes = append(notes, fmt.Sprintf("the vocabulary grows from %d tokens to the tokenizer's %d; the new rows of embedding and head begin as the mean of the others", m.Vocab, vocab))
		err = resize(spec, m, from, vocab)
	}
	if err == nil {
		m.Indivisible = !spec.Optimizer.Rule().Elementwise
		err = errors.Join(balance(spec, m, from), keepMask(spec, m, from), tieLayers(spec, m, from), measure(spec, m, from))
	}
	return m, from, notes, err
}

// resize gives a model the tokenizer's vocabulary.
func resize(spec *job.Spec, m *model.Model, from string, vocab int) error {
	switch {
	case m.LoRA != nil:
		return spec.Fault("resize_vocab", fmt.Sprintf("the model is an adapter with %d tokens; hint: `athanor merge %s FOLDER` first, and set model to that folder", m.Vocab, spec.Model.Name))
	case from == "": // all rows are random numbers
		m.Vocab = vocab
	default:
		m.Resize(vocab)
	}
	return nil
}

// keepMask has weights that are 0 stay so, where the model is one that has such weights.
func keepMask(spec *job.Spec, m *model.Model, from string) error {
	switch m.Masked = spec.KeepMask; {
	case !m.Masked:
	case from == "":
		return spec.Fault("keep_mask", "the model begins with random weights, of which none is 0; hint: set model to a folder that `athanor prune` has made")
	case m.LoRA != nil:
		return spec.Fault("keep_mask", "the model is an adapter, and no weight of the layers is trained; hint: leave keep_mask out, or `athanor merge` the adapter first")
	default:
		m.Kept = folder.CountKept(from, m)
	}
	return nil
}

// tieLayers has layers share parameters.
func tieLayers(spec *job.Spec, m *model.Model, from string) error {
	if spec.TieLayers > 0 && from != "" {
		return spec.Fault("tie_layers", "the model begins with trained weights, of which each layer has its own; hint: leave tie_layers out, or name sizes, such as model: {type: llama, layers: 8, width: 256, heads: 4}")
	}
	if spec.Tied == 0 {
		return nil
	}
	if err := model.ShareLayers(m, spec.Tied); err != nil {
		return spec.Fault("tie_layers", err.Error())
	}
	return nil
}

// balance sets the term of the loss that evens out the use of experts. By default it spares trained
// routers, which have learnt what to send where: they would unlearn more than they gain.
func balance(spec *job.Spec, m *model.Model, from string) error {
	const usual = 0.01
	switch {
	case spec.ExpertBalance == config.Derived && m.Experts > 0 && from == "" && !m.Router.Sigmoid:
		m.Balance = usual
	case spec.ExpertBalance > 0:
		m.Balance = spec.ExpertBalance
	}
	if err := m.Validate(); err != nil {
		return spec.Fault("expert_balance", err.Error())
	}
	return nil
}

// findModel finds the model by inline sizes, a known name, or the config.json of a folder; for an adapter's folder, that of
// its model. vocab is the tokenizer's vocabulary size, the default of inline sizes. from is the folder of the weights.
func findModel(spec *job.Spec, vocab int) (m *model.Model, from string, notes []string, err error) {
	fail := func(err error) error {
		return spec.Fault("model", suggest.Add(err, "use a known name such as gpt2, a Hugging Face folder, or sizes such as {type: gpt2, layers: 6, width: 256, heads: 4}").Error())
	}
	if spec.Model.Name == "" {
		m, err := inline(spec, vocab)
		if err != nil {
			return nil, "", nil, fail(err)
		}
		return m, "", nil, nil
	}
	if folder.IsAdapter(spec.Model.Name) {
		if m, from, notes, err = folder.AdaptedModel(spec.Model.Name); err != nil {
			err = fail(err)
		}
		return m, from, notes, err
	}
	text, err := folder.ReadConfig(spec.Model.Name)
	switch {
	case err == nil:
		m, notes, err = family.Parse(text)
		if err != nil {
			return nil, "", nil, fail(err)
		}
		return m, spec.Model.Name, notes, nil
	case !errors.Is(err, fs.ErrNotExist):
		return nil, "", nil, fail(err)
	}
	if m, err = family.Known(spec.Model.Name); err != nil {
		if st, statErr := os.Stat(spec.Model.Name); statErr == nil && st.IsDir() {
			err = fmt.Errorf("the folder %q has no config.json; hint: use a Hugging Face folder, or a checkpoint of a run", spec.Model.Name)
		} else if paths.IsHub(spec.Model.Name) {
			err = fmt.Errorf("%q is neither a folder nor downloaded from the hub; hint: hf download %s%s", spec.Model.Name, spec.Model.Name, sizesOf(spec.Model.Name))
		}
		return nil, "", nil, fail(err)
	}
	return m, "", nil, nil
}

// sizesOf offers the known sizes of a model of the hub, by a name such as meta-llama/Meta-Llama-3-8B-Instruct; "" if none are.
func sizesOf(hub string) string {
	org, name, _ := strings.Cut(strings.ToLower(hub), "/")
	maker, _, _ := strings.Cut(org, "-")
	name = strings.TrimPrefix(name, maker+"-")
	for _, suffix := range []string{"-instruct", "-it", "-chat", "-base", "-hf"} {
		name = strings.TrimSuffix(name, suffix)
	}
	if near := suggest.Nearest(name, family.Published()); near != "" {
		return "; to plan only, or to begin with random weights, " + near + " is known by its sizes"
	}
	return ""
}

// inline makes a model from sizes; omitted ones take the family's defaults.
func inline(spec *job.Spec, vocab int) (*model.Model, error) {
	m, err := family.Typical(spec.Model.Type)
	if err != nil {
		return nil, err
	}
	in := spec.Model
	or := func(v, def int) int {
		if v != 0 {
			return v
		}
		return def
	}
	m.Mamba = m.Mamba.Resize(m.Width, in.Width)
	m.Layers, m.Width, m.Heads = in.Layers, in.Width, in.Heads
	if in.Layers < 1 || in.Width < 1 || in.Heads < 1 {
		return nil, errors.New("layers, width and heads must be given and positive; hint: use sizes such as {type: gpt2, layers: 6, width: 256, heads: 4}")
	}
	if in.HeadDim == 0 && m.Width%m.Heads != 0 {
		return nil, fmt.Errorf("width %d cannot be divided among %d heads; hint: use a multiple of heads, or set head_dim", m.Width, m.Heads)
	}
	m.KVHeads = or(in.KVHeads, m.Heads)
	typical := m.HeadDim
	m.HeadDim = or(in.HeadDim, m.Width/m.Heads)
	m.Latent = m.Latent.Resize(typical, m.HeadDim)
	wide := 4 * m.Width
	if m.Gated() { // the same number of parameters with three matrices, in steps of 32
		wide = (8*m.Width/3 + 31) / 32 * 32
	}
	m.Experts, m.Active = in.Experts, in.Active
	if m.Mixture() {
		m.Experts = or(in.Experts, 8)
		m.Active = or(in.Active, min(2, m.Experts))
		wide = (max(wide/max(m.Active, 1), 1) + 31) / 32 * 32 // a token's experts together are as wide
	}
	m.FeedForward = or(in.FeedForward, wide)
	if m.Dense = min(m.Dense, m.Layers-1); m.Dense > 0 {
		m.DenseWidth = m.FeedForward * m.Active // likewise
	}
	m.Router.Groups, m.Router.Best = 0, 0
	beside := m.Family.MayMix && m.Experts > 0
	if beside {
		m.NormedRoute = true
	}
	if m.Shared > 0 || beside {
		m.Shared = m.FeedForward * m.Active // as wide as a token's experts together
	}
	if m.Vocab = or(in.Vocab, vocab); m.Vocab == 0 {
		return nil, errors.New("vocabulary is missing, and there is no tokenizer to take it from; hint: set vocabulary, such as vocabulary: 32000")
	}
	m.MaxPositions = or(in.Positions, spec.SequenceLength)
	if m.Window = in.Window; m.Window == 0 { // then no layer has a base of its own
		m.Sliding, m.LocalTheta = nil, 0
	}
	if m.Global.HeadDim = 0; m.Global.KVHeads > 0 { // as many for all layers
		m.Global.KVHeads = 0
	}
	if m.RopeScaling != nil && m.RopeScaling.Type != "proportional" { // for a longer context than the sizes state; the bases are the same
		m.RopeScaling, m.LocalTheta = nil, 0
	}
	if m.QueryScalar > 1 {
		m.QueryScalar = float64(m.HeadDim)
	}
	if m.Multipliers.Attention > 0 {
		m.Multipliers.Attention = 1 / float64(m.HeadDim)
	}
	if in.RopeTheta != 0 {
		if !m.Rotary() {
			return nil, fmt.Errorf("rope_theta %v, but %s has learned positions; hint: leave it out, or use another type", in.RopeTheta, m.Family)
		}
		m.RopeTheta = in.RopeTheta
	}
	if in.Tied != nil {
		m.Tied = *in.Tied
	}
	if err := m.Validate(); err != nil {
		return nil, err
	}
	if _, _, err := family.Parse(family.Config(m)); err != nil { // nothing could read the folder
		why, _, _ := strings.Cut(err.Error(), "; hint: ")
		return nil, fmt.Errorf("%s has no such models: %s; hint: leave head_dim and window out, or use another type", m.Family, why)
	}
	return m, nil
}
