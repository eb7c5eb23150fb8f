package compare

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/model/family"
	"github.com/athanor-llm/athanor/planner"
	"github.com/athanor-llm/athanor/policy"
	"github.com/athanor-llm/athanor/policy/elixir"
	"github.com/athanor-llm/athanor/search"
)

// Contest is the setting in which policies are compared: a known model in bf16 on
// described GPUs.
type Contest struct {
	Model    string `json:"model"`
	Hardware string `json:"hardware"`
	GPUs     int    `json:"gpus"`
	Batch    int    `json:"batch"` // sequences per GPU and step
	Sequence int    `json:"sequence_length"`
}

// Standing is a policy's result with the fastest settings that fit, see policy.Tuning, and
// with the published settings; seconds are per step, as simulated.
type Standing struct {
	Policy         string        `json:"policy"`
	Seconds        float64       `json:"step_seconds,omitempty"` // 0: does not fit
	Ratio          float64       `json:"ratio,omitempty"`        // to the search's plan
	Device         int64         `json:"device_bytes"`           // needed; if nothing fits, by the most frugal settings
	Host           int64         `json:"host_bytes"`
	Tuning         policy.Tuning `json:"tuning"`
	Published      float64       `json:"published_step_seconds,omitempty"` // 0: does not fit
	PublishedRatio float64       `json:"published_ratio,omitempty"`
	Why            string        `json:"why,omitempty"` // why it does not fit
}

// Contested is the outcome: the search's plan, and the policies in the order of
// policy.All.
type Contested struct {
	Contest
	Seconds   float64    `json:"step_seconds,omitempty"` // of the search's plan; 0: none fits
	Label     string     `json:"plan"`
	Plans     int        `json:"candidates"`
	Standings []Standing `json:"standings"`
}

// contestOptions are the options of the default configuration.
var contestOptions = lower.Options{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Decay: 0.1, Clip: 1}

// Hold runs a contest.
func (c Contest) Hold(ctx context.Context) (*Contested, error) { return c.hold(ctx, 0) }

// hold runs a contest with another amount of device memory, unless that is 0.
func (c Contest) hold(ctx context.Context, memory int64) (*Contested, error) {
	m, err := family.Known(c.Model)
	if err != nil {
		return nil, err
	}
	g, err := graph.Build(m, c.Sequence, graph.BF16)
	if err != nil {
		return nil, err
	}
	h, err := hardware.KnownRank(c.Hardware, c.GPUs)
	if err != nil {
		return nil, err
	}
	h.Memory.Device = cmp.Or(memory, h.Memory.Device)
	mach := &search.Machine{Capacity: h.Memory.Tiers(), Cost: h}
	req := &search.Request{Graph: g, GlobalBatch: c.Batch * c.GPUs, Ranks: c.GPUs, Options: contestOptions}
	r := planner.ForPolicies(req, h)
	out := &Contested{Contest: c}
	best, err := search.Search(ctx, req, mach, nil) // the search knows none of the other plans
	switch {
	case err == nil:
		out.Seconds, out.Label, out.Plans = best.Best.Seconds(), best.Best.Label, best.Evaluated
	case !errors.Is(err, search.ErrDoesNotFit):
		return nil, err
	}
	tuned, err := tunings(ctx, r)
	if err != nil {
		return nil, err
	}
	for _, p := range policy.All() {
		s, err := standing(ctx, p, tuned, req, mach)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.Name, err)
		}
		if out.Seconds > 0 {
			s.Ratio, s.PublishedRatio = s.Seconds/out.Seconds, s.Published/out.Seconds
		}
		out.Standings = append(out.Standings, *s)
	}
	return out, nil
}

// tunings returns a policy's request with each of the settings to try, measured, grouped by
// accumulation.
func tunings(ctx context.Context, r *policy.Request) (list [][]*policy.Request, err error) {
	for _, same := range r.Tunings() {
		var each []*policy.Request
		for _, t := range same {
			tuned := *r
			tuned.Tuning = t
			if err := tuned.Measure(ctx, contestOptions); err != nil {
				return nil, err
			}
			each = append(each, &tuned)
		}
		list = append(list, each)
	}
	return list, nil
}

// standing returns a policy's result, tuned and as published. All settings are tried: a step
// with less to do may take longer if it has to wait for memory.
func standing(ctx context.Context, p policy.Policy, tuned [][]*policy.Request, req *search.Request, m *search.Machine) (*Standing, error) {
	best := &Standing{}
	for _, same := range tuned {
		s, err := settled(ctx, p, same, req, m)
		if err != nil {
			return nil, err
		}
		if best.Seconds == 0 || s.Seconds > 0 && s.Seconds < best.Seconds {
			best = s
		}
	}
	whole := tuned[0]
	published, err := judge(ctx, p, whole[len(whole)-1], 0, req, m)
	if err != nil {
		return nil, err
	}
	best.Published = published.Seconds
	return best, nil
}

// settled returns a policy's result with the best of the settings for one accumulation.
func settled(ctx context.Context, p policy.Policy, same []*policy.Request, req *search.Request, m *search.Machine) (*Standing, error) {
	best, rest := &Standing{}, same // settings that do not fit do not fit with more chunks on the device either
	for _, resident := range p.Residents(same[0]) {
		first := len(rest)
		for k, r := range rest {
			s, err := judge(ctx, p, r, resident, req, m)
			if err != nil {
				return nil, err
			}
			if s.Seconds > 0 {
				first = min(first, k)
			}
			if best.Seconds == 0 || s.Seconds > 0 && s.Seconds < best.Seconds {
				best = s
			}
		}
		rest = rest[first:]
	}
	return best, nil
}

// judge plans by a policy with the given settings and simulates the plan.
func judge(ctx context.Context, p policy.Policy, as *policy.Request, resident int, req *search.Request, m *search.Machine) (*Standing, error) {
	r := *as
	r.Resident = resident
	s := &Standing{Policy: p.Name, Tuning: r.Tuning}
	pl, err := p.Plan(&r)
	if errors.Is(err, elixir.ErrMemory) || errors.Is(err, policy.ErrDegrees) {
		s.Why = err.Error()
		return s, nil
	}
	if err != nil {
		return nil, err
	}
	quick := *req
	quick.Options.Reject = true
	c, err := search.Evaluate(ctx, &quick, pl, m, p.Name)
	if err != nil {
		return nil, err
	}
	s.Device, s.Host = c.Program.Height[0], c.Program.Height[1]
	if !c.Fits {
		s.Why = search.NewMisfit(c).Error()
		return s, nil
	}
	err = c.Time(m)
	s.Seconds = c.Seconds()
	return s, err
}

// Ratios sums up how much longer a policy's steps take than the search's, over
// the contests where both have a plan.
type Ratios struct {
	Policy    string  `json:"policy"`
	Least     float64 `json:"least"`
	Mean      float64 `json:"mean"` // geometric
	Most      float64 `json:"most"`
	Fits      int     `json:"fits"`    // contests where it has a plan
	Contest   Contest `json:"most_in"` // where the ratio is the largest
	Faster    int     `json:"faster"`  // contests where it is faster than the search
	Published float64 `json:"published_mean"`
}

// Compare sums up contests.
func Compare(list []Contested) []Ratios {
	var all []Ratios
	for k, p := range policy.All() {
		r := Ratios{Policy: p.Name}
		var ratios, published []float64
		for _, c := range list {
			s := c.Standings[k]
			if s.PublishedRatio > 0 {
				published = append(published, s.PublishedRatio)
			}
			if s.Ratio == 0 {
				continue
			}
			ratios = append(ratios, s.Ratio)
			if s.Ratio < 1 {
				r.Faster++
			}
			if s.Ratio > r.Most {
				r.Most, r.Contest = s.Ratio, c.Contest
			}
		}
		if r.Fits = len(ratios); r.Fits > 0 {
			r.Least = slices.Min(ratios)
		}
		r.Mean, r.Published = geometric(ratios), geometric(published)
		all = append(all, r)
	}
	return all
}

// geometric returns the geometric mean, 0 of an empty list.
func geometric(list []float64) float64 {
	if len(list) == 0 {
		return 0
	}
	var logs float64
	for _, x := range list {
		logs += math.Log(x)
	}
	return math.Exp(logs / float64(len(list)))
}

// Contests are all combinations, models slowest.
func Contests(models, machines []string, gpus, batches []int, sequence int) (list []Contest) {
	for _, m := range models {
		for _, n := range gpus {
			for _, h := range machines {
				for _, b := range batches {
					list = append(list, Contest{m, h, n, b, sequence})
				}
			}
		}
	}
	return slices.Clip(list)
}
