package compare

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/athanor-llm/athanor/bench"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/stat"
	"github.com/athanor-llm/athanor/job"
	"github.com/athanor-llm/athanor/machine"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/planner"
	"github.com/athanor-llm/athanor/search"
)

// Sweep measures a model under every combination of ranks, link rates and device
// budgets: the chosen plan and the best of other kinds.
type Sweep struct {
	Graph *graph.Graph
	Spec  *job.Spec
	Ranks []int
	Links []float64 // bytes/s between host and device; 0: unthrottled
	Count int       // device budgets of each combination
	Plans int       // measured under each, at most
	Steps int       // measured of each plan
}

// SweepRun is one configuration of a sweep: the chosen plan and its rivals, each
// measured. Seconds are per step.
type SweepRun struct {
	Ranks  int     `json:"ranks"`
	Link   float64 `json:"link"` // bytes/s between host and device; 0: unthrottled
	Budget int64   `json:"budget"`
	Plans  []Swept `json:"plans"`  // the chosen one first
	Behind float64 `json:"behind"` // measured time of the chosen plan over that of the fastest, less 1
	// Model is the median prediction error of the chosen plan, with operators timed
	// at most a few steps before.
	Model float64 `json:"model_error"`
	// Twin is the relative difference in time between two copies of the chosen plan
	// in different memory: the noise floor of this sweep.
	Twin  float64 `json:"twin"`
	Exact bool    `json:"exact"` // the peaks of all plans are as planned, to the byte
}

// Swept is one plan of a configuration.
type Swept struct {
	Plan      string  `json:"plan"`
	Predicted float64 `json:"predicted_seconds"`
	Measured  float64 `json:"measured_seconds"`        // median
	Tried     float64 `json:"tried_seconds,omitempty"` // while planning
	Error     float64 `json:"error"`                   // predicted over measured, less 1
}

// Run measures. done receives the result of each configuration.
func (s *Sweep) Run(ctx context.Context, note func(string), done func(SweepRun)) error {
	for _, count := range s.Ranks {
		for _, link := range s.Links {
			own := s.Spec.WithRanks(count, link)
			m, err := machine.Find(own.Machine(), note)
			if err != nil {
				return err
			}
			budgets := bench.Budgets{Machine: m, Graph: s.Graph, Spec: own, Count: s.Count}
			err = budgets.Each(ctx, note, func() error {
				r, err := s.measure(ctx, m, own, note)
				if err == nil {
					r.Ranks, r.Link = count, link
					done(r)
				}
				return err
			})
			if err = errors.Join(err, m.Close()); err != nil {
				return fmt.Errorf("%d ranks, link %g bytes/s: %w", count, link, err)
			}
		}
	}
	return nil
}

// measure plans for a machine's present limits. The chosen plan, its rivals and a
// second copy of the chosen one run step by step in turn, so that slow minutes of a
// shared machine affect all. The order is shuffled, since a step affects the next
// by disk and caches. The chosen plan's operators are timed again every few steps,
// so that the remaining prediction error is the model's own.
func (s *Sweep) measure(ctx context.Context, m *machine.Machine, spec *job.Spec, note func(string)) (r SweepRun, err error) {
	list, err := rivals(ctx, m, s.Graph, spec, note)
	if err != nil {
		return r, err
	}
	list = list[:min(len(list), s.Plans)]
	r = SweepRun{Budget: m.Capacity[device.DeviceTier], Exact: true}
	for _, cand := range list {
		r.Plans = append(r.Plans, Swept{Plan: cand.Label, Predicted: cand.Seconds(), Tried: cand.Tried})
	}
	list = append(list, list[0])
	t, err := (&planner.Task{Machine: m, Graph: s.Graph, Spec: spec}).TakeTurns(ctx, list, true)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	times := make([][]float64, len(list))
	rng := rand.New(rand.NewPCG(1, uint64(len(list))))
	var model []float64
	for n := range 1 + s.Steps { // the first step does not count
		note(fmt.Sprintf("step %d of %d of each plan", n+1, 1+s.Steps))
		if n%timedAnew == 1 {
			if err := timeAnew(m, list[0]); err != nil {
				return r, err
			}
		}
		for _, i := range rng.Perm(len(list)) {
			step, err := t.Next(ctx, i)
			if err != nil {
				return r, fmt.Errorf("%s: %w", list[i].Label, err)
			}
			if n > 0 {
				times[i] = append(times[i], step.Seconds)
			}
		}
		if n > 0 {
			model = append(model, list[0].Seconds()/times[0][n-1]-1)
		}
	}
	for i := range list {
		r.Exact = r.Exact && t.Exact(i)
	}
	r.judge(times, model)
	return r, nil
}

// timedAnew is the number of steps after which operators are timed again.
const timedAnew = 5

// judge compares the steps of all plans, the last ones being the second copy of the
// chosen plan. model holds its prediction errors by step.
func (r *SweepRun) judge(times [][]float64, model []float64) {
	r.Model = stat.Median(model)
	for i := range r.Plans {
		p := &r.Plans[i]
		p.Measured = stat.Median(times[i])
		p.Error = p.Predicted/p.Measured - 1
		r.Behind = max(r.Behind, r.Plans[0].Measured/p.Measured-1)
	}
	r.Twin = stat.Median(times[len(r.Plans)])/r.Plans[0].Measured - 1
}

// timeAnew predicts a candidate's time again, from its operators timed now.
func timeAnew(m *machine.Machine, c *search.Candidate) error {
	m.ForgetTimes()
	now := planner.ForSearch(m)
	if err := now.Measure(c); err != nil {
		return err
	}
	return c.Time(now)
}

// rivals returns the chosen plan followed by plans that a user might set by hand: the best of ranks that share sequences or matrices, for each
// number of them and each way to share; then, fastest first, the best for each placement, with all or nothing recomputed, and with the
// smallest micro-batches.
func rivals(ctx context.Context, m *machine.Machine, g *graph.Graph, spec *job.Spec, note func(string)) ([]*search.Candidate, error) {
	task := &planner.Task{Machine: m, Graph: g, Spec: spec}
	chosen, err := task.PlanAny(ctx, note)
	if err != nil {
		return nil, err
	}
	chosen.Best.Label += sharing(chosen.Best.Plan)
	tier := func(t device.Tier) *device.Tier { return &t }
	pins := []search.Pins{{Recompute: "none"}, {Recompute: "full"}, {MicroBatch: 1}}
	for state := range device.NumTiers {
		for weights := range min(state, device.HostTier) + 1 {
			for grads := range min(state, device.HostTier) + 1 {
				pins = append(pins, search.Pins{Weights: tier(weights), Grads: tier(grads), State: tier(state)})
			}
		}
	}
	c := collection{m: m, note: note, known: map[string]bool{chosen.Best.Label: true}}
	if err := c.addShared(ctx, task); err != nil {
		return nil, err
	}
	shared := len(c.list)
	for _, p := range pins {
		if err := c.add(ctx, task, p); err != nil {
			return nil, err
		}
	}
	// Operators timed for one plan may be the others' too: predict all again.
	for _, cand := range append(c.list, chosen.Best) {
		if err := cand.Time(planner.ForSearch(m)); err != nil {
			return nil, err
		}
	}
	for _, list := range [][]*search.Candidate{c.list[:shared], c.list[shared:]} {
		slices.SortStableFunc(list, func(a, b *search.Candidate) int { return cmp.Compare(a.Seconds(), b.Seconds()) })
	}
	return append([]*search.Candidate{chosen.Best}, c.list...), nil
}

// collection is of plans of different kinds.
type collection struct {
	m     *machine.Machine
	note  func(string)
	list  []*search.Candidate
	known map[string]bool // by label
}

// add searches for the best plan with pins.
func (c *collection) add(ctx context.Context, task *planner.Task, p search.Pins) error {
	req := task.Request()
	req.Pins = p
	res, err := search.Search(ctx, req, planner.ForSearch(c.m), c.note)
	if err != nil { // nothing of this kind fits
		return ctx.Err()
	}
	best := res.Best
	if best.Label += sharing(best.Plan); !c.known[best.Label] {
		c.known[best.Label] = true
		c.list = append(c.list, best)
	}
	return nil
}

// addShared adds plans of ranks that share sequences, either way, or matrices, unless the user says how they do.
func (c *collection) addShared(ctx context.Context, task *planner.Task) error {
	ranks := c.m.Ranks()
	if task.Spec.Given("plan.sequence") || task.Spec.Given("plan.tensor") {
		return nil
	}
	for n := 2; n <= ranks; n++ {
		if ranks%n != 0 || task.Spec.GlobalBatch%(ranks/n) != 0 {
			continue
		}
		for _, p := range []search.Pins{{Sequence: n, Exchange: plan.ExchangeKeys}, {Sequence: n, Exchange: plan.ExchangeHeads}, {Tensor: n}} {
			own, err := planner.Divide(task, max(p.Sequence, 1), max(p.Tensor, 1))
			if err != nil || p.Exchange == plan.ExchangeHeads && !graph.ExchangesHeads(own.Graph, 1) {
				continue // so many cannot share it
			}
			if err := c.add(ctx, own, p); err != nil {
				return err
			}
		}
	}
	return nil
}

// sharing says in a label how ranks share; "" if they do not.
func sharing(pl *plan.Plan) (s string) {
	if n := pl.Parts(); n > 1 {
		s = fmt.Sprintf(", %d ranks to a sequence exchange %s", n, cmp.Or(pl.Exchange, plan.ExchangeKeys))
	}
	if n := pl.Sharers(); n > 1 {
		s += fmt.Sprintf(", %d ranks to a matrix", n)
	}
	return s
}
