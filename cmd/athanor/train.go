package main

import (
	stdctx "context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/athanor-llm/athanor/alert"
	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/data"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/folder"
	"github.com/athanor-llm/athanor/internal/cli"
	"github.com/athanor-llm/athanor/internal/stat"
	"github.com/athanor-llm/athanor/machine"
	"github.com/athanor-llm/athanor/planner"
	"github.com/athanor-llm/athanor/train"
)

type trainCmd struct {
	target
	DryRun bool `help:"Stop after the plan."`
}

func (v *trainCmd) Run(c *cli.Context) error {
	ctx, stop := signal.NotifyContext(stdctx.Background(), stopping()...)
	defer stop()
	signal.Ignore(syscall.SIGPIPE) // a reader of the output may exit; the run must still be saved
	defer signal.Reset(syscall.SIGPIPE)
	go func() { // a second signal kills: stop restores the default
		<-ctx.Done()
		stop()
	}()
	return v.launched(ctx, c)
}

// interrupted returns errStopped for an error that is due to ctx alone.
func interrupted(ctx stdctx.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, stdctx.Canceled) {
		return errStopped
	}
	return err
}

// stopping returns the signals that end a run after saving its state. They include
// the loss of the terminal, unless nohup ignores it.
func stopping() []os.Signal {
	list := append(warnings(), os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) {
		list = append(list, syscall.SIGHUP)
	}
	return list
}

// errStopped reports a signal before anything was trained.
var errStopped = errors.New("stopped by a signal before the first step; start the same command again")

// train trains. Where layers stop sharing parameters, the run goes on under another plan.
func (v *trainCmd) train(ctx stdctx.Context, c *cli.Context, l config.Launched) error {
	for {
		if err := v.trainPlan(ctx, c, l); !errors.Is(err, train.ErrDelinked) {
			return err
		}
	}
}

// trainPlan trains as long as one plan is good for.
func (v *trainCmd) trainPlan(ctx stdctx.Context, c *cli.Context, l config.Launched) error {
	spec, err := v.LoadLaunched(c, config.ToTrain, l)
	if err == nil && !v.DryRun {
		err = train.CheckOut(spec)
	}
	if err != nil {
		return err
	}
	p, err := prepare(ctx, c, spec)
	if err != nil {
		return err
	}
	defer p.close()
	if !v.DryRun {
		if err := p.setup.CheckOut(); err != nil {
			return err
		}
	}
	p.trials = true
	if err := p.search(ctx, c, machine.Find); err != nil {
		return explained(c, err)
	}
	if !c.JSON {
		p.print(c)
	}
	if v.DryRun {
		if c.JSON {
			return c.Print(withChoice{p.report, p.chosen})
		}
		return nil
	}
	t, err := p.open(ctx, c)
	if err != nil {
		return err
	}
	if err := p.planAgain(ctx, t); err != nil {
		return errors.Join(err, t.Close())
	}
	ui := newTraining(c, t)
	if p.spec().Dashboard {
		showing, end := stdctx.WithCancel(ctx)
		defer end()
		watchRun(showing, c, p.spec().Out)
	}
	err = t.Train(ctx, ui)
	ui.finish()
	err = errors.Join(err, t.Close())
	p.liftLimit()
	switch {
	case errors.Is(err, train.ErrDelinked):
		return err
	case c.JSON:
		return errors.Join(c.Print(trainReport{withChoice{p.report, p.chosen}, t.Summary()}), err)
	case err != nil:
		return err
	}
	return p.conclude(ctx, c, t)
}

// planAgain lets the run's alerts say what memory would bring that the plan does not use, where the device is predicted to wait.
func (p *planned) planAgain(ctx stdctx.Context, t *train.Run) error {
	best := p.result.Best
	if !alert.Unused(best.Needs()[device.DeviceTier], p.machine.Capacity[device.DeviceTier], best.Idle()) || slices.Contains(p.spec().Alerts.Off, "unused") {
		return nil
	}
	brings, known, err := planner.PlanAgain(ctx, p.task(), best)
	if known {
		train.PlannedAgain(t, brings)
	}
	return err
}

// trainReport is the JSON of the train verb.
type trainReport struct {
	withChoice
	train.Summary
}

// open opens the run, which proves the plan's programs.
func (p *planned) open(ctx stdctx.Context, c *cli.Context) (*train.Run, error) {
	best := p.result.Best
	programs, err := p.task().Programs(ctx, best)
	if err != nil {
		return nil, err
	}
	t, err := train.Open(ctx, p.setup, best, programs, p.machine)
	if err != nil {
		return nil, err
	}
	for _, n := range t.Notes {
		c.Tellf("%s\n", n)
	}
	return t, nil
}

// conclude prints the results of the run.
func (p *planned) conclude(ctx stdctx.Context, c *cli.Context, t *train.Run) error {
	s := t.Summary()
	switch r := s.ValRewards; {
	case math.IsNaN(t.ValLoss):
		fmt.Fprintln(c.Stdout, "\nno validation loss: no token of the held-out text is learnt")
	case r != nil:
		c.Textf("\nvalidation loss %.4f%s, %s\n", s.ValLoss, indifference(p.setup.Spec.PairLoss), r.Means())
	case s.ValFit != nil:
		c.Textf("\nmean squared error %.4f, %s\n", s.ValLoss, s.ValFit)
	case s.ValAccuracy != nil:
		c.Textf("\nvalidation loss %.4f nats per text, accuracy %.1f %%\n", s.ValLoss, 100**s.ValAccuracy)
	default:
		entropy := data.Entropy(p.setup.HeldText...)
		c.Textf("\nvalidation loss %.4f nats per token (perplexity %s, %.4f bits per byte); the unigram entropy of that text is %.4f\n", s.ValLoss, stat.Number(math.Exp(s.ValLoss), 1), s.BitsPerByte, entropy)
	}
	if s.MeasuredSeconds == 0 {
		c.Textf("no steps were left to train: %d are done; hint: set a larger max_steps, max_time or early_stop to continue\n", s.Steps)
	} else {
		p.compare(c, &s)
	}
	if s.Skipped > 0 {
		c.Textf("skipped: %d of %d steps, whose gradient norm was unusual or not finite\n", s.Skipped, s.Steps)
	}
	c.Textf("checkpoint: %s\n", s.Checkpoint)
	if b := s.Best; b != nil && b.Checkpoint != s.Checkpoint {
		c.Textf("lowest validation loss: %.4f, %s\n", b.Loss, b.Checkpoint)
	}
	if spec := p.spec(); spec.Sample.Tokens > 0 && ctx.Err() == nil {
		sample, err := folder.Sample(ctx, s.Checkpoint, folder.Prompt{Text: spec.Sample.Prompt, Tokens: spec.Sample.Tokens, Temperature: 0.8, Seed: spec.Seed,
			Device: spec.Device, Limit: max(int64(spec.Limits.Device), 0), DType: spec.Precision, Quantize: spec.Quantize == config.NF4})
		if err != nil { // not fatal: the model is trained and saved
			fmt.Fprintf(c.Stderr, "no sample could be generated: %v\n", err)
			return nil
		}
		fmt.Fprintf(c.Stdout, "\nsample:\n%s\n", sample.Text)
		return train.AddSample(spec, train.Sample{Step: s.Steps, Prompt: spec.Sample.Prompt, Text: sample.Text})
	}
	return nil
}

// compare prints measurements next to predictions.
func (p *planned) compare(c *cli.Context, s *train.Summary) {
	e := p.expected
	c.Textf("step time: predicted %.4g s%s, measured %.4g s %s\n", e.Seconds, e.Text(p.report.Seconds), s.MeasuredSeconds, e.Compare(s.MeasuredSeconds))
	for r, planned := range p.report.Peaks.Device {
		at := ""
		if p.report.Ranks > 1 {
			at = fmt.Sprintf(" of rank %d", r)
		}
		c.Textf("device memory%s: planned %d bytes, reached %d\n", at, planned, s.MeasuredPeaks.Device[r])
	}
	if w := p.task().Wear(s.MeasuredBytes.DiskWrite, s.MeasuredSeconds); w != nil {
		c.Textf("disk: %d bytes a step were planned to be written, %d were; at this pace %s\n", p.report.Wear.PerStep, w.PerStep, w.Text())
	}
}

// training displays a run: a rewritten line per step on a terminal, elsewhere a
// line every ten seconds.
type training struct {
	c     *cli.Context
	t     *train.Run
	line  *cli.Status
	began time.Time
	first int // step at which this process began
	shown time.Time
}

func newTraining(c *cli.Context, t *train.Run) *training {
	return &training{c: c, t: t, line: cli.NewStatus(c.Stderr), began: time.Now(), first: t.Step}
}

// Step implements train.Observer.
func (u *training) Step(m train.Metrics) {
	if m.Step == u.first+1 { // earlier work, such as computing the reference of preferences, does not recur
		u.began = time.Now().Add(-time.Duration(m.StepSeconds * float64(time.Second)))
	}
	last := m.Step == u.t.Setup.Spec.MaxSteps
	every := 10 * time.Second
	if u.line.Rewrites() {
		every = 100 * time.Millisecond
	}
	if time.Since(u.shown) < every && !last {
		return
	}
	u.shown = time.Now()
	total := u.t.Setup.Spec.MaxSteps
	list := []cli.Field{
		{Text: fmt.Sprintf("step %d/%d %3d%%", m.Step, total, 100*m.Step/total)},
		{Text: fmt.Sprintf("ETA %v", u.eta(m.Step, u.shown))},
		{Text: fmt.Sprintf("loss %.4f", m.Loss), Rank: 1},
		{Text: fmt.Sprintf("lr %.2e", m.LearningRate), Rank: 6},
		{Text: fmt.Sprintf("norm %.2f", m.GradNorm), Rank: 7},
		{Text: fmt.Sprintf("%6.0f tokens/s", m.Rate), Rank: 2},
		{Text: fmt.Sprintf("MFU %4.1f%%", 100*m.MFU), Rank: 5},
		{Text: fmt.Sprintf("step %.3g s (predicted %.3g)", m.StepSeconds, m.Predicted), Rank: 4},
	}
	if m.Rewards != nil {
		list = append(list, cli.Field{Text: m.Rewards.Text(), Rank: 3})
	}
	if u.line.Rewrites() {
		u.line.RewriteFields(list)
		return
	}
	u.c.Tellf("%s\n", cli.Joined(list))
}

// eta returns the remaining duration at the mean pace so far, with the last validation, at most until
// max_time is over. It is printed early in the line, since narrow terminals cut the end
// off.
func (u *training) eta(step int, now time.Time) time.Duration {
	spec := u.t.Setup.Spec
	ran := now.Sub(u.began)
	left := time.Duration(float64(ran)/float64(max(1, step-u.first))*float64(spec.MaxSteps-step)) + train.LastValidation(u.t)
	if spec.MaxTime > 0 {
		left = min(left, max(0, time.Duration(spec.MaxTime)-ran))
	}
	return left.Round(time.Second)
}

// Event implements train.Observer.
func (u *training) Event(text string) {
	u.line.Done()
	u.c.Tellf("%s\n", text)
}

func (u *training) finish() { u.line.Done() }
