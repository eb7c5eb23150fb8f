package search

import (
	"cmp"

	"github.com/athanor-llm/athanor/plan"
)

// frugalestPipeline returns the pipeline that lacks least memory, of those that would exist with unlimited
// memory and have the smallest micro-batches and the most recomputation that the pins allow; ErrPipeline if
// there is none.
func (s *search) frugalestPipeline() (frugal *Candidate, err error) {
	const plenty = 1 << 50
	room, req := *s.m, *s.req
	room.Shared = 0
	for t, n := range room.Capacity {
		room.Capacity[t] = min(n, 1) * plenty
	}
	pins := &req.Pins
	most, usual := "full", "1f1b"
	if pins.Slices > 1 || pins.Schedule == "seq1f1b" {
		take := plan.SlicesTake(s.graph)
		most, usual = take[len(take)-1], "seq1f1b"
	}
	pins.MicroBatch, pins.Recompute = cmp.Or(pins.MicroBatch, s.graph.CutSequences()), cmp.Or(pins.Recompute, most)
	if len(pins.Stages) == 0 {
		pins.Schedule = cmp.Or(pins.Schedule, usual)
	}
	for _, r := range residencies {
		if !s.req.Pins.allow(r) {
			continue
		}
		pins.Weights, pins.Grads, pins.State = &r.weights, &r.grads, &r.state
		c, err := s.frugalPipeline(newSearch(s.ctx, &req, &room))
		if err != nil {
			return nil, err
		}
		if c != nil && (frugal == nil || s.lack(c) < s.lack(frugal)) {
			frugal = c
		}
	}
	if frugal == nil {
		return nil, ErrPipeline
	}
	return frugal, nil
}

// frugalPipeline returns the pipeline that exceeds the machine's capacities least, of those found by a search
// with ample memory.
func (s *search) frugalPipeline(big *search) (frugal *Candidate, err error) {
	for depth := 2; depth <= min(s.ranks, len(s.graph.Segments)); depth++ {
		if pin := s.req.Pins.Pipeline; s.ranks%depth != 0 || pin != 0 && pin != depth {
			continue
		}
		for _, sh := range big.shapes(depth) {
			for _, t := range big.tasks(sh, false) {
				styles := big.styles(t.b, t.residency)
				c, err := big.fill(t, styles[len(styles)-1])
				if err != nil {
					return nil, err
				}
				if c == nil {
					continue
				}
				for _, p := range c.Programs {
					p.Capacity = s.m.Capacity
				}
				if frugal == nil || s.lack(c) < s.lack(frugal) {
					frugal = c
				}
			}
		}
	}
	return frugal, nil
}
