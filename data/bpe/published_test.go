package bpe

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// published is published.json (testdata/published.py).
type publishedCases struct {
	Texts []string `json:"texts"`
	Cases map[string]struct {
		Base    string                     `json:"base"`
		Set     map[string]json.RawMessage `json:"set"`
		Without []string                   `json:"without"`
		Merges  [][2]string                `json:"merges"`
		IDs     [][]int32                  `json:"ids"`
	} `json:"cases"`
	Sentences []string             `json:"sentences"`
	Models    map[string][][]int32 `json:"models"`
}

func readPublished(t testing.TB) (p publishedCases) {
	t.Helper()
	raw, err := os.ReadFile("testdata/published.json")
	must(t, err)
	must(t, json.Unmarshal(raw, &p))
	return p
}

// changed returns the tokenizer.json of a fixture with other settings, without some tokens, and with merges in front.
func changed(t testing.TB, base string, set map[string]json.RawMessage, without []string, merges [][2]string) []byte {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", base+".json"))
	must(t, err)
	var object, model map[string]json.RawMessage
	must(t, json.Unmarshal(raw, &object))
	must(t, json.Unmarshal(object["model"], &model))
	for path, value := range set {
		if inner, ok := strings.CutPrefix(path, "model."); ok {
			model[inner] = value
		} else {
			object[path] = value
		}
	}
	var vocab map[string]int32
	var old []mergePair
	must(t, json.Unmarshal(model["vocab"], &vocab))
	must(t, json.Unmarshal(model["merges"], &old))
	for _, token := range without {
		delete(vocab, token)
	}
	var all [][2]string
	for _, m := range merges {
		for _, token := range []string{m[0], m[1], m[0] + m[1]} {
			if _, ok := vocab[token]; !ok {
				next := int32(0)
				for _, id := range vocab {
					next = max(next, id+1)
				}
				vocab[token] = next
			}
		}
		all = append(all, m)
	}
	for _, m := range old {
		all = append(all, m)
	}
	model["vocab"], err = json.Marshal(vocab)
	must(t, err)
	model["merges"], err = json.Marshal(all)
	must(t, err)
	object["model"], err = json.Marshal(model)
	must(t, err)
	raw, err = json.Marshal(object)
	must(t, err)
	return raw
}

// TestPublished: what is peculiar about published tokenizers gives the ids of Hugging Face, also where text is cut at a
// boundary; and no two of them have one hash.
func TestPublished(t *testing.T) {
	p := readPublished(t)
	hashes := map[[32]byte]string{}
	for name, c := range p.Cases {
		tokenizer, err := Parse(changed(t, c.Base, c.Set, c.Without, c.Merges), nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		e := tokenizer.NewEncoder()
		for i, text := range p.Texts {
			if got := e.Encode(nil, []byte(text)); !slices.Equal(got, c.IDs[i]) {
				t.Errorf("%s: %q\n got %v\nwant %v", name, text, got, c.IDs[i])
			}
			for at := range text {
				if cut := tokenizer.Cut([]byte(text[:at]), false); cut > 0 && !slices.Equal(encodeParts(tokenizer, []byte(text), cut), c.IDs[i]) {
					t.Errorf("%s: %q, of which %d bytes are known, cut at %d", name, text, at, cut)
				}
				if !tokenizer.Boundary([]byte(text), at) {
					continue
				}
				if got := e.Continue(e.Encode(nil, []byte(text[:at])), []byte(text[at:])); !slices.Equal(got, c.IDs[i]) {
					t.Errorf("%s: %q cut at %d\n got %v\nwant %v", name, text, at, got, c.IDs[i])
				}
			}
		}
		if other := hashes[tokenizer.Hash()]; other != "" {
			t.Errorf("%s and %s have one hash", name, other)
		}
		hashes[tokenizer.Hash()] = name
	}
}

// TestSentencePieceModels: a tokenizer.model gives SentencePiece's own ids.
func TestSentencePieceModels(t *testing.T) {
	p := readPublished(t)
	for kind, want := range p.Models {
		tokenizer, err := Load(filepath.Join("testdata", kind+".model"))
		must(t, err)
		for i, text := range p.Sentences {
			if got := tokenizer.Encode([]byte(text)); !slices.Equal(got, want[i]) {
				t.Errorf("%s: %q\n got %v\nwant %v", kind, text, got, want[i])
			}
		}
		dir := t.TempDir()
		raw, err := os.ReadFile(filepath.Join("testdata", kind+".model"))
		must(t, err)
		must(t, os.WriteFile(filepath.Join(dir, "tokenizer.model"), raw, 0o644))
		again, err := Load(dir)
		must(t, err)
		other := t.TempDir()
		must(t, again.Save(other))
		if third, err := Load(other); err != nil || again.Hash() != tokenizer.Hash() || third.Hash() != tokenizer.Hash() {
			t.Errorf("%s: it is another after it was saved: %v", kind, err)
		}
		for n := range len(raw) { // whatever is missing is an error, never a panic
			if n%97 == 0 {
				_, _ = parseSentencePiece(raw[:n], nil)
			}
		}
	}
}

// TestMergesFile: vocab.json and merges.txt are the tokenizer.json that they were made into.
func TestMergesFile(t *testing.T) {
	raw, err := os.ReadFile("testdata/gpt2.json")
	must(t, err)
	var f struct {
		Model struct {
			Vocab  map[string]int32 `json:"vocab"`
			Merges []mergePair      `json:"merges"`
		} `json:"model"`
	}
	must(t, json.Unmarshal(raw, &f))
	dir := t.TempDir()
	vocab, err := json.Marshal(f.Model.Vocab)
	must(t, err)
	lines := "#version: 0.2\n"
	for _, m := range f.Model.Merges {
		lines += m[0] + " " + m[1] + "\n"
	}
	for name, content := range map[string]string{"vocab.json": string(vocab), "merges.txt": lines, "tokenizer_config.json": `{"tokenizer_class":"GPT2Tokenizer","eos_token":"<|endoftext|>"}`} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644))
	}
	got, err := Load(dir)
	must(t, err)
	want := fixtureTokenizers(t)["gpt2"]
	if got.Hash() != want.Hash() {
		t.Error("the tokenizers are not the same")
	}
	for i, text := range readFixtures(t).Texts {
		if !slices.Equal(got.Encode([]byte(text)), want.Encode([]byte(text))) {
			t.Errorf("text %d: %q", i, text)
		}
	}
	own := map[string][]byte{"config.json": nil}
	for _, f := range got.Files() {
		own[f.Name] = f.Content
	}
	if !got.Among(own) || want.Among(own) {
		t.Error("which files a tokenizer was read from is not known")
	}
	if own["merges.txt"] = own["merges.txt"][1:]; got.Among(own) {
		t.Error("other merges are taken for the tokenizer's own")
	}
	must(t, os.WriteFile(filepath.Join(dir, "tokenizer_config.json"), []byte(`{"tokenizer_class":"BertTokenizer"}`), 0o644))
	if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), "BertTokenizer") || !strings.Contains(err.Error(), "hint: ") {
		t.Error(err)
	}
}
