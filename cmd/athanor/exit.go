package main

import (
	"errors"

	"github.com/athanor-llm/athanor/alloc"
	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/exec"
	"github.com/athanor-llm/athanor/policy/memo"
	"github.com/athanor-llm/athanor/run"
	"github.com/athanor-llm/athanor/scale"
	"github.com/athanor-llm/athanor/schedule"
	"github.com/athanor-llm/athanor/search"
)

// Exit codes, a stable interface for scripts. 0 is success.
const (
	exitError   = 1
	exitUsage   = 2  // wrong usage or configuration
	exitMisfit  = 3  // does not fit
	exitLost    = 4  // a peer is lost
	exitNumeric = 5  // the loss, the gradient norm or logits are not finite
	exitSaved   = 75 // stopped on request, state saved: start again to continue
)

// exitCodes maps errors to exit codes; the first row that matches counts.
var exitCodes = []struct {
	is   func(error) bool
	code int
}{
	{as[*exec.PeerLostError], exitLost},
	{is(run.ErrNumeric), exitNumeric},
	{is(run.ErrSaved), exitSaved},
	{is(errStopped), exitSaved},
	{as[usageError], exitUsage},
	{is(config.ErrConfig), exitUsage},
	{is(run.ErrMisuse), exitUsage},
	{as[*schedule.UsageError], exitUsage},
	{as[*scale.UsageError], exitUsage},
	{is(search.ErrDoesNotFit), exitMisfit},
	{is(alloc.ErrInfeasible), exitMisfit},
	{as[*schedule.SplitError], exitMisfit},
	{tooLarge, exitMisfit},
	{as[*scale.MisfitError], exitMisfit},
	{as[*memo.MisfitError], exitMisfit},
}

func exitCode(err error) int {
	for _, row := range exitCodes {
		if row.is(err) {
			return row.code
		}
	}
	return exitError
}

func is(target error) func(error) bool {
	return func(err error) bool { return errors.Is(err, target) }
}

func as[E error](err error) bool { return errors.As(err, new(E)) }

// tooLarge reports whether the error is a valid order of units that exceeds the
// memory cap.
func tooLarge(err error) bool {
	var e *schedule.OrderError
	return errors.As(err, &e) && e.TooLarge
}

// usageError reports wrong use of a verb.
type usageError struct{ msg string }

func (e usageError) Error() string { return e.msg }
