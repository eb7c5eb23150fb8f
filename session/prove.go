package session

import (
	"context"
	"fmt"
	"slices"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/verify"
)

// Prove checks the programs of a step before they run. They must not race, hang or
// overflow, and must compute what the plain program computes: the same graph on one
// rank, or as many as share matrices, everything on the device, no sums or sequences divided. Equality must be exact; where
// the plan divides sums among ranks or slices, the terms must be the same in
// another order. updates are the programs of the updates that ps defer, see Updates. opt must be the options that
// the programs were lowered with.
func Prove(ctx context.Context, g *graph.Graph, pl *plan.Plan, ps, updates []*program.Program, opt lower.Options) (verify.Equality, error) {
	if err := verify.Verify(ps...); err != nil {
		return verify.Different, fmt.Errorf("the program of this plan is not safe to run (a bug in athanor's compiler; nothing was run): %w", err)
	}
	g, err := g.BuildWhole()
	if err != nil {
		return verify.Different, err
	}
	if g.Shared() > 1 {
		whole, err := graph.BuildDocuments(g.Model, g.Seq, g.DType, g.Documents)
		if err == nil {
			err = verify.Divided(whole, g)
		}
		if err != nil {
			return verify.Different, fmt.Errorf("the ranks that share matrices do not compute together what one does (a bug in athanor's compiler; nothing was run): %w", err)
		}
	}
	plain := plan.Plain(g, pl.Sequences())
	plain.Optimizer, plain.State, plain.KVParts = pl.Optimizer, pl.State, pl.HeadParts()
	opt.RowUnit, opt.Base, opt.Dump, opt.Rank = ps[0].RowUnit, nil, nil, 0
	if opt.Cuts, err = lower.Cuts(g, pl); err != nil {
		return verify.Different, err
	}
	var reference []*program.Program
	for opt.Rank = range plain.Ranks {
		p, err := lower.Lower(ctx, g, plain, opt)
		if err != nil {
			return verify.Different, err
		}
		reference = append(reference, p)
	}
	eq, err := equivalent(ps, updates, reference)
	sliced := pl.Pipeline != nil && pl.Pipeline.Slices > 1 // then sums over tokens run backwards, slice by slice
	if err == nil && eq != verify.Exact && pl.Ranks == 1 && !sliced {
		err = fmt.Errorf("the results are only %v", eq)
	}
	if err != nil {
		return eq, fmt.Errorf("the program of this plan does not compute what that of the plain plan does (a bug in athanor's compiler; nothing was run): %w", err)
	}
	return eq, nil
}

func equivalent(ps, updates, reference []*program.Program) (verify.Equality, error) {
	if updates == nil {
		return verify.Equivalent(ps, reference)
	}
	return verify.EquivalentDeferred(ps, updates, reference)
}

// Updates returns the programs of the updates that training programs defer, by rank; nil if they defer none. opt are the options of the
// training programs.
func Updates(ctx context.Context, g *graph.Graph, pl *plan.Plan, ps []*program.Program, opt lower.Options) ([]*program.Program, error) {
	if !slices.ContainsFunc(ps, (*program.Program).Defers) {
		return nil, nil
	}
	var list []*program.Program
	opt.Mode, opt.Cuts, opt.Dump = lower.Update, nil, nil
	for r, base := range ps {
		opt.Rank, opt.Base, opt.RowUnit = r, base, base.RowUnit
		p, err := lower.Lower(ctx, g, pl, opt)
		if err != nil {
			return nil, err
		}
		list = append(list, p)
	}
	return list, verify.Verify(list...)
}
