package main

import (
	"bytes"
	"io"
	"os"
	"strings"
	"testing"
)

// touching is standard error that creates a file when the first step is reported.
type touching struct {
	bytes.Buffer
	path string
}

func (s *touching) Write(p []byte) (int, error) {
	if s.path != "" && bytes.HasPrefix(p, []byte("step 1/")) {
		if err := os.WriteFile(s.path, nil, 0o644); err != nil {
			return 0, err
		}
		s.path = ""
	}
	return s.Buffer.Write(p)
}

// TestRequests: a file named save in the run's folder requests a checkpoint after the current step, one named stop also
// ends the run as a signal does; the files are removed, and losses and weights are those of a run without requests.
func TestRequests(t *testing.T) {
	dir, file := tiny(t, "max_steps: 4")
	call("train", file, "out="+dir+"/plain").must(t, 0)
	run := func(name string) (int, string) {
		log := &touching{path: dir + "/run/" + name}
		code := execute([]string{"train", file}, io.Discard, log)
		if _, err := os.Stat(dir + "/run/" + name); err == nil {
			t.Errorf("the file %s is still there", name)
		}
		return code, log.String()
	}
	if code, log := run("stop"); code != 75 || !strings.Contains(log, "saved "+dir+"/run/checkpoint-1") || !strings.Contains(log, "start the same command again") {
		t.Errorf("stop: %d\n%s", code, log)
	}
	call("train", file).must(t, 0, "at step 1")
	sameRun(t, dir+"/run", dir+"/plain", 4)
	check(t, os.RemoveAll(dir+"/run"))
	if code, log := run("save"); code != 0 || !strings.Contains(log, "saved "+dir+"/run/checkpoint-1\n") || !strings.Contains(log, "checkpoint-4") {
		t.Errorf("save: %d\n%s", code, log)
	}
	sameRun(t, dir+"/run", dir+"/plain", 4)

	// A request from before the run began is met too; a file that cannot be removed is reported.
	check(t, os.WriteFile(dir+"/run/stop", nil, 0o644))
	call("train", file, "max_steps=6").must(t, 75, "start the same command again")
	call("train", file, "max_steps=6").must(t, 0, "at step 4")
	check(t, os.MkdirAll(dir+"/run/save/full", 0o755))
	call("train", file, "max_steps=8").must(t, 1, "/run/save", "hint:")
}
