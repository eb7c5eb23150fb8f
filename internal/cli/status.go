package cli

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/term"
)

// Status is a progress line, rewritten in place on a terminal. Elsewhere it prints each
// activity once, the first time with its object ("activity: object"), and how far it is every half minute.
type Status struct {
	w    io.Writer
	tty  *os.File // w, if it is a terminal that can rewrite a line
	last string
	said map[string]bool // activities, where w is no terminal
	when time.Time       // something was last said there

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

// Rewrite replaces the line, on a terminal that can do so. It cuts the text between words to the terminal's width: of a
// wrapped line, only the last row could be rewritten.
func (s *Status) Rewrite(text string) {
	s.last = text
	fmt.Fprintf(s.w, "\r\x1b[K%s", cut(text, columns(s.tty)-1))
}

// Field is a part of a line; where the line is too long, those of high rank are left out first.
type Field struct {
	Text string
	Rank int
}

// RewriteFields replaces the line by as many fields as fit, in their order.
func (s *Status) RewriteFields(list []Field) { s.Rewrite(fitted(list, columns(s.tty)-1)) }

// Joined is the line of all fields.
func Joined(list []Field) string { return fitted(list, 0) }

// fitted joins fields to at most so many characters; below 1: to any number.
func fitted(list []Field, width int) string {
	for {
		text, worst := "", 0
		for i, f := range list {
			if text += "  " + f.Text; f.Rank >= list[worst].Rank {
				worst = i
			}
		}
		text = strings.TrimPrefix(text, "  ")
		if width < 1 || len([]rune(text)) <= width || list[worst].Rank == 0 {
			return text
		}
		list = slices.Concat(list[:worst], list[worst+1:])
	}
}

// widthOf returns how wide lines for a writer may be: as the terminal is or, elsewhere, as COLUMNS says; 0: there is no width.
func widthOf(w io.Writer) int {
	if tty := asTerminal(w); tty != nil {
		return columns(tty)
	}
	n, err := strconv.Atoi(os.Getenv("COLUMNS"))
	if err != nil {
		return 0
	}
	return max(n, 0)
}

// columns returns the width of a terminal; 0: it is not known.
func columns(tty *os.File) int {
	n, _, err := term.GetSize(int(tty.Fd()))
	if err != nil {
		return 0
	}
	return n
}

// cut returns as many words of a text as fit into a width, or of its first word what does; below 1: all.
func cut(text string, width int) string {
	runes := []rune(text)
	if width < 1 || len(runes) <= width {
		return text
	}
	short := string(runes[:width])
	if i := strings.LastIndexByte(short, ' '); i > 0 && runes[width] != ' ' {
		short = short[:i]
	}
	return strings.TrimRight(short, " ")
}

// wrapped cuts a line into lines of a width, between words; those after the first are indented. Below a width of 20 it
// is left as it is.
func wrapped(line string, width int) (list []string) {
	const indent = "    "
	for width >= 20 && len([]rune(line)) > width {
		head := cut(line, width)
		if head == strings.TrimRight(indent, " ") { // one long word
			break
		}
		list = append(list, head)
		line = indent + strings.TrimLeft(line[len(head):], " ")
	}
	return append(list, line)
}

// Say shows what is being done.
func (s *Status) Say(text string) {
	activity, _, _ := strings.Cut(text, ": ")
	switch {
	case s.tty != nil:
		s.Rewrite(s.part(time.Now()) + text + " ...")
	case !s.said[activity]:
		fmt.Fprintln(s.w, text)
		s.said[activity], s.when = true, time.Now()
	}
	s.last = text
}

// Progress shows how much of what is being done is done.
func (s *Status) Progress(what string, done, total int64) {
	if s.tty != nil && total > 0 {
		s.Rewrite(fmt.Sprintf("%s%s ... %d %%", s.part(time.Now()), what, 100*done/total))
		return
	}
	switch now := time.Now(); {
	case what != s.last:
		s.Say(what)
	case total > 0 && now.Sub(s.when) >= saidEvery:
		fmt.Fprintf(s.w, "%s: %d %%\n", what, 100*done/total)
		s.when = now
	}
}

// Count shows how many of the parts of some work are done, and when the others will be if they take as long.
func (s *Status) Count(what string, done, total int64, began time.Time) {
	now := time.Now()
	text := fmt.Sprintf("%s: %d of %d", what, done, total)
	if done > 0 {
		text += fmt.Sprintf(", ETA %v", (now.Sub(began) / time.Duration(done) * time.Duration(total-done)).Round(time.Second))
	}
	switch {
	case s.tty != nil:
		s.Rewrite(text)
	case now.Sub(s.when) >= saidEvery:
		fmt.Fprintln(s.w, text)
		s.when = now
	}
}

// saidEvery is how often progress is printed where it cannot be rewritten.
const saidEvery = 30 * time.Second

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
