package main

import (
	stdctx "context"
	"os"
	"os/exec"
	"os/signal"

	"github.com/athanor-llm/athanor/cluster"
	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/internal/cli"
	"github.com/athanor-llm/athanor/job"
	"github.com/athanor-llm/athanor/machine"
)

// summon starts a process on each host that a configuration names, and returns what the configuration is to be told of
// them. The caller ends the team.
func summon(lines config.Lines, hosts []string) (*cluster.Team, config.Launched, error) {
	key, err := machine.Key()
	if err != nil {
		return nil, config.Launched{}, lines.Fault("hosts", err.Error())
	}
	team, err := cluster.Summon(hosts, key)
	if err != nil {
		return nil, config.Launched{}, err
	}
	l := launchedWith(team)
	l.Named = true
	return team, l, nil
}

// launchedWith returns what a configuration is to be told of a team.
func launchedWith(team *cluster.Team) config.Launched {
	return config.Launched{Others: team.Others, Key: team.Key, Over: team.Over.Name, Links: team.Over.Links, Together: team.Together}
}

// request returns what a job needs of the machine. If it names hosts on which it has no processes yet, it gets some,
// until end is called.
func request(s *job.Spec) (r *machine.Request, end func(), err error) {
	if len(s.Hosts) == 0 || len(s.Others) > 0 || s.Hardware.Name != "" {
		return s.Machine(), func() {}, nil
	}
	team, l, err := summon(s.Lines, s.Hosts)
	if err != nil {
		return nil, nil, err
	}
	r = s.Machine()
	r.Hosts, r.Key, r.Over, r.Together = l.Others, l.Key, l.Over, l.Together
	return r, func() { team.End(0) }, nil
}

// processCmd is a process of a run that another host leads.
type processCmd struct{}

// processVerb is what athanor serve calls this command by.
const processVerb = "process"

func (processCmd) Run(*cli.Context) error {
	ctx, stop := signal.NotifyContext(stdctx.Background(), stopping()...)
	defer stop()
	return cluster.Attend(ctx, os.Stdin, os.Stdout)
}

// startProcess makes it.
func startProcess(self string) func() *exec.Cmd {
	return func() *exec.Cmd {
		cmd := exec.Command(self, processVerb)
		cmd.Stderr = os.Stderr
		return cmd
	}
}
