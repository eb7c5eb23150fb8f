package bpe

import (
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestSlashAfterNewline: a slash after a newline belongs to what is before the newline, so text is not cut there.
func TestSlashAfterNewline(t *testing.T) {
	if text := []byte("!\n//x"); PatternO200k.next(text) != 4 || Boundary(text, 2) {
		t.Errorf("%q: a pre-token of %d bytes, may be cut at 2: %v", text, PatternO200k.next(text), Boundary(text, 2))
	}
}

// TestO200kIsTheExpression: Go's engine, which prefers what the published one prefers but knows no
// lookahead, finds the same pre-tokens with all alternatives before those for white space alone.
func TestO200kIsTheExpression(t *testing.T) {
	head, _, ok := strings.Cut(patterns[PatternO200k].regex, `|\s+(?!\S)`)
	if !ok {
		t.Fatal("the expression has no lookahead")
	}
	// \s of the published engine is all white space, Go's only ASCII white space.
	head = strings.ReplaceAll(head, `[^\s\p{L}\p{N}]`, `[^\s\v\x{85}\p{Z}\p{L}\p{N}]`)
	head = strings.ReplaceAll(head, `\s*[\r\n]+`, `[\s\v\x{85}\p{Z}]*[\r\n]+`)
	want := regexp.MustCompile(`^(?:` + head + `)`)
	characters := rapid.SampledFrom([]string{"a", "b", "s", "t", "S", "re", "LL", "A", "B", "Z", "'", "'s", "'VE", "1", "23", " ", "  ", "\t", "\n", "\r", "/", "//", ".", "-", "é", "É",
		"ſ", "ǅ", "ʰ", "日", "本", "\u0301", "\u0903", "\u20dd", "\u00a0", "\u2003", "\u0085", "½", "²", "😀", "\u200d", "ß", "Ω", "ω", "ª"})
	rapid.Check(t, func(t *rapid.T) {
		text := []byte(strings.Join(rapid.SliceOfN(characters, 1, 20).Draw(t, "text"), ""))
		for len(text) > 0 {
			end := len(want.Find(text))
			if end == 0 {
				end = white(text)
			}
			if got := PatternO200k.next(text); got != end {
				t.Fatalf("%q: %q, want %q", text, text[:got], text[:end])
			}
			text = text[end:]
		}
	})
}
