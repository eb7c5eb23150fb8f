package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/planner"
	"github.com/athanor-llm/athanor/search"
)

// TestMaxSequence: a run of the length that plan --max-sequence says succeeds,
// and the next step up is refused with exit code 3.
func TestMaxSequence(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	const step = 32
	dir, file := tiny(t, "max_steps: 2", "limits: {device: 600KiB}")
	var longest planner.Longest
	call("plan", file, "--max-sequence", "--step", fmt.Sprint(step), "--json").must(t, 0).into(t, &longest)
	if longest.Tokens < 2*step || !strings.Contains(longest.Beyond, "does not fit") {
		t.Fatalf("%+v", longest)
	}
	call("train", file, fmt.Sprint("sequence_length=", longest.Tokens)).must(t, 0)
	call("train", file, "out="+dir+"/longer", fmt.Sprint("sequence_length=", longest.Tokens+step)).must(t, 3, "does not fit", "hint:")
	call("plan", file, "--max-sequence", "limits.device=1KiB").must(t, 3, "not even sequences of 1 tokens: ", "does not fit", "hint:")
	var short planner.Longest // where not even one step fits
	call("plan", file, "--max-sequence", "--step", "4096", "--json").must(t, 0).into(t, &short)
	if short.Tokens != longest.Tokens && short.Tokens != longest.Tokens/256*256 && short.Tokens != longest.Tokens/16*16 {
		t.Errorf("by steps of 4096 %+v, of %d %+v", short, step, longest)
	}
}

// TestMaxSequenceNearEnough: a long one is reported to a hundredth, and as no more exact than that.
func TestMaxSequenceNearEnough(t *testing.T) {
	testkit.Needs(t, testkit.All)
	_, file := tiny(t, "max_steps: 1", "limits: {device: 2MiB}")
	const step = 2
	r := call("plan", file, "--max-sequence", "--step", fmt.Sprint(step)).must(t, 0)
	var fits, tooLong int
	if _, err := fmt.Sscanf(r.stdout, "longest sequence: at least %d tokens; at %d: ", &fits, &tooLong); err != nil {
		t.Fatal(err, r.stdout)
	}
	if tooLong <= fits+step || tooLong-fits > tooLong/100 {
		t.Error(r.stdout)
	}
	call("plan", file, fmt.Sprint("sequence_length=", fits)).must(t, 0)
	call("plan", file, fmt.Sprint("sequence_length=", tooLong)).must(t, 3, "does not fit")
}

// TestMaxSequenceEverywhere: the same on ranks, in pipelines and under decisions
// about activations; and for machines other than this one, for which planning is
// all that can be done.
func TestMaxSequenceEverywhere(t *testing.T) {
	testkit.Needs(t, testkit.All)
	const step = 32
	_, file := tiny(t, "max_steps: 1", "model: {type: llama, layers: 4, width: 16, heads: 2}")
	for _, c := range testkit.Sample([]struct {
		verb string
		args []string
	}{
		{"train", []string{"ranks=2", "limits.device=100KiB", "limits.host=2MiB"}},
		{"train", []string{"ranks=2", "limits.device=250KiB", "plan.schedule=1f1b"}},
		{"train", []string{"ranks=4", "limits.device=300KiB", "plan.pipeline=4", "plan.schedule=zb-h1"}},
		{"train", []string{"ranks=2", "limits.device=250KiB", "plan.schedule=breadth-first", "plan.swap=1"}},
		{"train", []string{"limits.device=200KiB", "plan.swap={0: 1, 1: 1, 2: 0.5, 3: 0.5}"}},
		{"train", []string{"limits.device=200KiB", "plan.policy=memo-paper"}},
		{"plan", []string{"hardware.name=rtx4090", "ranks=2", "limits.device=100KiB", "limits.host=2MiB"}},
	}, 1, 3) {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			out := t.TempDir()
			var longest planner.Longest
			call(append([]string{"plan", file, "--max-sequence", "--step", fmt.Sprint(step), "--json"}, c.args...)...).must(t, 0).into(t, &longest)
			if longest.Tokens < step || !strings.Contains(longest.Beyond, "does not fit") || !strings.Contains(longest.Beyond, "hint:") {
				t.Fatalf("%+v", longest)
			}
			at := func(n int) []string {
				return append([]string{c.verb, file, fmt.Sprint("sequence_length=", n), fmt.Sprint("out=", out, "/", n)}, c.args...)
			}
			call(at(longest.Tokens)...).must(t, 0)
			call(at(longest.Tokens+step)...).must(t, 3, "does not fit", "hint:")
		})
	}
}

// TestBadActivations: impossible decisions about activations are reported with their line of
// the file.
func TestBadActivations(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	for lines, want := range map[string]struct {
		line int
		text string
	}{
		"plan: {swap: 1.5}":                                         {10, "out of range"},
		"plan: {swap: -0.1}":                                        {10, "out of range"},
		"plan:\n  swap: {0: 0.5, 1: 2}":                             {11, "out of range"},
		"plan:\n  slots: 2\n  swap: {7: 0.5}":                       {12, "there is no layer 7"},
		"plan:\n  swap: 0.5\nlimits: {host: 0}":                     {11, "no host memory"},
		"limits: {host: none}\nplan:\n  policy: memo-paper":         {12, "no host memory"},
		"limits: {disk: none}\nplan: {swap: 1, swap_tier: disk}":    {11, "no disk memory"},
		"plan: {swap: 1, swap_tier: device}":                        {10, "host or disk"},
		"plan: {policy: lru}":                                       {10, "memo-paper"},
		"plan: {policy: memo-paper, recompute: full}":               {10, "recompute"},
		"ranks: 2\nplan: {policy: memo-paper, pipeline: 2}":         {11, "pipelines"},
		"limits: {host: 0}\nranks: 2\nplan: {swap: 1, pipeline: 2}": {12, "no host memory"},
	} {
		t.Run(lines, func(t *testing.T) {
			_, file := tiny(t, "max_steps: 1", lines)
			for _, verb := range []string{"plan", "train"} {
				call(verb, file).must(t, 2, fmt.Sprintf("%s:%d: ", file, want.line), want.text, "hint:")
			}
		})
	}
}

// TestActivationMisfit: decisions about activations for which there is no room are
// refused with exit code 3, and doing what the hint says makes them fit; where device
// memory alone is short, one byte less of it does not.
func TestActivationMisfit(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	_, file := tiny(t, "max_steps: 1", "model: {type: llama, layers: 4, width: 32, heads: 4}")
	for _, args := range testkit.Sample([][]string{
		{"limits.device=100KiB", "plan.swap=1"},
		{"limits.device=100KiB", "plan.swap={0: 0.5, 3: 0.25}", "plan.swap_tier=disk"},
		{"limits.device=100KiB", "plan.policy=memo-paper"},
		{"limits.device=100KiB", "plan.recompute=attention"},
		{"limits.device=100KiB", "limits.host=1KiB", "plan.swap=1"},
		{"limits.device=10MiB", "limits.host=1KiB", "plan.swap=1"},
		{"limits.device=50KiB", "ranks=2", "plan.policy=memo-paper"},
		{"limits.device=50KiB", "ranks=2", "plan.pipeline=2", "plan.swap=1"},
		{"limits.device=50KiB", "ranks=2", "plan.schedule=zb-h1"},
		{"limits.device=50KiB", "ranks=4", "plan.pipeline=2", "plan.recompute=none"},
	}, 1, 3) {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			r := call(append([]string{"plan", file}, args...)...).must(t, 3, "does not fit", "hint:")
			_, hint, _ := strings.Cut(r.stderr, "hint:")
			enough := append(append([]string{"train", file}, args...), actions(t, hint)...)
			call(enough...).must(t, 0)
		})
	}
}

// TestSwapKeys: what the configuration decides about activations is what the
// plan does, and changes no loss.
func TestSwapKeys(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t, "max_steps: 3", "model: {type: llama, layers: 4, width: 32, heads: 4}")
	call("train", file, "out="+dir+"/plain").must(t, 0)
	want := fmt.Sprint(losses(t, dir+"/plain"))
	for i, keys := range [][]string{
		{"plan.swap=0.5"},
		{"plan.swap={0: 1, 3: 0.25}", "plan.swap_tier=disk", "plan.slots=1"},
		{"plan.policy=memo-paper"},
	} {
		out := fmt.Sprint(dir, "/swap", i)
		var r search.Report
		call(append([]string{"plan", file, "--json"}, keys...)...).must(t, 0).into(t, &r)
		if r.Layers[0].Swapped == 0 {
			t.Errorf("%v: nothing is swapped: %v", keys, r.Layers)
		}
		call(append([]string{"train", file, "out=" + out}, keys...)...).must(t, 0)
		if got := fmt.Sprint(losses(t, out)); got != want {
			t.Errorf("%v: losses %v, want %v", keys, got, want)
		}
	}
}
