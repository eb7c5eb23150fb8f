package data

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/klauspost/compress/zstd"
	"pgregory.net/rapid"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestPackedIsTheText: compressed files give the tokens and the counts of the same bytes uncompressed. The
// files are written by other programs (tools/packed_fixtures.py).
func TestPackedIsTheText(t *testing.T) {
	tokenizer, template := opened(t, "chatml")
	read := func(path string) ([]int32, Stats) {
		c, err := OpenCorpus(path)
		must(t, err)
		last := int64(0)
		tokens, err := Tokenize(context.Background(), c, tokenizer, t.TempDir(), Options{Workers: 2, Chat: template, Progress: func(done, total int64) {
			if last = done; total != c.Bytes() {
				t.Errorf("%s: %d of %d bytes", path, done, total)
			}
		}})
		must(t, err)
		defer tokens.Close()
		if last != c.Bytes() {
			t.Errorf("%s: progress ended at %d of %d", path, last, c.Bytes())
		}
		all := make([]int32, tokens.Len())
		tokens.Copy(all, 0)
		return all, tokens.Stats()
	}
	paths, err := filepath.Glob("testdata/*.*.*")
	must(t, err)
	compared := 0
	for _, path := range paths {
		rows, how, _ := strings.Cut(filepath.Base(path), "-")
		if strings.HasPrefix(how, "wide") || strings.HasPrefix(how, "dictionary") {
			continue
		}
		source := tables + rows + ".jsonl"
		if strings.Contains(how, ".txt.") {
			text, err := os.ReadFile(source)
			must(t, err)
			source = write(t, map[string]string{"a.txt": string(text)}) + "/a.txt"
		}
		want, wantStats := read(source)
		if got, stats := read(path); !slices.Equal(got, want) || stats != wantStats || len(want) < 100 {
			t.Errorf("%s: %d tokens, %v, want %d, %v", path, len(got), stats, len(want), wantStats)
		}
		compared++
	}
	if compared < 10 {
		t.Errorf("%d files", compared)
	}
}

// zipped and framed compress a text by one packing each.
func zipped(t testing.TB, text string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, err := z.Write([]byte(text))
	must(t, errors.Join(err, z.Close()))
	return b.String()
}

func framed(t testing.TB, text string, o ...zstd.EOption) string {
	z, err := zstd.NewWriter(nil, append(o, zstd.WithEncoderConcurrency(1))...)
	must(t, err)
	return string(z.EncodeAll([]byte(text), nil))
}

// TestPackedParts: however a text is cut into members and frames, the text is what is read.
func TestPackedParts(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	testkit.Check(t, func(r *rapid.T) {
		texts := rapid.SliceOfN(rapid.StringMatching(`[a-z\n\x00é]{0,200}`), 1, 6).Draw(r, "texts")
		times := rapid.IntRange(1, 2000).Draw(r, "times")
		var whole, gz, zst strings.Builder
		for _, part := range texts {
			part = strings.Repeat(part, times)
			whole.WriteString(part)
			gz.WriteString(zipped(t, part))
			level := zstd.EncoderLevelFromZstd(rapid.IntRange(1, 19).Draw(r, "level"))
			zst.WriteString(framed(t, part, zstd.WithEncoderLevel(level), zstd.WithEncoderCRC(rapid.Bool().Draw(r, "crc"))))
			if rapid.Bool().Draw(r, "skip") {
				zst.WriteString("\x50\x2a\x4d\x18\x03\x00\x00\x00abc")
			}
		}
		for p, in := range map[packing]string{plain: whole.String(), gzipped: gz.String(), zstandard: zst.String()} {
			got, err := unpackAll(p, iotest.HalfReader(strings.NewReader(in)))
			if err != nil || got != whole.String() {
				r.Fatalf("packing %d: %d bytes, %v, want %d", p, len(got), err, whole.Len())
			}
		}
	})
}

func unpackAll(p packing, from io.Reader) (string, error) {
	u, err := (&reader{ctx: context.Background()}).unpack(p, from)
	if err != nil {
		return "", err
	}
	defer u.Close()
	text, err := io.ReadAll(u)
	return string(text), err
}

// TestPackedDamage: a file that is cut off or changed gives a content error that names it, or the same text,
// for instance where a byte of gzip's header has no meaning. A file of several frames may be cut between them:
// nothing shows that it had more.
func TestPackedDamage(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	text := strings.Repeat("gold and silver and sulphur\n", 40)
	check := func(name, content string, mayPass bool) {
		c, err := OpenCorpus(write(t, map[string]string{name: content, "other.txt": "x"}) + "/*")
		must(t, err)
		got, _, err := documents(c)
		if slices.Sort(got); mayPass && err == nil && slices.Equal(got, []string{text, "x"}) {
			return
		}
		if !errors.Is(err, ErrContent) || !strings.Contains(err.Error(), name+": ") || strings.Count(err.Error(), "hint: ") != 1 {
			t.Errorf("%s of %d bytes: %v", name, len(content), err)
		}
	}
	for name, whole := range map[string]string{"a.txt.gz": zipped(t, text), "a.txt.zst": framed(t, text, zstd.WithEncoderCRC(true))} {
		for n := range len(whole) {
			check(name, whole[:n], false)
			changed := []byte(whole)
			changed[n] ^= byte(1 + n*37%255)
			check(name, string(changed), true)
		}
		check(name, whole+"gold and silver", false)
		check(name, text, false)
		check(name[:5], whole, false)                    // compressed, but named as if it were not
		check(name[:1]+name[5:], whole[:1]+whole, false) // no extension of a format
		check("twice."+name, zipped(t, whole), false)
	}
	for name, want := range map[string]string{"wide": "window is larger than 128 MiB", "dictionary": "a dictionary is not supported"} {
		c, err := OpenCorpus("testdata/texts-" + name + ".jsonl.zst")
		must(t, err)
		if _, _, err := documents(c); !errors.Is(err, ErrContent) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "hint: ") {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
}

// TestPackedSystem: a disk that fails, and a run that is stopped, are not blamed on the file.
func TestPackedSystem(t *testing.T) {
	failed := &fs.PathError{Op: "read", Path: "a", Err: errors.New("input/output error")}
	text := strings.Repeat("gold and silver", 1000)
	for p, whole := range map[packing]string{gzipped: zipped(t, text), zstandard: framed(t, text)} {
		for n := range len(whole) {
			_, err := unpackAll(p, io.MultiReader(strings.NewReader(whole[:n]), iotest.ErrReader(failed)))
			if !errors.Is(err, failed) || strings.Contains(err.Error(), "hint: ") {
				t.Fatalf("%v after %d bytes: %v", p, n, err)
			}
		}
	}
}

// TestPackedBounds: hostile files of a few bytes get no memory for what they claim, and text without a place to
// cut has the same limit as uncompressed.
func TestPackedBounds(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	const most = 1 << 20
	block := "\x01\x00\x00" // a raw, empty, last one
	bomb := func(unit string) string { return strings.Repeat(unit, (32<<20)/len(unit)) }
	for name, c := range map[string]struct {
		packing packing
		content string
		format  Format
		want    string
	}{
		"window of 3.75 TB":     {zstandard, "\x28\xb5\x2f\xfd\x00\xff" + block, Text, "window is larger than"},
		"frame of 60 GB":        {zstandard, "\x28\xb5\x2f\xfd\xe0\x00\x00\x00\x00\x0f\x00\x00\x00" + block, Text, "window is larger than"},
		"frame of 16 EiB":       {zstandard, "\x28\xb5\x2f\xfd\xe0\xff\xff\xff\xff\xff\xff\xff\xff" + block, Text, "window is larger than"},
		"skipped 4 GiB":         {zstandard, "\x50\x2a\x4d\x18\xff\xff\xff\xff" + block, Text, "unexpected EOF"},
		"stretch, zstd":         {zstandard, framed(t, bomb("gold ")), Text, ""},
		"stretch, gzip":         {gzipped, zipped(t, bomb("gold ")), Text, ""},
		"line, zstd":            {zstandard, framed(t, bomb("\x00")), JSONL, "a row of more than 1.0 MiB"},
		"line, gzip":            {gzipped, zipped(t, bomb("\x00")), JSONL, "a row of more than 1.0 MiB"},
		"line breaks, zstd":     {zstandard, framed(t, bomb("gold\n")), Text, ""},
		"line breaks, gzip":     {gzipped, zipped(t, bomb("gold\n")), Text, ""},
		"line after line, zstd": {zstandard, framed(t, bomb("{\"text\":\"\"}\n")), JSONL, ""},
	} {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		live := uint64(0)
		r := &reader{names: usualField, ctx: context.Background(), most: most, cut: cutIf(func(text []byte, i int) bool { return text[i-1] == '\n' }), emit: func(piece) error {
			runtime.GC()
			runtime.ReadMemStats(&after)
			live = max(live, after.HeapAlloc)
			return nil
		}}
		err := r.stream(&File{packing: c.packing, Format: c.format}, strings.NewReader(c.content))
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if runtime.ReadMemStats(&after); c.want != "" && after.TotalAlloc-before.TotalAlloc > 24<<20 {
			t.Errorf("%s: %d bytes were allocated", name, after.TotalAlloc-before.TotalAlloc)
		}
		if live > before.HeapAlloc+(24<<20) {
			t.Errorf("%s: %d bytes in use, %d before", name, live, before.HeapAlloc)
		}
	}
}

// No content of a compressed file crashes the program, and how it arrives does not matter.
func FuzzPacked(f *testing.F) {
	paths, err := filepath.Glob("testdata/*.*.*")
	must(f, err)
	for _, path := range paths {
		content, err := os.ReadFile(path)
		must(f, err)
		f.Add(content, strings.HasSuffix(path, ".zst"))
	}
	f.Add([]byte("\x28\xb5\x2f\xfd\x00\xff\x01\x00\x00"), true)
	f.Fuzz(func(t *testing.T, content []byte, isZstd bool) {
		p := gzipped
		if isZstd {
			p = zstandard
		}
		read := func(from io.Reader) (string, bool) {
			u, err := (&reader{ctx: context.Background()}).unpack(p, from)
			if err != nil {
				return "", false
			}
			defer u.Close()
			text, err := io.ReadAll(io.LimitReader(u, 1<<20))
			return string(text), err == nil
		}
		text, ok := read(bytes.NewReader(content))
		slowly, ok2 := read(iotest.OneByteReader(bytes.NewReader(content)))
		if ok != ok2 || ok && text != slowly {
			t.Fatalf("%d bytes, %v, in one; %d bytes, %v, one by one", len(text), ok, len(slowly), ok2)
		}
	})
}
