package compare

import (
	"context"
	"errors"
	"fmt"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/model/family"
	"github.com/athanor-llm/athanor/planner"
	"github.com/athanor-llm/athanor/policy"
	"github.com/athanor-llm/athanor/search"
)

// SharedStanding is the result of a policy whose ranks share sequences or matrices, with the fastest of its degrees and settings.
type SharedStanding struct {
	Standing
	Degrees policy.Degrees `json:"degrees"`
}

// SharedContest is the outcome of a contest in which ranks may share: the search's plan, found without the others, and its degrees.
type SharedContest struct {
	Contest
	Seconds   float64          `json:"step_seconds,omitempty"` // of the search's plan; 0: none fits
	Label     string           `json:"plan"`
	Degrees   policy.Degrees   `json:"degrees"`
	Standings []SharedStanding `json:"standings"` // in the order of policy.AllShared
}

// field is where a contest is held: a machine, and the graphs of ranks that share by each degree.
type field struct {
	Contest
	hardware *hardware.Hardware
	machine  *search.Machine
	graphs   map[policy.Degrees]*graph.Graph // nil: they cannot be shared so
}

// HoldShared runs a contest in which ranks may share sequences and matrices.
func (c Contest) HoldShared(ctx context.Context) (*SharedContest, error) {
	h, err := hardware.KnownRank(c.Hardware, c.GPUs)
	if err != nil {
		return nil, err
	}
	f := &field{c, h, &search.Machine{Capacity: h.Memory.Tiers(), Cost: h}, map[policy.Degrees]*graph.Graph{}}
	out := &SharedContest{Contest: c}
	for _, d := range f.degrees() {
		req, err := f.request(d)
		if err != nil || req == nil {
			if err != nil {
				return nil, err
			}
			continue
		}
		best, err := search.Search(ctx, req, f.machine, nil)
		switch {
		case errors.Is(err, search.ErrDoesNotFit):
		case err != nil:
			return nil, err
		case out.Seconds == 0 || best.Best.Seconds() < out.Seconds:
			out.Seconds, out.Label, out.Degrees = best.Best.Seconds(), best.Best.Label, d
			if p := best.Best.Plan.Pipeline; p != nil {
				out.Degrees.Pipeline = p.Ranks
			}
		}
	}
	for _, p := range policy.AllShared() {
		s, err := f.standing(ctx, p)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.Name, err)
		}
		if out.Seconds > 0 {
			s.Ratio = s.Seconds / out.Seconds
		}
		out.Standings = append(out.Standings, *s)
	}
	return out, nil
}

// degrees lists how ranks may share; how many form a pipeline is up to the search.
func (f *field) degrees() (list []policy.Degrees) {
	list = append(list, policy.Degrees{Sequence: 1, Tensor: 1, Pipeline: 1})
	for n := 2; n <= f.GPUs; n++ {
		if f.GPUs%n == 0 {
			list = append(list, policy.Degrees{Sequence: n, Tensor: 1, Pipeline: 1}, policy.Degrees{Sequence: 1, Tensor: n, Pipeline: 1})
		}
	}
	return list
}

// graph returns the graph of one of the ranks that share by some degrees, nil if they cannot.
func (f *field) graph(d policy.Degrees) (*graph.Graph, error) {
	d.Pipeline = 1
	if g, known := f.graphs[d]; known {
		return g, nil
	}
	m, err := family.Known(f.Model)
	if err != nil {
		return nil, err
	}
	if graph.CheckParts(m, f.Sequence, d.Sequence, nil) != nil || graph.CheckSlabs(m, d.Tensor) != nil {
		f.graphs[d] = nil
		return nil, nil
	}
	g, err := graph.BuildPart(m, f.Sequence, d.Sequence, graph.BF16, nil)
	if d.Tensor > 1 {
		g, err = graph.BuildSlab(m, f.Sequence, d.Tensor, graph.BF16, nil)
	}
	f.graphs[d] = g
	return g, err
}

// request asks for a plan of ranks that share by some degrees, nil if they cannot.
func (f *field) request(d policy.Degrees) (*search.Request, error) {
	g, err := f.graph(d)
	if err != nil || g == nil {
		return nil, err
	}
	return &search.Request{Graph: g, GlobalBatch: f.Batch * f.GPUs * g.PerSequence(), Ranks: f.GPUs, Options: contestOptions}, nil
}

// standing returns a policy's result with the fastest of its degrees and settings.
func (f *field) standing(ctx context.Context, p policy.Shared) (*SharedStanding, error) {
	best := &SharedStanding{Standing: Standing{Policy: p.Name, Why: "ranks cannot share so"}}
	for _, d := range p.Degrees(f.GPUs) {
		req, err := f.request(d)
		if err != nil || req == nil || d.Pipeline > req.Graph.Model.Layers {
			if err != nil {
				return nil, err
			}
			continue
		}
		r := planner.ForPolicies(req, f.hardware)
		r.Sequences *= d.Pipeline
		for _, same := range r.Tunings() {
			var tuned []*policy.Request
			for _, t := range same {
				one := *r
				one.Tuning = t
				tuned = append(tuned, &one)
			}
			s, err := settled(ctx, p.PolicyOf(d), tuned, req, f.machine)
			if err != nil {
				return nil, err
			}
			if best.Seconds == 0 || s.Seconds > 0 && s.Seconds < best.Seconds {
				best.Standing, best.Degrees = *s, d
			}
		}
	}
	return best, nil
}
