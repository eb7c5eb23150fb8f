package train

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/athanor-llm/athanor/internal/sysmem"
)

// leaker leaks a page after each step from one on, and remembers what the process held.
type leaker struct {
	t       *testing.T
	from    int
	held    []int64 // at the end of each step
	pages   [][]byte
	alerted int // the step in which the alert came; 0: it has not
	text    string
}

func (l *leaker) Event(text string) {
	if l.alerted == 0 && strings.HasPrefix(text, "ALERT: leak") {
		l.alerted, l.text = len(l.held)+1, text
	}
}

func (l *leaker) Step(m Metrics) {
	l.held = append(l.held, sysmem.Mapped())
	if m.Step < l.from {
		return
	}
	page, err := unix.Mmap(-1, 0, unix.Getpagesize(), unix.PROT_READ, unix.MAP_ANON|unix.MAP_PRIVATE)
	check(l.t, err)
	l.pages = append(l.pages, page)
}

// TestLeakingRun: a run that holds a page more with each step is told of it as soon as two steps have shown it, and not before it leaks.
func TestLeakingRun(t *testing.T) {
	file := runConfig(t, t.TempDir())
	tr, _ := openRun(t, file, "max_steps=30", "save_every=0")
	l := &leaker{t: t, from: 12}
	err := tr.Train(t.Context(), l)
	check(t, errors.Join(err, tr.Close()))
	for _, p := range l.pages {
		check(t, unix.Munmap(p))
	}
	page := int64(unix.Getpagesize())
	shown := 0 // the first step after two in turn whose growth is one page
	for i := l.from + 1; i < len(l.held) && shown == 0; i++ {
		if l.held[i]-l.held[i-1] == page && l.held[i-1]-l.held[i-2] == page {
			shown = i + 1
		}
	}
	// What the process held was read a moment later than by the run.
	if want := fmt.Sprintf("grows by %d bytes with each step; memory ends at step ", page); shown == 0 || l.alerted < l.from+2 || l.alerted > shown+1 || !strings.Contains(l.text, want) {
		t.Errorf("a leak from step %d on that is shown by step %d is told of in step %d: %q", l.from, shown, l.alerted, l.text)
	}
}
