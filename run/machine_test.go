package run

import (
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/hardware"
)

// TestPeak: ranks together can do what as many can as have cores, or devices, at
// the same time.
func TestPeak(t *testing.T) {
	for _, c := range []struct{ ranks, atOnce, want int }{{1, 1, 1}, {2, 2, 2}, {4, 2, 2}, {2, 4, 2}, {4, 0, 4}} {
		m := Machine{ranks: c.ranks, Hardware: &hardware.Hardware{AtOnce: c.atOnce, Engines: []hardware.Engine{{
			Stream: device.Compute, Peak: hardware.Rate{F32: 1e9, BF16: 3e9},
		}}}}
		for dt, each := range map[graph.DType]float64{graph.F32: 1e9, graph.BF16: 3e9} {
			if got := m.Peak(&graph.Graph{DType: dt}); got != each*float64(c.want) {
				t.Errorf("%d ranks, %d at once: %v FLOP/s, want %d times %v", c.ranks, c.atOnce, got, c.want, each)
			}
		}
	}
}

// TestLittleDisk: a disk without room for the probe is no tier, one without room for a
// checkpoint is told before a run begins, and what file systems do not tell is not
// held against them.
func TestLittleDisk(t *testing.T) {
	for _, c := range []struct {
		free   int64
		probes int
		want   int64
	}{{0, 1, 0}, {hardware.ProbeBytes - 1, 1, 0}, {hardware.ProbeBytes, 1, hardware.ProbeBytes}, {hardware.ProbeBytes, 2, 0}} {
		if got := withoutFullDisk(hardware.Memory{Host: 5, Disk: c.free}, c.probes); got.Disk != c.want || got.Host != 5 {
			t.Errorf("%d bytes free for %d probes: %+v", c.free, c.probes, got)
		}
	}
	for _, free := range []int64{0, 100, 101} {
		if err := holds("runs", free, 2, 50); err != nil {
			t.Errorf("%d bytes free, 100 needed: %v", free, err)
		}
	}
	for _, free := range []int64{1, 99} {
		if err := holds("runs", free, 2, 50); err == nil || !strings.Contains(err.Error(), "hint:") {
			t.Errorf("%d bytes free, 100 needed: %v", free, err)
		}
	}
}

// TestTimed: operators of a policy's plan are timed on the machine at hand, as those of
// the search's are: else the two times cannot be compared.
func TestTimed(t *testing.T) {
	c, err := config.Load(runConfig(t, t.TempDir()), nil)
	check(t, err)
	setup, err := Prepare(t.Context(), c, func(string, int64, int64) {})
	check(t, err)
	t.Cleanup(setup.Close)
	m, err := FindMachine(c, func(string) {})
	check(t, err)
	r, err := m.PlanBy(t.Context(), "zero-3", setup.Graph, c)
	check(t, err)
	for i := range r.Best.Program.Instrs {
		call := r.Best.Program.Call(i)
		if key := hardware.Key(&call); m.Hardware.Times[key] <= 0 {
			t.Fatalf("%s was not timed", key)
		}
	}
}

// TestSurprise: steps of any length that are not as predicted are told with digits that
// show the difference.
func TestSurprise(t *testing.T) {
	for _, s := range []float64{1e-4, 0.02, 300} {
		text := surprise(2*s, s)
		_, rest, _ := strings.Cut(text, "steps take ")
		a, rest, _ := strings.Cut(rest, " s, ")
		if b, _, _ := strings.Cut(rest, " s were"); a == b || strings.Trim(b, "0.") == "" || !strings.Contains(text, "hint:") {
			t.Errorf("%v s instead of %v: %s", 2*s, s, text)
		}
		if text := surprise(1.1*s, s); text != "" {
			t.Errorf("a tenth more: %s", text)
		}
	}
}
