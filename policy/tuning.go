package policy

import "slices"

// Tuning is what a user of these systems sets by hand. The zero value is what was
// published: the whole batch at once, every layer checkpointed.
type Tuning struct {
	// Accumulation is the number of micro-batches whose gradients are accumulated, one
	// after the other through all layers; 0: 1.
	Accumulation int `json:"accumulation"`
	// Kept is the number of last layers that are not checkpointed.
	Kept int `json:"kept_layers"`
}

// keptParts is how finely Tunings divides layers into those that are checkpointed and
// those that are not.
const keptParts = 8

// Tunings lists the settings worth trying: all numbers of micro-batches that divide the
// batch, and from no layer checkpointed to all, in eighths of them.
func (r *Request) Tunings() (list []Tuning) {
	layers := r.Graph.Model.Layers
	for n := 1; n <= r.Sequences; n++ {
		cut := n == 1 || r.Graph.CutsAt(r.Sequences/n*r.Graph.Seq) // see program.Plan.Validate
		if r.Sequences%n != 0 || !cut {
			continue
		}
		for part := keptParts; part >= 0; part-- {
			list = append(list, Tuning{n, layers * part / keptParts})
		}
	}
	return slices.Compact(list)
}

// checkpointed is the number of first layers that are.
func (r *Request) checkpointed() int { return r.Graph.Model.Layers - r.Kept }

// Published reports whether the settings are those that were published.
func (t Tuning) Published() bool { return t.Accumulation <= 1 && t.Kept == 0 }
