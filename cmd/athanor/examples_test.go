package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestExamples: every example is a configuration, and the plans that its first lines ask for are
// found, without text, model files or the card.
func TestExamples(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	t.Chdir("../..")
	files, err := filepath.Glob("examples/*.yaml")
	check(t, err)
	var commands [][]string
	for _, file := range files {
		text, err := os.ReadFile(file)
		check(t, err)
		if _, err := config.Load(file, nil); err != nil {
			t.Error(err)
		}
		for line := range strings.Lines(string(text)) {
			args, ok := strings.CutPrefix(strings.TrimSpace(line), "#   go run ./cmd/athanor plan ")
			if !ok || !strings.Contains(args, "hardware.name=") { // others plan for this machine
				continue
			}
			commands = append(commands, append([]string{"plan"}, strings.Fields(args)...))
		}
	}
	if len(commands) < 3 {
		t.Fatalf("only %d plans in %q", len(commands), files)
	}
	var settled []string // below All: what would take half a minute to search
	if testkit.AtLevel() < testkit.All {
		settled = []string{"plan={micro_batch: 1, recompute: full, weights: device, state: device}"}
	}
	for _, args := range testkit.Sample(commands, 1, 1) {
		args = append(args, settled...)
		if r := call(args...).must(t, 0); !strings.Contains(r.stdout, "predicted: ") {
			t.Errorf("%q: %s", args, r.stdout)
		}
	}
}
