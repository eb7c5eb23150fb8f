package folder

import (
	"context"
	"errors"
	"path/filepath"
	"slices"

	"github.com/athanor-llm/athanor/data"
	"github.com/athanor-llm/athanor/data/bpe"
	"github.com/athanor-llm/athanor/data/chat"
	"github.com/athanor-llm/athanor/machine"
)

// foldersOf returns where to look for what belongs to a model folder's tokenizer: in the folder itself and, since adapters may
// leave the tokenizer to their model, in the model's folder.
func foldersOf(dir string) []string {
	if IsAdapter(dir) {
		if c, err := readAdapter(dir); err == nil {
			return []string{dir, c.Base}
		}
	}
	return []string{dir}
}

// TokenizerFolder returns the folder that has, or should have, the files of a model folder's tokenizer.
func TokenizerFolder(dir string) string {
	if bpe.HasFiles(dir) {
		return dir
	}
	list := foldersOf(dir)
	return list[len(list)-1]
}

// OpenTemplate opens the chat template that belongs to the tokenizer in a folder; nil: there is none.
func OpenTemplate(dir string, t *bpe.Tokenizer) *chat.Template {
	for _, from := range foldersOf(dir) {
		if found := chat.Open(from, t); found != nil {
			return found
		}
	}
	return nil
}

// Tokenize returns the tokens of a corpus from the user's cache, after storing them there if need be.
func Tokenize(ctx context.Context, c *data.Corpus, t *bpe.Tokenizer, o data.Options) (*data.Tokens, error) {
	dir, err := machine.CacheDir()
	if err != nil {
		return nil, err
	}
	return data.Tokenize(ctx, c, t, filepath.Join(dir, "tokens"), o)
}

// PromptIDs returns the tokens of a prompt. As in transformers, the tokenizer's
// start token is prepended unless present. An empty prompt begins as a document
// does.
func PromptIDs(t *bpe.Tokenizer, prompt string) ([]int32, error) {
	ids, start := t.Encode([]byte(prompt)), t.Start()
	if n := len(start); len(ids) < n || !slices.Equal(ids[:n], start) {
		ids = slices.Concat(start, ids)
	}
	if len(ids) > 0 {
		return ids, nil
	}
	end, ok := t.EndOfText()
	if !ok {
		return nil, errors.New("the prompt is empty, and the tokenizer has no end-of-text token to start from; hint: give a prompt")
	}
	return []int32{end}, nil
}
