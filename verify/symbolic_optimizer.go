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
	state, g, rest := len(rule.Moments)+1, rule.GradientAt(), rule.LowerHalvesAt()
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
	if !rule.Elementwise {
		x.wholeUpdate(in, args, rule, same)
		return
	}
	for b := range args[p].blocks {
		for k := range args[p].bands {
			h := same
			if chance {
				from, _ := x.columns(in.Args[p], args[p], k)
				h = h.hashInts(in.Attr.First+int(b)*x.p.RowUnit*in.Args[p].Cols+from, 0)
			}
			whole, mask := x.ofKept(in, args, rule, at{b, k})
			for j := range g + 1 {
				now := whole(x.atom(j, args[j].at(b, k)))
				if j == p && halves {
					now = joined(now, whole(x.atom(rest, args[rest].at(b, k))), rule)
				}
				h = h.hashWith(now)
			}
			x.updated(in, args, rule, at{b, k}, h)
			x.keepUpdated(in, args, rule, at{b, k}, mask)
		}
	}
}

// at is an atom's place in an operand: its row block and band.
type at struct{ block, band int32 }

// updated sets one atom of each result of an update, given the value of what it depends on.
func (x *execution) updated(in *program.Instr, args []box, rule *optimizer.Rule, i at, h Value) {
	const p = 0
	for j := range 1 + len(rule.Moments) {
		x.atoms[args[j].at(i.block, i.band)] = h.hashInts(j, 0)
	}
	p16, rest := rule.HalfWeightsAt(), rule.LowerHalvesAt()
	if halved(in, rule) {
		whole := h.hashInts(p, 0)
		x.atoms[args[p].at(i.block, i.band)], x.atoms[args[rest].at(i.block, i.band)] = castValue(graph.BF16, whole), whole.lowerHalves()
	}
	if len(args) > p16 && args[p16].blocks > 0 {
		copied := h.hashInts(p16, 0)
		if x.p.Buffers[in.Args[p].Buf].DType == graph.F32 {
			copied = castValue(graph.BF16, h.hashInts(p, 0))
		}
		x.atoms[args[p16].at(i.block, i.band)] = copied
	}
}

// wholeUpdate: every element of the results depends on all elements of weights, moments and gradient. same is the value of
// what else they depend on. What is left in the room to work in nobody may read.
func (x *execution) wholeUpdate(in *program.Instr, args []box, rule *optimizer.Rule, same Value) {
	const p = 0
	halves, rest := halved(in, rule), rule.LowerHalvesAt()
	h := same.hashInts(in.Args[p].Rows, in.Args[p].Cols)
	for j := range rule.GradientAt() + 1 {
		for b := range args[j].blocks {
			for k := range args[j].bands {
				now := x.atom(j, args[j].at(b, k))
				if j == p && halves {
					now = joined(now, x.atom(rest, args[rest].at(b, k)), rule)
				}
				h = h.hashWith(now)
			}
		}
	}
	for b := range args[p].blocks {
		for k := range args[p].bands {
			x.updated(in, args, rule, at{b, k}, h.hashInts(int(b), int(k)))
		}
	}
	room := args[rule.WorkAt()]
	for b := range room.blocks {
		for k := range room.bands {
			x.atoms[room.at(b, k)] = h.hashInts(rule.WorkAt(), int(k))
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
	return slices.ContainsFunc(stored, func(r program.Region) bool {
		d := p.Buffers[r.Buf].DType
		return d == graph.BF16 || d == graph.I8
	})
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
