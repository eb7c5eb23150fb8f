package bpe

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"slices"
	"testing"
)

// A folder that Save wrote gives the same ids in transformers. PYTHON names the
// interpreter (python3 if unset); without the transformers package, skip.
func TestTransformers(t *testing.T) {
	python := os.Getenv("PYTHON")
	if python == "" {
		python = "python3"
	}
	texts := readFixtures(t).Texts
	input, err := json.Marshal(texts)
	must(t, err)
	license, err := os.ReadFile("../../LICENSE")
	must(t, err)
	words := NewCounter(PatternLlama3)
	words.Add(license)
	trained, err := Train(context.Background(), words, 600, nil)
	must(t, err)
	qwen := *fixtureTokenizers(t)["qwen2"]
	qwen.sources = nil // written here, not copied
	for name, tokenizer := range map[string]*Tokenizer{"gpt2": GPT2(), "trained": trained, "qwen2": &qwen} {
		dir := t.TempDir()
		must(t, tokenizer.Save(dir))
		var stderr bytes.Buffer
		command := exec.Command(python, "testdata/load.py", dir)
		command.Stdin, command.Stderr = bytes.NewReader(input), &stderr
		output, err := command.Output()
		var exit *exec.ExitError
		if errors.Is(err, exec.ErrNotFound) || errors.As(err, &exit) && exit.ExitCode() == 77 {
			t.Skip("no Python with transformers")
		}
		if err != nil {
			t.Fatalf("%s: %v\n%s", name, err, stderr.Bytes())
		}
		var got struct {
			IDs     [][]int32 `json:"ids"`
			Size    int       `json:"size"`
			EOS     int32     `json:"eos"`
			Decoded []string  `json:"decoded"`
		}
		must(t, json.Unmarshal(output, &got))
		if end, _ := tokenizer.EndOfText(); got.Size != tokenizer.VocabularySize() || got.EOS != end {
			t.Errorf("%s: %d tokens, end of text %d", name, got.Size, got.EOS)
		}
		for i, text := range texts {
			ids := tokenizer.Encode([]byte(text))
			if !slices.Equal(got.IDs[i], ids) {
				t.Errorf("%s: %q: transformers %v, here %v", name, text, got.IDs[i], ids)
			}
			if decoded, err := tokenizer.Decode(ids); err != nil || string(decoded) != got.Decoded[i] {
				t.Errorf("%s: %q decodes to %q, in transformers to %q", name, text, decoded, got.Decoded[i])
			}
		}
	}
}
