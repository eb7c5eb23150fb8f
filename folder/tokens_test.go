package folder

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/data/bpe"
)

// TestTokenizerForms: a folder's tokenizer is found in each form in which tokenizers are published, and an adapter without
// one has its model's. Without one the error names all forms.
func TestTokenizerForms(t *testing.T) {
	read := func(name string) string {
		raw, err := os.ReadFile("../data/bpe/testdata/" + name)
		check(t, err)
		return string(raw)
	}
	letters := map[string]int{"ab": 256}
	for _, symbol := range bpe.GPT2().Files() {
		if symbol.Name == "tokenizer.json" {
			var f struct {
				Model struct{ Vocab map[string]int }
			}
			check(t, json.Unmarshal(symbol.Content, &f))
			for token, id := range f.Model.Vocab {
				if id < 256 {
					letters[token] = id
				}
			}
		}
	}
	vocab, err := json.Marshal(letters)
	check(t, err)
	forms := map[string]map[string]string{
		"tokenizer.json": {"tokenizer.json": read("llama2.json")},
		"sentencepiece":  {"tokenizer.model": read("bpe.model")},
		"unigram":        {"tokenizer.model": read("unigram.model")},
		"merges":         {"vocab.json": string(vocab), "merges.txt": "#version: 0.2\na b\n", "tokenizer_config.json": `{"tokenizer_class":"GPT2Tokenizer"}`},
	}
	for name, files := range forms {
		dir := t.TempDir()
		for file, content := range files {
			check(t, os.WriteFile(filepath.Join(dir, file), []byte(content), 0o644))
		}
		want, err := bpe.Load(dir)
		check(t, err)
		adapter := t.TempDir()
		settings, err := json.Marshal(map[string]any{"base_model_name_or_path": dir, "peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": []string{"q_proj"}})
		check(t, err)
		check(t, os.WriteFile(filepath.Join(adapter, AdapterFile), settings, 0o644))
		for _, from := range []string{dir, adapter} {
			got, err := (&Folder{Path: from}).Tokenizer()
			if err != nil || got.Hash() != want.Hash() {
				t.Errorf("%s, from %s: %v", name, filepath.Base(from), err)
			}
		}
	}
	_, err = (&Folder{Path: t.TempDir()}).Tokenizer()
	if err == nil || !strings.Contains(err.Error(), "merges.txt") || !strings.Contains(err.Error(), "hint: ") {
		t.Error(err)
	}
}
