package bpe

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/athanor-llm/athanor/internal/jsonkeys"
	"golang.org/x/text/unicode/norm"
)

// Reading the pipeline of tokenizer.json: normalizer, pre_tokenizer, post_processor and decoder.
//
// Each part is one of the kinds below, or a sequence of them. A kind or a setting that is not known is an error that
// names it.

// parts returns the parts of a sequence, or the single part, or none.
func parts(raw json.RawMessage, name string) ([]json.RawMessage, error) {
	if null(raw) {
		return nil, nil
	}
	if kind(raw) != "Sequence" {
		return []json.RawMessage{raw}, nil
	}
	var sequence map[string]json.RawMessage
	if err := json.Unmarshal(raw, &sequence); err != nil {
		return nil, err
	}
	var list, all []json.RawMessage
	if err := json.Unmarshal(sequence[name], &list); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	for _, part := range list { // sequences may be nested
		inner, err := parts(part, name)
		if err != nil {
			return nil, err
		}
		all = append(all, inner...)
	}
	return all, nil
}

// matcher is the pattern of a Split or a Replace.
type matcher struct {
	Regex  *string `json:"Regex"`
	String *string `json:"String"`
}

// readNormalizers reads the normalizer.
func (v *vocabulary) readNormalizers(raw json.RawMessage) error {
	list, err := parts(raw, "normalizers")
	if err != nil {
		return fmt.Errorf("normalizer: %w", err)
	}
	for _, part := range list {
		step, err := v.normalizer(part)
		if err != nil {
			return fmt.Errorf("normalizer %s: %w", kind(part), err)
		}
		v.normal = append(v.normal, step)
		if v.growth = max(v.growth, 1) * max(step.growth, 1); v.growth > mostGrowth {
			return unsupported(fmt.Sprintf("a normalizer that makes a text %d times as long", v.growth))
		}
	}
	return nil
}

// mostGrowth bounds how much longer normalizers make a text, in which steps of a few bytes each could fill any memory.
const mostGrowth = 1 << 10

// normalizers are the kinds that are built.
var normalizers = []string{"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Strip", "Prepend", "Replace"}

func (v *vocabulary) normalizer(raw json.RawMessage) (n normalizer, err error) {
	var part struct {
		Type    string
		Left    *bool   `json:"strip_left"`
		Right   *bool   `json:"strip_right"`
		Prepend string  `json:"prepend"`
		Pattern matcher `json:"pattern"`
		Content string  `json:"content"`
	}
	if k := kind(raw); !slices.Contains(normalizers, k) {
		return n, unsupported("the normalizer " + k)
	}
	if err := strict(raw, &part); err != nil {
		return n, jsonkeys.Explain(raw, err)
	}
	switch part.Type {
	case "NFC":
		return form("NFC", norm.NFC), nil
	case "NFD":
		return form("NFD", norm.NFD), nil
	case "NFKC":
		return form("NFKC", norm.NFKC), nil
	case "NFKD":
		return form("NFKD", norm.NFKD), nil
	case "Lowercase":
		return lowercase(), nil
	case "StripAccents":
		return stripAccents(), nil
	case "Strip":
		return strip(part.Left == nil || *part.Left, part.Right == nil || *part.Right), nil
	case "Prepend":
		if len(part.Prepend) > mostGrowth {
			return n, unsupported("a Prepend of so long a text")
		}
		return prepend(part.Prepend), nil
	case "Replace":
		return v.replacement(part.Pattern, part.Content)
	}
	return n, unsupported("the normalizer " + kind(raw))
}

// replacement reads the normalizer Replace. The one that writes ▁ for spaces begins what spaced.go describes.
func (v *vocabulary) replacement(m matcher, by string) (n normalizer, err error) {
	switch {
	case m.String != nil && *m.String == " " && by == underline && !v.byteLevel:
		v.underlined = true
		return replace(underline, " "), nil
	case m.String != nil && *m.String != "":
		return replace(*m.String, by), nil
	case m.Regex == nil:
		return n, unsupported("a Replace of nothing")
	}
	a, err := compile(*m.Regex)
	if err != nil {
		return n, unsupported(err.Error())
	}
	return replaceMatches(*m.Regex, a, by), nil
}

// readSteps reads the pre_tokenizer.
func (v *vocabulary) readSteps(list []json.RawMessage) error {
	if len(list) == 2 && kind(list[0]) == "Digits" && kind(list[1]) == "ByteLevel" && fastDigits(list) {
		v.steps = []step{PatternDigits.step()}
		return nil
	}
	bytes := false
	for _, part := range list {
		if bytes {
			return unsupported("in a pre_tokenizer, " + kind(part) + " after ByteLevel")
		}
		bytes = kind(part) == "ByteLevel"
		if err := v.readStep(part); err != nil {
			return fmt.Errorf("pre_tokenizer %s: %w", kind(part), err)
		}
	}
	return nil
}

// fastDigits reports whether a Digits and a ByteLevel are the two that PatternDigits does in one step.
func fastDigits(list []json.RawMessage) bool {
	var digits struct {
		Each bool `json:"individual_digits"`
	}
	var level byteLevel
	return json.Unmarshal(list[0], &digits) == nil && json.Unmarshal(list[1], &level) == nil && digits.Each && !level.prefixes() && level.splits()
}

type byteLevel struct {
	Type        string
	PrefixSpace *bool `json:"add_prefix_space"`
	TrimOffsets bool  `json:"trim_offsets"`
	UseRegex    *bool `json:"use_regex"`
}

func (b *byteLevel) prefixes() bool { return b.PrefixSpace == nil || *b.PrefixSpace }
func (b *byteLevel) splits() bool   { return b.UseRegex == nil || *b.UseRegex }

func (v *vocabulary) readStep(raw json.RawMessage) error {
	switch k := kind(raw); k {
	case "ByteLevel":
		var level byteLevel
		if err := strict(raw, &level); err != nil {
			return err
		}
		if level.prefixes() {
			v.steps = append(v.steps, step{name: "prefix", lead: leadEach})
		}
		if level.splits() {
			v.steps = append(v.steps, PatternGPT2.step())
		}
		return nil
	case "Split":
		return v.readSplit(raw)
	case "Metaspace":
		return v.readMetaspace(raw)
	case "Digits":
		var digits struct {
			Type string
			Each bool `json:"individual_digits"`
		}
		if err := strict(raw, &digits); err != nil {
			return err
		}
		if digits.Each {
			return v.split(`\p{N}`, isolated, false)
		}
		return v.split(`\p{N}`, contiguous, false)
	case "Punctuation":
		part := struct{ Type, Behavior string }{Behavior: "Isolated"}
		if err := strict(raw, &part); err != nil {
			return err
		}
		how, ok := behaviors[part.Behavior]
		if !ok {
			return unsupported(fmt.Sprintf("the behavior %q", part.Behavior))
		}
		return v.split("[\\p{P}!-/:-@\\[-`{-~]", how, false)
	case "WhitespaceSplit":
		return v.split(`\s`, removed, false)
	case "Whitespace":
		return v.split(`\w+|[^\w\s]+`, removed, true)
	case "BertPreTokenizer":
		if err := v.split(`\s`, removed, false); err != nil {
			return err
		}
		return v.split("[\\p{P}!-/:-@\\[-`{-~]", isolated, false)
	default:
		return unsupported("the pre_tokenizer " + k)
	}
}

// split adds a step that splits by an expression.
func (v *vocabulary) split(regex string, how behavior, invert bool) error {
	s := step{name: regex, behavior: how, invert: invert}
	for p := range patterns {
		if patterns[p].regex == regex && !v.underlined {
			s.auto = patterns[p].compiled()
		}
	}
	if s.auto == nil {
		n, err := parseRegex(regex)
		if err == nil {
			s.auto, err = n.compile(v.underlined)
		}
		if err != nil {
			return unsupported(err.Error())
		}
	}
	if how == removed && invert && s.auto.total() {
		s.behavior, s.invert = isolated, false // nothing is between matches
	}
	v.steps = append(v.steps, s)
	return nil
}

func (v *vocabulary) readSplit(raw json.RawMessage) error {
	var part struct {
		Type     string
		Pattern  matcher `json:"pattern"`
		Behavior string  `json:"behavior"`
		Invert   bool    `json:"invert"`
	}
	if err := strict(raw, &part); err != nil {
		return err
	}
	how, ok := behaviors[part.Behavior]
	if !ok {
		return unsupported(fmt.Sprintf("the behavior %q", part.Behavior))
	}
	switch m := part.Pattern; {
	case m.Regex != nil:
		return v.split(*m.Regex, how, part.Invert)
	case m.String != nil && *m.String == " " && v.underlined:
		return nil // no text has a space any more
	case m.String != nil && *m.String != "":
		return v.split(quoted(*m.String), how, part.Invert)
	}
	return unsupported("a Split by nothing")
}

// quoted returns an expression that matches a fixed text.
func quoted(text string) string {
	var out strings.Builder
	for _, r := range text {
		if strings.ContainsRune(`\.+*?()|[]{}^$&-`, r) {
			out.WriteByte('\\')
		}
		out.WriteRune(r)
	}
	return out.String()
}

func (v *vocabulary) readMetaspace(raw json.RawMessage) error {
	part := struct {
		Type        string
		Replacement string `json:"replacement"`
		StrRep      string `json:"str_rep"` // the same, in old files
		Prefix      *bool  `json:"add_prefix_space"`
		Scheme      string `json:"prepend_scheme"`
		Split       *bool  `json:"split"`
	}{}
	if err := strict(raw, &part); err != nil {
		return err
	}
	if part.Replacement != underline || v.byteLevel {
		return unsupported(fmt.Sprintf("the replacement %q", part.Replacement))
	}
	s := step{underlined: true}
	switch {
	case part.Scheme == "never" || part.Prefix != nil && !*part.Prefix:
		s.lead = leadNever
	case part.Scheme == "always" || part.Scheme == "":
		s.lead = leadEach
	case part.Scheme == "first":
		s.lead = leadFirst
	default:
		return unsupported(fmt.Sprintf("the prepend_scheme %q", part.Scheme))
	}
	s.name = fmt.Sprintf("Metaspace %d", s.lead)
	v.underlined = true
	v.steps = append(v.steps, s)
	if part.Split == nil || *part.Split {
		return v.split(underline, toNext, false)
	}
	return nil
}

// postProcessor accepts post-processors that only add special tokens around a text,
// which Encode leaves out. It returns those that they add before the text.
func postProcessor(raw json.RawMessage) (start []int32, err error) {
	list, err := parts(raw, "processors")
	if err != nil {
		return nil, fmt.Errorf("post_processor: %w", err)
	}
	for _, part := range list {
		var before []int32
		switch k := kind(part); k {
		case "ByteLevel":
		case "RobertaProcessing", "BertProcessing":
			before, err = classToken(part)
		case "TemplateProcessing":
			before, err = template(part)
		default:
			err = unsupported("the post_processor " + k)
		}
		if err != nil {
			return nil, err
		}
		start = append(before, start...)
	}
	return start, nil
}

// classToken returns the token that BERT's way puts before a text: "cls": ["<s>", 0].
func classToken(raw json.RawMessage) ([]int32, error) {
	var part struct {
		Class []any `json:"cls"`
	}
	if err := json.Unmarshal(raw, &part); err != nil {
		return nil, fmt.Errorf("post_processor: %w", err)
	}
	if len(part.Class) == 2 {
		if id, ok := part.Class[1].(float64); ok {
			return []int32{int32(id)}, nil
		}
	}
	return nil, fmt.Errorf("post_processor: cls is not a token and its id")
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
	texts := 0
	for _, piece := range part.Single {
		if s := piece.SpecialToken; s == nil {
			texts++
		} else if token, known := part.Tokens[s.ID]; !known {
			return nil, fmt.Errorf("post_processor TemplateProcessing: it has %q, which is not among its special_tokens", s.ID)
		} else if texts == 0 {
			start = append(start, token.IDs...)
		}
	}
	if texts != 1 {
		return nil, unsupported(fmt.Sprintf("a post_processor that has a text %d times", texts))
	}
	return start, nil
}

// readDecoder reads the decoder, of which only one thing is left to do with tokens that are bytes: whether the space
// that a text was given at its beginning is taken away.
func (v *vocabulary) readDecoder(raw json.RawMessage) error {
	list, err := parts(raw, "decoders")
	if err != nil {
		return fmt.Errorf("decoder: %w", err)
	}
	for _, part := range list {
		switch k := kind(part); k {
		case "ByteLevel", "ByteFallback", "Fuse", "Replace":
		case "Strip":
			v.trims = true
		case "Metaspace":
			v.trims = slices.ContainsFunc(v.steps, func(s step) bool { return s.lead != leadNever })
		default:
			return unsupported("the decoder " + k)
		}
	}
	return nil
}
