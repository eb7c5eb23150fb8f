package lower

import (
	"context"
	"errors"
	"fmt"

	"github.com/athanor-llm/athanor/alloc"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/program"
)

// listInstructions strings the units together.
func listInstructions(mode Mode, units []unit) []program.Instr {
	n := 0 // upper bound
	for i := range units {
		u := &units[i]
		n += len(u.before) + len(u.work) + len(u.after)
	}
	list := make([]program.Instr, 0, n)
	for i := range units {
		u := &units[i]
		for _, ops := range [][]*op{u.before, u.work, u.after} {
			for _, o := range ops {
				if mode != Update || o.deferred {
					list = append(list, o.in)
				}
			}
		}
	}
	return list
}

// thoroughNodes bounds the address search of Options.Thorough.
const thoroughNodes = 20_000

// placeBuffers assigns every buffer its address by solving one static allocation problem per
// tier, so that nothing is allocated at run time. Height is the memory of the run.
// Buffers shared with a base program keep its addresses. A program is rejected as Options.Reject says.
func placeBuffers(ctx context.Context, b *builder, opt *Options) (rejected bool, err error) {
	p := b.p
	if opt.Mode == Update {
		return false, placeAlike(p, opt.Base)
	}
	if opt.Base != nil {
		adoptBuffers(p, opt.Base)
	}
	live := p.Lifetimes()
	var problems [device.NumTiers]alloc.Problem
	var buffers [device.NumTiers][]int
	for t := range device.NumTiers {
		problems[t], buffers[t] = b.placement(live, t)
		if opt.Quick {
			problems[t].Capacity = opt.Capacity[t]
		}
		if opt.Reject {
			p.Bound[t] = alloc.LowerBound(problems[t])
			p.Height[t] = p.Bound[t]
			rejected = rejected || p.ExceedsCapacity(t)
		}
	}
	thought := alloc.Options{Cache: opt.Packings}
	if opt.Thorough {
		thought.Nodes = thoroughNodes
	}
	for t, prob := range problems {
		which := buffers[t]
		if len(which) == 0 || rejected {
			continue
		}
		sol, err := alloc.Pack(ctx, prob, thought)
		if err != nil && !errors.Is(err, alloc.ErrUndecided) { // undecided: too high, as Height says
			return false, fmt.Errorf("%v memory: %w", device.Tier(t), err)
		}
		for k, i := range which {
			p.Buffers[i].Addr = sol.Offsets[k]
		}
		p.Height[t], p.Bound[t] = sol.Height, sol.LowerBound
	}
	return rejected || opt.Reject && !p.Fits(), nil
}

// placement returns the allocation problem of a tier, and which buffers it is about.
func (b *builder) placement(live [][2]int, t device.Tier) (prob alloc.Problem, which []int) {
	p := b.p
	which = make([]int, 0, len(p.Buffers))
	for i := range p.Buffers {
		if p.Buffers[i].Tier == t && live[i][0] < live[i][1] {
			which = append(which, i)
		}
	}
	prob.Buffers = b.scratch.buffers.take(len(which))
	for k, i := range which {
		buf := &p.Buffers[i]
		prob.Buffers[k] = alloc.Buffer{ID: buf.Name, Lower: int64(live[i][0]), Upper: int64(live[i][1]), Size: buf.Size, Align: buf.Align, Fixed: buf.Addr}
	}
	return prob, which
}

// placeAlike places a program that is part of the base program: it has the base's buffers, at the base's addresses.
func placeAlike(p, base *program.Program) error {
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

// adoptBuffers pins the persistent buffers shared with the base program to its addresses. It
// also takes over the base's other persistent buffers, so that nothing is placed on top
// of them; it does not read these.
func adoptBuffers(p, base *program.Program) {
	mine := map[string]int{}
	for i := range p.Buffers {
		if p.Buffers[i].Persistent {
			mine[p.Buffers[i].Name] = i
		}
	}
	for _, b := range base.Buffers {
		if !b.Persistent {
			continue
		}
		if i, ok := mine[b.Name]; ok {
			p.Buffers[i].Addr = b.Addr
			continue
		}
		if b.RowUnit > 0 && b.RowUnit != p.RowUnit { // its rows are tokens of the base
			b.Rows, b.Cols, b.RowUnit, b.Cuts = 1, b.Rows*b.Cols, 0, nil
		}
		p.Buffers = append(p.Buffers, b)
	}
}
