package machine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"time"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/exec"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/internal/bounded"
	"github.com/athanor-llm/athanor/internal/size"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/search"
	"github.com/athanor-llm/athanor/session"
)

// Plan searches for the fastest plan that fits this machine, or evaluates the
// plan.json that the configuration names. The error is a *search.Misfit if nothing
// fits.
func (m *Machine) Plan(ctx context.Context, g *graph.Graph, c *config.Config, note func(string)) (*search.Result, error) {
	req := m.Request(g, c)
	mach := m.Planning()
	if c.Plan.File != "" {
		return m.given(ctx, req, mach, c)
	}
	if mach.Measure != nil {
		mach.Trial = m.trial(g, c)
	}
	var err error
	if req.Pins, err = m.pins(g, c); err != nil {
		return nil, err
	}
	if req.Pins.Open() && c.GlobalBatch%m.ranks == 0 {
		// Without measurements for the policies, there are no rivals of theirs.
		if r := m.policies(req); r.Measure(ctx, req.Options) == nil {
			req.Rivals = rivals(r, req.State)
		}
		req.Rivals = append(req.Rivals, former(c)...)
	}
	r, err := search.Search(ctx, req, mach, note)
	if errors.Is(err, search.ErrBatch) {
		return nil, c.Fault("ranks", err.Error()+"; hint: set ranks to a divisor of global_batch")
	}
	if errors.Is(err, search.ErrPins) || errors.Is(err, search.ErrPipeline) {
		return nil, c.Fault("plan", err.Error())
	}
	return r, m.advise(err)
}

// trial lets the finalists run on this machine before the run. They are in memory together if they take at most
// half of the host's memory in all and the device tier is part of it.
func (m *Machine) trial(g *graph.Graph, c *config.Config) *search.Trial {
	return &search.Trial{
		Open: func(ctx context.Context, list []*search.Candidate) (search.Trials, error) {
			var all int64
			for _, cand := range list {
				for _, p := range cand.Ranks {
					all += p.Height[device.DeviceTier] + p.Height[device.HostTier]
				}
			}
			return m.TakeTurns(ctx, g, c, list, all <= m.shared()/2)
		},
		Steps: c.MaxSteps, Time: time.Duration(c.MaxTime),
	}
}

// Planning describes this machine to the search.
func (m *Machine) Planning() *search.Machine {
	p := &search.Machine{Capacity: m.Capacity, Shared: m.shared(), Cost: m.Hardware}
	if m.AtHand() {
		p.Measure = m.measure
	}
	return p
}

// Programs returns a candidate's programs for all ranks, lowering those that are
// absent.
func (m *Machine) Programs(ctx context.Context, g *graph.Graph, c *config.Config, best *search.Candidate) ([]*program.Program, error) {
	_, err := best.Complete(ctx, m.Request(g, c))
	return best.Ranks, err
}

// advise replaces the hint of a misfit that no limit can cure because the machine
// itself has too little memory.
func (m *Machine) advise(err error) error {
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
	if both := need[device.DeviceTier] + need[device.HostTier]; m.shared() > 0 && both > m.shared() {
		e.Tier, e.Need, e.Have = device.HostTier, both, m.shared()
		e.Hint = "device and host share one memory here, and this is what both need together; " + help
	}
	return e
}

// given evaluates a plan.json instead of searching.
func (m *Machine) given(ctx context.Context, req *search.Request, mach *search.Machine, c *config.Config) (*search.Result, error) {
	text, err := bounded.ReadFile(c.Plan.File, maxPlan)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%q does not exist; hint: use auto, a plan.json written by `athanor plan --out`, or single decisions such as {micro_batch: 1}", c.Plan.File)
		}
		return nil, c.Fault("plan", err.Error())
	}
	pl, err := plan.Parse(text)
	if err == nil {
		err = pl.Validate(req.Graph)
	}
	if err == nil && c.OptimizerState != "auto" && pl.State != req.State {
		err = fmt.Errorf("plan: it stores the optimizer's state as %s, the run as %s; hint: make a new plan, or change optimizer_state", cmp.Or(pl.State, plan.StateNames()[0]), c.OptimizerState)
	}
	if err == nil && pl.Ranks != m.ranks {
		err = fmt.Errorf("plan: it is for %d ranks, but the run has %d; hint: make a new plan, or change ranks", pl.Ranks, m.ranks)
	}
	if err == nil && pl.MicroBatch*pl.MicroBatches*pl.Replicas() != c.GlobalBatch {
		err = fmt.Errorf("plan: micro_batch %d times micro_batches %d times %d replicas is not the global_batch %d; hint: make a new plan", pl.MicroBatch, pl.MicroBatches, pl.Replicas(), c.GlobalBatch)
	}
	if err == nil && !req.HeadFits(pl.HeadRows) {
		err = fmt.Errorf("plan: head_rows %d is not a multiple of %d tokens, at which sums on a GPU are cut; hint: use a multiple, or make a new plan", pl.HeadRows, req.HeadUnit)
	}
	if err != nil {
		return nil, &config.Error{File: c.Plan.File, Msg: err.Error()}
	}
	cand, err := search.Evaluate(ctx, req, pl, mach, "the given plan")
	if err != nil {
		return nil, &config.Error{File: c.Plan.File, Msg: err.Error()}
	}
	return m.only(ctx, req, mach, cand)
}

// only returns a single candidate as the result of a search. Its operators are
// timed as the fastest candidate's would be, so that its time is comparable.
func (m *Machine) only(ctx context.Context, req *search.Request, mach *search.Machine, cand *search.Candidate) (*search.Result, error) {
	if fits, err := cand.Complete(ctx, req); err != nil {
		return nil, err
	} else if !fits {
		e := search.NewMisfit(cand)
		e.Only = true
		return nil, m.advise(e)
	}
	if mach.Measure != nil {
		if err := mach.Measure(cand); err != nil {
			return nil, err
		}
	}
	return &search.Result{Best: cand, Evaluated: 1}, cand.Time(mach)
}

// profileBudget is the time to spend on timing the operators of a candidate, see
// hardware.Profile.
const profileBudget = 3 * time.Second

// measure times those operators of a candidate that the description lacks, in
// arenas of the candidate's size and on all ranks at once, since ranks share cores
// and memory.
func (m *Machine) measure(c *search.Candidate) error {
	known := true
	for _, p := range c.Programs {
		for i := range p.Instrs {
			call := p.Call(i)
			if _, ok := m.Hardware.Times[hardware.Key(&call)]; !ok && !call.Op.Info().Between {
				known = false
				break
			}
		}
	}
	if known {
		return nil
	}
	programs := make([]*program.Program, m.ranks)
	for r := range programs {
		programs[r] = c.Programs[r%len(c.Programs)]
	}
	apart := *m
	apart.backend = m.backend.apart()
	devices, err := apart.Open(programs)
	if err != nil {
		return err
	}
	defer session.CloseAll(devices)
	for r, d := range devices {
		if err := exec.Reserve(d, programs[r]); err != nil {
			return err
		}
	}
	times := make([][]hardware.Measurement, m.ranks)
	errs := make([]error, m.ranks)
	var all sync.WaitGroup
	for r, d := range devices {
		all.Go(func() { times[r], errs[r] = hardware.Profile(programs[r].Calls(), d, profileBudget) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	list := slices.Concat(times[:len(c.Programs)]...)
	if m.Hardware.AtOnce > 0 && m.Hardware.AtOnce < m.ranks {
		for i := range list {
			list[i].Gap = 0 // it includes waiting for other ranks' turns
		}
	}
	m.Hardware.Add(list)
	m.save()
	return nil
}

// ForgetTimes drops operator times, so that they are measured again: the load of a
// shared machine changes within minutes.
func (m *Machine) ForgetTimes() {
	if !m.described {
		m.Hardware.Times = nil
	}
}
