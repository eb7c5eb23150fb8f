package planner

import (
	"errors"
	"testing"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/job"
	"github.com/athanor-llm/athanor/machine"
	"github.com/athanor-llm/athanor/model"
)

// TestPinShared: where layers share parameters, what a plan of them cannot have is an error of the configuration, and a group is the batch.
func TestPinShared(t *testing.T) {
	m := tiny(t)
	check(t, model.ShareLayers(m, 2))
	g, err := graph.Build(m, 16, graph.F32)
	check(t, err)
	for _, c := range []struct {
		plan  config.Plan
		micro int // 0: refused
	}{
		{config.Plan{Group: 2}, 2}, {config.Plan{Group: 4}, 1}, {config.Plan{Group: 1}, 4}, {config.Plan{Group: 2, MicroBatch: 2}, 2},
		{config.Plan{Group: 3}, 0}, {config.Plan{Group: 2, MicroBatch: 1}, 0},
		{config.Plan{Pipeline: 2}, 0}, {config.Plan{Schedule: "1f1b"}, 0}, {config.Plan{Stages: []int{0, 2}}, 0},
	} {
		of := config.Default()
		of.GlobalBatch, of.SequenceLength, of.Hardware.Name, of.Precision, of.Plan = 4, 16, "l4", "fp32", c.plan
		spec, err := job.Settle(config.ToPlan, &of, func(string) {})
		check(t, err)
		mach, err := machine.Describe(spec.Machine(), func(string) {})
		check(t, err)
		p, err := (&Task{Machine: mach, Graph: g, Spec: spec}).pins()
		if c.micro == 0 && !errors.Is(err, config.ErrConfig) || c.micro > 0 && (err != nil || p.MicroBatch != c.micro) {
			t.Errorf("%+v: micro-batches of %d, %v", c.plan, p.MicroBatch, err)
		}
	}
}

// TestPinMicroBatch: micro-batches of more than a rank has are an error of the configuration, but in a pipeline, whose ranks have all.
func TestPinMicroBatch(t *testing.T) {
	g, err := graph.Build(tiny(t), 16, graph.F32)
	check(t, err)
	for own, fits := range map[*config.Plan]bool{{MicroBatch: 2}: true, {MicroBatch: 4}: false, {MicroBatch: 4, Pipeline: 2}: true} {
		of := config.Default()
		of.GlobalBatch, of.SequenceLength, of.Hardware.Name, of.Precision, of.Ranks, of.Plan = 4, 16, "l4", "fp32", 2, *own
		spec, err := job.Settle(config.ToPlan, &of, func(string) {})
		check(t, err)
		mach, err := machine.Describe(spec.Machine(), func(string) {})
		check(t, err)
		if _, err := (&Task{Machine: mach, Graph: g, Spec: spec}).pins(); fits != (err == nil) || !fits && !errors.Is(err, config.ErrConfig) {
			t.Errorf("%+v: %v", own, err)
		}
	}
}
