package train

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/athanor-llm/athanor/checkpoint"
	"github.com/athanor-llm/athanor/data"
	"github.com/athanor-llm/athanor/data/bpe"
	"github.com/athanor-llm/athanor/data/chat"
	"github.com/athanor-llm/athanor/folder"
	"github.com/athanor-llm/athanor/internal/suggest"
	"github.com/athanor-llm/athanor/internal/sysmem"
	"github.com/athanor-llm/athanor/job"
	"github.com/athanor-llm/athanor/machine"
)

// A tokenizer trained on the corpus is stored twice: in the user's cache, keyed by
// its inputs, for plans and other runs; and in the run's folder, so that the run
// resumes with the same tokenizer whatever happens to corpus and cache.

// openTokenizer opens the tokenizer of a configuration, or trains it.
func openTokenizer(ctx context.Context, spec *job.Spec, corpus *data.Corpus, opt data.Options) (*bpe.Tokenizer, error) {
	if own := folder.TokenizerFolder(spec.Model.Name); spec.Tokenizer == spec.Model.Name && (spec.Tokenizer != "gpt2" || bpe.HasFiles(own)) {
		t, err := bpe.Load(own)
		if err != nil {
			return nil, tokenizerFault(spec, err)
		}
		return t, nil
	}
	cached := ""
	if isTrained(spec.Tokenizer) {
		if t, err := bpe.Load(ownTokenizer(spec)); spec.Out != "" && err == nil {
			return t, nil
		}
		dir, err := machine.CacheDir()
		if err != nil {
			return nil, err
		}
		key, err := corpus.Fingerprint()
		if err != nil {
			return nil, spec.Fault("data", err.Error())
		}
		cached = filepath.Join(dir, "tokenizers", fmt.Sprintf("%s-%x", spec.Tokenizer, key[:8]))
		if field := strings.Join(spec.TextField, "\n"); field != "" && field != "text" {
			cached += fmt.Sprintf("-%x", sha256.Sum256([]byte(field)))[:9]
		}
		if t, err := bpe.Load(cached); err == nil {
			return t, nil
		}
	}
	t, err := data.OpenTokenizer(ctx, spec.Tokenizer, corpus, opt)
	if err != nil && ctx.Err() != nil { // it was asked to stop
		return nil, ctx.Err()
	}
	if errors.Is(err, data.ErrContent) { // found while a tokenizer is trained on it
		return nil, spec.Fault("data", err.Error())
	}
	if err != nil {
		return nil, tokenizerFault(spec, err)
	}
	if cached != "" {
		_ = keepTokenizer(t, cached) // a cache that cannot be written is no error
	}
	return t, nil
}

// tokenizerFault returns an error of opening a tokenizer as one of the configuration, unless there is no memory for it.
func tokenizerFault(spec *job.Spec, err error) error {
	if errors.Is(err, sysmem.ErrMemory) {
		return err
	}
	return spec.Fault("tokenizer", err.Error())
}

// openChat opens the chat template next to the tokenizer of a configuration; nil: there is none.
func openChat(spec *job.Spec, t *bpe.Tokenizer) *chat.Template {
	dir := spec.Tokenizer
	if isTrained(dir) || dir == "gpt2" && !(spec.Model.Name == dir && bpe.HasFiles(dir)) {
		return nil
	}
	if info, err := os.Stat(dir); err == nil && !info.IsDir() {
		dir = filepath.Dir(dir)
	}
	return folder.OpenTemplate(dir, t)
}

func isTrained(name string) bool { return strings.HasPrefix(name, "bpe-") }

// trainedSize returns the size of a tokenizer that is trained, as its name has it.
func trainedSize(name string) (size int, trained bool) {
	digits, ok := strings.CutPrefix(name, "bpe-")
	size, err := strconv.Atoi(digits)
	return size, ok && err == nil
}

// ownTokenizer returns the folder in which a run stores its trained tokenizer.
func ownTokenizer(spec *job.Spec) string { return filepath.Join(spec.Out, "tokenizer", spec.Tokenizer) }

// keepOwn saves the tokenizer of a run whose folder is locked, durably: a power cut after the first checkpoint must
// not take it. A readable one already there is left alone.
func keepOwn(t *bpe.Tokenizer, dir string) error {
	if _, err := bpe.Load(dir); err == nil {
		return nil
	}
	err := os.MkdirAll(filepath.Dir(dir), 0o755)
	if err == nil {
		err = os.RemoveAll(dir) // which waits if what should be a folder is a pipe
	}
	if err == nil {
		err = writeTokenizer(t, dir)
	}
	for _, folder := range []string{dir, filepath.Dir(dir)} {
		if info, bad := os.Lstat(folder); err != nil && bad == nil && !info.IsDir() {
			return suggest.Add(err, folder+" is a file or a pipe and no folder: remove it")
		}
	}
	return outError(err)
}

// writeTokenizer saves a tokenizer, durably, to a folder that is not there.
func writeTokenizer(t *bpe.Tokenizer, dir string) error {
	bytes := 0
	for _, f := range t.Files() {
		bytes += len(f.Content)
	}
	return checkpoint.WriteFolder(checkpoint.Disk{}, dir, int64(bytes), func(create checkpoint.Create) error {
		for _, f := range t.Files() {
			if err := checkpoint.CreateFile(create, f.Name, f.Content); err != nil {
				return err
			}
		}
		return nil
	})
}

// unfinished begins the names of folders in the cache in which tokenizers are being written, or were by killed processes.
const unfinished = ".tmp-"

// removeUnfinished removes what killed processes left in a folder a day ago, or earlier.
func removeUnfinished(dir string) {
	list, _ := os.ReadDir(dir)
	for _, e := range list {
		if info, err := e.Info(); err == nil && strings.HasPrefix(e.Name(), unfinished) && time.Since(info.ModTime()) > 24*time.Hour {
			_ = os.RemoveAll(filepath.Join(dir, e.Name()))
		}
	}
}

// keepTokenizer saves a tokenizer, durably, to a folder of the cache that appears atomically, though several processes may
// make it at the same time. A readable one already there is left alone.
func keepTokenizer(t *bpe.Tokenizer, dir string) error {
	if _, err := bpe.Load(dir); err == nil {
		return nil
	}
	parent := filepath.Dir(dir)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return err
	}
	removeUnfinished(parent)
	temp, err := os.MkdirTemp(parent, unfinished)
	if err != nil {
		return err
	}
	whole := filepath.Join(temp, "tokenizer")
	err = errors.Join(writeTokenizer(t, whole), os.RemoveAll(dir))
	if err == nil {
		err = os.Rename(whole, dir)
	}
	if err == nil {
		err = checkpoint.Disk{}.SyncDir(parent)
	}
	return errors.Join(err, os.RemoveAll(temp))
}
