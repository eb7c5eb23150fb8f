package run

import (
	"context"
	"fmt"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/program"
)

// Prove checks a program before it runs: that it cannot race, hang or
// overflow, and that it computes what the plain program of the same graph
// computes, the one that keeps everything on the device and cuts nothing. opt
// are the options that the program was lowered with.
func Prove(ctx context.Context, g *graph.Graph, p *program.Program, opt program.Options) error {
	if err := program.Verify(p); err != nil {
		return fmt.Errorf("the program of this plan is not safe to run (a defect of the compiler; nothing was run): %w", err)
	}
	rows := 0
	for i := range p.Buffers {
		if p.Buffers[i].Name == "batch.tokens" {
			rows = p.Buffers[i].Rows
		}
	}
	opt.RowUnit, opt.Base, opt.Dump = p.RowUnit, nil, nil
	plain, err := program.Lower(ctx, g, program.Plain(g, rows/g.Seq), opt)
	if err != nil {
		return err
	}
	eq, err := program.Equivalent([]*program.Program{p}, []*program.Program{plain})
	if err == nil && eq != program.Exact {
		err = fmt.Errorf("they are only %v", eq)
	}
	if err != nil {
		return fmt.Errorf("the program of this plan does not compute what the plain one does (a defect of the compiler; nothing was run): %w", err)
	}
	return nil
}
