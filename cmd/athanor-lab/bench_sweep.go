package main

import (
	stdctx "context"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/internal/cli"
	"github.com/athanor-llm/athanor/internal/size"
	"github.com/athanor-llm/athanor/internal/stat"
	"github.com/athanor-llm/athanor/lab/compare"
	"github.com/athanor-llm/athanor/train"
)

type benchSweepCmd struct {
	cli.Target
	RankCounts []int    `help:"Numbers of ranks to use in turn." default:"1,2,4" placeholder:"N,..."`
	Links      []string `help:"Rates of the link between host and device; 0: not throttled." default:"0,1GB,250MB" placeholder:"RATE,..."`
	Count      int      `help:"Device budgets for each number of ranks and each rate." default:"4" placeholder:"N"`
	Plans      int      `help:"Plans to run at each budget, at most." default:"6" placeholder:"N"`
	Steps      int      `help:"Steps to measure of each plan, in turn." default:"25" placeholder:"N"`
}

func (v *benchSweepCmd) Run(c *cli.Context) error {
	if v.Count < 2 || v.Steps < 1 || v.Plans < 1 || slices.Min(append(v.RankCounts, 1)) < 1 {
		return cli.UsageError("bench sweep: --count, --steps, --plans or --rank-counts is out of range; hint: use 2 or more for --count, 1 or more for the others")
	}
	var links []float64
	for _, l := range v.Links {
		n, err := size.Parse(l)
		if err != nil {
			return cli.UsageError("bench sweep: --links: " + err.Error())
		}
		if n != 0 && n < config.MinRate {
			return cli.UsageError(fmt.Sprintf("bench sweep: --links: %s is too low; hint: use at least 1MB (a second), or 0 for a link that is not throttled", l))
		}
		links = append(links, float64(n))
	}
	spec, err := v.Load(c, config.ToPlan)
	if err != nil {
		return err
	}
	ctx, show := stdctx.Background(), cli.NewStatus(c.Stderr)
	defer show.Done()
	setup, err := train.Prepare(ctx, spec, show.Progress)
	if err != nil {
		return err
	}
	defer setup.Close()
	list := []compare.SweepRun{}
	fmt.Fprintf(c.Rows(), "%5s %9s %14s %10s %10s %8s %8s %8s %8s %10s  %s\n", "ranks", "link", "device bytes", "predicted", "measured", "error", "model", "behind", "twin", "tried", "chosen plan, and rivals")
	show.Parts(len(v.RankCounts) * len(links) * v.Count)
	sweep := compare.Sweep{Graph: setup.Graph, Spec: setup.Spec, Ranks: v.RankCounts, Links: links, Count: v.Count, Plans: v.Plans, Steps: v.Steps}
	err = sweep.Run(ctx, show.Say, func(r compare.SweepRun) {
		list = append(list, r)
		show.Next()
		printSweep(c.Rows(), &r)
	})
	if err != nil {
		return err
	}
	show.Done()
	if c.JSON {
		return c.Print(map[string]any{"configurations": list})
	}
	summarise(c, list)
	return nil
}

func printSweep(w io.Writer, r *compare.SweepRun) {
	p, link := r.Plans[0], "free"
	if r.Link > 0 {
		link = size.Format(int64(r.Link)) + "/s"
	}
	fmt.Fprintf(w, "%5d %9s %14d %8.4f s %8.4f s %+6.1f %% %+6.1f %% %6.1f %% %+6.1f %% %s  %s\n", r.Ranks, link, r.Budget, p.Predicted, p.Measured, 100*p.Error, 100*r.Model, 100*r.Behind, 100*r.Twin, inTrial(p.Tried), p.Plan)
	for _, p := range r.Plans[1:] { // the rivals
		fmt.Fprintf(w, "%30s %8.4f s %8.4f s %+6.1f %% %8s %8s %8s %s  %s\n", "", p.Predicted, p.Measured, 100*p.Error, "", "", "", inTrial(p.Tried), p.Plan)
	}
}

// inTrial formats a plan's time in trials as a table cell.
func inTrial(seconds float64) string {
	if seconds == 0 {
		return fmt.Sprintf("%10s", "-")
	}
	return fmt.Sprintf("%8.4f s", seconds)
}

// summarise prints the medians of a sweep.
func summarise(c *cli.Context, list []compare.SweepRun) {
	var errors, model, all, behind, twin []float64
	exact := 0
	for _, r := range list {
		errors, model = append(errors, math.Abs(r.Plans[0].Error)), append(model, math.Abs(r.Model))
		behind, twin = append(behind, r.Behind), append(twin, math.Abs(r.Twin))
		for _, p := range r.Plans {
			all = append(all, math.Abs(p.Error))
		}
		if r.Exact {
			exact++
		}
	}
	mid := func(v []float64) float64 { return 100 * stat.Median(v) }
	within := 0
	for _, b := range behind {
		if b <= 0.05 {
			within++
		}
	}
	c.Textf("\n%d configurations, %d plans run: median error of the predicted time %.1f %% for chosen plans, %.1f %% with operators timed at the same moments, %.1f %% for all plans\n", len(list), len(all), mid(errors), mid(model), mid(all))
	c.Textf("the chosen plan is within 5 %% of the fastest one that was run in %d of %d, behind by %.1f %% (median), %.1f %% (at most); the same plan in other memory differs by %.1f %% (median), %.1f %% (at most)\n",
		within, len(list), mid(behind), 100*slices.Max(behind), mid(twin), 100*slices.Max(twin))
	c.Textf("peak memory exact on every rank and tier for all plans in %d of %d\n", exact, len(list))
}
