package main

import (
	"encoding/json"
	"os"
	"regexp"
	"runtime"
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

// TestAlerts: an alert is in the log, in metrics.jsonl and at the command that the configuration names; what is no rule is
// refused before anything is read.
func TestAlerts(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t, "max_steps: 3")
	r := call("train", file, `alerts.rules=["step_seconds > 0 for 2"]`, "alerts.command=[tee, "+dir+"/told]").must(t, 0, "ALERT: step_seconds > 0 for 2: step_seconds is ")
	if n := strings.Count(r.stderr, "ALERT:"); n != 1 {
		t.Errorf("%d alerts:\n%s", n, r.stderr)
	}
	text, err := os.ReadFile(dir + "/run/metrics.jsonl")
	check(t, err)
	if lines := strings.Split(string(text), "\n"); strings.Contains(lines[0], "alerts") || !strings.Contains(lines[1], `"alerts":[{"rule":"step_seconds \u003e 0 for 2","step":2,"firing":true,`) {
		t.Errorf("metrics.jsonl has\n%s", text)
	}
	if told, err := os.ReadFile(dir + "/told"); runtime.GOOS != "windows" && (err != nil || !strings.HasPrefix(string(told), `{"rule":"step_seconds `)) {
		t.Errorf("the command was told %q, %v", told, err)
	}
	call("train", file, "alerts.rules=[loss]").must(t, 2, "alerts.rules", "hint: write rules such as")
	call("train", file, "alerts.off=slowly").must(t, 2, "alerts.off", "above_plan, headroom")
	call("train", file, "alerts.webhook=somewhere").must(t, 2, "alerts.webhook", "hint:")
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
