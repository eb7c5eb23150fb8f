package search

import (
	"cmp"
	"context"
	"slices"
	"sort"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
)

// This file plans inference: programs that update nothing, on one device, such as an evaluation or the two programs
// of a generator.
//
// Approach. No time is predicted, and so no machine need be measured: one rule decides. Weights on the device are
// read at its memory's rate. Those on the host cross a link first, which takes 10 to 100 times as long, for every
// token that is generated. So the fewest bytes are left on the host. Until the programs fit, there are
//
//  1. fewer logits at a time, then smaller micro-batches, which go layer by layer together. For gradients, these go
//     one by one in the end, and activations are recomputed;
//  2. more and more bytes of weights on the host. The cache holds what two consecutive layers stream, so that the
//     next layer's weights cross the link while this layer computes. So what is streamed is spread evenly. Where
//     that would make a tenth more be streamed, the cache has room for one layer only.
//
// Example: each of six layers has parameters of 1 and 4 MiB, and 6 MiB are lacking. With the large one of every other
// layer on the host, the device holds 12 MiB less, and 4 MiB of cache: 8 are won. With all the small ones and the large
// ones of two layers, 14 MiB less and 6 of cache: also 8, but more is streamed. With the large ones of two layers,
// only 4 are won, and with all the small ones and room for one of them, 5. Choices are some kinds of parameters in all
// layers, and others in some of them.
// Those that can fit are tried in the order of their cost (share.cost): a choice is lowered, and its memory counted.
//
// Known weaknesses: the search for the cheapest choice takes it that memory falls as cost rises, which is nearly so. Choices that stream other parameters in some layers than in others are not considered, nor the head without
// the embedding, nor small parameters without all others.

// Inference returns programs, one per graph, that compute a batch of sequences (one, if it is generation) within the machine's
// capacity. Of the request, Graph, GlobalBatch, Options.Mode and HeadUnit count. The other graphs, which come first, are of the same
// model and read prompts. The programs of all but the first are lowered with the first as their base, so its inputs must be the
// largest. The error is a *Misfit if nothing fits.
func Inference(ctx context.Context, req *Request, prompts []*graph.Graph, m *Machine) ([]*program.Program, error) {
	n := newInference(ctx, req, prompts, m)
	return n.place(n.batches()...)
}

// place returns the programs of the first plan that fits with all weights on the device, or else of the last one with weights on the host.
func (n *inference) place(plans ...*plan.Plan) ([]*program.Program, error) {
	for _, pl := range plans {
		if err := n.lower(pl); err != nil || n.fits() {
			return n.programs, err
		}
	}
	if m := n.m; m.Shared > 0 && n.totalMemory() > m.Shared { // what is streamed only adds to it
		return nil, n.misfit()
	}
	return n.stream(plans[len(plans)-1])
}

// inference is the state of one search.
type inference struct {
	ctx      context.Context
	req      *Request
	graphs   []*graph.Graph // those of prompts, then the request's
	m        *Machine
	opt      lower.Options
	plan     *plan.Plan         // the latest
	programs []*program.Program // its programs, not all of them if one was rejected
	choices  *choices           // of weights on the host; nil: they are yet to be listed
}

// choices are those of weights that are left on the host, of a model.
type choices struct {
	weights *weights
	shares  []share // from the cheapest to everything
}

func newChoices(g *graph.Graph) *choices {
	w := newWeights(g)
	return &choices{w, w.shares()}
}

func newInference(ctx context.Context, req *Request, prompts []*graph.Graph, m *Machine) *inference {
	opt := lower.Options{Mode: req.Options.Mode, Capacity: m.Capacity}
	return &inference{ctx: ctx, req: req, graphs: append(slices.Clip(prompts), req.Graph), m: m, opt: opt}
}

// lower lowers a plan for all graphs, each with its own length. With opt.Reject it stops at the first program that does
// not fit.
func (n *inference) lower(pl *plan.Plan) error {
	n.plan, n.programs = pl, nil
	for i, g := range n.graphs {
		own, opt := pl, n.opt
		if g.Context > 0 {
			own = planOf(pl, g)
		}
		opt.Quick = opt.Quick && opt.Reject // what is not rejected must be as small as it can be
		if i > 0 {
			opt.Base = n.programs[0]
		}
		p, err := lower.Lower(n.ctx, g, own, opt)
		if err != nil {
			return err
		}
		if n.opt.Reject && !p.Fits() {
			return nil
		}
		n.programs = append(n.programs, p)
	}
	return nil
}

// allLowered reports whether no program was rejected.
func (n *inference) allLowered() bool { return len(n.programs) == len(n.graphs) }

// fits reports whether the latest programs fit, device and host together where they are the same memory.
func (n *inference) fits() bool {
	for t, have := range n.m.Capacity {
		if n.height(device.Tier(t)) > have {
			return false
		}
	}
	return n.allLowered() && (n.m.Shared == 0 || n.totalMemory() <= n.m.Shared)
}

// height returns the memory of a tier that the latest programs take.
func (n *inference) height(t device.Tier) (most int64) {
	for _, p := range n.programs {
		most = max(most, p.Height[t])
	}
	return most
}

// totalMemory returns the memory that the latest programs take on device and host.
func (n *inference) totalMemory() int64 {
	return n.height(device.DeviceTier) + n.height(device.HostTier)
}

// batches lists plans with all weights on the device, from most sequences and logits at a time to fewest.
func (n *inference) batches() []*plan.Plan {
	g, sequences := n.req.Graph, n.req.GlobalBatch
	list := []*plan.Plan{plan.Plain(g, sequences)}
	if g.Context > 0 {
		return list
	}
	least := g.CutSequences()
	for b := sequences; b > 0; b-- {
		if sequences%b != 0 || b%least != 0 && b < sequences {
			continue
		}
		pl := plan.Plain(g, sequences)
		pl.MicroBatch, pl.MicroBatches, pl.Group = b, sequences/b, sequences/b
		pl.HeadRows = n.req.Head(b*g.Seq, n.m.Capacity[device.DeviceTier])
		list = append(list, pl)
	}
	if n.opt.Mode == lower.Grads {
		pl := *list[len(list)-1]
		pl.Group, pl.Activations = 1, slices.Clone(pl.Activations)
		for l := range pl.Activations {
			pl.Activations[l] = plan.Recomputed("full")
		}
		list = append(list, &pl)
	}
	return list
}

// stream finds the cheapest plan with weights on the host, given how sequences are batched.
func (n *inference) stream(batch *plan.Plan) ([]*program.Program, error) {
	if n.choices == nil {
		n.choices = newChoices(n.req.Graph)
	}
	w, shares := n.choices.weights, n.choices.shares
	if err := n.lower(w.plan(batch, &share{})); err != nil {
		return nil, err
	}
	rest, have := n.besides(w), n.m.Capacity
	everything := shares[len(shares)-1]
	cheapest := slices.DeleteFunc(slices.Clone(shares), func(s share) bool {
		onDevice, onHost := rest.device(&s), rest.host+s.away
		return onDevice > have[device.DeviceTier] || onHost > have[device.HostTier] || n.m.Shared > 0 && onDevice+onHost > n.m.Shared
	})
	n.opt.Reject = true
	if found, err := n.first(cheapest, batch, w, n.fits); err != nil || found {
		return n.programs, err
	}
	// Given enough host memory, as few weights are there as the device permits, or all of them.
	frugal := slices.DeleteFunc(slices.Clone(shares), func(s share) bool { return rest.device(&s) > have[device.DeviceTier] })
	slices.SortStableFunc(frugal, func(a, b share) int { return cmp.Compare(a.away, b.away) })
	n.opt.Capacity = program.NoLimits
	n.opt.Capacity[device.DeviceTier] = have[device.DeviceTier]
	found, err := n.first(frugal, batch, w, n.allLowered)
	if err == nil && !found {
		n.opt.Reject = false
		err = n.lower(w.plan(batch, &everything))
	}
	if err == nil && found {
		err = n.spill(w)
	}
	if err != nil || n.fits() {
		return n.programs, err
	}
	return nil, n.misfit()
}

// spill moves weights of the latest plan from the host to the disk, if there is one, until the host has room.
func (n *inference) spill(w *weights) error {
	n.opt.Reject = false
	n.opt.Capacity = n.m.Capacity
	var moved int64
	for n.m.Capacity[device.DiskTier] > 0 && n.opt.Mode == lower.Decode {
		over := n.height(device.HostTier) - n.m.Capacity[device.HostTier]
		if n.m.Shared > 0 {
			over = max(over, n.totalMemory()-n.m.Shared)
		}
		if over <= 0 {
			return nil
		}
		lack := moved + over // the first to leave take buffers of their own on the host
		pl := *n.plan
		pl.Chunks = slices.Clone(pl.Chunks)
		before := moved
		for c := range slices.Backward(pl.Chunks) { // the first layers' are needed first
			if ch := &pl.Chunks[c]; ch.Weights == device.HostTier && ch.Lookup == "" && moved < lack {
				ch.Weights = device.DiskTier
				moved += w.bytes[c]
			}
		}
		if moved == before {
			return nil
		}
		if err := n.lower(&pl); err != nil {
			return err
		}
	}
	return nil
}

// first lowers the plan of the first share that fits, as a function says of the latest programs, and reports whether there is one.
// It takes it that those after it fit too, which is nearly so, since they are sorted by the bytes that they leave on the host: it
// looks at some further and further on, then halves what is left.
func (n *inference) first(shares []share, batch *plan.Plan, w *weights, fits func() bool) (bool, error) {
	var err error
	try := func(i int) bool {
		if err == nil {
			err = n.lower(w.plan(batch, &shares[i]))
		}
		return err == nil && fits()
	}
	lo, hi := -1, len(shares) // the last that did not fit, the first that did
	for i, step := 0, 1; i < len(shares); i, step = i+step, 2*step {
		if try(i) {
			hi = i
			break
		}
		lo = i
	}
	if hi == len(shares) && lo < hi-1 && try(hi-1) {
		hi--
	}
	if hi == len(shares) || err != nil {
		return false, err
	}
	hi = lo + 1 + sort.Search(hi-lo-1, func(i int) bool { return try(lo + 1 + i) })
	return try(hi), err
}

// besides is the memory that programs take besides weights and the cache of weights, in bytes.
type besides struct{ kept, most, host int64 } // on the device from step to step and at most in a step; on the host

// besides returns that of the latest programs, which have all weights on the device.
func (n *inference) besides(w *weights) (b besides) {
	var persistent int64
	for _, buf := range n.programs[0].Buffers {
		if buf.Persistent && buf.Tier == device.DeviceTier {
			persistent += buf.Size
		}
	}
	return besides{persistent - w.all(), n.height(device.DeviceTier) - persistent, n.height(device.HostTier)}
}

// device returns about the device memory that a share takes: as if activations and the cache were never there at a time.
func (b *besides) device(s *share) int64 { return s.resident + b.kept + max(s.cache, b.most) }

// misfit describes what the latest programs lack: of the tier that lacks most or, if each is large enough, of the memory that device
// and host share.
func (n *inference) misfit() *Misfit {
	e := &Misfit{Tier: device.HostTier, Need: n.totalMemory(), Have: n.m.Shared}
	var lack int64
	for t, have := range n.m.Capacity {
		if need := n.height(device.Tier(t)); need-have > lack {
			lack, e.Tier, e.Need, e.Have = need-have, device.Tier(t), need, have
		}
	}
	fullest := slices.MaxFunc(n.programs, func(a, b *program.Program) int { return cmp.Compare(a.Height[e.Tier], b.Height[e.Tier]) })
	e.Frugal = &Candidate{Plan: n.plan, Programs: []*program.Program{fullest}, Program: fullest}
	return e
}
