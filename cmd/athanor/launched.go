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
		return v.withHosts(ctx, c)
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
	return v.leadToEnd(ctx, c, team, launchedWith(team))
}

// withHosts trains on the hosts that the configuration names beside this one, if it names any.
func (v *trainCmd) withHosts(ctx stdctx.Context, c *cli.Context) error {
	cfg, err := config.LoadTo(config.ToTrain, v.Config, v.Overrides)
	if err != nil || len(cfg.Hosts) == 0 {
		return interrupted(ctx, v.train(ctx, c, config.Launched{})) // which says what is wrong
	}
	team, l, err := summon(cfg.Lines, cfg.Hosts)
	if err != nil {
		return err
	}
	return v.leadToEnd(ctx, c, team, l)
}

// leadToEnd trains with a team, and ends it.
func (v *trainCmd) leadToEnd(ctx stdctx.Context, c *cli.Context, team *cluster.Team, l config.Launched) error {
	fmt.Fprintf(c.Stderr, "all %d processes are there, on %d hosts; bytes go over %s\n", len(team.Others)+1, team.Hosts(), team.Over)
	err := v.lead(ctx, c, team, l)
	if err == nil {
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
func (v *trainCmd) lead(ctx stdctx.Context, c *cli.Context, team *cluster.Team, others config.Launched) error {
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
