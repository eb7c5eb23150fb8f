package bpe

import (
	"bytes"
	"cmp"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/athanor-llm/athanor/internal/testkit"
)

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
	var object map[string]json.RawMessage // testdata has all but its model, which is Llama 2's
	must(t, json.Unmarshal(raw, &object))
	gemma, err := os.ReadFile("testdata/gemma3.json")
	must(t, err)
	must(t, json.Unmarshal(gemma, &object))
	changed, err := json.Marshal(object)
	must(t, err)
	all["gemma3"], err = Parse(changed, nil)
	must(t, err)
	return all
}

// A text in two parts, the second of which begins a word, has the ids of the whole.
func TestContinue(t *testing.T) {
	all := sentencePieces(t)
	all["gpt2"] = GPT2()
	for name, tokenizer := range all {
		e := tokenizer.NewEncoder()
		for _, text := range []string{"Question: what is lead?| Answer: not gold.", "a| b", "one\n| two", " x|  y", "all of it|"} {
			first, second, _ := strings.Cut(text, "|")
			got := e.Continue(e.Encode(nil, []byte(first)), []byte(second))
			if want := e.Encode(nil, []byte(first+second)); !slices.Equal(got, want) {
				t.Errorf("%s: %q and %q: %v, whole %v", name, first, second, got, want)
			}
		}
	}
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
}

// TestWithoutSpaces: text of a script that is written without spaces has the ids of one merge of all of it, however long, and there are
// places where it can be cut.
func TestWithoutSpaces(t *testing.T) {
	r := testkit.Rand(t)
	for name, tokenizer := range sentencePieces(t) {
		var characters []string // that have tokens, and some that have none
		for c := range tokenizer.chars {
			if c > 0x7f && string(c) != underline {
				characters = append(characters, string(c))
			}
		}
		slices.Sort(characters)
		characters = append(characters, "\u9f98", "\u4e02", "e", "n")
		var text []byte
		for len(text) < 5*maxWord/2 {
			text = append(text, characters[r.IntN(len(characters))]...)
		}
		e := tokenizer.NewEncoder()
		got := e.Continue(nil, text)
		if want := e.long.merge(nil, tokenizer, text); !slices.Equal(got, want) {
			t.Errorf("%s: %d tokens, %d as one word", name, len(got), len(want))
		}
		cuts := 0
		for range 300 {
			i := 1 + r.IntN(len(text)-1)
			if !tokenizer.Boundary(text, i) {
				continue
			}
			cuts++
			first, second := text[max(0, i-500):i], text[i:min(i+500, len(text))]
			for !utf8.RuneStart(first[0]) {
				first = first[1:]
			}
			whole := e.Continue(nil, slices.Concat(first, second))
			if parts := e.Continue(e.Continue(nil, first), second); !slices.Equal(parts, whole) {
				t.Errorf("%s: cut at %d: %v, whole %v", name, i, parts, whole)
			}
		}
		if cuts < 30 {
			t.Errorf("%s: %d of 300 places are cuts", name, cuts)
		}
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
		{"pre_tokenizer", `{"type":"Metaspace","replacement":"_","prepend_scheme":"first","split":false}`, "Metaspace"},
		{"pre_tokenizer", `{"type":"Metaspace","replacement":"\u2581","prepend_scheme":"last","split":false}`, "last"},
		{"normalizer", `{"type":"Nmt"}`, "Nmt"},
		{"decoder", `{"type":"CTC"}`, "decoder CTC"},
		{"vocab", `{"<0x41>":700}`, "0x41"},
	} {
		var object map[string]json.RawMessage
		must(t, json.Unmarshal(raw, &object))
		var model map[string]any
		must(t, json.Unmarshal(object["model"], &model))
		switch c.path {
		case "vocab":
			vocab := model["vocab"].(map[string]any)
			delete(vocab, "<0x41>")
			model["unk_token"] = nil
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
