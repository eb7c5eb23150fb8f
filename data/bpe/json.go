package bpe

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/athanor-llm/athanor/internal/jsonkeys"
)

// Reading tokenizer.json.
//
// Approach: the file describes a pipeline (normalizer, pre-tokenizer, model,
// post-processor, decoder) of which byte-level BPE uses a small part. Every
// field is read into a struct that knows it, unknown fields are errors, and
// every value that would change the ids is either supported or an error that
// names it. The post-processor only adds special tokens around a text on request,
// which Encode never does; Start returns those before a text.

// maxFile is the size limit of a tokenizer.json in bytes.
const maxFile = 512 << 20

// file is tokenizer.json.
type file struct {
	pipeline
	Model *model `json:"model"`
}

// pipeline is all of it but the model.
type pipeline struct {
	Version       string          `json:"version"`
	Truncation    json.RawMessage `json:"truncation"`
	Padding       json.RawMessage `json:"padding"`
	AddedTokens   []addedToken    `json:"added_tokens"`
	Normalizer    json.RawMessage `json:"normalizer"`
	PreTokenizer  json.RawMessage `json:"pre_tokenizer"`
	PostProcessor json.RawMessage `json:"post_processor"`
	Decoder       json.RawMessage `json:"decoder"`
}

type addedToken struct {
	ID         int32  `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
	inner      bool   // see Added
}

type model struct {
	Type         string   `json:"type"`
	Dropout      *float64 `json:"dropout"`
	Unk          *string  `json:"unk_token"`
	Prefix       *string  `json:"continuing_subword_prefix"`
	Suffix       *string  `json:"end_of_word_suffix"`
	FuseUnk      bool     `json:"fuse_unk"`
	ByteFallback bool     `json:"byte_fallback"`
	IgnoreMerges bool     `json:"ignore_merges"`
	UnkID        *int32   `json:"unk_id"` // unigram
	Vocab        vocab    `json:"vocab"`
	Merges       merges   `json:"merges"`
}

// vocab is a vocabulary: ids by token or, of a unigram model, tokens with their scores in order of id.
type vocab struct {
	ids    map[string]int32
	scores []float64
}

// UnmarshalJSON reads both kinds.
func (v *vocab) UnmarshalJSON(raw []byte) error {
	if len(raw) == 0 || raw[0] != '[' {
		var ok bool
		if v.ids, ok = readIDs(raw); ok {
			return nil
		}
		v.ids = nil
		return json.Unmarshal(raw, &v.ids)
	}
	var list []scored
	if err := json.Unmarshal(raw, &list); err != nil {
		return err
	}
	v.ids, v.scores = make(map[string]int32, len(list)), make([]float64, len(list))
	for id, t := range list {
		if _, twice := v.ids[t.text]; twice {
			return fmt.Errorf("two tokens of the vocabulary are %q", t.text)
		}
		v.ids[t.text], v.scores[id] = int32(id), t.score
	}
	return nil
}

// scored is a token of a unigram model, written ["text", -3.5].
type scored struct {
	text  string
	score float64
}

func (s *scored) UnmarshalJSON(raw []byte) error {
	both := []any{&s.text, &s.score}
	if err := json.Unmarshal(raw, &both); err != nil {
		return err
	}
	if len(both) != 2 {
		return fmt.Errorf("a token has %d parts, not its text and its score", len(both))
	}
	return nil
}

// merges are the pairs of tokens that become one, the first first.
type merges []mergePair

// UnmarshalJSON reads both notations.
func (m *merges) UnmarshalJSON(raw []byte) error {
	var ok bool
	if *m, ok = readMerges(raw); ok {
		return nil
	}
	*m = nil
	return json.Unmarshal(raw, (*[]mergePair)(m))
}

// mergePair is one merge, written "a b" or ["a","b"].
type mergePair [2]string

// UnmarshalJSON reads both notations.
func (m *mergePair) UnmarshalJSON(raw []byte) error {
	if len(raw) > 0 && raw[0] == '[' {
		var parts []string
		if err := json.Unmarshal(raw, &parts); err != nil {
			return err
		}
		if len(parts) != 2 {
			return fmt.Errorf("a merge has %d parts, not 2", len(parts))
		}
		*m = mergePair(parts)
		return nil
	}
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		return err
	}
	pair, ok := mergeOf(text)
	if !ok {
		return fmt.Errorf("the merge %q is not two tokens with a space between them", text)
	}
	*m = pair
	return nil
}

// mergeOf returns the merge that is written "a b".
func mergeOf(text string) (pair mergePair, ok bool) {
	left, right, ok := strings.Cut(text, " ")
	return mergePair{left, right}, ok && left != "" && right != "" && !strings.Contains(right, " ")
}

// Parse builds a Tokenizer from the content of a tokenizer.json and, where
// there is one, of its tokenizer_config.json (else nil). It retains both slices,
// without copying them, for Save.
func Parse(raw, config []byte) (*Tokenizer, error) {
	var f file
	if err := strict(raw, &f); err != nil {
		return nil, jsonkeys.Explain(raw, explain(raw, err))
	}
	if err := jsonkeys.Shallow(raw, 2); err != nil { // what is deeper is large, or read as a whole
		return nil, err
	}
	if err := f.Model.check(); err != nil {
		return nil, err
	}
	v := newVocabulary()
	v.ignoreMerges = f.Model.IgnoreMerges
	if err := v.readPipeline(&f.pipeline, f.Model); err != nil {
		return nil, err
	}
	t, err := v.finish(f.Model, f.AddedTokens, config)
	if err != nil {
		return nil, err
	}
	t.sources = []File{{"tokenizer.json", raw}}
	if config != nil {
		t.sources = append(t.sources, File{configFile, config})
	}
	return t, nil
}

func newVocabulary() vocabulary {
	v := vocabulary{endOfText: -1, unknown: -1, unreached: map[int32]bool{}}
	for i := range v.bytes {
		v.bytes[i] = -1
	}
	return v
}

// readPipeline reads everything but the vocabulary.
func (v *vocabulary) readPipeline(f *pipeline, m *model) (err error) {
	splitters, err := parts(f.PreTokenizer, "pretokenizers")
	if err != nil {
		return fmt.Errorf("pre_tokenizer: %w", err)
	}
	v.byteLevel = slices.ContainsFunc(splitters, func(part json.RawMessage) bool { return kind(part) == "ByteLevel" })
	if v.start, err = postProcessor(f.PostProcessor); err != nil {
		return err
	}
	if err := v.readNormalizers(f.Normalizer); err != nil {
		return err
	}
	if err := v.readSteps(splitters); err != nil {
		return err
	}
	if !v.byteLevel {
		v.chars = map[rune]int32{}
	}
	v.fallback = m.ByteFallback
	return v.readDecoder(f.Decoder)
}

// finish reads the vocabulary, and builds the tokenizer.
func (v *vocabulary) finish(m *model, added []addedToken, config []byte) (*Tokenizer, error) {
	c, err := readSettings(config)
	if err != nil {
		return nil, err
	}
	if added, err = c.moreAdded(added, m.Vocab.ids); err != nil {
		return nil, err
	}
	v.readUnknown(m)
	if err := v.read(m, added); err != nil {
		return nil, err
	}
	if err := v.configure(c); err != nil {
		return nil, err
	}
	return newTokenizer(*v)
}

// readUnknown finds the token for characters that have none.
func (v *vocabulary) readUnknown(m *model) {
	v.fuse = m.FuseUnk || m.Vocab.scores != nil
	if m.UnkID != nil && int(*m.UnkID) < len(m.Vocab.scores) {
		v.unknown = *m.UnkID
	} else if m.Unk != nil {
		if id, ok := m.Vocab.ids[*m.Unk]; ok {
			v.unknown = id
		}
	}
}

// strict unmarshals one JSON value; a field that the struct lacks is an error.
func strict(raw []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if d.More() {
		return errors.New("there is more after the JSON object")
	}
	return nil
}

func unsupported(what string) error {
	what = strings.TrimSuffix(what, " is not supported") // of an expression
	return fmt.Errorf("%s is not supported, and would change the tokens; "+
		"hint: use BPE as in GPT-2, GPT-NeoX, Llama 2 and 3, Mistral 7B, Qwen, Gemma 3 or SmolLM", what)
}

func null(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

// untyped is the kind of a part that has none.
const untyped = "without a type"

// kind returns the "type" of a part of the pipeline, for messages and dispatch.
func kind(raw json.RawMessage) string {
	var part struct {
		Type string `json:"type"`
	}
	if json.Unmarshal(raw, &part) != nil || part.Type == "" {
		return untyped
	}
	return part.Type
}

// explain returns the error of a file that cannot be read: it may have a model of another type, or its fault may be in the model.
func explain(raw []byte, err error) error {
	var f struct {
		pipeline
		Model json.RawMessage `json:"model"`
	}
	if outside := strict(raw, &f); outside != nil || null(f.Model) {
		return err
	}
	switch k := kind(f.Model); k {
	case "BPE", "Unigram", untyped:
		return fmt.Errorf("model: %w", err)
	default:
		return unsupported("the model " + k)
	}
}

// check rejects unsupported settings that have an effect. Truncation and padding are for callers that want them, who set
// them anew. The first published files leave out the type of their BPE model.
func (m *model) check() error {
	switch {
	case m == nil:
		return errors.New(`it has no "model"`)
	case m.Type != "" && m.Type != "BPE" && m.Type != "Unigram":
		return unsupported("the model " + m.Type)
	case m.Type != "" && (m.Type == "Unigram") != (m.Vocab.scores != nil):
		return fmt.Errorf("model: the vocabulary is not that of a model of type %s", m.Type)
	case m.Dropout != nil && *m.Dropout != 0:
		return unsupported("dropout")
	case m.Prefix != nil && *m.Prefix != "":
		return unsupported("continuing_subword_prefix")
	case m.Suffix != nil && *m.Suffix != "":
		return unsupported("end_of_word_suffix")
	}
	return nil
}

// read turns the vocabulary's strings into bytes and ids.
func (v *vocabulary) read(m *model, added []addedToken) error {
	if err := v.readAdded(added); err != nil {
		return err
	}
	if err := v.readTokens(m.Vocab.ids); err != nil {
		return err
	}
	v.scores = m.Vocab.scores
	v.merges = make([]Merge, len(m.Merges))
	for rank, pair := range m.Merges {
		left, hasLeft := m.Vocab.ids[pair[0]]
		right, hasRight := m.Vocab.ids[pair[1]]
		id, hasBoth := m.Vocab.ids[pair[0]+pair[1]]
		if !hasLeft || !hasRight || !hasBoth {
			return fmt.Errorf("merge %d: %q, %q or both joined are not in the vocabulary", rank, pair[0], pair[1])
		}
		v.merges[rank] = Merge{left, right, id}
	}
	return nil
}

// readAdded reads added_tokens. Their ids may be new or those of the same tokens in the
// vocabulary.
func (v *vocabulary) readAdded(added []addedToken) error {
	seen := make(map[int32]bool, len(added))
	for _, a := range added {
		if seen[a.ID] {
			return fmt.Errorf("two added tokens have the id %d", a.ID)
		}
		if err := checkID(a.Content, a.ID); err != nil {
			return err
		}
		seen[a.ID] = true
		v.added = append(v.added, Added{ID: a.ID, Text: a.Content, Special: a.Special, LeftStrip: a.LStrip, RightStrip: a.RStrip,
			SingleWord: a.SingleWord, Normalized: a.Normalized, inner: a.inner})
	}
	return nil
}

// readTokens reads the bytes of all tokens. The added ones are read already.
func (v *vocabulary) readTokens(vocab map[string]int32) error {
	content := make(map[int32]string, len(v.added))
	size := int32(0)
	for _, a := range v.added {
		content[a.ID] = a.Text
		size = max(size, a.ID+1)
	}
	for text, id := range vocab {
		if err := checkID(text, id); err != nil {
			return err
		}
		size = max(size, id+1)
	}
	v.tokens = make([][]byte, size)
	for _, a := range v.added {
		v.tokens[a.ID] = []byte(a.Text)
	}
	for text, id := range vocab {
		if got, isAdded := content[id]; isAdded {
			if got != text {
				return fmt.Errorf("id %d is %q in the vocabulary and %q in added_tokens", id, text, got)
			}
			if v.chars == nil {
				continue
			}
			v.tokens[id] = nil // spaces in it may be written as ▁
		}
		if v.tokens[id] != nil {
			return fmt.Errorf("two tokens of the vocabulary have the id %d", id)
		}
		if err := v.readToken(text, id); err != nil {
			return err
		}
	}
	return nil
}

// readToken reads the bytes of one token of the vocabulary.
func (v *vocabulary) readToken(text string, id int32) error {
	if text == "" {
		v.tokens[id], v.unreached[id] = []byte{}, true
		return nil
	}
	if v.chars != nil {
		v.readSpaced(text, id)
		return nil
	}
	token, ok := appendBytes(nil, text)
	if !ok { // no text has it
		token = []byte(text)
		v.unreached[id] = true
	}
	v.tokens[id] = token
	return nil
}

func checkID(text string, id int32) error {
	if id < 0 || id >= MaxVocabulary {
		return fmt.Errorf("token %q has the id %d, outside 0..%d", text, id, MaxVocabulary-1)
	}
	return nil
}

// endNames are tokens that may end a document, tried in this order if no
// tokenizer_config.json names one.
var endNames = []string{EndOfText, "<|end_of_text|>", "</s>", "<|eot_id|>", "<|im_end|>", "<eos>"}

// find returns the id of an added token, or -1.
func (v *vocabulary) find(name string) int32 {
	i := slices.IndexFunc(v.added, func(a Added) bool { return a.Text == name })
	if i < 0 {
		return -1
	}
	return v.added[i].ID
}
