package bpe

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A vocabulary that is written reads back as the same tokenizer.
func TestSaveAndLoad(t *testing.T) {
	for name, tokenizer := range fixtureTokenizers(t) {
		again := *tokenizer
		again.sources = nil
		dir := t.TempDir()
		if err := again.Save(dir); err != nil {
			t.Fatal(err)
		}
		got, err := Load(dir)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got.Hash() != tokenizer.Hash() {
			t.Errorf("%s: the tokenizer that was read is not the one that was written", name)
		}
		if !bytes.Equal(got.JSON(), again.JSON()) {
			t.Errorf("%s: a tokenizer that was read is written differently", name)
		}
	}
}

// Settings that would change the ids are errors that name them.
func TestUnsupported(t *testing.T) {
	raw, err := os.ReadFile("testdata/gpt2.json")
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct{ name, path, value, want string }{
		{"unigram", "model.type", `"Unigram"`, "of type Unigram"},
		{"wordpiece", "model.type", `"WordPiece"`, "model WordPiece"},
		{"normalizer", "normalizer", `{"type":"Nmt"}`, "normalizer Nmt"},
		{"sequence", "normalizer", `{"type":"Sequence","normalizers":[{"type":"NFC"},{"type":"Nmt"}]}`, "normalizer Nmt"},
		{"setting", "normalizer", `{"type":"NFC","level":2}`, "level"},
		{"metaspace", "pre_tokenizer", `{"type":"Metaspace","replacement":"_"}`, "replacement \"_\""},
		{"no pre_tokenizer", "pre_tokenizer", `null`, "0x00"},
		{"regex", "pre_tokenizer", `{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"(a)\\1"},` +
			`"behavior":"Isolated","invert":false},{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]}`, `\1`},
		{"look ahead", "pre_tokenizer", `{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"a(?=bc)"},` +
			`"behavior":"Isolated","invert":false},{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]}`, `more than one character`},
		{"look behind", "pre_tokenizer", `{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"(?<=a)b"},` +
			`"behavior":"Isolated","invert":false},{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]}`, `(?<=`},
		{"behavior", "pre_tokenizer", `{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"x+"},` +
			`"behavior":"Dropped","invert":false},{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]}`, "Dropped"},
		{"after bytes", "pre_tokenizer", `{"type":"Sequence","pretokenizers":[{"type":"ByteLevel","add_prefix_space":false},{"type":"Digits"}]}`, "Digits after ByteLevel"},
		{"start", "post_processor", `{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>"}},{"Sequence":{"id":"A"}}],` +
			`"special_tokens":{"<s>":{"ids":[100000]}}}`, "100000"},
		{"start unknown", "post_processor", `{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>"}},{"Sequence":{"id":"A"}}],"special_tokens":{}}`, `"<s>", which is not among`},
		{"end unknown", "post_processor", `{"type":"TemplateProcessing","single":[{"Sequence":{"id":"A"}},{"SpecialToken":{"id":"</s>"}}],"special_tokens":{}}`, `"</s>", which is not among`},
		{"text twice", "post_processor", `{"type":"TemplateProcessing","single":[{"Sequence":{"id":"A"}},{"Sequence":{"id":"A"}}],"special_tokens":{}}`, "a text 2 times"},
		{"no text", "post_processor", `{"type":"TemplateProcessing","single":[],"special_tokens":{}}`, "a text 0 times"},
		{"growth", "normalizer", `{"type":"Sequence","normalizers":[` + strings.Repeat(`{"type":"Replace","pattern":{"String":"a"},"content":"aaaaaaaaaa"},`, 5) + `{"type":"NFC"}]}`, "10000 times as long"},
		{"growth of matches", "normalizer", `{"type":"Replace","pattern":{"Regex":"."},"content":"` + strings.Repeat("a", 2000) + `"}`, "2000 times as long"},
		{"growth of beginnings", "normalizer", `{"type":"Prepend","prepend":"` + strings.Repeat("a", 2000) + `"}`, "so long a text"},
		{"other settings", "normalizer", `{"type":"Precompiled","precompiled_charsmap":"AAAA"}`, "the normalizer Precompiled is not supported"},
		{"group", "pre_tokenizer", `{"type":"Split","pattern":{"Regex":"(("},"behavior":"Isolated","invert":false}`, "a ( without a ) is not supported, and"},
		{"decoder", "decoder", `{"type":"WordPiece"}`, "decoder WordPiece"},
		{"post processor", "post_processor", `{"type":"Custom"}`, "post_processor Custom"},
		{"dropout", "model.dropout", `0.1`, "dropout"},
		{"prefix", "model.continuing_subword_prefix", `"##"`, "continuing_subword_prefix"},
		{"suffix", "model.end_of_word_suffix", `"</w>"`, "end_of_word_suffix"},
		{"new field", "model.surprise", `1`, "surprise"},
		{"new part", "surprise", `1`, "surprise"},
		{"huge id", "added_tokens", `[{"id":2000000000,"content":"x"}]`, "2000000000"},
		{"negative id", "added_tokens", `[{"id":-1,"content":"x"}]`, "-1"},
		{"empty vocabulary", "model.vocab", `{}`, "not in the vocabulary"},
		{"fraction", "model.vocab", `{"a":1.5}`, "1.5 where a whole number"},
		{"text for an id", "model.vocab", `{"a":"1"}`, "a text where a whole number"},
		{"number for a text", "added_tokens", `[{"id":1,"content":7}]`, "content is a number where a text"},
		{"word for a mark", "model.ignore_merges", `"yes"`, "ignore_merges is a text where true or false"},
		{"bad merge", "model.merges", `["a b c"]`, "a b c"},
		{"bad merge array", "model.merges", `[["a"]]`, "a merge has 1 parts, not 2"},
		{"unknown merge", "model.merges", `["a \u2713"]`, "merge 0"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var object map[string]json.RawMessage
			must(t, json.Unmarshal(raw, &object))
			outer, inner, nested := strings.Cut(test.path, ".")
			if nested {
				var part map[string]json.RawMessage
				must(t, json.Unmarshal(object[outer], &part))
				part[inner] = json.RawMessage(test.value)
				object[outer], _ = json.Marshal(part)
			} else {
				object[outer] = json.RawMessage(test.value)
			}
			changed, err := json.Marshal(object)
			must(t, err)
			if _, err = Parse(changed, nil); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v does not name %q", err, test.want)
			}
		})
	}
}

// TestTwice: a key that is given twice is not guessed at, in either file, at any depth that a person writes.
func TestTwice(t *testing.T) {
	raw, err := os.ReadFile("testdata/gpt2.json")
	must(t, err)
	again := func(key, value string) []byte {
		return append(bytes.TrimSuffix(bytes.TrimSpace(raw), []byte("}")), `,"`+key+`":`+value+`}`...)
	}
	for _, text := range [][]byte{again("normalizer", "null"), again("model", "{}"), again("added_tokens", "[]"),
		bytes.Replace(raw, []byte(`"ignore_merges"`), []byte(`"type": "BPE", "ignore_merges"`), 1)} {
		if _, err := Parse(text, nil); err == nil || !strings.Contains(err.Error(), "given twice") {
			t.Errorf("tokenizer.json: %v", err)
		}
	}
	for _, text := range []string{`{"eos_token":null,"eos_token":null}`, `{"added_tokens_decoder":{"1":{},"1":{}}}`, `{"chat_template":"a","chat_template":"b"}`} {
		if _, err := Parse(raw, []byte(text)); err == nil || !strings.Contains(err.Error(), "given twice") {
			t.Errorf("%s: %v", text, err)
		}
	}
	if _, err := Parse(raw, []byte(`{"added_tokens_decoder":{"-5":{"content":"a"}}}`)); err == nil || !strings.Contains(err.Error(), "not an id") {
		t.Errorf("a negative id: %v", err)
	}
}

func TestEndOfText(t *testing.T) {
	raw, err := os.ReadFile("testdata/gpt2.json")
	must(t, err)
	for config, want := range map[string]string{
		`{"eos_token":"<|endoftext|>"}`:             "",
		`{"eos_token":{"content":"<|endoftext|>"}}`: "",
		`{"eos_token":null}`:                        "",
		`{}`:                                        "",
		`{"eos_token":"</s>"}`:                      "</s>",
		`{"eos_token":7}`:                           "eos_token",
		`[`:                                         "tokenizer_config.json",
	} {
		tokenizer, err := Parse(raw, []byte(config))
		if want != "" {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: error %v does not name %q", config, err, want)
			}
			continue
		}
		must(t, err)
		if id, ok := tokenizer.EndOfText(); !ok || id != 0 {
			t.Errorf("%s: end of text %d, %v", config, id, ok)
		}
	}
}

// The tokens before a text are the template's, unless tokenizer_config.json sets them.
func TestStart(t *testing.T) {
	raw, err := os.ReadFile("testdata/gpt2.json")
	must(t, err)
	const template = `{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}},` +
		`{"SpecialToken":{"id":"<e>","type_id":0}}],"special_tokens":{"<s>":{"id":"<s>","ids":[7,8]},"<e>":{"id":"<e>","ids":[9]}}}`
	const sequence = `{"type":"Sequence","processors":[{"type":"ByteLevel"},` + template + `]}`
	const bos = `{"bos_token":"<|endoftext|>","add_bos_token":`
	for _, c := range []struct {
		processor, config string
		want              []int32
	}{
		{`null`, `{}`, nil},
		{`{"type":"ByteLevel"}`, `{}`, nil},
		{template, `{}`, []int32{7, 8}},
		{sequence, `{}`, []int32{7, 8}},
		{sequence, bos + `null}`, []int32{7, 8}},
		{sequence, bos + `false}`, nil},
		{sequence, bos + `true}`, []int32{0}},
		{`null`, bos + `true}`, []int32{0}},
		{`null`, `{"bos_token":{"content":"<|endoftext|>"},"add_bos_token":true}`, []int32{0}},
		{`null`, `{"add_bos_token":true}`, nil},
	} {
		var object map[string]json.RawMessage
		must(t, json.Unmarshal(raw, &object))
		object["post_processor"] = json.RawMessage(c.processor)
		changed, err := json.Marshal(object)
		must(t, err)
		tokenizer, err := Parse(changed, []byte(c.config))
		must(t, err)
		if !slices.Equal(tokenizer.Start(), c.want) {
			t.Errorf("%s, %s: %v, want %v", c.processor, c.config, tokenizer.Start(), c.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, name := range []string{"gpt2", "llama3", "qwen2"} {
		raw, err := os.ReadFile(filepath.Join("testdata", name+".json"))
		must(f, err)
		f.Add(raw, []byte(`{"eos_token":"<|endoftext|>"}`))
	}
	f.Add([]byte(`{"model":{"type":"BPE","vocab":{"a":0},"merges":["a a"]},"decoder":{"type":"ByteLevel"}}`), []byte(nil))
	f.Fuzz(func(t *testing.T, raw, config []byte) {
		tokenizer, err := Parse(raw, config)
		if err != nil {
			return
		}
		text := []byte("Any text, \xff \n\n 123 <|endoftext|>")
		got, err := tokenizer.Decode(tokenizer.Encode(text))
		if err != nil || len(tokenizer.normal) == 0 && !bytes.Equal(got, text) {
			t.Fatalf("%q came back as %q: %v", text, got, err)
		}
	})
}
