// Command athanor-lab is the laboratory of athanor: it compares the search with what
// other systems decide and with plans that were run, reproduces papers, and runs the
// allocator and the pipeline schedules by themselves. No run needs it. Each verb is a
// file of this package that holds its flags and printing.
package main

import (
	"errors"

	"github.com/athanor-llm/athanor/internal/cli"
	"github.com/athanor-llm/athanor/lab/memo"
	"github.com/athanor-llm/athanor/lab/scale"
	"github.com/athanor-llm/athanor/schedule"
)

// verbs are those of this command.
type verbs struct {
	Bench    benchCmd    `cmd:"" help:"Compare plans: with others that are run, and with those of other systems."`
	Pack     packCmd     `cmd:"" help:"Run the allocator on its own: static addresses for buffers with known lifetimes."`
	Schedule scheduleCmd `cmd:"" help:"Show, check, compare or search a pipeline schedule."`
	Scale    scaleCmd    `cmd:"" help:"Find the shortest time in which a model can be trained, and what limits it."`

	Completion cli.Completion `cmd:"" help:"Print the script by which a shell completes verbs and flags."`
	Man        cli.Manual     `cmd:"" help:"Print the manual page."`
}

// command is this command.
func command() *cli.Program {
	return &cli.Program{
		Name:        "athanor-lab",
		Description: "Compares what athanor decides with what others do, and analyses what it could not run.",
		Verbs:       &verbs{},
		Codes: []cli.ExitRow{
			{Is: tooLarge, Code: cli.ExitMisfit},
			{Is: cli.Wraps[*scale.UsageError], Code: cli.ExitUsage},
			{Is: cli.Wraps[*scale.MisfitError], Code: cli.ExitMisfit},
			{Is: cli.Wraps[*memo.MisfitError], Code: cli.ExitMisfit},
		},
	}
}

// tooLarge reports whether the error is a valid order of units that exceeds the
// memory cap.
func tooLarge(err error) bool {
	var e *schedule.OrderError
	return errors.As(err, &e) && e.TooLarge
}

func main() { command().Main() }
