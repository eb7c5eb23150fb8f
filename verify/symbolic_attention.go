package verify

import (
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/program"
)

// Symbolic execution of attention. It is causal, so a block of rows has the same value
// in whatever slice of its sequence it is computed:
//
//	o, dq of block b  H(q b, kv 0, .., kv b)
//	dkv of block j    H(q j, kv j, .. H(q b-1, kv j, H(q b, kv j, 0))), a chain
//	                  over the blocks of queries that see it, the last one
//	                  first: slices in descending order continue it
//
// An fp32 dkv holds the exact partial sums and may be cast to bf16 after the last one.
// A bf16 dkv is rounded by every call, which gives another value.
//
// Heads are independent of each other, so this holds for each part of them, too, and an operator may work on some heads. Several parts of the
// queries' heads may have the same key head, whose dkv is then the sum of what they give.
//
// With a window a block depends only on those blocks of keys of which some query sees some key, wherever the keys begin that it is given.

// attends reports whether an operator is attention, which only looks back. Other sequence operators look at the whole
// sequence.
func attends(op graph.Op) bool { return op == graph.Attention || op == graph.AttentionBwd }

// attended returns the operand numbers of an instruction's queries, and of its keys and
// values.
func attended(op graph.Op) (q, kv int) {
	if op == graph.Attention {
		return graph.AttentionQ, graph.AttentionKV
	}
	return graph.AttentionBwdQ, graph.AttentionBwdKV
}

// attention executes the heads part by part: each part's results depend on its own queries, keys and values. Parts are what the bands of
// its result are; an operator on one part has the values of that part of an operator on all.
func (x *execution) attention(in *program.Instr, args []box) {
	_, kv := attended(in.Op)
	parts, keys := args[0].bands, args[kv].bands/2 // of o or dq, and of k
	if parts > 1 && (args[kv].bands != 2*keys || in.Attr.Heads%int(parts) != 0 || graph.KeyParts(in.Attr.KVHeads, int(parts)) != int(keys)) {
		parts = 1 // bands that are no parts of heads
	}
	if parts == 1 {
		keys = 1
	}
	for k := range parts {
		p := headPart{x, in, args, k, parts, keys}
		queries := p.attend()
		if in.Op == graph.AttentionBwd {
			p.sumKeys(queries)
		}
	}
}

// headPart is attention of one of several parts of its heads.
type headPart struct {
	*execution
	in    *program.Instr
	args  []box
	k, of int32
	keys  int32 // parts of the key heads, which divide those of the queries' heads
}

// key returns the part's own of the key heads' parts.
func (p *headPart) key() int32 { return p.k * p.keys / p.of }

// isKeys reports whether operand j is keys and values, or their gradients.
func (p *headPart) isKeys(j int) bool {
	_, kv := attended(p.in.Op)
	return j == kv || p.in.Op == graph.AttentionBwd && j == graph.AttentionBwdDKV
}

// bands lists the bands of operand j that belong to the part: of keys and values two, of what is not divided by heads all.
func (p *headPart) bands(j int) (list []int32) {
	switch n := p.args[j].bands; {
	case p.of > 1 && n > 1 && p.isKeys(j):
		list = append(list, p.key(), p.keys+p.key())
	case p.of > 1 && n == p.of:
		list = append(list, p.k)
	default:
		for k := range n {
			list = append(list, k)
		}
	}
	return list
}

// op hashes the operator: the constants of one part.
func (p *headPart) op() Value {
	in := *p.in
	in.Attr.Heads, in.Attr.KVHeads = in.Attr.Heads/int(p.of), in.Attr.KVHeads/int(p.keys)
	return opValue(&in)
}

// cols returns the columns of a part of operand j.
func (p *headPart) cols(j int) int {
	switch {
	case p.of == 1 || p.args[j].bands == 1:
		return p.in.Args[j].Cols
	case p.isKeys(j):
		return p.in.Args[j].Cols / int(p.keys)
	}
	return p.in.Args[j].Cols / int(p.of)
}

// partBand identifies a result's band, the i-th of its part.
func (p *headPart) partBand(j, i int, k int32) Value {
	from, cols := p.columns(p.in.Args[j], p.args[j], k)
	if p.of > 1 {
		from = i * cols
	}
	return ints(j<<48|from, cols)
}

// readPart hashes row block b of operand j, as far as it belongs to the part, into v.
func (p *headPart) readPart(v Value, j int, b int32) Value {
	for _, k := range p.bands(j) {
		v = v.hashWith(p.atom(j, p.args[j].at(b, k)))
	}
	return v
}

// attend gives the part's results that are not sums their values. It returns what queries does.
func (p *headPart) attend() []Value {
	x, in, args := p.execution, p.in, p.args
	_, kv := attended(in.Op)
	per := int32(max(1, in.Attr.Seq/x.p.RowUnit)) // blocks of a sequence
	queries := p.queries(per)
	before := args[kv].blocks - int32(len(queries)) // blocks of keys before the first of queries
	back := p.blocksBack()
	var seen Value
	for n := range args[kv].blocks {
		if n%per == 0 {
			seen = seedOp
		}
		if back < 0 {
			seen = p.readPart(seen, kv, n)
		}
		if n < before {
			continue
		}
		if back >= 0 {
			seen = seedOp
			for m := max(n-n%per, n-back); m <= n; m++ {
				seen = p.readPart(seen, kv, m)
			}
		}
		v := queries[n-before].hashWith(seen)
		for j, s := range args {
			if in.Op.Info().Args[j].Access == graph.Write {
				for i, k := range p.bands(j) {
					x.atoms[s.at(n-before, k)] = v.hashWith(p.partBand(j, i, k))
				}
			}
		}
	}
	return queries
}

// blocksBack returns how many blocks before its own a block of queries sees, because of a window; -1: all.
func (p *headPart) blocksBack() int32 {
	in := p.in
	w := in.Attr.Window
	if w <= 0 || w >= in.Attr.Seq {
		return -1
	}
	return int32((w - 1 + p.p.RowUnit - 1) / p.p.RowUnit)
}

// queries hashes, for each block of queries, the operator, the block's position in its
// sequence, which without a window says what it sees, and everything read of it.
func (p *headPart) queries(per int32) []Value {
	x, in, args := p.execution, p.in, p.args
	q, kv := attended(in.Op)
	specs := in.Op.Info().Args
	same := p.op()
	for j, s := range args {
		if s.blocks > 0 && specs[j].Access != graph.Sum {
			same = x.operandOf(same, in, j, p.cols(j))
		}
		if specs[j].Access == graph.Read && !specs[j].Token { // sinks
			same = p.readPart(same, j, 0)
		}
	}
	list := make([]Value, args[q].blocks)
	for b := range args[q].blocks {
		v := same
		if p.blocksBack() < 0 {
			v = same.hashInts(int((b+args[kv].blocks-args[q].blocks)%per), 0)
		}
		for j, s := range args {
			if s.blocks > 0 && specs[j].Access == graph.Read && specs[j].Token && j != kv {
				v = p.readPart(v.hashInts(j, 0), j, b)
			}
		}
		list[b] = v
	}
	return list
}

// sumKeys adds the contributions of blocks of queries to the part's dk and dv.
func (p *headPart) sumKeys(queries []Value) {
	x, in, args := p.execution, p.in, p.args
	_, kv := attended(in.Op)
	per := int32(max(1, in.Attr.Seq/x.p.RowUnit))
	dkv, back := args[graph.AttentionBwdDKV], p.blocksBack()
	before := dkv.blocks - int32(len(queries))
	half := x.p.Buffers[in.Args[graph.AttentionBwdDKV].Buf].DType == graph.BF16
	each := p.of / p.keys // parts that have the same keys, one after the other
	begins, ends := p.k%each == 0, p.k%each == each-1
	for n := range dkv.blocks {
		at, last := int(n%per), min(n-n%per+per, dkv.blocks)-1
		if back >= 0 {
			at, last = 0, min(last, n+back)
		}
		key := p.readPart(seedOp.hashInts(at, 0), kv, n)
		for i, k := range p.bands(graph.AttentionBwdDKV) {
			sum, band := &x.atoms[dkv.at(n, k)], p.partBand(graph.AttentionBwdDKV, i, k)
			if begins {
				x.begin(in, graph.AttentionBwdDKV, sum)
			}
			for b := last; b >= max(n, before); b-- {
				term := queries[b-before].hashWith(band).hashWith(key)
				if back >= 0 {
					term = term.hashInts(int(b-n), 0)
				}
				x.add(sum, term)
			}
			if half && ends {
				*sum = castValue(graph.BF16, *sum)
			}
		}
	}
}
