package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/run"
)

// TestMaxSequence: a run of the length that plan --max-sequence says succeeds,
// and the next step up is refused with exit code 3.
func TestMaxSequence(t *testing.T) {
	const step = 32
	_, file := tiny(t, "max_steps: 2", "limits: {device: 600KiB}")
	var longest run.Longest
	call("plan", file, "--max-sequence", "--step", fmt.Sprint(step), "--json").must(t, 0).into(t, &longest)
	if longest.Tokens < 2*step || !strings.Contains(longest.Beyond, "does not fit") {
		t.Fatalf("%+v", longest)
	}
	call("train", file, fmt.Sprint("sequence_length=", longest.Tokens)).must(t, 0)
	call("train", file, fmt.Sprint("sequence_length=", longest.Tokens+step)).must(t, 3, "does not fit", "hint:")
	call("plan", file, "--max-sequence", "limits.device=1KiB").must(t, 3, "does not fit", "hint:")
}

// TestSwapKeys: what the configuration decides about activations is what the
// plan does, and changes no loss.
func TestSwapKeys(t *testing.T) {
	dir, file := tiny(t, "max_steps: 3", "model: {type: llama, layers: 4, width: 32, heads: 4}")
	call("train", file, "out="+dir+"/plain").must(t, 0)
	want := fmt.Sprint(losses(t, dir+"/plain"))
	for i, keys := range [][]string{
		{"plan.swap=0.5"},
		{"plan.swap={0: 1, 3: 0.25}", "plan.swap_tier=disk", "plan.slots=1"},
		{"plan.policy=memo-paper"},
	} {
		out := fmt.Sprint(dir, "/swap", i)
		var r plan.Report
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
