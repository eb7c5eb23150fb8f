package search

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/sim"
)

// This file plans blocks of sequences: how many there are, in how many batches, and where weights, caches and hidden states are.
//
// Approach. FlexGen solves a linear program in nine fractions whose constants were fitted to runs, inside a loop over batches. Here a policy
// has few numbers, and each is lowered, its memory counted to the byte, and its programs simulated; so what is chosen fits, and what is
// predicted is what the programs do. What is left of the device's memory goes to weights, by the rule of inference.go. The search looks at policies all over the room,
// then climbs from the best of them to the best neighbour until there is none.
//
// Where the host has too little memory, weights go to the disk, or caches of some batches.
//
// Known weakness: a hill may have a better one beside it.

// BlockRequest says what is to be generated.
type BlockRequest struct {
	Model       *model.Model
	DType       graph.DType
	Context     int   // most tokens of a sequence
	Sequences   int   // most at once
	Reads       []int // tokens of a prompt that programs may read at once
	Prompt      int   // tokens of a usual prompt
	Tokens      int   // that usually follow
	HostAttends bool  // whether attention on the host's cores has the bits of the device's
}

// BlockPlan is a block whose programs fit.
type BlockPlan struct {
	Block
	Graphs   []*graph.Graph
	Plan     *plan.Plan // of the step
	Programs []*program.Program
	// Predicted seconds of a step of all sequences, and of reading a part of all their prompts.
	StepSeconds, PartSeconds float64
	tokens                   int // of a usual text
	parts                    int // of a usual prompt
	policy                   blockPolicy
}

// Seconds returns the predicted seconds in which all sequences of a block are generated.
func (b *BlockPlan) Seconds() float64 {
	return float64(b.parts)*b.PartSeconds + float64(b.tokens)*b.StepSeconds
}

// Rate returns the predicted tokens per second.
func (b *BlockPlan) Rate() float64 { return float64(b.Sequences()*b.tokens) / b.Seconds() }

// blockPolicy is what the search decides.
type blockPolicy struct {
	each, batches int
	near, cold    int  // batches whose caches are on the device, and on the disk
	attends       bool // the host attends to those that are not on the device
	hidden        device.Tier
	reads         int // index of BlockRequest.Reads
}

// FindBlock returns the block that is predicted to be fastest. The error is a *Misfit if nothing fits.
func FindBlock(ctx context.Context, req *BlockRequest, m *Machine) (*BlockPlan, error) {
	s := &blockSearch{ctx: ctx, req: req, m: m, seen: map[blockPolicy]*BlockPlan{}}
	starts := s.starts()
	for _, p := range starts {
		if _, err := s.try(p); err != nil {
			return nil, err
		}
	}
	for _, p := range starts {
		if p.cold = p.batches - p.near; !s.crowded {
			break
		}
		if _, err := s.try(p); err != nil {
			return nil, err
		}
	}
	if s.best == nil {
		return nil, s.misfit
	}
	if err := s.climb(); err != nil {
		return nil, err
	}
	if m.Measure != nil {
		if err := s.priced(); err != nil {
			return nil, err
		}
	}
	programs, err := LowerBlock(ctx, s.best.Graphs, s.best.Plan, lower.Options{Capacity: m.Capacity, Thorough: true})
	if last := len(programs) - 1; err == nil && programs[0].Fits() && programs[last].Fits() { // else the first addresses are better ones
		s.best.Programs = programs
	}
	return s.best, err
}

// EvaluateBlock lowers and simulates a block whose plan is given. The error is a *Misfit if it does not fit.
func EvaluateBlock(ctx context.Context, req *BlockRequest, block Block, make func(step *graph.Graph) *plan.Plan, m *Machine) (*BlockPlan, error) {
	b, err := req.begin(block)
	if err != nil {
		return nil, err
	}
	step := b.Graphs[len(b.Graphs)-1]
	b.Plan = make(step)
	n := newInference(ctx, &Request{Graph: step, GlobalBatch: 1, Options: lower.Options{Mode: lower.Decode}}, b.Graphs[:len(b.Graphs)-1], m)
	if b.Programs, err = LowerBlock(ctx, b.Graphs, b.Plan, lower.Options{Capacity: m.Capacity}); err != nil {
		return nil, err
	}
	if n.plan, n.programs = b.Plan, b.Programs; !n.fits() {
		return nil, n.misfit()
	}
	return b, b.predict(m.Cost)
}

// begin returns a block that is yet to be planned.
func (r *BlockRequest) begin(block Block) (b *BlockPlan, err error) {
	b = &BlockPlan{Block: block, tokens: r.Tokens, parts: (max(r.Prompt-1, 0) + block.Reads[0] - 1) / block.Reads[0]}
	b.Graphs, err = block.Graphs(r.Model)
	return b, err
}

// blockSearch is the state of a search.
type blockSearch struct {
	ctx     context.Context
	req     *BlockRequest
	m       *Machine
	choices *choices
	seen    map[blockPolicy]*BlockPlan // nil: it does not fit
	best    *BlockPlan
	misfit  *Misfit // what lacks least
	crowded bool    // the host had no room for a policy, and there is a disk
}

// mostBlocks bounds the policies that are lowered.
const mostBlocks = 64

// starts lists policies all over the room: from one sequence to as many as are asked for, with caches on the device and elsewhere, and
// hidden states there too.
func (s *blockSearch) starts() (list []blockPolicy) {
	attends := s.req.HostAttends
	for reads := range s.req.Reads {
		for n := s.req.Sequences; n > 0; n /= 4 {
			list = append(list, blockPolicy{each: n, batches: 1, near: 1, reads: reads}, blockPolicy{each: n, batches: 1, attends: attends, reads: reads})
			if n > 4 {
				list = append(list, blockPolicy{each: n / 4, batches: 4, attends: attends, hidden: device.HostTier, reads: reads})
			}
		}
		list = append(list, blockPolicy{each: 1, batches: 1, near: 1, reads: reads}, blockPolicy{each: 1, batches: 1, attends: attends, reads: reads})
	}
	return list
}

// climb goes from the best policy so far to the best neighbour, and on from there.
func (s *blockSearch) climb() error {
	for from := (*BlockPlan)(nil); s.best != from; {
		from = s.best
		for _, q := range s.neighbours(from.policy) {
			if _, err := s.try(q); err != nil {
				return err
			}
		}
	}
	return nil
}

// neighbours lists the policies that differ in one respect.
func (s *blockSearch) neighbours(p blockPolicy) (list []blockPolicy) {
	add := func(change func(q *blockPolicy)) {
		q := p
		change(&q)
		q.near = max(0, min(q.near, q.batches))
		q.cold = max(0, min(q.cold, q.batches-q.near))
		if n := q.each * q.batches; q.each >= 1 && q.batches >= 1 && n <= s.req.Sequences && q.reads >= 0 && q.reads < len(s.req.Reads) {
			list = append(list, q)
		}
	}
	scale := func(n, num, den int) int { return n * num / den }
	for _, by := range [][2]int{{2, 1}, {3, 2}, {1, 2}} {
		add(func(q *blockPolicy) { q.each = scale(q.each, by[0], by[1]) })
		add(func(q *blockPolicy) {
			q.batches = scale(q.batches, by[0], by[1])
			q.near, q.cold = scale(q.near, by[0], by[1]), scale(q.cold, by[0], by[1])
		})
	}
	add(func(q *blockPolicy) { q.each, q.batches, q.near, q.cold = q.each*2, q.batches/2, q.near/2, q.cold/2 })
	add(func(q *blockPolicy) { q.each, q.batches, q.near, q.cold = q.each/2, q.batches*2, q.near*2, q.cold*2 })
	add(func(q *blockPolicy) { q.near, q.attends = 0, s.req.HostAttends })
	add(func(q *blockPolicy) { q.near = q.batches })
	add(func(q *blockPolicy) { q.near-- })
	add(func(q *blockPolicy) { q.near++ })
	add(func(q *blockPolicy) { q.attends = s.req.HostAttends && !q.attends })
	add(func(q *blockPolicy) { q.hidden = device.HostTier - q.hidden })
	add(func(q *blockPolicy) { q.reads++ })
	add(func(q *blockPolicy) { q.reads-- })
	if s.crowded {
		add(func(q *blockPolicy) { q.cold-- })
		add(func(q *blockPolicy) { q.cold++ })
		add(func(q *blockPolicy) { q.cold = 0 })
	}
	return list
}

// try lowers and simulates a policy. The result is nil if it does not fit.
func (s *blockSearch) try(p blockPolicy) (*BlockPlan, error) {
	if p.near == p.batches { // nothing is left to attend to
		p.attends = false
	}
	if b, ok := s.seen[p]; ok || len(s.seen) >= mostBlocks {
		return b, nil
	}
	b, err := s.req.begin(Block{Context: s.req.Context, Each: p.each, Batches: p.batches, Reads: s.req.Reads[p.reads : p.reads+1], DType: s.req.DType})
	if err != nil {
		return nil, err
	}
	b.policy = p
	err = s.fit(b, &p)
	var misfit *Misfit
	if errors.As(err, &misfit) {
		s.seen[p] = nil
		s.crowded = s.crowded || misfit.Tier == device.HostTier && s.m.Capacity[device.DiskTier] > 0
		if s.misfit == nil || misfit.Need-misfit.Have < s.misfit.Need-s.misfit.Have {
			s.misfit = misfit
		}
		return nil, nil
	}
	if err == nil {
		err = b.predict(s.m.Cost)
	}
	if err != nil {
		return nil, err
	}
	s.seen[p] = b
	s.crowded = s.crowded || slices.ContainsFunc(b.Plan.Chunks, func(c plan.Chunk) bool { return c.Weights == device.DiskTier })
	if s.best == nil || b.Rate() > s.best.Rate() {
		s.best = b
	}
	return b, nil
}

// fit finds the weights that may stay on the device under a policy. A step has few instructions, so what fits is sought by lowering it alone;
// what reading prompts takes beyond that is then left free.
func (s *blockSearch) fit(b *BlockPlan, p *blockPolicy) error {
	m, last := *s.m, len(b.Graphs)-1
	step := b.Graphs[last]
	for {
		n := newInference(s.ctx, &Request{Graph: step, GlobalBatch: 1, Options: lower.Options{Mode: lower.Decode}}, nil, &m)
		if s.choices == nil {
			s.choices = newChoices(step) // for all policies the same
		}
		n.opt.Quick, n.choices = true, s.choices
		_, err := n.place(p.plan(step))
		var misfit *Misfit
		if errors.As(err, &misfit) {
			n.opt.Reject, n.opt.Capacity = false, program.NoLimits
			n.m, n.graphs = s.m, b.Graphs
			if err := n.lower(misfit.Frugal.Plan); err != nil {
				return err
			}
			return n.misfit()
		}
		if err != nil {
			return err
		}
		b.Plan = n.plan
		b.Programs, err = LowerBlock(s.ctx, b.Graphs, b.Plan, lower.Options{Capacity: s.m.Capacity, Reject: true, Quick: true})
		if err != nil {
			return err
		}
		n.m, n.programs, n.graphs = s.m, b.Programs, b.Graphs
		over := n.height(device.DeviceTier) - s.m.Capacity[device.DeviceTier]
		switch {
		case n.fits():
			return nil
		case over <= 0:
			return n.misfit()
		}
		m.Capacity[device.DeviceTier] -= over
	}
}

// plan returns a policy's plan of the step with all weights on the device.
func (p *blockPolicy) plan(g *graph.Graph) *plan.Plan {
	pl := plan.InBatches(g, p.batches, 1)
	pl.Group, pl.Prefetch = p.batches, p.batches
	for i := range pl.Batches {
		b := &pl.Batches[i]
		b.Hidden = p.hidden
		if i >= p.near {
			if b.Cache = device.HostTier; i >= p.batches-p.cold {
				b.Cache = device.DiskTier
			}
			if p.attends {
				b.Attend = plan.AttendOnHost
			}
		}
	}
	return pl
}

// predict simulates the programs.
func (b *BlockPlan) predict(cost sim.Coster) error {
	var times [2]float64
	for i, p := range []*program.Program{b.Programs[0], b.Programs[len(b.Programs)-1]} {
		spans, err := sim.SpansAlike(p, 1, cost)
		if err != nil {
			return err
		}
		for _, s := range spans {
			times[i] = max(times[i], s.End)
		}
		if math.IsInf(times[i], 0) || math.IsNaN(times[i]) {
			return fmt.Errorf("the machine's description has no price for an operator of %s", p.Name)
		}
	}
	b.PartSeconds, b.StepSeconds = times[0], times[1]
	return nil
}

// priced times the operators of the best policy on the machine and, with these prices, looks again at those that were nearly as fast,
// until the best is one whose operators were timed.
func (s *blockSearch) priced() error {
	for done := map[*BlockPlan]bool{}; !done[s.best]; {
		done[s.best] = true
		for _, p := range s.best.Programs {
			if err := s.m.Measure(&Candidate{Plan: s.best.Plan, Programs: []*program.Program{p}, Program: p}); err != nil {
				return err
			}
		}
		var best *BlockPlan
		for _, b := range s.seen {
			if b == nil {
				continue
			}
			if err := b.predict(s.m.Cost); err != nil {
				return err
			}
			if best == nil || b.Rate() > best.Rate() {
				best = b
			}
		}
		if len(done) >= mostPriced {
			for b := range done {
				if b.Rate() >= best.Rate() || !done[best] {
					best = b
				}
			}
		}
		s.best = best
	}
	return nil
}

// mostPriced bounds the policies whose operators are timed.
const mostPriced = 4
