package train

import (
	"strings"
	"testing"
	"time"

	"github.com/athanor-llm/athanor/job"
)

// TestSavingDue: a checkpoint is due after the configured time, but never so often that
// saving takes more than a fiftieth of the run.
func TestSavingDue(t *testing.T) {
	const after = 10 * time.Minute
	at := time.Unix(1e9, 0)
	for _, c := range []struct {
		took, since time.Duration
		due         bool
	}{
		{0, after - 1, false},
		{0, after, true},
		{12 * time.Second, after, true},
		{time.Minute, after, false},
		{time.Minute, 50 * time.Minute, true},
	} {
		s := saving{latest: at, took: c.took}
		if s.due(at.Add(c.since), after) != c.due {
			t.Errorf("saved in %v, %v ago: due is %v", c.took, c.since, !c.due)
		}
		if s.due(at.Add(c.since), 0) {
			t.Errorf("due after %v, though never asked for", c.since)
		}
	}
}

// TestRoomToSave: a disk without room for a checkpoint is reported before a run begins, and
// file systems that do not report their room are not refused.
func TestRoomToSave(t *testing.T) {
	for _, free := range []int64{0, 100, 101} {
		if err := holds("runs", free, 2, 50); err != nil {
			t.Errorf("%d bytes free, 100 needed: %v", free, err)
		}
	}
	for _, free := range []int64{1, 99} {
		if err := holds("runs", free, 2, 50); err == nil || !strings.Contains(err.Error(), "hint:") {
			t.Errorf("%d bytes free, 100 needed: %v", free, err)
		}
	}
}

// TestAtOnce: room is asked for before the first step for as many checkpoints as will be there at once, and no more.
func TestAtOnce(t *testing.T) {
	for _, c := range []struct {
		max, every, eval, keep int
		best                   bool
		step, there, want      int
	}{
		{30, 0, 0, 2, false, 0, 0, 1},   // only the last
		{30, 10, 0, 2, false, 0, 0, 3},  // 10, 20 and, before 10 is removed, 30
		{20, 10, 0, 2, false, 0, 0, 2},  // 10 and 20
		{30, 10, 0, 2, false, 10, 1, 2}, // 20 and 30, beside 10
		{90, 10, 0, 2, false, 50, 2, 1}, // one more than are there
		{90, 10, 0, 1, false, 50, 4, 1}, // older ones will be removed
		{90, 10, 0, 0, false, 0, 0, 9},  // all are kept
		{90, 10, 30, 2, true, 0, 0, 4},  // and the best
		{90, 0, 30, 5, true, 0, 0, 3},   // 30 and 60, if they are the best, and the last
		{30, 0, 10, 2, false, 0, 0, 1},  // evaluated, not saved
	} {
		var spec job.Spec
		spec.MaxSteps, spec.SaveEvery, spec.EvalEvery, spec.KeepCheckpoints, spec.KeepBest = c.max, c.every, c.eval, c.keep, c.best
		if got := atOnce(&spec, c.step, c.there); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}
