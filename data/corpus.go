package data

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/athanor-llm/athanor/data/parquet"
	"github.com/athanor-llm/athanor/internal/bounded"
	"github.com/athanor-llm/athanor/internal/paths"
)

// ErrNotSupported marks data that is recognised but not read yet.
var ErrNotSupported = parquet.ErrNotSupported

// Format is how a file holds its documents.
type Format uint8

const (
	Text    Format = iota // the file is one document
	JSONL                 // each line is an object with the document under "text"
	Parquet               // each row is such an object
)

func (f Format) String() string { return [...]string{"text", "JSONL", "Parquet"}[f] }

// formatOf maps a file extension, without that of a packing, to its format. Extensions that are
// neither here nor in refused are Text.
var formatOf = map[string]Format{".jsonl": JSONL, ".ndjson": JSONL, ".json": JSONL, ".parquet": Parquet}

// refused maps extensions of files that cannot be text to what they are.
var refused = map[string]string{
	".arrow": "Arrow", ".csv": "CSV", ".tsv": "CSV",
	".tgz": "tar", ".tzst": "tar", ".bz2": "bzip2", ".xz": "xz", ".zip": "zip", ".tar": "tar",
	".bin": "a binary file", ".npy": "NumPy", ".safetensors": "safetensors", ".pdf": "PDF",
}

// File is one file of a corpus.
type File struct {
	Path    string
	Size    int64 // bytes on disk
	Format  Format
	packing packing
	id      string // the same for all paths to the file
}

// Corpus is a list of files, sorted by path, each once, whatever links lead to it.
type Corpus struct {
	files  []File
	bytes  int64
	again  []string // further paths to files of it
	broken []string // links that lead nowhere
}

// Notes says what the patterns match that is not read.
func (c *Corpus) Notes() (list []string) {
	slices.Sort(c.broken)
	if n := len(c.broken); n > 0 {
		list = append(list, fmt.Sprintf("%d links lead to nothing, and are not read (first: %s); hint: complete the download, mount what they lead to, or remove them", n, c.broken[0]))
	}
	if n := len(c.again); n > 0 {
		list = append(list, fmt.Sprintf("%d paths lead to files that are read by another path already, and each file is read once (first: %s)", n, c.again[0]))
	}
	return list
}

// once removes all paths to a file but the first.
func (c *Corpus) once() {
	seen := map[string]bool{}
	c.files = slices.DeleteFunc(c.files, func(f File) bool {
		if seen[f.id] {
			c.again = append(c.again, f.Path)
			return true
		}
		seen[f.id] = true
		return false
	})
}

// OpenCorpus finds the files that the patterns match. A pattern without a match
// is an error, and so is a corpus without a byte.
func OpenCorpus(patterns ...string) (*Corpus, error) {
	if len(patterns) == 0 {
		return nil, errors.New("no files are named; hint: set data to a pattern such as corpus/**/*.txt")
	}
	c := &Corpus{}
	for _, pattern := range patterns {
		expanded, err := paths.Expand(pattern)
		if err != nil {
			return nil, err
		}
		files, broken, err := glob(expanded)
		if err != nil {
			return nil, bounded.Explain(err)
		}
		c.broken = append(c.broken, broken...)
		if len(files) == 0 && len(broken) > 0 {
			return nil, fmt.Errorf("%s is a link that leads to nothing, and no file matches %q; hint: complete the download, or mount what it leads to", broken[0], pattern)
		}
		if len(files) == 0 {
			return nil, fmt.Errorf("no file matches %q%s; hint: ** stands for any number of folders, "+
				"and a relative pattern starts at the working directory", pattern, unlessSame(expanded, pattern))
		}
		c.files = append(c.files, files...)
	}
	slices.SortFunc(c.files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	c.files = slices.CompactFunc(c.files, func(a, b File) bool { return a.Path == b.Path })
	c.once()
	for i := range c.files {
		f := &c.files[i]
		packed, name := packingOf(strings.ToLower(f.Path))
		extension := filepath.Ext(name)
		f.packing = packed
		if what, bad := refused[extension]; bad {
			return nil, fmt.Errorf("%s: %s is %w; hint: convert it to text or JSONL {\"text\": ...}",
				f.Path, what, ErrNotSupported)
		}
		f.Format = formatOf[extension]
		if f.Format == Parquet && packed != plain {
			return nil, fmt.Errorf("%s: a Parquet file compressed with %v is %w; hint: decompress it, since its columns are compressed already", f.Path, packed, ErrNotSupported)
		}
		c.bytes += f.Size
	}
	if c.bytes == 0 {
		return nil, fmt.Errorf("all files that match %q are empty (%d files); hint: name files with text in them",
			patterns, len(c.files))
	}
	return c, nil
}

// Union returns the files of several corpora as one.
func Union(list ...*Corpus) *Corpus {
	u := &Corpus{}
	for _, c := range list {
		u.files, u.bytes = append(u.files, c.files...), u.bytes+c.bytes
	}
	slices.SortFunc(u.files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	return u
}

// Divide assigns a file that is in several corpora to the last of them, whatever paths lead to it.
// gone[i][j] counts the files that corpus i leaves to corpus j.
func Divide(list []*Corpus) (rest []*Corpus, gone [][]int) {
	owner := map[string]int{}
	for k, c := range list {
		for _, f := range c.files {
			owner[f.id] = k
		}
	}
	for k, c := range list {
		own, left := &Corpus{again: c.again, broken: c.broken}, make([]int, len(list))
		for _, f := range c.files {
			if to := owner[f.id]; to != k {
				left[to]++
				continue
			}
			own.files, own.bytes = append(own.files, f), own.bytes+f.Size
		}
		rest, gone = append(rest, own), append(gone, left)
	}
	return rest, gone
}

func unlessSame(expanded, pattern string) string {
	if expanded == pattern {
		return ""
	}
	return fmt.Sprintf(" (%s)", expanded)
}

// Files returns the files, which the caller must not change.
func (c *Corpus) Files() []File { return c.files }

// Bytes returns the total size of the files on disk.
func (c *Corpus) Bytes() int64 { return c.bytes }

// glob returns the regular files that match a pattern of *, ?, [..] and **. Names that exist literally are not
// patterns, up to the first that does not exist: "my text [1].txt" is that file, and "all [1]/*.txt" what is in
// that folder. It follows links to files and folders, except to folders that are inside, or contain, one that
// is already read: so none is read twice, and cycles of links end. broken are links to nothing that may have been meant.
func glob(pattern string) (files []File, broken []string, err error) {
	clean := filepath.ToSlash(filepath.Clean(pattern))
	segments := strings.Split(clean, "/")
	fixed := 0
	for ; fixed < len(segments); fixed++ {
		literal := filepath.FromSlash(strings.Join(segments[:fixed+1], "/"))
		if _, err := os.Lstat(literal); strings.ContainsAny(segments[fixed], `*?[\`) && err != nil {
			break
		}
	}
	if fixed == len(segments) {
		return one(filepath.FromSlash(clean))
	}
	for _, s := range segments[fixed:] {
		if _, err := filepath.Match(s, ""); err != nil {
			return nil, nil, fmt.Errorf("the pattern %q is malformed; hint: close the [ or escape it with a backslash", pattern)
		}
	}
	root := strings.Join(segments[:fixed], "/")
	if root == "" && fixed > 0 {
		root = "/"
	}
	w := &walk{segments: segments[fixed:], start: filepath.FromSlash(root) + string(filepath.Separator)} // the separator makes it follow a link
	if root == "" {
		w.start = "."
	}
	w.todo = []string{w.start}
	for len(w.todo) > 0 { // linked folders come last
		if err := filepath.WalkDir(w.todo[0], w.visit); err != nil {
			return nil, nil, err
		}
		w.todo = w.todo[1:]
	}
	return w.files, w.broken, nil
}

// walk is the search for the files of a pattern.
type walk struct {
	segments []string // of the pattern, from the first with a wildcard on
	start    string   // the folder in which they begin
	todo     []string // folders to read
	read     []string // roots of the folders read, with links resolved; filled from the first link on
	files    []File
	broken   []string // links to nothing
}

// visit is called for each entry below a folder of todo.
func (w *walk) visit(path string, entry fs.DirEntry, err error) error {
	if err != nil {
		if path == w.start && errors.Is(err, fs.ErrNotExist) {
			return nil // no match
		}
		return err
	}
	relative, err := filepath.Rel(w.start, path)
	if err != nil {
		return err
	}
	parts := strings.Split(filepath.ToSlash(relative), "/")
	below := slices.Contains(w.segments, "**") || relative == "." || len(parts) < len(w.segments)
	if entry.IsDir() {
		if !below {
			return fs.SkipDir
		}
		return nil
	}
	if entry.Type()&fs.ModeSymlink == 0 && !matches(w.segments, parts) {
		return nil
	}
	info, err := os.Stat(path) // follows links
	switch {
	case err != nil:
		if matches(w.segments, parts) || below && filepath.Ext(path) == "" { // which may be a folder's name
			w.broken = append(w.broken, filepath.Clean(path))
		}
	case info.IsDir() && below:
		w.follow(path)
	case info.Mode().IsRegular() && matches(w.segments, parts):
		w.files = append(w.files, describe(filepath.Clean(path), info))
	}
	return nil
}

// follow adds a linked folder to todo, unless it is inside, or contains, one that is already read.
func (w *walk) follow(path string) {
	if len(w.read) == 0 {
		w.read = append(w.read, unlinked(w.start))
	}
	target := unlinked(path)
	if !slices.ContainsFunc(w.read, func(r string) bool { return liesIn(r, target) || liesIn(target, r) }) {
		w.read, w.todo = append(w.read, target), append(w.todo, path+string(filepath.Separator))
	}
}

// unlinked returns an absolute path with links resolved, as far as possible.
func unlinked(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	if whole, err := filepath.Abs(path); err == nil {
		path = whole
	}
	return path
}

// liesIn reports whether path is folder or lies in it.
func liesIn(folder, path string) bool {
	relative, err := filepath.Rel(folder, path)
	return err == nil && filepath.IsLocal(relative)
}

// one is glob for a path without wildcards.
func one(path string) (files []File, broken []string, err error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, err := os.Lstat(path); err == nil {
			broken = []string{path}
		}
		return nil, broken, nil
	case err != nil:
		return nil, nil, err
	case info.IsDir():
		return nil, nil, fmt.Errorf("%s is a folder; hint: name files in it, such as %s",
			path, filepath.Join(path, "**", "*.txt"))
	case !info.Mode().IsRegular():
		return nil, nil, fmt.Errorf("%s is not a regular file; hint: write what comes out of a pipe or device to a file first", path)
	}
	return []File{describe(path, info)}, nil, nil
}

func describe(path string, info fs.FileInfo) File {
	id := nodeOf(info)
	if id == "" {
		id = unlinked(path)
	}
	return File{Path: path, Size: info.Size(), id: id}
}

// matches reports whether the path matches the pattern, name by name; "**"
// matches any number of names, including none.
func matches(pattern, path []string) bool {
	for i, p := range pattern {
		if p == "**" {
			rest := pattern[i+1:]
			if len(rest) == 0 {
				return true
			}
			for j := i; j < len(path); j++ {
				if matches(rest, path[j:]) {
					return true
				}
			}
			return false
		}
		if i >= len(path) {
			return false
		}
		if ok, _ := filepath.Match(p, path[i]); !ok {
			return false
		}
	}
	return len(pattern) == len(path)
}
