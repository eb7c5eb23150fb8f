package policy

import (
	"slices"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/plan"
)

// Tuning holds what users of these systems set by hand. The zero value is the published
// setting: the whole batch at once, every layer checkpointed, no chunk exempt from a
// policy's offloading.
type Tuning struct {
	// Accumulation is the number of micro-batches whose gradients are accumulated, each
	// run through all layers before the next; 0 means 1.
	Accumulation int `json:"accumulation"`
	// Kept is the number of last layers that are not checkpointed.
	Kept int `json:"kept_layers"`
	// Resident is the number of leading chunks that are not offloaded, if Policy.Partial.
	Resident int `json:"resident_chunks"`
}

// tuningParts is how finely the numbers of checkpointed layers and of offloaded chunks are
// varied: in steps of 1/tuningParts of the total.
const tuningParts = 8

// Tunings lists, for each accumulation that divides the batch, the tunings from no layer
// checkpointed to all of them. The first list ends with the published setting.
func (r *Request) Tunings() (list [][]Tuning) {
	for n := 1; n <= r.Sequences; n++ {
		cut := n == 1 || r.Graph.CutsAt(r.Sequences/n*r.Graph.Seq) // see plan.Plan.Validate
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

// Residents lists the values to try for Tuning.Resident, in ascending order.
func (p *Policy) Residents(r *Request) []int {
	if !p.Partial {
		return []int{0}
	}
	return parts(len(r.base().Chunks))
}

// parts returns the multiples of n/tuningParts from 0 to n, rounded down.
func parts(n int) (list []int) {
	for k := range tuningParts + 1 {
		list = append(list, n*k/tuningParts)
	}
	return slices.Compact(list)
}

// checkpointed returns the number of leading layers that are checkpointed.
func (r *Request) checkpointed() int { return r.Graph.Model.Layers - r.Kept }

// partly returns a policy that does not offload the first Tuning.Resident chunks, as with
// DeepSpeed's setting offload_optimizer.ratio.
func partly(decide func(*Request) (*plan.Plan, error)) func(*Request) (*plan.Plan, error) {
	return func(r *Request) (*plan.Plan, error) {
		pl, err := decide(r)
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
