package plan

import (
	"fmt"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
)

// Batch says where a batch of the sequences that are generated together has what it keeps (FlexGen, 2303.06865). The weights of a
// layer come to the device once for all batches, if Plan.Group is all micro-batches; the price is that each
// batch's caches, and its hidden states between layers, must be somewhere meanwhile.
type Batch struct {
	Cache  device.Tier `json:"cache"`            // keys and values of all layers, between their uses
	Attend string      `json:"attend,omitempty"` // who attends to them: AttendOnHost, or the device if it is left out
	Hidden device.Tier `json:"hidden"`           // what layers hand to the next: device or host
}

// AttendOnHost is a value of Batch.Attend: the host's cores attend to caches that are not on the device, so that these need not cross the link.
const AttendOnHost = "host"

// InBatches is Plain for n batches of sequences, each of the given number of micro-batches, one after the other.
func InBatches(g *graph.Graph, n, each int) *Plan {
	pl := Plain(g, 1)
	pl.MicroBatches, pl.Batches = n*each, make([]Batch, n)
	return pl
}

// BatchOf returns the number of the batch of a micro-batch.
func (pl *Plan) BatchOf(micro int) int { return micro * len(pl.Batches) / pl.MicroBatches }

// BatchAt returns the batch of a micro-batch: of the one on the device if none are listed.
func (pl *Plan) BatchAt(micro int) Batch {
	if len(pl.Batches) == 0 {
		return Batch{}
	}
	return pl.Batches[pl.BatchOf(micro)]
}

func (pl *Plan) validateBatches(g *graph.Graph) error {
	switch n := len(pl.Batches); {
	case n == 0:
		return nil
	case g.Context == 0 || g.Slots == 0:
		return fmt.Errorf("plan: batches are of sequences that are generated together, which this graph does not do; hint: leave out batches")
	case pl.MicroBatches%n != 0:
		return fmt.Errorf("plan: %d batches do not divide micro_batches %d; hint: give each batch as many micro-batches", n, pl.MicroBatches)
	}
	for i, b := range pl.Batches {
		switch {
		case b.Attend != "" && b.Attend != AttendOnHost:
			return fmt.Errorf("plan: batch %d: attend cannot be %q; hint: use %q, or leave it out to attend on the device", i, b.Attend, AttendOnHost)
		case b.Attend != "" && b.Cache == device.DeviceTier:
			return fmt.Errorf("plan: batch %d: attend %q, but its caches are on the device; hint: leave out attend", i, b.Attend)
		case b.Cache > device.DiskTier:
			return fmt.Errorf("plan: batch %d: caches cannot be on %v; hint: use device, host or disk", i, b.Cache)
		case b.Hidden > device.HostTier:
			return fmt.Errorf("plan: batch %d: hidden states cannot be on %v; hint: use device or host", i, b.Hidden)
		}
	}
	return nil
}
