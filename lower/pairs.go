package lower

import (
	"slices"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
)

// Losses of pairs by ranks that share sequences: a pair's documents are sequences' runs of tokens, of which several ranks have some. Four numbers
// a token say all that the loss needs, so each rank gets those of whole sequences, computes what one rank would, and keeps its own rows:
//
//	all_to_all     nll, reference, targets, starts    own rows > all rows
//	preference     loss, ratios, weights of all rows
//	copy           all rows > own rows
//
// So sums over a document's tokens have the order of one rank, and each loss counts once, on the rank that has the first token of the chosen
// document. Sums per document would be fewer bytes, but of another order, and each rank would have to know of which documents others have tokens.

// wholePairs adds a loss of pairs of whole sequences.
func (s *sharing) wholePairs(o *op) {
	for n := range s.st.pl.MicroBatch {
		whole := *o
		whole.in.Args, whole.refs = slices.Clone(o.in.Args), slices.Clone(o.refs)
		whole.in.Attr.Seq = s.st.g.Whole
		var own []*op
		for j, spec := range o.in.Op.Info().Args[:len(o.refs)] { // verdicts may be absent
			r := o.refs[j]
			r.row, r.rows = n*s.st.g.Seq, s.st.g.Seq
			all := s.crossBuffer(r, []bandOf{{r.lo, r.hi, 1, 0}}, s.st.g.Values[r.value].DType, s.st.g.Whole, headPart{0, 1})
			whole.set(j, s.p.BufferRegion(all))
			if spec.Access == graph.Read {
				s.add(s.allToAll(o, s.p.BufferRegion(all), none, program.Region{}, r))
				continue
			}
			for _, t := range s.stretches(n) {
				here := subRegion(s.p, all, ref{row: t.At, rows: t.Rows, hi: r.hi - r.lo})
				own = append(own, s.local(graph.Copy, o, program.Region{}, here, r.at(t), none))
			}
		}
		s.add(&whole)
		s.add(own...)
	}
}

// ratioMaker returns which operator writes a pair's ratios, and as which operand.
func ratioMaker(pl *plan.Plan) (graph.Op, int) {
	if pl.Parts() > 1 {
		return graph.Copy, graph.CopyDst
	}
	return graph.Preference, graph.PreferenceRatios
}
