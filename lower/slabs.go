package lower

import (
	"slices"

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
// In a mixture of experts, these are the residual stream, which the feed-forward beside the experts adds if there is one, the biases of
// what experts compute, and in the backward pass the gradients that come from these biases and from the loss term that evens out how
// experts are used.
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
	if b.st.rank == first {
		return
	}
	forSums(units, func(work []*op, sum *op) { b.dropResidual(work, sum.refs[graph.AllReduceX]) })
	for i := range units {
		for _, o := range units[i].work {
			if o.in.Op == graph.RouteBwd && len(o.refs) > graph.RouteBwdScalars {
				o.set(graph.RouteBwdScalars, program.Region{})
				o.in.Attr.Scale = 0
			}
		}
	}
}

// dropResidual leaves the residual stream out of a term.
func (b *builder) dropResidual(work []*op, y ref) {
	for _, o := range work {
		switch {
		case o.in.Op == graph.Linear && o.refs[graph.LinearY] == y && len(o.refs) > graph.LinearRes:
			o.set(graph.LinearRes, program.Region{})
		case o.in.Op == graph.Combine && o.refs[graph.CombineY] == y && b.st.g.Model.Shared > 0:
			b.dropResidual(work, o.refs[graph.CombineRes])
		case o.in.Op == graph.Combine && o.refs[graph.CombineY] == y:
			o.set(graph.CombineRes, program.Region{})
		}
	}
}

// dropBiases leaves biases out of all terms but the first rank's. All ranks have fetched them by now: what the cache of weights
// holds, and so the order in which they are gathered, must be the same on all.
func dropBiases(b *builder, units []unit, homes []weightHome) {
	if b.st.rank%b.st.g.Shared() == 0 {
		return
	}
	forSums(units, func(work []*op, sum *op) { b.dropBias(work, sum.refs[graph.AllReduceX]) })
	for i := range units {
		units[i].work = dropFromRouter(units[i].work)
	}
	b.forgetUnread(units, homes)
}

// forgetUnread gives up the memory of chunks that are not updated and that nothing reads. A program that runs beside another has those
// that the other has.
func (b *builder) forgetUnread(units []unit, homes []weightHome) {
	read := make([]bool, len(b.p.Buffers))
	for i := range units {
		for _, list := range [][]*op{units[i].before, units[i].work, units[i].after} {
			for _, o := range list {
				for _, a := range o.in.Args {
					read[a.Buf] = read[a.Buf] || !a.Absent()
				}
			}
		}
	}
	for c, h := range homes {
		if h.work.buf < 0 || b.st.updates() && !b.st.frozen(c) {
			continue
		}
		buf := &b.p.Buffers[h.work.buf]
		forget := !read[h.work.buf]
		if base := b.st.opt.Base; base != nil {
			forget = forget && !slices.ContainsFunc(base.Buffers, func(other program.Buffer) bool { return other.Persistent && other.Name == buf.Name })
		}
		if forget {
			buf.Persistent, buf.Init = false, nil
			b.p.Homes = slices.DeleteFunc(b.p.Homes, func(home program.Home) bool { return home.Region.Buf == h.work.buf })
		}
	}
}

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

// dropBias leaves biases, and positions, out of a term.
func (b *builder) dropBias(work []*op, y ref) {
	for _, o := range work {
		switch {
		case o.in.Op == graph.Linear && o.refs[graph.LinearY].partOf(y) && len(o.refs) > graph.LinearBias:
			o.set(graph.LinearBias, program.Region{})
		case o.in.Op == graph.Embed && o.refs[graph.EmbedX].partOf(y) && len(o.refs) > graph.EmbedWPE:
			o.set(graph.EmbedWPE, program.Region{})
		case o.in.Op == graph.Combine && o.refs[graph.CombineY].partOf(y):
			b.dropBias(work, o.refs[graph.CombineX])
		case o.in.Op == graph.ExpertLinear && o.refs[graph.ExpertLinearY].partOf(y) && len(o.refs) > graph.ExpertLinearBias:
			for k := graph.ExpertLinearBias; k < len(o.refs); k++ {
				o.set(k, program.Region{})
			}
		}
	}
}

// partOf reports whether a reference is to some rows of another: what is added up over ranks may have been computed tile by tile.
func (r ref) partOf(of ref) bool {
	return r.instance() == of.instance() && r.lo == of.lo && r.hi == of.hi && r.row >= of.row && r.row+r.rows <= of.row+of.rows
}

// dropFromRouter leaves out the gradients of experts' weights that come from biases, to which others are added.
func dropFromRouter(work []*op) []*op {
	var sums []ref
	for _, o := range work {
		if o.in.Op == graph.SwiGLUBwd && o.in.Attr.Acc {
			o.in.Attr.Acc = false
			sums = append(sums, o.refs[graph.SwiGLUBwdDWeights])
		}
	}
	return slices.DeleteFunc(work, func(o *op) bool {
		return o.in.Op == graph.ExpertLinear && slices.Contains(sums, o.refs[graph.ExpertLinearY])
	})
}
