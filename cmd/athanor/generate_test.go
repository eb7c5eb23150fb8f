package main

import (
	"io"
	"strings"
	"testing"
)

// TestGenerate: a text ends where the model's positions do, with a note; a
// prompt that is longer is refused; the same seed gives the same text.
func TestGenerate(t *testing.T) {
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

// TestGenerateGrows: on a terminal a text is seen as it grows; a pipe gets the same
// text at once.
func TestGenerateGrows(t *testing.T) {
	folder, _ := modelFolder(t)
	v := generateCmd{Model: folder, Prompt: "gold", MaxTokens: 20, Seed: 3, Device: "cpu"}
	var seen, piped counting
	check(t, v.Run(&context{stdout: &seen, stderr: io.Discard, terminal: true}))
	check(t, v.Run(&context{stdout: &piped, stderr: io.Discard}))
	if seen.String() != piped.String() || seen.writes < 10 || piped.writes != 1 {
		t.Errorf("%q in %d writes, %q in %d", seen.String(), seen.writes, piped.String(), piped.writes)
	}
}
