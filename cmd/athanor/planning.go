package main

import (
	stdctx "context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/machine"
	"github.com/athanor-llm/athanor/run"
	"github.com/athanor-llm/athanor/search"
)

// target is the arguments of most verbs: a configuration and overrides.
type target struct {
	Config    string   `arg:"" help:"YAML file that describes the run; plan, simulate and draw also take a model's name or folder." placeholder:"CONFIG"`
	Overrides []string `arg:"" optional:"" help:"Overrides: key=value, with dots for nested keys; athanor keys lists all." placeholder:"KEY=VALUE"`
}

// load reads the configuration for a purpose, and settles device and precision where it leaves them open.
func (t *target) load(c *context, to config.Purpose) (*config.Config, error) {
	cfg, err := config.LoadTo(to, t.Config, t.Overrides)
	if err != nil {
		return nil, err
	}
	if cfg.Hardware.Name == "" {
		cfg.Device = c.settle(cfg.Device)
	}
	run.SettlePrecision(cfg)
	return cfg, nil
}

// planned holds everything up to the plan.
type planned struct {
	config  *config.Config
	setup   *run.Setup
	machine *machine.Machine
	result  *search.Result
	report  *search.Report
}

func (p *planned) close() {
	if p.setup != nil {
		p.setup.Close()
	}
	if p.machine != nil {
		_ = p.machine.Close() // the process ends
	}
}

// finder returns the machine to plan for: machine.Find if the plan will run, and
// machine.Describe if it will only be shown.
type finder func(*config.Config, func(string)) (*machine.Machine, error)

// read reads the configuration, the text, if the purpose needs or the configuration names it, and the model.
func (t *target) read(ctx stdctx.Context, c *context, to config.Purpose) (*planned, error) {
	cfg, err := t.load(c, to)
	if err != nil {
		return nil, err
	}
	p := &planned{config: cfg}
	show := newStatus(c.stderr)
	defer show.done()
	if p.setup, err = run.Prepare(ctx, cfg, show.progress); err != nil {
		return nil, err
	}
	show.done()
	if !p.setup.Empty() {
		fmt.Fprintln(c.stderr, p.setup.Reading())
	}
	for _, n := range p.setup.Notes {
		fmt.Fprintln(c.stderr, "note:", n)
	}
	return p, nil
}

// on finds the machine.
func (p *planned) on(c *context, find finder) (err error) {
	show := newStatus(c.stderr)
	defer show.done()
	if p.machine, err = find(p.config, show.say); err != nil {
		return err
	}
	if _, err := hardware.KnownRank(p.config.Hardware.Name, 1); err == nil && p.config.Ranks > hardware.PerHost {
		show.done()
		fmt.Fprintf(c.stderr, "note: %d ranks need several hosts, whose links are assumed to be as fast as those inside one host; to train, name the hosts under `hosts`\n", p.config.Ranks)
	}
	if n := p.machine.Idle(); n > 0 {
		show.done()
		fmt.Fprintf(c.stderr, "note: unused GPUs of this machine: %d; hint: set ranks: auto, and a global_batch that can be divided among all GPUs\n", n)
	}
	return nil
}

// search finds the machine and the plan.
func (p *planned) search(ctx stdctx.Context, c *context, find finder) error {
	if err := p.on(c, find); err != nil {
		return err
	}
	show := newStatus(c.stderr)
	defer show.done()
	return p.with(ctx, searching(show.say))
}

// makePlan reads the configuration and searches.
func (t *target) makePlan(ctx stdctx.Context, c *context, find finder) (*planned, error) {
	p, err := t.read(ctx, c, config.ToPlan)
	if err != nil {
		return nil, err
	}
	if err := p.search(ctx, c, find); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

// searching returns a planner that searches.
func searching(note func(string)) machine.Planner {
	return func(ctx stdctx.Context, m *machine.Machine, g *graph.Graph, cfg *config.Config) (*search.Result, error) {
		return m.PlanAny(ctx, g, cfg, note)
	}
}

// with plans the prepared run by the given planner, and builds the report.
func (p *planned) with(ctx stdctx.Context, find machine.Planner) (err error) {
	if p.result, err = find(ctx, p.machine, p.setup.Graph, p.config); err != nil {
		return err
	}
	cfg := p.config
	f, b := p.setup.Graph.FLOPs()
	p.report = search.NewReport(p.setup.Graph, p.result, cfg.GlobalBatch*cfg.SequenceLength, float64(f+b)*float64(cfg.GlobalBatch), p.peak())
	req := &search.Request{Graph: p.setup.Graph, GlobalBatch: cfg.GlobalBatch / cfg.Ranks, Options: machine.StepOptions(cfg), State: p.result.Best.Plan.State}
	p.report.Plain, err = search.PlainBytes(ctx, req)
	return err
}

// peak returns the peak FLOP/s of all ranks together.
func (p *planned) peak() float64 { return p.machine.Peak(p.setup.Graph) }

// status is a progress line, rewritten in place on a terminal. Elsewhere it prints each
// activity once, the first time with its object ("activity: object").
type status struct {
	w    io.Writer
	tty  *os.File // w, if it is a terminal that can rewrite a line
	last string
	said map[string]bool // activities, where w is no terminal

	began, latest time.Time // start of long work, and end of its latest finished part
	ended, all    int
}

func newStatus(w io.Writer) *status {
	s := &status{w: w, said: map[string]bool{}}
	if os.Getenv("TERM") != "dumb" {
		s.tty = asTerminal(w)
	}
	return s
}

// asTerminal returns the terminal that a writer writes to, or nil.
func asTerminal(w io.Writer) *os.File {
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return f
	}
	return nil
}

// rewrite replaces the line. It truncates the text to the terminal's width: of a
// wrapped line, only the last row could be rewritten.
func (s *status) rewrite(text string) {
	s.last = text
	shown := []rune(text)
	if columns, _, err := term.GetSize(int(s.tty.Fd())); err == nil && columns > 1 {
		shown = shown[:min(len(shown), columns-1)]
	}
	fmt.Fprintf(s.w, "\r\x1b[K%s", string(shown))
}

func (s *status) say(text string) {
	activity, _, _ := strings.Cut(text, ": ")
	switch {
	case s.tty != nil:
		s.rewrite(s.part(time.Now()) + text + " ...")
	case !s.said[activity]:
		fmt.Fprintln(s.w, text)
		s.said[activity] = true
	}
	s.last = text
}

func (s *status) progress(what string, done, total int64) {
	if s.tty != nil && total > 0 {
		s.rewrite(fmt.Sprintf("%s%s ... %d %%", s.part(time.Now()), what, 100*done/total))
		return
	}
	if what != s.last {
		s.say(what)
	}
}

// parts begins work of n parts of about equal duration.
func (s *status) parts(n int) { s.began, s.ended, s.all = time.Now(), 0, n }

// next ends a part and clears the line for its result.
func (s *status) next() {
	clear(s.said)
	s.ended, s.latest = s.ended+1, time.Now()
	s.done()
}

// part describes the current part and the remaining time by the mean of finished
// parts. An overdue part counts as about to end.
func (s *status) part(now time.Time) string {
	switch {
	case s.ended >= s.all:
		return ""
	case s.ended == 0:
		return fmt.Sprintf("1 of %d: ", s.all)
	}
	each := s.latest.Sub(s.began) / time.Duration(s.ended)
	others := each * time.Duration(s.all-s.ended-1)
	left := others + max(0, each-now.Sub(s.latest))
	return fmt.Sprintf("%d of %d, ETA %v: ", s.ended+1, s.all, left.Round(time.Second))
}

// done clears the line.
func (s *status) done() {
	if s.tty != nil && s.last != "" {
		fmt.Fprint(s.w, "\r\x1b[K")
	}
	s.last = ""
}
