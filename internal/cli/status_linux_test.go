package cli

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/athanor-llm/athanor/internal/pty"
)

// TestNarrowTerminal: a line that is rewritten never wraps, whatever the width, and a
// terminal that cannot rewrite lines gets each thing once.
func TestNarrowTerminal(t *testing.T) {
	screen, keys := pty.Open(t, 40)
	t.Setenv("TERM", "xterm")
	s := NewStatus(keys)
	s.Rewrite("step 7" + strings.Repeat(" é", 100))
	s.Say("reading " + strings.Repeat("x", 100))
	s.Progress(strings.Repeat("y", 100), 1, 2)
	s.Done()
	lines := strings.Split(pty.Shown(t, screen, keys), "\r\x1b[K")
	if len(lines) != 5 || !strings.HasPrefix(lines[1], "step 7 é") {
		t.Errorf("%q", lines)
	}
	for _, l := range lines {
		if len([]rune(l)) >= 40 {
			t.Errorf("%d columns of 40: %q", len([]rune(l)), l)
		}
	}
	if asTerminal(keys) == nil || asTerminal(&strings.Builder{}) != nil {
		t.Error("a terminal is not told from what is none")
	}
	t.Setenv("TERM", "dumb")
	s = NewStatus(keys)
	s.Say("plain")
	s.Say("plain")
	s.Done()
	if text := pty.Shown(t, screen, keys); text != "plain\r\n" {
		t.Errorf("a dumb terminal gets %q", text)
	}
}

// TestParts: for work in parts the line says which part it is on and when all will be done,
// judging by how long the others took.
func TestParts(t *testing.T) {
	screen, keys := pty.Open(t, 80)
	t.Setenv("TERM", "xterm")
	s := NewStatus(keys)
	pass := func(d time.Duration) { s.began, s.latest = s.began.Add(-d), s.latest.Add(-d) }
	s.Parts(4)
	s.Say("planning")
	pass(10 * time.Minute)
	s.Next()
	s.Say("planning")
	pass(4 * time.Minute)
	s.Say("timing")
	pass(9 * time.Minute)
	s.Say("running")
	for range 3 {
		s.Next()
	}
	s.Say("the end")
	want := []string{"", "1 of 4: planning ...", "", "2 of 4, ETA 30m0s: planning ...", "2 of 4, ETA 26m0s: timing ...",
		"2 of 4, ETA 20m0s: running ...", "", "the end ..."}
	if got := strings.Split(pty.Shown(t, screen, keys), "\r\x1b[K"); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
