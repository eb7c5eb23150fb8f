package policy

import (
	"slices"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/program"
)

// Tuning is what users of these systems set by hand. The zero value is what was
// published: the whole batch at once, every layer checkpointed, all that a policy
// offloads offloaded.
type Tuning struct {
	// Accumulation is the number of micro-batches whose gradients are accumulated, each
	// through all layers before the next; 0: 1.
	Accumulation int `json:"accumulation"`
	// Kept is the number of last layers that are not checkpointed.
	Kept int `json:"kept_layers"`
	// Resident is the number of first chunks that are not offloaded, where Policy.Partial.
	Resident int `json:"resident_chunks"`
}

// tuningParts is how finely layers are divided into those that are checkpointed and those
// that are not, and chunks into those that are offloaded and those that are not.
const tuningParts = 8

// Tunings lists, for each accumulation that divides the batch, from no layer checkpointed
// to all: the first of them ends with what was published.
func (r *Request) Tunings() (list [][]Tuning) {
	for n := 1; n <= r.Sequences; n++ {
		cut := n == 1 || r.Graph.CutsAt(r.Sequences/n*r.Graph.Seq) // see program.Plan.Validate
		if r.Sequences%n != 0 || !cut {
			continue
		}
		var each []Tuning
		for _, kept := range slices.Backward(parts(r.Graph.Model.Layers)) {
			each = append(each, Tuning{Accumulation: n, Kept: kept})
		}
		list = append(list, each)
	}
	return list
}

// Residents lists how many chunks may stay on the device, from few to many.
func (p *Policy) Residents(r *Request) []int {
	if !p.Partial {
		return []int{0}
	}
	return parts(len(r.base().Chunks))
}

// parts are the multiples of a part of n, from 0 to n.
func parts(n int) (list []int) {
	for k := range tuningParts + 1 {
		list = append(list, n*k/tuningParts)
	}
	return slices.Compact(list)
}

// checkpointed is the number of first layers that are.
func (r *Request) checkpointed() int { return r.Graph.Model.Layers - r.Kept }

// partly is a policy of which the first chunks are not offloaded, as with DeepSpeed's
// setting offload_optimizer.ratio.
func partly(plan func(*Request) (*program.Plan, error)) func(*Request) (*program.Plan, error) {
	return func(r *Request) (*program.Plan, error) {
		pl, err := plan(r)
		if err != nil {
			return nil, err
		}
		for i := range r.Resident {
			c := &pl.Chunks[i]
			c.Weights, c.Grads, c.State = device.DeviceTier, device.DeviceTier, device.DeviceTier
		}
		return pl, nil
	}
}
