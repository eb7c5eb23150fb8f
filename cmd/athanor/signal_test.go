package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
)

// stopAtStep starts a training process, sends it a signal when it shows its
// first step, and returns what came of it.
func stopAtStep(t *testing.T, signal os.Signal, args ...string) result {
	t.Helper()
	cmd := child(nil, args...)
	log, err := cmd.StderrPipe()
	check(t, err)
	check(t, cmd.Start())
	var text strings.Builder
	for s := bufio.NewScanner(log); s.Scan(); {
		fmt.Fprintln(&text, s.Text())
		if strings.HasPrefix(s.Text(), "step 1/") {
			check(t, cmd.Process.Signal(signal))
		}
	}
	_ = cmd.Wait() // the exit code says it
	return result{cmd.ProcessState.ExitCode(), "", text.String()}
}

// TestSignal: SIGTERM and SIGINT save and end with 75; the same command goes on
// from there, to the losses and weights of a run that nobody stopped.
func TestSignal(t *testing.T) {
	for _, signal := range []os.Signal{syscall.SIGTERM, os.Interrupt} {
		dir, file := tiny(t, "max_steps: 1000000")
		r := stopAtStep(t, signal, "train", file).must(t, 75, "everything is saved, start me again")
		var at int
		_, text, _ := strings.Cut(r.stderr, "saved "+dir+"/run/checkpoint-")
		if _, err := fmt.Sscan(text, &at); err != nil {
			t.Fatalf("no checkpoint: %v\n%s", err, r.stderr)
		}
		steps := fmt.Sprint("max_steps=", at+5)
		call("train", file, steps).must(t, 0, fmt.Sprint("at step ", at))
		call("train", file, steps, "out="+dir+"/plain").must(t, 0)
		sameRun(t, dir+"/run", dir+"/plain", at+5)
	}
}

// TestLock: two processes cannot train in one folder; the second one says so
// and leaves it alone.
func TestLock(t *testing.T) {
	_, file := tiny(t, "max_steps: 1000000")
	cmd := child(nil, "train", file)
	log, err := cmd.StderrPipe()
	check(t, err)
	check(t, cmd.Start())
	s := bufio.NewScanner(log)
	for s.Scan() && !strings.HasPrefix(s.Text(), "step 1/") {
	}
	call("train", file).must(t, 1, "another process trains there", "hint:")
	check(t, cmd.Process.Signal(syscall.SIGTERM))
	_, _ = io.Copy(io.Discard, log)
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 75 {
		t.Errorf("the first ended with %d", code)
	}
	call("train", file, "max_steps=1").must(t, 0) // free again
}

// TestNumericStop: a loss that is not a number any more ends the run with 5;
// the checkpoints before it are whole.
func TestNumericStop(t *testing.T) {
	dir, file := tiny(t, "max_steps: 4", "weight_decay: 1000")
	call("train", file, "learning_rate=1e-6").must(t, 0)
	// Every step multiplies the matrices by -10^6.
	call("train", file, "max_steps=50", "learning_rate=1000").must(t, 5, "not a number", "hint:")
	call("eval", dir+"/run/checkpoint-4", dir+"/corpus.txt").must(t, 0)
	call("train", file, "max_steps=6", "learning_rate=1e-6").must(t, 0, "checkpoint-4 at step 4")
}
