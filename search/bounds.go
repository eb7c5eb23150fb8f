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
			return n / float64(p.ranks)
		}
		return n
	}
	return share(float64(p.graph.DType.Size()), 3), share(4, 2), share(float64(plan.StateBytes(p.req.Optimizer, p.req.State, p.graph.DType)), 1)
}

// hopeless reports whether a placement cannot fit whatever else is chosen, or cannot beat the best so far
// because arithmetic and updates alone take longer: one after the other or, where updates may be left to the
// next step, side by side.
func (p *problem) hopeless(b int, r residency, found shortlist) bool {
	var need [device.NumTiers]float64
	n, frozen := p.trained, p.frozen
	weight, grad, state := p.bytesPerElement(r)
	need[r.weights] += (n + frozen) * weight
	if r.state == device.DeviceTier {
		need[r.grads] += n * grad
	}
	need[r.state] += n * state
	if over := need[device.HostTier] - float64(p.machine.Capacity[device.HostTier]); over > 0 && !p.req.Pins.placesChunks() {
		need[device.HostTier] -= over // chunks may stay on the device
		need[device.DeviceTier] += over
	}
	for t := range need {
		if need[t] > float64(p.machine.Capacity[t]) {
			return true
		}
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
			rate[i] += p.prices.update(stream, device.Tier(i), elems) / n
		}
		if r.shard != "" {
			rate[i] /= float64(p.ranks)
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
