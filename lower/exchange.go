package lower

import (
	"slices"
	"strconv"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/program"
)

// Attention by ranks that exchange heads (DeepSpeed-Ulysses, 2309.14509), with plan.Plan.Exchange.
//
// A rank gives away its rows of the other ranks' heads and gets theirs of its own heads, attends to whole sequences, and gives the
// results back:
//
//	all_to_all     q, k, v    rows of all heads > all rows of some heads
//	attention
//	all_to_all     o          all rows of some heads > rows of all heads
//
// The backward pass exchanges q, k, v, o, do and the softmax's denominators, and gives dq, dk and dv back. Each head is one rank's, so no sum
// is divided: gradients of keys are added up in the order of one rank.
//
// With plan.Plan.KVParts each rank works on some of its heads at a time (UPipe, 2602.21196): copies of all rows are of so many heads, and
// those of the next are on their way behind attention to these. Of p parts for n ranks, part k is the k-th run of heads of p, of which each rank
// has an n-th, so what is exchanged is one band of columns:
//
//	heads    0 1 2 3 | 4 5 6 7       2 parts, 4 ranks
//	ranks    0 1 2 3   0 1 2 3
//
// Nothing hides what the first heads wait for, except in the backward pass the product before.
//
// Known weakness: what the forward pass has exchanged is exchanged again for the backward pass. Ranks need as many key heads.

// attends reports whether an operator is attention, or its backward pass.
func attends(op graph.Op) bool { return op == graph.Attention || op == graph.AttentionBwd }

// bandOf is what is exchanged of an operand: these columns of the value, next to each other in a rank's buffer from a column on.
type bandOf struct{ lo, hi, at int }

// crossed is an operator on all rows of some heads, with what gives its results back.
type crossed struct {
	attend *op
	back   []*op
}

// exchangeHeads adds attention of all rows of a rank's heads.
func (s *sharing) exchangeHeads(o *op) {
	starts := make([]program.Region, s.st.pl.MicroBatch) // of documents: the same for all heads
	first := len(s.work)
	gather := func(n int, h headPart) crossed {
		c := s.cross(o, n, h, starts)
		if n == 0 && h.k == 0 {
			s.exchangeEarly(o, first)
		}
		return c
	}
	byParts(s, gather, func(_ int, _ headPart, c crossed) {
		s.add(c.attend)
		s.add(c.back...)
	})
}

// exchangeEarly moves what brings together the first part's operands of a backward pass, from the unit's given operator on, ahead of the one
// that computes the gradient of attention's result, which then hides it, as far as they are there by then.
func (s *sharing) exchangeEarly(o *op, from int) {
	if o.in.Op != graph.AttentionBwd {
		return
	}
	do := o.refs[graph.AttentionBwdDO].instance()
	at := from - 1
	for at >= 0 && !s.work[at].writes(do) {
		at--
	}
	if at < 0 {
		return
	}
	var early, late []*op
	for _, c := range s.work[from:] {
		src := c.refs[graph.AllToAllSrc].instance()
		if slices.ContainsFunc(s.work[at:from], func(o *op) bool { return o.writes(src) }) {
			late = append(late, c)
		} else {
			early = append(early, c)
		}
	}
	s.work = slices.Concat(s.work[:at], early, s.work[at:from], late)
}

// writes reports whether an operator writes an instance of a value.
func (o *op) writes(value instance) bool {
	specs := o.in.Op.Info().Args
	for k, r := range o.refs {
		if r.value >= 0 && r.instance() == value && specs[k].Access != graph.Read {
			return true
		}
	}
	return false
}

// cross adds what brings together all rows of the n-th sequence of a part of the rank's heads.
func (s *sharing) cross(o *op, n int, h headPart, starts []program.Region) crossed {
	ranks := s.st.g.Parts()
	attend := *o
	attend.in.Args, attend.refs = append([]program.Region(nil), o.in.Args...), append([]ref(nil), o.refs...)
	attend.in.Attr.Seq, attend.in.Attr.Among, attend.in.Attr.Acc = s.st.g.Whole, 0, false
	attend.in.Attr.Heads, attend.in.Attr.KVHeads = o.in.Attr.Heads/(h.of*ranks), o.in.Attr.KVHeads/(h.of*ranks)
	attend.takeSinks(headPart{h.k*ranks + s.part, h.of * ranks})
	c := crossed{attend: &attend}
	for j, spec := range o.in.Op.Info().Args {
		if j >= len(o.refs) || o.refs[j].value < 0 || !spec.Token {
			continue
		}
		r := o.refs[j]
		r.row, r.rows = n*s.st.g.Seq, s.st.g.Seq
		bands := h.bandsOf(o.in.Op, j, r, ranks)
		if bands == nil { // not divided by heads
			if starts[n].Absent() {
				starts[n] = s.p.BufferRegion(s.crossBuffer(r, []bandOf{{r.lo, r.hi, 0}}, 1, h))
				s.add(s.allToAll(o, starts[n], none, program.Region{}, r))
			}
			attend.set(j, starts[n])
			continue
		}
		all := s.p.BufferRegion(s.crossBuffer(r, bands, ranks, h))
		attend.set(j, all)
		for _, b := range bands {
			own, here := r, all
			own.lo, own.hi = b.lo, b.hi
			here.Off, here.Cols = here.Off+b.at, (b.hi-b.lo)/ranks
			switch {
			case spec.Access == graph.Read:
				s.add(s.allToAll(o, here, none, program.Region{}, own))
			case o.in.Op != graph.AttentionBwd || j != graph.AttentionBwdDelta || s.st.g.Model.Sinks: // only the gradient of sinks reads delta
				c.back = append(c.back, s.allToAll(o, program.Region{}, own, here, none))
			}
		}
	}
	return c
}

// bandsOf returns the columns of operand j, which r refers to, that ranks exchange of a part of the heads; nil if it is not divided by heads.
func (h headPart) bandsOf(op graph.Op, j int, r ref, ranks int) (list []bandOf) {
	add := func(lo, hi int) {
		at := 0
		for _, b := range list {
			at += (b.hi - b.lo) / ranks
		}
		lo, hi = h.columns(lo, hi)
		list = append(list, bandOf{lo, hi, at})
	}
	for _, k := range byHeads[op].whole {
		if k == j {
			add(r.lo, r.hi)
		}
	}
	for _, k := range byHeads[op].halves {
		if k == j {
			mid := (r.lo + r.hi) / 2
			add(r.lo, mid)
			add(mid, r.hi)
		}
	}
	return list
}

// crossBuffer allocates a buffer for all rows of a rank's part of each band.
func (s *sharing) crossBuffer(r ref, bands []bandOf, ranks int, h headPart) int {
	v := &s.st.g.Values[r.value]
	class := program.ClassActivations
	switch v.Kind {
	case graph.Gradient:
		class = program.ClassActGrads
	case graph.Input:
		class = program.ClassInputs
	}
	buf := program.Buffer{Name: instanceName(v.Name+".all", instance{value: r.value, micro: r.micro, copy: r.copy}), Tier: device.DeviceTier,
		Class: class, DType: v.DType, Rows: s.st.g.Whole, RowUnit: s.p.RowUnit}
	if h.of > 1 {
		buf.Name += "." + strconv.Itoa(h.k)
	}
	for _, b := range bands {
		if b.at > 0 {
			buf.Cuts = append(buf.Cuts, b.at)
		}
		buf.Cols += (b.hi - b.lo) / ranks
	}
	return s.buffer(buf)
}

// allToAll exchanges rows for heads, or heads for rows, among the ranks that share the sequence. One operand refers to a value.
func (s *sharing) allToAll(o *op, dst program.Region, to ref, src program.Region, from ref) *op {
	key := o.in.Key
	key.Dir = program.Transfer
	return &op{in: program.Instr{Op: graph.AllToAll, Stream: device.Collective, Key: key, Args: []program.Region{dst, src}, Peers: s.sharers()}, refs: []ref{to, from}}
}

// sharers returns the ranks that share this one's sequences, of which each has the same of matrices.
func (s *sharing) sharers() []int {
	if s.peers == nil {
		for part := range s.st.g.Parts() {
			s.peers = append(s.peers, s.st.rank+(part-s.part)*s.st.g.Shared())
		}
	}
	return s.peers
}
