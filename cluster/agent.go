package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"sync"
	"time"

	"github.com/athanor-llm/athanor/device/remote"
	"github.com/athanor-llm/athanor/device/sealed"
	"github.com/athanor-llm/athanor/internal/build"
)

// Where no launcher is, an agent on each host (athanor serve) starts the processes of runs, when leaders ask that have
// the key:
//
//	leader                     agent                      process
//	Summon ── line ──────────► Serve ─── its pipes ─────► Attend
//	   └────── devices, data: as to any follower ────────►
//
// The agent passes on what both say on the line, and adds nothing: if it, the leader or the process is gone, is stopped
// or loses its network, the others notice as under a launcher. What processes take of the host they ask the agent for,
// so several runs together get no more than it lends.

// byAgents is the Source of launches by agents.
const byAgents = "athanor serve"

// Agent is a host that starts processes of runs.
type Agent struct {
	Key     []byte // that leaders must know
	Lent    Lent
	Limits  remote.Limits    // of what all processes take together
	Command func() *exec.Cmd // to start a process that calls Attend on its standard input and output
	Note    func(string)     // gets short lines about who comes and goes, from several goroutines
}

// Lent is what a host lends to each run.
type Lent struct {
	Spill string // folder for what is spilled to the disk
	Host  string // name or address at which processes wait for calls; "": all of this host's
}

// post is what an agent says first to a process that it has started.
type post struct {
	Lent
	Limits     remote.Limits
	Rank, Size int
}

// claim is what a process asks its agent for, or what is left then.
type claim struct {
	remote.Limits
	OK bool `json:",omitempty"`
}

// Serve starts processes for leaders that connect to l until ctx is done. Then it asks the leaders to stop, waits until
// their runs have ended, and returns nil.
func (a *Agent) Serve(ctx context.Context, l net.Listener) error {
	s := &agent{Agent: a, account: remote.NewAccount(a.Limits), retired: ctx.Done()}
	serving, stop := context.WithCancel(context.Background())
	defer stop()
	idle := context.AfterFunc(ctx, func() {
		s.close()
		stop()
	})
	defer idle()
	err := remote.Serve(serving, l, a.Key, s, remote.NewBudget(remote.Limits{}), a.Note)
	s.close()
	return err
}

// agent is an Agent that serves.
type agent struct {
	*Agent
	deviceless
	account remote.Account // of all processes
	retired <-chan struct{}

	mu     sync.Mutex
	closed bool // no process is started any more
	open   int  // processes
	all    sync.WaitGroup
}

// close waits for the processes to end, and lets no others begin.
func (a *agent) close() {
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	a.all.Wait()
}

// Start starts a process of a leader's run, or refuses and says why.
func (a *agent) Start(p remote.Process, c *sealed.Conn) error {
	name := fmt.Sprintf("process %d of %d of the run that %s leads", p.Rank, p.Size, addressOf(c.RemoteAddr()))
	leader := newLine(c)
	err := a.admit(p)
	if err == nil {
		err = a.start(p, leader, name)
	}
	if err != nil {
		_ = leader.say(word{Refused: err.Error()})
		leader.close(err)
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// admit counts a process, if it may be started.
func (a *agent) admit(p remote.Process) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch own := build.Text(); {
	case p.Build != own:
		return fmt.Errorf("the run is led by another build, %s, than this host's, %s; hint: run the same build of athanor on all hosts", p.Build, own)
	case p.Rank < 1 || p.Rank >= p.Size || p.Size > maxProcesses:
		return fmt.Errorf("there is no process %d of %d to start", p.Rank, p.Size)
	case a.closed:
		return errors.New("athanor serve is being stopped on this host; hint: start it again")
	case a.open >= a.Limits.Ranks:
		return fmt.Errorf("%d processes of runs are on this host, which is all that it lends; hint: wait until another run ends, or start athanor serve there with a larger --max-ranks", a.open)
	}
	a.open++
	a.all.Add(1)
	return nil
}

// start starts a process that was admitted, and passes on what it and its leader say.
func (a *agent) start(p remote.Process, leader *line, name string) (err error) {
	m := &minder{agent: a, leader: leader, name: name, cmd: a.Command()}
	defer func() {
		if err != nil {
			m.release()
		}
	}()
	if m.in, err = m.cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := m.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := m.cmd.Start(); err != nil {
		return err
	}
	m.process = newLine(pipes{out, m.in})
	a.Note(name + " is started")
	go m.mind(post{Lent: a.Lent, Limits: a.Limits, Rank: p.Rank, Size: p.Size})
	return nil
}

// pipes is what joins an agent and a process that it has started.
type pipes struct {
	io.ReadCloser
	to io.WriteCloser
}

func (p pipes) Write(b []byte) (int, error) { return p.to.Write(b) }

func (p pipes) Close() error { return errors.Join(p.to.Close(), p.ReadCloser.Close()) }

// minder keeps one process of a run.
type minder struct {
	*agent
	name            string
	cmd             *exec.Cmd
	in              io.WriteCloser // the process's standard input
	leader, process *line
	back            remote.Limits // what it has taken, negative
}

// goTime is how long a process may take to end when its leader is lost.
const goTime = leaveTime + 2*time.Second

// mind passes on words until the process has ended, which it does as soon as its leader is gone.
func (m *minder) mind(first post) {
	defer m.release()
	ended := make(chan struct{})
	go m.passDown(first, ended)
	go func() {
		select {
		case <-m.retired:
			_ = m.process.say(word{Stop: true})
		case <-ended:
		}
	}()
	m.passUp()
	close(ended)
	m.leader.close(errors.New("its process has ended"))
	_ = m.cmd.Wait() // the state says it
	m.Note(fmt.Sprintf("%s has ended: %v", m.name, m.cmd.ProcessState))
}

// passDown passes on what the leader says, until it is gone. Then the process must end.
func (m *minder) passDown(first post, ended <-chan struct{}) {
	err := m.process.say(word{Post: &first})
	for err == nil {
		var w word
		if w, err = m.leader.hear(); err == nil {
			err = m.process.say(w)
		}
	}
	_ = m.in.Close()
	select {
	case <-ended:
	case <-time.After(goTime):
		_ = m.cmd.Process.Kill()
	}
}

// passUp passes on what the process says, and answers its claims, until it ends.
func (m *minder) passUp() {
	for {
		w, err := m.process.hear()
		switch {
		case err != nil:
			return
		case w.Claim != nil:
			_ = m.process.say(word{Claim: m.grant(w.Claim.Limits)})
		default:
			_ = m.leader.say(w) // passDown notices if it is gone
		}
	}
}

// grant takes what the process claims, if there is so much.
func (m *minder) grant(l remote.Limits) *claim {
	left, ok := m.account(l)
	if ok {
		m.back = m.back.Minus(l)
	}
	return &claim{left, ok}
}

// release forgets the process.
func (m *minder) release() {
	m.account(m.back)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.open--
	m.all.Done()
}
