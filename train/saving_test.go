package train

import (
	"strings"
	"testing"
	"time"
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
		s := saving{at, c.took}
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
