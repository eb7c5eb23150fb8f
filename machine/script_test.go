package machine

import (
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/model/family"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
)

// TestScript: a process takes the program of its rank as it was printed, and refuses one that it would print otherwise,
// one of which a part is missing, and those in which an instruction forgets its waits, which are races.
func TestScript(t *testing.T) {
	m, err := family.Typical("llama")
	if err != nil {
		t.Fatal(err)
	}
	m.Layers, m.Width, m.Heads, m.KVHeads, m.HeadDim, m.FeedForward, m.Vocab, m.MaxPositions = 2, 16, 2, 2, 8, 32, 32, 8
	g, err := graph.Build(m, 8, graph.F32)
	if err != nil {
		t.Fatal(err)
	}
	pl := plan.Plain(g, 2)
	pl.Ranks = 2
	for i := range pl.Chunks {
		pl.Chunks[i].Shard = "weights"
	}
	pl.Cache = pl.CacheNeeded(g)
	p, err := lower.Lower(t.Context(), g, pl, lower.Options{Rank: 1, Clip: 1, Capacity: program.NoLimits})
	if err != nil {
		t.Fatal(err)
	}
	read := func(text string) error {
		_, err := new(host).Script(text)
		return err
	}
	text := p.String()
	if err := read(text); err != nil {
		t.Fatal(err)
	}
	if err := read(strings.Replace(text, "rank 1\n", "rank 01\n", 1)); err == nil {
		t.Error("a text that is printed otherwise is taken")
	}
	if err := read(text[:len(text)/2]); err == nil {
		t.Error("half a program is taken")
	}
	refused, all := 0, 0
	for i := range p.Instrs {
		own := p.Instrs[i].Waits
		if len(own) == 0 {
			continue
		}
		all++
		p.Instrs[i].Waits = nil
		if err := read(p.String()); err != nil {
			refused++
		}
		p.Instrs[i].Waits = own
	}
	if refused < all || all == 0 {
		t.Errorf("%d of %d programs without a wait are refused", refused, all)
	}
}
