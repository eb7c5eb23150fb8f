package main

import (
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestSharedSequences: a run whose ranks share sequences reaches on each of them the bytes that the plan says, its losses are those
// of one rank up to the order of sums, and it goes on with another number of ranks to a sequence. What does not combine is refused
// with its key.
func TestSharedSequences(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t, "max_steps: 4", "eval_every: 2")
	call("train", file, "out="+dir+"/plain").must(t, 0)
	want := losses(t, dir+"/plain")
	shared := func(verb string, own ...string) result {
		return call(append([]string{verb, file, "ranks=2", "plan.sequence=2"}, own...)...)
	}
	var got trained
	shared("train", "--json").must(t, 0).into(t, &got)
	if !reflect.DeepEqual(*got.Peaks, got.MeasuredPeaks) || !reflect.DeepEqual(*got.Report.Bytes, got.MeasuredBytes) {
		t.Errorf("planned %+v %+v, reached %+v %+v", *got.Peaks, *got.Report.Bytes, got.MeasuredPeaks, got.MeasuredBytes)
	}
	out := dir + "/again"
	shared("train", "max_steps=2", "out="+out).must(t, 0)
	call("train", file, "max_steps=3", "out="+out).must(t, 0, "resuming")
	shared("train", "ranks=4", "plan.recompute=full", "out="+out).must(t, 0, "resuming")
	for _, folder := range []string{dir + "/run", out} {
		for k, l := range losses(t, folder) {
			if math.Abs(l/want[k]-1) > 1e-5 {
				t.Errorf("%s: step %d: loss %v, on one rank %v", folder, k+1, l, want[k])
			}
		}
	}
	if r := shared("plan").must(t, 0); !strings.Contains(r.stdout, "rank 0: tokens 0 to 7 and 24 to 31, ") {
		t.Errorf("the plan does not say which tokens ranks have:\n%s", r.stdout)
	}
	call("train", file, "global_batch=1", "ranks=1", "out="+dir+"/one").must(t, 0)
	call("train", file, "global_batch=1", "ranks=2", "plan.pipeline=1", "out="+dir+"/open").must(t, 0) // there are fewer sequences than ranks
	one := losses(t, dir+"/one")
	for k, l := range losses(t, dir+"/open") {
		if math.Abs(l/one[k]-1) > 1e-5 {
			t.Errorf("step %d: loss %v, on one rank %v", k+1, l, one[k])
		}
	}
	if r := call("plan", file, "global_batch=1", "ranks=2", "plan.pipeline=1").must(t, 0); !strings.Contains(r.stdout, "2 ranks share each") {
		t.Errorf("two ranks do not share the only sequence:\n%s", r.stdout)
	}
	for _, c := range []struct {
		own  []string
		want string
	}{
		{[]string{"ranks=3"}, "2 does not divide ranks 3"},
		{[]string{"plan.sequence=0"}, "0 ranks cannot share a sequence"},
		{[]string{"sequence_length=200"}, "multiple of 128"},
		{[]string{"sequence_length=31"}, "too short"},
		{[]string{"ranks=4", "plan.pipeline=2", "plan.exchange=keys"}, "wait for each other"},
		{[]string{"plan.pipeline=2"}, "at least two ranks with other layers"},
		{[]string{"global_batch=3", "ranks=4"}, "groups of ranks"},
		{[]string{"model={type: mixtral, layers: 2, width: 32, heads: 4, experts: 4}"}, "expert_balance 0.01, which is computed over whole sequences"},
		{[]string{"plan.head_rows=12"}, "16 tokens that a rank has"},
	} {
		shared("plan", c.own...).must(t, 2, c.want, "hint:")
	}
}
