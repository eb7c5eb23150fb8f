package machine

import (
	"slices"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
)

// BuildGraph builds the graph that a configuration describes.
func BuildGraph(c *config.Config, m *model.Model, docs *graph.Documents) (*graph.Graph, error) {
	part := *m
	if len(c.Freeze) > 0 {
		if err := part.Freeze(c.Freeze...); err != nil {
			return nil, c.Fault("freeze", err.Error())
		}
	}
	if c.LoRA.Rank > 0 {
		lora := model.LoRA{Rank: c.LoRA.Rank, Alpha: c.LoRA.Alpha, RSLoRA: c.LoRA.RSLoRA}
		if err := part.Adapt(lora, c.LoRA.Targets...); err != nil {
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
		return nil, c.Fault("sequence_length", err.Error())
	}
	return g, nil
}

// Precision returns the data type that a configuration computes in.
func Precision(c *config.Config) graph.DType {
	if c.Precision == "bf16" {
		return graph.BF16
	}
	return graph.F32
}

// State returns the configured format as a value of program.Plan.State, fp32 if
// open.
func State(c *config.Config) string {
	if slices.Contains(program.StateNames()[1:], c.OptimizerState) {
		return c.OptimizerState
	}
	return ""
}

// StepOptions returns the options for lowering a training program, without
// capacities.
func StepOptions(c *config.Config) program.Options {
	return program.Options{Beta1: c.Beta1, Beta2: c.Beta2, Eps: c.Epsilon, Decay: c.WeightDecay, Clip: c.Clip, Capacity: program.NoLimits}
}

// Request translates a configuration into a search request, without pins.
func (m *Machine) Request(g *graph.Graph, c *config.Config) *plan.Request {
	req := &plan.Request{Graph: g, GlobalBatch: c.GlobalBatch, Ranks: m.ranks, Options: StepOptions(c), State: State(c)}
	if m.backend != nil {
		req.HeadUnit = m.backend.headUnit(g.Seq)
	}
	return req
}
