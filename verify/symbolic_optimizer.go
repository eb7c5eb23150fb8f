package verify

import (
	"slices"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/program"
)

// Symbolic execution of the optimizer, atom by atom, since other ranks and tiers cut
// updates and norms at other places.

// update works atom by atom. Its bf16 output is a cast of the new parameter unless that
// is rounded stochastically. Stochastic rounding depends on the operand types and on
// which elements they hold. Two halves count as the number that they form.
func (x *execution) update(in *program.Instr, args []box, rule *optimizer.Rule) {
	const p = 0
	state, g, p16, rest := len(rule.Moments)+1, rule.GradientAt(), rule.HalfWeightsAt(), rule.LowerHalvesAt()
	alone, chance, halves := *in, byChance(x.p, in, rule), halved(in, rule)
	if chance {
		alone.Attr.First = 0 // each atom's own is hashed
	}
	same := opValue(&alone)
	for j := rule.ClipAt(); j <= rule.ScalarsAt(); j++ {
		same = x.read(same, j, args[j], 0, args[j].blocks)
	}
	for j := range state {
		t := x.p.Buffers[in.Args[j].Buf].DType
		if j == p && halves {
			t = graph.F32
		}
		same = same.hashInts(j, int(t))
	}
	for b := range args[p].blocks {
		for k := range args[p].bands {
			h := same
			if chance {
				from, _ := x.columns(in.Args[p], args[p], k)
				h = h.hashInts(in.Attr.First+int(b)*x.p.RowUnit*in.Args[p].Cols+from, 0)
			}
			for j := range g + 1 {
				now := x.atom(j, args[j].at(b, k))
				if j == p && halves {
					now = joined(now, x.atom(rest, args[rest].at(b, k)), rule)
				}
				h = h.hashWith(now)
			}
			for j := range state {
				x.atoms[args[j].at(b, k)] = h.hashInts(j, 0)
			}
			if halves {
				whole := h.hashInts(p, 0)
				x.atoms[args[p].at(b, k)], x.atoms[args[rest].at(b, k)] = castValue(graph.BF16, whole), whole.lowerHalves()
			}
			if len(args) > p16 && args[p16].blocks > 0 {
				copied := h.hashInts(p16, 0)
				if x.p.Buffers[in.Args[p].Buf].DType == graph.F32 {
					copied = castValue(graph.BF16, h.hashInts(p, 0))
				}
				x.atoms[args[p16].at(b, k)] = copied
			}
		}
	}
}

// halved reports whether an update's weights are in halves, see optimizer.LowerHalves.
func halved(in *program.Instr, rule *optimizer.Rule) bool {
	return !in.Arg(rule.LowerHalvesAt()).Absent()
}

// joined returns the value of numbers stored in halves, or a value of its own if the halves are of different numbers.
func joined(upper, rest Value, rule *optimizer.Rule) Value {
	if whole := rest.lowerHalves(); castValue(graph.BF16, whole) == upper {
		return whole
	}
	return seedOp.hashInts(int(rule.Op), rule.LowerHalvesAt()).hashWith(upper).hashWith(rest)
}

// byChance reports whether an update rounds stochastically.
func byChance(p *program.Program, in *program.Instr, rule *optimizer.Rule) bool {
	stored := in.Args[:1+len(rule.Moments)]
	if halved(in, rule) {
		stored = stored[1:]
	}
	return slices.ContainsFunc(stored, func(r program.Region) bool { return p.Buffers[r.Buf].DType == graph.BF16 })
}

// normPart: a partial sum depends only on its piece of the gradient, so several
// instructions may share a gradient.
func (x *execution) normPart(in *program.Instr, args []box) {
	part, g := args[graph.NormPartPart], args[graph.NormPartGrad]
	pr, gr := in.Args[graph.NormPartPart], in.Args[graph.NormPartGrad]
	pb, gb := &x.p.Buffers[pr.Buf], &x.p.Buffers[gr.Buf]
	if gb.RowUnit > 0 || pb.RowUnit > 0 {
		x.dependOnAll(in, args)
		return
	}
	gBand := int(g.atom - x.ly.base[gr.Buf])
	pBand := int(part.atom - x.ly.base[pr.Buf])
	n := gr.Rows * gr.Cols
	for k := range part.bands {
		lo := (bandStart(pb, pBand+int(k)) - pr.Off) * graph.NormPiece
		hi := min((bandStart(pb, pBand+int(k)+1)-pr.Off)*graph.NormPiece, n)
		v := opValue(in).hashInts(hi-lo, 0)
		for a := range g.bands {
			start := bandStart(gb, gBand+int(a)) - gr.Off
			end := bandStart(gb, gBand+int(a)+1) - gr.Off
			if start < hi && lo < end {
				one := box{g.atom + a, g.step, 1, 1}
				v = x.read(v.hashInts(start-lo, end-start), graph.NormPartGrad, one, 0, 1)
			}
		}
		x.atoms[part.at(0, k)] = v
	}
}
