package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/search"
	"github.com/athanor-llm/athanor/train"
)

// trained is the JSON of train.
type trained struct {
	search.Report
	train.Summary
}

// smallest asks for a plan in next to no device memory and returns what the
// refusal says would be enough, as overrides.
func smallest(t *testing.T, file string, overrides ...string) []string {
	t.Helper()
	r := call(append([]string{"plan", file, "limits.device=1KiB", "--json"}, overrides...)...).must(t, 3, "does not fit", "hint:")
	var report search.Report
	r.into(t, &report)
	if report.Fits || len(report.Largest) == 0 || !slices.IsSortedFunc(report.Largest, func(a, b search.Largest) int { return int(b.Bytes - a.Bytes) }) {
		t.Fatalf("the refusal does not name the largest classes: %s", r.stdout)
	}
	return actions(t, report.Hint)
}

// actions are the overrides that a hint consists of.
func actions(t *testing.T, hint string) []string {
	t.Helper()
	var list []string
	for word := range strings.FieldsSeq(hint) {
		if strings.Contains(word, "=") {
			list = append(list, strings.Trim(word, ",;"))
		}
	}
	if len(list) == 0 {
		t.Fatalf("the hint %q names no action", hint)
	}
	return list
}

// TestMisfit: what cannot fit ends with exit code 3, the largest classes and a
// hint, and doing what the hint says makes it fit, while one byte less of device
// memory does not.
func TestMisfit(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	_, file := tiny(t)
	for _, short := range testkit.Sample([][]string{
		{"limits.device=1KiB"},
		{"limits.device=40KiB"},
		{"limits.device=1KiB", "limits.host=2KiB"},
		{"limits.device=1KiB", "limits.host=2KiB", "limits.disk=none"},
		{"limits.device=100KiB", "plan.weights=device", "plan.state=device"},
		{"limits.device=100KiB", "plan.recompute=none"},
		{"limits.device=100KiB", "precision=bf16"},
		{"limits.device=1KiB", "plan.micro_batch=1", "plan.group=4"},
		{"limits.device=1KiB", "sequence_length=61", "global_batch=2", "precision=bf16", "gradient_clipping=0", "plan.state=device", "optimizer_state=fp32"},
		{"limits.device=1KiB", "ranks=2", "plan.pipeline=2", "plan.schedule=zb-h1"},
	}, 1, 3) {
		r := call(append([]string{"plan", file}, short...)...).must(t, 3, "does not fit", "hint:")
		if !strings.Contains(r.stderr, "weights on the") && !strings.Contains(r.stderr, "activations on the") {
			t.Errorf("%v: the largest classes are not named:\n%s", short, r.stderr)
		}
		if first, list := strings.Index(r.stderr, "the model does not fit: the most frugal plan takes"), strings.Index(r.stderr, " on the "); first < 0 || first > list {
			t.Errorf("%v: the reason is not said first:\n%s", short, r.stderr)
		}
		_, hint, _ := strings.Cut(r.stderr, "hint:")
		enough := actions(t, hint)
		call(append(append([]string{"plan", file}, short...), enough...)...).must(t, 0)
	}
	var n int64
	_, err := fmt.Sscanf(smallest(t, file)[0], "limits.device=%d", &n)
	check(t, err)
	call("plan", file, fmt.Sprint("limits.device=", n-1)).must(t, 3, fmt.Sprint("limits.device=", n))
}

// TestBudgets are the promises 2 and 5 and law L2 from outside: for budgets
// from everything down to the smallest feasible one, the run reaches exactly
// the bytes that the plan says, in every tier and on every link, within the
// budget, and computes the same losses and weights.
func TestBudgets(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	for _, model := range testkit.Sample([][]string{
		{"max_steps: 4"},
		{"max_steps: 4", "model: {type: gpt2, layers: 3, width: 32, heads: 4}", "precision: bf16"},
	}, 1, 1) {
		t.Run(strings.Join(model, " "), func(t *testing.T) { budgets(t, model) })
	}
}

func budgets(t *testing.T, model []string) {
	dir, file := tiny(t, model...)
	call("train", file, "out="+dir+"/plain").must(t, 0)
	var whole search.Report
	call("plan", file, "--json").must(t, 0).into(t, &whole)
	least := smallest(t, file)
	var low int64
	_, err := fmt.Sscanf(least[0], "limits.device=%d", &low)
	check(t, err)
	high := whole.Plain // the fastest plan may need less, where the host's cores do a part of the updates
	if high < 4*low {
		t.Fatalf("the plain run takes %d bytes, the smallest budget %d: not much of a range", high, low)
	}
	var list [][]string
	for i := range testkit.Count(1, 1, 6) {
		n := int64(float64(low) * math.Pow(float64(high)/float64(low), float64(i)/5))
		list = append(list, []string{fmt.Sprintf("limits.device=%d", n)})
	}
	list = append(list, testkit.Sample([][]string{append(least, "plan.state=disk"), {}, {"plan.state=disk"}}, 1, 2)...)
	for i, b := range list {
		out := fmt.Sprintf("%s/run%d", dir, i)
		args := append([]string{"train", file, "--json", "out=" + out}, b...)
		r := call(args...).must(t, 0)
		var got trained
		r.into(t, &got)
		if !reflect.DeepEqual(*got.Peaks, got.MeasuredPeaks) {
			t.Errorf("%v: planned %+v, reached %+v", b, *got.Peaks, got.MeasuredPeaks)
		}
		if !reflect.DeepEqual(*got.Report.Bytes, got.MeasuredBytes) {
			t.Errorf("%v: planned to move %+v, moved %+v", b, *got.Report.Bytes, got.MeasuredBytes)
		}
		if got.Peaks.Device[0] > got.Capacity.Device[0] || got.Peaks.Host[0] > got.Capacity.Host[0] {
			t.Errorf("%v: peaks %+v, capacity %+v", b, got.Peaks, got.Capacity)
		}
		if slices.Contains(b, "plan.state=disk") && got.MeasuredPeaks.Disk[0] == 0 {
			t.Errorf("%v: nothing on disk", b)
		}
		sameRun(t, out, dir+"/plain", 4)
	}
}

// TestOtherBudgetResumes: a run that was begun with all the memory continues in
// the smallest that suffices, on disk, and back, to the same end.
func TestOtherBudgetResumes(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t, "max_steps: 8")
	call("train", file, "out="+dir+"/plain").must(t, 0)
	least := smallest(t, file)
	for i, b := range [][]string{{}, least, {spilled}, {}} {
		r := call(append([]string{"train", file, fmt.Sprint("max_steps=", 2*i+2)}, b...)...)
		if i == 0 {
			r.must(t, 0)
		} else {
			r.must(t, 0, fmt.Sprint("resuming ", dir, "/run/checkpoint-", 2*i))
		}
	}
	sameRun(t, dir+"/run", dir+"/plain", 8)
	call("train", file, "seed=7").must(t, 2, "seed is 1 there and 7 here", "hint:")
	call("train", file, "resume=never").must(t, 2, "resume", "hint:")
}

// TestPlanFile: a plan that was written to a file is run as it is; a bad edit by hand
// is refused with what is wrong and where, and the run's folder is left unchanged.
func TestPlanFile(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t)
	path := dir + "/p.json"
	call("plan", file, "limits.device=200KiB", "--out", path).must(t, 0)
	text, err := os.ReadFile(path)
	check(t, err)
	call("train", file, "out="+dir+"/plain").must(t, 0)
	call("train", file, "plan="+path).must(t, 0)
	sameRun(t, dir+"/run", dir+"/plain", 4)
	var want, got any
	kept, err := os.ReadFile(dir + "/run/plan.json")
	check(t, err)
	check(t, json.Unmarshal(text, &want))
	check(t, json.Unmarshal(kept, &got))
	if !reflect.DeepEqual(got, want) {
		t.Errorf("another plan was run:\n%s\nwant\n%s", kept, text)
	}
	chunk := func(p map[string]any, i int) map[string]any { return p["chunks"].([]any)[i].(map[string]any) }
	for name, c := range map[string]struct {
		edit func(p map[string]any)
		code int
		want string
	}{
		"unknown field":    {func(p map[string]any) { p["swop"] = 1 }, 2, "swop"},
		"another model":    {func(p map[string]any) { p["model"] = "gpt2" }, 2, "hint: make a new plan, or leave `plan` out"},
		"another length":   {func(p map[string]any) { p["sequence_length"] = 64 }, 2, "hint: make a new plan, or set sequence_length: 64"},
		"other precision":  {func(p map[string]any) { p["precision"] = "bf16" }, 2, "hint: make a new plan, or set precision: bf16"},
		"precision":        {func(p map[string]any) { p["precision"] = "fp8" }, 2, "hint: use fp32 or bf16"},
		"product":          {func(p map[string]any) { p["micro_batches"], p["group"] = 3, 1 }, 2, "global_batch"},
		"zero batch":       {func(p map[string]any) { p["micro_batch"] = 0 }, 2, "micro_batch"},
		"huge batch":       {func(p map[string]any) { p["micro_batch"], p["micro_batches"] = 1<<40, 1<<40 }, 2, "micro_batch"},
		"overflow":         {func(p map[string]any) { p["micro_batch"], p["micro_batches"] = int64(1)<<62+1, 4 }, 2, "micro_batch"},
		"group":            {func(p map[string]any) { p["group"] = 1000 }, 2, "group"},
		"head rows":        {func(p map[string]any) { p["head_rows"] = 7 }, 2, "head_rows"},
		"tier":             {func(p map[string]any) { chunk(p, 0)["state"] = "moon" }, 2, "moon"},
		"weights on disk":  {func(p map[string]any) { chunk(p, 0)["weights"] = "disk" }, 2, "chunk 0"},
		"state above":      {func(p map[string]any) { chunk(p, 0)["weights"], chunk(p, 0)["state"] = "host", "device" }, 2, "chunk 0"},
		"update nowhere":   {func(p map[string]any) { chunk(p, 0)["update"] = "gpu" }, 2, `chunk 0: update cannot be "gpu"; hint: use "device"`},
		"update as number": {func(p map[string]any) { chunk(p, 0)["update"] = 1 }, 2, "update"},
		"update twice": {func(p map[string]any) {
			for k, v := range map[string]any{"weights": "device", "grads": "device", "state": "device", "update": "device"} {
				chunk(p, 0)[k] = v
			}
		}, 2, "on the device already; hint"},
		"empty chunk":      {func(p map[string]any) { chunk(p, 0)["last"] = chunk(p, 0)["first"] }, 2, "chunk"},
		"huge chunk":       {func(p map[string]any) { chunk(p, 0)["last"] = 1 << 50 }, 2, "chunk"},
		"negative chunk":   {func(p map[string]any) { chunk(p, 0)["first"] = -5 }, 2, "chunk"},
		"no chunks":        {func(p map[string]any) { p["chunks"] = []any{} }, 2, "chunks cover 0"},
		"chunks as number": {func(p map[string]any) { p["chunks"] = 3 }, 2, "chunks"},
		"recompute":        {func(p map[string]any) { p["activations"] = []any{"none", "some"} }, 2, "some"},
		"few layers":       {func(p map[string]any) { p["activations"] = []any{"none"} }, 2, "activations"},
		"prefetch":         {func(p map[string]any) { p["prefetch"] = -1 }, 2, "prefetch"},
		"huge prefetch":    {func(p map[string]any) { p["prefetch"] = int64(1) << 60 }, 2, "prefetch"},
		"fraction":         {func(p map[string]any) { p["micro_batch"] = 1.5 }, 2, "micro_batch"},
	} {
		t.Run(name, func(t *testing.T) {
			var p map[string]any
			check(t, json.Unmarshal(text, &p))
			c.edit(p)
			edited, err := json.Marshal(p)
			check(t, err)
			check(t, os.WriteFile(path, edited, 0o644))
			call("train", file, "plan="+path).must(t, c.code, c.want)
		})
	}
	for name, text := range map[string]string{"empty": "", "text": "hello", "list": "[]", "null": "null", "twice": string(text) + string(text), "cut": string(text[:len(text)/2])} {
		t.Run(name, func(t *testing.T) {
			check(t, os.WriteFile(path, []byte(text), 0o644))
			call("train", file, "plan="+path).must(t, 2, path, "hint:")
		})
	}
	check(t, os.WriteFile(path, text, 0o644))
	call("train", file, "plan="+path, "limits.device=1KiB").must(t, 3, "the given plan does not fit", "hint: it fits with limits.device=", "another plan may need less")
	sameRun(t, dir+"/run", dir+"/plain", 4)
}
