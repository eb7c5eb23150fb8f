package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestRanks: a run on several ranks reaches on each of them the bytes that the
// plan says, and its losses are those of one rank up to the order of sums; the
// trace has all ranks, plan and checkpoint have the hash that the ranks agreed on.
func TestRanks(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t, "max_steps: 4", "eval_every: 2", "sample: {prompt: the, tokens: 4}")
	call("train", file, "out="+dir+"/plain", "ranks=auto").must(t, 0)
	want := losses(t, dir+"/plain")
	for i, args := range testkit.Sample([][]string{
		{"ranks=2"}, {"ranks=4", "limits.device=150000"}, {"ranks=4"}, {"ranks=2", spilled}, {"ranks=2", "hardware.peers=1GB/s"},
	}, 1, 3) {
		out := fmt.Sprint(dir, "/run", i)
		var got trained
		call(append([]string{"train", file, "--json", "out=" + out}, args...)...).must(t, 0).into(t, &got)
		if !reflect.DeepEqual(*got.Peaks, got.MeasuredPeaks) || !reflect.DeepEqual(*got.Report.Bytes, got.MeasuredBytes) {
			t.Errorf("%v: planned %+v %+v, reached %+v %+v", args, *got.Peaks, *got.Report.Bytes, got.MeasuredPeaks, got.MeasuredBytes)
		}
		if n := len(got.Peaks.Device); fmt.Sprint("ranks=", n) != args[0] || got.Ranks != n {
			t.Errorf("%v: %d ranks, memory of %d", args, got.Ranks, n)
		}
		for k, l := range losses(t, out) {
			if math.Abs(l/want[k]-1) > 1e-5 {
				t.Errorf("%v: step %d: loss %v, on one rank %v", args, k+1, l, want[k])
			}
		}
		trace, err := os.ReadFile(out + "/trace.json")
		check(t, err)
		if n := strings.Count(string(trace), ", measured at step 2"); n != got.Ranks {
			t.Errorf("%v: %d ranks in the trace", args, n)
		}
		state, err := os.ReadFile(out + "/checkpoint-4/trainer_state.json")
		check(t, err)
		if h := got.PlanHash; len(h) != 16 || !strings.Contains(string(state), h) {
			t.Errorf("%v: plan hash %q is not in the checkpoint: %s", args, h, state)
		}
	}
}

// TestRanksFit: what is said to be enough for all ranks is enough.
func TestRanksFit(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	_, file := tiny(t)
	r := call("plan", file, "ranks=4", "limits.device=1000").must(t, 3, "hint: it fits with limits.device=")
	_, hint, _ := strings.Cut(r.stderr, "hint:")
	args := append([]string{"train", file, "ranks=4", "max_steps=1"}, actions(t, hint)...)
	call(args...).must(t, 0)
}

// TestFewSequences: a pipeline may have more ranks than the batch has sequences.
func TestFewSequences(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	_, file := tiny(t)
	r := call("plan", file, "ranks=4", "global_batch=2", "plan.pipeline=4").must(t, 0)
	if !strings.Contains(r.stdout, "the plain run would take") {
		t.Errorf("no comparison:\n%s", r.stdout)
	}
}

// TestSlices: a run by slices of sequences has the losses of one without ranks, up to
// the order of sums; what does not combine with slices is refused with its key.
func TestSlices(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t)
	sliced := []string{file, "ranks=2", "plan.schedule=seq1f1b", "plan.slices=4"}
	call(append([]string{"train"}, append(sliced, "out="+dir+"/sliced")...)...).must(t, 0)
	call("train", file).must(t, 0)
	plain := losses(t, dir+"/run")
	for i, loss := range losses(t, dir+"/sliced") {
		if math.Abs(loss-plain[i]) > 1e-5*plain[i] {
			t.Errorf("step %d: loss %v, without slices %v", i+1, loss, plain[i])
		}
	}
	for arg, want := range map[string]string{
		"plan.slices=5": "at most 4", "precision=bf16": "fp32", "plan.micro_batch=2": "plan.micro_batch=1", "plan.recompute=full": "none or light", "plan.schedule=1f1b": "seq1f1b",
	} {
		call(append(append([]string{"plan"}, sliced...), arg)...).must(t, 2, want, "hint:")
	}
	call("plan", file, "ranks=2", "plan.schedule=seq1f1b", "sequence_length=8", "hardware.name=l4").must(t, 0)
	call("plan", file, "ranks=2", "plan.schedule=seq1f1b", "sequence_length=3", "hardware.name=l4").must(t, 2, "plan.schedule", "at most 1")
}

// TestRanksSignal: several ranks are stopped and saved as one is.
func TestRanksSignal(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t, "max_steps: 1000000", "ranks: 2")
	plan := "plan=" + dir + "/p.json"
	call("plan", file, "--out", dir+"/p.json").must(t, 0)
	r := stopAtStep(t, syscall.SIGTERM, "train", file, plan).must(t, 75, "everything is saved: start the same command again")
	var at int
	_, text, _ := strings.Cut(r.stderr, "saved "+dir+"/run/checkpoint-")
	_, err := fmt.Sscan(text, &at)
	check(t, err)
	steps := fmt.Sprint("max_steps=", at+5)
	call("train", file, plan, steps).must(t, 0, fmt.Sprint("at step ", at))
	call("train", file, plan, steps, "out="+dir+"/plain").must(t, 0)
	sameRun(t, dir+"/run", dir+"/plain", at+5)
}

// TestBadRanks: impossible numbers of ranks, and impossible plans for ranks.
func TestBadRanks(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t)
	for arg, want := range map[string]string{
		"ranks=0": "ranks", "ranks=-1": "ranks", "ranks=1000": "ranks", "ranks=1.5": "whole number", "ranks=two": "whole number", "hardware.peers=0": "not a rate", "hardware.peers=-1GB/s": "not a rate", "hardware.peers=NaN": "not a rate",
	} {
		call("train", file, arg).must(t, 2, want)
	}
	// Three stages would do for a batch of 4, but one layer has not five.
	call("train", file, "ranks=5", "model={type: llama, layers: 1, width: 32, heads: 4}").must(t, 2, "5 ranks", "hint:")
	for _, n := range []string{"0", "-1", "1000"} {
		call("probe", "--ranks="+n).must(t, 2, "--ranks", "hint:")
	}
	path := dir + "/p.json"
	call("plan", file, "ranks=2", "--out", path).must(t, 0)
	text, err := os.ReadFile(path)
	check(t, err)
	call("train", file, "plan="+path).must(t, 2, "2 ranks, but the run has 1", "hint:")
	call("train", file, "ranks=4", "plan="+path).must(t, 2, "2 ranks, but the run has 4", "hint:")

	chunk := func(p map[string]any) map[string]any { return p["chunks"].([]any)[0].(map[string]any) }
	pipeline := func(edit func(l map[string]any)) func(p map[string]any) {
		return func(p map[string]any) {
			l := map[string]any{"schedule": "1f1b", "ranks": 2, "stages": []int{0, 2}, "slices": 1}
			p["micro_batches"], p["micro_batch"], p["group"] = 4, 1, 1
			edit(l)
			p["pipeline"] = l
		}
	}
	for name, c := range map[string]struct {
		edit func(p map[string]any)
		want string
	}{
		"shard":           {func(p map[string]any) { chunk(p)["shard"] = "zero3" }, "zero3"},
		"shard as number": {func(p map[string]any) { chunk(p)["shard"] = 3 }, "shard"},
		"no ranks":        {func(p map[string]any) { p["ranks"] = 0 }, "ranks"},
		"negative ranks":  {func(p map[string]any) { p["ranks"] = -2 }, "ranks"},
		"huge ranks":      {func(p map[string]any) { p["ranks"] = int64(1) << 62 }, "ranks"},
		"cache 0": {func(p map[string]any) {
			p["cache_bytes"], chunk(p)["weights"], chunk(p)["state"], chunk(p)["grads"] = 0, "host", "host", "host"
		}, "p.json"},
		"cache 2^63":        {func(p map[string]any) { p["cache_bytes"] = uint64(1) << 63 }, "cache_bytes"},
		"chunk 2^63":        {func(p map[string]any) { chunk(p)["last"] = uint64(1) << 63 }, "chunks"},
		"tier":              {func(p map[string]any) { chunk(p)["grads"] = "disk" }, "gradients cannot be on disk"},
		"schedule":          {pipeline(func(l map[string]any) { l["schedule"] = "1f2b" }), "1f2b"},
		"no stages":         {pipeline(func(l map[string]any) { l["stages"] = []int{} }), "stage"},
		"first stage":       {pipeline(func(l map[string]any) { l["stages"] = []int{1, 2} }), "stage"},
		"descending stages": {pipeline(func(l map[string]any) { l["stages"] = []int{0, 0} }), "stage"},
		"stage too far":     {pipeline(func(l map[string]any) { l["stages"] = []int{0, 100} }), "stage"},
		"negative stage":    {pipeline(func(l map[string]any) { l["stages"] = []int{0, -1} }), "stage"},
		"three stages":      {pipeline(func(l map[string]any) { l["stages"] = []int{0, 1, 2} }), "stage"},
		"pipeline ranks":    {pipeline(func(l map[string]any) { l["ranks"] = 3 }), "ranks"},
		"pipeline of none":  {pipeline(func(l map[string]any) { l["ranks"] = 0 }), "ranks"},
		"slices":            {pipeline(func(l map[string]any) { l["slices"] = -1 }), "slices"},
		"many slices":       {pipeline(func(l map[string]any) { l["slices"] = 1 << 40 }), "slices"},
		"unknown field":     {pipeline(func(l map[string]any) { l["stage"] = 1 }), "stage"},
		"order":             {pipeline(func(l map[string]any) { l["order"] = []string{"F0", "hello"} }), "order"},
	} {
		t.Run(name, func(t *testing.T) {
			var p map[string]any
			check(t, json.Unmarshal(text, &p))
			c.edit(p)
			edited, err := json.Marshal(p)
			check(t, err)
			check(t, os.WriteFile(path, edited, 0o644))
			call("train", file, "ranks=2", "plan="+path).must(t, 2, c.want)
		})
	}
}

// TestBadLinks: descriptions of the links between ranks with impossible numbers, and
// without any.
func TestBadLinks(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t)
	path := dir + "/hardware.json"
	check(t, os.WriteFile(path, thisMachine(t, 1), 0o644))
	call("plan", file, "ranks=2", "hardware.name="+path).must(t, 2, "no link between ranks", "--ranks 2")
	text := thisMachine(t, 2)
	check(t, os.WriteFile(path, text, 0o644))
	var slow, fast struct {
		Seconds float64 `json:"step_seconds"`
	}
	call("plan", file, "--json", "ranks=2", "hardware.name="+path).must(t, 0).into(t, &fast)
	call("plan", file, "--json", "ranks=2", "hardware.name="+path, "hardware.peers=1MB/s").must(t, 0).into(t, &slow)
	if !(slow.Seconds > 2*fast.Seconds) {
		t.Errorf("a step takes %v s, over a slow link %v s", fast.Seconds, slow.Seconds)
	}
	for _, bad := range []string{"0", "-1", "NaN", "1e999", `"fast"`} {
		var h map[string]any
		check(t, json.Unmarshal(text, &h))
		for _, l := range h["links"].([]any) {
			if l := l.(map[string]any); l["from"] == "device" && l["to"] == "device" {
				l["bandwidth"] = "BAD"
			}
		}
		edited, err := json.Marshal(h)
		check(t, err)
		edited = []byte(strings.Replace(string(edited), `"BAD"`, bad, 1))
		check(t, os.WriteFile(path, edited, 0o644))
		call("plan", file, "ranks=2", "hardware.name="+path).must(t, 2, "hardware")
	}
}

// TestSpillRanks: a disk that has no room for all ranks' files.
func TestSpillRanks(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	if !canLimitFiles {
		t.Skip("this system has no limits on files")
	}
	_, file := tiny(t, "max_steps: 2", "ranks: 2")
	call("plan", file, spilled).must(t, 0) // reads the corpus and measures
	finish(t, child([]string{fileLimit + "=20000"}, "train", file, spilled)).must(t, 1, "for the disk tier: file too large", "limits.disk")
	call("train", file, spilled, "limits.disk_path="+file+"/spill").must(t, 1, "limits.disk_path")
}
