package main

import (
	stdctx "context"
	"errors"
	"fmt"
	"io"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/internal/cli"
	"github.com/athanor-llm/athanor/internal/size"
	"github.com/athanor-llm/athanor/lab/compare"
	"github.com/athanor-llm/athanor/machine"
	"github.com/athanor-llm/athanor/train"
)

type benchSwapCmd struct {
	cli.Target
	Lengths []int `help:"Sequence lengths." default:"2048,8192" placeholder:"N,..."`
	Count   int   `help:"Device budgets for each length." default:"4" placeholder:"N"`
	Steps   int   `help:"Steps to measure of each arm, at each budget." default:"4" placeholder:"N"`
}

func (v *benchSwapCmd) Run(c *cli.Context) error {
	if v.Count < 1 || v.Count > 100 || v.Steps < 1 || len(v.Lengths) == 0 {
		return cli.UsageError("bench swap: --count and --steps must be at least 1; hint: leave them out for the defaults")
	}
	spec, err := v.Load(c, config.ToPlan)
	if err != nil {
		return err
	}
	ctx, show := stdctx.Background(), cli.NewStatus(c.Stderr)
	defer show.Done()
	text, err := train.OpenText(ctx, spec, show.Progress)
	if err != nil {
		return err
	}
	defer text.Close()
	m, err := machine.Describe(spec.Machine(), show.Say)
	if err != nil {
		return err
	}
	list := []compare.SwapRun{}
	fmt.Fprintf(c.Rows(), "%7s %10s  %-14s %11s %11s %11s %11s %9s  %s\n", "tokens", "device", "activations", "predicted", "measured", "stall pred.", "stall meas.", "to chosen", "peaks")
	show.Parts(len(v.Lengths) * v.Count)
	swaps := compare.Swaps{Machine: m, At: text.AtLength(spec), Lengths: v.Lengths, Count: v.Count, Steps: v.Steps}
	err = swaps.Run(ctx, show.Say, func(r compare.SwapRun) {
		list = append(list, r)
		show.Next()
		printSwap(c.Rows(), &r)
	})
	if err = errors.Join(err, m.Close()); err != nil {
		return err
	}
	if c.JSON {
		return c.Print(map[string]any{"swaps": list})
	}
	return nil
}

func printSwap(w io.Writer, r *compare.SwapRun) {
	for i, a := range r.Arms {
		head := fmt.Sprintf("%7s %10s", "", "")
		if i == 0 {
			head = fmt.Sprintf("%7d %10s", r.Length, size.Format(r.Budget))
		}
		if !a.Fits {
			fmt.Fprintf(w, "%s  %-14s does not fit\n", head, a.Name)
			continue
		}
		if a.Measured == 0 {
			fmt.Fprintf(w, "%s  %-14s %9.4f s %11s %9.4f s\n", head, a.Name, a.Predicted, "", a.Stalls[0])
			continue
		}
		exact := "exact, least"
		switch {
		case !a.Exact:
			exact = "differ"
		case a.Above > 0:
			exact = fmt.Sprintf("exact, %d bytes above the bound", a.Above)
		}
		fmt.Fprintf(w, "%s  %-14s %9.4f s %9.4f s %9.4f s %9.4f s %9.3f  %s\n", head, a.Name, a.Predicted, a.Measured, a.Stalls[0], a.Stalls[1], a.Ratio, exact)
	}
	if !r.Alike {
		fmt.Fprintln(w, "LOSSES DIFFER between the arms")
	}
}
