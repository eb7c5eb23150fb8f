// Package policy expresses what other systems decide as plans of this one, so
// that they can be compared on one simulator: ZeRO's stages with and without
// offloading, offloading of everything, and Elixir's own search (policy/elixir).
//
// Each policy runs here as well as a plan can express it: copies overlap with
// computation, the optimizer on the host starts as soon as gradients arrive, and
// the head computes its logits in chunks of rows. The original systems do less of
// that; the comparison is about where they put things.
package policy

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/athanor-llm/athanor/alloc"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/policy/elixir"
	"github.com/athanor-llm/athanor/program"
)

// Request is what a policy plans for.
type Request struct {
	Graph     *graph.Graph
	Hardware  *hardware.Hardware // of one rank
	Ranks     int
	Sequences int // per rank and step
	HeadRows  int // tokens whose logits exist at once
	Tuning
	// Activations is the peak of activations and their gradients as tuned, in bytes, which
	// Measure finds. Elixir plans with the memory that they leave.
	Activations int64
}

// Measure sets Activations, from a program that it lowers.
func (r *Request) Measure(ctx context.Context, opt lower.Options) error {
	pl, err := fixed(offloaded, 0)(r)
	if err != nil {
		return err
	}
	opt.Unplaced = true
	p, err := lower.Lower(ctx, r.Graph, pl, opt)
	if err != nil {
		return err
	}
	r.Activations = activations(p)
	return nil
}

// activations returns the peak of the bytes on the device that do not belong to
// parameters.
func activations(p *program.Program) int64 {
	var changes []alloc.Level
	for i, live := range p.Lifetimes() {
		b := &p.Buffers[i]
		if b.Tier == device.DeviceTier && b.Class >= program.ClassActivations && live[0] < live[1] {
			changes = append(changes, alloc.Level{Time: float64(live[0]), Bytes: b.Size}, alloc.Level{Time: float64(live[1]), Bytes: -b.Size})
		}
	}
	return alloc.Most(alloc.Levels(changes))
}

// Policy is a way to plan.
type Policy struct {
	Name    string
	Plan    func(r *Request) (*plan.Plan, error)
	Partial bool // it can offload less, see Tuning.Resident
}

// ElixirPaper is the name of Elixir's own search.
const ElixirPaper = "elixir-paper"

// All lists the policies.
func All() []Policy {
	return []Policy{
		{Name: ElixirPaper, Plan: Elixir},
		{Name: "zero-2", Plan: fixed(plan.Chunk{Shard: "grads"}, 0)},
		{Name: "zero-2-offload", Plan: fixed(plan.Chunk{Shard: "grads", Grads: device.HostTier, State: device.HostTier}, 0)},
		{Name: "zero-3", Plan: fixed(plan.Chunk{Shard: "weights"}, live)},
		{Name: "zero-3-offload", Plan: partly(fixed(offloaded, live)), Partial: true},
		{Name: "full-offload", Plan: fixed(offloaded, 0)},
	}
}

// offloaded keeps everything on the host, divided among the ranks.
var offloaded = plan.Chunk{Shard: "weights", Weights: device.HostTier, Grads: device.HostTier, State: device.HostTier}

// live is how many elements DeepSpeed keeps gathered at once by default
// (stage3_max_live_parameters).
const live = 1e9

// base returns what all policies start from: the tuning, and a chunk for each
// segment, the next one fetched ahead.
func (r *Request) base() *plan.Plan {
	n := max(r.Accumulation, 1)
	pl := plan.Plain(r.Graph, r.Sequences/n)
	pl.MicroBatches, pl.Ranks, pl.HeadRows = n, r.Ranks, r.HeadRows
	for l := range r.checkpointed() {
		pl.Activations[l] = plan.Recomputed("full")
	}
	return pl
}

// fixed returns a policy that treats all chunks alike and caches the given number of
// their elements, or the least that works if that is more.
func fixed(c plan.Chunk, cached int64) func(*Request) (*plan.Plan, error) {
	return func(r *Request) (*plan.Plan, error) {
		pl := r.base()
		for i := range pl.Chunks {
			c.First, c.Last = pl.Chunks[i].First, pl.Chunks[i].Last
			pl.Chunks[i] = c
		}
		pl.Cache = pl.CacheNeeded(r.Graph)
		if pl.Cache > 0 {
			pl.Cache = max(pl.Cache, cached*r.Graph.DType.Size())
		}
		return pl, nil
	}
}

// Elixir plans by Elixir's search. Elixir's chunks hold several layers; here the cache
// loads only the part of a chunk that a layer reads, which is never slower.
func Elixir(r *Request) (*plan.Plan, error) {
	trace, d, err := ElixirDecision(r)
	if err != nil {
		return nil, err
	}
	pl := r.base()
	pl.Chunks = pl.Chunks[:0]
	of := chunkOf(r.Graph, trace, d)
	for _, segment := range plan.Layout(r.Graph, 1<<62) {
		pl.Chunks = append(pl.Chunks, cut(segment, of)...)
	}
	for i := range pl.Chunks {
		c := &pl.Chunks[i]
		c.Shard = "weights"
		if !d.OnGPU[of[c.First]] {
			c.Weights, c.Grads, c.State = device.HostTier, device.HostTier, device.HostTier
		}
	}
	pl.Cache = max(int64(d.Placement.Blocks)*d.Size*r.Graph.DType.Size(), pl.CacheNeeded(r.Graph))
	return pl, nil
}

// ElixirDecision returns what Elixir's search decides, in its own terms.
func ElixirDecision(r *Request) (*elixir.Trace, *elixir.Decision, error) {
	f := elixir.Format{Bytes: r.Graph.DType.Size(), Moments: 2}
	trace := elixir.Record(r.Graph, r.checkpointed())
	budget := elixir.Budget{GPU: r.Hardware.Memory.Device + hardware.ContextBytes, Fraction: 1, Activations: r.Activations}
	capacity, err := budget.Elements(trace, f)
	if err != nil {
		return nil, nil, err
	}
	rates, err := elixir.RatesOf(r.Hardware, r.Ranks)
	if err != nil {
		return nil, nil, err
	}
	d, err := elixir.Decide(trace, f, elixir.Machine{GPUs: r.Ranks, Capacity: capacity, Rates: rates}, true)
	return trace, d, err
}

// chunkOf returns Elixir's chunk of each parameter of the graph, numbering private
// chunks after the public ones. Vectors go with the matrix before them in the same
// layer, so that no chunk is too small to be divided, and runs stay together.
func chunkOf(g *graph.Graph, t *elixir.Trace, d *elixir.Decision) []int {
	of := map[string]int{}
	private := d.Packing.Chunks
	for i, p := range t.Params {
		if of[p.Name] = d.Packing.Chunk[i]; p.Private {
			of[p.Name], private = private, private+1
		}
	}
	list, within := make([]int, len(g.Params)), plan.Runs(g)
	for i, p := range g.Params {
		if list[i] = of[p.Name]; within[i] || p.Vector && i > 0 && g.Params[i-1].Layer == p.Layer {
			list[i] = list[i-1]
		}
	}
	return list
}

// cut divides a chunk where Elixir's chunk of its parameters changes.
func cut(segment plan.Chunk, of []int) (list []plan.Chunk) {
	for p := segment.First; p < segment.Last; p++ {
		if p > segment.First && of[p] == of[p-1] {
			list[len(list)-1].Last = p + 1
		} else {
			list = append(list, plan.Chunk{First: p, Last: p + 1})
		}
	}
	return list
}

// Names returns the names of all policies.
func Names() (list []string) {
	for _, p := range All() {
		list = append(list, p.Name)
	}
	return list
}

// Find returns a policy by name.
func Find(name string) (*Policy, error) {
	all := All()
	if i := slices.IndexFunc(all, func(p Policy) bool { return p.Name == name }); i >= 0 {
		return &all[i], nil
	}
	return nil, fmt.Errorf("unknown policy %q; hint: use one of %s", name, strings.Join(Names(), ", "))
}
