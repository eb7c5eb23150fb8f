package plan

import (
	"cmp"
	"context"
	"slices"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/program"
)

// This file plans inference: programs that update nothing, on one device, such as an evaluation or the two programs
// of a generator.
//
// Approach. No time is predicted, and so no machine need be measured: one rule decides. Weights on the device are
// read at its memory's rate. Those on the host cross a link first, which takes 10 to 100 times as long, for every
// token that is generated. So the fewest bytes are left on the host. Until the programs fit, there are
//
//  1. fewer logits at a time, then smaller micro-batches, which go layer by layer together;
//  2. more and more bytes of weights on the host. The cache holds what two consecutive layers stream, so that the
//     next layer's weights cross the link while this layer computes. So what is streamed is spread evenly. Where
//     room for one layer lets at least a tenth less be streamed, the cache has no more.
//
// Example: each of six layers has parameters of 1 and 4 MiB, and 5 MiB are lacking. With the large one of every other
// layer on the host, the device holds 12 MiB less, and 4 MiB of cache: 8 are won. With all the small ones and the large
// ones of two layers, 14 MiB less and 6 of cache: also 8, but more is streamed. With the large ones of two layers,
// only 4 are won. Choices are some kinds of parameters in all layers, and others in some of them.
//
// Choices that can fit are tried from fewest bytes to most: a choice is lowered, and its memory counted.
//
// Known weakness: choices that stream other parameters in some layers than in others are not considered.

// Inference returns programs, one per graph, that compute the given number of sequences (1 for generation) within the
// machine's capacity. The graphs are of one model, and the last one reads all parameters. The programs of all but the first
// are lowered with the first as their base, so its inputs are the largest. The error is a *Misfit if nothing fits.
func Inference(ctx context.Context, graphs []*graph.Graph, sequences int, mode program.Mode, m *Machine) ([]*program.Program, error) {
	n := &inference{ctx: ctx, graphs: graphs, m: m, opt: program.Options{Mode: mode, Capacity: m.Capacity}}
	var tight *program.Plan
	for _, pl := range n.batches(sequences) {
		if fits, err := n.lower(pl); err != nil || fits {
			return n.programs, err
		}
		tight = pl
	}
	if n.m.Shared > 0 && n.together() > n.m.Shared { // what is streamed only adds to it
		return nil, n.misfit(tight)
	}
	return n.stream(tight)
}

// inference is the state of one search.
type inference struct {
	ctx      context.Context
	graphs   []*graph.Graph
	m        *Machine
	opt      program.Options
	programs []*program.Program // the latest
}

// lower lowers a plan for all graphs, each with its own length, and reports whether all programs fit.
func (n *inference) lower(pl *program.Plan) (bool, error) {
	n.programs = nil
	for i, g := range n.graphs {
		own, opt := *pl, n.opt
		if g.Context > 0 {
			own.SequenceLength, own.HeadRows = g.Seq, g.Seq
		}
		if i > 0 {
			opt.Base = n.programs[0]
		}
		p, err := program.Lower(n.ctx, g, &own, opt)
		if err != nil {
			return false, err
		}
		if n.opt.Reject && !p.Fits() {
			return false, nil
		}
		n.programs = append(n.programs, p)
	}
	return !slices.ContainsFunc(n.programs, func(p *program.Program) bool { return !p.Fits() }) && (n.m.Shared == 0 || n.together() <= n.m.Shared), nil
}

// batches lists plans with all weights on the device, from most sequences and logits at a time to fewest.
func (n *inference) batches(sequences int) []*program.Plan {
	g := n.graphs[len(n.graphs)-1]
	list := []*program.Plan{program.Plain(g, sequences)}
	if g.Context > 0 {
		return list
	}
	least := g.CutSequences()
	req := &Request{Graph: g}
	for b := sequences; ; b /= 2 {
		pl := program.Plain(g, sequences)
		pl.MicroBatch, pl.MicroBatches, pl.Group, pl.HeadRows = b, sequences/b, sequences/b, b*g.Seq
		if n.opt.Mode != program.Grads { // where to cut sums over tokens is the device's choice
			pl.HeadRows = req.Head(b*g.Seq, n.m.Capacity[device.DeviceTier])
		}
		list = append(list, pl)
		if b%2 != 0 || (b/2)%least != 0 {
			break
		}
	}
	if n.opt.Mode == program.Grads {
		pl := *list[len(list)-1]
		pl.Group, pl.Activations = 1, slices.Clone(pl.Activations)
		for l := range pl.Activations {
			pl.Activations[l] = program.Recomputed("full")
		}
		list = append(list, &pl)
	}
	return list
}

// stream finds the plan that leaves the fewest bytes on the host, given how sequences are batched.
func (n *inference) stream(batch *program.Plan) ([]*program.Program, error) {
	w := newWeights(n.graphs[len(n.graphs)-1])
	if _, err := n.lower(n.streamed(batch, w, &share{})); err != nil {
		return nil, err
	}
	var kept int64 // bytes on the device from step to step, such as the caches of keys
	for _, b := range n.programs[0].Buffers {
		if b.Persistent && b.Tier == device.DeviceTier {
			kept += b.Size
		}
	}
	kept, others := kept-w.all(), n.height(device.DeviceTier)-kept
	shares := w.shares()
	if fits, err := n.lower(n.streamed(batch, w, &shares[len(shares)-1])); err != nil {
		return nil, err
	} else if !fits {
		return nil, n.misfit(batch)
	}
	n.opt.Reject = true
	for i := range shares {
		s := &shares[i]
		if s.resident+kept+max(s.cache, others) > n.m.Capacity[device.DeviceTier] {
			continue
		}
		if fits, err := n.lower(n.streamed(batch, w, s)); err != nil || fits {
			return n.programs, err
		}
	}
	return nil, n.misfit(batch)
}

// streamed returns the plan in which a share of the weights is on the host.
func (n *inference) streamed(batch *program.Plan, w *weights, s *share) *program.Plan {
	pl := *batch
	pl.Chunks, pl.Cache = slices.Clone(w.chunks), s.cache
	for c := range pl.Chunks {
		pl.Chunks[c].Grads, pl.Chunks[c].State = device.HostTier, device.HostTier // gradients if there are any, never a state
	}
	for _, c := range w.list(nil, s) {
		pl.Chunks[c].Weights = device.HostTier
	}
	return &pl
}

// height returns the memory of a tier that the latest programs take.
func (n *inference) height(t device.Tier) (most int64) {
	for _, p := range n.programs {
		most = max(most, p.Height[t])
	}
	return most
}

// together returns the memory that the latest programs take on device and host.
func (n *inference) together() int64 { return n.height(device.DeviceTier) + n.height(device.HostTier) }

// misfit describes what the latest programs lack.
func (n *inference) misfit(pl *program.Plan) *Misfit {
	most := slices.MaxFunc(n.programs, func(a, b *program.Program) int {
		return cmp.Compare(a.Height[device.DeviceTier], b.Height[device.DeviceTier])
	})
	e := NewMisfit(&Candidate{Plan: pl, Programs: []*program.Program{most}, Program: most})
	if e.Need == 0 { // each tier by itself is large enough
		e.Tier, e.Need, e.Have = device.HostTier, n.together(), n.m.Shared
	}
	return e
}
