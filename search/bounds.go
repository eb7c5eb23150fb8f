package search

import (
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/plan"
)

// Lower bounds on memory and time of the outer decisions, whatever the inner ones
// are. They need no program, and save most of the search.

// bytesPerElement returns the bytes per rank of one element's weight, gradient and
// optimizer state.
func (p *problem) bytesPerElement(r residency) (weight, grad, state float64) {
	level := plan.ShardLevel(r.shard)
	share := func(n float64, what int) float64 { // per rank, for what is sharded from this level on
		if level >= what {
			return n / float64(p.copies)
		}
		return n
	}
	return share(float64(p.graph.Narrowest().Size()), 3), share(4, 2), share(float64(plan.StateBytes(p.req.Optimizer, p.req.State, p.graph.Narrowest())), 1)
}

// hopeless reports whether a placement cannot fit whatever else is chosen, or cannot beat the best so far
// because arithmetic and updates alone take longer: one after the other or, where updates may be left to the
// next step, side by side.
func (p *problem) hopeless(b int, r residency, found shortlist) bool {
	if p.leastLack(r) > 0 {
		return true
	}
	if len(found) == 0 {
		return false
	}
	arithmetic, update := p.leastArithmetic(b), p.leastUpdate(r)
	least := arithmetic + update
	if r.state != device.DeviceTier { // updates may be deferred
		least = max(arithmetic, update)
	}
	return least > found[0].Seconds()
}

// leastLack returns a lower bound on the bytes by which a placement exceeds the tiers, summed over these, whatever else
// is chosen: what parameters, gradients that wait for their norm, and optimizer state take.
func (p *problem) leastLack(r residency) (lack float64) {
	var need [device.NumTiers]float64
	n, frozen := p.trained, p.frozen
	weight, grad, state := p.bytesPerElement(r)
	need[r.weights] += (n + frozen) * weight
	switch {
	case r.state == device.DeviceTier || r.grads == device.HostTier && p.req.Options.Clip > 0:
		need[r.grads] += n * grad
	case p.req.Options.Clip > 0 && !p.req.Pins.placesChunks(): // they wait on the device or, once complete, on the host
		need[device.HostTier] += n * grad
	default: // updates use gradients up as they come
	}
	need[r.state] += n * state
	if over := need[device.HostTier] - float64(p.machine.Capacity[device.HostTier]); over > 0 && !p.req.Pins.placesChunks() {
		need[device.HostTier] -= over // chunks may stay on the device
		need[device.DeviceTier] += over
	}
	for t := range need {
		lack += max(need[t]-float64(p.machine.Capacity[t]), 0)
	}
	return lack
}

// MayFit reports whether bounds leave it open that a plan fits. It takes no time, since nothing is lowered.
func MayFit(req *Request, m *Machine) bool {
	p := newProblem(req, m)
	for _, r := range p.placements {
		if req.Pins.allow(r) && p.leastLack(r) == 0 {
			return true
		}
	}
	if p.ranks == 1 || p.graph.Shared() > 1 {
		return false
	}
	// Pipelines hold everything once, in all ranks together.
	need := (p.trained+p.frozen)*float64(p.graph.Narrowest().Size()) + p.trained*float64(plan.StateBytes(req.Optimizer, req.State, p.graph.Narrowest()))
	if req.Options.Clip > 0 {
		need += p.trained * float64(graph.F32.Size())
	}
	var have float64
	for _, n := range m.Capacity {
		have += float64(n)
	}
	return need <= have*float64(p.ranks)
}

// LeastArithmetic returns the time of all operators of a rank's step, one after the other, which no plan saves.
func LeastArithmetic(req *Request, m *Machine) float64 {
	p := newProblem(req, m)
	return p.leastArithmetic(p.batch)
}

// bytesPlaced returns the bytes of a tier that a placement gives to parameters, gradients and optimizer
// state if no chunk is placed otherwise.
func (p *problem) bytesPlaced(r residency, t device.Tier) (sum float64) {
	n, frozen := p.trained, p.frozen
	weight, grad, state := p.bytesPerElement(r)
	if r.weights == t {
		sum += (n + frozen) * weight
	}
	if r.grads == t {
		sum += n * grad
	}
	if r.state == t {
		sum += n * state
	}
	return sum
}

// leastUpdate returns a lower bound on the time of updates that wait for the norm. Resident chunks are updated on
// the device, and the others on the host or, with their state in transit, on the device too, all in parallel.
// Device memory limits how many chunks are resident.
func (p *problem) leastUpdate(r residency) float64 {
	n := p.trained
	var rate [2]float64 // seconds per element
	for i, stream := range []device.Stream{device.Compute, device.HostCompute} {
		for _, elems := range lower.Updates(p.graph, p.req.State) {
			rate[i] += p.prices.update(stream, device.Tier(i), elems) / p.computed
		}
		if r.shard != "" {
			rate[i] /= float64(p.copies)
		}
	}
	if r.state == device.DeviceTier {
		return n * rate[0]
	}
	if p.req.Options.Clip <= 0 {
		return 0 // without clipping, updates do not wait for the norm and may overlap the backward pass
	}
	weight, grad, state := p.bytesPerElement(r)
	carried := p.prices.copy(device.HostToDev, int64(n*state)) / n
	rate[1] = 1 / (1/rate[1] + 1/carried)
	most := float64(p.machine.Capacity[device.DeviceTier]) / (weight + grad + state)
	stay := min(most, n*rate[1]/(rate[0]+rate[1])) // both then take equally long
	return max(stay*rate[0], (n-stay)*rate[1])
}

// leastArithmetic returns the serial time of all forward and backward operators of a
// step, a lower bound on the compute stream.
func (p *problem) leastArithmetic(b int) float64 {
	rows := b * p.graph.Seq
	var sum float64
	for i := range p.graph.Segments {
		seg := &p.graph.Segments[i]
		for _, nodes := range [][]graph.Node{seg.Forward, seg.Backward} {
			for k := range nodes {
				sum += p.prices.node(&nodes[k], rows)
			}
		}
	}
	return sum * float64(p.batch/b)
}
