package main

import (
	stdctx "context"
	"fmt"
	"slices"
	"text/tabwriter"

	"github.com/athanor-llm/athanor/internal/cli"
	"github.com/athanor-llm/athanor/internal/size"
	"github.com/athanor-llm/athanor/planner"
	"github.com/athanor-llm/athanor/search"
	"github.com/athanor-llm/athanor/train"
)

// chooseTrained decides what is trained, if there is only so much memory for it.
func (p *planned) chooseTrained(ctx stdctx.Context, c *cli.Context) (err error) {
	if p.spec().TrainWithin == 0 {
		return nil
	}
	show := cli.NewStatus(c.Stderr)
	defer show.Done()
	p.chosen, err = p.setup.ChooseTrained(ctx, p.machine, p.trials, show.Say)
	return err
}

// group is parameters that are trained together.
type group = planner.TensorGroup

// withChoice is the JSON of a plan, with what it trains.
type withChoice struct {
	*search.Report
	Chosen *train.Chosen `json:"chosen,omitempty"`
}

// printChosen prints what is trained, and what was given up for it.
func printChosen(c *cli.Context, t *train.Chosen) {
	if !slices.ContainsFunc(t.Groups, func(g group) bool { return !g.Chosen }) {
		c.Textf("train_within: everything is trained, since that fits: it takes at least %s of %s\n\n", size.Exact(t.Bytes), size.Exact(t.Limit))
		return
	}
	gain := func(g group) string {
		if !g.Tried {
			return "-"
		}
		return fmt.Sprintf("%.4f", g.Gain)
	}
	w := tabwriter.NewWriter(c.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "trained\tgain\tstate, gradient\talone\t\t")
	for _, g := range t.Groups {
		chosen := ""
		if g.Chosen {
			chosen = "yes"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t  %s\t\n", chosen, gain(g), size.Format(g.Bytes), size.Format(g.Alone), g.Name)
	}
	w.Flush()
	text := fmt.Sprintf("train_within: what is chosen takes at least %s of %s; training everything would take %s\n", size.Exact(t.Bytes), size.Exact(t.Limit), size.Exact(t.Whole))
	if t.Steps == 0 {
		text += "nothing has been measured yet: as much is chosen as fits; `athanor train` measures what each part gains first\n"
	} else {
		text += fmt.Sprintf("gain: by how much the loss on held-out text, %.4f, fell in %d steps; of all that is chosen, %.4f were predicted and %.4f achieved (trials took %.3g s)\n",
			t.Loss, t.Steps, t.Predicted, t.Achieved, t.Seconds)
	}
	if t.Overlap > 1 {
		text += fmt.Sprintf("groups learn in part the same: what they gain together is predicted by the %.2f-norm of their gains, after a trial of others\n", t.Overlap)
	}
	if t.Steps > 0 && t.Missed > 0 {
		text += fmt.Sprintf("another choice might gain up to %.2g more: there are too many that are almost as good to weigh all\n", t.Missed)
	}
	c.Text(text + "\n")
}
