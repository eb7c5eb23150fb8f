package data

import (
	"context"
	"encoding/json"
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
	"pgregory.net/rapid"
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

func documents(t testing.TB, c *Corpus) (all []string, err error) {
	t.Helper()
	for d, err := range c.Documents(context.Background()) {
		if err != nil {
			return all, err
		}
		all = append(all, string(d))
	}
	return all, nil
}

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

func TestCorpusErrors(t *testing.T) {
	dir := write(t, map[string]string{"empty.txt": "", "x.parquet": "PAR1", "y.txt.gz": "z", "a.txt": "a"})
	t.Setenv("D", dir)
	t.Setenv("GOROOT", dir) // exists, but is no Go tree
	for pattern, want := range map[string]string{
		"$D/*.md":             "no file matches",
		"$D/nowhere/**/*.txt": "no file matches",
		"$D/nowhere.txt":      "no file matches",
		"$D":                  "is a folder",
		"$D/empty.txt":        "are empty",
		"$D/*.parquet":        "Parquet is not supported yet",
		"$D/*.gz":             "gzip is not supported yet",
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
		"1.txt":   "one\n",
		"2.txt":   "",
		"3.txt":   "\xff\xfe caf\xc3\xa9",
		"4.jsonl": "\ufeff{\"text\":\"two\"}\r\n\n{\"id\":1,\"text\":\"th\\u0072ee\\n\",\"meta\":{\"a\":[1,\"}\"]}}\n{\"text\":\"\"}\n{\"text\":\"last\"}",
		"5.json":  `{"text":"\ud83d\ude00"}`,
	})
	c, err := OpenCorpus(dir + "/*")
	must(t, err)
	got, err := documents(t, c)
	must(t, err)
	slices.Sort(got) // the order of the files is shuffled
	want := []string{"last", "one\n", "three\n", "two", "\U0001f600", "\xff\xfe caf\u00e9"}
	if !slices.Equal(got, want) {
		t.Errorf("documents %q, want %q", got, want)
	}
	stats, err := c.read(context.Background(), nil, func(piece) error { return nil })
	must(t, err)
	wantStats := Stats{Text: FormatStats{3, 2, 12}, JSONL: FormatStats{2, 4, 17}, Empty: 3,
		InvalidBytes: 2, InvalidFiles: 1, FirstInvalid: filepath.Join(dir, "3.txt")}
	if stats != wantStats {
		t.Errorf("stats %+v, want %+v", stats, wantStats)
	}
}

func TestJSONLErrors(t *testing.T) {
	for line, want := range map[string]string{
		`{"messages":[{"role":"user","content":"x"}]}`: `chat data ("messages") is not supported yet`,
		`{"conversations":[]}`:                         "not supported yet",
		`{"instruction":"x","output":"y"}`:             "not supported yet",
		`{"content":"x","id":1}`:                       `no "text", only [content id]`,
		`{}`:                                           `no "text"`,
		`{"text":1}`:                                   "not a string",
		`{"text":null}`:                                "not a string",
		`[{"text":"x"}]`:                               "JSON array",
		`{"text":"x"`:                                  "comma or }",
		`{"text":"x`:                                   "does not end",
		`{"text":"x"} {}`:                              "something follows",
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
		_, err = documents(t, c)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "line 2") {
			t.Errorf("%s: error %v, want line 2 and %q", line, err, want)
		}
		if strings.Contains(want, "not supported") && !errors.Is(err, ErrNotSupported) {
			t.Errorf("%s: %v is not ErrNotSupported", line, err)
		}
	}
}

// Pieces are the corpus: whatever they are cut into, their tokens are those of
// the whole documents, one by one.
func TestPiecesAreTheCorpus(t *testing.T) {
	tokenizer := bpe.GPT2()
	end, _ := tokenizer.EndOfText()
	line := strings.Repeat("some words of text, ", 20) + "\n"
	dir := write(t, map[string]string{
		"a.txt":   strings.Repeat(line, 9000),               // 3.6 MB with line breaks
		"b.txt":   strings.Repeat("no break ", 300000),      // 2.7 MB without
		"c.txt":   strings.Repeat("\n\n  \u00e9\n", 400000), // 3 MB, no place to cut
		"d.txt":   strings.Repeat("x\ny\xff\u00e9", 300000), // cut everywhere, invalid too
		"e.txt":   "small",
		"f.jsonl": strings.Repeat("{\"text\":\"a\\nb\"}\n", 100000),
		"g.jsonl": `{"text":"` + strings.Repeat(`one \n\n two \n`, 200000) + `"}`,
		"h.txt":   strings.Repeat("z\n", 600000),
	})
	c, err := OpenCorpus(dir + "/*")
	must(t, err)
	var want []int32
	e := tokenizer.NewEncoder()
	n := int64(0)
	for d, err := range c.Documents(context.Background()) {
		must(t, err)
		want = append(e.Encode(want, d), end)
		n++
	}
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

// Training sees each pre-token once however the text is cut and shared out.
func TestTrainTokenizer(t *testing.T) {
	dir := write(t, map[string]string{
		"a.txt": strings.Repeat("the cat sat on the mat\nand then 1234 cats sat;\n\n", 30000),
		"b.txt": "words at the end",
	})
	c, err := OpenCorpus(dir + "/*")
	must(t, err)
	whole := bpe.NewCounter(trainPattern)
	for d, err := range c.Documents(context.Background()) {
		must(t, err)
		whole.Add(d)
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

// bytesTokenizer has the 256 bytes, an end of text, and nothing else to go wrong.
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

// A token file is used again while nothing has changed, and made again when the
// corpus changed or any bit of it flipped.
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
	if first.Note() != "made" || first.VocabularySize() != 257 {
		t.Fatalf("note %q, vocabulary %d", first.Note(), first.VocabularySize())
	}
	again := open()
	if again.Note() != "reused" || again.Stats() != first.Stats() || again.Len() != 24 {
		t.Errorf("the second time: %q, %v, %d tokens", again.Note(), again.Stats(), again.Len())
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
	for bit := range 8 * len(good) {
		if bit/8 > 100 && bit/8 < headerSize-8 && bit%64 != 3 {
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
	if tokens := open(); !strings.HasPrefix(tokens.Note(), "made again: ") {
		t.Errorf("a damaged file: %q", tokens.Note())
	}
	if now, err := os.ReadFile(first.Path()); err != nil || !slices.Equal(now, good) {
		t.Errorf("the file was not made again as it was: %v", err)
	}
	must(t, os.Chtimes(filepath.Join(dir, "a.txt"), time.Unix(1, 0), time.Unix(1, 0)))
	if tokens := open(); tokens.Note() != "made" || tokens.Path() == first.Path() {
		t.Errorf("a changed corpus: %q %s", tokens.Note(), tokens.Path())
	}
	if left, _ := filepath.Glob(dir + "/*.tmp"); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// An error or a cancelled context leaves no file and no goroutine.
func TestTokenizeFails(t *testing.T) {
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
	must(t, os.WriteFile(filepath.Join(dir, "a.jsonl"), []byte(strings.Repeat("{\"text\":\"fine\"}\n", 3000000)), 0o666))
	ctx, cancel := context.WithCancel(context.Background())
	_, err = Tokenize(ctx, c, bpe.GPT2(), cache, Options{Progress: func(int64, int64) { cancel() }})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want cancelled", err)
	}
	if left, _ := filepath.Glob(cache + "/*"); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	if _, err := Tokenize(context.Background(), c, bpe.GPT2(), filepath.Join(dir, "a.jsonl"), Options{}); err == nil {
		t.Error("a file in the place of the folder")
	}
	if n := runtime.NumGoroutine(); n > goroutines {
		t.Errorf("%d goroutines more than before", n-goroutines)
	}
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
	if got, want := tokens.Entropy(tokens.All()), 1.75*math.Ln2; math.Abs(got-want) > 1e-12 {
		t.Errorf("entropy %v, want %v", got, want)
	}
	if got := tokens.Entropy(Range{0, 4}); got != 0 {
		t.Errorf("entropy of one token %v", got)
	}
}

// An order is a permutation; other epochs and seeds have other ones.
func TestPermutation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64Range(1, 3000).Draw(t, "n")
		seed, epoch := rapid.Uint64().Draw(t, "seed"), rapid.Int64Range(0, 1<<40).Draw(t, "epoch")
		p := newPermutation(n, seed, epoch)
		seen := make([]bool, n)
		for i := range n {
			at := p.at(i)
			if at < 0 || at >= n || seen[at] {
				t.Fatalf("place %d: %d, twice or outside 0..%d", i, at, n-1)
			}
			seen[at] = true
		}
		if n < 100 {
			return
		}
		next, other := newPermutation(n, seed, epoch+1), newPermutation(n, seed+1, epoch)
		same, sameSeed := 0, 0
		for i := range n {
			if p.at(i) == next.at(i) {
				same++
			}
			if p.at(i) == other.at(i) {
				sameSeed++
			}
		}
		if same > 20 || sameSeed > 20 { // one is expected of independent orders
			t.Fatalf("%d and %d of %d places are the same in another epoch and seed", same, sameSeed, n)
		}
	})
}

// The order must never change: a checkpoint's cursor means a place in it. The
// cut of the files into training and validation depends on it too.
func TestOrderIsForever(t *testing.T) {
	for _, golden := range []struct {
		n     int64
		seed  uint64
		epoch int64
		want  []int64
	}{
		{10, 0, 0, []int64{1, 0, 5, 8, 3, 4, 2, 9, 7, 6}},
		{1000003, 42, 7, []int64{442949, 253515, 26991, 453261, 77744, 247898, 550841, 716426, 321533, 709265}},
		{1 << 40, 1, 1, []int64{834754253207, 1003727704826, 749085204397, 264423835984, 514180931917,
			256140808816, 373303489744, 833992312423, 704973696594, 652467587083}},
	} {
		p := newPermutation(golden.n, golden.seed, golden.epoch)
		var got []int64
		for i := range int64(10) {
			got = append(got, p.at(i))
		}
		if !slices.Equal(got, golden.want) {
			t.Errorf("n %d, seed %d, epoch %d: %v, want %v", golden.n, golden.seed, golden.epoch, got, golden.want)
		}
	}
}

// The order has no trend: over many epochs every window is as often early as late.
func TestPermutationIsFair(t *testing.T) {
	const n, epochs = 100, 4000
	sum := make([]float64, n)
	var cells [10][10]float64 // tenth of the place by tenth of the window
	for epoch := range int64(epochs) {
		p := newPermutation(n, 7, epoch)
		for i := range int64(n) {
			sum[p.at(i)] += float64(i)
			cells[i/10][p.at(i)/10]++
		}
	}
	for window, s := range sum {
		// A uniform place has mean 49.5 and deviation 28.9; 5 deviations of the mean.
		if mean := s / epochs; math.Abs(mean-49.5) > 5*28.9/math.Sqrt(epochs) {
			t.Errorf("window %d comes at place %.1f on average", window, mean)
		}
	}
	chi2 := 0.0
	for _, row := range cells {
		for _, c := range row {
			chi2 += (c - n*epochs/100) * (c - n*epochs/100) / (n * epochs / 100)
		}
	}
	if chi2 > 150 { // 81 degrees of freedom: mean 81, deviation 13
		t.Errorf("places and windows depend on each other: chi squared %.0f", chi2)
	}
}

// numbered makes tokens that are their own index, so that a window shows where
// it comes from. Every 97th is the end of text.
func numbered(n int) *Tokens {
	t := &Tokens{header: header{width: 4, count: int64(n), vocabulary: n, endOfText: -1}}
	for i := range n {
		t.body = append(t.body, byte(i), byte(i>>8), byte(i>>16), byte(i>>24))
	}
	return t
}

// In an epoch every training token but the first is a target exactly once, and
// no validation token is ever seen.
func TestEpochVisitsAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sequence := rapid.IntRange(1, 40).Draw(t, "sequence")
		n := rapid.IntRange(2*sequence+2, 2000).Draw(t, "tokens")
		tokens := numbered(n)
		tokens.endOfText = int32(rapid.IntRange(-1, n-1).Draw(t, "end"))
		train, validation, err := tokens.Split(rapid.Float64Range(0, 0.9).Draw(t, "held out"), sequence)
		if err != nil {
			t.Fatal(err)
		}
		if train.First != 0 || train.End != validation.First || validation.End != int64(n) ||
			validation.Len() <= int64(sequence) || train.Len() <= int64(sequence) {
			t.Fatalf("%v and %v of %d tokens", train, validation, n)
		}
		w, err := tokens.Windows(train, sequence)
		if err != nil {
			t.Fatal(err)
		}
		s, err := NewSampler(w, rapid.Uint64().Draw(t, "seed"), 1)
		if err != nil {
			t.Fatal(err)
		}
		batch := make([]int32, sequence+1)
		for epoch := range int64(2) {
			target := make([]int, n)
			for range w.Count() {
				if s.Cursor().Epoch != epoch {
					t.Fatalf("%+v in epoch %d", s.Cursor(), epoch)
				}
				s.Fill(batch, 1)
				for i, token := range batch {
					if int64(token) >= train.End || i > 0 && token != batch[i-1]+1 {
						t.Fatalf("window %v of the training tokens up to %d", batch, train.End)
					}
					if i > 0 {
						target[token]++
					}
				}
			}
			for token, times := range target {
				want := 0
				if token > 0 && int64(token) <= w.Count()*int64(sequence) {
					want = 1
				}
				if times != want {
					t.Fatalf("token %d was a target %d times, want %d", token, times, want)
				}
			}
			if left := train.Len() - 1 - w.Count()*int64(sequence); left < 0 || left >= int64(sequence) {
				t.Fatalf("%d tokens were left out", left)
			}
		}
	})
}

// From any cursor, saved as JSON, the stream goes on as if never interrupted,
// whatever the batches.
func TestResume(t *testing.T) {
	tokens := numbered(2000)
	rapid.Check(t, func(t *rapid.T) {
		sequence := rapid.IntRange(1, 300).Draw(t, "sequence")
		w, err := tokens.Windows(Range{0, 2000}, sequence)
		if err != nil {
			t.Fatal(err)
		}
		seed := rapid.Uint64().Draw(t, "seed")
		one, _ := NewSampler(w, seed, 1)
		other, _ := NewSampler(w, seed, 1)
		before := rapid.IntRange(0, 5000).Draw(t, "before")
		rows := rapid.IntRange(1, 20).Draw(t, "rows")
		batch := make([]int32, sequence+1)
		for range before {
			one.Fill(batch, 1)
		}
		other.Skip(int64(before))
		saved, _ := json.Marshal(one.Cursor())
		if again, _ := json.Marshal(other.Cursor()); string(saved) != string(again) {
			t.Fatalf("skipped to %s, filled to %s", again, saved)
		}
		want := make([]int32, 0, rows*(sequence+1))
		for range rows {
			one.Fill(batch, 1)
			want = append(want, batch...)
		}
		resumed, _ := NewSampler(w, seed, 1)
		var cursor Cursor
		if err := json.Unmarshal(saved, &cursor); err != nil {
			t.Fatal(err)
		}
		if err := resumed.Seek(cursor); err != nil {
			t.Fatal(err)
		}
		got := make([]int32, len(want))
		resumed.Fill(got, rows)
		if !slices.Equal(got, want) || resumed.Cursor() != one.Cursor() {
			t.Fatalf("resumed at %s: another stream", saved)
		}
	})
}

// The cut between training and validation is at the end of a document.
func TestSplitAtDocument(t *testing.T) {
	tokens := numbered(1000)
	for end, want := range map[int32]int64{
		-1: 900, 899: 900, 898: 899, 850: 851, 800: 801, 799: 900, 950: 900, 5: 900,
	} {
		tokens.endOfText = end
		train, validation, err := tokens.Split(0.1, 10)
		must(t, err)
		if train.End != want || validation.First != want {
			t.Errorf("end of text at %d: cut at %d, want %d", end, train.End, want)
		}
	}
}

func TestTooSmall(t *testing.T) {
	tokens := numbered(100)
	if _, _, err := tokens.Split(0.01, 50); err == nil || !strings.Contains(err.Error(), "hint:") {
		t.Errorf("half a window each: %v", err)
	}
	for _, bad := range []float64{-0.1, 1, math.NaN(), math.Inf(1)} {
		if _, _, err := tokens.Split(bad, 10); err == nil {
			t.Errorf("held out %v", bad)
		}
	}
	for _, sequence := range []int{-1, 0, 100, math.MaxInt} {
		if _, err := tokens.Windows(tokens.All(), sequence); err == nil {
			t.Errorf("windows of %d", sequence)
		}
		if _, _, err := tokens.Split(0.1, sequence); err == nil {
			t.Errorf("split for windows of %d", sequence)
		}
	}
	for _, bad := range []Range{{-1, 50}, {0, 101}, {60, 50}} {
		if _, err := tokens.Windows(bad, 10); err == nil {
			t.Errorf("windows of %v", bad)
		}
	}
	w, err := tokens.Windows(tokens.All(), 10)
	must(t, err)
	if _, err := NewSampler(w, 0, 10); err == nil || !strings.Contains(err.Error(), "global_batch") {
		t.Errorf("9 windows for a batch of 10: %v", err)
	}
	s, err := NewSampler(w, 0, 9)
	must(t, err)
	for _, bad := range []Cursor{{-1, 0}, {0, -1}, {0, 9}} {
		if err := s.Seek(bad); err == nil || !strings.Contains(err.Error(), "hint:") {
			t.Errorf("seek to %+v: %v", bad, err)
		}
	}
}

func TestFillAllocatesNothing(t *testing.T) {
	w, err := numbered(10000).Windows(Range{0, 10000}, 64)
	must(t, err)
	s, err := NewSampler(w, 1, 8)
	must(t, err)
	batch := make([]int32, 8*65)
	if n := testing.AllocsPerRun(100, func() { s.Fill(batch, 8) }); n != 0 {
		t.Errorf("%v allocations in a call", n)
	}
}
