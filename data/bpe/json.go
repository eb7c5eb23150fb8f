package bpe

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/athanor-llm/athanor/internal/bounded"
	"github.com/athanor-llm/athanor/internal/suggest"
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
	Version       string          `json:"version"`
	Truncation    json.RawMessage `json:"truncation"`
	Padding       json.RawMessage `json:"padding"`
	AddedTokens   []addedToken    `json:"added_tokens"`
	Normalizer    json.RawMessage `json:"normalizer"`
	PreTokenizer  json.RawMessage `json:"pre_tokenizer"`
	PostProcessor json.RawMessage `json:"post_processor"`
	Decoder       json.RawMessage `json:"decoder"`
	Model         json.RawMessage `json:"model"`
}

type addedToken struct {
	ID         int32  `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

type model struct {
	Type         string           `json:"type"`
	Dropout      *float64         `json:"dropout"`
	UnkToken     *string          `json:"unk_token"`
	Prefix       *string          `json:"continuing_subword_prefix"`
	Suffix       *string          `json:"end_of_word_suffix"`
	FuseUnk      bool             `json:"fuse_unk"`
	ByteFallback bool             `json:"byte_fallback"`
	IgnoreMerges bool             `json:"ignore_merges"`
	Vocab        map[string]int32 `json:"vocab"`
	Merges       []mergePair      `json:"merges"`
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
	left, right, ok := strings.Cut(text, " ")
	if !ok || left == "" || right == "" || strings.Contains(right, " ") {
		return fmt.Errorf("the merge %q is not two tokens with a space between them", text)
	}
	*m = mergePair{left, right}
	return nil
}

// Load reads a tokenizer.json, or the one in a Hugging Face folder, together
// with the tokenizer_config.json next to it, which says what ends a document.
func Load(path string) (*Tokenizer, error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, "tokenizer.json")
	}
	raw, err := bounded.ReadFile(path, maxFile)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%w; hint: name a tokenizer.json, a folder that has one, or gpt2", err)
		}
		return nil, err
	}
	config, err := bounded.ReadFile(filepath.Join(filepath.Dir(path), "tokenizer_config.json"), maxFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	t, err := Parse(raw, config)
	if err != nil {
		return nil, suggest.Add(fmt.Errorf("%s: %w", path, err), "check that it is a tokenizer.json of byte-level BPE, or of SentencePiece's BPE")
	}
	return t, nil
}

// Parse builds a Tokenizer from the content of a tokenizer.json and, where
// there is one, of its tokenizer_config.json (else nil). It retains both slices,
// without copying them, for Save.
func Parse(raw, config []byte) (*Tokenizer, error) {
	var f file
	if err := strict(raw, &f); err != nil {
		return nil, err
	}
	var m model
	if err := f.check(&m); err != nil {
		return nil, err
	}
	v := vocabulary{ignoreMerges: m.IgnoreMerges, endOfText: -1}
	var err error
	if v.start, err = postProcessor(f.PostProcessor); err != nil {
		return nil, err
	}
	if m.ByteFallback {
		err = v.readSpacing(&f)
	} else if v.composed, err = normalizer(f.Normalizer); err == nil {
		v.pattern, err = preTokenizer(f.PreTokenizer)
	}
	if err != nil {
		return nil, err
	}
	if err := v.read(m, f.AddedTokens); err != nil {
		return nil, err
	}
	if err := v.configure(config); err != nil {
		return nil, err
	}
	t, err := newTokenizer(v)
	if err != nil {
		return nil, err
	}
	t.source, t.sourceConfig = raw, config
	return t, nil
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
	return fmt.Errorf("%s is not supported, and would change the tokens; "+
		"hint: use BPE as in GPT-2, GPT-NeoX, Llama 2 and 3, Mistral 7B, Qwen, Gemma 3 or SmolLM", what)
}

func null(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

// kind returns the "type" of a part of the pipeline, for messages and dispatch.
func kind(raw json.RawMessage) string {
	var part struct {
		Type string `json:"type"`
	}
	if json.Unmarshal(raw, &part) != nil || part.Type == "" {
		return "without a type"
	}
	return part.Type
}

// check rejects unsupported settings that have an effect, and reads the model.
func (f *file) check(m *model) error {
	switch {
	case !null(f.Truncation):
		return unsupported("truncation")
	case !null(f.Padding):
		return unsupported("padding")
	case null(f.Model):
		return errors.New(`it has no "model"`)
	}
	// The first published files leave out the type of their BPE model.
	if k := kind(f.Model); k != "BPE" && k != "without a type" {
		return unsupported("the model " + k)
	}
	if err := strict(f.Model, m); err != nil {
		return fmt.Errorf("model: %w", err)
	}
	switch {
	case m.Dropout != nil && *m.Dropout != 0:
		return unsupported("dropout")
	case m.Prefix != nil && *m.Prefix != "":
		return unsupported("continuing_subword_prefix")
	case m.Suffix != nil && *m.Suffix != "":
		return unsupported("end_of_word_suffix")
	case m.ByteFallback && m.IgnoreMerges:
		return unsupported("byte_fallback with ignore_merges")
	case !m.ByteFallback && kind(f.Decoder) != "ByteLevel":
		return unsupported("the decoder " + kind(f.Decoder))
	}
	return nil
}

// postProcessor accepts post-processors that only add special tokens around a text,
// which Encode leaves out. It returns those that a template adds before the text.
func postProcessor(raw json.RawMessage) (start []int32, err error) {
	if null(raw) {
		return nil, nil
	}
	switch k := kind(raw); k {
	case "ByteLevel", "RobertaProcessing", "BertProcessing":
		return nil, nil
	case "TemplateProcessing":
		return template(raw)
	case "Sequence":
		var sequence struct {
			Processors []json.RawMessage `json:"processors"`
		}
		if err := json.Unmarshal(raw, &sequence); err != nil {
			return nil, fmt.Errorf("post_processor: %w", err)
		}
		for _, part := range sequence.Processors {
			if k := kind(part); k != "ByteLevel" && k != "TemplateProcessing" {
				return nil, unsupported("in a post_processor, " + k)
			}
			before, err := postProcessor(part)
			if err != nil {
				return nil, err
			}
			start = append(before, start...)
		}
		return start, nil
	default:
		return nil, unsupported("the post_processor " + k)
	}
}

// template returns the tokens that a template adds before a text: [{"SpecialToken":
// {"id": "<s>"}}, {"Sequence": {"id": "A"}}] with {"<s>": {"ids": [1]}} adds token 1.
func template(raw json.RawMessage) (start []int32, err error) {
	var part struct {
		Single []struct {
			SpecialToken *struct {
				ID string `json:"id"`
			}
		} `json:"single"`
		Tokens map[string]struct {
			IDs []int32 `json:"ids"`
		} `json:"special_tokens"`
	}
	if err := json.Unmarshal(raw, &part); err != nil {
		return nil, fmt.Errorf("post_processor TemplateProcessing: %w", err)
	}
	for _, piece := range part.Single {
		if piece.SpecialToken == nil { // the text
			break
		}
		start = append(start, part.Tokens[piece.SpecialToken.ID].IDs...)
	}
	return start, nil
}

// normalizer accepts no normalizer, or NFC (Qwen2); composed reports NFC.
func normalizer(raw json.RawMessage) (composed bool, err error) {
	if null(raw) {
		return false, nil
	}
	switch k := kind(raw); k {
	case "NFC":
		return true, nil
	case "Sequence":
		var sequence struct {
			Normalizers []json.RawMessage `json:"normalizers"`
		}
		if err := json.Unmarshal(raw, &sequence); err != nil {
			return false, fmt.Errorf("normalizer: %w", err)
		}
		if len(sequence.Normalizers) == 0 {
			return false, nil
		}
		if len(sequence.Normalizers) == 1 {
			return normalizer(sequence.Normalizers[0])
		}
		return false, unsupported("a sequence of normalizers")
	default:
		return false, unsupported("the normalizer " + k)
	}
}

// preTokenizer accepts ByteLevel with its own expression, alone or after Digits, and
// Split by an expression of patterns followed by ByteLevel without one.
func preTokenizer(raw json.RawMessage) (Pattern, error) {
	if null(raw) {
		return 0, unsupported("a missing pre_tokenizer")
	}
	switch k := kind(raw); k {
	case "ByteLevel":
		return PatternGPT2, byteLevel(raw, true)
	case "Sequence":
	default:
		return 0, unsupported("the pre_tokenizer " + k)
	}
	var sequence struct {
		Type          string            `json:"type"`
		PreTokenizers []json.RawMessage `json:"pretokenizers"`
	}
	if err := strict(raw, &sequence); err != nil {
		return 0, fmt.Errorf("pre_tokenizer: %w", err)
	}
	parts := sequence.PreTokenizers
	if len(parts) == 1 {
		return preTokenizer(parts[0])
	}
	if len(parts) == 2 && kind(parts[0]) == "Digits" && kind(parts[1]) == "ByteLevel" {
		if err := digits(parts[0]); err != nil {
			return 0, err
		}
		return PatternDigits, byteLevel(parts[1], true)
	}
	if len(parts) != 2 || kind(parts[0]) != "Split" || kind(parts[1]) != "ByteLevel" {
		kinds := make([]string, len(parts))
		for i := range parts {
			kinds[i] = kind(parts[i])
		}
		return 0, unsupported(fmt.Sprintf("the pre_tokenizer sequence %q", kinds))
	}
	pattern, err := split(parts[0])
	if err != nil {
		return 0, err
	}
	return pattern, byteLevel(parts[1], false)
}

func byteLevel(raw json.RawMessage, regex bool) error {
	part := struct {
		Type        string `json:"type"`
		PrefixSpace *bool  `json:"add_prefix_space"`
		TrimOffsets bool   `json:"trim_offsets"`
		UseRegex    *bool  `json:"use_regex"`
	}{}
	if err := strict(raw, &part); err != nil {
		return fmt.Errorf("pre_tokenizer ByteLevel: %w", err)
	}
	if part.PrefixSpace == nil || *part.PrefixSpace {
		return unsupported("add_prefix_space")
	}
	uses := part.UseRegex == nil || *part.UseRegex
	if uses != regex {
		return unsupported(fmt.Sprintf("in pre_tokenizer ByteLevel, use_regex %v at this place", uses))
	}
	return nil
}

func digits(raw json.RawMessage) error {
	var part struct {
		Type       string `json:"type"`
		Individual bool   `json:"individual_digits"`
	}
	if err := strict(raw, &part); err != nil {
		return fmt.Errorf("pre_tokenizer Digits: %w", err)
	}
	if !part.Individual {
		return unsupported("pre_tokenizer Digits without individual_digits")
	}
	return nil
}

func split(raw json.RawMessage) (Pattern, error) {
	var part struct {
		Type    string `json:"type"`
		Pattern struct {
			Regex  *string `json:"Regex"`
			String *string `json:"String"`
		} `json:"pattern"`
		Behavior string `json:"behavior"`
		Invert   bool   `json:"invert"`
	}
	if err := strict(raw, &part); err != nil {
		return 0, fmt.Errorf("pre_tokenizer Split: %w", err)
	}
	switch {
	case part.Pattern.Regex == nil:
		return 0, unsupported("pre_tokenizer Split by a fixed string")
	case part.Behavior != "Isolated" || part.Invert:
		return 0, unsupported(fmt.Sprintf("pre_tokenizer Split with behavior %q, invert %v", part.Behavior, part.Invert))
	}
	for p := range patterns {
		if patterns[p].regex == *part.Pattern.Regex {
			return Pattern(p), nil
		}
	}
	return 0, unsupported(fmt.Sprintf("pre_tokenizer Split by %q", *part.Pattern.Regex))
}

// read turns the vocabulary's strings into bytes and ids.
func (v *vocabulary) read(m model, added []addedToken) error {
	if err := v.readAdded(added); err != nil {
		return err
	}
	if err := v.readTokens(m.Vocab); err != nil {
		return err
	}
	v.merges = make([]Merge, len(m.Merges))
	for rank, pair := range m.Merges {
		left, hasLeft := m.Vocab[pair[0]]
		right, hasRight := m.Vocab[pair[1]]
		id, hasBoth := m.Vocab[pair[0]+pair[1]]
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
		if a.SingleWord || a.LStrip || a.RStrip {
			return unsupported(fmt.Sprintf("the added token %q with single_word, lstrip or rstrip", a.Content))
		}
		if seen[a.ID] {
			return fmt.Errorf("two added tokens have the id %d", a.ID)
		}
		if err := checkID(a.Content, a.ID); err != nil {
			return err
		}
		seen[a.ID] = true
		v.added = append(v.added, Added{ID: a.ID, Text: a.Content, Special: a.Special})
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
			continue
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
	if v.chars != nil {
		token, isByte, err := spacedToken(text)
		if err != nil {
			return err
		}
		v.tokens[id] = token
		v.addSpaced(token, isByte, id)
		return nil
	}
	token, ok := appendBytes(nil, text)
	if !ok || len(token) == 0 {
		return unsupported(fmt.Sprintf("the vocabulary's token %q, which is not in the byte-level alphabet,", text))
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

// named returns the text of a token in tokenizer_config.json: a string, or an object
// with the string in "content"; "" if there is none.
func named(key string, raw json.RawMessage) (string, error) {
	var name string
	if null(raw) || json.Unmarshal(raw, &name) == nil {
		return name, nil
	}
	var object struct {
		Content string `json:"content"`
	}
	if err := json.Unmarshal(raw, &object); err != nil {
		return "", fmt.Errorf("tokenizer_config.json: %s: %w", key, err)
	}
	return object.Content, nil
}

// configure sets the token that ends a document, and the token before a text if
// tokenizer_config.json sets add_bos_token.
func (v *vocabulary) configure(config []byte) error {
	var c struct {
		EOS    json.RawMessage `json:"eos_token"`
		BOS    json.RawMessage `json:"bos_token"`
		AddBOS *bool           `json:"add_bos_token"`
	}
	if config != nil {
		if err := json.Unmarshal(config, &c); err != nil {
			return fmt.Errorf("tokenizer_config.json: %w", err)
		}
	}
	if c.AddBOS != nil {
		name, err := named("bos_token", c.BOS)
		if err != nil {
			return err
		}
		v.start = nil
		if id := v.find(name); *c.AddBOS && id >= 0 {
			v.start = []int32{id}
		}
	}
	name, err := named("eos_token", c.EOS)
	if err != nil {
		return err
	}
	if name != "" {
		if v.endOfText = v.find(name); v.endOfText < 0 {
			return fmt.Errorf("tokenizer_config.json: eos_token %q is not in added_tokens", name)
		}
		return nil
	}
	for _, name := range endNames {
		if v.endOfText = v.find(name); v.endOfText >= 0 {
			break
		}
	}
	return nil
}
