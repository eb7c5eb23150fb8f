package data

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/data/bpe"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestUnfinished: a build that is interrupted again and again yields the file of one in one go, and encodes nothing twice.
// What was damaged in between, or is of other text, is not gone on with.
func TestUnfinished(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	var text strings.Builder
	for i := range 60000 {
		fmt.Fprintf(&text, `{"text": "line %d of %d, silver and gold, and nothing but words"}`+"\n", i, i*i)
	}
	dir := write(t, map[string]string{"a.jsonl": text.String(), "b.txt": strings.Repeat("iron and lead\n\n", 200000)})
	c, err := OpenCorpus(dir+"/*.jsonl", dir+"/*.txt")
	must(t, err)
	whole, err := Tokenize(t.Context(), c, bpe.GPT2(), dir+"/whole", Options{Workers: 1})
	must(t, err)
	defer whole.Close()
	want, err := os.ReadFile(whole.Path())
	must(t, err)
	name := filepath.Base(whole.Path())

	// interrupt stops after so many calls of progress.
	interrupt := func(cache string, after int) error {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		calls := 0
		tokens, err := Tokenize(ctx, c, bpe.GPT2(), cache, Options{Workers: 1, Progress: func(int64, int64) {
			if calls++; calls == after {
				cancel()
			}
		}})
		if err == nil {
			must(t, tokens.Close())
		}
		return err
	}
	check := func(cache string, same bool) {
		t.Helper()
		tokens, err := Tokenize(t.Context(), c, bpe.GPT2(), cache, Options{})
		must(t, err)
		must(t, tokens.Close())
		got, err := os.ReadFile(filepath.Join(cache, name))
		must(t, err)
		if bytes.Equal(got, want) != same {
			t.Errorf("%s: the same file: %v", cache, !same)
		}
		if list, err := os.ReadDir(cache); err != nil || len(list) != 1 {
			t.Errorf("%s has %d files, %v", cache, len(list), err)
		}
	}
	pieces := []int64{0}
	for after := range 4 {
		if err := interrupt(dir+"/often", after+2); !errors.Is(err, context.Canceled) {
			t.Fatalf("interrupted: %v", err)
		}
		u := leftOf(t, dir+"/often/"+name)
		if pieces = append(pieces, u.Pieces); u.Pieces < pieces[len(pieces)-2] || u.Count == 0 {
			t.Errorf("pieces %v, %d tokens", pieces, u.Count)
		}
	}
	check(dir+"/often", true)

	for what, damage := range map[string]func(file []byte, u *unfinished){
		"token":  func(file []byte, u *unfinished) { file[headerSize+100] ^= 1 },
		"header": func(file []byte, u *unfinished) { file[0] = 0 },
		"key":    func(file []byte, u *unfinished) { u.Key = strings.Repeat("0", 64) },
		"count":  func(file []byte, u *unfinished) { u.Count++ },
		"text":   func(file []byte, u *unfinished) { u.Text++ },
		"pieces": func(file []byte, u *unfinished) { u.Pieces = 1000 },
		"taken": func(file []byte, u *unfinished) { // not damage: these tokens are taken over as they are
			file[headerSize+100] ^= 1
			u.Tokens = crc32.Checksum(file[headerSize:headerSize+u.Count*int64(u.Width)], castagnoli)
		},
	} {
		cache := dir + "/" + what
		if err := interrupt(cache, 3); !errors.Is(err, context.Canceled) {
			t.Fatalf("interrupted: %v", err)
		}
		part := partOf(t, filepath.Join(cache, name))
		file, err := os.ReadFile(part)
		must(t, err)
		u := leftOf(t, filepath.Join(cache, name))
		if before := *u; true {
			if damage(file, u); before != *u {
				page, err := json.Marshal(u)
				must(t, err)
				copy(file, append(page, make([]byte, headerSize-len(page))...))
			}
		}
		must(t, os.WriteFile(part, file, 0o666))
		check(cache, what != "taken")
	}
}

// TestKilledBuild: what a process leaves that is killed between two pieces is gone on with, and not taken from one that is still at work.
func TestKilledBuild(t *testing.T) {
	dir := write(t, map[string]string{"b.txt": strings.Repeat("iron and lead\n\n", 400000)})
	c, err := OpenCorpus(dir + "/b.txt")
	must(t, err)
	var name string
	pieces := 0
	tokens, err := Tokenize(t.Context(), c, bpe.GPT2(), dir+"/whole", Options{Workers: 1, Progress: func(int64, int64) {
		if pieces++; pieces != 4 {
			return
		}
		list, err := os.ReadDir(dir + "/whole")
		must(t, err)
		name, _, _ = strings.Cut(list[0].Name(), ".bin")
		if name += ".bin"; takeOver(dir+"/whole", name) != nil {
			t.Error("taken from a build at work")
		}
		file, err := os.ReadFile(dir + "/whole/" + list[0].Name())
		must(t, err)
		must(t, os.Mkdir(dir+"/killed", 0o777))
		must(t, os.WriteFile(dir+"/killed/"+list[0].Name(), append(file, "torn"...), 0o666))
	}})
	must(t, err)
	must(t, tokens.Close())
	want, err := os.ReadFile(dir + "/whole/" + name)
	must(t, err)
	if u := leftOf(t, dir+"/killed/"+name); u.Pieces != 4 {
		t.Errorf("killed after %d pieces", u.Pieces)
	}
	tokens, err = Tokenize(t.Context(), c, bpe.GPT2(), dir+"/killed", Options{Workers: 1})
	must(t, err)
	must(t, tokens.Close())
	if got, err := os.ReadFile(dir + "/killed/" + name); err != nil || !bytes.Equal(got, want) {
		t.Errorf("another file: %v", err)
	}
	if list, err := os.ReadDir(dir + "/killed"); err != nil || len(list) != 1 {
		t.Errorf("%d files, %v", len(list), err)
	}
}

// partOf names what a build of a token file left.
func partOf(t *testing.T, path string) string {
	t.Helper()
	list, err := filepath.Glob(path + ".*" + temporary)
	if err != nil || len(list) != 1 {
		t.Fatalf("%s: %v is left, %v", path, list, err)
	}
	return list[0]
}

// leftOf reads what an interrupted build of a token file left.
func leftOf(t *testing.T, path string) *unfinished {
	t.Helper()
	file, err := os.ReadFile(partOf(t, path))
	must(t, err)
	u := &unfinished{}
	must(t, json.Unmarshal(bytes.TrimRight(file[:headerSize], "\x00"), u))
	return u
}
