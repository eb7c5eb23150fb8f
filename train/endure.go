package train

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/athanor-llm/athanor/checkpoint"
	"github.com/athanor-llm/athanor/exec"
	"github.com/athanor-llm/athanor/internal/suggest"
)

// Writes that fail.
//
// A full disk, or a network file system that is away for a while, must not cost the steps since the latest
// checkpoint. So a run goes on without what it could not write, says so, and tries again: lines of the metrics wait
// in memory, and a checkpoint is tried anew, of the step that is reached by then. The run ends only after patience
// without one. There is little of it for what no waiting mends: a folder that may not be written, or is none any more.
//
// Example: the disk is full at step 100, and somebody frees space ten minutes later, at step 160. A checkpoint of
// step 160 is written, and metrics.jsonl has all lines.

// patience is how long a run goes on without a checkpoint that it could not write.
type patience struct {
	total time.Duration // then the run ends
	again time.Duration // between two attempts, and between two reports
	grace time.Duration // instead of total, once the run is asked to stop, and for errors that last
}

func usualPatience() patience { return patience{time.Hour, time.Minute, 5 * time.Second} }

// short returns the patience of a run that is asked to stop, or that meets an error that lasts.
func (p patience) short() patience {
	return patience{min(p.grace, p.total), min(p.again, p.grace/5), p.grace}
}

// of returns how long to be patient with an error.
func (p patience) of(err error) patience {
	if lasting(err) {
		return p.short()
	}
	return p
}

// endurance is what a run knows of writes that failed.
type endurance struct {
	patience patience
	logging  trouble // metrics
	unsaved  trouble // a checkpoint
	lasts    bool    // the latest error of unsaved does
}

// trouble is something that could not be written.
type trouble struct {
	since time.Time // the first failure since the latest success; zero: there is none
	tried time.Time // the latest attempt, or report
}

// due reports whether to try again.
func (b *trouble) due(now time.Time, p patience) bool {
	return !b.since.IsZero() && now.Sub(b.tried) >= p.again
}

// fail records a failure and reports whether to say so: the first, and then from time to time.
func (b *trouble) fail(now time.Time, p patience) bool {
	say := b.since.IsZero() || b.due(now, p)
	if b.since.IsZero() {
		b.since = now
	}
	if say {
		b.tried = now
	}
	return say
}

// passing reports whether an error comes from the file system, so that the same write may succeed later. Limits on the size
// of files and on how many the process has open stay.
func passing(err error) bool {
	var lost *exec.PeerLostError
	var system syscall.Errno
	return !errors.As(err, &lost) && !errors.Is(err, checkpoint.ErrExists) && errors.As(err, &system) && system != syscall.EFBIG && system != syscall.EMFILE
}

// lasting reports whether an error of the file system stays until somebody changes what is there: unlike a full disk or an
// absent server, which others see to.
func lasting(err error) bool {
	var system syscall.Errno
	if !errors.As(err, &system) {
		return false
	}
	switch system {
	case syscall.ENOTDIR, syscall.EISDIR, syscall.ELOOP, syscall.ENAMETOOLONG, syscall.EROFS, syscall.EACCES, syscall.EPERM, syscall.EINVAL, syscall.ENOSYS:
		return true
	}
	return false
}

// logged takes the error of writing metrics, if there is one. They wait in memory, and no run ends for them.
func (e *endurance) logged(t *Run, err error, o Observer) error {
	now := time.Now()
	switch {
	case err == nil && !e.logging.since.IsZero():
		e.logging = trouble{}
		o.Event(fmt.Sprintf("step %d: the metrics can be written again, and none is lost", t.Step))
	case err == nil:
	case !passing(err):
		return err
	case e.logging.fail(now, e.patience):
		o.Event(fmt.Sprintf("WARNING: step %d: the metrics cannot be written: %v; training goes on, and they are kept in memory until they can; hint: %s", t.Step, err, remedy(err, t.Setup.Spec.Out)))
	}
	return nil
}

// saveDue reports whether to try once more to save.
func (e *endurance) saveDue() bool { return e.unsaved.due(time.Now(), e.saving()) }

// saving is the patience with checkpoints.
func (e *endurance) saving() patience {
	if e.lasts {
		return e.patience.short()
	}
	return e.patience
}

// save saves a checkpoint between steps. If that fails, the run goes on, and tries again after a while, but not before.
func (e *endurance) save(t *Run, o Observer) error {
	now := time.Now()
	if !e.unsaved.since.IsZero() && !e.unsaved.due(now, e.saving()) {
		t.Best = t.saving.best
		return nil
	}
	err := t.save(o)
	if err == nil || !passing(err) {
		return err
	}
	if now = time.Now(); e.lasts != lasting(err) { // another trouble
		e.unsaved, e.lasts = trouble{}, lasting(err)
	}
	p := e.saving()
	e.unsaved.fail(now, p)
	e.unsaved.tried, t.Best = now, t.saving.best // the best checkpoint is one that is there
	left := p.total - now.Sub(e.unsaved.since)
	if left <= 0 {
		return unsavable(t, err, p.total)
	}
	o.Event(fmt.Sprintf("WARNING: step %d is not saved: %v; training goes on, and saving is tried again every %v; if that fails for %v more, the run ends and what was learnt since the latest checkpoint is lost",
		t.Step, err, p.again, left.Round(time.Second)))
	return nil
}

// saveLast saves a checkpoint after which no step follows. If that fails, it waits and tries again: not for long if the run
// is asked to stop.
func (e *endurance) saveLast(ctx context.Context, t *Run, stop bool, o Observer) error {
	for began := time.Now(); ; {
		err := t.save(o)
		if err == nil || !passing(err) {
			return err
		}
		p := e.patience.of(err)
		if stop || t.Setup.stopping(ctx) {
			p = e.patience.short()
		}
		left := p.total - time.Since(began)
		if left <= 0 {
			return unsavable(t, err, p.total)
		}
		o.Event(fmt.Sprintf("WARNING: step %d is not saved: %v; saving is tried again every %v, for %v more, before what was learnt since the latest checkpoint is lost",
			t.Step, err, p.again, left.Round(time.Second)))
		pause(ctx, p.again)
	}
}

// unsavable is the error that ends a run whose checkpoints could not be written for d.
func unsavable(t *Run, err error, d time.Duration) error {
	return suggest.Add(fmt.Errorf("step %d: no checkpoint could be written for %v: %w", t.Step, d, err),
		remedy(err, t.Setup.Spec.Out)+" and start the same command again, which continues from the latest checkpoint, if there is one")
}

// remedy is what to do about an error of the file system that holds a run's folder.
func remedy(err error, out string) string {
	if lasting(err) {
		return fmt.Sprintf("make %s a folder that can be written", out)
	}
	return "free some space in " + out
}

// pause waits, but no longer than until the run is asked to stop.
func pause(ctx context.Context, d time.Duration) {
	if ctx.Err() != nil {
		ctx = context.WithoutCancel(ctx) // it is known already
	}
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// backlog is a file that is appended to. What could not be written stays in memory, and goes before what comes later.
type backlog struct {
	*os.File
	rest []byte
}

// add appends text. An error means that some of it waits for the next call of add or flush.
func (b *backlog) add(text []byte) error {
	b.rest = append(b.rest, text...)
	return b.flush()
}

// flush writes what waits.
func (b *backlog) flush() error {
	if len(b.rest) == 0 {
		return nil
	}
	n, err := b.Write(b.rest)
	b.rest = b.rest[:copy(b.rest, b.rest[n:])]
	return err
}

// sync returns once all that was added is on the disk.
func (b *backlog) sync() error {
	if err := b.flush(); err != nil {
		return err
	}
	return b.Sync()
}

// close writes what waits, and closes the file.
func (b *backlog) close() error { return errors.Join(b.flush(), b.Close()) }
