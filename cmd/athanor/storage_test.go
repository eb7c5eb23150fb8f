package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/search"
)

// TestOptimizerState: where no plan fits with moments in fp32, and the configuration leaves them
// open, they are in bf16; that is the only thing that a limit may change. Such a run stays so where
// there is room for all, with the bits of a run that was configured so, and is refused with fp32.
// Where fp32 fits, it is used. The least memory that is reported is that with moments in bf16.
func TestOptimizerState(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t)
	var whole, report search.Report
	limits := []string{"limits.disk=none", "limits.device=200KiB"}
	with := func(verb string, host int64, more ...string) []string {
		return append(append([]string{verb, file, "--json", fmt.Sprint("limits.host=", host)}, limits...), more...)
	}
	call(with("plan", 1<<30)...).must(t, 0).into(t, &whole)
	n := whole.Peaks.Host[0]
	for call(with("plan", n, "optimizer_state=fp32")...).code == 0 {
		n -= n / 32
	}
	call(with("plan", n, "optimizer_state=fp32")...).must(t, 3, "does not fit")
	call(with("plan", n+n/16)...).must(t, 0).into(t, &report)
	if whole.Plan.State != plan.FP32State || report.Plan.State != plan.FP32State {
		t.Errorf("with enough memory the state is in %v and %q", whole.Plan.State, report.Plan.State)
	}
	var got trained
	call(with("train", n, "max_steps=2", "out="+dir+"/half")...).must(t, 0).into(t, &got)
	if got.Plan.State != plan.BF16Moments || got.MeasuredPeaks.Host[0] > n {
		t.Errorf("with %d bytes the state is in %v, the host's peak %d", n, got.Plan.State, got.MeasuredPeaks.Host[0])
	}
	call("train", file, "out="+dir+"/half", "optimizer_state=fp32").must(t, 2, "optimizer_state is bf16_moments there and fp32 here")
	call("train", file, "out="+dir+"/half").must(t, 0)
	call("train", file, "out="+dir+"/asked", "optimizer_state=bf16_moments").must(t, 0)
	sameRun(t, dir+"/half", dir+"/asked", 4)
	var least, need int64
	short := []string{"plan", file, "limits.host=10KiB", "limits.disk=none", "limits.device=1KiB"}
	for _, more := range [][]string{{"optimizer_state=fp32"}, nil} {
		least = need
		stderr := call(append(short, more...)...).must(t, 3, "the most frugal plan tried").stderr
		_, text, _ := strings.Cut(stderr, " needs ")
		_, err := fmt.Sscan(text, &need)
		check(t, err)
		_, hint, _ := strings.Cut(stderr, "hint:")
		call(append(append(short, more...), actions(t, hint)...)...).must(t, 0)
	}
	if need >= least {
		t.Errorf("%d bytes are the least, with moments in fp32 %d", need, least)
	}
	call("plan", file, "optimizer_state=bf16").must(t, 2, "set precision: bf16")
	call("plan", file, "optimizer_state=fp16").must(t, 2, "bf16_moments")
}
