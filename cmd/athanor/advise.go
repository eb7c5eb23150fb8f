package main

import (
	stdctx "context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/athanor-llm/athanor/advise"
	"github.com/athanor-llm/athanor/checkpoint"
	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/data"
	"github.com/athanor-llm/athanor/internal/cli"
	"github.com/athanor-llm/athanor/internal/stat"
	"github.com/athanor-llm/athanor/job"
	"github.com/athanor-llm/athanor/machine"
	"github.com/athanor-llm/athanor/search"
	"github.com/athanor-llm/athanor/train"
)

type adviseCmd struct {
	cli.Target
	Share *float64 `help:"Share of max_time that short runs may take. By default a tenth; of less than an hour more, up to a quarter of ten minutes."`
	Out   string   `help:"The configuration to write." default:"advised.yaml" placeholder:"FILE"`
}

// Help is what `advise --help` says besides the flags.
func (adviseCmd) Help() string {
	return "Finds the best model that can be trained from scratch on the configured text in max_time: layers, width, heads, batch and learning rate. " +
		"Speeds are planned; losses are predicted by a law that is fitted to short runs on this machine. " +
		"The configuration's own model, batch and learning rate are the first guess. Writes a configuration, which athanor train then runs."
}

func (v *adviseCmd) Run(c *cli.Context) error {
	if v.Share != nil && !(*v.Share > 0 && *v.Share <= 0.5) {
		return cli.UsageError(fmt.Sprintf("advise: --share is %v; hint: use a share of the time above 0 and at most 0.5, such as 0.1", *v.Share))
	}
	if err := cli.CanWrite([]string{v.Config}, v.Out); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(stdctx.Background(), stopping()...)
	defer stop()
	began := time.Now()
	spec, err := v.Load(c, config.ToTrain)
	switch {
	case err != nil:
		return err
	case spec.MaxTime == 0:
		return spec.Fault("max_time", "advise needs it: the best model depends on how long it is trained; hint: set max_time, such as max_time=8h")
	case spec.Model.Type == "":
		return spec.Fault("model", "advise is for models that are trained from scratch; hint: give sizes such as {type: llama, layers: 4, width: 256, heads: 4}, which are the first guess")
	}
	p, err := prepare(ctx, c, spec)
	if err != nil {
		return err
	}
	unique, own, frequent := p.setup.Len(), p.setup.Graph.Model, data.Entropy(p.setup.HeldText...)
	p.close()
	show := cli.NewStatus(c.Stderr)
	defer show.Done()
	l := &lab{v: v, c: c, spec: spec, began: began}
	seconds := time.Duration(spec.MaxTime).Seconds()
	share := advise.UsualShare(seconds)
	if v.Share != nil {
		share = *v.Share
	}
	c.Textf("short runs may take %s, %.0f %% of the time\n", time.Duration(seconds*share*float64(time.Second)).Round(time.Second), 100*share)
	q := advise.Question{
		Seconds: seconds, Share: share, Sequence: spec.SequenceLength, Unique: float64(unique), Frequent: frequent, Say: show.Say,
		Own: advise.Setting{Shape: advise.Shape{Layers: own.Layers, Width: own.Width, Heads: own.Heads}, Batch: spec.GlobalBatch, Rate: spec.LearningRate},
	}
	a, err := advise.Answer(ctx, q, l)
	if ctx.Err() != nil {
		return errStopped
	}
	if err != nil {
		return err
	}
	show.Done()
	if err := l.write(a); err != nil {
		return err
	}
	if c.JSON {
		return c.Print(a)
	}
	return printAdvice(c, a, v.Out)
}

// lab plans and runs models on this machine.
type lab struct {
	v     *adviseCmd
	c     *cli.Context
	spec  *job.Spec
	began time.Time
}

func (l *lab) Spent() float64 { return time.Since(l.began).Seconds() }

// changes returns the overrides that make the configuration a setting's.
func (l *lab) changes(s advise.Setting) ([]string, error) {
	m := l.spec.Model
	m.Layers, m.Width, m.Heads, m.KVHeads, m.HeadDim, m.FeedForward = s.Layers, s.Width, s.Heads, 0, 0, 0
	var node yaml.Node
	if err := node.Encode(m); err != nil {
		return nil, err
	}
	for node.Style = yaml.FlowStyle; ; {
		k := slices.IndexFunc(node.Content, func(n *yaml.Node) bool { return n.Value == "0" || n.Tag == "!!null" })
		if k < 0 {
			break
		}
		node.Content = slices.Delete(node.Content, k-1, k+1) // with its key
	}
	text, err := yaml.Marshal(&node)
	list := []string{"model=" + string(text), fmt.Sprintf("global_batch=%d", s.Batch), fmt.Sprintf("learning_rate=%.3g", s.Rate)}
	if l.spec.Muon.Rate != 1 { // that of matrices stays so many times the other
		list = append(list, fmt.Sprintf("muon.learning_rate=%.3g", s.Rate*l.spec.Muon.Rate))
	}
	return list, err
}

// prepare reads a setting's configuration, for so many steps in a folder of its own, and finds its plan.
func (l *lab) prepare(ctx stdctx.Context, s advise.Setting, steps int, find finder) (*planned, *cli.Context, error) {
	changes, err := l.changes(s)
	if err != nil {
		return nil, nil, err
	}
	quiet := *l.c
	quiet.Stdout, quiet.Stderr = io.Discard, io.Discard
	to := target{l.v.Target}
	to.Overrides = slices.Concat(to.Overrides, changes, []string{fmt.Sprintf("max_steps=%d", steps), "max_time=null", "max_tokens=null", "max_epochs=null", "eval_every=0", "early_stop=0",
		"keep_best=false", "resume=never", "sample={tokens: 0}", "dashboard=false", "out=" + l.folder()})
	p, err := to.readFor(ctx, &quiet, config.ToTrain)
	if err != nil {
		return nil, nil, err
	}
	if err := p.search(ctx, &quiet, find); err != nil {
		p.close()
		return nil, nil, err
	}
	return p, &quiet, nil
}

// folder is where pilots are.
func (l *lab) folder() string { return filepath.Join(l.spec.Out, "advise-pilot") }

// planSteps is how many steps a run has that is only planned.
const planSteps = 1000

func (l *lab) Plan(ctx stdctx.Context, s advise.Setting) (float64, error) {
	p, _, err := l.prepare(ctx, s, planSteps, machine.Describe)
	var misfit *search.Misfit
	if errors.As(err, &misfit) {
		return 0, fmt.Errorf("%w: %w", advise.ErrTooLarge, err)
	}
	if err != nil {
		return 0, err
	}
	defer p.close()
	return float64(s.Batch*l.spec.SequenceLength) / p.report.Seconds, nil
}

func (l *lab) Run(ctx stdctx.Context, s advise.Setting, steps int) (loss float64, err error) {
	if err := os.RemoveAll(l.folder()); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(l.folder())) }()
	p, quiet, err := l.prepare(ctx, s, steps, machine.Find)
	if err != nil {
		return 0, err
	}
	defer p.close()
	t, err := p.open(ctx, quiet)
	if err != nil {
		return 0, err
	}
	if err := errors.Join(t.Train(ctx, silent{}), t.Close()); err != nil {
		return 0, err
	}
	if loss = t.Summary().ValLoss; math.IsNaN(loss) || loss == 0 {
		return 0, l.spec.Fault("validation", "no token of the held-out text is learnt, so short runs say nothing; hint: set a larger validation_fraction, or other text as validation")
	}
	return loss, nil
}

// silent shows nothing of a run.
type silent struct{}

func (silent) Step(train.Metrics) {}
func (silent) Event(string)       {}

// write writes the configuration that is advised.
func (l *lab) write(a *advise.Advice) error {
	text, err := os.ReadFile(l.v.Config)
	if err != nil {
		return err
	}
	changes, err := l.changes(a.Best().Setting)
	if err != nil {
		return err
	}
	left := time.Duration(a.Seconds * float64(time.Second)).Truncate(time.Second)
	text, err = config.Rewrite(l.v.Config, text, slices.Concat(l.v.Overrides, changes, []string{"max_time=" + left.String()}), "max_steps", "max_tokens", "max_epochs")
	if err != nil {
		return err
	}
	return checkpoint.WriteFile(checkpoint.Disk{}, l.v.Out, text)
}

// printAdvice prints the models, best first, why the others are not advised, and what was found.
func printAdvice(c *cli.Context, a *advise.Advice, out string) error {
	const shown = 8
	best, l := a.Best(), a.Law
	w := tabwriter.NewWriter(c.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "layers\twidth\tparameters\ttokens/s\ttokens read\ttimes\tpredicted loss\tof size\tof text\twhy not\t")
	for i := range a.Choices[:min(shown, len(a.Choices))] {
		m := &a.Choices[i]
		fmt.Fprintf(w, "%d\t%d\t%s\t%s\t%s\t%.2g\t%.4f\t%.3f\t%.3f\t%s\t\n", m.Layers, m.Width, stat.Number(m.Params, 0), stat.Number(m.Speed, 0), stat.Number(m.Tokens, 0), m.Tokens/a.Unique, m.Loss, m.OfSize, m.OfText, whyNot(m, best))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	c.Textf("advised: %d layers of %d with %d heads, batch %d, learning rate %.3g: predicted loss %.4f ± %.3f after %s\n", best.Layers, best.Width, best.Heads, best.Batch, best.Rate,
		best.Loss, best.Spread, time.Duration(a.Seconds*float64(time.Second)).Truncate(time.Second))
	c.Textf("of size, of text: what a larger model, and more text, would gain at most. The law, %.3g + %.3g/N^%.3g + %.3g/D^%.3g, is fitted to %d of %d short runs\n",
		l.E, l.A, l.Alpha, l.B, l.Beta, len(slices.DeleteFunc(slices.Clone(a.Pilots), func(p advise.Pilot) bool { return !p.Law })), len(a.Pilots))
	c.Textf("configuration: %s; train it by: athanor train %s\n", out, out)
	return nil
}

// whyNot says what a model loses by against the best one.
func whyNot(m, best *advise.Choice) string {
	switch behind := m.Loss - best.Loss; {
	case m == best:
		return ""
	case m.OfSize > best.OfSize:
		return fmt.Sprintf("too small: %+.3f", behind)
	default:
		return fmt.Sprintf("reads too little: %+.3f", behind)
	}
}
