package search

import (
	"context"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
)

// PlanBetweenSteps plans programs of another mode, such as evaluation, that run between
// training steps on the same persistent buffers. It uses the training plan or,
// where a device lacks memory for that, the smallest micro-batches that the order
// of sums permits.
func PlanBetweenSteps(ctx context.Context, g *graph.Graph, training *plan.Plan, base []*program.Program, opt lower.Options) (*plan.Plan, []*program.Program, error) {
	pl := *training
	list, over, err := lowerBetweenSteps(ctx, g, &pl, base, opt)
	if err != nil || !over || pl.MicroBatch == 1 || pl.Pipeline != nil {
		return &pl, list, err
	}
	all, least := pl.MicroBatch, g.CutSequences()
	for all%least != 0 && least < all {
		least += g.CutSequences()
	}
	least = min(least, all)
	pl.MicroBatches, pl.MicroBatch, pl.Group = pl.MicroBatches*all/least, least, 1
	if g.Model.Shares > 0 {
		pl.Group = pl.MicroBatches
	}
	pl.HeadRows = min(pl.HeadRows, least*g.Seq)
	list, _, err = lowerBetweenSteps(ctx, g, &pl, base, opt)
	return &pl, list, err
}

// lowerBetweenSteps lowers the programs, and reports whether one exceeds its device.
func lowerBetweenSteps(ctx context.Context, g *graph.Graph, pl *plan.Plan, base []*program.Program, opt lower.Options) (list []*program.Program, over bool, err error) {
	for opt.Rank = range base {
		if err := ctx.Err(); err != nil {
			return nil, false, err
		}
		opt.Base = base[opt.Rank]
		p, err := lower.Lower(ctx, g, pl, opt)
		if err != nil {
			return nil, false, err
		}
		list, over = append(list, p), over || p.ExceedsCapacity(device.DeviceTier)
	}
	return list, over, nil
}
