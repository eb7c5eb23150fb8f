package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/device/cuda"
	"github.com/athanor-llm/athanor/internal/cli/clitest"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/machine/machinetest"
)

func TestMain(m *testing.M) {
	if cuda.ServeProbe() {
		return
	}
	code, err := machinetest.Run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

// call runs the command and returns exit code, standard output and standard error.
func call(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, log bytes.Buffer
	code = command().Execute(args, &out, &log)
	return code, out.String(), log.String()
}

func TestHelp(t *testing.T)            { clitest.Help(t, command) }
func TestFlagsKeepValues(t *testing.T) { clitest.FlagsKeepValues(t, command) }

// TestUsage: what is wrong with a command line is reported with a way out, and the exit code is 2.
func TestUsage(t *testing.T) {
	dir := t.TempDir()
	file := dir + "/run.yaml"
	if err := os.WriteFile(file, []byte("data: "+file+"\nmodel: gpt2\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string][]string{
		"pack " + dir:                        {"directory"},
		"pack absent.csv":                    {"absent.csv"},
		"schedule 1f1b --orders absent":      {"absent"},
		"schedule search --effort=-1":        {"--effort -1"},
		"schedule search --ranks=100000":     {"100000 ranks", "at most 262144"},
		"schedule all --effort=-1":           {"--effort -1"},
		"schedule 1f1b --nodes=-2":           {"--nodes -2"},
		"schedule search --chunks=-3":        {"-3 chunks"},
		"schedule search --depth-first=-3":   {"-3 depth-first"},
		"schedule all --splits=-3":           {"-3 splits"},
		"schedule 1f1c":                      {`"1f1b"`},
		"scale laws --flops=1e20 --hours=24": {"--flops 1e+20 and --hours 24"},
		"scale --batch=-3":                   {"--batch -3"},
		"scale --model " + dir:               {"is not known"},
		"bench policies --models gpt3":       {"gpt3"},
		"bench policies --gpus 0":            {"0 ranks"},
		"bench policies --gpus":              {"--gpus"},
		"bench policies --batch -1":          {"--batch"},
		"bench sweep " + file + " --links 3": {"--links"},
		"bench sweep " + file + " --count=1": {"--count"},
		"bench swap " + file + " --count=0":  {"--count"},
	} {
		code, stdout, stderr := call(t, strings.Fields(args)...)
		if code != 2 || stdout != "" || !strings.Contains(stderr, "hint:") {
			t.Errorf("athanor-lab %s: exit code %d: %s%s", args, code, stdout, stderr)
		}
		for _, w := range want {
			if !strings.Contains(stderr, w) {
				t.Errorf("athanor-lab %s does not say %q: %s", args, w, stderr)
			}
		}
	}
}

// TestJSON: with --json every verb prints one object with the fields that
// scripts rely on, and nothing else.
func TestJSON(t *testing.T) {
	buffers := filepath.Join(t.TempDir(), "buffers.csv")
	if err := os.WriteFile(buffers, []byte("id,lower,upper,size\na,0,2,64\nb,1,3,64\nc,2,4,128\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		code       int
		args, want string
	}{
		{0, "scale cluster --x 8 --gpus 8", "model cluster work fits plan"},
		{3, "scale cluster --memory 1KiB", "model cluster work fits misfit"},
		{0, "schedule 1f1b", "name ranks microbatches makespan ideal bubble spans peaks weight_copies messages orders"},
		{3, "schedule 1f1b --cap 1", "name peaks orders"},
		{0, "pack " + buffers, "height lower_bound optimal feasible nodes seconds conflict"},
	} {
		code, stdout, stderr := call(t, append(strings.Fields(c.args), "--json")...)
		var object map[string]any
		if err := json.Unmarshal([]byte(stdout), &object); err != nil || code != c.code {
			t.Errorf("athanor-lab %s: exit code %d, %v: %s", c.args, code, err, stderr)
		}
		for _, field := range strings.Fields(c.want) {
			if _, ok := object[field]; !ok {
				t.Errorf("athanor-lab %s --json has no %s: %v", c.args, field, object)
			}
		}
	}
}

// TestRows: the rows of a table that takes long appear on standard error as they come where the result is JSON, else on
// standard output.
func TestRows(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	policies := func(more ...string) (stdout, stderr string) {
		code, stdout, stderr := call(t, append(strings.Fields("bench policies --models gpt2 --gpus 1 --batch 1 --sequence 64 --hardware"), more...)...)
		if code != 0 {
			t.Fatalf("exit code %d: %s", code, stderr)
		}
		return stdout, stderr
	}
	both, rows := policies("elixir-paper-40,elixir-paper-80", "--json")
	var object struct{ Contests, Ratios []any }
	if err := json.Unmarshal([]byte(both), &object); err != nil || len(object.Contests) != 2 || len(object.Ratios) == 0 {
		t.Errorf("%v: %s", err, both)
	}
	one, none := policies("elixir-paper-40")
	if n := strings.Count(rows, "gpt2 "); n != 2 || !strings.HasPrefix(one, rows[:strings.LastIndex(rows, "gpt2 ")]) || none != "" {
		t.Errorf("%d rows of 2 on standard error:\n%sof one without --json:\n%s%s", n, rows, one, none)
	}
}

// full is a disk without room.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left") }

// TestLostResults: a result that could not be written is not a success.
func TestLostResults(t *testing.T) {
	for _, args := range []string{"schedule 1f1b", "schedule 1f1b --json"} {
		var log bytes.Buffer
		if code := command().Execute(strings.Fields(args), full{}, &log); code != 1 || !strings.Contains(log.String(), "no space left") {
			t.Errorf("athanor-lab %s: exit code %d, %s", args, code, log.String())
		}
	}
}
