package bpe

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// File is one file of a saved tokenizer.
type File struct {
	Name    string // without a folder
	Content []byte // must not be changed
}

// Files returns the tokenizer.json and tokenizer_config.json of a Hugging Face
// folder, with which AutoTokenizer and PreTrainedTokenizerFast give the same ids.
// For a tokenizer that was read they are the original bytes.
func (t *Tokenizer) Files() []File {
	if t.sources == nil {
		return []File{{"tokenizer.json", t.JSON()}, {configFile, t.config()}}
	}
	for _, f := range t.sources {
		if f.Name == configFile {
			return t.sources
		}
	}
	return append(slices.Clip(t.sources), File{configFile, t.config()})
}

// Among reports whether files, by their names, have those that the tokenizer was read from, besides its settings.
func (t *Tokenizer) Among(files map[string][]byte) bool {
	return !slices.ContainsFunc(t.Files(), func(f File) bool { return f.Name != configFile && !bytes.Equal(files[f.Name], f.Content) })
}

// Save writes Files into the folder dir, which must exist.
func (t *Tokenizer) Save(dir string) error {
	for _, f := range t.Files() {
		if err := os.WriteFile(filepath.Join(dir, f.Name), f.Content, 0o666); err != nil {
			return fmt.Errorf("saving the tokenizer: %w", err)
		}
	}
	return nil
}

// config returns the smallest tokenizer_config.json that transformers loads.
func (t *Tokenizer) config() []byte {
	fields := map[string]any{
		"tokenizer_class":              "PreTrainedTokenizerFast",
		"clean_up_tokenization_spaces": false,
	}
	if id, ok := t.EndOfText(); ok {
		text := string(t.tokens[id])
		fields["bos_token"], fields["eos_token"], fields["unk_token"] = text, text, text
	}
	out, err := json.MarshalIndent(fields, "", "  ")
	if err != nil {
		panic(err) // a map of strings and booleans
	}
	return append(out, '\n')
}

// JSON returns the content of tokenizer.json: the original if it was read, else
// tokens in order of id and merges in order of rank, one per line.
func (t *Tokenizer) JSON() []byte {
	if len(t.sources) > 0 && t.sources[0].Name == "tokenizer.json" {
		return t.sources[0].Content
	}
	var out bytes.Buffer
	out.WriteString("{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n  \"added_tokens\": [")
	isAdded := t.addedIDs()
	for i, a := range t.added {
		comma(&out, i, "\n    ")
		fmt.Fprintf(&out, `{"id": %d, "content": %s, "single_word": false, "lstrip": false, "rstrip": false, `+
			`"normalized": false, "special": %v}`, a.ID, quote(a.Text), a.Special)
	}
	out.WriteString("\n  ],\n  \"normalizer\": ")
	if len(t.normal) > 0 { // tokenizers made here have no other

		out.WriteString(`{"type": "NFC"}`)
	} else {
		out.WriteString("null")
	}
	out.WriteString(",\n  \"pre_tokenizer\": ")
	const byteLevel = `{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": %v}`
	if pattern := t.steps[0].name; pattern == gpt2Regex {
		fmt.Fprintf(&out, byteLevel, true)
	} else {
		fmt.Fprintf(&out, `{"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": %s}, `+
			`"behavior": "Isolated", "invert": false}, `+byteLevel+`]}`, quote(pattern), false)
	}
	out.WriteString(",\n  \"post_processor\": null,\n  \"decoder\": ")
	fmt.Fprintf(&out, byteLevel, true)
	fmt.Fprintf(&out, ",\n  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": null,\n"+
		"    \"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null,\n    \"fuse_unk\": false,\n"+
		"    \"byte_fallback\": false,\n    \"ignore_merges\": %v,\n    \"vocab\": {", t.whole != nil)
	n := 0
	for id, token := range t.tokens {
		if token == nil {
			continue
		}
		text := printable(token)
		if isAdded[int32(id)] { // listed here too, or transformers would renumber it
			text = string(token)
		}
		comma(&out, n, "\n      ")
		fmt.Fprintf(&out, "%s: %d", quote(text), id)
		n++
	}
	out.WriteString("\n    },\n    \"merges\": [")
	for rank, m := range t.merges {
		comma(&out, rank, "\n      ")
		out.WriteString(quote(printable(t.tokens[m.Left]) + " " + printable(t.tokens[m.Right])))
	}
	out.WriteString("\n    ]\n  }\n}\n")
	return out.Bytes()
}

func comma(out *bytes.Buffer, i int, before string) {
	if i > 0 {
		out.WriteByte(',')
	}
	out.WriteString(before)
}

func printable(token []byte) string { return string(appendPrintable(nil, token)) }

// quote returns a JSON string in which < and > are not escaped.
func quote(s string) string {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if err := e.Encode(s); err != nil {
		panic(err) // a string
	}
	return string(bytes.TrimSuffix(out.Bytes(), []byte("\n")))
}

// Merging is a tokenizer as software needs it that knows how to split text by the name of the way, and merges bytes.
type Merging struct {
	Pattern Pattern
	Tokens  []string // by id: bytes as characters, as in tokenizer.json; those of added tokens as they are; "" for an id that no token has
	Added   []Added
	Merges  []string // two tokens and a space between, best first
	Words   bool     // a pre-token that is a token is not merged: ignore_merges
}

// Merging returns the tokenizer in this form; ok is false if it has none: where it splits in a way of its own, or does not start
// from bytes.
func (t *Tokenizer) Merging() (m Merging, ok bool) {
	if t.chars != nil || t.unigram != nil || len(t.steps) != 1 {
		return m, false
	}
	for p := range patterns {
		if patterns[p].regex == t.steps[0].name {
			m.Pattern, ok = Pattern(p), true
		}
	}
	isAdded := t.addedIDs()
	for id, token := range t.tokens {
		text := printable(token)
		if isAdded[int32(id)] {
			text = string(token)
		}
		m.Tokens = append(m.Tokens, text)
	}
	m.Added, m.Words = t.added, t.whole != nil
	for _, pair := range t.merges {
		m.Merges = append(m.Merges, printable(t.tokens[pair.Left])+" "+printable(t.tokens[pair.Right]))
	}
	return m, ok
}
