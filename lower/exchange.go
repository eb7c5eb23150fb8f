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
// With fewer key heads than ranks, neighbours get the same one, each for other queries. Each then has a term of its gradient in fp32, which go
// to the ranks that have the rows, where they are added up in the order of ranks and rounded once:
//
//	ranks         0 1 2 3
//	heads of q    0 1 2 3
//	heads of kv   0 0 1 1     dkv 0 = 0's + 1's, dkv 1 = 2's + 3's
//
// Nothing hides what the first heads wait for, except in the backward pass the product before.
//
// Known weakness: what the forward pass has exchanged is exchanged again for the backward pass. A key head for several ranks is sent by itself to
// each, and so are its gradient's terms.

// attends reports whether an operator is attention, or its backward pass.
func attends(op graph.Op) bool { return op == graph.Attention || op == graph.AttentionBwd }

// bandOf is what is exchanged of an operand: these columns of the value, in groups of which a rank gets one, next to each other in its buffer
// from a column on.
type bandOf struct{ lo, hi, groups, at int }

// cols returns the columns of a group.
func (b bandOf) cols() int { return (b.hi - b.lo) / b.groups }

// crossed is an operator on all rows of some heads, with what gives its results back, and what adds up those that are terms.
type crossed struct {
	attend *op
	back   []*op
	sums   []*op
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
	var late []*op // sums of the part before: their terms are on their way while attention works on the next
	byParts(s, gather, func(_ int, _ headPart, c crossed) {
		s.add(c.attend)
		s.add(c.back...)
		s.add(late...)
		late = c.sums
	})
	s.add(late...)
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
	keys := graph.KeyParts(o.in.Attr.KVHeads/h.of, ranks)
	attend := *o
	attend.in.Args, attend.refs = append([]program.Region(nil), o.in.Args...), append([]ref(nil), o.refs...)
	attend.in.Attr.Seq, attend.in.Attr.Among, attend.in.Attr.Acc = s.st.g.Whole, 0, false
	attend.in.Attr.Heads, attend.in.Attr.KVHeads = o.in.Attr.Heads/(h.of*ranks), o.in.Attr.KVHeads/(h.of*keys)
	attend.takeSinks(headPart{h.k*ranks + s.part, h.of * ranks})
	c := crossed{attend: &attend}
	for j, spec := range o.in.Op.Info().Args {
		if j >= len(o.refs) || o.refs[j].value < 0 || !spec.Token {
			continue
		}
		r := o.refs[j]
		r.row, r.rows = n*s.st.g.Seq, s.st.g.Seq
		dtype := s.st.g.Values[r.value].DType
		bands := h.bandsOf(o.in.Op, j, r, ranks, keys)
		if bands == nil { // not divided by heads
			if starts[n].Absent() {
				starts[n] = s.p.BufferRegion(s.crossBuffer(r, []bandOf{{r.lo, r.hi, 1, 0}}, dtype, s.st.g.Whole, h))
				s.add(s.allToAll(o, starts[n], none, program.Region{}, r))
			}
			attend.set(j, starts[n])
			continue
		}
		terms := o.in.Op == graph.AttentionBwd && j == graph.AttentionBwdDKV && keys < ranks
		if terms {
			dtype = graph.F32
		}
		all := s.p.BufferRegion(s.crossBuffer(r, bands, dtype, s.st.g.Whole, h))
		attend.set(j, all)
		for _, b := range bands {
			own, here := r, all
			own.lo, own.hi = b.lo, b.hi
			here.Off, here.Cols = here.Off+b.at, b.cols()
			switch {
			case terms:
				s.sumTerms(&c, o, b, here, own, h)
			case spec.Access == graph.Read:
				s.add(s.allToAll(o, here, none, program.Region{}, own))
			case o.in.Op != graph.AttentionBwd || j != graph.AttentionBwdDelta || s.st.g.Model.Sinks: // only the gradient of sinks reads delta
				c.back = append(c.back, s.allToAll(o, program.Region{}, own, here, none))
			}
		}
	}
	return c
}

// sumTerms adds what brings together the terms of the gradients of a band of keys or values, which this rank has for one of the key heads in
// here, and adds them up where the rows are, for the value that own refers to.
func (s *sharing) sumTerms(c *crossed, o *op, b bandOf, here program.Region, own ref, h headPart) {
	ranks := s.st.g.Parts()
	list := make([]bandOf, ranks)
	for k := range list {
		list[k] = bandOf{0, b.cols(), 1, k * b.cols()}
	}
	terms := s.p.BufferRegion(s.crossBuffer(own, list, graph.F32, own.rows, h))
	c.back = append(c.back, s.allToAll(o, terms, none, here, none))
	term := func(k int) program.Region {
		at := terms
		at.Off, at.Cols = k*b.cols(), b.cols()
		return at
	}
	store := graph.Copy
	if s.st.g.Values[own.value].DType != graph.F32 {
		store = graph.Cast
	}
	each := ranks / b.groups
	for g := range b.groups {
		for k := 1; k < each; k++ {
			c.sums = append(c.sums, s.local(graph.Add, o, term(g*each), term(g*each+k), none, none))
		}
		to := own
		to.lo, to.hi = b.lo+g*b.cols(), b.lo+(g+1)*b.cols()
		c.sums = append(c.sums, s.local(store, o, program.Region{}, term(g*each), to, none))
	}
}

// bandsOf returns the columns of operand j, which r refers to, that ranks exchange of a part of the heads; nil if it is not divided by heads.
// Queries have a group for each rank, keys so many.
func (h headPart) bandsOf(op graph.Op, j int, r ref, ranks, keys int) (list []bandOf) {
	at := 0
	add := func(lo, hi, groups int) {
		lo, hi = h.columns(lo, hi)
		b := bandOf{lo, hi, groups, at}
		list, at = append(list, b), at+b.cols()
	}
	for _, k := range byHeads[op].whole {
		if k == j {
			add(r.lo, r.hi, ranks)
		}
	}
	for _, k := range byHeads[op].halves {
		if k == j {
			mid := (r.lo + r.hi) / 2
			add(r.lo, mid, keys)
			add(mid, r.hi, keys)
		}
	}
	return list
}

// crossBuffer allocates a buffer for some rows of a group of each band.
func (s *sharing) crossBuffer(r ref, bands []bandOf, dtype graph.DType, rows int, h headPart) int {
	v := &s.st.g.Values[r.value]
	class := program.ClassActivations
	switch v.Kind {
	case graph.Gradient:
		class = program.ClassActGrads
	case graph.Input:
		class = program.ClassInputs
	}
	buf := program.Buffer{Name: instanceName(v.Name+".all", instance{value: r.value, micro: r.micro, copy: r.copy}), Tier: device.DeviceTier,
		Class: class, DType: dtype, Rows: rows, RowUnit: s.p.RowUnit}
	if h.of > 1 {
		buf.Name += "." + strconv.Itoa(h.k)
	}
	for _, b := range bands {
		if b.at > 0 {
			buf.Cuts = append(buf.Cuts, b.at)
		}
		buf.Cols += b.cols()
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
