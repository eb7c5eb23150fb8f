package main

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/internal/size"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestCorpora: text in the forms in which people have it can be trained on; anything else is reported.
func TestCorpora(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t, "max_steps: 2")
	line := "gold and silver and sulphur"
	for name, content := range map[string]string{
		"invalid.txt":  strings.Repeat("gold \xff\xfe sulphur \xc3( mercury\n", 300),
		"noline.txt":   strings.Repeat(line+" ", 2000),
		"nul.txt":      strings.Repeat("\x00\x01\x02 ", 4000),
		"crlf.txt":     strings.Repeat(line+"\r\n", 500),
		"wide.txt":     strings.Repeat("\u4e0d\u8001\u4e39 \U0001f525\n", 800),
		"marks.txt":    strings.Repeat("<|endoftext|>"+line+"\n", 300),
		"good.jsonl":   strings.Repeat(`{"text": "`+line+`"}`+"\n", 400),
		"escapes.json": strings.Repeat(`{"id": [1, {"a": null}], "text": "\ud83d\ude00 \u00e9 \\ \" `+line+`"}`+"\n\n", 400),
	} {
		check(t, os.WriteFile(dir+"/"+name, []byte(content), 0o644))
		call("train", file, "data="+dir+"/"+name, "out="+dir+"/out-"+name).must(t, 0)
		var r dataReport
		call("data", file, "data="+dir+"/"+name, "--json").must(t, 0).into(t, &r)
		if name == "invalid.txt" && (r.Formats.InvalidBytes != 900 || !strings.Contains(call("data", dir+"/"+name).stdout, `\xff`)) {
			t.Errorf("%d bytes are not UTF-8 in %+v", r.Formats.InvalidBytes, r)
		}
	}
	for _, name := range []string{"empty1.log", "empty2.log"} {
		check(t, os.WriteFile(dir+"/"+name, nil, 0o644))
	}
	call("train", file, "data=["+dir+"/*.log, "+dir+"/corpus.txt]", "out="+dir+"/some").must(t, 0)
	for _, c := range []struct {
		name, content string
		code          int
		want          string
	}{
		{"short.txt", "gold", 2, "data: the corpus has 2 tokens"},
		{"cut.jsonl", `{"text": "` + line, 2, "cut.jsonl: line 1"},
		{"array.jsonl", `[{"text": "a"}]`, 2, "hint:"},
		{"chat.jsonl", strings.Repeat(`{"messages": []}`+"\n", 9), 2, "needs a chat template"},
		{"number.jsonl", `{"text": 3}`, 2, "not a string"},
		{"packed.txt.gz", "\x1f\x8b", 2, "hint:"},
		{"packed.tar.gz", "\x1f\x8b", 2, "hint:"},
		{"table.parquet", "PAR1", 2, "table.parquet: it is not a Parquet file"},
	} {
		check(t, os.WriteFile(dir+"/"+c.name, []byte(c.content), 0o644))
		call("train", file, "data="+dir+"/"+c.name, "tokenizer=gpt2", "out="+dir+"/never").must(t, c.code, c.want)
	}
	call("train", file, "data="+dir+"/*.log").must(t, 2, "empty", "hint:")
	call("train", file, "data="+dir+"/*.absent").must(t, 2, "*.absent", "hint:")
	call("train", file, "data="+dir+"/[").must(t, 2, "malformed", "hint:")
	call("train", file, "data=$NO_SUCH_NAME/*.txt").must(t, 2, "NO_SUCH_NAME", "hint:")
	check(t, os.WriteFile(dir+"/solid.txt", bytes.Repeat([]byte("x"), 1<<20), 0o644))
	call("train", file, "data="+dir+"/solid.txt").must(t, 2, "no words", "hint:")
	call("train", file, "data="+dir+"/number.jsonl", "tokenizer=bpe-300").must(t, 2, ": data: training a tokenizer: ", "not a string")
	if _, err := os.Stat(dir + "/never"); err == nil {
		t.Error("runs that could not begin left a folder")
	}
}

// TestParquet: Parquet files are trained on as JSONL is, even by a resumed run; hostile ones are errors of the configuration.
func TestParquet(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	const tables = "../../data/parquet/testdata/"
	dir, file := tiny(t, "max_steps: 1")
	rows := "data=" + tables + "texts-zstd-2.parquet"
	var asRows, asLines dataReport
	call("data", file, rows, "--json").must(t, 0).into(t, &asRows)
	call("data", file, "data="+tables+"texts.jsonl", "--json").must(t, 0).into(t, &asLines)
	if asRows.Tokens != asLines.Tokens || asRows.Documents != asLines.Documents || asRows.Entropy != asLines.Entropy || asRows.Formats.Parquet != asLines.Formats.JSONL {
		t.Errorf("%+v, want %+v", asRows, asLines)
	}
	call("train", file, rows).must(t, 0, "corpus: Parquet: 1 files, 46 documents")
	call("train", file, rows, "max_steps=2").must(t, 0, "step 2/2")
	call("train", file, "data="+tables+"texts-*.parquet", "max_steps=3").must(t, 2, "hint:")
	whole, err := os.ReadFile(tables + "texts-zstd-2.parquet")
	check(t, err)
	for name, content := range map[string][]byte{
		"cut":     whole[:len(whole)-9],
		"front":   whole[9:],
		"changed": slices.Concat(whole[:100], make([]byte, 500), whole[600:]),
		"footer":  append(bytes.Repeat([]byte("x"), 100), "\xff\xff\xff\x7fPAR1"...),
		"text":    []byte(strings.Repeat("no table\n", 50)),
	} {
		check(t, os.WriteFile(dir+"/"+name+".parquet", content, 0o644))
		call("train", file, "data="+dir+"/"+name+".parquet", "tokenizer=gpt2", "out="+dir+"/never").must(t, 2, name+".parquet: ", "hint:")
		call("data", dir+"/"+name+".parquet").must(t, 2, name+".parquet: ", "hint:")
	}
	for name, want := range map[string]string{"null": "row 1: all columns that could be read are null", "other": "only [content]", "time": "TIMESTAMP is not supported yet"} {
		call("data", tables+name+".parquet").must(t, 2, name+".parquet: ", want, "hint:")
	}
	call("train", file, "data="+tables+"chats-polars.parquet", "tokenizer=gpt2", "out="+dir+"/never").must(t, 2, "row 1: a conversation needs a chat template")
}

// TestPacked: compressed files are trained on as the same text uncompressed, alone or among others, even by a resumed run; files that are
// truncated, or too large to unpack, are errors of the configuration.
func TestPacked(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	const packed = "../../data/testdata/texts-"
	dir, file := tiny(t, "max_steps: 1")
	var asLines dataReport
	call("data", file, "data=../../data/parquet/testdata/texts.jsonl", "--json").must(t, 0).into(t, &asLines)
	for _, name := range []string{"members.json.gz", "python.jsonl.gz", "frames.ndjson.zst", "cli.json.zst"} {
		var r dataReport
		call("data", file, "data="+packed+name, "--json").must(t, 0).into(t, &r)
		if r.Tokens != asLines.Tokens || r.Entropy != asLines.Entropy || r.Formats != asLines.Formats {
			t.Errorf("%s: %+v, want %+v", name, r, asLines)
		}
	}
	both := "data=" + packed + "python.*"
	says := func(want string, args ...string) {
		if r := call(append([]string{"data"}, args...)...).must(t, 0); !strings.Contains(r.stdout, want) {
			t.Errorf("%v: no %q in %s", args, want, r.stdout)
		}
	}
	says("3 files: text: 2 files, 2 documents, 7912 bytes; JSONL: 1 files, 46 documents", packed+"python.*")
	says("of 6 conversations, only what the assistant says is learnt", "../../data/testdata/chats-python.jsonl.zst", "--tokenizer", "../../data/chat/testdata/chatml")
	call("train", file, both).must(t, 0, "corpus: text: 2 files")
	call("train", file, both, "max_steps=2").must(t, 0, "step 2/2")
	call("train", file, "data="+packed+"python.txt.*", "max_steps=3").must(t, 2, "hint:")
	call("train", file, "data=../../data/testdata/chats-python.jsonl.zst", "tokenizer=gpt2", "out="+dir+"/never").must(t, 2, "line 1: a conversation needs a chat template")
	whole, err := os.ReadFile(packed + "python.txt.zst")
	check(t, err)
	for name, content := range map[string][]byte{
		"cut.jsonl.zst": whole[:len(whole)-9], "text.txt.zst": []byte("gold and silver"), "nothing.txt.zst": whole[:1], "unnamed.txt": whole,
		"huge.txt.zst": []byte("\x28\xb5\x2f\xfd\xe0\x00\x00\x00\x00\x0f\x00\x00\x00\x01\x00\x00"),
	} {
		check(t, os.WriteFile(dir+"/"+name, content, 0o644))
		call("train", file, "data="+dir+"/"+name, "tokenizer=gpt2", "out="+dir+"/never").must(t, 2, name+": ", "zstd", "hint:")
		call("data", dir+"/"+name).must(t, 2, name+": ", "zstd", "hint:")
	}
	call("data", packed+"wide.jsonl.zst").must(t, 2, "wide.jsonl.zst: zstd: its window is larger than 128 MiB", "--long")
}

// TestReading: what is read, and how often, is reported before training; so is that the
// weights a run starts from belong to another tokenizer.
func TestReading(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t, "max_steps: 1")
	call("train", file).must(t, 0, "corpus: text: 1 files, 1 documents", "tokens of bpe-300", "held out; 1 steps read it 0.0")
	const another = "the tokenizer is not that of"
	folder := "model=" + dir + "/run/checkpoint-1"
	call("plan", file, folder, "tokenizer=bpe-290").must(t, 0, "note: "+another, "hint: set tokenizer: "+dir)
	if r := call("plan", file, folder).must(t, 0); strings.Contains(r.stderr, another) {
		t.Error(r.stderr)
	}
}

// TestNoGo: where there is no Go tree, the quickstart says how to name another
// corpus.
func TestNoGo(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	// With one, doctor and the quickstart mean the same text.
	var trained dataReport
	call("data", "../../examples/quickstart.yaml", "tokenizer=gpt2", "--json").must(t, 0).into(t, &trained)
	if text, want := call("doctor").must(t, 0).stdout, fmt.Sprintf("its text: %d files of Go, %s\n", trained.Files, size.Format(trained.Bytes)); !strings.Contains(text, want) {
		t.Errorf("doctor does not say %q:\n%s", want, text)
	}
	t.Setenv("GOROOT", t.TempDir())
	call("train", "../../examples/quickstart.yaml", "out="+t.TempDir()).must(t, 2, "GOROOT", "hint:", "data=")
	if text := call("doctor").must(t, 0).stdout; !strings.Contains(text, "data=") {
		t.Errorf("doctor does not say what to train on instead:\n%s", text)
	}
}

// TestHugeLine: 64 MB without a line break, with and without spaces.
func TestHugeLine(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir := t.TempDir()
	for name, unit := range map[string]string{"words.txt": "gold and silver ", "letters.txt": "abcdefghijklmnop"} {
		n := 64 << 20 / len(unit)
		if name == "letters.txt" {
			n /= 8 // nothing but merges: slower
		}
		check(t, os.WriteFile(dir+"/"+name, bytes.Repeat([]byte(unit), n), 0o644))
		var r dataReport
		call("data", dir+"/"+name, "--json").must(t, 0).into(t, &r)
		if r.Bytes != int64(n*len(unit)) || r.Documents != 1 || r.Tokens < int64(n) {
			t.Errorf("%s: %+v", name, r)
		}
	}
}
