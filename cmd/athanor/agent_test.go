package main

import (
	"bufio"
	stdctx "context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/athanor-llm/athanor/cluster"
	"github.com/athanor-llm/athanor/device/remote"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/machine"
	"github.com/athanor-llm/athanor/machine/machinetest"
)

// agent is a host that starts processes.
type agent struct {
	addr, spill string
	started     chan *exec.Cmd
	stop        func()
	left        chan string // what it says when a process has ended
	ended       chan error
}

// startAgent starts an agent, whose processes and those of leaders share this machine as they would on one host.
func startAgent(t *testing.T, limits remote.Limits) *agent {
	t.Helper()
	const key = "a key of these tests of agents"
	t.Setenv(machine.KeyVariable, key)
	t.Setenv("GOMAXPROCS", fmt.Sprint(runtime.GOMAXPROCS(0)))
	known, err := machinetest.Cores()
	check(t, err)
	for ranks := 2; ranks <= 4; ranks++ {
		check(t, machine.KeepLaunched(known, ranks, 2, t.TempDir()))
	}
	check(t, machine.KeepLaunched(known, 3, 3, t.TempDir()))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	a := &agent{addr: l.Addr().String(), spill: t.TempDir(), started: make(chan *exec.Cmd, 16), left: make(chan string, 16), ended: make(chan error, 1)}
	start := startProcess(os.Args[0])
	serving := cluster.Agent{Key: []byte(key), Lent: cluster.Lent{Spill: a.spill, Host: "127.0.0.1"}, Limits: limits,
		Command: func() *exec.Cmd {
			cmd := start()
			a.started <- cmd
			return cmd
		},
		Note: func(text string) {
			if strings.Contains(text, "has ended") {
				a.left <- text
			}
		}}
	ctx, stop := stdctx.WithCancel(t.Context())
	a.stop = stop
	go func() { a.ended <- serving.Serve(ctx, l) }()
	t.Cleanup(func() {
		stop()
		check(t, <-a.ended)
		list, err := filepath.Glob(a.spill + "/.*")
		if err != nil || len(list) > 0 {
			t.Errorf("the agent's folder has %v, %v", list, err)
		}
	})
	return a
}

var lent = remote.Limits{Memory: 1 << 30, Disk: 1 << 30, Ranks: 4}

// TestAgents: a leader and a process that an agent has started for it compute what one process with the same ranks does, bit for
// bit: losses, weights and moments, whether ranks are replicas, divide the weights or are stages, and whether as many are here as
// there.
func TestAgents(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t)
	a := startAgent(t, lent)
	for i, args := range testkit.Sample([][]string{
		{"ranks=2", "plan={pipeline: 1, state: disk}"}, {"ranks=2", "plan={pipeline: 2}"}, {"ranks=3", "global_batch=6", "plan={pipeline: 3}"}, {"ranks=4", "limits.device=150000"},
	}, 0, 1) {
		one, several := fmt.Sprint(dir, "/one", i), fmt.Sprint(dir, "/several", i)
		call(append([]string{"train", file, "out=" + one}, args...)...).must(t, 0)
		args = append(args[:len(args)-1:len(args)-1], "plan="+one+"/plan.json", "out="+several, "hosts="+a.addr)
		r := finish(t, child(nil, append([]string{"train", file}, args...)...)).must(t, 0)
		sameRun(t, several, one, 4)
		if said := "all 2 processes are there, on 1 hosts"; !strings.Contains(r.stderr, said) {
			t.Errorf("it does not say %q:\n%s", said, r.stderr)
		}
		if said := <-a.left; !strings.HasSuffix(said, "exit status 0") {
			t.Errorf("the agent says %q", said)
		}
	}
	call("plan", file, "hosts="+a.addr).must(t, 0)
}

// heard reads what a process says up to a line that begins with text, or to the end, and returns it.
func heard(from io.Reader, text string) string {
	var all strings.Builder
	for lines := bufio.NewScanner(from); lines.Scan(); {
		fmt.Fprintln(&all, lines.Text())
		if text != "" && strings.HasPrefix(lines.Text(), text) {
			break
		}
	}
	return all.String()
}

// TestAgentsLost: if the leader or a process that an agent has started dies, or the agent is stopped, all others end within ten
// seconds, with the code that tells a scheduler to start the job again; started again, the run goes on to the losses, weights and
// moments of an undisturbed one.
func TestAgentsLost(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t, "max_steps: 1000000", "save_every: 1000000")
	same := []string{"train", file, "ranks=2", "plan=" + dir + "/plan.json"}
	call("plan", file, "ranks=2", "plan.pipeline=1", "--out", dir+"/plan.json").must(t, 0)
	at := 0
	for _, c := range testkit.Sample([]struct {
		victim string
		code   int    // of the leader; -1: it is killed
		says   string // the leader
		left   string // the process
	}{{"agent", 75, "saved " + dir + "/run/checkpoint-", "exit status 75"}, {"process", 4, "process 1, on ", "killed"}, {"leader", -1, "", "exit status 4"}}, 0, 3) {
		t.Run(c.victim, func(t *testing.T) {
			a := startAgent(t, lent)
			cmd := child(nil, append(same, "hosts="+a.addr)...)
			pipe, err := cmd.StderrPipe()
			check(t, err)
			check(t, cmd.Start())
			lines := bufio.NewReader(pipe)
			heard(lines, "step ")
			process := <-a.started
			switch c.victim {
			case "agent":
				a.stop()
			case "process":
				check(t, process.Process.Kill())
			case "leader":
				check(t, cmd.Process.Kill())
			}
			said := heard(lines, "")
			_ = cmd.Wait() // the exit code says it
			if got := cmd.ProcessState.ExitCode(); got != c.code || !strings.Contains(said, c.says) {
				t.Fatalf("%s: the leader ends with %d, not %d and %q\n%s", c.victim, got, c.code, c.says, said)
			}
			if said := <-a.left; !strings.Contains(said, c.left) {
				t.Errorf("%s: the agent says %q", c.victim, said)
			}
			if c.code == 75 {
				_, text, _ := strings.Cut(said, c.says)
				_, err := fmt.Sscan(text, &at)
				check(t, err)
			}
		})
	}
	a := startAgent(t, lent)
	steps := fmt.Sprint("max_steps=", at+3)
	finish(t, child(nil, append(same, steps, "hosts="+a.addr)...)).must(t, 0)
	call(append(same, steps, "out="+dir+"/plain")...).must(t, 0)
	sameRun(t, dir+"/run", dir+"/plain", at+3)
}

// TestAgentsKilled: a run on three hosts of which a process, drawn anew, is killed at random moments, again and again, ends each
// time in all processes within ten seconds, and goes on to the losses, weights and moments of an undisturbed one.
func TestAgentsKilled(t *testing.T) {
	testkit.Needs(t, testkit.All)
	const steps, limit = 60, 10 * time.Second
	r := testkit.Rand(t)
	dir, file := tiny(t, fmt.Sprint("max_steps: ", steps), "save_every: 7")
	a, b := startAgent(t, lent), startAgent(t, lent)
	plain := []string{"train", file, "global_batch=6", "ranks=3", "plan=" + dir + "/plan.json"}
	call("plan", file, plain[2], plain[3], "plan.pipeline=1", "--out", plain[4][len("plan="):]).must(t, 0)
	same := append(plain, fmt.Sprintf("hosts=[%s,%s]", a.addr, b.addr))
	began := time.Now()
	finish(t, child(nil, append(same, "out="+dir+"/whole")...)).must(t, 0)
	whole := time.Since(began)
	for _, host := range []*agent{a, b} {
		<-host.started
		<-host.left
	}
	within := func(what string, ended <-chan string, limit time.Duration) string {
		select {
		case said := <-ended:
			return said
		case <-time.After(limit):
			t.Fatalf("%s goes on", what)
			return ""
		}
	}
	var slowest time.Duration
	for range testkit.Count(1, 1, 100) {
		cmd := child(nil, same...)
		pipe, err := cmd.StderrPipe()
		check(t, err)
		check(t, cmd.Start())
		lines := bufio.NewReader(pipe)
		heard(lines, "all ")
		victims := []*exec.Cmd{cmd, <-a.started, <-b.started}
		victim := victims[r.IntN(3)].Process
		killed := make(chan time.Time, 1)
		kill := time.AfterFunc(time.Duration(r.Int64N(int64(whole))), func() {
			killed <- time.Now()
			_ = victim.Kill() // it may have ended
		})
		over := make(chan string, 1)
		go func() {
			said := heard(lines, "")
			_ = cmd.Wait() // the exit code says it
			over <- said
		}()
		said := within("the leader", over, whole+limit)
		for _, host := range []*agent{a, b} {
			within("a process", host.left, limit)
		}
		code := cmd.ProcessState.ExitCode()
		if !kill.Stop() {
			slowest = max(slowest, time.Since(<-killed))
		}
		switch {
		case code == 0:
			check(t, os.RemoveAll(dir+"/run"))
		case code > 0 && code != 4:
			t.Fatalf("the leader ends with %d\n%s", code, said)
		}
	}
	t.Logf("the slowest end took %v", slowest)
	finish(t, child(nil, same...)).must(t, 0)
	sameRun(t, dir+"/run", dir+"/whole", steps)
}
