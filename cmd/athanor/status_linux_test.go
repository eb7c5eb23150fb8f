package main

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/run"
)

// terminal returns a terminal with the given columns: what it shows, and its keys.
func terminal(t *testing.T, columns uint16) (screen, keys *os.File) {
	t.Helper()
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { screen.Close() })
	fd := int(screen.Fd())
	check(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	check(t, err)
	keys, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	check(t, err)
	t.Cleanup(func() { keys.Close() })
	check(t, unix.IoctlSetWinsize(int(keys.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: columns}))
	return screen, keys
}

// shown is what was written to a terminal since the last look.
func shown(t *testing.T, screen, keys *os.File) string {
	t.Helper()
	_, err := keys.WriteString("\x00")
	check(t, err)
	text, err := bufio.NewReader(screen).ReadString(0)
	check(t, err)
	return strings.TrimSuffix(text, "\x00")
}

// TestNarrowTerminal: a line that is rewritten never wraps, whatever the width, and a
// terminal that cannot rewrite lines gets each thing once.
func TestNarrowTerminal(t *testing.T) {
	screen, keys := terminal(t, 40)
	t.Setenv("TERM", "xterm")
	s := newStatus(keys)
	s.rewrite("step 7 " + strings.Repeat("é", 100))
	s.say("reading " + strings.Repeat("x", 100))
	s.progress(strings.Repeat("y", 100), 1, 2)
	s.done()
	lines := strings.Split(shown(t, screen, keys), "\r\x1b[K")
	if len(lines) != 5 || !strings.HasPrefix(lines[1], "step 7 é") {
		t.Errorf("%q", lines)
	}
	for _, l := range lines {
		if len([]rune(l)) >= 40 {
			t.Errorf("%d columns of 40: %q", len([]rune(l)), l)
		}
	}
	c := config.Default()
	c.MaxSteps = 1600
	u := &training{t: &run.Trainer{Setup: &run.Setup{Config: &c}}, line: newStatus(keys), began: time.Now()}
	u.Step(run.Metrics{Step: 827, Loss: 4.1953})
	if text := shown(t, screen, keys); !strings.Contains(text, "step 827/1600  51%  ETA ") {
		t.Errorf("a run's step and end are not in 40 columns: %q", text)
	}
	if asTerminal(keys) == nil || asTerminal(&strings.Builder{}) != nil {
		t.Error("a terminal is not told from what is none")
	}
	t.Setenv("TERM", "dumb")
	s = newStatus(keys)
	s.say("plain")
	s.say("plain")
	s.done()
	if text := shown(t, screen, keys); text != "plain\r\n" {
		t.Errorf("a dumb terminal gets %q", text)
	}
}

// TestParts: for work in parts the line says which part it is on and when all will be done,
// judging by how long the others took.
func TestParts(t *testing.T) {
	screen, keys := terminal(t, 80)
	t.Setenv("TERM", "xterm")
	s := newStatus(keys)
	pass := func(d time.Duration) { s.began, s.latest = s.began.Add(-d), s.latest.Add(-d) }
	s.parts(4)
	s.say("planning")
	pass(10 * time.Minute)
	s.next()
	s.say("planning")
	pass(4 * time.Minute)
	s.say("timing")
	pass(9 * time.Minute)
	s.say("running")
	for range 3 {
		s.next()
	}
	s.say("the end")
	want := []string{"", "1 of 4: planning ...", "", "2 of 4, ETA 30m0s: planning ...", "2 of 4, ETA 26m0s: timing ...",
		"2 of 4, ETA 20m0s: running ...", "", "the end ..."}
	if got := strings.Split(shown(t, screen, keys), "\r\x1b[K"); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
