package plan

import (
	"fmt"

	"github.com/athanor-llm/athanor/graph"
)

// ExchangeHeads is Plan.Exchange of ranks that exchange heads; ExchangeKeys is what users call the other way.
const (
	ExchangeHeads = "heads"
	ExchangeKeys  = "keys"
)

// HeadParts returns in how many parts heads are attended to, by one rank after the other or by several: 1 if all at once.
func (pl *Plan) HeadParts() int {
	parts := max(pl.KVParts, 1)
	if pl.Exchange == ExchangeHeads {
		parts *= pl.Parts()
	}
	return parts
}

// validateExchange checks that ranks can exchange what they are to.
func (pl *Plan) validateExchange(g *graph.Graph) error {
	switch {
	case pl.Exchange == "" && pl.Pipeline != nil && pl.Parts() > 1: // either message would wait for the other in the same stream
		return fmt.Errorf("plan: the ranks of a pipeline that share sequences cannot send each other keys between the pipeline's messages; hint: set exchange to %s", ExchangeHeads)
	case pl.Exchange == "":
		return nil
	case pl.Exchange != ExchangeHeads:
		return fmt.Errorf("plan: exchange %q is not known; hint: use %s, or leave it out", pl.Exchange, ExchangeHeads)
	case g.Parts() == 1:
		return fmt.Errorf("plan: exchange is %q, but no ranks share sequences; hint: leave it out", pl.Exchange)
	case !graph.ExchangesHeads(g, pl.KVParts):
		return fmt.Errorf("plan: heads cannot be divided among %d ranks in %d parts each; hint: leave out exchange or kv_parts", g.Parts(), max(pl.KVParts, 1))
	}
	return nil
}
