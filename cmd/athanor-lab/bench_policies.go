package main

import (
	stdctx "context"
	"fmt"
	"io"
	"strings"

	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/internal/cli"
	"github.com/athanor-llm/athanor/lab/compare"
	"github.com/athanor-llm/athanor/model/family"
	"github.com/athanor-llm/athanor/policy"
)

type benchPoliciesCmd struct {
	Models   []string `help:"Known models." default:"gpt2-4b,gpt2-10b,gpt2-15b,gpt2-20b" placeholder:"NAME,..."`
	Hardware []string `help:"Known machines." default:"elixir-paper-40,elixir-paper-80" placeholder:"NAME,..."`
	Gpus     []int    `help:"Numbers of GPUs to simulate." default:"1,2,4" placeholder:"N,..."`
	Batch    []int    `help:"Sequences per GPU and step, in turn." default:"4,8,16" placeholder:"N,..."`
	Sequence int      `help:"Tokens per sequence." default:"1024" placeholder:"N"`
	Share    bool     `help:"Let ranks share sequences and matrices, beside policies that do."`
}

// contestRules explains the numbers of the table.
const contestRules = `simulated: seconds per step of the search's plan, found without the others; for the others, how many times as long they take (-: does not fit)
- with the fastest settings that fit, of: every number of micro-batches that divides the batch; checkpointing in the first of the
  layers, in eighths from none to all; of zero-3-offload, chunks that are not offloaded, in eighths (offload_optimizer.ratio)
- in brackets as published: the batch in one micro-batch, every layer checkpointed, all that a policy offloads offloaded`

// Run compares the search with published policies on the simulator.
func (v *benchPoliciesCmd) Run(c *cli.Context) error {
	if err := v.check(); err != nil {
		return err
	}
	if v.Share {
		return v.share(c)
	}
	list := []compare.Contested{}
	rows := c.Rows()
	fmt.Fprintf(rows, "%s\n\n%-10s %-18s %4s %5s %9s", contestRules, "model", "hardware", "GPUs", "batch", "search")
	for _, p := range policy.All() {
		fmt.Fprintf(rows, " %17s", p.Name)
	}
	fmt.Fprintln(rows, "  plan")
	for _, contest := range compare.Contests(v.Models, v.Hardware, v.Gpus, v.Batch, v.Sequence) {
		r, err := contest.Hold(stdctx.Background())
		if err != nil {
			return err
		}
		list = append(list, *r)
		printContest(rows, r)
	}
	ratios := compare.Compare(list)
	if c.JSON {
		return c.Print(map[string]any{"contests": list, "ratios": ratios})
	}
	c.Textf("\n%-16s %8s %8s %8s %6s %6s %14s   %s\n", "policy", "least", "mean", "most", "fits", "faster", "(as published)", "most in")
	for _, r := range ratios {
		fmt.Fprintf(c.Stdout, "%-16s %8.3f %8.3f %8.3f %3d/%d %6d %14s", r.Policy, r.Least, r.Mean, r.Most, r.Fits, len(list), r.Faster, fmt.Sprintf("(%.3f)", r.Published))
		if r.Fits > 0 {
			fmt.Fprintf(c.Stdout, "   %s on %d x %s, batch %d", r.Contest.Model, r.Contest.GPUs, r.Contest.Hardware, r.Contest.Batch)
		}
		fmt.Fprintln(c.Stdout)
	}
	return nil
}

// sharedRules explains the numbers of the table of ranks that share.
const sharedRules = `simulated: seconds per step of the search's plan, found without the others; for the others, how many times as long they take (-: does not fit)
in brackets how many ranks share each sequence and each matrix, and form a pipeline
- megatron-3d: matrices shared, then pipelines (1F1B), then data, with the optimizer's state divided; ulysses-zero3: sequences shared, everything divided and offloaded as far as
  it must be; the fastest of all their degrees, numbers of micro-batches, and layers that are checkpointed, in eighths`

// share compares the search over all degrees with policies whose ranks share.
func (v *benchPoliciesCmd) share(c *cli.Context) error {
	list := []*compare.SharedContest{}
	rows := c.Rows()
	fmt.Fprintf(rows, "%s\n\n%-12s %-18s %4s %5s %22s", sharedRules, "model", "hardware", "GPUs", "batch", "search")
	for _, p := range policy.AllShared() {
		fmt.Fprintf(rows, " %20s", p.Name)
	}
	fmt.Fprintln(rows, "  plan")
	for _, contest := range compare.Contests(v.Models, v.Hardware, v.Gpus, v.Batch, v.Sequence) {
		r, err := contest.HoldShared(stdctx.Background())
		if err != nil {
			return err
		}
		list = append(list, r)
		fmt.Fprintf(rows, "%-12s %-18s %4d %5d %22s", r.Model, r.Contest.Hardware, r.GPUs, r.Batch, fmt.Sprintf("%.4f s (%s)", r.Seconds, degrees(r.Degrees)))
		for _, s := range r.Standings {
			fmt.Fprintf(rows, " %20s", fmt.Sprintf("%s (%s)", times(s.Seconds, s.Ratio), degrees(s.Degrees)))
		}
		fmt.Fprintf(rows, "  %s\n", r.Label)
	}
	if c.JSON {
		return c.Print(map[string]any{"contests": list})
	}
	return nil
}

func degrees(d policy.Degrees) string {
	return fmt.Sprintf("%d x %d x %d", d.Sequence, d.Tensor, d.Pipeline)
}

func (v *benchPoliciesCmd) check() error {
	for _, m := range v.Models {
		if _, err := family.Known(m); err != nil {
			return cli.UsageError("bench policies: " + err.Error())
		}
	}
	for _, n := range v.Gpus {
		for _, h := range v.Hardware {
			if _, err := hardware.KnownRank(h, n); err != nil {
				return cli.UsageError("bench policies: " + err.Error())
			}
		}
	}
	for _, b := range append(v.Batch, v.Sequence) {
		if b < 1 || b > 1<<16 {
			return cli.UsageError(fmt.Sprintf("bench policies: --batch and --sequence must be positive, not %d; hint: use 1 or more", b))
		}
	}
	return nil
}

func printContest(w io.Writer, r *compare.Contested) {
	seconds := "-"
	if r.Seconds > 0 {
		seconds = fmt.Sprintf("%.3f s", r.Seconds)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%-10s %-18s %4d %5d %9s", r.Model, r.Contest.Hardware, r.GPUs, r.Batch, seconds)
	for _, s := range r.Standings {
		cell := times(s.Seconds, s.Ratio) + " (" + times(s.Published, s.PublishedRatio) + ")"
		fmt.Fprintf(&b, " %17s", cell)
	}
	fmt.Fprintf(w, "%s  %s\n", b.String(), r.Label)
}

// times formats how many times as long as the search's a step takes or, where the search has
// no plan, the step's seconds.
func times(seconds, ratio float64) string {
	switch {
	case ratio > 0:
		return fmt.Sprintf("%.3f", ratio)
	case seconds > 0:
		return fmt.Sprintf("%.3f s", seconds)
	}
	return "-"
}
