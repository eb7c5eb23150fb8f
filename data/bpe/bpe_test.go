package bpe

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// fixtures are strings and the ids that Hugging Face tokenizers give them
// (testdata/make.py).
type fixtures struct {
	Texts []string             `json:"texts"`
	IDs   map[string][][]int32 `json:"ids"`
}

func readFixtures(t testing.TB) fixtures {
	t.Helper()
	raw, err := os.ReadFile("testdata/ids.json")
	if err != nil {
		t.Fatal(err)
	}
	var f fixtures
	if err := json.Unmarshal(raw, &f); err != nil {
		t.Fatal(err)
	}
	if len(f.Texts) < 400 || len(f.IDs) != 9 {
		t.Fatalf("ids.json has %d texts for %d tokenizers", len(f.Texts), len(f.IDs))
	}
	return f
}

// fixtureTokenizers are all the tokenizers of ids.json.
func fixtureTokenizers(t testing.TB) map[string]*Tokenizer {
	t.Helper()
	all := map[string]*Tokenizer{"published gpt2": GPT2()}
	for _, name := range []string{"gpt2", "llama3", "qwen2", "digits"} {
		tokenizer, err := Load(filepath.Join("testdata", name+".json"))
		if err != nil {
			t.Fatal(err)
		}
		all[name] = tokenizer
	}
	return all
}

func TestIDsOfHuggingFace(t *testing.T) {
	f := readFixtures(t)
	for name, tokenizer := range fixtureTokenizers(t) {
		e := tokenizer.NewEncoder()
		for i, text := range f.Texts {
			got := e.Encode(nil, []byte(text))
			if !slices.Equal(got, f.IDs[name][i]) {
				t.Errorf("%s: %q\n got %v\nwant %v", name, text, got, f.IDs[name][i])
			}
		}
	}
}

// sentencePieces returns Llama 2's vocabulary with each way to put a space before a text.
func sentencePieces(t testing.TB) map[string]*Tokenizer {
	t.Helper()
	raw, err := os.ReadFile("testdata/llama2.json")
	must(t, err)
	all := map[string]*Tokenizer{}
	all["llama2"], err = Parse(raw, nil)
	must(t, err)
	for _, scheme := range []string{"first", "always", "never"} {
		var object map[string]json.RawMessage
		must(t, json.Unmarshal(raw, &object))
		object["normalizer"] = json.RawMessage("null")
		object["pre_tokenizer"] = json.RawMessage(`{"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "` + scheme + `", "split": false}`)
		changed, err := json.Marshal(object)
		must(t, err)
		all["llama2 "+scheme], err = Parse(changed, nil)
		must(t, err)
	}
	return all
}

// SentencePiece vocabularies give the ids of Hugging Face, and decode to the text except for
// the space before it. Tokenizers that differ only in where they put it have different hashes.
func TestSentencePiece(t *testing.T) {
	f := readFixtures(t)
	hashes := map[[32]byte]string{}
	for name, tokenizer := range sentencePieces(t) {
		e := tokenizer.NewEncoder()
		for i, text := range f.Texts {
			got := e.Encode(nil, []byte(text))
			if !slices.Equal(got, f.IDs[name][i]) {
				t.Errorf("%s: %q\n got %v\nwant %v", name, text, got, f.IDs[name][i])
			}
			back, err := tokenizer.Decode(got)
			must(t, err)
			if name == "llama2" && string(tokenizer.Trim(back)) != text {
				t.Errorf("%q came back as %q", text, back)
			}
		}
		if other := hashes[tokenizer.Hash()]; other != "" {
			t.Errorf("%s and %s have one hash", name, other)
		}
		hashes[tokenizer.Hash()] = name
		if !slices.Equal(tokenizer.Start(), []int32{1}) {
			t.Errorf("%s: starts with %v", name, tokenizer.Start())
		}
	}
	tokenizer := sentencePieces(t)["llama2"]
	for text, want := range map[string]string{"a\u2581b": "a b", "\xff\xe6\xb0": "\xff\xe6\xb0", strings.Repeat("\u65e5", maxWord/2): ""} {
		back, err := tokenizer.Decode(tokenizer.Encode([]byte(text)))
		must(t, err)
		if got := string(tokenizer.Trim(back)); got != cmp.Or(want, text) {
			t.Errorf("%.20q came back as %.20q", text, got)
		}
	}
	if long := tokenizer.Encode(bytes.Repeat([]byte("\u65e5"), maxWord)); slices.Contains(long[1:], tokenizer.byteID[0xE6]) {
		t.Error("a long word was cut within a character")
	}
	if text := []byte("one\ntwo\nthree"); tokenizer.Boundary(text, 4) || !Boundary(text, 4) {
		t.Error("a text is cut where a space would be put before the rest")
	}
}

// A word extends across a line break if a token does.
func TestSentencePieceLines(t *testing.T) {
	raw, err := os.ReadFile("testdata/llama2.json")
	must(t, err)
	var object map[string]json.RawMessage
	must(t, json.Unmarshal(raw, &object))
	var model struct {
		Type     string           `json:"type"`
		Fallback bool             `json:"byte_fallback"`
		Vocab    map[string]int32 `json:"vocab"`
		Merges   [][2]string      `json:"merges"`
	}
	must(t, json.Unmarshal(object["model"], &model))
	model.Vocab["\n"], model.Vocab["a\n"] = 1000, 1001
	model.Merges = append([][2]string{{"a", "\n"}}, model.Merges...)
	object["model"], err = json.Marshal(model)
	must(t, err)
	changed, err := json.Marshal(object)
	must(t, err)
	tokenizer, err := Parse(changed, nil)
	must(t, err)
	if ids := tokenizer.Encode([]byte("xa\n\nb")); !slices.Contains(ids, 1001) || !slices.Contains(ids, 1000) {
		t.Errorf("%v", ids)
	}
}

// Settings of SentencePiece tokenizers that would give other ids are errors that name them.
func TestSentencePieceUnsupported(t *testing.T) {
	raw, err := os.ReadFile("testdata/llama2.json")
	must(t, err)
	for _, c := range []struct{ path, value, want string }{
		{"pre_tokenizer", `{"type":"Metaspace","replacement":"\u2581","prepend_scheme":"first","split":true}`, "Metaspace"},
		{"pre_tokenizer", `{"type":"Metaspace","replacement":"_","prepend_scheme":"first","split":false}`, "Metaspace"},
		{"normalizer", `null`, "the normalizer and pre_tokenizer []"},
		{"normalizer", `{"type":"NFKC"}`, "NFKC"},
		{"decoder", `{"type":"ByteLevel"}`, "decoder"},
		{"decoder", `{"type":"ByteFallback"}`, "decoder"},
		{"added_tokens", `[{"id":0,"content":"<unk>","normalized":true}]`, "normalized"},
		{"vocab", `{"a b":2000}`, `"a b"`},
		{"vocab", `{"a\u2581b":2000}`, "space behind"},
		{"vocab", `{"<0x41>":700}`, "0x41"},
		{"ignore_merges", `true`, "ignore_merges"},
	} {
		var object map[string]json.RawMessage
		must(t, json.Unmarshal(raw, &object))
		var model map[string]any
		must(t, json.Unmarshal(object["model"], &model))
		switch c.path {
		case "vocab":
			vocab := model["vocab"].(map[string]any)
			if delete(vocab, "<0x41>"); c.want != "0x41" {
				must(t, json.Unmarshal([]byte(c.value), &vocab))
			}
		case "ignore_merges":
			model["ignore_merges"] = true
		default:
			object[c.path] = json.RawMessage(c.value)
		}
		object["model"], err = json.Marshal(model)
		must(t, err)
		changed, err := json.Marshal(object)
		must(t, err)
		if _, err = Parse(changed, nil); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "hint:") {
			t.Errorf("%s %s: error %v does not name %q", c.path, c.value, err, c.want)
		}
	}
}

// The merges of the trainer are those of Hugging Face's, pair for pair.
func TestTrainAsHuggingFace(t *testing.T) {
	text, err := os.ReadFile("../../LICENSE")
	if err != nil {
		t.Fatal(err)
	}
	for p := range patterns {
		want := fixtureTokenizers(t)[patterns[p].name]
		words := NewCounter(Pattern(p))
		words.Add(text)
		got, err := Train(context.Background(), words, 700, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got.VocabularySize() != want.VocabularySize() || len(got.merges) != len(want.merges) {
			t.Fatalf("%v: %d tokens by %d merges, want %d by %d", got.pattern,
				got.VocabularySize(), len(got.merges), want.VocabularySize(), len(want.merges))
		}
		for rank, m := range got.merges {
			w := want.merges[rank]
			if !bytes.Equal(got.Token(m.Left), want.Token(w.Left)) || !bytes.Equal(got.Token(m.Right), want.Token(w.Right)) {
				t.Fatalf("%v: merge %d joins %q and %q, want %q and %q", got.pattern, rank,
					got.Token(m.Left), got.Token(m.Right), want.Token(w.Left), want.Token(w.Right))
			}
		}
	}
}

func TestGPT2Merges(t *testing.T) {
	const want = "80d121a7b35cab0a6344b48302353f3eccdc93b2889e22901b77f783cbc6bb24"
	sum := sha256.Sum256(gpt2Merges)
	if got := hex.EncodeToString(sum[:]); got != want {
		t.Errorf("gpt2.merges has sha256 %s, want %s", got, want)
	}
	tokenizer := GPT2()
	if id, ok := tokenizer.EndOfText(); tokenizer.VocabularySize() != 50257 || !ok || id != 50256 {
		t.Errorf("%d tokens, end of text %d", tokenizer.VocabularySize(), id)
	}
}

// anyText draws bytes that look like text, like text with holes, or like noise.
func anyText() *rapid.Generator[[]byte] {
	return rapid.OneOf(
		rapid.Map(rapid.String(), func(s string) []byte { return []byte(s) }),
		rapid.SliceOf(rapid.Byte()),
		rapid.Map(rapid.SliceOf(rapid.SampledFrom([]string{"a", "the", " ", "  ", "\n", "\t", "'s", "'LL", "12", "9", "!", "{\n",
			"\u00e9", "\u0301", "\u65e5", "\u00a0", "\u017f", "\xff", "\xe6\x97", EndOfText, "<|endof", strings.Repeat("ab", 40)})),
			func(parts []string) []byte { return []byte(strings.Join(parts, "")) }),
	)
}

// Decode(Encode(x)) = x for all bytes, and where added tokens have no meaning too.
func TestRoundTrip(t *testing.T) {
	all := fixtureTokenizers(t)
	delete(all, "qwen2") // its normalizer changes text
	for name, tokenizer := range all {
		t.Run(name, func(t *testing.T) {
			e := tokenizer.NewEncoder()
			rapid.Check(t, func(t *rapid.T) {
				text := anyText().Draw(t, "text")
				for _, ids := range [][]int32{e.Encode(nil, text), e.EncodeOrdinary(nil, text)} {
					got, err := tokenizer.Decode(ids)
					if err != nil || !bytes.Equal(got, text) {
						t.Fatalf("%q came back as %q: %v", text, got, err)
					}
				}
			})
		})
	}
}

// naive merges one pre-token by the definition: the lowest rank, leftmost, first.
func naive(t *Tokenizer, word []byte) []int32 {
	ids := make([]int32, len(word))
	for i, b := range word {
		ids[i] = t.byteID[b]
	}
	for {
		best, at := len(t.merges), -1
		for i := 0; i+1 < len(ids); i++ {
			for rank, m := range t.merges[:best] {
				if m.Left == ids[i] && m.Right == ids[i+1] {
					best, at = rank, i
				}
			}
		}
		if at < 0 {
			return ids
		}
		ids = slices.Replace(ids, at, at+2, t.merges[best].ID)
	}
}

// The scan, the heap and the cache agree with the definition.
func TestMergeByDefinition(t *testing.T) {
	tokenizer := fixtureTokenizers(t)["gpt2"]
	e := tokenizer.NewEncoder()
	rapid.Check(t, func(t *rapid.T) {
		word := []byte(rapid.StringMatching(`[ aeinorstlcd]{1,48}`).Draw(t, "word"))
		want := naive(tokenizer, word)
		if got := e.mergeShort(nil, word); !slices.Equal(got, want) {
			t.Fatalf("scan: %q -> %v, want %v", word, got, want)
		}
		if got := e.long.merge(nil, tokenizer, word); !slices.Equal(got, want) {
			t.Fatalf("heap: %q -> %v, want %v", word, got, want)
		}
		padded := append(slices.Clone(word), "xxxxxxxxxxxxxxxxxxxx"...)
		for range 2 { // the second time from the cache, followed by other bytes
			if got := e.word(nil, padded, len(word)); !slices.Equal(got, want) {
				t.Fatalf("cache: %q -> %v, want %v", word, got, want)
			}
			padded = padded[:len(word)]
		}
	})
}

// Text cut at a Boundary has the ids of its pieces.
func TestBoundary(t *testing.T) {
	for name, tokenizer := range fixtureTokenizers(t) {
		t.Run(name, func(t *testing.T) {
			cuts, foreign := 0, 0
			rapid.Check(t, func(t *rapid.T) {
				parts := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "Z", " ", "\n", "\n", "\r", "\t", "'", "s", "1", "!", "{",
					"\u00e9", "\u0301", "\u0436", "\u6c34", "\u0436\n\u6c34", "\u3000", "\u00a0", "\u2028", "\u0085", "\u200d", "\ufffd", "\xff", "\xe6\xb0", EndOfText}), 1, 30).Draw(t, "parts")
				text := []byte(strings.Join(parts, ""))
				whole := tokenizer.Encode(text)
				for i := range text {
					if !Boundary(text, i) {
						continue
					}
					cuts++
					if text[i] >= utf8.RuneSelf && text[i-2] >= utf8.RuneSelf {
						foreign++
					}
					pieces := append(tokenizer.Encode(text[:i]), tokenizer.Encode(text[i:])...)
					if !slices.Equal(pieces, whole) {
						t.Fatalf("%q cut at %d: %v, whole %v", text, i, pieces, whole)
					}
				}
			})
			if cuts == 0 || foreign == 0 {
				t.Errorf("%d boundaries in all texts, %d between letters that are not ASCII", cuts, foreign)
			}
		})
	}
}

// A vocabulary that is written reads back as the same tokenizer.
func TestSaveAndLoad(t *testing.T) {
	for name, tokenizer := range fixtureTokenizers(t) {
		again := *tokenizer
		again.source, again.sourceConfig = nil, nil
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
		{"unigram", "model.type", `"Unigram"`, "model Unigram"},
		{"wordpiece", "model.type", `"WordPiece"`, "model WordPiece"},
		{"lowercase", "normalizer", `{"type":"Lowercase"}`, "normalizer Lowercase"},
		{"sequence", "normalizer", `{"type":"Sequence","normalizers":[{"type":"NFC"},{"type":"Strip"}]}`, "sequence of normalizers"},
		{"truncation", "truncation", `{"max_length":5}`, "truncation"},
		{"padding", "padding", `{"strategy":"BatchLongest"}`, "padding"},
		{"metaspace", "pre_tokenizer", `{"type":"Metaspace"}`, "pre_tokenizer Metaspace"},
		{"no pre_tokenizer", "pre_tokenizer", `null`, "missing pre_tokenizer"},
		{"prefix space", "pre_tokenizer", `{"type":"ByteLevel","add_prefix_space":true}`, "add_prefix_space"},
		{"regex", "pre_tokenizer", `{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"x+"},` +
			`"behavior":"Isolated","invert":false},{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]}`, `Split by "x+"`},
		{"behavior", "pre_tokenizer", `{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"x+"},` +
			`"behavior":"Removed","invert":false},{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]}`, "Removed"},
		{"digits", "pre_tokenizer", `{"type":"Sequence","pretokenizers":[{"type":"Digits","individual_digits":false},` +
			`{"type":"ByteLevel","add_prefix_space":false}]}`, "Digits without individual_digits"},
		{"start", "post_processor", `{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>"}},{"Sequence":{"id":"A"}}],` +
			`"special_tokens":{"<s>":{"ids":[100000]}}}`, "100000"},
		{"decoder", "decoder", `{"type":"Metaspace"}`, "decoder Metaspace"},
		{"post processor", "post_processor", `{"type":"Custom"}`, "post_processor Custom"},
		{"byte fallback", "model.byte_fallback", `true`, "with byte_fallback, the decoder"},
		{"dropout", "model.dropout", `0.1`, "dropout"},
		{"prefix", "model.continuing_subword_prefix", `"##"`, "continuing_subword_prefix"},
		{"suffix", "model.end_of_word_suffix", `"</w>"`, "end_of_word_suffix"},
		{"new field", "model.surprise", `1`, "surprise"},
		{"new part", "surprise", `1`, "surprise"},
		{"lstrip", "added_tokens", `[{"id":0,"content":"<|endoftext|>","lstrip":true}]`, "lstrip"},
		{"huge id", "added_tokens", `[{"id":2000000000,"content":"x"}]`, "2000000000"},
		{"negative id", "added_tokens", `[{"id":-1,"content":"x"}]`, "-1"},
		{"empty vocabulary", "model.vocab", `{}`, "not in the vocabulary"},
		{"bad merge", "model.merges", `["a b c"]`, "a b c"},
		{"bad merge array", "model.merges", `[["a"]]`, "merge of 1 parts"},
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

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
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

// Training depends on the counts alone: not on the order or the split of the text.
func TestTrainDeterministic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		texts := rapid.SliceOfN(rapid.StringMatching(`[abc ]{0,30}`), 1, 10).Draw(t, "texts")
		one, parts := NewCounter(PatternGPT2), NewCounter(PatternGPT2)
		one.Add([]byte("seed"))
		parts.Add([]byte("seed"))
		for _, text := range texts {
			one.Add([]byte(text))
		}
		for _, text := range slices.Backward(texts) {
			part := NewCounter(PatternGPT2)
			part.Add([]byte(text))
			parts.Merge(part)
		}
		a, err := Train(context.Background(), one, 280, nil)
		if err != nil {
			t.Fatal(err)
		}
		b, err := Train(context.Background(), parts, 280, nil)
		if err != nil {
			t.Fatal(err)
		}
		if a.Hash() != b.Hash() {
			t.Fatal("two vocabularies from the same words")
		}
	})
}

func TestTrainErrors(t *testing.T) {
	words := NewCounter(PatternGPT2)
	if _, err := Train(context.Background(), words, 300, nil); err == nil {
		t.Error("trained on nothing")
	}
	words.Add([]byte("text"))
	for _, size := range []int{-1, 0, 256, MaxVocabulary + 1} {
		if _, err := Train(context.Background(), words, size, nil); err == nil {
			t.Errorf("trained a vocabulary of %d", size)
		}
	}
}

// A pre-token of megabytes takes proportional time and bounded memory.
func TestHugeWord(t *testing.T) {
	tokenizer := fixtureTokenizers(t)["gpt2"]
	for _, text := range [][]byte{
		bytes.Repeat([]byte("a"), 1<<20), bytes.Repeat([]byte(" "), 1<<20), bytes.Repeat([]byte("\n"), 1<<20),
		bytes.Repeat([]byte{0xE6}, 1<<20), bytes.Repeat([]byte("<|"), 1<<19), bytes.Repeat([]byte("'"), 1<<20),
	} {
		e := tokenizer.NewEncoder()
		got, err := tokenizer.Decode(e.Encode(nil, text))
		if err != nil || !bytes.Equal(got, text) {
			t.Errorf("a run of %q does not come back: %v", text[:2], err)
		}
		if cap(e.long.links) > maxWord {
			t.Errorf("%d bytes of a pre-token were merged at once", cap(e.long.links))
		}
	}
}

func TestEncodeAllocatesNothing(t *testing.T) {
	text := []byte(strings.Repeat("func (e *Encoder) Encode(dst []int32, text []byte) []int32 {\n\tfor len(text) > 0 {\n", 50))
	e := GPT2().NewEncoder()
	ids := e.Encode(nil, text)
	if n := testing.AllocsPerRun(10, func() { ids = e.Encode(ids[:0], text) }); n != 0 {
		t.Errorf("%v allocations in a call", n)
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
		if err != nil || !tokenizer.composed && !bytes.Equal(got, text) {
			t.Fatalf("%q came back as %q: %v", text, got, err)
		}
	})
}

func BenchmarkEncode(b *testing.B) {
	names, _ := filepath.Glob(os.ExpandEnv("../../*/*.go"))
	var text []byte
	for _, name := range names {
		raw, err := os.ReadFile(name)
		must(b, err)
		text = append(text, raw...)
	}
	for _, name := range []string{"published gpt2", "gpt2", "llama3", "qwen2"} {
		tokenizer := fixtureTokenizers(b)[name]
		b.Run(strings.ReplaceAll(name, " ", "-"), func(b *testing.B) {
			e := tokenizer.NewEncoder()
			var ids []int32
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				ids = e.Encode(ids[:0], text)
			}
		})
	}
}

func ExampleTokenizer_Encode() {
	tokenizer := GPT2()
	ids := tokenizer.Encode([]byte("Hello world"))
	text, _ := tokenizer.Decode(ids)
	fmt.Println(ids, string(text))
	// Output: [15496 995] Hello world
}
