package data

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/athanor-llm/athanor/data/bpe"
	"github.com/athanor-llm/athanor/internal/testkit"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// write makes files under a temporary folder and returns the folder.
func write(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o777))
		must(t, os.WriteFile(path, []byte(content), 0o666))
	}
	return dir
}

// documents returns the non-empty documents, whole and in order, by reading the corpus
// in pieces that end only where a document ends.
func documents(c *Corpus) (all []string, stats Stats, err error) {
	var begun []byte
	stats, err = c.read(context.Background(), Options{}, cutIf(func([]byte, int) bool { return false }), func(p piece) error {
		start := 0
		for _, end := range p.ends {
			all = append(all, string(append(begun, p.text[start:end.at]...)))
			start, begun = end.at, nil
		}
		begun = append(begun, p.text[start:]...)
		return nil
	})
	return all, stats, err
}

// cutIf is a cutter of boundaries only.
type cutIf func(text []byte, i int) bool

func (f cutIf) Boundary(text []byte, i int) bool { return f(text, i) }
func (f cutIf) Cut([]byte, bool) int             { return 0 }

func TestPatterns(t *testing.T) {
	dir := write(t, map[string]string{
		"a.txt": "a", "b.go": "b", "sub/c.txt": "c", "sub/deep/d.txt": "d", "sub/deep/e.go": "e",
		"dir.txt/f.txt": "f", "[x].txt": "x",
	})
	must(t, os.Symlink(filepath.Join(dir, "sub"), filepath.Join(dir, "link")))
	must(t, os.Symlink(filepath.Join(dir, "gone"), filepath.Join(dir, "dangling.txt")))
	must(t, os.Symlink(filepath.Join(dir, "b.go"), filepath.Join(dir, "linked.txt")))
	t.Setenv("CORPUS", dir)
	tests := []struct{ pattern, want string }{
		{"$CORPUS/a.txt", "a.txt"},
		{"${CORPUS}/*.txt", "[x].txt a.txt linked.txt"},
		{"$CORPUS/**/*.txt", "[x].txt a.txt dir.txt/f.txt linked.txt sub/c.txt sub/deep/d.txt"},
		{"$CORPUS/**/deep/*", "sub/deep/d.txt sub/deep/e.go"},
		{"$CORPUS/sub/**", "sub/c.txt sub/deep/d.txt sub/deep/e.go"},
		{"$CORPUS/**/**/?.go", "b.go sub/deep/e.go"},
		{"$CORPUS/link/*.txt", "link/c.txt"},
		{"$CORPUS/link/**/*.txt", "link/c.txt link/deep/d.txt"},
		{"$CORPUS/*/*.txt", "dir.txt/f.txt sub/c.txt"},
		{`$CORPUS/\[x\].txt`, "[x].txt"},
	}
	for _, test := range tests {
		c, err := OpenCorpus(test.pattern)
		if err != nil {
			t.Errorf("%s: %v", test.pattern, err)
			continue
		}
		var got []string
		for _, f := range c.Files() {
			relative, err := filepath.Rel(dir, f.Path)
			must(t, err)
			got = append(got, filepath.ToSlash(relative))
		}
		if strings.Join(got, " ") != test.want {
			t.Errorf("%s: %q, want %q", test.pattern, got, test.want)
		}
	}
	c, err := OpenCorpus("$CORPUS/*.txt", "$CORPUS/a.*")
	must(t, err)
	if len(c.Files()) != 3 {
		t.Errorf("a file that two patterns match is read %d times", len(c.Files())-2)
	}
}

// TestLiteral: a name that exists literally is not a pattern, whatever is in it.
func TestLiteral(t *testing.T) {
	dir := write(t, map[string]string{"all [1]/my text [1].txt": "a", "all [1]/my text 1.txt": "b", "all 1/c.txt": "c", "open [.txt": "d"})
	t.Chdir(dir)
	for pattern, want := range map[string]string{
		"all [1]/my text [1].txt": "all [1]/my text [1].txt",
		"all [1]/my text [0-9].*": "all [1]/my text 1.txt",
		"all [1-9]/*.txt":         "all 1/c.txt",
		"all [1]/*":               "all [1]/my text 1.txt all [1]/my text [1].txt",
		"open [.txt":              "open [.txt",
	} {
		c, err := OpenCorpus(pattern)
		if err != nil {
			t.Errorf("%s: %v", pattern, err)
			continue
		}
		var got []string
		for _, f := range c.Files() {
			got = append(got, filepath.ToSlash(f.Path))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %q, want %q", pattern, got, want)
		}
	}
}

// TestLinkedFolders: a folder that is linked into the corpus belongs to it, once, even if
// the links form cycles.
func TestLinkedFolders(t *testing.T) {
	dir := write(t, map[string]string{
		"corpus/a.txt": "a", "corpus/sub/b.txt": "b", "books/c.txt": "c", "books/old/d.txt": "d", "news/e.txt": "e", "f.txt": "f",
	})
	for link, target := range map[string]string{
		"corpus/books": "books", "corpus/sub/again": "books", "corpus/old": "books/old", "corpus/up": ".", "corpus/itself": "corpus",
		"books/news": "news", "news/books": "books", "news/corpus": "corpus", "corpus/twice": "corpus/sub",
	} {
		must(t, os.Symlink(filepath.Join(dir, target), filepath.Join(dir, link)))
	}
	t.Chdir(dir)
	for pattern, want := range map[string]string{
		"corpus/**/*.txt":   "corpus/a.txt corpus/books/c.txt corpus/books/news/e.txt corpus/books/old/d.txt corpus/sub/b.txt",
		"corpus/*/*.txt":    "corpus/books/c.txt corpus/sub/b.txt",
		"corpus/*.txt":      "corpus/a.txt",
		"corpus/b*/old/*":   "corpus/books/old/d.txt",
		"corpus/up/*/c.txt": "corpus/up/books/c.txt",
	} {
		c, err := OpenCorpus(pattern)
		must(t, err)
		var got []string
		for _, f := range c.Files() {
			got = append(got, filepath.ToSlash(f.Path))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %q, want %q", pattern, got, want)
		}
	}
}

func TestCorpusErrors(t *testing.T) {
	dir := write(t, map[string]string{"empty.txt": "", "x.parquet.gz": "z", "x.arrow": "ARROW1", "y.tar.gz": "z", "x.parquet.zst": "z", "y.tzst": "z", "a.txt": "a"})
	t.Setenv("D", dir)
	t.Setenv("GOROOT", dir) // exists, but is not a Go tree
	for pattern, want := range map[string]string{
		"$D/*.md":             "no file matches",
		"$D/nowhere/**/*.txt": "no file matches",
		"$D/nowhere.txt":      "no file matches",
		"$D":                  "is a folder",
		"$D/empty.txt":        "are empty",
		"$D/*.arrow":          "Arrow is not supported yet",
		"$D/x*.gz":            "compressed with gzip is not supported yet",
		"$D/x*.zst":           "compressed with zstd is not supported yet",
		"$D/y*.gz":            "tar is not supported yet",
		"$D/y.tzst":           "tar is not supported yet",
		"$D/[":                "malformed",
		"$NO_SUCH_NAME/x":     "NO_SUCH_NAME",
		"$GOROOT/src/**/*.go": "name another corpus",
	} {
		_, err := OpenCorpus(pattern)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "hint:") {
			t.Errorf("%s: error %v, want %q and a hint", pattern, err, want)
		}
	}
	if _, err := OpenCorpus(); err == nil {
		t.Error("a corpus without patterns")
	}
}

func TestGoTree(t *testing.T) {
	t.Setenv("GOROOT", "")
	for _, pattern := range []string{"$GOROOT/src/errors/*.go", "$(go env GOROOT)/src/errors/**/*.go"} {
		c, err := OpenCorpus(pattern)
		if err != nil {
			t.Skip(err)
		}
		if len(c.Files()) < 2 {
			t.Errorf("%s: %d files", pattern, len(c.Files()))
		}
	}
}

func TestFormats(t *testing.T) {
	dir := write(t, map[string]string{
		"1.txt":   "\ufeffone\n",
		"2.txt":   "\ufeff",
		"3.txt":   "x\xff\xfe caf\xc3\xa9",
		"4.jsonl": "\ufeff{\"text\":\"two\"}\r\n\n{\"id\":1,\"text\":\"th\\u0072ee\\n\",\"meta\":{\"a\":[1,\"}\"]}}\n{\"text\":\"\"}\n{\"text\":\"last\"}",
		"5.json":  `{"text":"\ud83d\ude00"}`,
	})
	c, err := OpenCorpus(dir + "/*")
	must(t, err)
	got, stats, err := documents(c)
	must(t, err)
	slices.Sort(got) // the order of the files is shuffled
	want := []string{"last", "one\n", "three\n", "two", "x\xff\xfe caf\u00e9", "\U0001f600"}
	if !slices.Equal(got, want) {
		t.Errorf("documents %q, want %q", got, want)
	}
	wantStats := Stats{Text: FormatStats{Files: 3, Documents: 2, Bytes: 13}, JSONL: FormatStats{Files: 2, Documents: 4, Bytes: 17}, Empty: 3,
		InvalidBytes: 2, InvalidFiles: 1, FirstInvalid: filepath.Join(dir, "3.txt")}
	if stats != wantStats {
		t.Errorf("stats %+v, want %+v", stats, wantStats)
	}
}

// Text in UTF-16, of either order, is refused and not read as bytes.
func TestUTF16(t *testing.T) {
	for _, name := range []string{"a.txt", "a.jsonl"} {
		for _, text := range []string{"\xff\xfea\x00", "\xfe\xff\x00a", "\xff\xfe"} {
			c, err := OpenCorpus(write(t, map[string]string{name: text}) + "/*")
			must(t, err)
			if _, _, err := documents(c); !errors.Is(err, ErrNotSupported) || !strings.Contains(err.Error(), name+": UTF-16") || !strings.Contains(err.Error(), "hint:") {
				t.Errorf("%s, %q: %v", name, text, err)
			}
		}
	}
}

// TestNoText: what is no text is refused by what it is, whatever its name says; what may be prose is read.
func TestNoText(t *testing.T) {
	for start, want := range map[string]string{
		"PK\x03\x04\x14\x00": "a ZIP file", "%PDF-1.7\n": "a PDF", "\x7fELF\x02": "a program", "SQLite format 3\x00": "a database",
		"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 7\n": "a pointer of Git LFS", "\x89PNG\r\n\x1a\n": "an image", "PAR1\x15": "a Parquet file",
		"\xd0\xcf\x11\xe0\xa1": "a document of an office", "\x1f\x8b\x08": "gzip data", "<!DOCTYPE html><p>prose": "", "GGUF is a format.": "", "version 2": "", "P": "", "": "",
	} {
		for _, name := range []string{"a.txt", "a.docx", "a"} {
			c, err := OpenCorpus(write(t, map[string]string{name: start, "b.txt": "b"}) + "/*")
			must(t, err)
			_, _, err = documents(c)
			if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), name+": it begins like "+want) || !strings.Contains(err.Error(), "hint:")) {
				t.Errorf("%s, %q: %v", name, start, err)
			}
		}
	}
}

func TestJSONLErrors(t *testing.T) {
	for line, want := range map[string]string{
		`{"messages":[{"role":"user","content":"x"}]}`: "needs a chat template",
		`{"conversations":[]}`:                         "needs a chat template",
		`{"instruction":"x","output":"y"}`:             "needs a chat template",
		`{"chosen":"x","rejected":"y"}`:                "not all given",
		`{"content":"x","id":1}`:                       `no "text", only [content id]`,
		`{}`:                                           `no "text"`,
		`{"text":1}`:                                   "not a string",
		`{"text":null}`:                                "not a string",
		`[{"text":"x"}]`:                               "JSON array",
		`{"text":"x"`:                                  "comma or }",
		`{"text":"x`:                                   "does not end",
		`{"text":"x"} {}`:                              "there is more after the object",
		`{"text":"\x"}`:                                "unknown escape",
		`{"text":"\ud8"}`:                              "unknown escape",
		`{"text" "x"}`:                                 "colon",
		`{"a":tru,"text":"x"}`:                         "not JSON",
		`{"a":,"text":"x"}`:                            "not JSON",
		`{"a":[1,2},"text":"x"}`:                       "not JSON",
		`{,"text":"x"}`:                                "string is expected",
		`hello`:                                        "object is expected",
		"{\"text\":\"a\tb\"}":                          "control character",
	} {
		dir := write(t, map[string]string{"x.jsonl": "{\"text\":\"ok\"}\n" + line + "\n"})
		c, err := OpenCorpus(dir + "/x.jsonl")
		must(t, err)
		_, _, err = documents(c)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "line 2") {
			t.Errorf("%s: error %v, want line 2 and %q", line, err, want)
		}
		if strings.Contains(want, "not supported") && !errors.Is(err, ErrNotSupported) {
			t.Errorf("%s: %v is not ErrNotSupported", line, err)
		}
	}
}

// However the corpus is cut into pieces, their tokens are those of the whole documents,
// encoded one by one.
func TestPiecesAreTheCorpus(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	tokenizer := bpe.GPT2()
	end, _ := tokenizer.EndOfText()
	line := strings.Repeat("some words of text, ", 20) + "\n"
	dir := write(t, map[string]string{
		"a.txt":   strings.Repeat(line, 4000),               // 1.6 MB with line breaks
		"b.txt":   strings.Repeat("no break ", 150000),      // 1.4 MB without
		"c.txt":   strings.Repeat("\n\n  \u00e9\n", 200000), // 1.4 MB, no place to cut
		"d.txt":   strings.Repeat("x\ny\xff\u00e9", 200000), // cut everywhere, invalid too
		"e.txt":   "small",
		"f.jsonl": strings.Repeat("{\"text\":\"a\\nb\"}\n", 100000),
		"g.jsonl": `{"text":"` + strings.Repeat(`one \n\n two \n`, 100000) + `"}`,
		"h.txt":   strings.Repeat("z\n", 600000),
	})
	c, err := OpenCorpus(dir + "/*")
	must(t, err)
	var want []int32
	e := tokenizer.NewEncoder()
	whole, _, err := documents(c)
	must(t, err)
	for _, d := range whole {
		want = append(e.Encode(want, []byte(d)), end)
	}
	n := int64(len(whole))
	for _, workers := range []int{1, 3} {
		last := int64(0)
		tokens, err := Tokenize(context.Background(), c, tokenizer, filepath.Join(t.TempDir(), "new"), Options{
			Workers: workers,
			Progress: func(done, total int64) {
				if done < last || done > total || total != c.Bytes() {
					t.Errorf("progress %d of %d after %d", done, total, last)
				}
				last = done
			},
		})
		must(t, err)
		if last != c.Bytes() {
			t.Errorf("progress ended at %d of %d", last, c.Bytes())
		}
		if tokens.Len() != int64(len(want)) || tokens.Stats().Documents() != n || n != 100007 {
			t.Fatalf("%d tokens of %d documents, want %d of %d", tokens.Len(), tokens.Stats().Documents(), len(want), n)
		}
		got := make([]int32, len(want))
		tokens.Copy(got, 0)
		if !slices.Equal(got, want) {
			t.Error("the tokens are not those of the documents")
		}
		must(t, tokens.Close())
	}
}

// Any text is read in pieces of bounded size, cut where this has no effect if such a place is known; too long a line of JSON is an
// error instead of using up all memory.
func TestStretches(t *testing.T) {
	for name, c := range map[string]struct {
		content, want string
		severed       int64
	}{
		"latin.txt":    {content: strings.Repeat("gold and silver\n", 400000)},
		"cyrillic.txt": {content: strings.Repeat("злато и сребро\n", 200000)},
		"han.txt":      {content: strings.Repeat("金和银。\n", 500000)},
		"blank.txt":    {content: strings.Repeat("gold and silver\n\n", 400000)},
		"windows.txt":  {content: strings.Repeat("gold and silver\r\n", 400000)},
		"indented.txt": {content: strings.Repeat(" \tgold and silver \n", 300000)},
		"line.txt":     {content: strings.Repeat("gold and silver ", 200000)},
		"none.txt":     {content: strings.Repeat("silver", 1000000)},
		"bytes.txt":    {content: strings.Repeat("\x80", 6000000), severed: 2},
		"none.jsonl":   {content: `{"text":"` + strings.Repeat("silver", 800000) + `"}`},
		"text.jsonl":   {content: `{"id": 3, "text":"` + strings.Repeat("silver", 1000000) + `"}`},
		"long.jsonl":   {content: `{"prompt":"` + strings.Repeat("silver", 1000000) + `"}`, want: "long.jsonl: line 1: a row of more than 5.0 MiB"},
		"long.json":    {content: strings.Repeat("silver ", 1000000), want: "long.json: line 1: a row of more than 5.0 MiB"},
	} {
		dir := write(t, map[string]string{name: c.content})
		corpus, err := OpenCorpus(filepath.Join(dir, name))
		must(t, err)
		read := 0
		r := &reader{names: usualField, ctx: context.Background(), cut: bpe.GPT2(), most: 5 << 20, emit: func(p piece) error {
			if read += len(p.text); len(p.text) > maxStretch {
				t.Errorf("%s: a piece of %d bytes", name, len(p.text))
			}
			return nil
		}}
		err = r.file(&corpus.files[0])
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "hint:")) {
			t.Errorf("%s: %v", name, err)
		}
		if most := maxStretch + pieceSize; c.want == "" && (r.stats.Severed != c.severed || cap(r.text) > most) {
			t.Errorf("%s: severed %d times, %d bytes wait", name, r.stats.Severed, cap(r.text))
		}
	}
}

// Training counts each pre-token once, however the text is cut and divided among workers.
func TestTrainTokenizer(t *testing.T) {
	dir := write(t, map[string]string{
		"a.txt": strings.Repeat("the cat sat on the mat\nand then 1234 cats sat;\n\n", 30000),
		"b.txt": "words at the end",
	})
	c, err := OpenCorpus(dir + "/*")
	must(t, err)
	whole := bpe.NewCounter(trainPattern)
	list, _, err := documents(c)
	must(t, err)
	for _, d := range list {
		whole.Add([]byte(d))
	}
	want, err := bpe.Train(context.Background(), whole, 300, nil)
	must(t, err)
	for _, workers := range []int{1, 4} {
		got, err := OpenTokenizer(context.Background(), "bpe-300", c, Options{Workers: workers})
		must(t, err)
		if got.Hash() != want.Hash() {
			t.Errorf("%d workers: another vocabulary", workers)
		}
	}
	for name, want := range map[string]string{
		"gtp2": "hint", "bpe-12": "257", "bpe-x": "hint", filepath.Join(dir, "a.txt"): "a.txt", dir: "hint",
	} {
		if _, err := OpenTokenizer(context.Background(), name, c, Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("tokenizer %q: error %v, want %q", name, err, want)
		}
	}
}

// bytesTokenizer returns a tokenizer of the 256 bytes and an end of text only.
func bytesTokenizer(t testing.TB) *bpe.Tokenizer {
	t.Helper()
	words := bpe.NewCounter(bpe.PatternGPT2)
	words.Add([]byte("x"))
	tokenizer, err := bpe.Train(context.Background(), words, 257, nil)
	must(t, err)
	return tokenizer
}

func smallTokens(t testing.TB, text string) *Tokens {
	t.Helper()
	dir := write(t, map[string]string{"a.txt": text})
	c, err := OpenCorpus(dir + "/a.txt")
	must(t, err)
	tokens, err := Tokenize(context.Background(), c, bytesTokenizer(t), dir, Options{Workers: 1})
	must(t, err)
	return tokens
}

// A token file is reused while nothing has changed, and rebuilt when the corpus changed
// or any bit of the file flipped.
func TestCache(t *testing.T) {
	dir := write(t, map[string]string{"a.txt": "some text\nof two lines\n"})
	open := func() *Tokens {
		t.Helper()
		c, err := OpenCorpus(dir + "/a.txt")
		must(t, err)
		tokens, err := Tokenize(context.Background(), c, bytesTokenizer(t), dir, Options{})
		must(t, err)
		t.Cleanup(func() { tokens.Close() })
		return tokens
	}
	first := open()
	made, err := os.Stat(first.Path())
	must(t, err)
	again := open()
	found, err := os.Stat(again.Path())
	must(t, err)
	if !os.SameFile(made, found) || again.Stats() != first.Stats() || again.Len() != 24 || again.vocabulary != 257 {
		t.Errorf("the second time: the same file %v, %v, %d tokens, vocabulary %d", os.SameFile(made, found), again.Stats(), again.Len(), again.vocabulary)
	}
	good, err := os.ReadFile(first.Path())
	must(t, err)
	damage := func(name string, bad []byte) {
		t.Helper()
		must(t, os.Remove(first.Path())) // the old mapping keeps the old file
		must(t, os.WriteFile(first.Path(), bad, 0o666))
		if _, err := OpenTokens(first.Path()); err == nil {
			t.Errorf("%s: not noticed", name)
		}
	}
	for bit := 0; bit < 8*len(good); bit += testkit.Count(5, 1, 1) {
		if bit/8 > 100 && bit/8 < headerSize-8 && bit%512 != 3 {
			continue // the padding is covered by one checksum: a sample is enough
		}
		bad := slices.Clone(good)
		bad[bit/8] ^= 1 << (bit % 8)
		damage(fmt.Sprint("bit ", bit), bad)
	}
	for _, size := range []int{0, 1, headerSize - 1, headerSize, len(good) - 1} {
		damage(fmt.Sprint("cut to ", size), good[:size])
	}
	damage("grown", append(slices.Clone(good), 0))
	open() // finds it grown
	if now, err := os.ReadFile(first.Path()); err != nil || !slices.Equal(now, good) {
		t.Errorf("the file was not made again as it was: %v", err)
	}
	must(t, os.Chtimes(filepath.Join(dir, "a.txt"), time.Unix(1, 0), time.Unix(1, 0)))
	if tokens := open(); tokens.Path() == first.Path() {
		t.Errorf("a changed corpus: %s", tokens.Path())
	}
	if left, _ := filepath.Glob(dir + "/*.tmp"); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// An error leaves no file and no goroutine, and neither does a cancelled context but for what the next call goes on with.
func TestTokenizeFails(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	goroutines := runtime.NumGoroutine()
	dir := write(t, map[string]string{
		"a.jsonl": strings.Repeat("{\"text\":\"fine\"}\n", 200000) + "{\n",
	})
	c, err := OpenCorpus(dir + "/a.jsonl")
	must(t, err)
	cache := filepath.Join(dir, "cache")
	if _, err = Tokenize(context.Background(), c, bpe.GPT2(), cache, Options{}); err == nil || !strings.Contains(err.Error(), "line 200001") {
		t.Errorf("error %v", err)
	}
	must(t, os.WriteFile(filepath.Join(dir, "a.jsonl"), []byte(strings.Repeat("{\"text\":\"fine\"}\n", 1000000)), 0o666))
	ctx, cancel := context.WithCancel(context.Background())
	_, err = Tokenize(ctx, c, bpe.GPT2(), cache, Options{Progress: func(int64, int64) { cancel() }})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want cancelled", err)
	}
	if left, _ := filepath.Glob(cache + "/*"); len(left) != 1 || !strings.HasSuffix(left[0], temporary) {
		t.Errorf("left behind: %v", left)
	}
	if _, err := Tokenize(context.Background(), c, bpe.GPT2(), filepath.Join(dir, "a.jsonl"), Options{}); err == nil {
		t.Error("a file in the place of the folder")
	}
	testkit.GoroutinesEnd(t, goroutines)
}

// The widths of a token file hold the same ids.
func TestWidths(t *testing.T) {
	tokens := smallTokens(t, "abc\xff")
	want := make([]int32, tokens.Len())
	tokens.Copy(want, 0)
	wide := &Tokens{header: tokens.header}
	wide.width = 4
	for _, id := range want {
		wide.body = append(wide.body, byte(id), byte(id>>8), byte(id>>16), byte(id>>24))
	}
	got := make([]int32, tokens.Len())
	wide.Copy(got, 0)
	if !slices.Equal(got, want) {
		t.Errorf("4 bytes: %v, 2 bytes: %v", got, want)
	}
	for i := range want {
		if tokens.At(int64(i)) != want[i] || wide.At(int64(i)) != want[i] {
			t.Errorf("token %d: %d and %d, want %d", i, tokens.At(int64(i)), wide.At(int64(i)), want[i])
		}
	}
}

func TestEntropy(t *testing.T) {
	// 1/2 a, 1/4 b, 1/8 c, 1/8 the end: 1.75 bits.
	tokens := smallTokens(t, "aaaabbc")
	if got, want := Entropy(Stretch{tokens, tokens.All()}), 1.75*math.Ln2; math.Abs(got-want) > 1e-12 {
		t.Errorf("entropy %v, want %v", got, want)
	}
	if got := Entropy(Stretch{tokens, Range{0, 4}}); got != 0 {
		t.Errorf("entropy of one token %v", got)
	}
}

// BenchmarkTokenize and BenchmarkTrain run over the Go tree.
func BenchmarkTokenize(b *testing.B) {
	c, err := OpenCorpus("$GOROOT/src/**/*.go")
	if err != nil {
		b.Skip(err)
	}
	b.SetBytes(c.Bytes())
	for b.Loop() {
		tokens, err := Tokenize(context.Background(), c, bpe.GPT2(), b.TempDir(), Options{})
		must(b, err)
		must(b, tokens.Close())
	}
}

func BenchmarkTrain(b *testing.B) {
	c, err := OpenCorpus("$GOROOT/src/**/*.go")
	if err != nil {
		b.Skip(err)
	}
	b.SetBytes(c.Bytes())
	for b.Loop() {
		_, err := TrainTokenizer(context.Background(), c, 4096, Options{})
		must(b, err)
	}
}
