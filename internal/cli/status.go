package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
)

// Status is a progress line, rewritten in place on a terminal. Elsewhere it prints each
// activity once, the first time with its object ("activity: object").
type Status struct {
	w    io.Writer
	tty  *os.File // w, if it is a terminal that can rewrite a line
	last string
	said map[string]bool // activities, where w is no terminal

	began, latest time.Time // start of long work, and end of its latest finished part
	ended, all    int
}

// NewStatus returns a progress line on a writer.
func NewStatus(w io.Writer) *Status {
	s := &Status{w: w, said: map[string]bool{}}
	if os.Getenv("TERM") != "dumb" {
		s.tty = asTerminal(w)
	}
	return s
}

// asTerminal returns the terminal that a writer writes to, or nil.
func asTerminal(w io.Writer) *os.File {
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return f
	}
	return nil
}

// Rewrites reports whether the line is on a terminal that can rewrite it.
func (s *Status) Rewrites() bool { return s.tty != nil }

// Rewrite replaces the line, on a terminal that can do so. It truncates the text to the terminal's width: of a
// wrapped line, only the last row could be rewritten.
func (s *Status) Rewrite(text string) {
	s.last = text
	shown := []rune(text)
	if columns, _, err := term.GetSize(int(s.tty.Fd())); err == nil && columns > 1 {
		shown = shown[:min(len(shown), columns-1)]
	}
	fmt.Fprintf(s.w, "\r\x1b[K%s", string(shown))
}

// Say shows what is being done.
func (s *Status) Say(text string) {
	activity, _, _ := strings.Cut(text, ": ")
	switch {
	case s.tty != nil:
		s.Rewrite(s.part(time.Now()) + text + " ...")
	case !s.said[activity]:
		fmt.Fprintln(s.w, text)
		s.said[activity] = true
	}
	s.last = text
}

// Progress shows how much of what is being done is done.
func (s *Status) Progress(what string, done, total int64) {
	if s.tty != nil && total > 0 {
		s.Rewrite(fmt.Sprintf("%s%s ... %d %%", s.part(time.Now()), what, 100*done/total))
		return
	}
	if what != s.last {
		s.Say(what)
	}
}

// Parts begins work of n parts of about equal duration.
func (s *Status) Parts(n int) { s.began, s.ended, s.all = time.Now(), 0, n }

// Next ends a part and clears the line for its result.
func (s *Status) Next() {
	clear(s.said)
	s.ended, s.latest = s.ended+1, time.Now()
	s.Done()
}

// part describes the current part and the remaining time by the mean of finished
// parts. An overdue part counts as about to end.
func (s *Status) part(now time.Time) string {
	switch {
	case s.ended >= s.all:
		return ""
	case s.ended == 0:
		return fmt.Sprintf("1 of %d: ", s.all)
	}
	each := s.latest.Sub(s.began) / time.Duration(s.ended)
	others := each * time.Duration(s.all-s.ended-1)
	left := others + max(0, each-now.Sub(s.latest))
	return fmt.Sprintf("%d of %d, ETA %v: ", s.ended+1, s.all, left.Round(time.Second))
}

// Done clears the line.
func (s *Status) Done() {
	if s.tty != nil && s.last != "" {
		fmt.Fprint(s.w, "\r\x1b[K")
	}
	s.last = ""
}
