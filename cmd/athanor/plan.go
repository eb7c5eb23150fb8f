package main

import (
	stdctx "context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/internal/cli"
	"github.com/athanor-llm/athanor/internal/size"
	"github.com/athanor-llm/athanor/job"
	"github.com/athanor-llm/athanor/machine"
	"github.com/athanor-llm/athanor/planner"
	"github.com/athanor-llm/athanor/policy"
	"github.com/athanor-llm/athanor/search"
	"github.com/athanor-llm/athanor/train"
)

type planCmd struct {
	target
	Explain bool   `help:"Also show the runners-up, why they lost, and what more memory or faster links would bring."`
	Out     string `help:"Write the plan as JSON, to be used with plan=FILE." placeholder:"FILE"`
	Policy  string `help:"Let another system decide: ${policies}, or ${rules} (about activations only)." placeholder:"NAME"`
	Dump    string `help:"Write the program of one step as text." placeholder:"FILE"`

	MaxSequence bool `help:"Find the longest sequence that fits instead."`
	Step        int  `help:"Search for --max-sequence in multiples of this many tokens (for long sequences, to within a hundredth; where not even so many fit, of a sixteenth)." default:"256"`
}

// Help is what `plan --help` says besides the flags: the words of a plan.
func (planCmd) Help() string {
	return strings.Join([]string{
		"The words of a plan:",
		"- chunk: parameters that are placed, sent and updated together, usually a layer's; N of M chunks on the device: these stay there, the others come when needed.",
		"- cache, units ahead: device memory that keeps chunks from one use to the next, and how many layers early they are sent.",
		"- group (layer by layer for N micro-batches together): a layer computes N micro-batches before the next layer does, so its weights are sent once for all of them.",
		"- head rows (logits of N tokens at a time): the last layer's output, as wide as the vocabulary, is made for N tokens, used up, and made for the next.",
		"- kept, swapped, recomputed: bytes per layer and micro-batch of activations that wait for the backward pass on the device, wait on the host or disk, or are made again. " +
			"A layer's are its input, attention, linear (outputs of products) and light (the rest, cheap to make again).",
		"- out, in, again: seconds per layer and step for swapping out, for swapping in and for recomputing; the first two hide behind forward and backward where they are shorter.",
		"- reductions: losses and gradient norms. arena: what the run takes of a tier, to the byte. above the lower bound: how much of that is for want of a tighter packing.",
		"- deferred updates: made while the next step begins; the results are the same.",
	}, "\n\n")
}

// policyNames is substituted into the help of --policy.
var policyNames = kong.Vars{
	"policies": strings.Join(policy.Names(), ", "),
	"rules":    strings.Join(search.ActivationRules(), ", "),
}

// planner returns a planner that searches or, with --policy, asks a policy.
func (v *planCmd) planner(note func(string)) (planner.Planner, error) {
	if v.searches() {
		return searching(note), nil
	}
	if _, err := policy.Find(v.Policy); err != nil {
		return nil, cli.UsageError(fmt.Sprintf("%v, or %s, which decides about activations only", err, strings.Join(search.ActivationRules(), ", ")))
	}
	return func(ctx stdctx.Context, t *planner.Task) (*search.Result, error) { return t.PlanBy(ctx, v.Policy) }, nil
}

// searches reports whether the plan is searched for. An activation rule leaves the
// rest to the search, which receives it as if configured.
func (v *planCmd) searches() bool {
	rule := slices.Contains(search.ActivationRules(), v.Policy)
	if rule {
		v.Overrides = append(v.Overrides, "plan.policy="+v.Policy)
	}
	return rule || v.Policy == ""
}

func (v *planCmd) Run(c *cli.Context) error {
	ctx := stdctx.Background()
	if v.MaxSequence {
		return v.maxSequence(ctx, c)
	}
	if err := cli.CanWrite([]string{v.Config}, v.Out, v.Dump); err != nil {
		return err
	}
	show := cli.NewStatus(c.Stderr)
	defer show.Done()
	say := show.Say
	find, err := v.planner(func(text string) { say(text) })
	if err != nil {
		return err
	}
	p, err := v.readFor(ctx, c, config.ToPlan)
	if err != nil {
		return err
	}
	defer p.close()
	if err := p.findMachine(c, machine.Describe); err != nil {
		return err
	}
	if err := p.chooseTrained(ctx, c); err != nil {
		return explained(c, err)
	}
	var stop func()
	p.enough, stop = untilInterrupt()
	told := false
	p.early = func(best *search.Candidate) {
		if !told {
			show.Done()
			c.Note(p.soFar(best))
		}
		told = true
	}
	err = p.makePlan(ctx, find)
	stop()
	if err == nil && p.report.Wear.Soon() && !p.result.Cut {
		say("planning without the disk, which this plan wears")
		p.report.Wear.Spared, err = p.task().Spare(ctx, p.result.Best)
	} else if err == nil && v.Policy == "" && !v.Explain {
		p.report.Quicker, err = p.task().Quicker(ctx, p.result.Best)
	}
	show.Done()
	p.sayBusy(c)
	if err == nil {
		p.sayCrowded(c)
	}
	if err == nil && p.result.Cut {
		c.Note("interrupted: this is the best plan so far, and a longer search may find a faster one")
	}
	say = func(string) {} // what follows prints its own lines
	var misfit *search.Misfit
	if errors.As(err, &misfit) {
		return errors.Join(v.misfit(ctx, c, p, find, misfit), err)
	}
	if err != nil {
		return err
	}
	if err := v.write(p.result.Best); err != nil {
		return err
	}
	return v.report(ctx, c, p, find, show)
}

// write writes the files that were asked for.
func (v *planCmd) write(best *search.Candidate) error {
	if v.Out != "" {
		text, err := json.MarshalIndent(best.Plan, "", "  ")
		if err != nil {
			return err
		}
		if err := cli.WriteTo(v.Out, func(w io.Writer) error { return cli.Wrote(w.Write(append(text, '\n'))) }); err != nil {
			return err
		}
	}
	if v.Dump == "" {
		return nil
	}
	return cli.WriteTo(v.Dump, func(w io.Writer) error { return cli.Wrote(io.WriteString(w, best.Program.String())) })
}

// report prints the plan and, with --explain, what explains it.
func (v *planCmd) report(ctx stdctx.Context, c *cli.Context, p *planned, find planner.Planner, show *cli.Status) (err error) {
	if !c.JSON {
		p.print(c)
		if v.Policy == policy.ElixirPaper {
			if err := p.printElixir(ctx, c); err != nil {
				return err
			}
		}
	}
	if v.Explain && !p.result.Cut { // who interrupts waits for no more answers
		if p.report.WhatIfs, err = p.task().WhatIfs(ctx, p.result, find, show.Say); err != nil {
			return err
		}
		show.Done()
	}
	if c.JSON {
		return c.Print(withChoice{p.report, p.chosen})
	}
	if v.Explain {
		p.explain(c)
	}
	return nil
}

// misfit prints why nothing fits, and what would: without --explain, not what would not.
func (v *planCmd) misfit(ctx stdctx.Context, c *cli.Context, p *planned, find planner.Planner, why *search.Misfit) error {
	report := search.MisfitReport(why)
	show := cli.NewStatus(c.Stderr)
	if !v.Explain {
		find = nil
	}
	list, err := p.task().Remedies(ctx, why, find, show.Say)
	show.Done()
	if v.Explain {
		report.WhatIfs = list
	} else {
		report.WhatIfs = slices.DeleteFunc(list, func(w search.WhatIf) bool { return w.Seconds == 0 })
	}
	if c.JSON {
		return errors.Join(err, c.Print(report))
	}
	c.Tellf("the model does not fit: the most frugal plan takes %s of %v memory, of which %s are there:\n", size.Format(why.Need), why.Tier, size.Format(why.Have))
	for _, l := range report.Largest {
		c.Tellf("%12s  %s on the %s\n", size.Format(l.Bytes), l.Class, l.Tier)
	}
	if len(report.WhatIfs) > 0 {
		fmt.Fprintln(c.Stdout, "what if, seconds per step:")
		c.Text(whatIfText(report.WhatIfs, false))
	}
	return err
}

// maxSequence prints the longest sequence that fits.
func (v *planCmd) maxSequence(ctx stdctx.Context, c *cli.Context) error {
	if !v.searches() {
		return cli.UsageError(fmt.Sprintf("plan --max-sequence does not work with --policy %s; hint: use --policy %s, or leave --policy out", v.Policy, strings.Join(search.ActivationRules(), ", ")))
	}
	spec, err := v.Load(c, config.ToPlan)
	if err != nil {
		return err
	}
	show := cli.NewStatus(c.Stderr)
	defer show.Done()
	text, err := train.OpenText(ctx, spec, show.Progress)
	if err != nil {
		return err
	}
	defer text.Close()
	need, end, err := request(spec)
	if err != nil {
		return err
	}
	defer end()
	m, err := machine.Describe(need, show.Say)
	if err != nil {
		return err
	}
	longest, err := planner.MaxSequence(ctx, m, spec, text.AtLength(spec), v.Step, show.Say)
	show.Done()
	if err != nil {
		return err
	}
	if c.JSON {
		return c.Print(longest)
	}
	least := ""
	if longest.TooLong > longest.Tokens+v.Step {
		least = "at least "
	}
	sharing := ""
	if longest.Sharing != "" {
		sharing = ", with " + longest.Sharing
	}
	c.Textf("longest sequence: %s%d tokens%s; at %d: %s\n", least, longest.Tokens, sharing, longest.TooLong, longest.Beyond)
	return nil
}

// print writes the plan as text.
func (p *planned) print(c *cli.Context) {
	best := p.result.Best
	if p.chosen != nil {
		printChosen(c, p.chosen)
	}
	if p.report.Wear.Soon() {
		c.Text(p.report.Wear.Warning() + "\n")
	}
	if q := p.report.Quicker; q != nil {
		c.Textf("hint: much of the step waits for copies; with %s it takes at most %.4g s (%+.0f %%), with other results: %s\n", q.Set, q.Seconds, 100*q.Gain, q.Price)
	}
	c.Text("plan: " + search.Describe(best) + search.DescribeHosts(best, p.machine.Host))
	if d := p.setup.Graph.Documents; d != nil {
		c.Textf("documents: a token sees only its own; on average that costs as much as documents of %d tokens\n", d.Length)
	}
	c.Textf("predicted: %.4g s per step of %d tokens%s, %.0f tokens/s\nMFU %s; chosen from %d candidates\n%s\n",
		p.expected.Seconds, p.spec().GlobalBatch*p.spec().SequenceLength, p.expected.Text(best.Seconds()), p.report.TokenRate, p.utilisation(), p.result.Evaluated,
		wholeRun(p.spec(), p.expected.Seconds, p.report.Wear))
	search.WriteActivations(c.Stdout, p.report.Layers)
	fmt.Fprintln(c.Stdout)
	search.WriteMemory(c.Stdout, best, p.report.Process, p.report.Wear)
	c.Textf("\nthe plain run would take %s of device memory: this plan takes %.0f %% of that\n",
		size.Format(p.report.Plain), 100*float64(slices.Max(p.report.Peaks.Device))/float64(p.report.Plain))
	if p.spec().Ranks > 1 {
		c.Text("limits are those of one rank; the keys limits.host and limits.disk are for all ranks together, on all hosts\n")
	}
	p.sayAssumed(c)
	p.sayStart(c)
	fmt.Fprintln(c.Stdout)
}

// wholeRun says how long a run of so many seconds a step takes and what it writes to the disk, a line; "" if its time is given or
// its length is not known.
func wholeRun(s *job.Spec, seconds float64, wear *search.Wear) string {
	if s.MaxTime > 0 || s.MaxSteps <= 0 {
		return ""
	}
	text := fmt.Sprintf("all %d steps take %s", s.MaxSteps, search.Days(float64(s.MaxSteps)*seconds))
	if wear != nil && wear.Endurance > 0 {
		written := float64(s.MaxSteps) * float64(wear.PerStep)
		text += fmt.Sprintf(" and write %s to the disk, %.2g %% of its endurance", size.Decimal(int64(written)), 100*written/float64(wear.Endurance))
	}
	return text + "\n"
}

// explain prints the runners-up and the what-ifs.
func (p *planned) explain(c *cli.Context) {
	if len(p.report.RunnersUp) > 0 {
		fmt.Fprintln(c.Stdout, "runners-up:")
	}
	for _, r := range p.report.RunnersUp {
		c.Textf("  %+6.1f %%  %10.4g s  %10s of device memory  %s (idle for %.0f %% of the step, recomputes for %.0f %%%s)\n",
			100*(r.Seconds/p.report.Seconds-1), r.Seconds, size.Format(r.Device), r.Label, 100*r.Idle, 100*r.Repeated, tried(r.Tried))
	}
	if p.result.Cut {
		return
	}
	fmt.Fprintln(c.Stdout, "what if, seconds per step, and the change per token:")
	c.Text(whatIfText(p.report.WhatIfs, true))
}

// tried formats a plan's time in trials, if any.
func tried(seconds float64) string {
	if seconds == 0 {
		return ""
	}
	return fmt.Sprintf("; %.4g s when tried", seconds)
}

// printElixir prints the decisions of Elixir's search in its own terms.
func (p *planned) printElixir(ctx stdctx.Context, c *cli.Context) error {
	r, err := p.task().PolicyRequest(ctx)
	if err != nil {
		return err
	}
	trace, d, err := policy.ElixirDecision(r)
	if err != nil {
		return err
	}
	first := "optimizer state before blocks"
	if d.CacheFirst() {
		first = "blocks before optimizer state"
	}
	c.Textf("Elixir's search: %d parameters in %d steps; chunks of %d elements, %d of them, %.2f %% waste; %d blocks would suffice, with %d moves\n",
		len(trace.Params), len(trace.Steps), d.Size, d.Packing.Chunks, 100*d.Waste(), d.Choice.Blocks, d.Moves)
	c.Textf("%s (%.4f and %.4f ns per element): %d of %d chunks stay on the GPU, with %d blocks\n",
		first, d.Cache, d.State, d.Resident(), len(d.OnGPU), d.Placement.Blocks)
	return nil
}
