package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/search"
)

// stopAtStep starts a training process, sends it a signal when it shows its
// first step, and returns the outcome.
func stopAtStep(t *testing.T, kind os.Signal, args ...string) result {
	t.Helper()
	// Under nohup, or in the background of a script, signals are ignored, and children inherit that. Signals
	// that are listened to are not ignored in children.
	heard := make(chan os.Signal, 1)
	signal.Notify(heard, kind)
	defer signal.Stop(heard)
	cmd := child(nil, args...)
	log, err := cmd.StderrPipe()
	check(t, err)
	check(t, cmd.Start())
	var text strings.Builder
	for s := bufio.NewScanner(log); s.Scan(); {
		fmt.Fprintln(&text, s.Text())
		if strings.HasPrefix(s.Text(), "step 1/") {
			check(t, cmd.Process.Signal(kind))
		}
	}
	_ = cmd.Wait() // the exit code says it
	return result{cmd.ProcessState.ExitCode(), "", text.String()}
}

// TestSignal: at SIGTERM, SIGINT, SIGHUP and the warnings of batch systems a run saves and ends with 75; the same
// command continues from there, to the losses and weights of an uninterrupted run.
func TestSignal(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	for _, kind := range append(warnings(), syscall.SIGTERM, os.Interrupt, syscall.SIGHUP) {
		dir, file := tiny(t, "max_steps: 1000000")
		r := stopAtStep(t, kind, "train", file).must(t, 75, "everything is saved: start the same command again")
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

// TestReaderGone: a run whose output nobody reads any more continues and is saved.
func TestReaderGone(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t)
	reader, writer, err := os.Pipe()
	check(t, err)
	check(t, reader.Close())
	cmd := child(nil, "train", file)
	cmd.Stderr = writer
	err = cmd.Run()
	check(t, writer.Close())
	if err != nil {
		t.Errorf("a run that nobody reads along ends with %v", err)
	}
	call("train", file, "max_steps=5").must(t, 0, "resuming "+dir+"/run/checkpoint-4 at step 4")
}

// signalling is standard error that sends the process a signal when it has been written to so many times.
type signalling struct {
	bytes.Buffer
	after int
	told  bool
}

func (s *signalling) Write(p []byte) (int, error) {
	if s.after--; s.after < 0 && !s.told {
		s.told = true
		got := make(chan os.Signal, 1)
		signal.Notify(got, syscall.SIGTERM)
		defer signal.Stop(got)
		self, err := os.FindProcess(os.Getpid())
		if err == nil {
			err = self.Signal(syscall.SIGTERM)
		}
		if err != nil {
			return 0, err
		}
		<-got
	}
	return s.Buffer.Write(p)
}

// TestEarlySignal: a signal while a run is prepared, whatever it does then, ends it at once, with the exit
// code that says to start it again, and leaves no folder.
func TestEarlySignal(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	for _, after := range testkit.Sample([]int{0, 1, 2, 3}, 1, 4) { // tokenizer, reading, what was read, planning
		dir, file := tiny(t)
		log := signalling{after: after}
		if code := execute([]string{"train", file}, io.Discard, &log); code != 75 || !strings.Contains(log.String(), "before the first step; start the same command again") {
			t.Errorf("after %d messages: exit code %d\n%s", after, code, log.String())
		}
		if _, err := os.Stat(dir + "/run/checkpoint-4"); err == nil {
			t.Errorf("after %d messages: it trained to the end", after)
		}
		if after == 0 {
			call("train", file).must(t, 0)
		}
	}
}

// TestFormerPlan: the plan with which a run's folder was trained is tried again on a machine
// with more, so a run does not get slower. A file that is no plan is passed over.
func TestFormerPlan(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t)
	check(t, os.Mkdir(dir+"/run", 0o755))
	args := []string{"plan", file, "hardware.name=l4", "--json"}
	var before, alone, after search.Report
	call(append(args, "limits.device=210KiB")...).must(t, 0).into(t, &alone)
	call(append(args, "limits.device=200KiB", "--out", dir+"/run/plan.json")...).must(t, 0).into(t, &before)
	call(append(args, "limits.device=210KiB")...).must(t, 0).into(t, &after)
	if after.Seconds > before.Seconds || after.Candidates != alone.Candidates+1 {
		t.Errorf("%v s of %d candidates, with less memory %v s; %d candidates in a new folder", after.Seconds, after.Candidates, before.Seconds, alone.Candidates)
	}
	call(append(args, "limits.device=210KiB", "sequence_length=16")...).must(t, 0) // of another length
	for _, text := range []string{"", "{", "{}", "null"} {
		check(t, os.WriteFile(dir+"/run/plan.json", []byte(text), 0o644))
		call(append(args, "limits.device=200KiB")...).must(t, 0)
	}
}

// TestLock: two processes cannot train in one folder; the second one says so
// and leaves it alone.
func TestLock(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	_, file := tiny(t, "max_steps: 1000000")
	cmd := child(nil, "train", file)
	log, err := cmd.StderrPipe()
	check(t, err)
	check(t, cmd.Start())
	s := bufio.NewScanner(log)
	for s.Scan() && !strings.HasPrefix(s.Text(), "step 1/") {
	}
	call("train", file).must(t, 1, "another process trains there", "hint:")
	call("train", file, "limits.device=1").must(t, 1, "another process trains there") // before checking whether a plan fits
	check(t, cmd.Process.Signal(syscall.SIGTERM))
	_, _ = io.Copy(io.Discard, log)
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 75 {
		t.Errorf("the first ended with %d", code)
	}
	call("train", file, "max_steps=1").must(t, 0) // free again
}

// TestNumericStop: a loss that is no longer a number ends the run with 5, and its cause is named; the
// checkpoints before it are whole. With skip_spikes a few such steps in a row are skipped first.
func TestNumericStop(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t, "max_steps: 4", "weight_decay: 1000")
	call("train", file, "learning_rate=1e-6").must(t, 0)
	// Every step multiplies the matrices by -10^6.
	call("train", file, "max_steps=50", "learning_rate=1000").must(t, 5, "not finite", "checkpoint-4 is intact", "the first", "is made in", "in the batch", "of the corpus", "hint:", "skip_spikes: 6")
	call("train", file, "max_steps=50", "learning_rate=1000", "skip_spikes=6").must(t, 5, "which is not finite; no weight has changed; skipped so far: 7", "so were the 7 steps before", "hint:")
	call("eval", dir+"/run/checkpoint-4", dir+"/corpus.txt").must(t, 0)
	call("train", file, "max_steps=6", "learning_rate=1e-6").must(t, 0, "checkpoint-4 at step 4")
}
