package data

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// names returns the files of a corpus, relative to a folder.
func names(t *testing.T, dir string, c *Corpus) string {
	t.Helper()
	var list []string
	for _, f := range c.Files() {
		name, err := filepath.Rel(dir, f.Path)
		must(t, err)
		list = append(list, filepath.ToSlash(name))
	}
	return strings.Join(list, " ")
}

// TestLinksOnce: a file is read once whatever paths lead to it, through links to files and to folders and hard links, and links that
// lead to nothing are named; files that only look alike are read.
func TestLinksOnce(t *testing.T) {
	dir := write(t, map[string]string{"in/a.txt": "one", "in/b.txt": "one", "else/c.txt": "three"})
	link := func(target, name string) { must(t, os.Symlink(filepath.FromSlash(target), filepath.Join(dir, name))) }
	link("a.txt", "in/z.txt")
	link("../else", "in/folder")
	link("../else/c.txt", "in/c.txt")
	link("gone.txt", "in/broken.txt")
	link("/mount/gone", "in/shard")
	link("gone.lock", "in/other.lock")
	must(t, os.Link(filepath.Join(dir, "in/a.txt"), filepath.Join(dir, "in/hard.txt")))
	c, err := OpenCorpus(dir + "/in/**/*.txt")
	must(t, err)
	want, again := "in/a.txt in/b.txt in/c.txt", "3 paths"
	if runtime.GOOS == "windows" { // where hard links are files of their own
		want, again = want+" in/hard.txt", "2 paths"
	}
	if got := names(t, dir, c); got != want || c.Bytes() != 11 {
		t.Errorf("files %q, want %q; %d bytes", got, want, c.Bytes())
	}
	notes := strings.Join(c.Notes(), "\n")
	for _, want := range []string{"2 links lead to nothing", filepath.Join(dir, "in/broken.txt"), again + " lead to files that are read by another path"} {
		if !strings.Contains(notes, want) {
			t.Errorf("%q is not in %q", want, notes)
		}
	}
	for _, pattern := range []string{"/in/broken.txt", "/in/b[r]oken.*"} {
		if _, err := OpenCorpus(dir + pattern); err == nil || !strings.Contains(err.Error(), "leads to nothing") || !strings.Contains(err.Error(), "hint:") {
			t.Errorf("%s: %v", pattern, err)
		}
	}
}

// TestDivideLinks: a file is left to the last corpus that has it, whatever paths lead to it.
func TestDivideLinks(t *testing.T) {
	dir := write(t, map[string]string{"train/a.txt": "a", "held/v.txt": "v", "held/w.txt": "w"})
	must(t, os.Symlink("../held/v.txt", filepath.Join(dir, "train/link.txt")))
	must(t, os.Symlink("../held", filepath.Join(dir, "train/folder")))
	var list []*Corpus
	for _, pattern := range []string{"/train/**/*.txt", "/held/*.txt"} {
		c, err := OpenCorpus(dir + pattern)
		must(t, err)
		list = append(list, c)
	}
	rest, gone := Divide(list)
	if got := names(t, dir, rest[0]) + ", " + names(t, dir, rest[1]); got != "train/a.txt, held/v.txt held/w.txt" || gone[0][1] != 2 {
		t.Errorf("%s; %v are left to others", got, gone)
	}
	if len(rest[0].Notes()) != 1 { // held/v.txt was reached by two paths
		t.Errorf("notes %q", rest[0].Notes())
	}
}
