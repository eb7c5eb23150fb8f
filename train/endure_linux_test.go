package train

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/athanor-llm/athanor/internal/paths"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// watcher calls a function after each step, and another for each event.
type watcher struct {
	step  func(step int)
	event func(text string)
}

func (w watcher) Step(m Metrics)    { w.step(m.Step) }
func (w watcher) Event(text string) { w.event(text) }

// TestFullDisk: while nothing can be written a run goes on and says so; then it saves, its metrics have every step, and its
// losses are those of a run on a good disk.
func TestFullDisk(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir := t.TempDir()
	file := runConfig(t, dir)
	good, _ := openRun(t, file, "max_steps=8", "out="+dir+"/good")
	check(t, errors.Join(good.Train(t.Context(), &events{}), good.Close()))

	out := dir + "/full"
	tr, _ := openRun(t, file, "max_steps=8", "out="+out)
	tr.endures.patience.again = 0
	var said events
	var restore []func()
	check(t, tr.Train(t.Context(), watcher{func(step int) {
		switch step {
		case 2:
			restore = append(restore, fullDisk(t, out+"/metrics"), fullDisk(t, out+"/events"))
		case 5:
			for _, f := range restore {
				f()
			}
		}
	}, said.Event}))
	check(t, tr.Close())
	text := strings.Join(said, "\n")
	for _, want := range []string{"WARNING: step 3: the metrics cannot be written", "WARNING: step 3 is not saved", "WARNING: step 4 is not saved", "saved " + out + "/checkpoint-5", "none is lost", "saved " + out + "/checkpoint-8"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not said:\n%s", want, text)
		}
	}
	if got, want := losses(t, out+"/metrics.jsonl"), losses(t, dir+"/good/metrics.jsonl"); !slices.Equal(got, want) {
		t.Errorf("losses %v, want %v", got, want)
	}
}

// TestFolderGone: a folder that cannot be written when the run is over is waited for, and no longer than was said.
func TestFolderGone(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir := t.TempDir()
	file := runConfig(t, dir)
	for _, back := range []bool{true, false} {
		out := dir + "/run"
		tr, _ := openRun(t, file, "max_steps=2", "save_every=0")
		tr.endures.patience.again = 0
		if !back {
			tr.endures.patience.total = 0
		}
		gone := func() {
			check(t, errors.Join(os.Rename(out, dir+"/away"), os.WriteFile(out, nil, 0o644)))
		}
		again := func() { check(t, errors.Join(os.Remove(out), os.Rename(dir+"/away", out))) }
		waits := 0
		err := tr.Train(t.Context(), watcher{func(step int) {
			if step == 2 {
				gone()
			}
		}, func(text string) {
			if strings.Contains(text, "WARNING: step 2 is not saved") {
				if waits++; waits == 3 {
					again()
				}
			}
		}})
		check(t, tr.Close())
		switch {
		case back && (err != nil || waits != 3 || !paths.Exists(out+"/checkpoint-2/DONE")):
			t.Errorf("it came back: %v, %d warnings", err, waits)
		case !back && (!errors.Is(err, unix.ENOTDIR) || waits > 0 || strings.Count(err.Error(), "hint:") != 1 || !strings.Contains(err.Error(), "step 2: no checkpoint could be written")):
			t.Errorf("it did not: %v, %d warnings", err, waits)
		}
		if !back {
			again()
		}
		check(t, os.RemoveAll(out))
	}
}

// TestTrouble: a failure is said at once and then from time to time.
func TestTrouble(t *testing.T) {
	p, at := patience{time.Hour, time.Minute, time.Second}, time.Unix(1e9, 0)
	var b trouble
	if b.due(at, p) {
		t.Error("there is nothing to try again")
	}
	var said []int
	for s := range 150 {
		if b.fail(at.Add(time.Duration(s)*time.Second), p) {
			said = append(said, s)
		}
	}
	if !slices.Equal(said, []int{0, 60, 120}) || b.since != at {
		t.Errorf("said at %v, failing since %v", said, b.since)
	}
}

// TestPassing: a full or absent disk may be there again, and is waited for; the process's own limits stay, and so do errors of others.
func TestPassing(t *testing.T) {
	for err, want := range map[error]bool{unix.ENOSPC: true, unix.EDQUOT: true, unix.EIO: true, unix.EROFS: true, unix.ESTALE: true, unix.EFBIG: false, unix.EMFILE: false, errors.New("other"): false} {
		if got := passing(&os.PathError{Op: "write", Path: "x", Err: err}); got != want {
			t.Errorf("%v passes: %v", err, got)
		}
	}
}
