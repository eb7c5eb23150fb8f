package main

import (
	"bufio"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/athanor-llm/athanor/internal/cli"
	"github.com/athanor-llm/athanor/internal/pty"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/job"
	"github.com/athanor-llm/athanor/machine/machinetest"
	"github.com/athanor-llm/athanor/policy"
	"github.com/athanor-llm/athanor/train"
)

// TestTrainingInNarrowTerminal: the part of a step's line that fits into few columns has the step and when all will be done.
func TestTrainingInNarrowTerminal(t *testing.T) {
	t.Setenv("TERM", "xterm")
	var spec job.Spec
	spec.MaxSteps = 1600
	for columns, words := range map[uint16][]string{40: {"step 827/1600  51%  ETA "}, 80: {"loss 4.1953", "21131 tokens/s", "%"}, 120: {"MFU", "lr", "step 0.0485 s (predicted 0.0477)"}} {
		screen, keys := pty.Open(t, columns)
		u := &training{t: &train.Run{Setup: &train.Setup{Spec: &spec}}, line: cli.NewStatus(keys), began: time.Now()}
		u.Step(train.Metrics{Step: 827, Loss: 4.1953, LearningRate: 8.96e-4, GradNorm: 1.37, Rate: 21131, MFU: 0.635, StepSeconds: 0.0485, Predicted: 0.0477})
		text := pty.Shown(t, screen, keys)
		for _, w := range words {
			if !strings.Contains(text, w) {
				t.Errorf("no %q in %d columns: %q", w, columns, text)
			}
		}
	}
}

// TestLinesFitTerminals: no line that a terminal of 80 or 120 columns gets is wider, and none is cut within a word: the words
// are those that a pipe gets.
func TestLinesFitTerminals(t *testing.T) {
	t.Setenv("TERM", "xterm")
	_, file := tiny(t)
	check(t, machinetest.Restore())
	for _, args := range [][]string{
		{"plan", file, "hardware.name=l4"},
		{"plan", file, "hardware.name=l4", "ranks=2", "limits.device=64KiB", "limits.host=128KiB", "limits.disk=64KiB"},
		{"plan", file, "hardware.name=elixir-paper-40", "--policy", policy.ElixirPaper},
		{"plan", file, "hardware.name=2x8 a100", "sequence_length=-1", "learning_rat=3"},
		{"plan", file, "hardware.name=l4", "--policy", "nobody's"},
		{"roofline", file, "hardware.name=l4"},
		{"data", file},
		{"keys", "limits"},
		{"doctor"},
	} {
		piped := callHere(args...)
		want := slices.DeleteFunc(strings.Fields(piped.stdout), func(w string) bool { return w == "#" })
		for _, columns := range testkit.Sample([]uint16{80, 120}, 1, 1) {
			screen, keys := pty.Open(t, columns)
			shown := make(chan string)
			go func() {
				text, _ := bufio.NewReader(screen).ReadString(0)
				shown <- strings.TrimSuffix(text, "\x00")
			}()
			code := execute(args, keys, keys)
			fmt.Fprint(keys, "\x00")
			text := strings.NewReplacer("\x1b[K", "", "\r\n", "\n", "\r", "\n").Replace(<-shown)
			if code != piped.code {
				t.Errorf("%v: exit code %d, through a pipe %d", args, code, piped.code)
			}
			for line := range strings.Lines(text) {
				if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > int(columns) {
					t.Errorf("%v: %d columns of %d: %q", args, n, columns, line)
				}
			}
			if args[0] == "doctor" { // how much memory is free is of the moment
				continue
			}
			got := slices.DeleteFunc(strings.Fields(text), func(w string) bool { return w == "#" }) // what begins a comment's next line
			for _, w := range want {                                                                // progress, which a pipe does not get, is between them
				i := slices.Index(got, w)
				if i < 0 {
					t.Errorf("%v: no %q in %d columns", args, w, columns)
					break
				}
				got = got[i+1:]
			}
		}
	}
}
