package lower

import (
	"slices"
	"strconv"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
)

// Sequences that ranks share, see graph.BuildPart. Where matrices are shared, too, the ranks with the same slab share sequences. A rank's rows of a sequence are runs of consecutive tokens. Two kinds of
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
// With a window only the keys within it travel.
//
// With plan.Plan.Exchange ranks exchange heads instead, see exchange.go. Losses of pairs are in pairs.go.
//
// Known weakness: nothing is computed for the first heads until their keys are there, unless other work is. With documents a window does
// not spare keys outside it.

// shareSequences divides these operators by runs, and adds the messages.
func shareSequences(b *builder, units []unit) {
	if b.st.g.Parts() == 1 {
		return
	}
	s := &sharing{builder: b, part: b.st.part()}
	for i := range units {
		u := &units[i]
		s.work = make([]*op, 0, 2*len(u.work))
		for _, o := range u.work {
			switch {
			case o.in.Op.Info().Position:
				s.positioned(o)
			case attends(o.in.Op) && s.st.pl.Exchange == plan.ExchangeHeads:
				s.exchangeHeads(o)
			case o.in.Op == graph.Attention:
				s.attention(o)
			case o.in.Op == graph.AttentionBwd:
				s.attentionBwd(o)
			case o.in.Op == graph.Preference:
				s.wholePairs(o)
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
	peers     []int // the ranks that share the sequences, see sharers
}

func (s *sharing) add(list ...*op) { s.work = append(s.work, list...) }

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

// byParts calls attend for each part of the heads of each sequence, with what gather returns for it. While one part is attended to, the next
// is on its way.
func byParts[T any](s *sharing, gather func(n int, h headPart) T, attend func(n int, h headPart, gathered T)) {
	parts := max(s.st.pl.KVParts, 1)
	all := s.st.pl.MicroBatch * parts
	at := func(i int) (n int, h headPart) { return i / parts, headPart{i % parts, parts} }
	next := gather(at(0))
	for i := range all {
		here := next
		if i+1 < all && parts > 1 {
			next = gather(at(i + 1))
		}
		n, h := at(i)
		attend(n, h, here)
		if i+1 < all && parts == 1 {
			next = gather(at(i + 1))
		}
	}
}

// attention adds attention of each run.
func (s *sharing) attention(o *op) {
	byParts(s, s.gatherer(o, graph.AttentionKV), func(n int, h headPart, kv []keyBuffer) {
		for k, t := range s.stretches(n) {
			c := s.slice(o, t)
			c.takeHeads(h)
			c.set(graph.AttentionKV, s.keysOf(kv, k, t.End()))
			s.add(c)
		}
	})
}

// attentionBwd adds its backward pass. Runs are in descending order: so the last one, which sees all, begins the sums. With
// plan.Plan.KVEager what other ranks send of a part's gradients arrives while attention works on the next part, after which it is added.
func (s *sharing) attentionBwd(o *op) {
	var late []*op
	defer func() { s.add(late...) }()
	byParts(s, s.gatherer(o, graph.AttentionBwdKV), func(n int, h headPart, kv []keyBuffer) {
		dkv := s.newKeyBuffers(o, o.refs[graph.AttentionBwdDKV], graph.F32, h)
		begun := map[int]bool{}
		for k, t := range slices.Backward(s.stretches(n)) {
			c := s.slice(o, t)
			c.takeHeads(h)
			c.set(graph.AttentionBwdKV, s.keysOf(kv, k, t.End()))
			c.set(graph.AttentionBwdDKV, s.keysOf(dkv, k, t.End()))
			buf := c.in.Args[graph.AttentionBwdDKV].Buf
			c.in.Attr.Acc, begun[buf] = begun[buf], true
			s.add(c)
		}
		s.add(late...)
		late = s.scatter(o, dkv, n, h)
	})
}

// keySpan is a range of keys that some of a rank's runs see.
type keySpan struct {
	graph.Run
	runs []int
}

// spans returns the keys that the runs of a part see: all up to the end of the last one or, with a window, what is within it, from a
// multiple of graph.KeyCut on. A rank's runs then may see keys that are apart.
func (s *sharing) spans(o *op, part int) []keySpan {
	runs, window := s.st.g.Runs(part), o.in.Attr.Window
	last := len(runs) - 1
	from := func(k int) int {
		if window == 0 || s.st.g.Documents != nil { // where documents begin is counted from the sequence's first token
			return 0
		}
		unit := graph.KeyCut * s.p.RowUnit / plan.GCD(graph.KeyCut, s.p.RowUnit)
		return max(0, runs[k].At-window+1) / unit * unit
	}
	if from(last) <= runs[0].End() {
		return []keySpan{{graph.Run{At: from(0), Rows: runs[last].End() - from(0)}, []int{0, last}}}
	}
	var list []keySpan
	for k, r := range runs {
		list = append(list, keySpan{graph.Run{At: from(k), Rows: r.End() - from(k)}, []int{k}})
	}
	return list
}

// both returns the tokens that are in two ranges; no rows if there are none.
func both(a, b graph.Run) graph.Run {
	at := max(a.At, b.At)
	return graph.Run{At: at, Rows: max(0, min(a.End(), b.End())-at)}
}

// keyBuffer holds keys and values of a part of the heads, or their gradients, of a span.
type keyBuffer struct {
	keySpan
	buf int
}

// newKeyBuffers allocates a buffer for each of this rank's spans.
func (s *sharing) newKeyBuffers(o *op, r ref, t graph.DType, h headPart) (list []keyBuffer) {
	for k, sp := range s.spans(o, s.part) {
		list = append(list, keyBuffer{sp, s.newTokenBuffer(r, sp.Rows, t, h, k)})
	}
	return list
}

// of returns the buffer with the keys that a run sees, its own among them.
func of(list []keyBuffer, run int) keyBuffer {
	return list[slices.IndexFunc(list, func(b keyBuffer) bool { return slices.Contains(b.runs, run) })]
}

// keysOf returns the keys that a run sees, up to token end.
func (s *sharing) keysOf(list []keyBuffer, run, end int) program.Region {
	b := of(list, run)
	return s.tokens(b, graph.Run{At: b.At, Rows: end - b.At})
}

// set replaces operand k.
func (o *op) set(k int, r program.Region) { o.in.Args[k], o.refs[k] = r, none }

// newTokenBuffer allocates a buffer for a part's keys and values of the tokens of the k-th span, or of some of them, or for their gradients.
func (s *sharing) newTokenBuffer(r ref, rows int, t graph.DType, h headPart, k int) int {
	v := &s.st.g.Values[r.value]
	class := program.ClassActivations
	if v.Kind == graph.Gradient {
		class = program.ClassActGrads
	}
	buf := program.Buffer{Name: instanceName(v.Name+".kv", instance{value: r.value, micro: r.micro, copy: r.copy}), Tier: device.DeviceTier,
		Class: class, DType: t, Rows: rows, Cols: (r.hi - r.lo) / h.of, RowUnit: s.p.RowUnit}
	if k > 0 {
		buf.Name += "+" + strconv.Itoa(k)
	}
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

// tokens returns the region of tokens in a span's buffer.
func (s *sharing) tokens(b keyBuffer, t graph.Run) program.Region {
	return subRegion(s.p, b.buf, ref{row: t.At - b.At, rows: t.Rows, hi: s.p.Buffers[b.buf].Cols})
}

// bands lists what is copied between a part's buffer of keys and values, r's columns in it, and the value that has those of all heads.
func (s *sharing) bands(b keyBuffer, t stretch, r ref, h headPart) (list []struct {
	here program.Region
	all  ref
}) {
	add := func(from, to, lo, hi int) {
		here, all := ref{row: t.At - b.At, rows: t.Rows, lo: from, hi: to}, r.at(t)
		all.lo, all.hi = lo, hi
		list = append(list, struct {
			here program.Region
			all  ref
		}{subRegion(s.p, b.buf, here), all})
	}
	cols := s.p.Buffers[b.buf].Cols
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

// gatherer returns gather for operand j of o.
func (s *sharing) gatherer(o *op, j int) func(n int, h headPart) []keyBuffer {
	return func(n int, h headPart) []keyBuffer { return s.gather(o, o.refs[j], n, h) }
}

// gather brings together a part's keys and values, operand r of o, that this rank sees of the n-th sequence.
func (s *sharing) gather(o *op, r ref, n int, h headPart) []keyBuffer {
	list := s.newKeyBuffers(o, r, s.st.g.Values[r.value].DType, h)
	for k, t := range s.stretches(n) {
		for _, band := range s.bands(of(list, k), t, r, h) {
			s.add(s.local(graph.Copy, o, band.here, program.Region{}, none, band.all))
		}
	}
	own := s.st.g.Runs(s.part)
	s.exchange(func(to int) {
		s.pieces(s.spans(o, to), own, func(number, _, run int, t graph.Run) {
			s.send(o, to, number, s.tokens(of(list, run), t))
		})
	}, func(from int) {
		s.pieces(s.spans(o, s.part), s.st.g.Runs(from), func(number, span, _ int, t graph.Run) {
			s.receive(o, from, number, s.tokens(list[span], t))
		})
	})
	return list
}

// pieces visits what some runs have of some spans, with a number for each.
func (s *sharing) pieces(spans []keySpan, runs []graph.Run, visit func(number, span, run int, t graph.Run)) {
	for a, sp := range spans {
		for k, r := range runs {
			if t := both(sp.Run, r); t.Rows > 0 {
				visit(a*len(runs)+k, a, k, t)
			}
		}
	}
}

// scatter adds up gradients of a part's keys and values of the n-th sequence where these are owned, and stores them there. It returns the
// operators that do so, if they are to come later than the messages.
func (s *sharing) scatter(o *op, list []keyBuffer, n int, h headPart) (late []*op) {
	sum := func(of *op) {
		if s.st.pl.KVEager {
			late = append(late, of)
		} else {
			s.add(of)
		}
	}
	r, own := o.refs[graph.AttentionBwdDKV], s.st.g.Runs(s.part)
	s.exchange(func(to int) {
		s.pieces(s.spans(o, s.part), s.st.g.Runs(to), func(number, span, _ int, t graph.Run) {
			s.send(o, to, number, s.tokens(list[span], t))
		})
	}, func(from int) {
		s.pieces(s.spans(o, from), own, func(number, _, run int, t graph.Run) {
			part := s.p.BufferRegion(s.newTokenBuffer(r, t.Rows, graph.F32, h, 0))
			s.receive(o, from, number, part)
			sum(s.local(graph.Add, o, s.tokens(of(list, run), t), part, none, none))
		})
	})
	store := graph.Copy
	if s.st.g.Values[r.value].DType != graph.F32 {
		store = graph.Cast
	}
	for k, t := range s.stretches(n) {
		for _, band := range s.bands(of(list, k), t, r, h) {
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

// send adds the message with a piece to the rank of another part, for operator o.
func (s *sharing) send(o *op, to, number int, r program.Region) {
	s.message(o, graph.Send, to, s.tag(s.part, to, number), r)
}

// receive adds its other end.
func (s *sharing) receive(o *op, from, number int, r program.Region) {
	s.message(o, graph.Recv, from, s.tag(from, s.part, number), r)
}

// tag numbers the messages between two ranks: of an exchange there are at most four in each direction, two runs of two spans.
func (s *sharing) tag(from, to, number int) int {
	tag := 8*s.exchanges + 2*number
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
	s.add(&op{in: program.Instr{Op: end, Stream: stream, Key: key, Args: []program.Region{r}, Peers: []int{s.st.rank + (part-s.part)*s.st.g.Shared()}, Tag: tag}})
}
