package cli

import (
	"errors"
	"fmt"
	"testing"

	"github.com/athanor-llm/athanor/alloc"
	"github.com/athanor-llm/athanor/cluster"
	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/exec"
	"github.com/athanor-llm/athanor/folder"
	"github.com/athanor-llm/athanor/schedule"
	"github.com/athanor-llm/athanor/search"
	"github.com/athanor-llm/athanor/train"
)

// TestExitCodes: errors keep their codes, however they are wrapped and joined, and no
// row of the table is unreachable.
func TestExitCodes(t *testing.T) {
	_, noFolder := folder.Open(t.TempDir())
	used := map[int]bool{}
	for _, c := range []struct {
		err  error
		code int
	}{
		{errors.New("anything"), 1},
		{&schedule.OrderError{}, 1},
		{UsageError("what"), 2},
		{&config.Error{}, 2},
		{noFolder, 2},
		{&schedule.UsageError{}, 2},
		{&search.Misfit{Frugal: &search.Candidate{}}, 3},
		{&alloc.InfeasibleError{}, 3},
		{&schedule.SplitError{}, 3},
		{device.ErrMemory, 3},
		{&exec.PeerLostError{Err: errors.New("gone")}, 4},
		{&cluster.LostError{Err: errors.New("gone")}, 4},
		{&cluster.Ended{Code: 3}, 3},
		{folder.ErrNumeric, 5},
		{train.ErrSaved, 75},
	} {
		for _, err := range []error{c.err, fmt.Errorf("step 3: %w", c.err), errors.Join(errors.New("first"), c.err)} {
			if got := new(Program).ExitCode(err); got != c.code {
				t.Errorf("%v (%T): exit code %d, not %d", err, c.err, got, c.code)
			}
		}
		for i, row := range exitCodes {
			if row.Is(c.err) {
				used[i] = true
				break
			}
		}
	}
	if len(used) != len(exitCodes) {
		t.Errorf("%d of %d rows of the table are used: %v", len(used), len(exitCodes), used)
	}
}
