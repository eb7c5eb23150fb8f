package planner

import (
	"strconv"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/job"
	"github.com/athanor-llm/athanor/machine"
)

// TestUnworn: a plan that uses the disk up within a month gives way to one without the disk that takes hardly longer;
// it stays if the disk bears it, if the user put something there, and if nothing fits without.
func TestUnworn(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	g, err := graph.Build(tiny(t), 16, graph.F32)
	check(t, err)
	task := func(endurance config.Bytes, host config.Bytes, state string) *Task {
		c := config.Default()
		c.GlobalBatch, c.SequenceLength, c.Hardware.Name, c.Precision = 4, 16, "l4", "fp32"
		c.Limits.DiskEndurance, c.Limits.Host, c.Plan.State = endurance, host, state
		spec, err := job.Settle(config.ToPlan, &c, func(string) {})
		check(t, err)
		m, err := machine.Describe(spec.Machine(), func(string) {})
		check(t, err)
		return &Task{Machine: m, Graph: g, Spec: spec}
	}
	const soon, never, roomy = 1 << 20, 0, 1 << 30
	worn, err := task(soon, roomy, "disk").Plan(t.Context(), func(string) {})
	check(t, err)
	if worn.Best.Needs()[device.DiskTier] == 0 {
		t.Fatal("nothing is on the disk")
	}
	for _, c := range []struct {
		what      string
		endurance config.Bytes
		state     string
		stays     bool
	}{{"worn", soon, "", false}, {"a disk that bears it", never, "", true}, {"the user's decision", soon, "disk", true}} {
		got, err := task(c.endurance, roomy, c.state).unworn(t.Context(), worn, func(string) {})
		check(t, err)
		if stays := got.Best.Needs()[device.DiskTier] > 0; stays != c.stays || !stays && got.Best.Seconds() > slower*worn.Best.Seconds() {
			t.Errorf("%s: on the disk %v; %s takes %.4g s, on the disk %.4g s", c.what, stays, got.Best.Label, got.Best.Seconds(), worn.Best.Seconds())
		}
	}
	small := task(soon, roomy, "")
	small.Machine.Capacity = [device.NumTiers]int64{worn.Best.Needs()[device.DeviceTier] / 8, 1, roomy}
	if got, err := small.unworn(t.Context(), worn, func(string) {}); err != nil || got != worn {
		t.Errorf("without room for the state: %v, %v", got, err)
	}
	tight := task(soon, roomy, "host")
	tight.Machine.Capacity = [device.NumTiers]int64{worn.Best.Needs()[device.DeviceTier] * 1, 1 << 10, roomy}
	spare, err := tight.Spare(t.Context(), worn.Best)
	check(t, err)
	_, enough, named := strings.Cut(spare.Brings, "limits.host=")
	if !named {
		t.Fatalf("without the disk: %q", spare.Brings)
	}
	host, err := strconv.ParseInt(enough[:strings.Index(enough, ",")], 10, 64)
	check(t, err)
	tight.Machine.Capacity[device.HostTier], tight.Machine.Capacity[device.DiskTier] = host, 0
	if _, err := tight.PlanAny(t.Context(), func(string) {}); err != nil {
		t.Errorf("%s, but %v", spare.Brings, err)
	}
}
