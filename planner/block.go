package planner

import (
	"context"
	"errors"

	"github.com/athanor-llm/athanor/machine"
	"github.com/athanor-llm/athanor/search"
)

// Block plans a block of sequences on a machine, see search.FindBlock, whose rates are those of programs that were timed there if it is at
// hand. The host attends only if its cores are the device: a GPU's attention has other bits. The error is a *search.Misfit if nothing fits.
func Block(ctx context.Context, m *machine.Machine, req *search.BlockRequest, gpu bool) (*search.BlockPlan, error) {
	on := &search.Machine{Capacity: m.Capacity, Shared: m.Shared(), Cost: m.Hardware}
	if m.AtHand() {
		on.Measure = func(c *search.Candidate) error { return measure(m, c) }
	}
	own := *req
	own.HostAttends = !gpu
	found, err := search.FindBlock(ctx, &own, on)
	var misfit *search.Misfit
	if errors.As(err, &misfit) {
		misfit.Hint = inferenceHint
	}
	return found, err
}
