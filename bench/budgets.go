package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/stat"
	"github.com/athanor-llm/athanor/job"
	"github.com/athanor-llm/athanor/machine"
	"github.com/athanor-llm/athanor/planner"
	"github.com/athanor-llm/athanor/search"
	"github.com/athanor-llm/athanor/session"
)

// Budgets plans and runs a model under device budgets in geometric progression,
// from what the fastest plan needs to the smallest that the planner can meet without ranks that share, if it can plan so at all. It
// changes the machine's device limit while it runs.
type Budgets struct {
	Machine *machine.Machine
	Graph   *graph.Graph
	Spec    *job.Spec
	Count   int // budgets
	Steps   int // measured under each
}

// BudgetRun compares prediction and measurement for one device budget. Seconds are
// per step, bytes per tier.
type BudgetRun struct {
	Budget    int64          `json:"budget"`
	Plan      string         `json:"plan"` // in words
	Predicted float64        `json:"predicted_seconds"`
	Measured  float64        `json:"measured_seconds"` // median
	Error     float64        `json:"error"`            // predicted over measured, less 1
	Planned   search.PerTier `json:"planned_peaks"`
	Reached   search.PerTier `json:"reached_peaks"`
	Exact     bool           `json:"exact"` // all peaks agree to the byte
}

// task returns what is planned for.
func (b *Budgets) task() *planner.Task {
	return &planner.Task{Machine: b.Machine, Graph: b.Graph, Spec: b.Spec}
}

// Run measures. done receives the result of each budget.
func (b *Budgets) Run(ctx context.Context, note func(string), done func(BudgetRun)) error {
	return b.Each(ctx, note, func() error {
		r, err := b.measure(ctx, note)
		if err == nil {
			done(r)
		}
		return err
	})
}

// Each calls do with the machine's device capacity set to each budget in turn.
func (b *Budgets) Each(ctx context.Context, note func(string), do func() error) error {
	m := b.Machine
	all := m.Capacity[device.DeviceTier]
	defer func() { m.Capacity[device.DeviceTier] = all }()
	best, err := planSomehow(ctx, b.task(), note)
	if err != nil {
		return err
	}
	var largest int64
	for _, p := range best.Best.Ranks {
		largest = max(largest, p.Height[device.DeviceTier])
	}
	smallest, err := LeastBudget(ctx, m, b.Graph, b.Spec, note)
	if err != nil {
		return err
	}
	smallest = min(smallest, largest)
	for i := range b.Count {
		m.Capacity[device.DeviceTier] = Geometric(largest, smallest, i, b.Count)
		m.ForgetTimes()
		if err := do(); err != nil {
			return fmt.Errorf("device budget %d bytes: %w", m.Capacity[device.DeviceTier], err)
		}
	}
	return nil
}

// Geometric returns element i of n of the geometric progression from a down to b. The
// ends are exact.
func Geometric(a, b int64, i, n int) int64 {
	switch i {
	case 0:
		return a
	case n - 1:
		return b
	}
	return int64(float64(a) * math.Pow(float64(b)/float64(a), float64(i)/float64(n-1)))
}

// LeastBudget returns the least device bytes with which anything fits, taken
// from the misfit of an impossible request.
func LeastBudget(ctx context.Context, m *machine.Machine, g *graph.Graph, spec *job.Spec, note func(string)) (int64, error) {
	m.Capacity[device.DeviceTier] = 1
	_, err := planSomehow(ctx, &planner.Task{Machine: m, Graph: g, Spec: spec}, note)
	var misfit *search.Misfit
	switch {
	case err == nil:
		return 0, errors.New("a plan fits into one byte of device memory (a defect of the planner)")
	case !errors.As(err, &misfit):
		return 0, err
	case misfit.Tier != device.DeviceTier:
		return 0, fmt.Errorf("%v memory is short, not device memory: %w", misfit.Tier, err)
	}
	return misfit.Need, nil
}

// planSomehow plans without ranks that share sequences or matrices, unless there are fewer sequences than ranks.
func planSomehow(ctx context.Context, t *planner.Task, note func(string)) (*search.Result, error) {
	if t.Spec.GlobalBatch%t.Machine.Ranks() != 0 {
		return t.PlanAny(ctx, note)
	}
	return t.Plan(ctx, note)
}

// measure plans for the machine's present limits and runs the plan.
func (b *Budgets) measure(ctx context.Context, note func(string)) (r BudgetRun, err error) {
	res, err := b.task().Plan(ctx, note)
	if err != nil {
		return r, err
	}
	note("running: " + res.Best.Label)
	ran, err := b.run(ctx, res.Best)
	if err != nil {
		return r, err
	}
	r = BudgetRun{Budget: b.Machine.Capacity[device.DeviceTier], Plan: res.Best.Label, Predicted: res.Best.Seconds(), Measured: ran.seconds}
	r.Error = r.Predicted/r.Measured - 1
	r.Planned, r.Reached, r.Exact = search.ByTier(ran.planned...), search.ByTier(ran.reached...), slices.Equal(ran.reached, ran.planned)
	return r, nil
}

// ran is a measured candidate: the median step, and the peaks of its ranks.
type ran struct {
	seconds          float64
	planned, reached [][device.NumTiers]int64
}

// run measures a candidate's steps on random text.
func (b *Budgets) run(ctx context.Context, cand *search.Candidate) (r ran, err error) {
	ps, err := b.task().Programs(ctx, cand)
	if err != nil {
		return r, err
	}
	devices, err := b.Machine.Open(ps)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, session.CloseAll(devices)) }()
	s := session.StepBench{Graph: b.Graph, Programs: ps, Devices: devices, Sequences: b.Spec.GlobalBatch, Warmup: 1, Steps: b.Steps}
	list, err := s.Run(ctx)
	if err != nil {
		return r, err
	}
	var seconds []float64
	for i := range list {
		seconds = append(seconds, list[i].Seconds)
	}
	r.seconds = stat.Median(seconds)
	for i, d := range devices {
		r.planned, r.reached = append(r.planned, ps[i].Height), append(r.reached, ps[i].Height)
		if s, ok := d.(device.Meter); ok {
			r.reached[i] = s.Stats().Peak
		}
	}
	return r, nil
}
