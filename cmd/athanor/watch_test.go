package main

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/draw"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestWatchErrors: what cannot be watched is named, with what to do.
func TestWatchErrors(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	call("watch").must(t, 2, "no folder runs", "hint:")
	call("watch", "absent").must(t, 1, "absent", "hint:")
	check(t, os.WriteFile("file", nil, 0o644))
	call("watch", "file").must(t, 1, "not a folder", "hint:")
	call("watch", dir, "--listen", "nowhere:x").must(t, 1, "--listen")
}

// TestDashboard: a run with a page says where it is; its folder has the plan's step beside the measured one, whose bytes are
// those planned, and the sample.
func TestDashboard(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t, "max_steps: 3", "dashboard: true", "sample: {prompt: the, tokens: 3}")
	r := call("train", file).must(t, 0)
	if !regexp.MustCompile(`page: http://127\.0\.0\.1:\d+/; also later, with athanor watch `).MatchString(r.stderr) {
		t.Errorf("it does not say where the page is:\n%s", r.stderr)
	}
	text, err := os.ReadFile(dir + "/run/step.json")
	check(t, err)
	var s draw.Step
	check(t, json.Unmarshal(text, &s))
	if len(s.Runs) != 2 || s.Runs[0].Name != "predicted" || s.Runs[1].Name != "measured at step 2" || s.Runs[0].Tiers[0].Peak != s.Runs[1].Tiers[0].Peak {
		t.Errorf("the step has %d runs: %.200s", len(s.Runs), text)
	}
	if text, err = os.ReadFile(dir + "/run/samples.jsonl"); err != nil || !strings.HasPrefix(string(text), `{"step":3,"prompt":"the","text":"the`) {
		t.Errorf("samples.jsonl: %s, %v", text, err)
	}
}
