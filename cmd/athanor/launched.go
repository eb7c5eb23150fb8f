package main

import (
	stdctx "context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/athanor-llm/athanor/cluster"
	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/internal/cli"
	"github.com/athanor-llm/athanor/train"
)

// launched trains, as one of several processes if a launcher has started so many.
func (v *trainCmd) launched(ctx stdctx.Context, c *cli.Context) error {
	launch, err := cluster.Find(os.Environ())
	if err != nil {
		return cli.Misuse(err)
	}
	if launch == nil {
		return interrupted(ctx, v.train(ctx, c, config.Launched{}))
	}
	c.Exit = launch.Exit
	spec, err := v.Load(c, config.ToRead)
	if err != nil {
		return err
	}
	if launch.Rank > 0 {
		return interrupted(ctx, cluster.Follow(ctx, launch, spec.Out, spec.Spill()))
	}
	say := func(text string) { fmt.Fprintln(c.Stderr, text) }
	say(launch.String())
	team, err := cluster.Lead(ctx, launch, spec.Out, say)
	if err != nil {
		return interrupted(ctx, err)
	}
	say(fmt.Sprintf("all %d processes are there, on %d hosts; bytes go over %s", launch.Size, team.Hosts(), team.Over))
	if err = v.lead(ctx, c, team); err == nil {
		team.End(0)
	} else {
		team.End(command().ExitCode(err))
	}
	return err
}

// lostPatience is how long a run whose process is lost may take to say where it was.
const lostPatience = 2 * time.Second

// lostNotice is how long after an error the loss of a process that causes it may be noticed.
const lostNotice = 300 * time.Millisecond

// withLoss adds to an error the loss of a process, of which it may be the first sign.
func withLoss(err error, lost <-chan error) error {
	if err == nil || errors.Is(err, train.ErrSaved) || errors.Is(err, errStopped) {
		return err
	}
	select {
	case loss := <-lost:
		return errors.Join(err, loss)
	case <-time.After(lostNotice):
		return err
	}
}

// lead trains with a team. Any of its processes may be asked to stop, and then the run stops; if one is lost, the run
// ends.
func (v *trainCmd) lead(ctx stdctx.Context, c *cli.Context, team *cluster.Team) error {
	others := config.Launched{Others: team.Others, Key: team.Key, Over: team.Over.Name, Links: team.Over.Links, Together: team.Together}
	ctx, stop := stdctx.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	go func() { done <- interrupted(ctx, v.train(ctx, c, others)) }()
	for {
		select {
		case err := <-done:
			return withLoss(err, team.Lost)
		case <-team.Asked:
			stop()
		case lost := <-team.Lost:
			select {
			case err := <-done:
				if err == nil {
					return nil
				}
				return errors.Join(err, lost)
			case <-time.After(lostPatience):
				return lost
			}
		}
	}
}
