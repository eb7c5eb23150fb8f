package run

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/stat"
	"github.com/athanor-llm/athanor/plan"
)

// BudgetRun compares prediction and measurement for one device budget. Seconds are
// per step, bytes per tier.
type BudgetRun struct {
	Budget    int64        `json:"budget"`
	Plan      string       `json:"plan"` // in words
	Predicted float64      `json:"predicted_seconds"`
	Measured  float64      `json:"measured_seconds"` // median
	Error     float64      `json:"error"`            // predicted over measured, less 1
	Planned   plan.PerTier `json:"planned_peaks"`
	Reached   plan.PerTier `json:"reached_peaks"`
	Exact     bool         `json:"exact"` // all peaks agree to the byte
}

// Budgets plans and runs a model under n device budgets in geometric progression,
// from what the fastest plan wants to the smallest that the planner can meet. done
// receives each result.
func Budgets(ctx context.Context, m *Machine, g *graph.Graph, c *config.Config, n, steps int, note func(string), done func(BudgetRun)) error {
	return m.eachBudget(ctx, g, c, n, note, func() error {
		r, err := runBudget(ctx, m, g, c, steps, note)
		if err == nil {
			done(r)
		}
		return err
	})
}

// eachBudget calls do with the machine's device capacity set to each of n budgets
// in turn.
func (m *Machine) eachBudget(ctx context.Context, g *graph.Graph, c *config.Config, n int, note func(string), do func() error) error {
	all := m.Capacity[device.DeviceTier]
	defer func() { m.Capacity[device.DeviceTier] = all }()
	best, err := m.Plan(ctx, g, c, note)
	if err != nil {
		return err
	}
	var largest int64
	for _, p := range best.Best.Ranks {
		largest = max(largest, p.Height[device.DeviceTier])
	}
	smallest, err := smallestBudget(ctx, m, g, c, note)
	if err != nil {
		return err
	}
	smallest = min(smallest, largest)
	for i := range n {
		m.Capacity[device.DeviceTier] = between(largest, smallest, i, n)
		m.forget()
		if err := do(); err != nil {
			return fmt.Errorf("device budget %d bytes: %w", m.Capacity[device.DeviceTier], err)
		}
	}
	return nil
}

// between returns element i of n of the geometric progression from a down to b. The
// ends are exact.
func between(a, b int64, i, n int) int64 {
	switch i {
	case 0:
		return a
	case n - 1:
		return b
	}
	return int64(float64(a) * math.Pow(float64(b)/float64(a), float64(i)/float64(n-1)))
}

// smallestBudget returns the least device bytes with which anything fits, taken
// from the misfit of an impossible request.
func smallestBudget(ctx context.Context, m *Machine, g *graph.Graph, c *config.Config, note func(string)) (int64, error) {
	m.Capacity[device.DeviceTier] = 1
	_, err := m.Plan(ctx, g, c, note)
	var misfit *plan.Misfit
	switch {
	case err == nil:
		return 0, errors.New("a plan fits into one byte of device memory (a defect of the planner)")
	case !errors.As(err, &misfit):
		return 0, err
	case misfit.Tier != device.DeviceTier:
		return 0, fmt.Errorf("not device memory but %v memory is short: %w", misfit.Tier, err)
	}
	return misfit.Need, nil
}

// runBudget plans for the machine's present limits and runs the plan.
func runBudget(ctx context.Context, m *Machine, g *graph.Graph, c *config.Config, steps int, note func(string)) (r BudgetRun, err error) {
	res, err := m.Plan(ctx, g, c, note)
	if err != nil {
		return r, err
	}
	note("running: " + res.Best.Label)
	ran, err := m.run(ctx, g, c, res.Best, steps)
	if err != nil {
		return r, err
	}
	r = BudgetRun{Budget: m.Capacity[device.DeviceTier], Plan: res.Best.Label, Predicted: res.Best.Seconds(), Measured: ran.seconds}
	r.Error = r.Predicted/r.Measured - 1
	r.Planned, r.Reached, r.Exact = plan.ByTier(ran.planned...), plan.ByTier(ran.reached...), slices.Equal(ran.reached, ran.planned)
	return r, nil
}

// ran is a measured candidate: the median step, and the peaks of its ranks.
type ran struct {
	seconds          float64
	planned, reached [][device.NumTiers]int64
}

// run measures a candidate's steps on random text.
func (m *Machine) run(ctx context.Context, g *graph.Graph, c *config.Config, cand *plan.Candidate, steps int) (r ran, err error) {
	ps, err := m.Programs(ctx, g, c, cand)
	if err != nil {
		return r, err
	}
	devices, err := m.Open(ps)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, closeAll(devices)) }()
	b := StepBench{Graph: g, Programs: ps, Devices: devices, Sequences: c.GlobalBatch, Warmup: 1, Steps: steps}
	list, err := b.Run(ctx)
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
