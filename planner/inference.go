package planner

import (
	"context"
	"errors"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/machine"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/search"
)

// Inference plans a batch of sequences on a device, or generation with graphs that read prompts, see search.Inference. The error is a
// *search.Misfit if nothing fits.
func Inference(ctx context.Context, a *machine.Alone, g *graph.Graph, sequences int, mode lower.Mode, prompts ...*graph.Graph) ([]*program.Program, error) {
	req := &search.Request{Graph: g, GlobalBatch: sequences, Options: lower.Options{Mode: mode}, HeadUnit: a.HeadUnit}
	ps, err := search.Inference(ctx, req, prompts, &search.Machine{Capacity: a.Capacity, Shared: a.Shared})
	var misfit *search.Misfit
	if errors.As(err, &misfit) {
		misfit.Hint = inferenceHint
	}
	return ps, err
}

// inferenceHint is what to do where a model does not fit.
const inferenceHint = "use weights in bf16 or in 4 bits, fewer tokens, or more memory"
