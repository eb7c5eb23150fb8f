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
// Known weakness: windows are ignored, so a block also depends on keys outside its
// queries' window.

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

func (x *execution) attention(in *program.Instr, args []box) {
	_, kv := attended(in.Op)
	per := int32(max(1, in.Attr.Seq/x.p.RowUnit)) // blocks of a sequence
	queries := x.queries(in, args, per)
	before := args[kv].blocks - int32(len(queries)) // blocks of keys before the first of queries
	var seen Value
	for n := range args[kv].blocks {
		if n%per == 0 {
			seen = seedOp
		}
		if seen = x.read(seen, kv, args[kv], n, n+1); n < before {
			continue
		}
		v := queries[n-before].hashWith(seen)
		for j, s := range args {
			if in.Op.Info().Args[j].Access == graph.Write {
				for k := range s.bands {
					x.atoms[s.at(n-before, k)] = v.hashWith(x.band(in, args, j, k))
				}
			}
		}
	}
	if in.Op == graph.AttentionBwd {
		x.sumKeys(in, args, queries, per)
	}
}

// queries hashes, for each block of queries, the operator, the block's position in its
// sequence and everything read of it.
func (x *execution) queries(in *program.Instr, args []box, per int32) []Value {
	q, kv := attended(in.Op)
	specs := in.Op.Info().Args
	same := opValue(in)
	for j, s := range args {
		if s.blocks > 0 && specs[j].Access != graph.Sum {
			same = x.operand(same, in, j)
		}
		if specs[j].Access == graph.Read && !specs[j].Token { // sinks
			same = x.read(same, j, s, 0, s.blocks)
		}
	}
	list := make([]Value, args[q].blocks)
	for b := range args[q].blocks {
		v := same.hashInts(int((b+args[kv].blocks-args[q].blocks)%per), 0)
		for j, s := range args {
			if s.blocks > 0 && specs[j].Access == graph.Read && specs[j].Token && j != kv {
				v = x.read(v.hashInts(j, 0), j, s, b, b+1)
			}
		}
		list[b] = v
	}
	return list
}

// sumKeys adds the contributions of blocks of queries to dk and dv.
func (x *execution) sumKeys(in *program.Instr, args []box, queries []Value, per int32) {
	_, kv := attended(in.Op)
	dkv := args[graph.AttentionBwdDKV]
	before := dkv.blocks - int32(len(queries))
	half := x.p.Buffers[in.Args[graph.AttentionBwdDKV].Buf].DType == graph.BF16
	for n := range dkv.blocks {
		key := x.read(seedOp.hashInts(int(n%per), 0), kv, args[kv], n, n+1)
		last := min(n-n%per+per, dkv.blocks) - 1
		for k := range dkv.bands {
			sum, band := &x.atoms[dkv.at(n, k)], x.band(in, args, graph.AttentionBwdDKV, k)
			x.begin(in, graph.AttentionBwdDKV, sum)
			for b := last; b >= max(n, before); b-- {
				x.add(sum, queries[b-before].hashWith(band).hashWith(key))
			}
			if half {
				*sum = castValue(graph.BF16, *sum)
			}
		}
	}
}
