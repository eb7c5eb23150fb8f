package search

import (
	"context"
	"fmt"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/plan"
)

// Tables on the host. An embedding that is not trained is only looked up, so the device needs a row for each token of a step instead of
// the table: the host's cores look them up, and they cross the link (plan.Chunk.Lookup). What that frees may keep activations or the
// weights of layers.
//
// Example: Gemma 4 E2B with adapters on 4-bit weights has a table of 4.7 GB, of which the 8192 tokens of a step need 147 MB.
//
// Known weaknesses: it is tried for the best few placements only, after these were chosen with tables on the device, unless a table takes
// so much of the device that it is never there. Each rank of a host has a copy of its own.

// tableShare is the inverse of the share of the device's memory that tables must take to be tried on the host: smaller ones would cost
// more time to try than they gain. largeTables is that at which nothing else is tried.
const (
	tableShare  = 32
	largeTables = 2
)

// tableBytes returns the bytes of the model's tables.
func tableBytes(g *graph.Graph) (sum int64) {
	for i := range g.Params {
		if g.Table(i) {
			sum += g.Stored(i).Bytes()
		}
	}
	return sum
}

// mayMoveTables reports whether tables that take at least an inverse share of the device may be on the host.
func mayMoveTables(p *problem, share int64) bool {
	pins := &p.req.Pins
	return p.machine.Shared == 0 && p.machine.Capacity[device.HostTier] > 0 && !pins.placesChunks() && pins.Policy == "" &&
		tableBytes(p.graph) > p.machine.Capacity[device.DeviceTier]/share
}

// moveTables tries all placements with tables on the host for the micro-batches of the best candidates, unless the best has all that it
// can have on the device.
func moveTables(ctx context.Context, p *problem, found shortlist) (shortlist, error) {
	const most = 3
	if found[0].roomy() || p.tables || !mayMoveTables(p, tableShare) {
		return found, nil
	}
	e := newEnumeration(withTablesOnHost(p), found, fastestPlan)
	seen := map[string]bool{}
	for _, c := range found {
		ch := choice{b: c.choice.b, group: c.choice.group, tables: true, short: c.choice.short}
		key := fmt.Sprint(ch)
		if seen[key] || len(seen) == most {
			continue
		}
		seen[key] = true
		if err := e.tryPlacements(ctx, ch); err != nil {
			return nil, err
		}
	}
	return e.found, nil
}

// withTablesOnHost returns the same problem, except that bounds take tables to be on the host.
func withTablesOnHost(p *problem) *problem {
	other := *p
	other.tables = true
	other.frozen -= float64(tableBytes(p.graph) / p.graph.Narrowest().Size())
	return &other
}

// tablesToHost puts the chunks that are tables on the host.
func tablesToHost(g *graph.Graph, chunks []plan.Chunk) {
	for i := range chunks {
		if c := &chunks[i]; c.Tables(g) {
			c.Weights, c.Shard, c.Lookup = device.HostTier, "", plan.LookupOnHost
		}
	}
}
