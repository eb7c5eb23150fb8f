//go:build unix

package main

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestLaunchedLost: if a process dies, whichever it is, or is asked to stop, the others end, with the code that tells a
// scheduler to start the job again; started again, the run goes on to the losses, weights and moments of an undisturbed one.
func TestLaunchedLost(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t, "max_steps: 1000000", "save_every: 1000000")
	same := []string{file, "ranks=2", "plan=" + dir + "/plan.json"}
	call("plan", file, "ranks=2", "plan.pipeline=1", "--out", dir+"/plan.json").must(t, 0)
	codes := map[syscall.Signal]int{syscall.SIGKILL: 4, syscall.SIGTERM: 75, syscall.SIGSTOP: 4}
	at := 0
	for _, c := range testkit.Sample([]struct {
		victim int
		kind   syscall.Signal
	}{{1, syscall.SIGTERM}, {1, syscall.SIGKILL}, {0, syscall.SIGKILL}, {1, syscall.SIGSTOP}, {0, syscall.SIGSTOP}}, 0, 2) {
		l := startAll(t, 2, same...)
		l.heard("step ")
		check(t, l.processes[c.victim].Process.Signal(c.kind))
		if c.kind == syscall.SIGSTOP {
			if c.victim == 0 {
				_ = l.processes[1].Wait()
			} else {
				l.heard("athanor: ")
			}
			check(t, l.processes[c.victim].Process.Kill())
		}
		list := l.wait()
		other := list[1-c.victim]
		if other.code != codes[c.kind] {
			t.Fatalf("process %d gets %v: the other ends with %d\n%s", c.victim, c.kind, other.code, other.stderr)
		}
		switch {
		case c.kind == syscall.SIGTERM:
			_, text, _ := strings.Cut(list[0].stderr, "saved "+dir+"/run/checkpoint-")
			if _, err := fmt.Sscan(text, &at); err != nil {
				t.Fatalf("no checkpoint: %v\n%s", err, list[0].stderr)
			}
		case !strings.Contains(other.stderr, fmt.Sprintf("process %d, on ", c.victim)) && !strings.Contains(other.stderr, fmt.Sprintf("rank %d is lost", c.victim)):
			t.Errorf("the loss of process %d is not named:\n%s", c.victim, other.stderr)
		}
	}
	steps := fmt.Sprint("max_steps=", at+3)
	startAll(t, 2, append(same, steps)...).must(t, 0)
	call(append([]string{"train"}, append(same, steps, "out="+dir+"/plain")...)...).must(t, 0)
	sameRun(t, dir+"/run", dir+"/plain", at+3)
}

// TestLaunchedKilled: a run of which a process, drawn anew, is killed at random moments, from when all have met to
// the end of training, again and again, ends each time in all processes within ten seconds, and goes on to the
// losses, weights and moments of an undisturbed one.
func TestLaunchedKilled(t *testing.T) {
	testkit.Needs(t, testkit.All)
	const processes, steps, limit = 3, 60, 10 * time.Second
	r := testkit.Rand(t)
	dir, file := tiny(t, fmt.Sprint("max_steps: ", steps), "save_every: 7")
	same := []string{file, "global_batch=6", fmt.Sprint("ranks=", processes), "plan=" + dir + "/plan.json"}
	call("plan", file, same[1], same[2], "plan.pipeline=1", "--out", dir+"/plan.json").must(t, 0)
	began := time.Now()
	startAll(t, processes, append(same, "out="+dir+"/whole")...).must(t, 0)
	whole, ends, lost := time.Since(began), 0, 0
	for range testkit.Count(1, 1, 100) {
		l := startAll(t, processes, same...)
		l.heard("all ")
		victim := l.processes[r.IntN(processes)]
		kill := time.AfterFunc(time.Duration(r.Int64N(int64(whole))), func() { _ = victim.Process.Kill() }) // it may have ended
		ended := make(chan []result, 1)
		go func() { ended <- l.wait() }()
		select {
		case list := <-ended:
			if kill.Stop(); list[0].code == 0 {
				ends++
				check(t, os.RemoveAll(dir+"/run"))
			}
			for _, got := range list {
				if got.code == 4 {
					lost++
				} else if got.code > 0 {
					t.Fatalf("a process ends with %d\n%s", got.code, got.stderr)
				}
			}
		case <-time.After(whole + limit):
			t.Fatal("the others go on")
		}
	}
	t.Logf("%d runs came to their end before; %d processes reported a loss", ends, lost)
	startAll(t, processes, same...).must(t, 0)
	sameRun(t, dir+"/run", dir+"/whole", steps)
}
