package generation

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/athanor-llm/athanor/folder"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/samples"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// continueFile continues a file of prompts.
func continueFile(t testing.TB, dir, prompts, out string, sequences int) (*Report, error) {
	t.Helper()
	f, err := folder.Open(dir)
	check(t, err)
	defer f.Close()
	file := &File{Prompts: prompts, Out: out, Options: Options{Sequences: sequences, Device: "cpu", DType: graph.F32}, Defaults: Request{Tokens: 20, Sampling: Sampling{Temperature: 0.8, Seed: 1}}}
	return file.Run(t.Context(), f)
}

// writePrompts writes a file of n prompts and conversations.
func writePrompts(t *testing.T, n int) string {
	t.Helper()
	r := testkit.Rand(t)
	var text strings.Builder
	for i := range n {
		fmt.Fprintf(&text, `{"id": "line %d", "max_tokens": %d, "seed": %d, `, i, 1+r.IntN(40), r.IntN(100))
		if content := strings.Repeat("gold and silver ", r.IntN(6)); i%3 == 0 {
			fmt.Fprintf(&text, `"messages": [{"role": "user", "content": "%s?"}], "temperature": 0, "stop": ["the", "q"]}`, content)
		} else {
			fmt.Fprintf(&text, `"prompt": "Once %s", "top_p": 0.9, "repetition_penalty": 1.1}`, content)
		}
		text.WriteString("\n\n"[:1+i%2])
	}
	path := filepath.Join(t.TempDir(), "prompts.jsonl")
	check(t, os.WriteFile(path, []byte(text.String()), 0o644))
	return path
}

// TestFile: texts are in the order of the prompts and do not depend on how many are generated at once. Cut off anywhere, the output becomes the
// same again.
func TestFile(t *testing.T) {
	const lines = 30
	dir, prompts := samples.ModelFolder(t), writePrompts(t, lines)
	out := prompts + ".out"
	r, err := continueFile(t, dir, prompts, out, 5)
	check(t, err)
	if r.Lines != lines || r.Kept != 0 || r.Sequences != 5 {
		t.Errorf("%+v", r)
	}
	want, err := os.ReadFile(out)
	check(t, err)
	for i, text := range bytes.Split(bytes.TrimSpace(want), []byte("\n")) {
		var w written
		check(t, json.Unmarshal(text, &w))
		if w.Index != i || string(w.ID) != fmt.Sprintf(`"line %d"`, i) || w.Reason == "" {
			t.Errorf("line %d is %s", i, text)
		}
	}
	random := testkit.Rand(t)
	for range testkit.Count(3, 6, 30) {
		n := random.IntN(len(want) + 1)
		check(t, os.WriteFile(out, want[:n], 0o644))
		r, err := continueFile(t, dir, prompts, out, 1+random.IntN(8))
		check(t, err)
		if kept := bytes.Count(want[:n], []byte("\n")); r.Kept != kept {
			t.Errorf("%d lines were kept of %d", r.Kept, kept)
		}
		if got, err := os.ReadFile(out); err != nil || !bytes.Equal(got, want) {
			t.Errorf("cut after %d bytes: %v, another output", n, err)
		}
	}
	text, err := os.ReadFile(prompts)
	check(t, err)
	check(t, os.WriteFile(prompts, bytes.Replace(text, []byte(`"seed"`), []byte(`"top_k": 3, "seed"`), 1), 0o644))
	if _, err := continueFile(t, dir, prompts, out, 2); !errors.Is(err, folder.ErrMisuse) || !strings.Contains(fmt.Sprint(err), "line 1 was not made from line 1") {
		t.Errorf("with another prompt: %v", err)
	}
	if got, err := os.ReadFile(out); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the output of other prompts was changed: %v", err)
	}
}

// TestFileBlocks: where the weights do not fit the device, texts are generated in blocks, and are the same.
func TestFileBlocks(t *testing.T) {
	dir, prompts := samples.ModelFolder(t), writePrompts(t, 30)
	_, err := continueFile(t, dir, prompts, prompts+".all", 5)
	check(t, err)
	want, err := os.ReadFile(prompts + ".all")
	check(t, err)
	f, err := folder.Open(dir)
	check(t, err)
	defer f.Close()
	compressed := *f
	check(t, compressed.CompressCaches(8))
	file := &File{Prompts: prompts, Out: prompts + ".all", Options: Options{Sequences: 5, Device: "cpu", DType: graph.F32}, Defaults: Request{Tokens: 20, Sampling: Sampling{Temperature: 0.8, Seed: 1}}}
	if _, err := file.Run(t.Context(), &compressed); !errors.Is(err, folder.ErrMisuse) {
		t.Errorf("texts from compressed caches were to be added to others: %v", err)
	}
	file = &File{Prompts: prompts, Out: prompts + ".out", Options: Options{Sequences: 12, Device: "cpu", DType: graph.F32, Limit: 150_000}, Defaults: Request{Tokens: 20, Sampling: Sampling{Temperature: 0.8, Seed: 1}}}
	r, err := file.Run(t.Context(), f)
	check(t, err)
	got, err := os.ReadFile(prompts + ".out")
	check(t, err)
	if !bytes.Equal(got, want) {
		t.Error("in blocks, other texts")
	}
	if r.Block == nil || r.Streamed == 0 || r.Device > 150_000 || r.Sequences != r.Block.Batches*r.Block.Each || r.Block.Steps.Times == 0 || r.Block.PredictedStep <= 0 {
		t.Errorf("%+v, %+v", r, r.Block)
	}
	told, err := file.Explain(t.Context(), f)
	check(t, err)
	if b := told.Block; b == nil || told.Device > 150_000 || told.Streamed == 0 || told.Sequences != b.Batches*b.Each || b.PredictedRate <= 0 || b.Steps.Times != 0 {
		t.Errorf("it was to be %+v, %+v", told, told.Block)
	}
}

// TestBadLines: what is wrong with a line is said with its number, before anything is written.
func TestBadLines(t *testing.T) {
	dir := samples.ModelFolder(t)
	for _, c := range []struct{ text, want string }{
		{`{"prompt": "a"}` + "\n\n" + `{"prompt": `, "line 3: "},
		{`{"prompt": "a", "tempreture": 1}`, `unknown field "tempreture"`},
		{`{"prompt": "a", "temperature": -1}`, "line 1: temperature is -1"},
		{`{"prompt": "a", "prompt": "b"}`, "twice"},
		{`{"prompt": "a"} {"prompt": "b"}`, "more after the object"},
		{`{"max_tokens": 3}`, "either a prompt or messages"},
		{`{"prompt": "a", "messages": []}`, "either a prompt or messages"},
		{`{"messages": [{"role": "king", "content": "a"}]}`, `"king"`},
		{`{"messages": []}`, "no messages"},
		{`{"prompt": "a", "max_tokens": 0}`, "max_tokens is 0"},
		{`{"prompt": "a", "stop": 3}`, "list of texts"},
		{fmt.Sprintf(`{"prompt": "%s"}`, strings.Repeat("gold ", 300)), "at most 256"},
		{"\n", "no lines"},
	} {
		path := filepath.Join(t.TempDir(), "prompts.jsonl")
		check(t, os.WriteFile(path, []byte(c.text), 0o644))
		_, err := continueFile(t, dir, path, path+".out", 2)
		if !errors.Is(err, folder.ErrMisuse) || !strings.Contains(fmt.Sprint(err), c.want) {
			t.Errorf("%.80s: %v, want %q", c.text, err, c.want)
		}
		if _, err := os.Stat(path + ".out"); err == nil {
			t.Errorf("%.80s: there is an output", c.text)
		}
	}
}

// killed are the variables by which TestKill starts itself.
const killed = "ATHANOR_TEST_CONTINUE"

// TestKill: killed at random moments and started again, the output ends complete, no line twice.
func TestKill(t *testing.T) {
	if args := os.Getenv(killed); args != "" {
		list := strings.Split(args, "|")
		if _, err := continueFile(t, list[0], list[1], list[2], 4); err != nil {
			t.Fatal(err)
		}
		return
	}
	testkit.Needs(t, testkit.Usual)
	dir, prompts := samples.ModelFolder(t), writePrompts(t, testkit.Count(0, 200, 2000))
	_, err := continueFile(t, dir, prompts, prompts+".want", 3)
	check(t, err)
	want, err := os.ReadFile(prompts + ".want")
	check(t, err)
	r, out, kills := testkit.Rand(t), prompts+".out", 0
	for range 200 {
		c := exec.Command(os.Args[0], "-test.run=^TestKill$")
		c.Env = append(os.Environ(), killed+"="+strings.Join([]string{dir, prompts, out}, "|"))
		check(t, c.Start())
		timer := time.AfterFunc(time.Duration(r.IntN(40+20*kills))*time.Millisecond, func() { c.Process.Kill() }) // later and later: a busy machine gets there, too
		err := c.Wait()
		timer.Stop()
		if err == nil {
			break
		}
		kills++
	}
	got, err := os.ReadFile(out)
	check(t, err)
	if !bytes.Equal(got, want) {
		t.Errorf("after %d kills the output is another", kills)
	}
	if least := testkit.Count(0, 3, 30); kills < least {
		t.Errorf("only %d kills", kills)
	}
	t.Logf("%d kills", kills)
}
