package lower

import (
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/program"
)

// Matrices that ranks share, see graph.BuildSlab. The graph says which values are sums over the ranks; here they become collectives.
// What each rank would add besides its term, a bias and the residual stream, only the first adds:
//
//	rank 0   linear y x w bias res | all_reduce y
//	rank 1   linear y x w          | all_reduce y
//
// Known weakness: the compute stream has nothing to do while a sum travels, unless other micro-batches run beside it.

// shareMatrices gives the sums over ranks their peers.
func shareMatrices(b *builder, units []unit) {
	n := b.st.g.Shared()
	if n == 1 {
		return
	}
	first := b.st.rank / n * n
	peers := make([]int, n)
	for i := range peers {
		peers[i] = first + i
	}
	for i := range units {
		work := units[i].work
		for k, o := range work {
			if o.in.Op != graph.AllReduce {
				continue
			}
			o.in.Stream, o.in.Peers, o.in.Key.Dir = device.Collective, peers, program.Transfer
			if b.st.rank > first {
				dropTerms(work[:k], o.refs[graph.AllReduceX])
			}
		}
	}
}

// dropTerms leaves out what the product of which r is the result adds to it.
func dropTerms(work []*op, r ref) {
	for _, o := range work {
		if o.in.Op != graph.Linear || o.refs[graph.LinearY] != r {
			continue
		}
		for _, k := range []int{graph.LinearBias, graph.LinearRes} {
			if k < len(o.refs) {
				o.set(k, program.Region{})
			}
		}
	}
}
