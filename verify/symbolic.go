package verify

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"strings"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/program"
)

// Symbolic execution of what a program computes. Every atom has a value, a 128-bit hash
// of its derivation: the operator, its constants, the types and extents of its operands
// and the values read, but no addresses. A value thus also determines type and extents.
// Two programs that leave equal values in the homes of all parameters compute the same
// bits, whatever they copied, recomputed or cut on the way.
//
//	w    in the arena   H(init, "p:w", f32)
//	slot after a copy   the same
//	y    block 3        H(linear, x block 3, w): the same whether the
//	                    instruction runs over all rows or over those of one
//	                    micro-batch, since rows are independent
//	dw                  H(.. H(H(0, x block 0, dy block 0), x block 1, ..)):
//	                    the same however the tokens are cut, as long as they
//	                    are added in the same order
//
// Instructions of several ranks are executed in the order of the dry run, those of one
// rank in program order. Verify proves that every order that streams, waits and
// meetings allow gives the same result. Gathered and received data keeps its value;
// reduced data is a chain over the ranks' values, in rank order.
//
// Sums over several ranks are not in single-rank order, so there is a second, coarser
// kind of values. In unordered values, the contributions to a sum are hashed separately
// and added modulo 2^127 instead of chained. Equal values then mean that the same
// contributions, with multiplicity, enter the same sums:
//
//	dw on rank 0      h(x block 0, dy block 0) + h(x block 1, dy block 1)
//	dw on rank 1      h(x block 2, dy block 2)
//	reduced           their sum: the value of one rank that computes all blocks
//
// Known weakness: equal values prove equal results, but different values prove nothing:
// a program may compute the same bits in another way. A hash may collide, with
// probability 10^-20 for a billion values. Operators are assumed to do what their table
// says; further requirements of devices are not modelled. On CUDA, sums over tokens are
// bit-equal only if the tokens are cut at multiples of cuda.Options.SumRows.
// Micro-batches and the head are cut so (search.Request.HeadUnit), but slices are not.

// Value identifies the content of atoms. The zero Value is undefined content. The last
// bit is set in unordered sums and in no other value.
type Value [2]uint64

// ---- values

// hashWith hashes v and w, in this order. Apart from the last bit it is, for fixed v, a
// bijection of w and vice versa, so collisions arise almost only from chains.
func (v Value) hashWith(w Value) Value {
	a := (bits.RotateLeft64(v[0], 29) ^ w[0]) * 0x9e3779b97f4a7c15
	b := (bits.RotateLeft64(v[1], 41) + w[1]) * 0xc2b2ae3d27d4eb4f
	a ^= a >> 32
	b ^= b >> 29
	a += bits.RotateLeft64(b, 17)
	b ^= a * 0x165667b19e3779f9
	a = (a ^ b>>31) * 0xd6e8feb86659fd93
	return Value{a ^ a>>30, (b + a) &^ 1}
}

// asSum returns v as an unordered sum: v itself, or the sum whose only contribution is
// v.
func (v Value) asSum() Value {
	if v[1]&1 != 0 {
		return v
	}
	a := (v[0] ^ v[0]>>32) * 0xd6e8feb86659fd93
	b := (v[1] ^ v[1]>>29 ^ a) * 0xff51afd7ed558ccd
	a = (a ^ a>>31 ^ bits.RotateLeft64(b, 23)) * 0xc4ceb9fe1a85ec53
	return Value{a ^ a>>33, (b ^ b>>32 ^ a>>7) | 1}
}

// plus adds two unordered sums; other values count as sums of one contribution.
func (v Value) plus(w Value) Value {
	v, w = v.asSum(), w.asSum()
	return Value{v[0] + w[0], v[1] + w[1] - 1}
}

// ints encodes a pair of small numbers.
func ints(a, b int) Value {
	return Value{uint64(a) + 0x51ed270b0a1f39c1, uint64(b) + 0x2545f4914f6cdd1d}
}

// hashInts hashes a pair of small numbers.
func (v Value) hashInts(a, b int) Value { return v.hashWith(ints(a, b)) }

func (v Value) withString(s string) Value {
	v = v.hashInts(len(s), 0)
	for len(s) > 0 {
		var word [8]byte
		n := copy(word[:], s)
		v = v.hashWith(Value{binary.LittleEndian.Uint64(word[:]), uint64(n)})
		s = s[n:]
	}
	return v
}

// Seeds of the kinds of values.
var (
	seedInit = Value{1, 1}
	seedOp   = Value{2, 2}
	seedZero = Value{3, 3} // a sum before its first contribution
	noTerms  = Value{0, 1} // the same, unordered
)

// castValue returns the value of a copy of v with elements of type t.
func castValue(t graph.DType, v Value) Value {
	return seedOp.hashInts(int(graph.Cast), 0).hashInts(int(t), 0).hashWith(v)
}

// lowerHalves returns the value of the lower halves of v, and given that value, v again: each
// determines the other. The upper halves are castValue(graph.BF16, v).
func (v Value) lowerHalves() Value {
	return Value{v[0] ^ 0x6a09e667f3bcc908, v[1] ^ 0xbb67ae8584caa73a}
}

// within says which part of the named content an atom is: all of it, a number of
// elements, or a band of a block of rows.
type within struct{ row, col, cols int }

// initValue returns the value of an atom of a persistent buffer before the step.
func initValue(name string, t graph.DType, at within) Value {
	if full, ok := castOf(name); ok && t != graph.F32 {
		return castValue(t, initValue(full, graph.F32, at))
	}
	if full, ok := restOf(name); ok {
		return initValue(full, graph.F32, at).lowerHalves()
	}
	if strings.HasPrefix(name, maskName) { // of as many elements as its parameter has
		return seedInit.withString(name)
	}
	return seedInit.withString(name).hashInts(int(t), at.cols).hashInts(at.row, at.col)
}

// opValue hashes an operator and its constants, except what does not change results:
// whether a sum continues (its old value is hashed instead) and, for position-dependent
// operators, where the operands begin.
func opValue(in *program.Instr) Value {
	v := seedOp.hashInts(int(in.Op), 0)
	if in.Op == graph.Cast {
		return v
	}
	a := in.Attr
	a.Acc = false
	if in.Op.Info().Position {
		a.Row0 = 0
	}
	if a == (graph.Attr{}) {
		return v
	}
	for i, f := range graph.AttrFields {
		n := uint64(0)
		switch x := f.Ptr(&a).(type) {
		case *bool:
			if *x {
				n = 1
			}
		case *int:
			n = uint64(*x)
		case *float64:
			n = math.Float64bits(*x)
		case *model.Activation:
			n = uint64(*x)
		}
		if n != 0 {
			v = v.hashWith(Value{n, uint64(i)})
		}
	}
	return v
}

// ---- execution

// execution is the state of one rank.
type execution struct {
	p         *program.Program
	ly        *layout
	unordered bool
	atoms     []Value
	// undefined is an operand of the current instruction that was read before it was
	// written, or -1.
	undefined int
	room      []Value // reused by shares
	kept      kept
}

func newExecution(p *program.Program, ly *layout, unordered bool) *execution {
	x := &execution{p: p, ly: ly, unordered: unordered, atoms: make([]Value, ly.base[len(p.Buffers)]), kept: kept{}}
	for i := range p.Buffers {
		x.eachInit(i, func(atom int32, name string, at within) {
			x.atoms[atom] = x.kept.initial(name, p.Buffers[i].DType, at)
		})
	}
	return x
}

// eachInit lists the atoms of a buffer whose content before the step is known. Atoms of
// flat buffers are identified by name and number of elements, those of matrices by
// name, position and width; for the batch, the position in the global batch. Names mean
// the same on all ranks, except that results and caches, but for the clip factor, are per rank.
func (x *execution) eachInit(buf int, f func(atom int32, name string, at within)) {
	b := &x.p.Buffers[buf]
	if len(b.Init) == 0 {
		return
	}
	own := ""
	if x.p.Rank > 0 && (b.Class == program.ClassReductions || b.Class == program.ClassActivations) {
		own = fmt.Sprintf(" of rank %d", x.p.Rank)
	}
	row := func(row int) int { return row }
	if strings.HasPrefix(b.Name, batchPrefix) {
		row = x.p.GlobalRow
	}
	bands := len(b.Cuts) + 1
	for a := x.ly.base[buf]; a < x.ly.base[buf+1]; a++ {
		n := int(a - x.ly.base[buf])
		name := initName(b, n%bands)
		if name == "" {
			continue
		}
		if name != program.ClipBefore {
			name += own
		}
		col := bandStart(b, n%bands)
		at := within{cols: bandStart(b, n%bands+1) - col}
		if b.RowUnit > 0 {
			at.row, at.col = row(n/bands*b.RowUnit), col
		}
		f(a, name, at)
	}
}

// batchPrefix starts the names of buffers with rows of the global batch.
const batchPrefix = "batch."

func (x *execution) instr(i int) error {
	in, args := &x.p.Instrs[i], x.ly.operands(i)
	x.undefined = -1
	switch in.Op {
	case graph.Copy:
		x.copyAtoms(args)
	case graph.Cast, graph.Add:
		x.elementwise(in, args)
	case graph.NormPart:
		x.normPart(in, args)
	case graph.Compress, graph.Expand:
		x.masked(in, args)
	default:
		if rule := optimizer.Updating(in.Op); rule != nil {
			x.update(in, args, rule)
			break
		}
		switch in.Op.Info().Kind {
		case graph.RowWise:
			x.rowWise(in, args)
		case graph.Sequence:
			if attends(in.Op) {
				x.attention(in, args)
			} else {
				x.sequences(in, args)
			}
		case graph.TokenSum:
			x.tokenSum(in, args)
		default:
			x.dependOnAll(in, args)
		}
	}
	if x.undefined >= 0 {
		return operandFault(x.p, i, x.undefined, "an earlier instruction must write it", "is read before it is written")
	}
	return nil
}

// atom returns the value of an atom of operand j. If it is undefined, it records j.
func (x *execution) atom(j int, at int32) Value {
	a := x.atoms[at]
	if a == (Value{}) {
		x.undefined = j
	}
	return a
}

// read hashes row blocks [from, to) of operand j into v.
func (x *execution) read(v Value, j int, s box, from, to int32) Value {
	for b := from; b < to; b++ {
		for k := range s.bands {
			v = v.hashWith(x.atom(j, s.at(b, k)))
		}
	}
	return v
}

// operand hashes the type and extents of operand j, except the number of token rows: a
// row's result does not depend on it.
func (x *execution) operand(v Value, in *program.Instr, j int) Value {
	return x.operandOf(v, in, j, in.Args[j].Cols)
}

// operandOf is operand for some of its columns.
func (x *execution) operandOf(v Value, in *program.Instr, j, cols int) Value {
	r := &in.Args[j]
	rows := r.Rows
	if in.Op.Info().Args[j].Token {
		rows = 0
	}
	return v.hashInts(j, int(x.p.Buffers[r.Buf].DType)).hashInts(rows, cols)
}

// band identifies band k of operand j by its columns.
func (x *execution) band(in *program.Instr, args []box, j int, k int32) Value {
	from, cols := x.columns(in.Args[j], args[j], k)
	return ints(j<<48|from, cols) // fewer than maxCount, see resolve
}

// columns returns the first column and the number of columns of a region's k-th band.
func (x *execution) columns(r program.Region, s box, k int32) (from, cols int) {
	b := &x.p.Buffers[r.Buf]
	n := int((s.atom-x.ly.base[r.Buf])%s.step + k)
	start := bandStart(b, n)
	return start - r.Off%b.Cols, bandStart(b, n+1) - start
}

// constants hashes what all of an instruction's results share: operator, attributes,
// types and extents of its operands, and the content of those not indexed by tokens.
func (x *execution) constants(in *program.Instr, args []box) Value {
	v := opValue(in)
	if x.unordered && in.Op == graph.ExpertDW { // how many tokens are added at a time is a matter of order
		padded := *in
		padded.Attr.Seq = 0
		v = opValue(&padded)
	}
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
func (x *execution) tokens(v Value, in *program.Instr, args []box, from, to int32) Value {
	for j, s := range args {
		if !in.Op.Info().Args[j].Token {
			continue
		}
		reads, writes := accessOf(in, j)
		if x.unordered && writes && in.Op.Info().Args[j].Access == graph.Sum {
			continue // added to the result, see put
		}
		if reads {
			v = x.read(v.hashInts(j, 0), j, s, from, to)
		}
	}
	return v
}

// put writes a result. If the result accumulates, the old value is already hashed into
// v, unless sums are unordered.
func (x *execution) put(in *program.Instr, j int, atom int32, v Value) {
	if a := &x.atoms[atom]; x.unordered && in.Attr.Acc && in.Op.Info().Args[j].Access == graph.Sum {
		if *a == (Value{}) {
			x.undefined = j
		}
		*a = a.plus(v)
	} else {
		*a = v
	}
}

// position hashes the offset of a row block within its sequence.
func (x *execution) position(v Value, in *program.Instr, block int32) Value {
	if !in.Op.Info().Position {
		return v
	}
	return v.hashInts((in.Attr.Row0+int(block)*x.p.RowUnit)%in.Attr.Seq, 0)
}

// shares hashes, for each block of rows, what all of the block's results share.
func (x *execution) shares(in *program.Instr, args []box) []Value {
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

// rowWise: a block of rows depends on the same block of the token operands.
func (x *execution) rowWise(in *program.Instr, args []box) {
	shares := x.shares(in, args)
	for j, s := range args {
		if _, writes := accessOf(in, j); !writes {
			continue
		}
		for k := range s.bands {
			band := x.band(in, args, j, k)
			for b, v := range shares {
				x.put(in, j, s.at(int32(b), k), v.hashWith(band))
			}
		}
	}
}

// sequences: a block of rows depends on all blocks of its sequence.
func (x *execution) sequences(in *program.Instr, args []box) {
	shares := x.shares(in, args)
	per := max(1, in.Attr.Seq/x.p.RowUnit) // blocks of a sequence
	for first := 0; first < len(shares); first += per {
		whole := seedOp
		for _, v := range shares[first:min(first+per, len(shares))] {
			whole = whole.hashWith(v)
		}
		for j, s := range args {
			if _, writes := accessOf(in, j); !writes {
				continue
			}
			for k := range s.bands {
				band := x.band(in, args, j, k)
				for b := first; b < min(first+per, len(shares)); b++ {
					x.atoms[s.at(int32(b), k)] = whole.hashWith(shares[b]).hashWith(band)
				}
			}
		}
	}
}

// tokenSum: each result is a chain over row blocks, ascending, or the unordered sum of
// their contributions.
func (x *execution) tokenSum(in *program.Instr, args []box) {
	shares := x.shares(in, args)
	rest := len(shares) * x.p.RowUnit % x.tokensAtOnce(in)
	for j, s := range args {
		if _, writes := accessOf(in, j); !writes {
			continue
		}
		for k := range s.bands {
			band := x.band(in, args, j, k)
			for b := range s.blocks {
				sum, here := &x.atoms[s.at(b, k)], band.hashInts(int(b), 0)
				x.begin(in, j, sum)
				for _, v := range shares {
					x.add(sum, v.hashWith(here))
				}
				if rest != 0 && !x.unordered {
					*sum = sum.hashInts(rest, 0)
				}
			}
		}
	}
}

// tokensAtOnce returns how many tokens an instruction may add up at a time (see package
// gemm). If others continue its sum, a call whose token count is not a multiple of this
// computes a different sum.
func (x *execution) tokensAtOnce(in *program.Instr) int {
	half := func(j int) bool { return !in.Arg(j).Absent() && x.p.Buffers[in.Arg(j).Buf].DType == graph.BF16 }
	switch {
	case in.Op == graph.LinearDW && (half(1) && half(2) || half(4) && half(5)): // of either gradient
		return max(in.Attr.Cut, 2)
	case in.Op == graph.ExpertDW && half(1) && half(2):
		return in.Attr.Seq
	}
	return 1
}

// begin initialises a sum, operand j, before its first contribution.
func (x *execution) begin(in *program.Instr, j int, sum *Value) {
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

// add adds a contribution to a sum: chained, or unordered.
func (x *execution) add(sum *Value, term Value) {
	if x.unordered {
		*sum = sum.plus(term)
	} else {
		*sum = term.hashWith(*sum)
	}
}

// dependOnAll: every result depends on every input. The norm is a sum of its parts.
func (x *execution) dependOnAll(in *program.Instr, args []box) {
	v := opValue(in)
	for j, s := range args {
		if s.blocks == 0 {
			continue
		}
		v = x.operand(v, in, j)
		switch reads, _ := accessOf(in, j); {
		case !reads:
		case x.unordered && in.Op == graph.NormAll:
			v = v.hashWith(x.total(j, s))
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
				x.atoms[s.at(b, k)] = v.hashWith(x.band(in, args, j, k)).hashInts(int(b), 0)
			}
		}
	}
}

// total returns the unordered sum of the atoms of operand j.
func (x *execution) total(j int, s box) Value {
	v := noTerms
	for b := range s.blocks {
		for k := range s.bands {
			v = v.plus(x.atom(j, s.at(b, k)))
		}
	}
	return v
}

// copyAtoms copies content. Padding and stale content may be copied along with defined
// atoms, but not alone.
func (x *execution) copyAtoms(args []box) {
	if !x.take(args[graph.CopyDst], x, args[graph.CopySrc]) {
		x.undefined = 1
	}
}

// take copies content from a rank (perhaps the same) and reports whether any of it was
// defined.
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
func (x *execution) elementwise(in *program.Instr, args []box) {
	dst, src := graph.CastDst, graph.CastSrc // or y and x of Add
	t, from := x.p.Buffers[in.Args[dst].Buf].DType, x.p.Buffers[in.Args[src].Buf].DType
	same := opValue(in).hashInts(int(t), int(from))
	for b := range args[dst].blocks {
		for k := range args[dst].bands {
			d, s := &x.atoms[args[dst].at(b, k)], x.atoms[args[src].at(b, k)]
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
				*d = same.hashWith(*d).hashWith(s)
			}
		}
	}
}
