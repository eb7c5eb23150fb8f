package planner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/bounded"
	"github.com/athanor-llm/athanor/internal/size"
	"github.com/athanor-llm/athanor/job"
	"github.com/athanor-llm/athanor/machine"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/search"
	"github.com/athanor-llm/athanor/sim"
)

// Task is what is planned for: a graph, as a job wants it trained, on a machine.
type Task struct {
	Machine *machine.Machine
	Graph   *graph.Graph
	Spec    *job.Spec
	Enough  <-chan struct{} // see search.Request, as Early; nil: never
	Early   func(*search.Candidate)
}

// Plan searches for the fastest plan that fits this machine, or evaluates the
// plan.json that the configuration names. The error is a *search.Misfit if nothing
// fits.
func (t *Task) Plan(ctx context.Context, note func(string)) (*search.Result, error) {
	return t.plan(ctx, note, false)
}

// plan is Plan, or its sketch (see search.Request).
func (t *Task) plan(ctx context.Context, note func(string), sketch bool) (*search.Result, error) {
	m, spec := t.Machine, t.Spec
	if !m.AtHand() && spec.FP8 && machine.OnGPU(spec.Machine()) && m.Hardware.Engine(device.Compute).Peak.FP8 == 0 {
		return nil, spec.Fault("precision", m.Hardware.Name+" has no products in fp8, as cards from Ada and Hopper on have them; hint: use bf16")
	}
	req := t.Request()
	req.Sketch = sketch
	mach := ForSearch(m)
	if spec.Plan.File != "" {
		return t.given(ctx, req, mach)
	}
	mach.Trial = t.trial()
	var err error
	if req.Pins, err = t.pins(); err != nil {
		return nil, err
	}
	if !sketch && req.Pins.Open() && req.GlobalBatch%m.Ranks() == 0 {
		// Without measurements for the policies, there are no rivals of theirs.
		if r := policies(m, req); r.Measure(ctx, req.Options) == nil {
			req.Rivals = rivals(r, req)
		}
		req.Rivals = append(req.Rivals, former(spec)...)
	}
	r, err := search.Search(ctx, req, mach, note)
	if mayCompact(t, r, err) {
		r, err = compactly(ctx, req, mach, note, r, err)
	}
	if errors.Is(err, search.ErrBatch) {
		return nil, spec.Fault("ranks", err.Error()+"; hint: set ranks to a divisor of global_batch")
	}
	if errors.Is(err, search.ErrPins) || errors.Is(err, search.ErrPipeline) {
		return nil, spec.Fault("plan", err.Error())
	}
	if errors.Is(err, search.ErrDoesNotFit) && spec.TrainWithin > 0 {
		return t.leanest(ctx, req, mach)
	}
	return r, advise(m, err)
}

// leanest returns the plan by which it was decided what is trained as the result of a search.
func (t *Task) leanest(ctx context.Context, req *search.Request, mach *search.Machine) (*search.Result, error) {
	cand, err := t.Leanest(ctx)
	if err != nil {
		return nil, err
	}
	return t.only(ctx, req, mach, cand)
}

// trial lets the finalists run on this machine before the run; nil if it is not at hand, or others use it, without whom steps would be
// tried. They are in memory together if they take at most half of the host's memory in all and the device tier is part of it.
func (t *Task) trial() *search.Trial {
	if !t.Machine.AtHand() || t.Machine.Jobs() > 1 {
		return nil
	}
	return &search.Trial{
		Open: func(ctx context.Context, list []*search.Candidate) (search.Trials, error) {
			var all int64
			for _, cand := range list {
				for _, p := range cand.Ranks {
					all += p.Height[device.DeviceTier] + p.Height[device.HostTier]
				}
			}
			return t.TakeTurns(ctx, list, all <= t.Machine.Shared()/2)
		},
		Steps: t.Spec.MaxSteps, Time: time.Duration(t.Spec.MaxTime),
	}
}

// Deal returns a machine with ranks dealt out to its hosts as a plan wants them.
func Deal(m *machine.Machine, pl *plan.Plan) *machine.Machine {
	return m.Deal(pl.PerSequence(), pl.Depth())
}

// ForSearch describes a machine to the search.
func ForSearch(m *machine.Machine) *search.Machine {
	p := &search.Machine{Capacity: m.Capacity, Shared: m.Shared(), Cost: m.Hardware}
	if n := m.Hardware.Network; n != nil && n.Row <= 1 { // else ranks share something, which decides where they are
		p.Deal = func(stages int) sim.Coster { return m.Deal(1, stages).Hardware }
	}
	if m.AtHand() {
		p.Measure = func(c *search.Candidate) error { return measure(m, c) }
	}
	return p
}

// Programs returns a candidate's programs for all ranks, lowering those that are
// absent.
func (t *Task) Programs(ctx context.Context, best *search.Candidate) ([]*program.Program, error) {
	_, err := best.Complete(ctx, t.Request())
	return best.Ranks, err
}

// advise replaces the hint of a misfit that no limit can cure because the machine
// itself has too little memory.
func advise(m *machine.Machine, err error) error {
	var e *search.Misfit
	if !errors.As(err, &e) {
		return err
	}
	need, have := e.Frugal.Program.Height, m.Hardware.Memory.Tiers()
	const help = "use more memory, or a smaller model, sequence_length or precision"
	for t := range need {
		if need[t] > have[t] {
			e.Tier, e.Need, e.Have = device.Tier(t), need[t], m.Capacity[t]
			e.Hint = fmt.Sprintf("this machine has %s of %v memory; %s", size.Exact(have[t]), e.Tier, help)
			return e
		}
	}
	if both := need[device.DeviceTier] + need[device.HostTier]; m.Shared() > 0 && both > m.Shared() {
		e.Tier, e.Need, e.Have = device.HostTier, both, m.Shared()
		e.Hint = "device and host share one memory here, and this is what both need together; " + help
	}
	return e
}

// maxPlan bounds the bytes of a plan.json.
const maxPlan = 64 << 20

// given evaluates a plan.json instead of searching.
func (t *Task) given(ctx context.Context, req *search.Request, mach *search.Machine) (*search.Result, error) {
	spec := t.Spec
	text, err := bounded.ReadFile(spec.Plan.File, maxPlan)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%q does not exist; hint: use auto, a plan.json written by `athanor plan --out`, or single decisions such as {micro_batch: 1}", spec.Plan.File)
		}
		return nil, spec.Fault("plan", err.Error())
	}
	pl, err := plan.Parse(text)
	if err == nil {
		err = pl.Validate(req.Graph)
	}
	if err == nil && pl.Optimizer != req.Optimizer {
		err = fmt.Errorf("plan: its updates are by %v, the run's by %v; hint: make a new plan, or change optimizer", pl.Optimizer, req.Optimizer)
	}
	if _, settled := spec.State(); err == nil && settled && pl.State != req.State {
		err = fmt.Errorf("plan: it stores the optimizer's state as %s, the run as %s; hint: make a new plan, or change optimizer_state", pl.State, req.State)
	}
	if err == nil && pl.Ranks != t.Machine.Ranks() {
		err = fmt.Errorf("plan: it is for %d ranks, but the run has %d; hint: make a new plan, or change ranks", pl.Ranks, t.Machine.Ranks())
	}
	if err == nil && pl.Sequences() != spec.GlobalBatch {
		err = fmt.Errorf("plan: micro_batch %d times micro_batches %d times %d replicas is not the global_batch %d; hint: make a new plan", pl.MicroBatch, pl.MicroBatches, pl.Replicas()/pl.PerSequence(), spec.GlobalBatch)
	}
	if err == nil && !req.HeadFits(pl.HeadRows) {
		err = fmt.Errorf("plan: head_rows %d is not a multiple of %d tokens, at which sums on a GPU are cut; hint: use a multiple, or make a new plan", pl.HeadRows, req.HeadUnit)
	}
	if err == nil && !req.HeadFits(pl.FeedRows) {
		err = fmt.Errorf("plan: feed_rows %d is not a multiple of %d tokens, at which sums on a GPU are cut; hint: use a multiple, or make a new plan", pl.FeedRows, req.HeadUnit)
	}
	if err != nil {
		return nil, &config.Error{File: spec.Plan.File, Msg: err.Error()}
	}
	cand, err := search.Evaluate(ctx, req, pl, mach, "the given plan")
	if err != nil {
		return nil, &config.Error{File: spec.Plan.File, Msg: err.Error()}
	}
	return t.only(ctx, req, mach, cand)
}

// only returns a single candidate as the result of a search. Its operators are
// timed as the fastest candidate's would be, so that its time is comparable.
func (t *Task) only(ctx context.Context, req *search.Request, mach *search.Machine, cand *search.Candidate) (*search.Result, error) {
	if fits, err := cand.Complete(ctx, req); err != nil {
		return nil, err
	} else if !fits {
		e := search.NewMisfit(cand)
		e.Only = true
		return nil, advise(t.Machine, e)
	}
	if mach.Measure != nil {
		if err := mach.Measure(cand); err != nil {
			return nil, err
		}
	}
	return &search.Result{Best: cand, Evaluated: 1}, cand.Time(mach)
}
