package lower

import (
	"slices"
	"strconv"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/program"
)

// Sequences that ranks share, see graph.BuildPart. A rank's rows of a sequence are runs of consecutive tokens. Two kinds of
// operators know where a token is in its sequence:
//
//	embed, rope, pos_bwd  depend on positions: one call per run
//	attention             a run's queries are a slice of their sequence, with the keys and values of all tokens up to its end
//
// So attention needs the keys and values of other ranks. They are brought together for each use, and then forgotten:
//
//	compute    copy own | attention of the first run | of the second
//	send       own runs to the ranks that see them
//	recv       the runs that this rank sees
//
// In the backward pass the same happens again, and each rank sends the gradients of the keys and values that it saw to the
// ranks that own them, which add them up in fp32: their own contribution first, then those of the ranks before it, in turn.
//
// In its k-th turn a rank sends to the k-th rank after it and receives from the k-th before it, so the two meet.
//
// With plan.Plan.KVParts all this is done for some heads at a time, so that no rank holds the keys and values of all heads of a layer, as
// 2407.21783 does: what is exchanged for the next heads is on its way while attention works on these.
//
// Known weakness: nothing is computed for the first heads until their keys are there, unless other work is. A window does not spare keys
// outside it.

// shareSequences divides these operators by runs, and adds the messages.
func shareSequences(b *builder, units []unit) {
	if b.st.g.Parts() == 1 {
		return
	}
	s := &sharing{builder: b, part: b.st.rank % b.st.g.Parts()}
	for i := range units {
		u := &units[i]
		s.work = make([]*op, 0, 2*len(u.work))
		for _, o := range u.work {
			switch {
			case o.in.Op.Info().Position:
				s.positioned(o)
			case o.in.Op == graph.Attention:
				s.attention(o)
			case o.in.Op == graph.AttentionBwd:
				s.attentionBwd(o)
			default:
				s.add(o)
			}
		}
		u.work = s.work
	}
}

// sharing adds what shared sequences need to the work of units.
type sharing struct {
	*builder
	part      int   // of each sequence, that this rank has
	work      []*op // of the unit at hand
	exchanges int   // so far: they are the same on all ranks
}

func (s *sharing) add(list ...*op) { s.work = append(s.work, list...) }

// end returns the number of tokens of a sequence that a part sees: those up to the end of its last run.
func (s *sharing) end(part int) int {
	runs := s.st.g.Runs(part)
	return runs[len(runs)-1].End()
}

// stretch is a run of one sequence, as rows of a micro-batch.
type stretch struct {
	graph.Run
	row int // of the micro-batch
}

// stretches returns the runs of the n-th sequence of a micro-batch.
func (s *sharing) stretches(n int) (list []stretch) {
	row := n * s.st.g.Seq
	for _, r := range s.st.g.Runs(s.part) {
		list = append(list, stretch{r, row})
		row += r.Rows
	}
	return list
}

// slice returns the operator on the tokens of a stretch only.
func (s *sharing) slice(o *op, t stretch) *op {
	c := *o
	c.in.Args, c.refs = slices.Clone(o.in.Args), slices.Clone(o.refs)
	c.in.Attr.Seq, c.in.Attr.Among = s.st.g.Whole, 0
	for k, spec := range o.in.Op.Info().Args {
		if k < len(c.refs) && c.refs[k].value >= 0 && spec.Token {
			c.refs[k].row, c.refs[k].rows = t.row, t.Rows
		}
	}
	return &c
}

// positioned adds an operator that depends on positions, for those of its rows that are in each run.
func (s *sharing) positioned(o *op) {
	specs := o.in.Op.Info().Args
	token := slices.IndexFunc(specs, func(a graph.ArgSpec) bool { return a.Token })
	all := o.refs[token]
	for n := range s.st.pl.MicroBatch {
		for _, t := range s.stretches(n) {
			skip := max(all.row-t.row, 0)
			t.row, t.At = t.row+skip, t.At+skip
			if t.Rows = min(t.Rows-skip, all.row+all.rows-t.row); t.Rows <= 0 {
				continue
			}
			c := s.slice(o, t)
			c.in.Attr.Row0 = t.At
			s.add(c)
		}
	}
}

// byParts calls attend for each part of the heads of each sequence, with the keys and values that this rank sees. While it attends with
// one part, the next is on its way.
func (s *sharing) byParts(o *op, keys int, attend func(n int, h headPart, kv int)) {
	parts := max(s.st.pl.KVParts, 1)
	all := s.st.pl.MicroBatch * parts
	at := func(i int) (n int, h headPart) { return i / parts, headPart{i % parts, parts} }
	gather := func(i int) int {
		n, h := at(i)
		return s.gather(o, o.refs[keys], n, h)
	}
	next := gather(0)
	for i := range all {
		kv := next
		if i+1 < all && parts > 1 {
			next = gather(i + 1)
		}
		n, h := at(i)
		attend(n, h, kv)
		if i+1 < all && parts == 1 {
			next = gather(i + 1)
		}
	}
}

// attention adds attention of each run.
func (s *sharing) attention(o *op) {
	s.byParts(o, graph.AttentionKV, func(n int, h headPart, kv int) {
		for _, t := range s.stretches(n) {
			c := s.slice(o, t)
			c.takeHeads(h)
			c.set(graph.AttentionKV, s.tokens(kv, 0, t.End()))
			s.add(c)
		}
	})
}

// attentionBwd adds its backward pass. Runs are in descending order: so the last one, which sees all, begins the sums. With
// plan.Plan.KVEager what other ranks send of a part's gradients arrives while attention works on the next part, after which it is added.
func (s *sharing) attentionBwd(o *op) {
	var late []*op
	defer func() { s.add(late...) }()
	s.byParts(o, graph.AttentionBwdKV, func(n int, h headPart, kv int) {
		dkv := s.newTokenBuffer(o.refs[graph.AttentionBwdDKV], s.end(s.part), graph.F32, h)
		for k, t := range slices.Backward(s.stretches(n)) {
			c := s.slice(o, t)
			c.takeHeads(h)
			c.in.Attr.Acc = k < len(s.st.g.Runs(s.part))-1
			c.set(graph.AttentionBwdKV, s.tokens(kv, 0, t.End()))
			c.set(graph.AttentionBwdDKV, s.tokens(dkv, 0, t.End()))
			s.add(c)
		}
		s.add(late...)
		late = s.scatter(o, dkv, n, h)
	})
}

// set replaces operand k.
func (o *op) set(k int, r program.Region) { o.in.Args[k], o.refs[k] = r, none }

// newTokenBuffer allocates a buffer for a part's keys and values of tokens 0 to rows of a sequence, or for their gradients.
func (s *sharing) newTokenBuffer(r ref, rows int, t graph.DType, h headPart) int {
	v := &s.st.g.Values[r.value]
	class := program.ClassActivations
	if v.Kind == graph.Gradient {
		class = program.ClassActGrads
	}
	buf := program.Buffer{Name: instanceName(v.Name+".kv", instance{value: r.value, micro: r.micro, copy: r.copy}), Tier: device.DeviceTier,
		Class: class, DType: t, Rows: rows, Cols: (r.hi - r.lo) / h.of, RowUnit: s.p.RowUnit}
	if h.of > 1 {
		buf.Name += "." + strconv.Itoa(h.k)
		buf.Cuts = []int{buf.Cols / 2}
		return s.buffer(buf)
	}
	for _, c := range v.Cuts {
		if c > r.lo && c < r.hi {
			buf.Cuts = append(buf.Cuts, c-r.lo)
		}
	}
	return s.buffer(buf)
}

// tokens returns the region of tokens [from, to) in a buffer that begins with token 0.
func (s *sharing) tokens(buf, from, to int) program.Region {
	return subRegion(s.p, buf, ref{row: from, rows: to - from, hi: s.p.Buffers[buf].Cols})
}

// bands lists what is copied between a part's buffer of keys and values, r's columns in it, and the value that has those of all heads.
func (s *sharing) bands(buf int, t stretch, r ref, h headPart) (list []struct {
	here program.Region
	all  ref
}) {
	add := func(from, to, lo, hi int) {
		here, all := ref{row: t.At, rows: t.Rows, lo: from, hi: to}, r.at(t)
		all.lo, all.hi = lo, hi
		list = append(list, struct {
			here program.Region
			all  ref
		}{subRegion(s.p, buf, here), all})
	}
	cols := s.p.Buffers[buf].Cols
	if h.of == 1 {
		add(0, cols, r.lo, r.hi)
		return list
	}
	mid := (r.lo + r.hi) / 2
	for k, half := range [][2]int{{r.lo, mid}, {mid, r.hi}} {
		lo, hi := h.columns(half[0], half[1])
		add(k*cols/2, (k+1)*cols/2, lo, hi)
	}
	return list
}

// gather brings together a part's keys and values, operand r of o, that this rank sees of the n-th sequence.
func (s *sharing) gather(o *op, r ref, n int, h headPart) (buf int) {
	end := s.end(s.part)
	buf = s.newTokenBuffer(r, end, s.st.g.Values[r.value].DType, h)
	for _, t := range s.stretches(n) {
		for _, band := range s.bands(buf, t, r, h) {
			s.add(s.local(graph.Copy, o, band.here, program.Region{}, none, band.all))
		}
	}
	s.exchange(func(to int) {
		for k, t := range s.st.g.Runs(s.part) {
			if t.At < s.end(to) {
				s.send(o, to, k, s.tokens(buf, t.At, t.End()))
			}
		}
	}, func(from int) {
		for k, t := range s.st.g.Runs(from) {
			if t.At < end {
				s.receive(o, from, k, s.tokens(buf, t.At, t.End()))
			}
		}
	})
	return buf
}

// scatter adds up gradients of a part's keys and values of the n-th sequence where these are owned, and stores them there. It returns the
// operators that do so, if they are to come later than the messages.
func (s *sharing) scatter(o *op, buf, n int, h headPart) (late []*op) {
	sum := func(of *op) {
		if s.st.pl.KVEager {
			late = append(late, of)
		} else {
			s.add(of)
		}
	}
	r, end, own := o.refs[graph.AttentionBwdDKV], s.end(s.part), s.st.g.Runs(s.part)
	s.exchange(func(to int) {
		for k, t := range s.st.g.Runs(to) {
			if t.At < end {
				s.send(o, to, k, s.tokens(buf, t.At, t.End()))
			}
		}
	}, func(from int) {
		for k, t := range own {
			if t.At < s.end(from) {
				part := s.p.BufferRegion(s.newTokenBuffer(r, t.Rows, graph.F32, h))
				s.receive(o, from, k, part)
				sum(s.local(graph.Add, o, s.tokens(buf, t.At, t.End()), part, none, none))
			}
		}
	})
	store := graph.Copy
	if s.st.g.Values[r.value].DType != graph.F32 {
		store = graph.Cast
	}
	for _, t := range s.stretches(n) {
		for _, band := range s.bands(buf, t, r, h) {
			sum(s.local(store, o, program.Region{}, band.here, band.all, none))
		}
	}
	return late
}

// at refers to the same columns of the rows of a stretch.
func (r ref) at(t stretch) ref {
	r.row, r.rows = t.row, t.Rows
	return r
}

// local returns an operator of two operands that belongs to the work of o. An operand is a region, or refers to a value.
func (s *sharing) local(of graph.Op, o *op, dst, src program.Region, to, from ref) *op {
	return &op{in: program.Instr{Op: of, Stream: device.Compute, Key: o.in.Key, Args: []program.Region{dst, src}}, refs: []ref{to, from}}
}

// exchange adds the messages of all turns: those to one rank, and those from another. A rank whose partner is before it receives
// first: so even ranks that do one thing at a time do not wait for each other for ever.
func (s *sharing) exchange(send, receive func(part int)) {
	n := s.st.g.Parts()
	for k := 1; k < n; k++ {
		to, from := (s.part+k)%n, (s.part+n-k)%n
		if to > s.part {
			send(to)
			receive(from)
		} else {
			receive(from)
			send(to)
		}
	}
	s.exchanges++
}

// send adds the message with a run to the rank of another part, for operator o.
func (s *sharing) send(o *op, to, run int, r program.Region) {
	s.message(o, graph.Send, to, s.tag(s.part, to, run), r)
}

// receive adds its other end.
func (s *sharing) receive(o *op, from, run int, r program.Region) {
	s.message(o, graph.Recv, from, s.tag(from, s.part, run), r)
}

// tag numbers the messages between two ranks.
func (s *sharing) tag(from, to, run int) int {
	tag := 4*s.exchanges + 2*run
	if from > to {
		tag++
	}
	return tag
}

func (s *sharing) message(o *op, end graph.Op, part, tag int, r program.Region) {
	stream := device.Send
	if end == graph.Recv {
		stream = device.Recv
	}
	key := o.in.Key
	key.Dir = program.Transfer
	s.add(&op{in: program.Instr{Op: end, Stream: stream, Key: key, Args: []program.Region{r}, Peers: []int{s.st.rank - s.part + part}, Tag: tag}})
}
