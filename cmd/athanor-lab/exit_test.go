package main

import (
	"fmt"
	"testing"

	"github.com/athanor-llm/athanor/lab/memo"
	"github.com/athanor-llm/athanor/lab/scale"
	"github.com/athanor-llm/athanor/schedule"
)

// TestExitCodes: errors keep their codes, however they are wrapped.
func TestExitCodes(t *testing.T) {
	for _, c := range []struct {
		err  error
		code int
	}{
		{&schedule.OrderError{}, 1},
		{&schedule.UsageError{}, 2},
		{&scale.UsageError{}, 2},
		{&schedule.SplitError{}, 3},
		{&schedule.OrderError{TooLarge: true}, 3},
		{&scale.MisfitError{}, 3},
		{&memo.MisfitError{}, 3},
	} {
		if got := command().ExitCode(fmt.Errorf("step 3: %w", c.err)); got != c.code {
			t.Errorf("%v (%T): exit code %d, not %d", c.err, c.err, got, c.code)
		}
	}
}
