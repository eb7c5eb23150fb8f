package main

import (
	stdctx "context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/athanor-llm/athanor/collocate"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/internal/cli"
	"github.com/athanor-llm/athanor/internal/size"
	"github.com/athanor-llm/athanor/machine"
	"github.com/athanor-llm/athanor/planner"
	"github.com/athanor-llm/athanor/search"
)

type shareCmd struct {
	Jobs []string `arg:"" help:"Configurations, models or runs' folders." placeholder:"JOB"`
	GPU  string   `name:"gpu" help:"The card that they share, such as a100-40; without it, the cores of this machine." placeholder:"CARD"`
	Try  int      `help:"On this machine's cores, also make so many steps of all jobs at the same time." placeholder:"STEPS"`
	Out  string   `help:"Write the environment of each job, for the best way, to files of this folder." type:"path" placeholder:"DIR"`
}

// Help is what share --help says besides the flags.
func (shareCmd) Help() string {
	return "Several jobs on one card: one after another, together by MPS, or each on an instance (MIG). What fits is known to the byte from the jobs' plans; " +
		"how fast it is comes from the time for which each needs the processor, the links and the host. An aggregate of 2 is twice what they do one after another. Nothing is changed on the card. " +
		"An instance is a machine like any other: athanor plan CONFIG hardware.name=a100-40/3g.20gb."
}

const leastJobs, mostJobs = 2, 16

func (v *shareCmd) Run(c *cli.Context) error {
	if n := len(v.Jobs); n < leastJobs || n > mostJobs {
		return cli.UsageError(fmt.Sprintf("share: %d jobs; hint: name %d to %d", n, leastJobs, mostJobs))
	}
	ctx, stop := signal.NotifyContext(stdctx.Background(), os.Interrupt)
	defer stop()
	s := &sharing{c: c, files: v.Jobs, names: namesOf(v.Jobs)}
	defer s.close()
	var r *collocate.Report
	var err error
	if v.GPU != "" {
		r, err = s.onCard(ctx, v.GPU)
	} else {
		r, err = s.onCores(ctx, v.Try)
	}
	if err != nil {
		return err
	}
	if v.Out != "" {
		if err := s.writeEnvironments(r, v.Out); err != nil {
			return err
		}
	}
	if c.JSON {
		return c.Print(struct {
			*collocate.Report
			Tried *trial `json:"tried,omitempty"`
		}{r, s.tried})
	}
	s.print(r)
	return nil
}

// sharing is jobs that are to share something.
type sharing struct {
	c     *cli.Context
	files []string
	names []string
	said  int // jobs of which the usual messages have been printed
	open  []*planned
	tried *trial
}

func (s *sharing) close() {
	for _, p := range s.open {
		p.close()
	}
}

// plan plans a job with overrides, without the usual messages after the first time.
func (s *sharing) plan(ctx stdctx.Context, job int, find finder, overrides ...string) (*planned, error) {
	c := *s.c
	if s.said > job {
		c.Stderr = io.Discard
	}
	s.said = max(s.said, job+1)
	t := target{cli.Target{Config: s.files[job], Overrides: overrides}}
	p, err := t.makePlan(ctx, &c, find)
	if err != nil {
		return nil, err
	}
	if n := p.spec().Ranks; n > 1 {
		p.close()
		return nil, p.spec().Fault("ranks", fmt.Sprintf("%d, but jobs that share a card have one each; hint: set ranks: 1", n))
	}
	return p, nil
}

// namesOf returns names of jobs: those of their files or folders, numbered if several are called so.
func namesOf(files []string) (list []string) {
	for _, f := range files {
		base := filepath.Base(f)
		base = strings.TrimSuffix(base, filepath.Ext(base))
		name := base
		for n := 2; slices.Contains(list, name); n++ {
			name = fmt.Sprintf("%s-%d", base, n)
		}
		list = append(list, name)
	}
	return list
}

// run returns what a plan takes and how long.
func (p *planned) run() *collocate.Run {
	best := p.result.Best
	return &collocate.Run{
		Seconds: p.expected.Seconds, Tokens: p.spec().GlobalBatch * p.spec().SequenceLength, Device: best.Program.Height[device.DeviceTier], Host: best.Program.Height[device.HostTier],
		Use: collocate.UseOf(best.Program, p.machine.Hardware),
	}
}

// onCard compares the ways to share a card.
func (s *sharing) onCard(ctx stdctx.Context, name string) (*collocate.Report, error) {
	h, err := hardware.KnownRank(name, 1)
	if err != nil {
		return nil, cli.UsageError("share: " + err.Error())
	}
	show := cli.NewStatus(s.c.Stderr)
	defer show.Done()
	type asked struct {
		file string
		need collocate.Need
	}
	known := map[asked]*collocate.Run{} // jobs are often alike
	plan := func(job int, need collocate.Need) (*collocate.Run, string, error) {
		if run := known[asked{s.files[job], need}]; run != nil {
			return run, "", nil
		}
		if s.said > job {
			show.Say(fmt.Sprintf("planning %s for %s", s.names[job], need.On))
		}
		overrides := []string{"device=cuda", "hardware.name=" + need.On}
		if need.Device > 0 {
			overrides = append(overrides, fmt.Sprintf("limits.device=%d", need.Device))
		}
		if need.Host > 0 {
			overrides = append(overrides, fmt.Sprintf("limits.host=%d", need.Host))
		}
		p, err := s.plan(ctx, job, machine.Describe, overrides...)
		var misfit *search.Misfit
		if errors.As(err, &misfit) {
			return nil, fmt.Sprintf("it needs %s of %v memory", size.Format(misfit.Need), misfit.Tier), nil
		}
		if err != nil {
			return nil, "", err
		}
		defer p.close()
		run := p.run()
		known[asked{s.files[job], need}] = run
		return run, "", nil
	}
	card := collocate.Card{Name: name, Device: h.Memory.Device, Host: h.Memory.Host}
	return card.Compare(s.names, plan)
}

// trial is what jobs did on this machine's cores, in tokens per second.
type trial struct {
	Steps    int       `json:"steps"`
	Alone    []float64 `json:"alone_tokens_per_second"`
	Together []float64 `json:"together_tokens_per_second"`
	// Aggregate is the sum of the jobs' shares of their rates alone.
	Aggregate float64 `json:"aggregate"`
}

// onCores compares jobs one after another on all cores with jobs side by side. If steps are asked for, both are tried.
func (s *sharing) onCores(ctx stdctx.Context, steps int) (*collocate.Report, error) {
	n := len(s.files)
	if cores := runtime.GOMAXPROCS(0); cores < n {
		return nil, cli.UsageError(fmt.Sprintf("share: %d jobs, but this machine has %d cores; hint: name fewer, or a card with --gpu", n, cores))
	}
	plan := func(find finder) (list []*planned, runs []*collocate.Run, err error) {
		for i := range s.files {
			p, err := s.plan(ctx, i, find, "device=cpu")
			if err != nil {
				return nil, nil, err
			}
			s.open = append(s.open, p)
			list, runs = append(list, p), append(runs, p.run())
		}
		return list, runs, nil
	}
	alone, byThemselves, err := plan(machine.Find)
	if err != nil {
		return nil, err
	}
	beside, together, err := plan(func(r *machine.Request, note func(string)) (*machine.Machine, error) {
		r.Jobs = n
		return machine.Find(r, note)
	})
	if err != nil {
		return nil, err
	}
	if steps > 0 {
		if err := s.try(ctx, steps, alone, beside); err != nil {
			return nil, err
		}
	}
	return collocate.Cores(hardware.Processor(), s.names, byThemselves, together), nil
}

// try makes steps of each job by itself, then of all at the same time.
func (s *sharing) try(ctx stdctx.Context, steps int, alone, beside []*planned) error {
	show := cli.NewStatus(s.c.Stderr)
	defer show.Done()
	s.tried = &trial{Steps: steps}
	for i, p := range alone {
		show.Say(fmt.Sprintf("steps of %s by itself", s.names[i]))
		rates, err := rates(ctx, steps, []*planned{p})
		if err != nil {
			return err
		}
		s.tried.Alone = append(s.tried.Alone, rates...)
	}
	show.Say("steps of all at the same time")
	var err error
	if s.tried.Together, err = rates(ctx, steps, beside); err != nil {
		return err
	}
	for i, r := range s.tried.Together {
		s.tried.Aggregate += r / s.tried.Alone[i]
	}
	return nil
}

// rates runs jobs at the same time until each has made so many steps, besides a first one, and returns their tokens per second.
func rates(ctx stdctx.Context, steps int, list []*planned) ([]float64, error) {
	turns, rates, errs := make([]*planner.Turns, len(list)), make([]float64, len(list)), make([]error, len(list))
	for i, p := range list {
		var err error
		if turns[i], err = p.task().TakeTurns(ctx, []*search.Candidate{p.result.Best}, true); err != nil {
			return nil, err
		}
		defer turns[i].Close()
	}
	var busy atomic.Int64 // jobs that have steps to make
	busy.Store(int64(len(list)))
	var warm, all sync.WaitGroup
	warm.Add(len(list))
	for i := range list {
		all.Go(func() {
			_, errs[i] = turns[i].Next(ctx, 0)
			warm.Done()
			warm.Wait()
			begin, tokens := time.Now(), list[i].run().Tokens
			for n := 1; errs[i] == nil && (n <= steps || busy.Load() > 0); n++ {
				if _, errs[i] = turns[i].Next(ctx, 0); n == steps || errs[i] != nil {
					busy.Add(-1)
				}
				rates[i] = float64(n*tokens) / time.Since(begin).Seconds()
			}
		})
	}
	all.Wait()
	return rates, errors.Join(errs...)
}

// writeEnvironments writes a file of variables for each job of the best way.
func (s *sharing) writeEnvironments(r *collocate.Report, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for i, name := range s.names {
		variables, overrides := r.Environment(r.Ways[r.Best], i, runtime.GOMAXPROCS(0))
		text := fmt.Sprintf("# . %s; athanor train %s\n", filepath.Join(dir, name+".env"), strings.Join(append([]string{s.files[i]}, overrides...), " "))
		for _, v := range variables {
			text += "export " + v + "\n"
		}
		if err := os.WriteFile(filepath.Join(dir, name+".env"), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// print prints the ways, then where the jobs are in the best one.
func (s *sharing) print(r *collocate.Report) {
	out := s.c.Stdout
	fmt.Fprintf(out, "%d jobs on %s\n\n%-10s %10s  %s\n", len(r.Jobs), r.Machine, "way", "aggregate", "")
	for i, w := range r.Ways {
		aggregate, what := fmt.Sprintf("%.2f", w.Aggregate), strings.Join(w.Layout, " + ")
		if w.Places == nil {
			aggregate, what = "-", w.Why
		}
		if i == r.Best {
			what = strings.TrimSpace("* " + what)
		}
		fmt.Fprintf(out, "%-10s %10s  %s\n", w.Name, aggregate, what)
	}
	best := r.Ways[r.Best]
	wide := len("job")
	for _, name := range r.Jobs {
		wide = max(wide, len(name))
	}
	fmt.Fprintf(out, "\n%-*s  %-16s %10s %9s %12s %12s\n", wide, "job", "on", "tokens/s", "of alone", "device", "host")
	for i, p := range best.Places {
		fmt.Fprintf(out, "%-*s  %-16s %10.0f %7.0f %% %12s %12s\n", wide, r.Jobs[i], p.On, p.TokenRate, 100*p.Share, size.Format(p.Device), size.Format(p.Host))
	}
	if s.tried != nil {
		fmt.Fprintf(out, "\ntried for %d steps: together an aggregate of %.2f, predicted %.2f\n", s.tried.Steps, s.tried.Aggregate, r.Ways[1].Aggregate)
		for i, name := range r.Jobs {
			fmt.Fprintf(out, "%-*s  %.0f tokens/s by itself, %.0f together\n", wide, name, s.tried.Alone[i], s.tried.Together[i])
		}
	}
	for i, cmd := range best.Commands() {
		if i == 0 {
			fmt.Fprintln(out, "\nbefore they begin, as an administrator:")
		}
		fmt.Fprintln(out, "  "+cmd)
	}
}
