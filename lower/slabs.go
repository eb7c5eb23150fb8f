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

// shareMatrices gives the sums over ranks their peers, and leaves the residual stream out of all terms but the first rank's.
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
	forSums(units, func(work []*op, sum *op) {
		sum.in.Stream, sum.in.Peers, sum.in.Key.Dir = device.Collective, peers, program.Transfer
	})
	b.dropFromTerms(units, graph.LinearRes)
}

// dropBiases leaves biases out of all terms but the first rank's. All ranks have fetched them by now: what the cache of weights
// holds, and so the order in which they are gathered, must be the same on all.
func dropBiases(b *builder, units []unit) { b.dropFromTerms(units, graph.LinearBias) }

// forSums visits the sums over ranks that share matrices, each with the work of its unit that comes before.
func forSums(units []unit, visit func(work []*op, sum *op)) {
	for i := range units {
		work := units[i].work
		for k, o := range work {
			if o.in.Op == graph.AllReduce {
				visit(work[:k], o)
			}
		}
	}
}

// dropFromTerms leaves out an operand of the products that sums over ranks add up, but on the first rank.
func (b *builder) dropFromTerms(units []unit, operand int) {
	if n := b.st.g.Shared(); b.st.rank%n == 0 {
		return
	}
	forSums(units, func(work []*op, sum *op) {
		for _, o := range work {
			if o.in.Op == graph.Linear && o.refs[graph.LinearY] == sum.refs[graph.AllReduceX] && operand < len(o.refs) {
				o.set(operand, program.Region{})
			}
		}
	})
}
