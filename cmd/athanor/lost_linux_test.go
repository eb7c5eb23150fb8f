package main

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/machine/machinetest"
)

// empty truncates a file that a process has open, whether or not it still has a
// name, and reports whether there was one whose name begins like that.
func empty(t *testing.T, pid int, name string) bool {
	t.Helper()
	list, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	check(t, err)
	for _, link := range list {
		if path, err := os.Readlink(link); err == nil && strings.HasPrefix(path, name) {
			check(t, os.Truncate(link, 0))
			return true
		}
	}
	return false
}

// TestRankLost: a process in which one rank's spill file is emptied while in use
// ends with 4 and the names of rank and instruction; its checkpoint is whole, and
// the same command continues from there to the losses and weights of an
// undisturbed run.
func TestRankLost(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t, "max_steps: 1000000", "ranks: 2", "limits: {disk_path: SPILL}")
	text, err := os.ReadFile(file)
	check(t, err)
	check(t, os.WriteFile(file, []byte(strings.Replace(string(text), "SPILL", dir+"/spill", 1)), 0o644))
	call("plan", file, spilled, "plan.pipeline=1", "--out", dir+"/p.json").must(t, 0)
	call("train", file, "plan="+dir+"/p.json", "max_steps=7", "out="+dir+"/plain").must(t, 0)
	for victim := range testkit.Count(1, 1, 2) {
		out := fmt.Sprint(dir, "/run", victim)
		args := []string{"train", file, "plan=" + dir + "/p.json", "out=" + out}
		call(append(args, "max_steps=4")...).must(t, 0)
		cmd := child(nil, args...)
		log, err := cmd.StderrPipe()
		check(t, err)
		check(t, cmd.Start())
		var said strings.Builder
		for s := bufio.NewScanner(log); s.Scan(); {
			fmt.Fprintln(&said, s.Text())
			var step int
			if _, err := fmt.Sscanf(s.Text(), "step %d/", &step); err != nil || step < 5 {
				continue
			}
			// Emptied at every step: after a write of the last chunk the file is
			// as long as before, and what it lost reads as zeros.
			if open := empty(t, cmd.Process.Pid, fmt.Sprint(dir, "/spill/rank", victim)); step == 5 && !open || step == 1000 {
				t.Errorf("step %d is done; was the spill file open? %v", step, open)
				check(t, cmd.Process.Kill())
			}
		}
		_ = cmd.Wait() // the exit code says it
		r := result{cmd.ProcessState.ExitCode(), "", said.String()}.must(t, 4, fmt.Sprintf("rank %d is lost", victim), "unexpected EOF", "hint:")
		if !regexp.MustCompile(fmt.Sprintf(`rank %d: i\d+ copy \S+ on disk_read`, victim)).MatchString(r.stderr) {
			t.Errorf("the instruction is not named:\n%s", r.stderr)
		}
		_, why, _ := strings.Cut(r.stderr, "\nathanor: ") // on a busy machine there may have been hints before
		if strings.Count(why, "hint:") != 1 {
			t.Errorf("not one hint:\n%s", r.stderr)
		}
		call(append(args, "max_steps=7")...).must(t, 0, "checkpoint-4 at step 4")
		sameRun(t, out, dir+"/plain", 7)
	}
}

// TestReadOnlySpill: a disk folder that cannot be written is reported, and no run
// begins, whether or not the machine is known already.
func TestReadOnlySpill(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t)
	spill, home := dir+"/spill", dir+"/home"
	check(t, os.Mkdir(spill, 0o555))
	check(t, os.Mkdir(home, 0o777))
	t.Setenv("HOME", home)
	check(t, machinetest.Restore())
	for _, path := range []string{filepath.Dir(dir), dir, home, home + "/.cache", home + "/.cache/athanor"} {
		check(t, os.Chmod(path, 0o777))
	}
	env := []string{"HOME=" + home, plainUser + "=1"}
	for ranks, path := range map[string]string{"ranks=1": spill, "ranks=2": spill + "/deeper"} {
		args := []string{"train", file, ranks, spilled, "limits.disk_path=" + path}
		finish(t, child(env, args...)).must(t, 1, spill, "permission denied", "limits.disk_path")
	}
	// The folder is made read-only when the machine has been measured.
	check(t, os.Chmod(spill, 0o777))
	args := []string{"train", file, spilled, "limits.disk_path=" + spill}
	finish(t, child(env, append(args, "max_steps=2")...)).must(t, 0)
	check(t, os.Chmod(spill, 0o555))
	finish(t, child(env, args...)).must(t, 1, spill, "permission denied", "limits.disk_path")
	check(t, os.Chmod(spill, 0o777))
	finish(t, child(env, args...)).must(t, 0, "checkpoint-2 at step 2")
}

// TestFolderVanishes: a run whose folder is moved away creates it anew for its next
// checkpoint, and resumes from that.
func TestFolderVanishes(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t, "max_steps: 1000000", "eval_every: 3")
	cmd := child(nil, "train", file)
	log, err := cmd.StderrPipe()
	check(t, err)
	check(t, cmd.Start())
	var said strings.Builder
	for s := bufio.NewScanner(log); s.Scan(); {
		fmt.Fprintln(&said, s.Text())
		if strings.HasPrefix(s.Text(), "step 3:") {
			check(t, os.Rename(dir+"/run", dir+"/gone"))
			check(t, cmd.Process.Signal(syscall.SIGTERM))
		}
	}
	_ = cmd.Wait() // the exit code says it
	result{cmd.ProcessState.ExitCode(), "", said.String()}.must(t, 75, "saved "+dir+"/run/checkpoint-")
	call("train", file, "max_steps=4").must(t, 0, "resuming "+dir+"/run/checkpoint-")
}
