package lower

import (
	"errors"
	"fmt"

	"github.com/athanor-llm/athanor/alloc"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/program"
)

// list concatenates the units into program order.
func (lo *lowering) list() error {
	n := 0 // upper bound
	for i := range lo.units {
		u := &lo.units[i]
		n += len(u.before) + len(u.work) + len(u.after)
	}
	lo.p.Instrs = make([]program.Instr, 0, n)
	for i := range lo.units {
		u := &lo.units[i]
		for _, ops := range [][]op{u.before, u.work, u.after} {
			for j := range ops {
				if lo.opt.Mode != Update || ops[j].deferred {
					lo.p.Instrs = append(lo.p.Instrs, ops[j].in)
				}
			}
		}
	}
	return nil
}

// thoroughNodes bounds the address search of Options.Thorough.
const thoroughNodes = 20_000

// place assigns every buffer its address by solving one static allocation problem per
// tier, so that nothing is allocated at run time. Height is the memory of the run.
// Buffers shared with a base program keep its addresses.
func (lo *lowering) place() error {
	if lo.opt.Mode == Update {
		return lo.placeAlike()
	}
	lo.adopt()
	live := lo.p.Lifetimes()
	var problems [device.NumTiers]alloc.Problem
	var buffers [device.NumTiers][]int
	for t := range device.NumTiers {
		prob, which := &problems[t], buffers[t]
		for i := range lo.p.Buffers {
			b := &lo.p.Buffers[i]
			if b.Tier != t || live[i][1] <= live[i][0] {
				continue
			}
			prob.Buffers = append(prob.Buffers, alloc.Buffer{
				ID: b.Name, Lower: int64(live[i][0]), Upper: int64(live[i][1]), Size: b.Size, Align: b.Align, Fixed: b.Addr,
			})
			which = append(which, i)
		}
		buffers[t] = which
		if lo.opt.Quick {
			prob.Capacity = lo.opt.Capacity[t]
		}
		if lo.opt.Reject {
			lo.p.Height[t] = alloc.LowerBound(*prob)
			lo.rejected = lo.rejected || lo.p.Over(t)
		}
	}
	var thought alloc.Options
	if lo.opt.Thorough {
		thought = alloc.Options{Nodes: thoroughNodes}
	}
	for t, prob := range problems {
		which := buffers[t]
		if len(which) == 0 || lo.rejected {
			continue
		}
		sol, err := alloc.Pack(lo.ctx, prob, thought)
		if err != nil && !errors.Is(err, alloc.ErrUndecided) { // undecided: too high, as Height says
			return fmt.Errorf("%v memory: %w", device.Tier(t), err)
		}
		for k, i := range which {
			lo.p.Buffers[i].Addr = sol.Offsets[k]
		}
		lo.p.Height[t], lo.p.Bound[t] = sol.Height, sol.LowerBound
	}
	return nil
}

// placeAlike places a program that is part of the base program: it has the base's buffers, at the base's addresses.
func (lo *lowering) placeAlike() error {
	p, base := lo.p, lo.opt.Base
	if len(p.Buffers) != len(base.Buffers) {
		return fmt.Errorf("the program has %d buffers, but the program of the step has %d; hint: lower both with the same options", len(p.Buffers), len(base.Buffers))
	}
	for i := range p.Buffers {
		if b := &base.Buffers[i]; p.Buffers[i].Name != b.Name || p.Buffers[i].Size != b.Size {
			return fmt.Errorf("buffer %s of %d bytes is where the program of the step has %s of %d bytes; hint: lower both with the same options", p.Buffers[i].Name, p.Buffers[i].Size, b.Name, b.Size)
		}
		p.Buffers[i].Addr = base.Buffers[i].Addr
	}
	p.Height, p.Bound = base.Height, base.Bound
	return nil
}

// adopt pins the persistent buffers shared with the base program to its addresses. It
// also takes over the base's other persistent buffers, so that nothing is placed on top
// of them.
func (lo *lowering) adopt() {
	if lo.opt.Base == nil {
		return
	}
	mine := map[string]int{}
	for i := range lo.p.Buffers {
		if lo.p.Buffers[i].Persistent {
			mine[lo.p.Buffers[i].Name] = i
		}
	}
	for _, b := range lo.opt.Base.Buffers {
		if !b.Persistent {
			continue
		}
		if i, ok := mine[b.Name]; ok {
			lo.p.Buffers[i].Addr = b.Addr
			continue
		}
		lo.p.Buffers = append(lo.p.Buffers, b)
	}
}
