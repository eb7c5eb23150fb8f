package data

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"

	"github.com/athanor-llm/athanor/data/bpe"
)

// The line scanner accepts what encoding/json accepts and finds the same text,
// except that it keeps bytes that are not UTF-8.
func FuzzLine(f *testing.F) {
	for _, line := range []string{
		`{"text":"x"}`, `{"a":[{"b":"}"}],"text":"\u00e9\ud83d\ude00\ud800\n"}`, `{"text":"a","text":"b"}`, `{}`,
		`{"text":1}`, " {\t\"text\" : \"x\" }\r", `{"text":"\\"}`, `{"te\u0078t":"y"}`, `{"a":"\"","text":""}`, `{"a":1 ,"text":"z"}`,
		"{\"text\":\"\xff\"}", `{"a":{"text":"inner"},"b":-1.5e3,"c":null,"d":true}`, `{"a":"\q","text":"x"}`, `{"a":[[[[`,
		`{"prompt":"a","completion":"b"}`, `{"completion":"b","prompt":"a","text":"c"}`, `{"prompt":["a"],"completion":"b"}`, `{"prompt":1,"text":""}`,
	} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		doc, err := appendText([]byte("before"), line, usualField, wanted(len(line)%2))
		if doc.pair != nil || doc.turns != nil {
			return // FuzzPair
		}
		got := doc.dst
		if !bytes.HasPrefix(got, []byte("before")) {
			t.Fatalf("what was there before is %q", got)
		}
		got = got[len("before"):]
		if errors.Is(err, ErrNotSupported) || err != nil && strings.Contains(err.Error(), "is given twice") {
			return // TestFields
		}
		var object map[string]any
		wantErr := json.Unmarshal(line, &object)
		text, isString := object["text"].(string)
		prompt, hasPrompt := object["prompt"].(string)
		completion, hasCompletion := object["completion"].(string)
		if object["text"] != nil {
			prompt = ""
		} else if isString = hasPrompt && hasCompletion; isString {
			text = prompt + completion
		}
		want := wantErr == nil && isString
		if want != (err == nil) {
			t.Fatalf("%q: error %v, encoding/json says %v, %v", line, err, wantErr, object)
		}
		if err == nil && (string(replaceInvalid(got)) != text || string(replaceInvalid(got[:doc.given])) != prompt) {
			t.Fatalf("%q: text %q with a prompt of %d bytes, want %q with %q", line, got, doc.given, text, prompt)
		}
	})
}

// replaceInvalid replaces every byte that is not UTF-8 by U+FFFD, like encoding/json.
func replaceInvalid(text []byte) (out []byte) {
	for len(text) > 0 {
		r, width := utf8.DecodeRune(text)
		out = utf8.AppendRune(out, r)
		text = text[width:]
	}
	return out
}

// Lines are those of bytes.Split, however the input arrives.
func FuzzLines(f *testing.F) {
	f.Add([]byte("a\nb\n\nc"), 3)
	f.Add([]byte("\n"), 1)
	f.Add(bytes.Repeat([]byte("long"), 100), 7)
	f.Fuzz(func(t *testing.T, text []byte, buffer int) {
		want := bytes.Split(text, []byte("\n"))
		if len(want[len(want)-1]) == 0 {
			want = want[:len(want)-1]
		}
		for _, from := range []io.Reader{bytes.NewReader(text), iotest.OneByteReader(bytes.NewReader(text)), iotest.DataErrReader(bytes.NewReader(text))} {
			r := newLineReader(from, maxLine, nil)
			r.buffer = make([]byte, 1+uint(buffer)%64)
			for i := 0; ; i++ {
				line, err := r.next()
				if err == io.EOF && i == len(want) {
					break
				}
				if err != nil || i >= len(want) || !bytes.Equal(line, want[i]) {
					t.Fatalf("%q: line %d is %q, %v", text, i+1, line, err)
				}
			}
		}
	})
}

// No content of a token file crashes the program, and a file that is accepted can be
// read to its end. The fuzzer cannot guess checksums, so the test fixes them.
func FuzzTokens(f *testing.F) {
	dir := f.TempDir()
	must(f, os.WriteFile(filepath.Join(dir, "a.txt"), []byte("text"), 0o666))
	c, err := OpenCorpus(dir + "/a.txt")
	must(f, err)
	tokens, err := Tokenize(context.Background(), c, bpe.GPT2(), dir, Options{Workers: 1})
	must(f, err)
	good, err := os.ReadFile(tokens.Path())
	must(f, err)
	f.Add(good[:fieldsSize+64], good[headerSize:])
	f.Add([]byte(magic), []byte(nil))
	f.Fuzz(func(t *testing.T, fields, body []byte) {
		file := make([]byte, headerSize)
		copy(file[:headerSize-4], fields)
		binary.LittleEndian.PutUint32(file[56:], crc32.Checksum(body, castagnoli))
		binary.LittleEndian.PutUint32(file[headerSize-4:], crc32.Checksum(file[:headerSize-4], castagnoli))
		path := filepath.Join(t.TempDir(), "tokens.bin")
		must(t, os.WriteFile(path, append(file, body...), 0o666))
		tokens, err := OpenTokens(path)
		if err != nil {
			return
		}
		all := make([]int32, tokens.Len())
		tokens.Copy(all, 0)
		inside := true
		for i, id := range all {
			inside = inside && int64(id) < int64(tokens.vocabulary) && id >= 0
			if tokens.At(int64(i)) != id {
				t.Fatalf("token %d is %d and %d", i, id, tokens.At(int64(i)))
			}
		}
		if inside {
			if h := Entropy(Stretch{tokens, tokens.All()}); !(h >= 0) {
				t.Fatalf("entropy %v", h)
			}
		}
		must(t, tokens.Close())
	})
}
