package session

import (
	"context"
	"fmt"
	"slices"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/program"
)

// Prove checks the programs of a step before they run. They must not race, hang or
// overflow, and must compute what the plain program computes: the same graph on one
// rank, everything on the device, no sums divided. Equality must be exact; where
// the plan divides sums among ranks or slices, the terms must be the same in
// another order. updates are the programs of the updates that ps defer, see Updates. opt must be the options that
// the programs were lowered with.
func Prove(ctx context.Context, g *graph.Graph, pl *program.Plan, ps, updates []*program.Program, opt program.Options) (program.Equality, error) {
	if err := program.Verify(ps...); err != nil {
		return program.Different, fmt.Errorf("the program of this plan is not safe to run (a bug in athanor's compiler; nothing was run): %w", err)
	}
	plain := program.Plain(g, pl.MicroBatch*pl.MicroBatches*pl.Replicas())
	plain.State = pl.State
	opt.RowUnit, opt.Base, opt.Dump, opt.Rank = ps[0].RowUnit, nil, nil, 0
	var err error
	if opt.Cuts, err = pl.Cuts(g); err != nil {
		return program.Different, err
	}
	reference, err := program.Lower(ctx, g, plain, opt)
	if err != nil {
		return program.Different, err
	}
	eq, err := equivalent(ps, updates, []*program.Program{reference})
	sliced := pl.Pipeline != nil && pl.Pipeline.Slices > 1 // then sums over tokens run backwards, slice by slice
	if err == nil && eq != program.Exact && pl.Ranks == 1 && !sliced {
		err = fmt.Errorf("the results are only %v", eq)
	}
	if err != nil {
		return eq, fmt.Errorf("the program of this plan does not compute what that of the plain plan does (a bug in athanor's compiler; nothing was run): %w", err)
	}
	return eq, nil
}

func equivalent(ps, updates, reference []*program.Program) (program.Equality, error) {
	if updates == nil {
		return program.Equivalent(ps, reference)
	}
	return program.EquivalentDeferred(ps, updates, reference)
}

// Updates returns the programs of the updates that training programs defer, by rank; nil if they defer none. opt are the options of the
// training programs.
func Updates(ctx context.Context, g *graph.Graph, pl *program.Plan, ps []*program.Program, opt program.Options) ([]*program.Program, error) {
	if !slices.ContainsFunc(ps, (*program.Program).Defers) {
		return nil, nil
	}
	var list []*program.Program
	opt.Mode, opt.Cuts, opt.Dump = program.Update, nil, nil
	for r, base := range ps {
		opt.Rank, opt.Base, opt.RowUnit = r, base, base.RowUnit
		p, err := program.Lower(ctx, g, pl, opt)
		if err != nil {
			return nil, err
		}
		list = append(list, p)
	}
	return list, program.Verify(list...)
}
