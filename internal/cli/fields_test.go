package cli

import (
	"strings"
	"testing"
)

// TestFields: a line has as many fields as fit, those of low rank first, in their order; texts are cut between words.
func TestFields(t *testing.T) {
	list := []Field{{"step 7", 0}, {"loss 4.1", 1}, {"norm 2", 3}, {"90 tokens/s", 2}}
	for width, want := range map[int]string{0: "step 7  loss 4.1  norm 2  90 tokens/s", 40: "step 7  loss 4.1  norm 2  90 tokens/s", 36: "step 7  loss 4.1  90 tokens/s",
		20: "step 7  loss 4.1", 3: "step 7"} {
		if got := fitted(list, width); got != want {
			t.Errorf("in %d columns: %q, want %q", width, got, want)
		}
	}
	for text, want := range map[string]string{"one two three": "one two", "one two": "one two", "one twoo five": "one twoo", "overlong": "overlong", "muchtoolong": "muchtool"} {
		if got := cut(text, 8); got != want {
			t.Errorf("%q is cut to %q", text, got)
		}
	}
	text := strings.Repeat("a few words ", 20) + strings.Repeat("x", 50)
	lines := wrapped(text, 30)
	for i, l := range lines {
		if len(l) > 30 && i < len(lines)-1 {
			t.Errorf("%d columns: %q", len(l), l)
		}
	}
	if got := strings.Join(strings.Fields(strings.Join(lines, " ")), " "); got != text {
		t.Errorf("wrapped, it says %q", got)
	}
}

// TestColumns: where lines go elsewhere than to a terminal, they are as wide as COLUMNS says, if it says a width.
func TestColumns(t *testing.T) {
	for said, want := range map[string]int{"60": 60, "": 0, "wide": 0, "-3": 0} {
		t.Setenv("COLUMNS", said)
		if got := widthOf(new(strings.Builder)); got != want {
			t.Errorf("COLUMNS=%s: %d, want %d", said, got, want)
		}
	}
	t.Setenv("COLUMNS", "20")
	var out strings.Builder
	(&Context{Stdout: &out, Columns: widthOf(&out)}).Text("words that are cut between words\n")
	for _, l := range strings.Split(out.String(), "\n") {
		if len(l) > 20 {
			t.Errorf("%d columns: %q", len(l), l)
		}
	}
}
