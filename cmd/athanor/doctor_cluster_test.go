package main

import (
	stdctx "context"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/athanor-llm/athanor/cluster"
	"github.com/athanor-llm/athanor/device/remote"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/machine"
)

// TestDoctorHosts: doctor says what a host that serves has and how fast sums with it are, and of one that cannot be used,
// why; and where the processes that a launcher starts would meet.
func TestDoctorHosts(t *testing.T) {
	const key = "a key of this test of doctor"
	t.Setenv(machine.KeyVariable, key)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	ctx, stop := stdctx.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		a := cluster.Agent{Key: []byte(key), Lent: cluster.Lent{Spill: t.TempDir()}, Limits: remote.Limits{Memory: 1 << 30, Ranks: 2}, Command: startProcess(os.Args[0]), Note: func(string) {}}
		ended <- a.Serve(ctx, l)
	}()
	defer func() {
		stop()
		check(t, <-ended)
	}()
	addr := l.Addr().String()
	for variable, want := range map[string]string{"": "with it take", "another key of this test of doctor": "does not accept this key", "short": "at least 16 characters"} {
		code := 1
		if variable == "" {
			variable, code = key, 0
		}
		t.Setenv(machine.KeyVariable, variable)
		if text := call("doctor", "--hosts", addr).must(t, code).stdout; !strings.Contains(text, "host "+addr) || !strings.Contains(text, want) {
			t.Errorf("doctor does not say %q of %s:\n%s", want, addr, text)
		}
	}
	for rank, want := range map[string]string{"0": "the others reach it at", "1": "or at 127.0.0.1:"} {
		_, port, err := net.SplitHostPort(addr) // which is taken
		check(t, err)
		for name, value := range map[string]string{"RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port} {
			t.Setenv(name, value)
		}
		text := call("doctor").must(t, 0).stdout
		if !strings.Contains(text, "process "+rank+" of 2") || !strings.Contains(text, want) || strings.Contains(text, "is taken") != (rank == "0") {
			t.Errorf("doctor does not say %q of process %s:\n%s", want, rank, text)
		}
	}
}

// TestDoctorMeets: the processes that a launcher has started meet for doctor as for a run, and the first says what is between
// them, and whether all see the folder.
func TestDoctorMeets(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	one, other := t.TempDir(), t.TempDir()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	_, port, err := net.SplitHostPort(l.Addr().String())
	check(t, err)
	check(t, l.Close())
	for want, folders := range map[string][]string{"all processes see " + one: {one, one}, "process 1 does not see " + one: {one, other}} {
		var all sync.WaitGroup
		results := make([]result, 2)
		for r := range results {
			all.Go(func() {
				env := []string{fmt.Sprint("RANK=", r), "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + port, machine.KeyVariable + "=a key of this test of doctor"}
				results[r] = finish(t, child(env, "doctor", "--meet", "--path", folders[r]))
			})
		}
		all.Wait()
		text := results[0].must(t, 0).stdout
		for _, want := range []string{"all 2 are there, on 1 hosts", "process 1", "with it take", want} {
			if !strings.Contains(text, want) {
				t.Errorf("doctor does not say %q:\n%s", want, text)
			}
		}
		results[1].must(t, 0)
		for _, folder := range folders {
			if list, err := os.ReadDir(folder); err != nil || len(list) > 0 {
				t.Errorf("it leaves %v, %v", list, err)
			}
		}
	}
	call("doctor", "--meet").must(t, 2, "no launcher has started several processes")
}
