package main

import (
	"fmt"
	"math"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestSharedPipeline: a run whose ranks share matrices in a pipeline reaches on each of them the bytes that the plan says, its losses
// are those of one rank up to the order of sums, and it goes on with other degrees of both, and of sequences.
func TestSharedPipeline(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t, "max_steps: 4", "save_every: 2")
	call("train", file, "out="+dir+"/plain").must(t, 0)
	want := losses(t, dir+"/plain")
	var got trained
	call("train", file, "--json", "ranks=4", "plan={tensor: 2, pipeline: 2, schedule: 1f1b}").must(t, 0).into(t, &got)
	if !reflect.DeepEqual(*got.Peaks, got.MeasuredPeaks) || !reflect.DeepEqual(*got.Report.Bytes, got.MeasuredBytes) {
		t.Errorf("planned %+v %+v, reached %+v %+v", *got.Peaks, *got.Report.Bytes, got.MeasuredPeaks, got.MeasuredBytes)
	}
	near := func() {
		t.Helper()
		for k, l := range losses(t, dir+"/run") {
			if math.Abs(l/want[k]-1) > 1e-5 {
				t.Errorf("step %d: loss %v, on one rank %v", k+1, l, want[k])
			}
		}
	}
	near()
	for _, other := range testkit.Sample([][]string{{"ranks=8", "plan={sequence: 2, tensor: 2, pipeline: 2}"}, {"ranks=4", "plan={sequence: 2, pipeline: 2}"}, {"ranks=4", "plan.sequence=2", "plan.tensor=2"}, {"ranks=2", "plan.tensor=2"}, {"ranks=2", "plan.pipeline=2"}, {}}, 1, 1) {
		check(t, os.RemoveAll(dir+"/run/checkpoint-4"))
		call(append([]string{"train", file}, other...)...).must(t, 0, "checkpoint-2")
		near()
	}
	if r := call("plan", file, "ranks=4", "plan={tensor: 2, pipeline: 2}").must(t, 0); !strings.Contains(r.stdout, "matrices: 2 ranks share each") || strings.Contains(r.stdout, "different sequences") {
		t.Errorf("the plan does not say that the pipeline's ranks share matrices, or that they have other sequences:\n%s", r.stdout)
	}
}

// TestSharedQuantized: ranks share matrices in 4 bits, whose blocks stay whole, beside adapters, also in a pipeline: losses are those of
// one rank. Where blocks would be cut it is refused.
func TestSharedQuantized(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	base, file := modelFolder(t, "model: {type: llama, layers: 2, width: 128, heads: 4, feed_forward: 128}")
	dir := t.TempDir()
	train := func(out string, more ...string) result {
		return call(append([]string{"train", file, "model=" + base, "tokenizer=" + base, "out=" + dir + "/" + out, "quantize=nf4", "lora={rank: 4}", "learning_rate=0.01", "max_steps=4", "precision=fp32"}, more...)...)
	}
	train("one").must(t, 0)
	want := losses(t, dir+"/one")
	for k, how := range testkit.Sample([][]string{{"ranks=4", "plan={tensor: 2, pipeline: 2}"}, {"ranks=2", "plan.tensor=2"}}, 1, 1) {
		out := fmt.Sprint("shared", k)
		train(out, how...).must(t, 0)
		for k, l := range losses(t, dir+"/"+out) {
			if math.Abs(l/want[k]-1) > 1e-5 {
				t.Errorf("%v: step %d: loss %v, on one rank %v", how, k+1, l, want[k])
			}
		}
	}
	train("cut", "ranks=4", "plan.tensor=4").must(t, 2, "multiples of 64", "hint: ")
}

// TestSharedMatrices: a run whose ranks share matrices reaches on each of them the bytes that the plan says, its losses are those
// of one rank up to the order of sums, and what does not combine is refused with its key.
func TestSharedMatrices(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t, "max_steps: 4", "eval_every: 2")
	call("train", file, "out="+dir+"/plain").must(t, 0)
	want := losses(t, dir+"/plain")
	shared := func(verb string, own ...string) result {
		return call(append([]string{verb, file, "ranks=2", "plan.tensor=2"}, own...)...)
	}
	var got trained
	shared("train", "--json").must(t, 0).into(t, &got)
	if !reflect.DeepEqual(*got.Peaks, got.MeasuredPeaks) || !reflect.DeepEqual(*got.Report.Bytes, got.MeasuredBytes) {
		t.Errorf("planned %+v %+v, reached %+v %+v", *got.Peaks, *got.Report.Bytes, got.MeasuredPeaks, got.MeasuredBytes)
	}
	for k, l := range losses(t, dir+"/run") {
		if math.Abs(l/want[k]-1) > 1e-5 {
			t.Errorf("step %d: loss %v, on one rank %v", k+1, l, want[k])
		}
	}
	if r := shared("plan", "plan.recompute=full").must(t, 0); !strings.Contains(r.stdout, "matrices: 2 ranks share each, and add up ") {
		t.Errorf("the plan does not say that ranks share matrices:\n%s", r.stdout)
	}
	for _, c := range []struct {
		own  []string
		want string
	}{
		{[]string{"ranks=3"}, "2 does not divide ranks 3"},
		{[]string{"plan.tensor=0"}, "0 ranks cannot share matrices"},
		{[]string{"ranks=16", "plan.tensor=16"}, "at most 8"},
		{[]string{"ranks=3", "plan.tensor=3"}, "cannot be divided evenly among 3 ranks"},
		{[]string{"plan.pipeline=2"}, "all 2 ranks have the same"},
		{[]string{"ranks=4", "plan.pipeline=4"}, "no pipeline on 2 ranks"},
		{[]string{"plan.sequence=2"}, "whose product divides ranks"},
		{[]string{"global_batch=3", "ranks=4"}, "2 groups of ranks"},
		{[]string{"optimizer=muon"}, "updated as a whole"},
		{[]string{"model={type: olmoe, layers: 2, width: 32, heads: 4, experts: 4}"}, "cannot be shared"},
		{[]string{"model={type: olmo2, layers: 2, width: 32, heads: 4}"}, "cannot be shared"},
	} {
		shared("plan", c.own...).must(t, 2, c.want, "hint:")
	}
}
