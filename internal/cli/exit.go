package cli

import (
	"errors"

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

// Exit codes, a stable interface for scripts. 0 is success.
const (
	exitError   = 1
	ExitUsage   = 2  // wrong usage or configuration
	ExitMisfit  = 3  // does not fit
	exitLost    = 4  // a peer is lost
	exitNumeric = 5  // the loss, the gradient norm or logits are not finite
	ExitSaved   = 75 // stopped on request, state saved: start again to continue
)

// ExitRow is a row of a table that maps errors to exit codes.
type ExitRow struct {
	Is   func(error) bool
	Code int
}

// exitCodes are those of all programs; the first row that matches counts.
var exitCodes = []ExitRow{
	{Wraps[*exec.PeerLostError], exitLost},
	{Wraps[*cluster.LostError], exitLost},
	{Is(folder.ErrNumeric), exitNumeric},
	{Is(train.ErrSaved), ExitSaved},
	{Wraps[UsageError], ExitUsage},
	{Is(config.ErrConfig), ExitUsage},
	{Is(folder.ErrMisuse), ExitUsage},
	{Wraps[*schedule.UsageError], ExitUsage},
	{Is(search.ErrDoesNotFit), ExitMisfit},
	{Is(alloc.ErrInfeasible), ExitMisfit},
	{Is(device.ErrMemory), ExitMisfit},
	{Wraps[*schedule.SplitError], ExitMisfit},
}

// ExitCode returns the exit code of an error: that of all programs, else this program's.
func (p *Program) ExitCode(err error) int {
	if ended := (*cluster.Ended)(nil); errors.As(err, &ended) {
		return ended.Code
	}
	for _, table := range [][]ExitRow{exitCodes, p.Codes} {
		for _, row := range table {
			if row.Is(err) {
				return row.Code
			}
		}
	}
	return exitError
}

// Is returns a row's condition: the error is, or wraps, target.
func Is(target error) func(error) bool {
	return func(err error) bool { return errors.Is(err, target) }
}

// Wraps is a row's condition: the error is, or wraps, one of type E.
func Wraps[E error](err error) bool { return errors.As(err, new(E)) }

// UsageError reports wrong use of a verb.
type UsageError string

func (e UsageError) Error() string { return string(e) }

// Misuse returns an error as one of wrong use.
func Misuse(err error) error { return UsageError(err.Error()) }
