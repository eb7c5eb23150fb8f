package main

import (
	stdctx "context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"reflect"
	"slices"

	"github.com/athanor-llm/athanor/bench"
	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/internal/cli"
	"github.com/athanor-llm/athanor/internal/stat"
	"github.com/athanor-llm/athanor/machine"
	"github.com/athanor-llm/athanor/planner"
	"github.com/athanor-llm/athanor/search"
)

type compareCmd struct {
	A         string   `arg:"" help:"Configuration, model or run's folder." placeholder:"A"`
	B         string   `arg:"" help:"What it is compared with." placeholder:"B"`
	Overrides []string `arg:"" optional:"" help:"Overrides of both: key=value." placeholder:"KEY=VALUE"`
	OnlyA     []string `name:"a" sep:"none" help:"Override of A only; may be repeated." placeholder:"KEY=VALUE"`
	OnlyB     []string `name:"b" sep:"none" help:"Override of B only; may be repeated." placeholder:"KEY=VALUE"`
	BinaryA   string   `name:"binary-a" help:"Have another binary make A's steps, such as one that is older or newer." type:"path" placeholder:"FILE"`
	BinaryB   string   `name:"binary-b" help:"Likewise B's." type:"path" placeholder:"FILE"`
	Rounds    int      `help:"Rounds, in each of which both make a step." default:"20"`
}

// Help is what compare --help says besides the flags.
func (compareCmd) Help() string {
	return "Both are planned for this machine and make steps in turn, A B B A, so that other load slows both. " +
		"Where they compute the same, only by different plans, their losses must be equal to the bit. Example: athanor compare run.yaml run.yaml --b plan.recompute=full. " +
		"Two binaries are compared with --binary-a and --binary-b, in processes of their own that take turns; whether their losses are equal is said."
}

// side is one of the two.
type side struct {
	*planned          // nil: another binary makes the steps
	predicted float64 // seconds of a step
	next      func(stdctx.Context) (seconds, loss float64, err error)
	close     func()
	seconds   []float64
	losses    []float64
}

// comparison is the JSON of the verb.
type comparison struct {
	*bench.Ratio
	A, B struct {
		Predicted float64 `json:"predicted_step_seconds"`
		Median    float64 `json:"step_seconds"`
	}
	SameResults bool `json:"same_results"` // they compute the same, and their losses are equal
	SameLosses  bool `json:"same_losses"`  // whatever they compute
}

func (v *compareCmd) Run(c *cli.Context) error {
	const least, most = 4, 10000
	if v.Rounds < least || v.Rounds > most {
		return cli.UsageError(fmt.Sprintf("compare: --rounds is %d; hint: use %d to %d", v.Rounds, least, most))
	}
	ctx, stop := signal.NotifyContext(stdctx.Background(), os.Interrupt)
	defer stop()
	var sides [2]*side
	targets := [2]cli.Target{{Config: v.A, Overrides: slices.Concat(v.Overrides, v.OnlyA)}, {Config: v.B, Overrides: slices.Concat(v.Overrides, v.OnlyB)}}
	for i, binary := range [2]string{v.BinaryA, v.BinaryB} {
		var err error
		if binary == "" {
			sides[i], err = openSide(ctx, c, target{targets[i]})
		} else {
			sides[i], err = openChild(ctx, c, binary, target{targets[i]})
		}
		if err != nil {
			return err
		}
		defer sides[i].close()
	}
	if err := takeRounds(ctx, c, sides, v.Rounds); err != nil {
		return err
	}
	a, b := sides[0], sides[1]
	same := computeSame(a, b)
	if same && !slices.Equal(a.losses, b.losses) {
		return fmt.Errorf("both compute the same by different plans, but their losses differ: %v and %v; this is a bug, please report it", a.losses, b.losses)
	}
	r := &comparison{Ratio: bench.NewRatio(a.seconds, b.seconds), SameResults: same, SameLosses: slices.Equal(a.losses, b.losses)}
	r.A.Predicted, r.A.Median = a.predicted, stat.Median(a.seconds)
	r.B.Predicted, r.B.Median = b.predicted, stat.Median(b.seconds)
	if c.JSON {
		return c.Print(r)
	}
	r.print(c)
	return nil
}

// openSide plans a configuration for this machine.
func openSide(ctx stdctx.Context, c *cli.Context, t target) (*side, error) {
	p, err := t.readFor(ctx, c, config.ToPlan)
	if err != nil {
		return nil, err
	}
	var turns *planner.Turns
	if err = p.search(ctx, c, machine.Find); err == nil {
		turns, err = p.task().TakeTurns(ctx, []*search.Candidate{p.result.Best}, true)
	}
	if err != nil {
		p.close()
		return nil, explained(c, err)
	}
	return &side{
		planned: p, predicted: p.expected.Seconds,
		next: func(ctx stdctx.Context) (float64, float64, error) {
			m, err := turns.Next(ctx, 0)
			return m.Seconds, m.Loss, err
		},
		close: func() {
			_ = turns.Close() // the process ends
			p.close()
		},
	}, nil
}

// step makes a step. Those that warm up are not counted.
func (s *side) step(ctx stdctx.Context, counts bool) error {
	seconds, loss, err := s.next(ctx)
	if err == nil && counts {
		s.seconds, s.losses = append(s.seconds, seconds), append(s.losses, loss)
	}
	return err
}

// takeRounds makes steps in turn: A B, B A, A B, ...
func takeRounds(ctx stdctx.Context, c *cli.Context, sides [2]*side, rounds int) error {
	show := cli.NewStatus(c.Stderr)
	defer show.Done()
	for i := -1; i < rounds; i++ {
		show.Say(fmt.Sprintf("round %d of %d", max(i+1, 0), rounds))
		first := i & 1
		if err := errors.Join(sides[first].step(ctx, i >= 0), sides[1-first].step(ctx, i >= 0)); err != nil {
			return err
		}
	}
	return nil
}

// computeSame reports whether two jobs must have the same results, whatever their plans. Ranks add up in other orders, and
// versions may.
func computeSame(a, b *side) bool {
	if a.planned == nil || b.planned == nil {
		return false
	}
	p, q := a.spec(), b.spec()
	return reflect.DeepEqual(a.setup.Graph.Model, b.setup.Graph.Model) && a.setup.Graph.Sequence() == b.setup.Graph.Sequence() &&
		p.GlobalBatch == q.GlobalBatch && p.Precision == q.Precision && p.Optimizer == q.Optimizer && p.Ranks == 1 && q.Ranks == 1 &&
		p.Documents == q.Documents && p.Clip == q.Clip && p.WeightDecay == q.WeightDecay && a.result.Best.Plan.State == b.result.Best.Plan.State
}

func (r *comparison) print(c *cli.Context) {
	c.Textf("A: predicted %s a step, measured %s (median)\n", stat.Seconds(r.A.Predicted), stat.Seconds(r.A.Median))
	c.Textf("B: predicted %s a step, measured %s (median)\n", stat.Seconds(r.B.Predicted), stat.Seconds(r.B.Median))
	c.Textf("B takes %.4g times as long as A: 95 %% interval %.4g to %.4g, of %d rounds; predicted %.4g\n", r.Ratio.Ratio, r.Low, r.High, r.Rounds, r.B.Predicted/r.A.Predicted)
	if r.More > 0 {
		c.Textf("that is no difference yet; to tell one of this size, about %d more rounds are needed\n", r.More)
	}
	switch {
	case !r.SameResults && r.SameLosses:
		fmt.Fprintln(c.Stdout, "losses are equal to the bit in every round")
	case r.SameResults:
		fmt.Fprintln(c.Stdout, "losses are equal to the bit in every round, as they must be")
	}
}
