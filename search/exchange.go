package search

import (
	"context"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/plan"
)

// What ranks that share sequences exchange: keys, which travel, or heads (see plan.Plan.Exchange).
//
// Approach. The two differ in the bytes that are sent, in what of them hides behind attention, and in the memory of a layer's attention, but
// not in anything else that is decided. So the search is for keys, and then its best plans are tried with heads instead, and divided anew if
// that is faster.

const (
	// mostParts bounds the parts of heads.
	mostParts = 64
	// headParts is in how many parts a rank exchanges its heads, if they are so many: what is sent for the first waits for nothing to hide it.
	headParts = 4
)

// setExchange decides what is exchanged, and in how many parts: what a rank holds of the whole sequence, with the gradients, should not
// dominate the device's memory.
func (r *Request) setExchange(pl *plan.Plan, ch choice, memory int64) {
	g, most := r.Graph, memory/keyShare
	pl.Exchange, pl.KVParts, pl.KVEager = "", r.Pins.KVParts, false
	if g.Parts() == 1 {
		return
	}
	bytes, ranks, least := g.KeyBytes(), 1, 1
	if ch.heads || r.Pins.Exchange == plan.ExchangeHeads {
		pl.Exchange = plan.ExchangeHeads
		bytes, ranks, least = g.CrossBytes(g.Parts()), g.Parts(), headParts
	} else {
		pl.KVEager = ch.st.eager
	}
	if pl.KVParts > 0 {
		return
	}
	parts := 1
	for n := 2; n <= mostParts && (n <= least || bytes/int64(parts) > most); n++ {
		if g.DividesHeads(n*ranks) || ranks > 1 && graph.ExchangesHeads(g, n) && bytes/int64(parts) > most {
			parts = n
		}
	}
	if parts > 1 {
		pl.KVParts = parts
	}
}

// exchangeHeads tries the fastest plans with heads exchanged, where keys have travelled.
func exchangeHeads(ctx context.Context, p *problem, found shortlist) (shortlist, error) {
	const tried = 2
	n := p.graph.Parts()
	if n == 1 || p.req.Pins.Exchange != "" || !graph.ExchangesHeads(p.graph, p.req.Pins.KVParts) {
		return found, nil
	}
	for _, c := range found[:min(len(found), tried)] {
		if c.choice.b == 0 { // somebody else has decided
			continue
		}
		ch := c.choice
		ch.heads = true
		other, err := p.evaluate(ctx, ch)
		if err == nil && !other.Fits {
			other, err = newBalancing(p, c).leastRecomputation(ctx, ch, 1)
		}
		if err == nil && other != nil {
			err = other.simulate(p.machine)
		}
		if err != nil {
			return nil, err
		}
		if other == nil {
			continue
		}
		faster := other.Seconds() < found[0].Seconds()
		if found = found.add(other); faster && !p.req.Sketch {
			if found, err = polish(ctx, p, found, []*Candidate{other}); err != nil {
				return nil, err
			}
		}
	}
	return found, nil
}
