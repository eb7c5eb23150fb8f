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
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/run"
)

// target is what most verbs take: a configuration and overrides.
type target struct {
	Config    string   `arg:"" help:"YAML file that describes the run." placeholder:"CONFIG"`
	Overrides []string `arg:"" optional:"" help:"Overrides: key=value, with dots for nested keys." placeholder:"KEY=VALUE"`
}

func (t *target) load() (*config.Config, error) { return config.Load(t.Config, t.Overrides) }

// planned is everything up to the plan.
type planned struct {
	config  *config.Config
	setup   *run.Setup
	machine *run.Machine
	result  *plan.Result
	report  *plan.Report
}

func (p *planned) close() {
	if p.setup != nil {
		p.setup.Close()
	}
}

// finder describes the machine that is planned for: run.FindMachine where the
// plan will run, run.DescribeMachine where it is only looked at.
type finder func(*config.Config, func(string)) (*run.Machine, error)

// read reads configuration, text and model.
func (t *target) read(ctx stdctx.Context, c *context) (*planned, error) {
	cfg, err := t.load()
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
	fmt.Fprintln(c.stderr, p.setup.Reading())
	for _, n := range p.setup.Notes {
		fmt.Fprintln(c.stderr, "note:", n)
	}
	return p, nil
}

// on describes the machine.
func (p *planned) on(c *context, find finder) (err error) {
	show := newStatus(c.stderr)
	defer show.done()
	p.machine, err = find(p.config, show.say)
	return err
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

// makePlan reads and searches.
func (t *target) makePlan(ctx stdctx.Context, c *context, find finder) (*planned, error) {
	p, err := t.read(ctx, c)
	if err != nil {
		return nil, err
	}
	if err := p.search(ctx, c, find); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

// searching plans by a search.
func searching(note func(string)) run.Planner {
	return func(ctx stdctx.Context, m *run.Machine, g *graph.Graph, cfg *config.Config) (*plan.Result, error) {
		return m.PlanAny(ctx, g, cfg, note)
	}
}

// with completes what was prepared by a plan, and reports on it.
func (p *planned) with(ctx stdctx.Context, find run.Planner) (err error) {
	if p.result, err = find(ctx, p.machine, p.setup.Graph, p.config); err != nil {
		return err
	}
	cfg := p.config
	f, b := p.setup.Graph.FLOPs()
	p.report = plan.NewReport(p.setup.Graph, p.result, cfg.GlobalBatch*cfg.SequenceLength, float64(f+b)*float64(cfg.GlobalBatch), p.peak())
	req := &plan.Request{Graph: p.setup.Graph, GlobalBatch: cfg.GlobalBatch / cfg.Ranks, Options: run.StepOptions(cfg), State: p.result.Best.Plan.State}
	p.report.Plain, err = plan.PlainBytes(ctx, req)
	return err
}

// peak is the arithmetic limit of all ranks together, in FLOP/s.
func (p *planned) peak() float64 { return p.machine.Peak(p.setup.Graph) }

// status is a line on a terminal that says what is going on. Elsewhere it prints each
// activity once, the first time with what it works on ("activity: object").
type status struct {
	w    io.Writer
	tty  *os.File // w, if it is a terminal that can take a line back
	last string
	said map[string]bool // activities, where w is no terminal

	began, latest time.Time // on the parts of a long work, and when the latest of those that have ended did
	ended, all    int
}

func newStatus(w io.Writer) *status {
	s := &status{w: w, said: map[string]bool{}}
	if os.Getenv("TERM") != "dumb" {
		s.tty = asTerminal(w)
	}
	return s
}

// asTerminal is the terminal that a writer writes to, or nil.
func asTerminal(w io.Writer) *os.File {
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return f
	}
	return nil
}

// rewrite puts a text in the place of the line. What is wider than the terminal is cut
// off: of a line that wraps only the last row could be taken back.
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
	case !s.said[activity] && !strings.HasPrefix(text, "micro-batch"):
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

// parts begins work of so many parts, which take about equally long.
func (s *status) parts(n int) { s.began, s.ended, s.all = time.Now(), 0, n }

// next ends a part, and clears the line for what it brought.
func (s *status) next() {
	clear(s.said)
	s.ended, s.latest = s.ended+1, time.Now()
	s.done()
}

// part is which part there is work on, and when all will have ended: after the others, if
// this one is overdue.
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
