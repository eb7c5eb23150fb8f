package session

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/plan"
)

// TestNetworkClosedForm is law L3 between ranks: what each rank receives in a
// step is what a formula says that knows nothing of programs, and what the
// programs' calls say. n replicas, m micro-batches each, V = 1 visit of a layer per
// pass if the micro-batches go through it together (layered gradient accumulation),
// m if one after the other:
//
//	shard     gathers per chunk and step              reductions
//	(none)    0                                       1 of all, to all
//	state     1, of updated weights                   1
//	grads     1                                       V
//	weights   2V for a layer, V for embedding, head   V
//
// With room for one layer's weights nothing stays from pass to pass; with room
// for the head besides, the last layer stays while the passes turn: 2L-1
// gathers of L layers.
func TestNetworkClosedForm(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	f := load(t, filepath.Join("../testdata/torch", "gpt2-untied", "config.json"))
	const sequences = 16
	f.deepen(t, 3, sequences)
	for _, ranks := range []int{2, 4} {
		for _, shard := range plan.Shardings() {
			for _, w := range []traffic{{1, 1, false}, {2, 1, false}, {4, 1, false}, {4, 4, false}, {4, 4, true}, {4, 2, true}} {
				if w.turn && shard != "weights" {
					continue
				}
				t.Run(fmt.Sprintf("%d ranks %q %+v", ranks, shard, w), func(t *testing.T) {
					pl := plan.Plain(f.graph, sequences/ranks/w.micros)
					pl.Ranks, pl.MicroBatches, pl.Group, pl.HeadRows = ranks, w.micros, w.group, f.graph.Seq
					for i := range pl.Chunks {
						pl.Chunks[i].Shard = shard
					}
					pl.Cache = pl.CacheNeeded(f.graph)
					if w.turn {
						pl.Cache += 4 * elements(f.graph, pl.Chunks[len(pl.Chunks)-1])
					}
					_, tr := f.train(t, pl, 1)
					for r, p := range f.lower(t, pl) {
						var calls [graph.NumOps]int64
						for _, c := range p.Calls() {
							calls[c.Op] += device.Received(&c, r)
						}
						want := w.network(f.graph, pl, r)
						if tr.network[r] != want || calls != want {
							t.Errorf("rank %d: received %v, its calls say %v, want %v", r, named(tr.network[r]), named(calls), named(want))
						}
					}
				})
			}
		}
	}
}

// traffic is how a rank's micro-batches are ordered, and whether a layer stays
// while the passes turn.
type traffic struct {
	micros, group int
	turn          bool
}

// network is the closed form, by operator.
func (w traffic) network(g *graph.Graph, pl *plan.Plan, rank int) (bytes [graph.NumOps]int64) {
	visits, n := int64(w.micros/w.group), pl.Ranks
	slots, terms := 0, 0
	for i, c := range pl.Chunks {
		all := elements(g, c)
		own, runs := shard(g, c, n, rank)
		layer := g.Params[c.First].Layer
		switch c.Shard {
		case "":
			part := all*int64(rank+1)/int64(n) - all*int64(rank)/int64(n)
			bytes[graph.AllReduce] += 4 * (all + int64(n-2)*part)
			if runs = 0; rank == 0 {
				runs = runsIn(g, c)
			}
		case "state":
			bytes[graph.ReduceScatter] += 4 * int64(n-1) * own
			bytes[graph.AllGather] += 4 * (all - own)
		case "grads":
			bytes[graph.ReduceScatter] += visits * 4 * int64(n-1) * own
			bytes[graph.AllGather] += 4 * (all - own)
		case "weights":
			gathers := 2 * visits
			if layer < 0 || layer >= g.Model.Layers || w.turn && i == len(pl.Chunks)-2 {
				gathers = visits
			}
			bytes[graph.ReduceScatter] += visits * 4 * int64(n-1) * own
			bytes[graph.AllGather] += gathers * 4 * (all - own)
		}
		slots += runs
		terms += runsIn(g, c)
	}
	bytes[graph.AllGather] += 8 * int64(terms-slots) // the norm: one number from each run
	return bytes
}

// elements of a chunk.
func elements(g *graph.Graph, c plan.Chunk) (n int64) {
	for _, p := range g.Params[c.First:c.Last] {
		n += p.Elems()
	}
	return n
}

// runsIn is how many runs a chunk has: its matrices, and its vectors together.
func runsIn(g *graph.Graph, c plan.Chunk) int {
	_, runs := shard(g, c, 1, 0)
	return runs
}

// shard is how many elements and runs of a chunk of small ones a rank of
// n has: they are divided between the runs nearest to even parts.
func shard(g *graph.Graph, c plan.Chunk, n, rank int) (elems int64, runs int) {
	ends, within := []int64{0}, plan.Runs(g)
	for i := c.First; i < c.Last; i++ {
		if last := &ends[len(ends)-1]; i > c.First && within[i] {
			*last += g.Params[i].Elems()
		} else {
			ends = append(ends, *last+g.Params[i].Elems())
		}
	}
	all := ends[len(ends)-1]
	cut := func(k int) int {
		best := 0
		for i, e := range ends {
			if d, least := e-all*int64(k)/int64(n), ends[best]-all*int64(k)/int64(n); max(d, -d) <= max(least, -least) {
				best = i
			}
		}
		return best
	}
	from, to := cut(rank), cut(rank+1)
	return ends[to] - ends[from], to - from
}

// named lists the operators that brought something.
func named(bytes [graph.NumOps]int64) (list []string) {
	for op, n := range bytes {
		if n > 0 {
			list = append(list, fmt.Sprintf("%v %d", graph.Op(op), n))
		}
	}
	slices.Sort(list)
	return list
}
