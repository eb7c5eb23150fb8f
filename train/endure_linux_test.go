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

// TestLasting: what no waiting mends ends a run soon, between steps and after the last, with a hint that is true, and what was
// saved before is still there and goes on.
func TestLasting(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir := t.TempDir()
	file := runConfig(t, dir)
	out := dir + "/run"
	for i, c := range []struct {
		name  string
		spoil func() error
	}{
		{"a file", func() error { return os.WriteFile(out, nil, 0o644) }},
		{"a link to itself", func() error { return os.Symlink(out, out) }},
		{"a folder below a file", func() error { return os.Symlink(file+"/below", out) }},
		{"a name that is too long", func() error { return os.Symlink(dir+"/"+strings.Repeat("long", 100), out) }},
	} {
		broken := []int{3, 4}[i%2] // the latter is the last step
		tr, _ := openRun(t, file, "max_steps=4", "save_every=1")
		tr.endures.patience.grace = time.Nanosecond
		err := tr.Train(t.Context(), watcher{func(step int) {
			if step == broken {
				check(t, errors.Join(os.Rename(out, dir+"/away"), c.spoil()))
			}
		}, func(string) {}})
		check(t, tr.Close())
		if err == nil || !lasting(err) || strings.Count(err.Error(), "hint:") != 1 || strings.Contains(err.Error(), "free some space") {
			t.Errorf("%s instead of the folder: %v", c.name, err)
		}
		check(t, errors.Join(os.Remove(out), os.Rename(dir+"/away", out)))
		again, _ := openRun(t, file, "max_steps=4")
		if again.Step != broken-1 {
			t.Errorf("%s instead of the folder: the run goes on at step %d", c.name, again.Step)
		}
		check(t, errors.Join(again.Close(), os.RemoveAll(out)))
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

// TestPassing: a full or absent disk may be there again, and is waited for; what somebody has to mend is waited for briefly; the
// process's own limits stay, and so do errors of others.
func TestPassing(t *testing.T) {
	never, briefly, long := [2]bool{false, false}, [2]bool{true, true}, [2]bool{true, false}
	for err, want := range map[error][2]bool{unix.ENOSPC: long, unix.EDQUOT: long, unix.EIO: long, unix.ESTALE: long, unix.ENOENT: long, unix.ETIMEDOUT: long, unix.ENOTCONN: long,
		unix.EROFS: briefly, unix.EACCES: briefly, unix.EPERM: briefly, unix.ENOTDIR: briefly, unix.ELOOP: briefly, unix.EISDIR: briefly,
		unix.EFBIG: never, unix.EMFILE: never, errors.New("other"): never} {
		err = &os.PathError{Op: "write", Path: "x", Err: err}
		if got := [2]bool{passing(err), lasting(err)}; got != want {
			t.Errorf("%v: passes, lasts: %v", err, got)
		}
	}
}
