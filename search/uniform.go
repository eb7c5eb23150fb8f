package search

import (
	"context"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/plan"
)

// Uniform plans are those in which every rank does the same with its part of the batch, that is, plans without
// pipelines.

// improvements are the stages that follow the enumeration, as long as there is a plan.
var improvements = []namedStage{
	{"tables", moveTables, true},
	{"memory", divideMemory, true},
	{"deferral", deferUpdates, false},
	{"activations", refineActivations, false},
	{"whole steps", lengthenSteps, true},
}

// planUniform finds uniform plans. Where cores would update chunks during the backward pass, the search for a
// share of updates does not see the trips of gradients and weights that updates on the device save, so plans with
// all updates on the device are searched for separately. Where updates wait for the norm, they may be left to the
// next step, which is tried before activations are refined or, for steps that were shortened, after it.
func planUniform(ctx context.Context, p *problem, found shortlist) (shortlist, error) {
	if !p.divisible() || p.req.Pins.pipelined() {
		return found, nil
	}
	found, err := searchUniform(ctx, p, found)
	switch {
	case err != nil || len(found) == 0 || found[0].roomy() || p.req.Sketch:
		return found, err
	case p.req.Options.Clip > 0:
		return deferWholeSteps(ctx, p, found)
	case p.req.Pins.Update != "" || found[0].choice.r.state == device.DeviceTier:
		return found, nil
	}
	other := p.updatedBy(plan.UpdateOnDevice)
	streamed, err := searchUniform(ctx, other, nil)
	other.known.settle()
	return found.add(streamed...), err
}

// afterwards returns what may be lowered after the improvements: for deferred updates and for pipelines.
func afterwards(p *problem) int {
	if p.req.Options.Clip <= 0 || p.req.Sketch {
		return inPipelines(p)
	}
	return 2*toImprove + inPipelines(p)
}

// searchUniform enumerates uniform plans and improves the best of them. Ranks that share sequences exchange what moves fewer bytes, or what
// fits if that does not.
func searchUniform(ctx context.Context, p *problem, found shortlist) (shortlist, error) {
	if headsFirst(p) {
		with, err := searchExchanging(ctx, p, found, true)
		if err != nil || len(with) > 0 {
			return with, err
		}
	}
	return searchExchanging(ctx, p, found, false)
}

// searchExchanging is searchUniform with heads exchanged, or keys. It tries shortened steps first. If no plan fits whose step cannot be
// shortened, only those that can be are enumerated again, in full.
func searchExchanging(ctx context.Context, p *problem, found shortlist, heads bool) (shortlist, error) {
	e := newEnumeration(p, found, fastestPlan)
	e.heads = heads
	for _, e.short = range []bool{true, false} {
		if err := e.tryAll(ctx); err != nil {
			return nil, err
		}
		e.again = len(e.found) == 0
		for i, s := range improvements {
			left := min(max(p.told.allowed-p.told.lowered, 0), toImprove/3)
			p.told.begin(toImprove+left, (len(improvements)-1-i)*toImprove+afterwards(p))
			if len(e.found) == 0 {
				break
			}
			if p.req.Sketch && !s.sketch {
				continue
			}
			var err error
			if e.found, err = s.run(ctx, p, e.found); err != nil {
				return nil, err
			}
		}
		if len(e.found) > 0 || !p.shortens() {
			break
		}
	}
	return e.found, nil
}
