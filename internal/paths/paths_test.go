package paths

import (
	"strings"
	"testing"
)

// TestExpand: variables and the home stand for what they are, anything else for itself.
func TestExpand(t *testing.T) {
	t.Setenv("HOME", "/home/me")
	t.Setenv("SCRATCH", "/scratch/7")
	t.Setenv("EMPTY", "")
	for path, want := range map[string]string{
		"": "", "gpt2": "gpt2", "bpe-8192": "bpe-8192", "auto": "auto", "a/~/b": "a/~/b", "~you/x": "~you/x", "x~": "x~", "cost $": "cost $",
		"~": "/home/me", "~/runs": "/home/me/runs", "$SCRATCH/runs": "/scratch/7/runs", "a${SCRATCH}b$EMPTY": "a/scratch/7b",
	} {
		if got, err := Expand(path); got != want || err != nil {
			t.Errorf("%q: %q, %v, want %q", path, got, err, want)
		}
	}
	if _, err := Expand("a/$ABSENT/${ALSO}"); err == nil || !strings.Contains(err.Error(), "ABSENT is not set; hint:") {
		t.Errorf("a variable that is not set: %v", err)
	}
	t.Setenv("HOME", "")
	if got, err := Expand("~/x"); err == nil || !strings.Contains(err.Error(), "hint:") {
		t.Errorf("without a home: %q, %v", got, err)
	}
}
