package bpe

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"

	"github.com/athanor-llm/athanor/internal/bounded"
	"github.com/athanor-llm/athanor/internal/paths"
	"github.com/athanor-llm/athanor/internal/suggest"
	"github.com/athanor-llm/athanor/internal/sysmem"
)

// form of a published tokenizer: the files that make it up, the first of which is named for it, and how they are read.
type published struct {
	files  []string
	memory int64 // bytes that reading takes at most for each byte of the files
	parse  func(files [][]byte, config []byte) (*Tokenizer, error)
	hint   string
}

// forms are tried in this order, as transformers does.
var forms = []published{
	{[]string{"tokenizer.json"}, 5, func(files [][]byte, config []byte) (*Tokenizer, error) { return Parse(files[0], config) },
		"check that it is the tokenizer.json of a BPE or unigram tokenizer"},
	{[]string{"tokenizer.model"}, 20, func(files [][]byte, config []byte) (*Tokenizer, error) { return parseSentencePiece(files[0], config) },
		"check that it is a model of SentencePiece"},
	{[]string{"vocab.json", "merges.txt"}, 10, func(files [][]byte, config []byte) (*Tokenizer, error) {
		return parseMerges(files[0], files[1], config)
	}, "check that they are the files of a byte-level BPE tokenizer, as GPT-2's"},
}

// HasFiles reports whether a folder has the files of a tokenizer, in any form that Load reads.
func HasFiles(dir string) bool {
	missing := func(name string) bool { return !paths.Exists(filepath.Join(dir, name)) }
	return slices.ContainsFunc(forms, func(form published) bool { return !slices.ContainsFunc(form.files, missing) })
}

// Load reads the tokenizer of a Hugging Face folder: its tokenizer.json or, if there is none, its tokenizer.model
// (SentencePiece) or its vocab.json and merges.txt, together with the tokenizer_config.json next to it, which says what
// ends a document. path may also be one of these files.
func Load(path string) (*Tokenizer, error) {
	info, err := os.Stat(path)
	if err == nil && info.IsDir() {
		for _, form := range forms {
			if t, err := form.load(path, form.files[0]); !errors.Is(err, fs.ErrNotExist) {
				return t, err
			}
		}
		err = &fs.PathError{Op: "open", Path: filepath.Join(path, "tokenizer.json"), Err: fs.ErrNotExist}
	}
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%w; hint: name a tokenizer.json, a folder that has one, or gpt2", err)
		}
		return nil, err
	}
	dir, name := filepath.Split(path)
	form := forms[0]
	switch {
	case filepath.Ext(name) == ".model":
		form = forms[1]
	case name == "vocab.json" || name == "merges.txt":
		form, name = forms[2], "vocab.json"
	}
	return form.load(dir, name)
}

// enoughMemory returns an error if there is too little to read a tokenizer, where the system would kill the process.
func (p *published) enoughMemory(dir, name string) error {
	bytes := int64(0)
	for _, file := range append([]string{name}, p.files[1:]...) {
		if info, err := os.Stat(filepath.Join(dir, file)); err == nil {
			bytes += info.Size()
		}
	}
	return sysmem.Enough(p.memory * min(bytes, maxFile))
}

// often is how much the heap may grow, in percent, between two collections while a tokenizer is read. What is read becomes garbage
// several times over: with a process's usual 400, the 33 MB of Gemma 3's tokenizer.json take 500 MiB, and so 200.
const often = 20

// load reads a tokenizer of this form from a folder, its first file by another name.
func (p *published) load(dir, name string) (*Tokenizer, error) {
	var files [][]byte
	path := filepath.Join(dir, name)
	if err := p.enoughMemory(dir, name); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	defer debug.SetGCPercent(debug.SetGCPercent(often))
	for i, file := range p.files {
		if i == 0 {
			file = name
		}
		content, err := bounded.ReadFile(filepath.Join(dir, file), maxFile)
		if err != nil {
			return nil, err
		}
		files = append(files, content)
	}
	config, err := readConfig(dir)
	if err != nil {
		return nil, err
	}
	t, err := p.parse(files, config)
	if err != nil {
		return nil, suggest.Add(fmt.Errorf("%s: %w", path, err), p.hint)
	}
	t.sources = nil
	for i, file := range p.files {
		t.sources = append(t.sources, File{file, files[i]})
	}
	if config != nil {
		t.sources = append(t.sources, File{configFile, config})
	}
	return t, nil
}
