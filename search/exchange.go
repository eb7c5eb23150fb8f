package search

import (
	"context"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/plan"
)

// What ranks that share sequences exchange: keys, which travel, or heads (see plan.Plan.Exchange).
//
// Approach. The two differ in the bytes that are sent, in what of them hides behind attention, and in the memory of a layer's attention, but
// not in anything else that is decided. So the search is for what moves fewer bytes, and then its best plans are tried with the other, and
// divided anew if that is faster.

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

// headsFirst reports whether a search begins with plans that exchange heads: if nobody has decided it, and they move fewer bytes. Of each
// layer, and of each token that a rank has, it then receives the other ranks' queries, keys and values and gives back the result; where keys
// travel, it receives keys and values of all tokens, or of those within a window before each of its two runs.
func headsFirst(p *problem) bool {
	g := p.graph
	n := int64(g.Parts())
	if n == 1 || p.untimed || p.req.Pins.Exchange != "" || !graph.ExchangesHeads(g, p.req.Pins.KVParts) {
		return false
	}
	var keys, heads int64
	for s := range g.Segments {
		for _, node := range g.Segments[s].Forward {
			if node.Op != graph.Attention {
				continue
			}
			q, kv, all := node.Args[graph.AttentionQ], node.Args[graph.AttentionKV], int64(g.Sequence())
			seen := all
			if w := int64(node.Attr.Window); w > 0 && g.Documents == nil {
				seen = min(all, 2*w)
			}
			groups := graph.KeyParts(node.Attr.KVHeads, int(n))
			keys += n * seen * int64(kv.Hi-kv.Lo)
			heads += all * (2*int64(q.Hi-q.Lo) + n*int64(kv.Hi-kv.Lo)/int64(groups))
		}
	}
	return heads < keys
}

// tryOtherExchange tries the fastest plans with heads exchanged where keys have travelled, and the other way around. Keys take no less
// arithmetic than heads, so they can only win what computing waits for, which must be worth long programs.
func tryOtherExchange(ctx context.Context, p *problem, found shortlist) (shortlist, error) {
	const tried, waits = 2, 0.005
	n := p.graph.Parts()
	if n == 1 || p.req.Pins.Exchange != "" || !graph.ExchangesHeads(p.graph, p.req.Pins.KVParts) {
		return found, nil
	}
	for _, c := range found[:min(len(found), tried)] {
		if c.choice.b == 0 || c.choice.heads && c.Idle() < waits { // somebody else has decided, or it would win nothing
			continue
		}
		other, err := otherExchange(ctx, p, c)
		if err != nil {
			return nil, err
		}
		if other == nil || other.missing > 0 {
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

// otherExchange returns, simulated, a candidate's plan with heads exchanged instead of keys or the other way around, with as little recomputation as
// fits; nil if none does. Its step stays shortened if it is no faster then, since programs in which keys travel are long.
func otherExchange(ctx context.Context, p *problem, c *Candidate) (*Candidate, error) {
	ch := c.choice
	ch.heads, ch.short = !ch.heads, shortens(p.batch/ch.b, ch.group)
	other, err := p.evaluate(ctx, ch)
	if err == nil && !other.Fits {
		other, err = newBalancing(p, c).leastRecomputation(ctx, ch, 1)
	}
	if err != nil || other == nil {
		return nil, err
	}
	if err := other.simulate(p.machine); err != nil || other.missing == 0 || other.Seconds() >= c.Seconds() {
		return other, err
	}
	return lengthen(ctx, p, other.choice)
}
