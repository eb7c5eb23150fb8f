package search

import (
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/plan"
)

// Lower bounds on memory and time of the outer decisions, whatever the inner ones
// are. They need no program, and save most of the search.

// perElement returns the bytes per rank of one element's weight, gradient and
// optimizer state.
func (s *search) perElement(r residency) (weight, grad, state float64) {
	level := plan.ShardLevel(r.shard)
	share := func(n float64, what int) float64 { // per rank, for what is sharded from this level on
		if level >= what {
			return n / float64(s.ranks)
		}
		return n
	}
	return share(float64(s.graph.DType.Size()), 3), share(4, 2), share(float64(plan.StateBytes(s.req.Optimizer, s.req.State, s.graph.DType)), 1)
}

// elements counts the elements of trained and of frozen parameters.
func (s *search) elements() (trained, frozen float64) {
	for i, p := range s.graph.Params {
		if n := float64(s.graph.Stored(i).Elems()); p.Frozen {
			frozen += n
		} else {
			trained += n
		}
	}
	return trained, frozen
}

// hopeless reports whether a placement cannot fit whatever else is chosen, or cannot beat the best so far
// because arithmetic and updates alone take longer: one after the other or, where updates may be left to the
// next step, side by side.
func (s *search) hopeless(b int, r residency) bool {
	var need [device.NumTiers]float64
	n, frozen := s.elements()
	weight, grad, state := s.perElement(r)
	need[r.weights] += (n + frozen) * weight
	if r.state == device.DeviceTier {
		need[r.grads] += n * grad
	}
	need[r.state] += n * state
	if over := need[device.HostTier] - float64(s.m.Capacity[device.HostTier]); over > 0 && !s.pinsChunks() {
		need[device.HostTier] -= over // chunks may stay on the device
		need[device.DeviceTier] += over
	}
	for t := range need {
		if need[t] > float64(s.m.Capacity[t]) {
			return true
		}
	}
	least := s.arithmetic(b) + s.update(r)
	if r.state != device.DeviceTier { // updates may be deferred
		least = max(s.arithmetic(b), s.update(r))
	}
	return len(s.found) > 0 && least > s.found[0].Seconds()
}

// placed returns the bytes of a tier that a placement gives to parameters, gradients and optimizer
// state if no chunk is placed otherwise.
func (s *search) placed(r residency, t device.Tier) (sum float64) {
	n, frozen := s.elements()
	weight, grad, state := s.perElement(r)
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

// update returns a lower bound on the time of updates that wait for the norm. Resident chunks are updated on
// the device, and the others on the host or, with their state in transit, on the device too, all in parallel.
// Device memory limits how many chunks are resident.
func (s *search) update(r residency) float64 {
	n, _ := s.elements()
	var rate [2]float64 // seconds per element
	for i, stream := range []device.Stream{device.Compute, device.HostCompute} {
		for _, elems := range lower.Updates(s.graph, s.req.State) {
			rate[i] += s.m.Cost.Cost(s.updateCall(stream, device.Tier(i), elems)) / n
		}
		if r.shard != "" {
			rate[i] /= float64(s.ranks)
		}
	}
	if r.state == device.DeviceTier {
		return n * rate[0]
	}
	if s.req.Options.Clip <= 0 {
		return 0 // without clipping, updates do not wait for the norm and may overlap the backward pass
	}
	weight, grad, state := s.perElement(r)
	carried := s.copying(device.HostToDev, int64(n*state)) / n
	rate[1] = 1 / (1/rate[1] + 1/carried)
	most := float64(s.m.Capacity[device.DeviceTier]) / (weight + grad + state)
	stay := min(most, n*rate[1]/(rate[0]+rate[1])) // both then take equally long
	return max(stay*rate[0], (n-stay)*rate[1])
}

// arithmetic returns the serial time of all forward and backward operators of a
// step, a lower bound on the compute stream.
func (s *search) arithmetic(b int) float64 {
	rows := b * s.graph.Seq
	var sum float64
	for i := range s.graph.Segments {
		seg := &s.graph.Segments[i]
		for _, nodes := range [][]graph.Node{seg.Forward, seg.Backward} {
			for k := range nodes {
				sum += s.m.Cost.Cost(s.call(&nodes[k], rows))
			}
		}
	}
	return sum * float64(s.batch/b)
}

// call returns a node's call on operands of the right extents, without addresses.
func (s *search) call(n *graph.Node, rows int) *device.Call {
	c := &device.Call{Op: n.Op, Attr: n.Attr, Stream: device.Compute}
	for _, d := range s.graph.Dims(n, rows, nil) {
		c.Args = append(c.Args, device.Operand{DType: d.DType, Rows: d.Rows, Cols: d.Cols, Stride: d.Cols})
	}
	return c
}
