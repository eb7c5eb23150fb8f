package cluster

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/remote"
	"github.com/athanor-llm/athanor/internal/build"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/machine"
)

// attends makes the test binary a process that an agent has started.
const attends = "ATHANOR_TEST_ATTEND"

func TestMain(m *testing.M) {
	if os.Getenv(attends) != "" {
		_ = Attend(context.Background(), os.Stdin, os.Stdout) // the agent's loss of it says more
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// agentHere starts an agent that lends limits, until stop is called, and returns its address, its key and what it says.
func agentHere(t *testing.T, limits remote.Limits) (addr string, key []byte, notes chan string, stop func()) {
	t.Helper()
	t.Setenv(machine.KeyVariable, "the key of these tests")
	t.Setenv("GOMAXPROCS", "1")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	notes = make(chan string, 64)
	a := Agent{Key: []byte("the key of these tests"), Lent: Lent{Spill: t.TempDir(), Host: "127.0.0.1"}, Limits: limits, Note: func(text string) { notes <- text },
		Command: func() *exec.Cmd {
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), attends+"=1")
			return cmd
		}}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Serve(ctx, l) }()
	t.Cleanup(func() {
		stop()
		check(t, <-ended)
	})
	return l.Addr().String(), a.Key, notes, stop
}

// TestAgentLends: what processes of several runs take of a host is bounded together, and given back when a process ends, which it
// does as soon as its leader hangs up, whatever it had taken.
func TestAgentLends(t *testing.T) {
	addr, key, notes, _ := agentHere(t, remote.Limits{Memory: 1 << 20, Disk: 1 << 20, Ranks: 2})
	open := func() (*Team, device.Device) {
		team, err := Summon([]string{addr}, key)
		check(t, err)
		d, err := remote.Open(team.Others[0], key, remote.Place{Device: "cpu"}, time.Now())
		check(t, err)
		return team, d
	}
	first, one := open()
	second, two := open()
	if _, err := Summon([]string{addr}, key); err == nil || !strings.Contains(err.Error(), "--max-ranks") {
		t.Errorf("a third process: %v", err)
	}
	if _, err := remote.Open(first.Others[0], key, remote.Place{Device: "cpu"}, time.Now()); err == nil || !strings.Contains(err.Error(), "all 2 ranks") {
		t.Errorf("a third rank: %v", err)
	}
	check(t, one.Reserve(device.HostTier, 600<<10))
	check(t, one.Reserve(device.DiskTier, 600<<10))
	for _, tier := range []device.Tier{device.HostTier, device.DiskTier} {
		if err := two.Reserve(tier, 600<<10); !errors.Is(err, device.ErrMemory) {
			t.Errorf("more of tier %s than there is: %v", tier, err)
		}
	}
	for _, e := range first.members[1:] {
		e.conn.Close() // the leader vanishes
	}
	for !strings.Contains(<-notes, "has ended") {
	}
	check(t, two.Reserve(device.HostTier, 600<<10))
	if about, err := remote.Describe(second.Others[0], key, remote.Place{Device: "cpu"}); err != nil || about.Ranks != 1 {
		t.Errorf("%d ranks are left, %v", about.Ranks, err)
	}
	check(t, two.Close())
	second.End(0)
	first.End(4)
}

// TestAgentRefuses: leaders of another build, of no sense, without the key, and those that come when the agent is being stopped
// get no process, and are told why; an agent opens no devices.
func TestAgentRefuses(t *testing.T) {
	addr, key, notes, stop := agentHere(t, remote.Limits{Memory: 1 << 20, Ranks: 2})
	ask := func(p remote.Process) string {
		c, err := remote.Start(addr, key, p)
		check(t, err)
		defer c.Close()
		w, err := newLine(c).hear()
		check(t, err)
		return w.Refused
	}
	for want, p := range map[string]remote.Process{
		"hint: run the same build of athanor on all hosts": {Rank: 1, Size: 2, Build: "another"},
		"there is no process 0 of 2":                       {Rank: 0, Size: 2, Build: build.Text()},
		"there is no process 2 of 2":                       {Rank: 2, Size: 2, Build: build.Text()},
	} {
		if got := ask(p); !strings.Contains(got, want) {
			t.Errorf("%+v: %q, want %q", p, got, want)
		}
	}
	if _, err := remote.Start(addr, []byte("another key of tests"), remote.Process{Rank: 1, Size: 2, Build: build.Text()}); err == nil {
		t.Error("another key is accepted")
	}
	if _, err := remote.Open(addr, key, remote.Place{Device: "cpu"}, time.Now()); err == nil {
		t.Error("the agent opens devices")
	}
	team, err := Summon([]string{addr}, key)
	check(t, err)
	stop()
	<-team.Asked
	if got := ask(remote.Process{Rank: 1, Size: 2, Build: build.Text()}); !strings.Contains(got, "being stopped") {
		t.Errorf("one that comes late: %q", got)
	}
	team.End(saved)
	for !strings.Contains(<-notes, "has ended") {
	}
}

// TestAgentSilence: a process whose leader is connected, but says nothing, ends.
func TestAgentSilence(t *testing.T) {
	testkit.Needs(t, testkit.All)
	addr, key, notes, _ := agentHere(t, remote.Limits{Memory: 1 << 20, Ranks: 2})
	c, err := remote.Start(addr, key, remote.Process{Rank: 1, Size: 2, Build: build.Text()})
	check(t, err)
	defer c.Close()
	for !strings.Contains(<-notes, "has ended") {
	}
}
