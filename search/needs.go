package search

import (
	"slices"
	"sort"
	"sync"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
)

// What a choice needs of memory at least.
//
// Approach. Two moments of a step are certain, whatever the order of work between them: where the forward pass ends, a
// tier holds its weights and state, the activations that wait for the backward pass and, from the second visit on, the
// gradients that accumulate; where the last backward pass ends and updates wait for the norm, weights, state and
// gradients. So a probe that exceeds a tier by gigabytes costs microseconds instead of a lowering, and a border is
// looked for among choices that are near it (fit.go).
//
// Example: 8 billion parameters on a GPU of 24 GB, with MEMO's policy and the state on disk. The host lacks 17 GB, so a
// third of the chunks would have to stay on the device, which then lacks 35 GB: nothing is lowered.
//
// Known weakness: operators' scratch, staging buffers and packing are not counted.

// needs knows how much memory parts of a plan take, for a request on a machine.
type needs struct {
	req     *Request
	machine *Machine
	ranks   int
	saved   [][plan.NumActs]int64 // what each layer saves for a token, in bytes
	layouts *layouts
	plain   *plan.Plan // of one sequence
}

func newNeeds(req *Request, m *Machine, ranks int) *needs {
	n := &needs{req: req, machine: m, ranks: ranks, layouts: &layouts{known: map[int64][]plan.Chunk{}}, plain: plan.Plain(req.Graph, 1)}
	for l := range req.Graph.Model.Layers {
		n.saved = append(n.saved, plan.Saved(req.Graph, l, 1))
	}
	return n
}

// layouts are the chunks of a graph, by their size in elements.
type layouts struct {
	mu    sync.Mutex
	known map[int64][]plan.Chunk
}

// layout returns the chunks of a size, without places.
func (n *needs) layout(chunk int64) []plan.Chunk {
	l := n.layouts
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.known[chunk] == nil {
		l.known[chunk] = plan.Layout(n.req.Graph, chunk)
	}
	return slices.Clone(l.known[chunk])
}

// least returns a lower bound on the bytes of each tier that a plan's program needs.
func (n *needs) least(pl *plan.Plan) (need [device.NumTiers]int64) {
	var always, grads, waiting [device.NumTiers]int64
	g := n.req.Graph
	for _, c := range pl.Chunks {
		dtype := g.Stored(c.First).DType
		weight, state := dtype.Size(), plan.StateBytes(n.req.Optimizer, n.req.State, dtype)
		always[c.Weights] += weight * n.leastHeld(c, "weights")
		if g.Params[c.First].Frozen {
			continue
		}
		always[c.State] += state * n.leastHeld(c, "state")
		if c.Grads == device.DeviceTier && c.State == device.DeviceTier { // others may move once they are complete
			grads[c.Grads] += graph.F32.Size() * n.leastHeld(c, "grads")
		}
	}
	for l, r := range pl.Activations[:len(pl.Activations)-1] { // the last layer's may be on their way
		for a, bytes := range n.saved[l] {
			if r[a].Tier != device.DiskTier { // on their way to it and back they are on the host
				waiting[r[a].Tier] += int64(r[a].Share * float64(bytes*int64(pl.MicroBatch*g.Seq)))
			}
		}
	}
	again := pl.MicroBatches > pl.Group
	for t := range need {
		end := always[t] + waiting[t]*int64(pl.Group)
		if device.Tier(t) == device.DeviceTier {
			end += n.leastCached(pl)
		}
		if again {
			end += grads[t]
		}
		norm := always[t]
		if n.req.Options.Clip > 0 {
			norm += grads[t]
		}
		need[t] = max(end, norm)
	}
	return need
}

// leastCached returns how many bytes of other weights the cache holds at least where the forward pass ends: all for which it
// has room, but for what two chunks more would take.
func (n *needs) leastCached(pl *plan.Plan) int64 {
	var all, largest int64
	for _, c := range pl.Chunks {
		if c.Lookup != "" || c.Weights == device.DeviceTier && (c.Shard != "weights" || n.ranks == 1) {
			continue
		}
		bytes := n.req.Graph.Stored(c.First).DType.Size() * elements(n.req.Graph, c)
		all, largest = all+bytes, max(largest, bytes)
	}
	return max(min(all, pl.Cache)-2*largest, 0)
}

// leastHeld returns how many elements of a chunk's weights, gradients or state (see plan.Shardings) a rank holds at least.
func (n *needs) leastHeld(c plan.Chunk, what string) int64 {
	all := stored(n.req.Graph, c)
	switch {
	case plan.ShardLevel(c.Shard) < plan.ShardLevel(what):
		return all
	case n.req.Graph.Params[c.First].Indivisible: // a rank may hold none
		return 0
	}
	return max(all/int64(n.ranks)-graph.NormPiece, 0)
}

// lack reports whether a need exceeds one of some tiers of the machine or, with all of them, what its ranks share.
func (n *needs) lack(need [device.NumTiers]int64, tiers []device.Tier) bool {
	for _, t := range tiers {
		if need[t] > n.machine.Capacity[t] {
			return true
		}
	}
	both := (need[device.DeviceTier] + need[device.HostTier]) * int64(n.ranks)
	return len(tiers) == len(everyTier) && n.machine.Shared > 0 && both > n.machine.Shared
}

// dismiss returns a candidate that stands for a choice which needs more than some of the tiers have, without a
// program; nil if that is not certain. Its heights are lower bounds.
func (n *needs) dismiss(pl *plan.Plan, ch choice, tiers []device.Tier) *Candidate {
	need := n.least(pl)
	if !n.lack(need, tiers) {
		return nil
	}
	prog := &program.Program{Height: need, Bound: need, Capacity: n.machine.Capacity}
	return &Candidate{Plan: pl, Program: prog, Programs: []*program.Program{prog}, choice: ch, shared: n.machine.Shared}
}

// mayFit reports whether bounds leave it open that a choice fits.
func mayFit(p *problem, ch choice) bool {
	pl, _, _ := p.plan(ch)
	return !p.needs.lack(p.needs.least(pl), everyTier)
}

// mayHold reports whether bounds leave it open that device and host hold a choice with one of a ladder's policies and at
// least as many resident chunks. The more chunks stay, the less the host needs and the more the device does. Of a
// ladder, the last policy needs least of the device, and it or the first one least of the host.
func (e *enumeration) mayHold(ch choice, l ladder) bool {
	p := e.p
	need := func(keep []plan.Retention, residents int) [device.NumTiers]int64 {
		ch.keep, ch.residents = keep, residents
		pl, _, _ := p.plan(ch)
		return p.needs.least(pl)
	}
	first, last, most := l[0], l[len(l)-1], len(p.needs.layout(ch.st.chunk))
	if now := ch.residents; now >= most || p.req.Pins.placesChunks() || ch.r.state == device.DeviceTier {
		most = now
	}
	host := func(n int) bool {
		return min(need(first, n)[device.HostTier], need(last, n)[device.HostTier]) <= p.machine.Capacity[device.HostTier]
	}
	now := ch.residents
	n := now + sort.Search(most-now, func(i int) bool { return host(now + i) })
	return host(n) && need(last, n)[device.DeviceTier] <= p.machine.Capacity[device.DeviceTier]
}
