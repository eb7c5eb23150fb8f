package train

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/athanor-llm/athanor/checkpoint"
	"github.com/athanor-llm/athanor/exec"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// fullDisk puts a disk without space in place of an open file, until restore is called.
func fullDisk(t *testing.T, path string) (restore func()) {
	t.Helper()
	full, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
	check(t, err)
	defer full.Close()
	list, err := filepath.Glob("/proc/self/fd/*")
	check(t, err)
	for _, link := range list {
		if name, err := os.Readlink(link); err != nil || !strings.HasPrefix(name, path) {
			continue
		}
		fd, err := strconv.Atoi(filepath.Base(link))
		check(t, err)
		own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		check(t, err)
		t.Cleanup(func() { unix.Close(own) })
		check(t, unix.Dup3(int(full.Fd()), fd, unix.O_CLOEXEC))
		return func() { check(t, unix.Dup3(own, fd, unix.O_CLOEXEC)) }
	}
	t.Fatalf("%s is not open", path)
	return nil
}

// TestSpillFails: a disk that refuses one rank's optimizer state ends the run
// with exit code 4, naming rank and instruction; moving the spill folder away
// does no harm, since the files have no names.
func TestSpillFails(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir := t.TempDir()
	file := runConfig(t, dir)
	spill := dir + "/spill"
	args := []string{"ranks=2", "plan.pipeline=1", "max_steps=8", "plan.state=disk", "plan.micro_batch=1", "plan.recompute=full", "limits.disk_path=" + spill}
	tr, _ := openRun(t, file, append(args, "out="+dir+"/moved")...)
	err := tr.Train(t.Context(), at{2, func() { check(t, os.Rename(spill, dir+"/gone")) }})
	check(t, errors.Join(err, tr.Close()))

	for victim := range 2 {
		out := fmt.Sprint(dir, "/full", victim)
		tr, _ = openRun(t, file, append(args, "out="+out)...)
		err = tr.Train(t.Context(), at{4, func() { fullDisk(t, fmt.Sprint(spill, "/rank", victim)) }})
		var lost *exec.PeerLostError
		if !errors.As(err, &lost) || lost.Rank != victim || lost.Instr < 0 || !errors.Is(err, unix.ENOSPC) || strings.Count(err.Error(), "hint:") != 1 {
			t.Errorf("rank %d's disk is full: %v", victim, err)
		}
		t.Log(err)
		_ = tr.Close()
		store := checkpoint.Store{Dir: out}
		if path, _, err := store.Latest(checkpoint.Checksums); err != nil || !strings.HasSuffix(path, "-3") {
			t.Errorf("latest checkpoint %s, %v", path, err)
		}
	}
}

// TestSaveFails: a rank whose state cannot be read for a checkpoint is lost as
// well; what was saved before stays.
func TestSaveFails(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir := t.TempDir()
	file := runConfig(t, dir)
	spill := dir + "/spill"
	tr, _ := openRun(t, file, "ranks=2", "plan.pipeline=1", "max_steps=8", "plan.state=disk", "plan.micro_batch=1", "plan.recompute=full", "limits.disk_path="+spill, "out="+dir+"/run")
	err := tr.Train(t.Context(), at{6, func() {
		list, err := filepath.Glob("/proc/self/fd/*")
		check(t, err)
		for _, link := range list {
			if name, err := os.Readlink(link); err == nil && strings.HasPrefix(name, spill+"/rank1") {
				check(t, os.Truncate(link, 0))
			}
		}
	}})
	var lost *exec.PeerLostError
	if !errors.As(err, &lost) || lost.Rank != 1 || !strings.Contains(err.Error(), "checkpoint-6") {
		t.Errorf("error is %v", err)
	}
	check(t, tr.Close())
	store := checkpoint.Store{Dir: dir + "/run"}
	if path, _, err := store.Latest(checkpoint.Checksums); err != nil || !strings.HasSuffix(path, "-3") {
		t.Errorf("latest checkpoint %s, %v", path, err)
	}
}
