package compare

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/athanor-llm/athanor/bench"
	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/stat"
	"github.com/athanor-llm/athanor/job"
	"github.com/athanor-llm/athanor/machine"
	"github.com/athanor-llm/athanor/planner"
	"github.com/athanor-llm/athanor/search"
	"github.com/athanor-llm/athanor/session"
)

// Swaps compares activation policies for a model at several lengths, each with
// device budgets from a little less than the plain run takes to the least possible.
// The arms' steps alternate, so that other load affects all alike. For a described
// machine it only plans. It changes the machine's device limit while it runs.
type Swaps struct {
	Machine *machine.Machine
	At      planner.AtLength
	Lengths []int // tokens
	Count   int   // device budgets for each
	Steps   int   // measured of each arm
}

// SwapRun compares activation policies at one sequence length and one device
// budget.
type SwapRun struct {
	Length int       `json:"length"`
	Budget int64     `json:"budget"`
	Arms   []SwapArm `json:"arms"`
	Alike  bool      `json:"alike"` // all arms have the same losses, bit for bit
}

// SwapArm is one policy. Seconds are per step. A stall is time in which the compute
// stream is idle. Predictions and measurements are medians over the same rounds.
type SwapArm struct {
	Name      string          `json:"name"`
	Fits      bool            `json:"fits"`
	Predicted float64         `json:"predicted_seconds,omitempty"`
	Measured  float64         `json:"measured_seconds,omitempty"` // median
	Stalls    [2]float64      `json:"stalls_predicted_measured"`
	Ratio     float64         `json:"ratio,omitempty"` // of this arm's step times to the chosen arm's in the same round, median
	Exact     bool            `json:"exact"`           // all peaks agree to the byte
	Above     int64           `json:"above_bound"`     // bytes of the peaks above their proven lower bounds, all tiers
	Layers    []search.Layers `json:"layers,omitempty"`
	losses    []float64
	steps     []session.MeasuredStep
	predicted [2][]float64 // before each step: seconds, stalls
	candidate *search.Candidate
}

// swapArms are the policies compared; the last is the search's own choice.
var swapArms = []struct {
	name string
	pin  func(*config.Plan)
}{
	{"full recompute", func(p *config.Plan) { p.Recompute = "full" }},
	{"full swap", func(p *config.Plan) { p.Swap = config.Shares{config.EveryLayer: 1} }},
	{search.MemoRule, func(p *config.Plan) { p.Policy = search.MemoRule }},
	{"chosen", func(*config.Plan) {}},
}

// Run compares. done receives the result of each length and budget.
func (s *Swaps) Run(ctx context.Context, note func(string), done func(SwapRun)) error {
	m := s.Machine
	all := m.Capacity[device.DeviceTier]
	defer func() { m.Capacity[device.DeviceTier] = all }()
	for _, length := range s.Lengths {
		spec, g, err := s.At(length)
		if err != nil {
			return err
		}
		plain, err := search.PlainBytes(ctx, (&planner.Task{Machine: m, Graph: g, Spec: spec}).Request())
		if err != nil {
			return err
		}
		least, err := bench.LeastBudget(ctx, m, g, spec, note)
		if err != nil {
			return err
		}
		for i := range s.Count {
			m.Capacity[device.DeviceTier] = bench.Geometric(plain*9/10, least*21/20, i, max(s.Count, 2))
			m.ForgetTimes()
			r, err := s.compare(ctx, g, spec, note)
			if err != nil {
				return fmt.Errorf("%d tokens, device budget %d bytes: %w", length, m.Capacity[device.DeviceTier], err)
			}
			done(*r)
		}
	}
	return nil
}

// compare plans by every policy for the machine's present limits and, if that is the
// machine at hand, runs the plans.
func (s *Swaps) compare(ctx context.Context, g *graph.Graph, spec *job.Spec, note func(string)) (*SwapRun, error) {
	m := s.Machine
	r := &SwapRun{Length: g.Seq, Budget: m.Capacity[device.DeviceTier], Alike: true}
	for _, arm := range swapArms {
		pins := spec.Plan
		arm.pin(&pins)
		res, err := (&planner.Task{Machine: m, Graph: g, Spec: spec.WithPlan(pins)}).Plan(ctx, note)
		var misfit *search.Misfit
		a := SwapArm{Name: arm.name, Fits: err == nil}
		switch {
		case err == nil:
			a.candidate = res.Best
		case !errors.As(err, &misfit):
			return nil, err
		}
		r.Arms = append(r.Arms, a)
	}
	if !m.AtHand() {
		for i := range r.Arms {
			if !r.Arms[i].Fits {
				continue
			}
			if err := r.Arms[i].predict(m); err != nil {
				return nil, err
			}
		}
	} else if err := s.steps(ctx, r, g, spec, note); err != nil {
		return nil, err
	}
	chosen := r.Arms[len(r.Arms)-1].steps
	for i := range r.Arms {
		a := &r.Arms[i]
		if !a.Fits {
			continue
		}
		a.summary(g, chosen)
		r.Alike = r.Alike && slices.Equal(a.losses, r.Arms[len(r.Arms)-1].losses)
	}
	return r, nil
}

// steps runs the arms in turn. Operators are timed again before each round: a
// stall is the difference between link time and compute time, so a few percent of
// drift in core speed would hide the model's own error. Steps come in pairs, of
// which the second counts: in training, a step finds memory as a step of its own
// plan left it.
func (s *Swaps) steps(ctx context.Context, r *SwapRun, g *graph.Graph, spec *job.Spec, note func(string)) (err error) {
	list := make([]*search.Candidate, len(r.Arms))
	for i := range r.Arms {
		list[i] = r.Arms[i].candidate
	}
	t, err := (&planner.Task{Machine: s.Machine, Graph: g, Spec: spec}).TakeTurns(ctx, list, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	for n := range s.Steps {
		note(fmt.Sprintf("%d tokens, %d bytes: round %d of %d", r.Length, r.Budget, n+1, s.Steps))
		if err := r.timeArms(s.Machine); err != nil {
			return err
		}
		for i := range r.Arms {
			a := &r.Arms[i]
			if a.candidate == nil {
				continue
			}
			for k := range 2 {
				step, err := t.Next(ctx, i)
				if err != nil {
					return err
				}
				a.losses = append(a.losses, step.Loss)
				if k > 0 {
					a.steps = append(a.steps, step)
				}
			}
		}
	}
	for i := range r.Arms {
		r.Arms[i].Exact = t.Exact(i)
	}
	return nil
}

// timeArms times each arm's operators again, in its own memory, and predicts its
// steps from that: cache hits differ between arms.
func (r *SwapRun) timeArms(m *machine.Machine) error {
	for i := range r.Arms {
		c := r.Arms[i].candidate
		if c == nil {
			continue
		}
		m.ForgetTimes()
		if err := planner.ForSearch(m).Measure(c); err != nil {
			return err
		}
		if err := r.Arms[i].predict(m); err != nil {
			return err
		}
	}
	return nil
}

// predict simulates the arm's plan with the present costs.
func (a *SwapArm) predict(m *machine.Machine) error {
	if err := a.candidate.Time(planner.ForSearch(m)); err != nil {
		return err
	}
	t := a.candidate.Timeline
	a.predicted[0] = append(a.predicted[0], t.Makespan)
	a.predicted[1] = append(a.predicted[1], t.Makespan-t.Busy[device.Compute])
	return nil
}

// summary fills in the reported numbers of an arm.
func (a *SwapArm) summary(g *graph.Graph, chosen []session.MeasuredStep) {
	a.Predicted, a.Stalls[0] = stat.Median(a.predicted[0]), stat.Median(a.predicted[1])
	a.Layers = search.Activations(g, a.candidate)
	for t, h := range a.candidate.Program.Height {
		a.Above += h - a.candidate.Program.Bound[t]
	}
	if len(a.steps) == 0 {
		return
	}
	var seconds, stalls, ratios []float64
	for i, s := range a.steps {
		seconds = append(seconds, s.Seconds)
		stalls = append(stalls, s.Timeline.Makespan-s.Timeline.Busy[device.Compute])
		ratios = append(ratios, s.Seconds/chosen[i].Seconds)
	}
	a.Measured, a.Ratio, a.Stalls[1] = stat.Median(seconds), stat.Median(ratios), stat.Median(stalls)
}
