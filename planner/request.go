package planner

import (
	"fmt"
	"slices"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/search"
)

// BuildGraph builds the graph that a configuration describes. A model that has adapters already keeps them.
func BuildGraph(c *config.Config, m *model.Model, docs *graph.Documents) (*graph.Graph, error) {
	part := *m
	switch {
	case len(c.Freeze) > 0 && m.LoRA != nil:
		return nil, c.Fault("freeze", "the model is an adapter, and only the adapter is trained; hint: leave freeze out, or `athanor merge` the adapter first")
	case len(c.Freeze) > 0:
		if err := part.Freeze(c.Freeze...); err != nil {
			return nil, c.Fault("freeze", err.Error())
		}
	}
	if c.LoRA.Rank > 0 {
		if err := adapt(&part, c); err != nil {
			return nil, c.Fault("lora", err.Error())
		}
	}
	if c.Quantize == config.NF4 {
		if err := part.Quantize(); err != nil {
			return nil, c.Fault("quantize", err.Error())
		}
	}
	g, err := graph.BuildDocuments(&part, c.SequenceLength, Precision(c), docs)
	if err != nil {
		key := "sequence_length"
		if c.Preference.Beta > 0 && !m.Rotary() {
			key = "preference"
		}
		return nil, c.Fault(key, err.Error())
	}
	return g, nil
}

// adapt gives a model the configured adapters. If it already has some, they must be the same; what the
// configuration leaves open is taken from them.
func adapt(m *model.Model, c *config.Config) error {
	has, lora, targets := m.LoRA, model.LoRA{Rank: c.LoRA.Rank, Alpha: c.LoRA.Alpha, RSLoRA: c.LoRA.RSLoRA}, c.LoRA.Targets
	if has != nil && lora.Alpha == 0 && !lora.RSLoRA {
		lora.Alpha, lora.RSLoRA = has.Alpha, has.RSLoRA
	}
	if has != nil && len(targets) == 0 {
		targets = has.Weights
	}
	err := m.Adapt(lora, targets...)
	if err != nil || has == nil {
		return err
	}
	if asked := m.LoRA; asked.Rank != has.Rank || asked.Scale() != has.Scale() || !slices.Equal(asked.Weights, has.Weights) {
		return fmt.Errorf("%v, but the model is an adapter that has %v; hint: leave lora out to keep those of the adapter, or merge it into a model first: `athanor merge %s FOLDER`", asked, has, c.Model.Name)
	}
	m.LoRA = has
	return nil
}

// Precision returns the data type that a configuration computes in.
func Precision(c *config.Config) graph.DType {
	if c.Precision == "bf16" {
		return graph.BF16
	}
	return graph.F32
}

// State returns the configured format of the optimizer's state, fp32 if open.
func State(c *config.Config) (f plan.StateFormat) {
	if err := f.UnmarshalText([]byte(c.OptimizerState)); err != nil { // auto: others are refused where the configuration is read
		return plan.FP32State
	}
	return f
}

// StepOptions returns the options for lowering a training program, without
// capacities.
func StepOptions(c *config.Config) lower.Options {
	return lower.Options{Beta1: c.Beta1, Beta2: c.Beta2, Eps: c.Epsilon, Decay: c.WeightDecay, Clip: c.Clip, Capacity: program.NoLimits}
}

// Request translates a task into a search request, without pins.
func (t *Task) Request() *search.Request {
	return &search.Request{Graph: t.Graph, GlobalBatch: t.Config.GlobalBatch, Ranks: t.Machine.Ranks(), Options: StepOptions(t.Config), State: State(t.Config),
		HeadUnit: t.Machine.HeadUnit(t.Graph.Seq)}
}
