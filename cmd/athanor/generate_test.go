package main

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/internal/cli"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestGenerate: a text ends where the model's positions do, with a note; a
// prompt that is longer is refused; the same seed gives the same text.
func TestGenerate(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	folder, _ := modelFolder(t)
	args := []string{"generate", folder, "--prompt", "gold", "--max-tokens", "5000", "--seed", "3"}
	r := call(args...).must(t, 0)
	if !strings.HasPrefix(r.stdout, "gold") || !strings.Contains(r.stderr, "tokens at") || !strings.Contains(r.stderr, "context is full") {
		t.Errorf("%q\n%s", r.stdout, r.stderr)
	}
	if again := call(args...).must(t, 0); again.stdout != r.stdout {
		t.Errorf("%q, then %q", r.stdout, again.stdout)
	}
	one := call("generate", folder, "--prompt", "gold", "--max-tokens", "1").must(t, 0)
	if !strings.Contains(one.stderr, "prompt of") || strings.Contains(one.stderr, "full") {
		t.Errorf("one token: %s", one.stderr)
	}
	call("generate", folder, "--prompt", strings.Repeat("gold ", 2000)).must(t, 2, "hint:")
}

// counting counts what is written apart.
type counting struct {
	strings.Builder
	writes int
}

func (c *counting) Write(p []byte) (int, error) {
	c.writes++
	return c.Builder.Write(p)
}

// TestGenerateGrows: a terminal shows a text as it grows; a pipe gets the same text all at
// once.
func TestGenerateGrows(t *testing.T) {
	folder, _ := modelFolder(t)
	v := generateCmd{Model: folder, Prompt: "gold", MaxTokens: 20, sampling: sampling{Seed: 3, computing: computing{Device: "cpu"}}}
	var seen, piped counting
	check(t, v.Run(&cli.Context{Stdout: &seen, Stderr: io.Discard, Terminal: true}))
	check(t, v.Run(&cli.Context{Stdout: &piped, Stderr: io.Discard}))
	if seen.String() != piped.String() || seen.writes < 10 || piped.writes != 1 {
		t.Errorf("%q in %d writes, %q in %d", seen.String(), seen.writes, piped.String(), piped.writes)
	}
}

// TestLongerThanItsContext: rotary positions have no end, so a model may be trained on longer
// sequences than it states, and then states the new length, so that readers of its checkpoints accept it.
func TestLongerThanItsContext(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t, "max_steps: 2", "model: {type: llama, layers: 1, width: 16, heads: 2, max_positions: 8}")
	call("train", file).must(t, 0, "raised from 8 to 32")
	at := dir + "/run/checkpoint-2"
	var r struct{ Tokens int }
	call("generate", at, "--prompt", "gold", "--max-tokens", "20", "--json").must(t, 0).into(t, &r)
	if r.Tokens != 20 {
		t.Errorf("%d tokens of 20", r.Tokens)
	}
	call("eval", at, dir+"/corpus.txt", "--sequence", "32").must(t, 0)
	call("train", file, "max_steps=3").must(t, 0, "resuming") // it is the same model
	call("train", file, "model.type=gpt2").must(t, 2, "sequence_length 32 is longer than the model's 8 learned positions")
}

// TestDeviceMemory: in the least memory that the error names, eval and generate give what they give without a limit; with a byte
// less, the exit code is 3, and with --json there is an object that says so.
func TestDeviceMemory(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	folder, _ := modelFolder(t)
	corpus := filepath.Join(folder, "../../corpus.txt")
	for _, args := range [][]string{
		{"generate", folder, "--prompt", "gold", "--max-tokens", "20"},
		{"eval", folder, corpus, "--sequence", "16"},
	} {
		type result struct {
			Text     string
			Loss     float64
			Device   int64 `json:"device_bytes"`
			Streamed int64 `json:"streamed_bytes"`
			Fits     *bool
			Largest  []struct{ Bytes int64 }
			Hint     string
		}
		with := func(code int, memory string) (r result, stderr string) {
			done := call(append(args, "--json", "--device-memory", memory)...).must(t, code)
			done.into(t, &r)
			return r, done.stderr
		}
		var all result
		call(append(args, "--json")...).must(t, 0).into(t, &all)
		if all.Device == 0 || all.Streamed != 0 {
			t.Errorf("%s: %+v", args[0], all)
		}
		short, why := with(3, "1KiB")
		var need int64
		if _, err := fmt.Sscanf(why[strings.Index(why, "needs ")+len("needs "):], "%d", &need); err != nil {
			t.Fatalf("%s: %v", why, err)
		}
		if short.Fits == nil || *short.Fits || len(short.Largest) == 0 || !strings.Contains(short.Hint, "bf16") {
			t.Errorf("%s: %+v", args[0], short)
		}
		least, _ := with(0, fmt.Sprint(need))
		if least.Text != all.Text || least.Loss != all.Loss || least.Device > need || least.Streamed == 0 {
			t.Errorf("%s: %+v in %d bytes, %+v without limit", args[0], least, need, all)
		}
		with(3, fmt.Sprint(need-1))
		for _, bad := range []string{"0", "much", "-1", "1e300"} {
			call(append(args, "--device-memory="+bad)...).must(t, 2, "hint:")
		}
		if r, _ := with(0, "900TB"); r.Device != all.Device || r.Streamed != 0 {
			t.Errorf("%s: %+v with more than there is, %+v without limit", args[0], r, all)
		}
	}
}
