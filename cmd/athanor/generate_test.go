package main

import (
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
	call("generate", folder, "--prompt", strings.Repeat("gold ", 2000)).must(t, 1, "hint:")
}
