package compare

import (
	"context"
	"errors"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/policy/flexgen"
	"github.com/athanor-llm/athanor/search"
)

// Generating is the setting in which a block of sequences is planned by the search and by FlexGen, for one simulator: a model in bf16 on
// described hardware. Both may let the host attend.
type Generating struct {
	Model          *model.Model
	Hardware       *hardware.Hardware
	Prompt, Tokens int // of a sequence
	Most           int // sequences at once
}

// Generated is the outcome: tokens per second, as simulated.
type Generated struct {
	Ours      float64 `json:"tokens_per_second"`
	Sequences int     `json:"sequences"`
	Batches   int     `json:"batches"`
	// The best of FlexGen's policies for each number of sequences of a batch, and ways to read prompts: its own model knows of no time that a
	// call takes whatever it computes. 0: nothing fits.
	FlexGen float64        `json:"flexgen_tokens_per_second"`
	Policy  flexgen.Policy `json:"flexgen"`
	Why     string         `json:"why,omitempty"` // why it does not fit
}

// reads are the tokens of a prompt that may be read at once.
var reads = []int{512, 64}

// Hold plans and simulates.
func (c *Generating) Hold(ctx context.Context) (*Generated, error) {
	on := &search.Machine{Capacity: c.Hardware.Memory.Tiers(), Cost: c.Hardware}
	if c.Hardware.Memory.Shared {
		on.Shared = max(c.Hardware.Memory.Device, c.Hardware.Memory.Host)
	}
	req := &search.BlockRequest{Model: c.Model, DType: graph.BF16, Context: c.Prompt + c.Tokens, Sequences: c.Most, Prompt: c.Prompt, Tokens: c.Tokens, HostAttends: true}
	for _, n := range reads {
		req.Reads = append(req.Reads, min(n, c.Prompt))
	}
	found, err := search.FindBlock(ctx, req, on)
	if err != nil {
		return nil, err
	}
	out := &Generated{Ours: found.Rate(), Sequences: found.Sequences(), Batches: found.Batches}
	m := c.Model
	shape := &flexgen.Shape{Layers: m.Layers, Width: m.Width, FeedForward: m.FeedForward, Heads: m.Heads, Prompt: c.Prompt, Tokens: c.Tokens, Most: c.Most}
	out.Why = "its linear program has no solution"
	for _, p := range flexgen.MachineOf(c.Hardware).All(shape) {
		for _, n := range req.Reads {
			b, err := search.EvaluateBlock(ctx, req, search.Block{Context: req.Context, Each: p.Each, Batches: p.Batches, Reads: []int{n}, DType: req.DType}, p.Plan, on)
			var misfit *search.Misfit
			switch {
			case errors.As(err, &misfit):
				out.Why = misfit.Error()
			case err != nil:
				return nil, err
			case b.Rate() > out.FlexGen:
				out.FlexGen, out.Policy = b.Rate(), p
			}
		}
	}
	if out.FlexGen > 0 {
		out.Why = ""
	}
	return out, nil
}
