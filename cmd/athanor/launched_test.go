package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/machine"
	"github.com/athanor-llm/athanor/machine/machinetest"
)

// launch is a run of several processes, as a launcher starts them.
type launch struct {
	processes []*exec.Cmd
	logs      []*bytes.Buffer
	leader    *bufio.Scanner // what rank 0 says; it is copied to its log
}

// startAll starts n processes that train with the same arguments, of which two read the environment and the others are
// told by it what they are. All share this machine as they would if srun had started them on one host.
func startAll(t *testing.T, n int, args ...string) *launch {
	t.Helper()
	known, err := machinetest.Cores()
	check(t, err)
	for ranks := n; ranks <= 4; ranks += n {
		check(t, machine.KeepLaunched(known, ranks, n, t.TempDir()))
	}
	l := new(launch)
	for r := range n {
		cmd := child([]string{fmt.Sprint("RANK=", r), fmt.Sprint("WORLD_SIZE=", n), fmt.Sprint("LOCAL_RANK=", r), fmt.Sprint("LOCAL_WORLD_SIZE=", n),
			fmt.Sprint("GOMAXPROCS=", runtime.GOMAXPROCS(0)), machine.KeyVariable + "="}, append([]string{"train"}, args...)...)
		log := new(bytes.Buffer)
		if r > 0 {
			cmd.Stderr = log
		} else {
			pipe, err := cmd.StderrPipe()
			check(t, err)
			l.leader = bufio.NewScanner(io.TeeReader(pipe, log))
		}
		check(t, cmd.Start())
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		l.processes, l.logs = append(l.processes, cmd), append(l.logs, log)
	}
	return l
}

// heard reads what rank 0 says up to a line that begins with text, or to the end.
func (l *launch) heard(text string) {
	for l.leader.Scan() && !strings.HasPrefix(l.leader.Text(), text) {
	}
}

// wait returns what has become of all processes.
func (l *launch) wait() (list []result) {
	for l.leader.Scan() {
	}
	for r, cmd := range l.processes {
		_ = cmd.Wait() // the exit code says it
		list = append(list, result{cmd.ProcessState.ExitCode(), "", l.logs[r].String()})
	}
	return list
}

// must fails the test unless all processes end with a code.
func (l *launch) must(t *testing.T, code int) []result {
	t.Helper()
	list := l.wait()
	for r, got := range list {
		if got.code != code {
			t.Fatalf("process %d ends with %d, not %d\n%s\nrank 0: %s", r, got.code, code, got.stderr, list[0].stderr)
		}
	}
	return list
}

// TestLaunched: several processes, each with ranks of its own, compute what one process with the same ranks does, bit
// for bit: losses, weights and moments, whether ranks are replicas, divide the weights or are stages.
func TestLaunched(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t)
	for i, c := range testkit.Sample([]struct {
		processes int
		args      []string
	}{
		{2, []string{"ranks=2", "plan={pipeline: 1}"}},
		{4, []string{"ranks=4", "limits.device=150000"}},
		{2, []string{"ranks=2", "plan={pipeline: 2}"}},
		{2, []string{"ranks=4", "plan={pipeline: 2}"}},
		{2, []string{"ranks=2", "plan={sequence: 2}"}},
		{2, []string{"ranks=2", "plan={tensor: 2}"}},
	}, 0, 1) {
		one, several := fmt.Sprint(dir, "/one", i), fmt.Sprint(dir, "/several", i)
		call(append([]string{"train", file, "out=" + one}, c.args...)...).must(t, 0)
		l := startAll(t, c.processes, file, c.args[0], "plan="+one+"/plan.json", "out="+several)
		logs := l.must(t, 0)
		sameRun(t, several, one, 4)
		if strings.Contains(logs[0].stderr, "does not see") {
			t.Errorf("a process does not write its part of checkpoints:\n%s", logs[0].stderr)
		}
		if said := fmt.Sprintf("all %d processes are there, on 1 hosts", c.processes); !strings.Contains(logs[0].stderr, said) {
			t.Errorf("it does not say %q:\n%s", said, logs[0].stderr)
		}
	}
}
