package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/machine/machinetest"
	"github.com/athanor-llm/athanor/policy"
	"github.com/athanor-llm/athanor/search"
)

// thisMachine is a description such as `probe --out` writes, for one rank or several, between which there is a link.
func thisMachine(t *testing.T, ranks int) []byte {
	t.Helper()
	h, err := machinetest.Cores()
	check(t, err)
	if ranks == 1 {
		h.Links = slices.DeleteFunc(h.Links, func(l hardware.Link) bool { return l.From == l.To })
	}
	var b bytes.Buffer
	check(t, h.Print(&b))
	return b.Bytes()
}

// TestNoText: a plan, a timeline and the longest sequence are the same without text where they need none, even if the model
// is given in place of a file.
func TestNoText(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	_, file := tiny(t)
	const model = "{type: llama, layers: 2, width: 32, heads: 4, kv_heads: 2, vocabulary: 400}"
	for _, c := range []struct{ verb, memory string }{{"plan", "200KiB"}, {"simulate", "200KiB"}, {"plan --max-sequence", "700KiB"}} {
		verb, on := strings.Fields(c.verb), []string{"--json", "hardware.name=l4", "limits.device=" + c.memory}
		given := call(append(slices.Concat(verb, []string{file, "model=" + model}), on...)...).must(t, 0)
		bare := call(append(slices.Concat(verb, []string{model, "sequence_length=32", "global_batch=4"}), on...)...).must(t, 0)
		if given.stdout != bare.stdout || len(bare.stdout) < 20 {
			t.Errorf("%v: with text\n%swithout\n%s", verb, given.stdout, bare.stdout)
		}
	}
	call("plan", "../../testdata/torch/gpt2-tiny", "sequence_length=8", "global_batch=2", "hardware.name=l4").must(t, 0)
}

// TestDescribed: plans for machines other than this one, by name or by file, and
// by the policies of others.
func TestDescribed(t *testing.T) {
	testkit.Needs(t, testkit.All)
	dir, file := tiny(t)
	known := filepath.Join(dir, "hardware.json")
	check(t, os.WriteFile(known, thisMachine(t, 1), 0o644))
	var local, fast, slow struct {
		Seconds float64 `json:"step_seconds"`
	}
	call("plan", file, "hardware.name="+known, "--json").must(t, 0).into(t, &local)
	call("plan", file, "hardware.name=h100", "--json").must(t, 0).into(t, &fast)
	call("plan", file, "hardware.name=l4/pcie3", "hardware.h2d=1MB/s", "plan.state=host", "--json").must(t, 0).into(t, &slow)
	if !(fast.Seconds < slow.Seconds && fast.Seconds > 0 && local.Seconds > 0) {
		t.Errorf("step on an H100 %v s, on an L4 with a throttled link %v; by the file of this machine %v", fast.Seconds, slow.Seconds, local.Seconds)
	}
	for _, p := range policy.All() {
		words := []string{p.Name}
		if p.Name == policy.ElixirPaper {
			words = []string{"Elixir's search", "blocks"}
		}
		r := call("plan", file, "hardware.name=elixir-paper-40", "ranks=2", "--policy", p.Name).must(t, 0)
		for _, w := range words {
			if !strings.Contains(r.stdout, w) {
				t.Errorf("%s: no %q in %s", p.Name, w, r.stdout)
			}
		}
	}
	call("simulate", file, "hardware.name=a100-80").must(t, 0)
	call("plan", file, "hardware.name=a100-80", "limits.host=8TiB", "limits.disk=1000TiB").must(t, 0) // more than is usual with this card
	call("plan", file, "hardware.name=a100-80", "limits.device=64KiB", "--policy", policy.ElixirPaper).must(t, 3)
	call("plan", file, "hardware.name=a100-80", "limits.device=64KiB", "--policy", "zero-2").must(t, 3, "does not fit")
}

// TestSimulateRanks: simulate reports the same bytes of the first rank as the plan, including those from other ranks.
func TestSimulateRanks(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	_, file := tiny(t)
	var planned, simulated struct {
		Bytes search.Traffic `json:"bytes"`
	}
	args := []string{file, "hardware.name=a100-80", "ranks=2", "--json"}
	call(append([]string{"plan"}, args...)...).must(t, 0).into(t, &planned)
	call(append([]string{"simulate"}, args...)...).must(t, 0).into(t, &simulated)
	if a, b := simulated.Bytes, planned.Bytes; a.Network[0] == 0 || a.Network[0] != b.Network[0] || a.H2D[0] != b.H2D[0] {
		t.Errorf("simulated %+v, planned %+v", a, b)
	}
}

// TestPipelinePictures: all ranks of a pipeline are drawn, traced and reported, and the memory shown is that of the fullest
// rank, which is named.
func TestPipelinePictures(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t, "model: {type: llama, layers: 4, width: 32, heads: 4}", "max_steps: 4")
	args := func(verb string, more ...string) []string {
		return append([]string{verb, file, "hardware.name=a100-80", "ranks=4", "global_batch=8", "plan={pipeline: 4, schedule: zb-h1, stages: [0, 1, 4, 5]}"}, more...)
	}
	var planned search.Report
	var simulated simulateReport
	call(args("plan", "--json")...).must(t, 0).into(t, &planned)
	call(args("simulate", "--json", "--trace", dir+"/trace.json")...).must(t, 0).into(t, &simulated)
	if len(simulated.Ranks) != 4 || !slices.Equal(simulated.Peaks.Device, planned.Peaks.Device) || simulated.Seconds != planned.Seconds {
		t.Errorf("simulated %+v, planned %+v", simulated, planned)
	}
	fullest := slices.Index(planned.Peaks.Device, slices.Max(planned.Peaks.Device))
	if fullest == 0 {
		t.Fatal("the first rank is the fullest: the test tells nothing")
	}
	if text := call(args("simulate")...).must(t, 0).stdout; !strings.Contains(text, fmt.Sprintf("rank %d, which takes most device memory", fullest)) {
		t.Errorf("simulate says\n%s", text)
	}
	text := call(args("plan")...).must(t, 0).stdout
	if !strings.Contains(text, fmt.Sprintf("peak of rank %d, the fullest", fullest)) || !strings.Contains(text, fmt.Sprint(planned.Peaks.Device[fullest])) {
		t.Errorf("plan says\n%s", text)
	}
	call(args("draw", "--out", dir+"/a.svg")...).must(t, 0)
	call(args("draw", "--out", dir+"/a.html")...).must(t, 0)
	for r := range 4 {
		for _, name := range []string{"trace.json", "a.svg", "a.html"} {
			text, err := os.ReadFile(dir + "/" + name)
			check(t, err)
			if !strings.Contains(string(text), fmt.Sprintf("rank %d, predicted", r)) {
				t.Errorf("%s has no rank %d", name, r)
			}
		}
	}
	call(args("draw", "--view", "device", "--out", dir+"/m.svg")...).must(t, 0)
	picture, err := os.ReadFile(dir + "/m.svg")
	check(t, err)
	if !strings.Contains(string(picture), fmt.Sprintf(">rank %d, predicted<", fullest)) {
		t.Error("the memory map is of another rank")
	}
	call("draw", file, "hardware.name=a100-80", "ranks=4", "global_batch=8", "plan.pipeline=2", "--out", dir+"/b.svg").must(t, 0, "ranks 0 to 1 are shown, of 4")
}

// TestBadHardware: descriptions with impossible numbers, and machines that do
// not exist or cannot be run on.
func TestBadHardware(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t)
	good, text := filepath.Join(dir, "hardware.json"), thisMachine(t, 1)
	check(t, os.WriteFile(good, text, 0o644))
	for what, edit := range map[string]func(string) string{
		"zero rate":     func(s string) string { return replaceNumber(s, `"bandwidth": `, "0") },
		"negative rate": func(s string) string { return replaceNumber(s, `"f32": `, "-1e12") },
		"NaN":           func(s string) string { return replaceNumber(s, `"bf16": `, "NaN") },
		"infinity":      func(s string) string { return replaceNumber(s, `"latency": `, "1e999") },
		"negative size": func(s string) string { return replaceNumber(s, `"device": `, "-5") },
		"unknown field": func(s string) string { return strings.Replace(s, `"cores"`, `"coers"`, 1) },
		"half a file":   func(s string) string { return s[:len(s)/2] },
		"empty":         func(string) string { return "" },
	} {
		bad := filepath.Join(dir, "bad.json")
		check(t, os.WriteFile(bad, []byte(edit(string(text))), 0o644))
		if r := call("plan", file, "hardware.name="+bad).must(t, 2, "hardware.name"); r.stdout != "" {
			t.Errorf("%s: %s", what, r.stdout)
		}
	}
	for _, c := range [][]string{
		{"plan", file, "hardware.name=h1000"},
		{"plan", file, "hardware.name=h100/isa"},
		{"plan", file, "hardware.name=./absent.json"},
		{"plan", file, "hardware.name=" + dir},
		{"train", file, "hardware.name=h100"},
		{"plan", file, "hardware.name=h100", "limits.device=9000TiB"},
		{"plan", file, "hardware.name=" + good, "limits.host=9000TiB"},
		{"plan", file, "hardware.name=h100", "--policy", "zero-4"},
		{"plan", file, "hardware.name=h100", "ranks=3", "--policy", "zero-3"}, // 3 does not divide the batch
	} {
		call(c...).must(t, 2, "hint:")
	}
}

// replaceNumber replaces the first number after a key.
func replaceNumber(s, key, by string) string {
	at := strings.Index(s, key) + len(key)
	return s[:at] + by + s[at+strings.IndexAny(s[at:], ",\n"):]
}
