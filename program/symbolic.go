package program

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"strings"

	"github.com/athanor-llm/athanor/graph"
)

// What a program computes, by symbolic execution. Every atom has a value, a
// 128-bit hash of how it was made: the operator, its constants, the types and
// extents of its operands and the values that it read, never where anything lay.
// So a value also tells type and extents of what it is the value of. Two programs that leave equal values
// in the homes of all parameters compute the same bits, whatever they copied,
// recomputed or cut on the way.
//
//	w    in the arena   H(init, "p:w", f32)
//	slot after a copy   the same
//	y    block 3        H(linear, x block 3, w): the same whether the
//	                    instruction runs over all rows or over those of one
//	                    micro-batch, since rows do not depend on other rows
//	dw                  H(.. H(H(0, x block 0, dy block 0), x block 1, ..)):
//	                    the same however the tokens are cut, as long as they
//	                    are added in the same order
//
// Several ranks' instructions are executed in the order of the dry run, those
// of one in program order; Verify proves that every order that streams, waits
// and meetings allow gives the same. What is gathered or received keeps its
// value; what is reduced is a chain over the ranks' values, in their order.
//
// Sums of many ranks are not in the order of those of one rank, so there is a
// second, coarser kind of values: unordered, all contributions to a sum are
// added modulo 2^127 instead of chained, each hashed by itself. Then equal
// values say that the same contributions enter the same sums, each as often:
//
//	dw on rank 0      h(x block 0, dy block 0) + h(x block 1, dy block 1)
//	dw on rank 1      h(x block 2, dy block 2)
//	reduced           the sum of both: what one rank has that does all blocks
//
// Known weakness: equal values prove equal results, but different ones prove
// nothing: a program may compute the same bits in another way. And a hash may
// collide, with a chance of 10^-20 for a billion values. Operators are taken to do
// what their table says; what a device asks for beyond that is not looked at: on
// CUDA, sums over tokens have the same bits only where the tokens are cut at
// multiples of what cuda.Options.SumRows says, which micro-batches and the head are
// (plan.Request.HeadUnit), but not slices.

// Value identifies the content of atoms. The zero Value is undefined content.
// The last bit is set in unordered sums, and in no other value.
type Value [2]uint64

// ---- values

// with hashes v and w, in this order. But for the last bit, it is for a given
// v a bijection of w and the other way round, so little but chains can collide.
func (v Value) with(w Value) Value {
	a := (bits.RotateLeft64(v[0], 29) ^ w[0]) * 0x9e3779b97f4a7c15
	b := (bits.RotateLeft64(v[1], 41) + w[1]) * 0xc2b2ae3d27d4eb4f
	a ^= a >> 32
	b ^= b >> 29
	a += bits.RotateLeft64(b, 17)
	b ^= a * 0x165667b19e3779f9
	a = (a ^ b>>31) * 0xd6e8feb86659fd93
	return Value{a ^ a>>30, (b + a) &^ 1}
}

// asSum is v as an unordered sum: itself, or the sum whose only contribution it is.
func (v Value) asSum() Value {
	if v[1]&1 != 0 {
		return v
	}
	a := (v[0] ^ v[0]>>32) * 0xd6e8feb86659fd93
	b := (v[1] ^ v[1]>>29 ^ a) * 0xff51afd7ed558ccd
	a = (a ^ a>>31 ^ bits.RotateLeft64(b, 23)) * 0xc4ceb9fe1a85ec53
	return Value{a ^ a>>33, (b ^ b>>32 ^ a>>7) | 1}
}

// plus adds two unordered sums, or values as sums of one contribution.
func (v Value) plus(w Value) Value {
	v, w = v.asSum(), w.asSum()
	return Value{v[0] + w[0], v[1] + w[1] - 1}
}

// ints stands for a pair of small numbers.
func ints(a, b int) Value {
	return Value{uint64(a) + 0x51ed270b0a1f39c1, uint64(b) + 0x2545f4914f6cdd1d}
}

// withInts hashes a pair of small numbers.
func (v Value) withInts(a, b int) Value { return v.with(ints(a, b)) }

func (v Value) withString(s string) Value {
	v = v.withInts(len(s), 0)
	for len(s) > 0 {
		var word [8]byte
		n := copy(word[:], s)
		v = v.with(Value{binary.LittleEndian.Uint64(word[:]), uint64(n)})
		s = s[n:]
	}
	return v
}

// The seeds of the kinds of values.
var (
	seedInit = Value{1, 1}
	seedOp   = Value{2, 2}
	seedZero = Value{3, 3} // a sum before its first contribution
	noTerms  = Value{0, 1} // the same, unordered
)

// castValue is the value of a copy of v with elements of type t.
func castValue(t graph.DType, v Value) Value {
	return seedOp.withInts(int(graph.Cast), 0).withInts(int(t), 0).with(v)
}

// within says which part an atom is of the content that its name stands for: all
// of it, so many elements, or a band of a block of rows.
type within struct{ row, col, cols int }

// initValue is the value of an atom of a persistent buffer before the step.
func initValue(name string, t graph.DType, at within) Value {
	if full, ok := castOf(name); ok && t != graph.F32 {
		return castValue(t, initValue(full, graph.F32, at))
	}
	return seedInit.withString(name).withInts(int(t), at.cols).withInts(at.row, at.col)
}

// opValue hashes an operator and its constants, except what does not change
// results: whether a sum continues (its old value is hashed instead) and, for
// those that depend on positions, where the operands begin.
func opValue(in *Instr) Value {
	v := seedOp.withInts(int(in.Op), 0)
	if in.Op == graph.Cast {
		return v
	}
	a := in.Attr
	a.Acc = false
	if verifyRules[in.Op].position {
		a.Row0 = 0
	}
	if a == (graph.Attr{}) {
		return v
	}
	for i, f := range attrFields {
		n := uint64(0)
		switch x := f.ptr(&a).(type) {
		case *bool:
			if *x {
				n = 1
			}
		case *int:
			n = uint64(*x)
		case *float64:
			n = math.Float64bits(*x)
		case *graph.Activation:
			n = uint64(*x)
		}
		if n != 0 {
			v = v.with(Value{n, uint64(i)})
		}
	}
	return v
}

// ---- execution

// execution is the state of one rank.
type execution struct {
	p         *Program
	ly        *layout
	unordered bool
	atoms     []Value
	// undefined is an operand of the current instruction that was read before
	// it was written, or -1.
	undefined int
	room      []Value // of shares
}

func newExecution(p *Program, ly *layout, unordered bool) *execution {
	x := &execution{p: p, ly: ly, unordered: unordered, atoms: make([]Value, ly.base[len(p.Buffers)])}
	for i := range p.Buffers {
		x.eachInit(i, func(atom int32, name string, at within) {
			x.atoms[atom] = initValue(name, p.Buffers[i].DType, at)
		})
	}
	return x
}

// eachInit lists the atoms of a buffer whose content before the step is known.
// Atoms of flat buffers are known by name and number of elements, those of
// matrices by name, position and width: of the batch, the position in the batch
// of all ranks. Names mean the same on all ranks, except that each has results and
// caches of its own.
func (x *execution) eachInit(buf int, f func(atom int32, name string, at within)) {
	b := &x.p.Buffers[buf]
	if len(b.Init) == 0 {
		return
	}
	own := ""
	if x.p.Rank > 0 && (b.Class == ClassReductions || b.Class == ClassActivations) {
		own = fmt.Sprintf(" of rank %d", x.p.Rank)
	}
	first := 0
	if strings.HasPrefix(b.Name, batchPrefix) {
		first = x.p.BatchRow
	}
	bands := len(b.Cuts) + 1
	for a := x.ly.base[buf]; a < x.ly.base[buf+1]; a++ {
		n := int(a - x.ly.base[buf])
		name := b.initName(n % bands)
		if name == "" {
			continue
		}
		col := b.bandStart(n % bands)
		at := within{cols: b.bandStart(n%bands+1) - col}
		if b.RowUnit > 0 {
			at.row, at.col = first+n/bands*b.RowUnit, col
		}
		f(a, name+own, at)
	}
}

// batchPrefix begins the names of buffers with rows of the global batch.
const batchPrefix = "batch."

func (x *execution) instr(i int) error {
	in, args := &x.p.Instrs[i], x.ly.operands(i)
	x.undefined = -1
	switch in.Op {
	case graph.Copy:
		x.copyAtoms(args)
	case graph.Cast, graph.Add:
		x.elementwise(in, args)
	case graph.AdamW:
		x.adamw(in, args)
	case graph.NormPart:
		x.normPart(in, args)
	default:
		switch in.Op.Info().Kind {
		case graph.RowWise:
			x.rowWise(in, args)
		case graph.Sequence:
			x.attention(in, args)
		case graph.TokenSum:
			x.tokenSum(in, args)
		default:
			x.whole(in, args)
		}
	}
	if x.undefined >= 0 {
		return x.p.operandFault(i, x.undefined, "something has to write it first", "is read before it is written")
	}
	return nil
}

// read hashes row blocks [from, to) of operand j onto v.
func (x *execution) read(v Value, j int, s box, from, to int32) Value {
	for b := from; b < to; b++ {
		for k := range s.bands {
			a := x.atoms[s.at(b, k)]
			if a == (Value{}) {
				x.undefined = j
			}
			v = v.with(a)
		}
	}
	return v
}

// operand hashes the type and extents of operand j, but not the rows of tokens:
// however many there are, results depend on their own.
func (x *execution) operand(v Value, in *Instr, j int) Value {
	r := &in.Args[j]
	rows := r.Rows
	if in.Op.Info().Args[j].Token {
		rows = 0
	}
	return v.withInts(j, int(x.p.Buffers[r.Buf].DType)).withInts(rows, r.Cols)
}

// band stands for what an instruction makes of band k of operand j: for the columns
// that it has.
func (x *execution) band(in *Instr, args []box, j int, k int32) Value {
	from, cols := x.columns(in.Args[j], args[j], k)
	return ints(j<<48|from, cols) // fewer than maxCount, see resolve
}

// columns says with which column of a region its k-th band begins, and how many
// it has.
func (x *execution) columns(r Region, s box, k int32) (from, cols int) {
	b := &x.p.Buffers[r.Buf]
	n := int((s.atom-x.ly.base[r.Buf])%s.step + k)
	start := b.bandStart(n)
	return start - r.Off%b.Cols, b.bandStart(n+1) - start
}

// constants hashes everything that an instruction's results have in common:
// operator, attributes, types and extents of its operands and the whole of those
// that are not indexed by tokens.
func (x *execution) constants(in *Instr, args []box) Value {
	v := opValue(in)
	for j, s := range args {
		if s.blocks == 0 {
			continue
		}
		v = x.operand(v, in, j)
		if spec := &in.Op.Info().Args[j]; spec.Access == graph.Read && !spec.Token { // token rows: see tokens
			v = x.read(v, j, s, 0, s.blocks)
		}
	}
	return v
}

// tokens hashes row blocks [from, to) of all token operands that are read.
func (x *execution) tokens(v Value, in *Instr, args []box, from, to int32) Value {
	for j, s := range args {
		if !in.Op.Info().Args[j].Token {
			continue
		}
		reads, writes := accessOf(in, j)
		if x.unordered && writes && in.Op.Info().Args[j].Access == graph.Sum {
			continue // added to the result, see put
		}
		if reads {
			v = x.read(v.withInts(j, 0), j, s, from, to)
		}
	}
	return v
}

// put writes a result. Where it is added to what is there, that has been hashed
// into it already, unless sums are unordered.
func (x *execution) put(in *Instr, j int, atom int32, v Value) {
	if a := &x.atoms[atom]; x.unordered && in.Attr.Acc && in.Op.Info().Args[j].Access == graph.Sum {
		if *a == (Value{}) {
			x.undefined = j
		}
		*a = a.plus(v)
	} else {
		*a = v
	}
}

// position hashes where in its sequence a row block begins.
func (x *execution) position(v Value, in *Instr, block int32) Value {
	if !verifyRules[in.Op].position {
		return v
	}
	return v.withInts((in.Attr.Row0+int(block)*x.p.RowUnit)%in.Attr.Seq, 0)
}

// shares hashes for each block of rows what all results of it have in common.
func (x *execution) shares(in *Instr, args []box) []Value {
	same := x.constants(in, args)
	n := int32(0)
	for j, s := range args {
		if in.Op.Info().Args[j].Token {
			n = max(n, s.blocks) // one may be absent
		}
	}
	x.room = x.room[:0]
	for b := range n {
		x.room = append(x.room, x.tokens(x.position(same, in, b), in, args, b, b+1))
	}
	return x.room
}

// rowWise: a block of rows depends on the same block of token operands.
func (x *execution) rowWise(in *Instr, args []box) {
	shares := x.shares(in, args)
	for j, s := range args {
		if _, writes := accessOf(in, j); !writes {
			continue
		}
		for k := range s.bands {
			band := x.band(in, args, j, k)
			for b, v := range shares {
				x.put(in, j, s.at(int32(b), k), v.with(band))
			}
		}
	}
}

// tokenSum: each result is a chain over row blocks, ascending, or the sum of
// what they contribute.
func (x *execution) tokenSum(in *Instr, args []box) {
	shares := x.shares(in, args)
	rest := len(shares) * x.p.RowUnit % x.together(in)
	for j, s := range args {
		if _, writes := accessOf(in, j); !writes {
			continue
		}
		for k := range s.bands {
			band := x.band(in, args, j, k)
			for b := range s.blocks {
				sum, here := &x.atoms[s.at(b, k)], band.withInts(int(b), 0)
				x.begin(in, j, sum)
				for _, v := range shares {
					x.add(sum, v.with(here))
				}
				if rest != 0 && !x.unordered {
					*sum = sum.withInts(rest, 0)
				}
			}
		}
	}
}

// together is how many tokens an instruction may add up at a time (see package gemm): a
// call of a number that is no multiple is another sum, if others continue it.
func (x *execution) together(in *Instr) int {
	half := func(j int) bool { return x.p.Buffers[in.Args[j].Buf].DType == graph.BF16 }
	if in.Op == graph.LinearDW && half(1) && half(2) {
		return max(in.Attr.Cut, 2)
	}
	return 1
}

// begin makes a sum, operand j, ready for its first contribution.
func (x *execution) begin(in *Instr, j int, sum *Value) {
	switch {
	case in.Attr.Acc && *sum == Value{}:
		x.undefined = j
	case in.Attr.Acc:
	case x.unordered:
		*sum = noTerms
	default:
		*sum = seedZero
	}
}

// add adds a contribution to a sum: as the next one, or as one of them.
func (x *execution) add(sum *Value, term Value) {
	if x.unordered {
		*sum = sum.plus(term)
	} else {
		*sum = term.with(*sum)
	}
}

// whole: every result depends on everything. The norm is a sum of its parts.
func (x *execution) whole(in *Instr, args []box) {
	v := opValue(in)
	for j, s := range args {
		if s.blocks == 0 {
			continue
		}
		v = x.operand(v, in, j)
		switch reads, _ := accessOf(in, j); {
		case !reads:
		case x.unordered && in.Op == graph.NormAll:
			v = v.with(x.total(j, s))
		default:
			v = x.read(v, j, s, 0, s.blocks)
		}
	}
	for j, s := range args {
		if _, writes := accessOf(in, j); !writes {
			continue
		}
		for b := range s.blocks {
			for k := range s.bands {
				x.atoms[s.at(b, k)] = v.with(x.band(in, args, j, k)).withInts(int(b), 0)
			}
		}
	}
}

// total is the unordered sum of the atoms of operand j.
func (x *execution) total(j int, s box) Value {
	v := noTerms
	for b := range s.blocks {
		for k := range s.bands {
			a := x.atoms[s.at(b, k)]
			if a == (Value{}) {
				x.undefined = j
			}
			v = v.plus(a)
		}
	}
	return v
}

// copyAtoms moves content. Padding and leftovers may be copied along, but not
// alone.
func (x *execution) copyAtoms(args []box) {
	if !x.take(args[0], x, args[1]) {
		x.undefined = 1
	}
}

// take copies another rank's content, or one's own, and reports whether any of
// it was defined.
func (x *execution) take(dst box, from *execution, src box) (some bool) {
	for b := range src.blocks {
		for k := range src.bands {
			v := from.atoms[src.at(b, k)]
			some = some || v != Value{}
			x.atoms[dst.at(b, k)] = v
		}
	}
	return some
}

// elementwise: Cast and Add, atom by atom.
func (x *execution) elementwise(in *Instr, args []box) {
	dst, src := args[0], args[1]
	t := x.p.Buffers[in.Args[0].Buf].DType
	from := x.p.Buffers[in.Args[1].Buf].DType
	same := opValue(in).withInts(int(t), int(from))
	for b := range dst.blocks {
		for k := range dst.bands {
			d, s := &x.atoms[dst.at(b, k)], x.atoms[src.at(b, k)]
			switch {
			case s == Value{}:
				x.undefined = 1
			case in.Op == graph.Cast:
				*d = castValue(t, s)
			case *d == Value{}:
				x.undefined = 0
			case x.unordered && t == from:
				*d = d.plus(s)
			default:
				*d = same.with(*d).with(s)
			}
		}
	}
}
