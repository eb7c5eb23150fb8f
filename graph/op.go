package graph

import (
	"fmt"
	"strings"
)

// Op names an operator. Operators are data: everything that the compiler
// needs to know of one stands in its row of the table below, and what
// computes it stands in package kernel under the same name.
type Op uint8

const (
	None Op = iota
	Linear
	LinearDX
	LinearDW
	BiasGrad
	LayerNorm
	LayerNormDX
	LayerNormDW
	RMSNorm
	RMSNormDX
	RMSNormDW
	RoPE
	Attention
	AttentionBwd
	Act
	ActBwd
	SwiGLU
	SwiGLUBwd
	Embed
	EmbedBwd
	PosBwd
	CrossEntropy
	LossSum
	NormPart
	NormAll
	AdamW
	Cast
	Add
	Copy
	EmbedAt
	RoPEAt
	AttentionAt
	AllGather
	ReduceScatter
	AllReduce
	Send
	Recv
	NumOps
)

// Access says what an operator does with an operand.
type Access uint8

const (
	Read   Access = iota
	Write         // every element is written, none is read
	Update        // read and written
	Sum           // Write, or Update (old value + contribution) where Attr.Acc is set
)

// ArgSpec is one operand of an operator, by position.
type ArgSpec struct {
	Name     string
	Access   Access
	Optional bool
	Token    bool // rows are tokens of the micro-batch
	Past     bool // of a slice: those of the sequence before it as well
}

// Kind says how an operator's results depend on its token rows; it is what
// allows programs to cut micro-batches and row ranges without changing a bit,
// and what lets Verify prove that they do.
type Kind uint8

const (
	// Whole: results depend on all of the operands.
	Whole Kind = iota
	// RowWise: row r of the results depends on rows r of the token operands
	// only (and on all of the others), so any row range may be run by itself.
	RowWise
	// Sequence: the rows of one sequence (Attr.Seq rows) depend on those of the
	// same sequence only, forwards on those up to their own: see Attention.
	Sequence
	// TokenSum: results are sums over token rows in ascending order, continued
	// from the old value where Attr.Acc is set: rows may be cut anywhere as long
	// as the pieces run in order.
	TokenSum
)

// Info is an operator's row in the table.
type Info struct {
	Name string
	Args []ArgSpec
	// Kind says how results depend on token rows.
	Kind Kind
	// Between operators run between ranks: devices do them, not kernels.
	Between bool
	// FLOPs of one call: multiplications and additions, a fused
	// multiply-add counting as two. Nil means memory-bound, counted as 0.
	FLOPs func(a *Attr, d []Dim) int64
	// Bytes that a perfect cache would move. Nil means the sum over operands.
	Bytes func(a *Attr, d []Dim) int64
}

// Legend of shapes: N tokens of a micro-batch (rows; sequence-major, N = B*T),
// D width, F feed-forward width, V vocabulary, H query heads, G key/value
// heads, S head size, E elements of a parameter.
//
//	weights are [in, out] (GPT-2's Conv1D) or, with Attr.WT, [out, in]
//	qkv is [N, (H+2G)*S]: query heads, key heads, value heads side by side
//	stats are [N, 2] (mean, 1/deviation) or [N, 1] (1/root mean square)
var table = [NumOps]Info{
	None: {Name: "none"},
	// y = x.w + bias + res. Each element is one chain of fused multiply-adds
	// over the input index, ascending, that starts from bias+res.
	Linear: {Name: "linear", Args: args("y:wt x:rt w:r bias:r? res:rt?"), Kind: RowWise, FLOPs: linearFLOPs(1)},
	// dx (+)= dy.w^T
	LinearDX: {Name: "linear_dx", Args: args("dx:st dy:rt w:r"), Kind: RowWise, FLOPs: linearFLOPs(1)},
	// dw (+)= x^T.dy (or dy^T.x with WT), tokens ascending, continuing the
	// chain that is in dw already: splitting the tokens over calls changes no bit. Of
	// two bf16 operands they are added in pairs, or Attr.Cut together, so it may be done at
	// multiples of that only.
	LinearDW: {Name: "linear_dw", Kind: TokenSum, Args: args("dw:s x:rt dy:rt"), FLOPs: linearFLOPs(2)},
	// db (+)= column sums of dy, tokens ascending.
	BiasGrad:    {Name: "bias_grad", Kind: TokenSum, Args: args("db:s dy:rt")},
	LayerNorm:   {Name: "layernorm", Args: args("y:wt stats:wt x:rt g:r b:r"), Kind: RowWise},
	LayerNormDX: {Name: "layernorm_dx", Args: args("dx:st dy:rt x:rt g:r stats:rt"), Kind: RowWise},
	// dg, db: tokens ascending.
	LayerNormDW: {Name: "layernorm_dw", Kind: TokenSum, Args: args("dg:s db:s dy:rt x:rt stats:rt")},
	RMSNorm:     {Name: "rmsnorm", Args: args("y:wt stats:wt x:rt g:r"), Kind: RowWise},
	RMSNormDX:   {Name: "rmsnorm_dx", Args: args("dx:st dy:rt x:rt g:r stats:rt"), Kind: RowWise},
	RMSNormDW:   {Name: "rmsnorm_dw", Kind: TokenSum, Args: args("dg:s dy:rt x:rt stats:rt")},
	// Rotates the query and key heads of qkv in place; row n is at position
	// (n+Row0) mod Seq. table [Seq, S] holds cos (first S/2) and sin (last S/2);
	// pairs are (i, i+S/2). Attr.Inverse rotates back: the derivative.
	RoPE: {Name: "rope", Args: args("qkv:ut table:r"), Kind: RowWise},
	// Causal attention per sequence of Seq rows, never storing Seq x Seq. q and kv
	// [M, 2*G*S] are bands of qkv. The queries are the last N rows of the M that
	// kv has: all rows of whole sequences (N = M), or a slice of one, with the keys
	// and values of the rows before it as well. How a sequence is cut into slices
	// changes no bit. lse [N, H] f32 is the log of the softmax's denominator.
	// starts [N, 1] i32 has for each query the position in its sequence of the first
	// key that it sees, which is where its document begins: at most its own position,
	// and ascending within a sequence. Absent, all are 0.
	Attention: {Name: "attention", Kind: Sequence, Args: args("o:wt lse:wt q:rt kv:rtp starts:rt?"), FLOPs: attentionFLOPs(4, 3)},
	// dkv (+)= what the queries of the slice contribute, all M rows. Slices run
	// from the last one, which does not accumulate, to the first, and their bounds
	// are multiples of SliceUnit: then the sums in an f32 dkv are one chain however
	// the sequence is cut. A bf16 dkv is rounded after every slice.
	// delta [N, H] f32 is scratch: the row sums of do*o.
	AttentionBwd: {Name: "attention_bwd", Kind: Sequence, Args: args("dq:wt dkv:stp delta:wt do:rt q:rt kv:rtp o:rt lse:rt starts:rt?"), FLOPs: attentionFLOPs(10, 5)},
	Act:          {Name: "act", Args: args("y:wt x:rt"), Kind: RowWise},
	// dx may be the same region as dy.
	ActBwd: {Name: "act_bwd", Args: args("dx:wt dy:rt x:rt"), Kind: RowWise},
	// y [N,F] = silu(gate)*up of gu [N,2F] = gate|up.
	SwiGLU:    {Name: "swiglu", Args: args("y:wt gu:rt"), Kind: RowWise},
	SwiGLUBwd: {Name: "swiglu_bwd", Args: args("dgu:wt dy:rt gu:rt"), Kind: RowWise},
	// x[n] = wte[tokens[n]] + wpe[(n+Row0) mod Seq + PosOffset]. tokens is [N,1] i32.
	Embed: {Name: "embed", Kind: RowWise, Args: args("x:wt tokens:rt wte:r wpe:r?"), Bytes: embedBytes},
	// dwte (+)= rows of dx scattered, tokens ascending; without Acc dwte is
	// cleared first.
	EmbedBwd: {Name: "embed_bwd", Kind: TokenSum, Args: args("dwte:s dx:rt tokens:rt"), Bytes: embedBytes},
	PosBwd:   {Name: "pos_bwd", Kind: TokenSum, Args: args("dwpe:s dx:rt")},
	// loss [N,1] f32 = -log softmax(logits)[target] (0 where target < 0);
	// with Attr.Grad the logits are replaced by (softmax - onehot)*scalars[ScalarLossScale]
	// (0 where target < 0).
	CrossEntropy: {Name: "cross_entropy", Args: args("loss:wt logits:ut targets:rt scalars:r"), Kind: RowWise},
	// total [1,1] f64 = sum of loss, tokens ascending.
	LossSum: {Name: "loss_sum", Kind: TokenSum, Args: args("total:s loss:rt")},
	// part [1,K] f64: sums of squares of g in pieces of NormPiece elements.
	NormPart: {Name: "norm_part", Args: args("part:w g:r")},
	// clip [1,2] f32 = {min(1, Clip/(norm+1e-6)), norm}, norm = sqrt(sum of parts
	// in float64, in an order of the device's). Clip <= 0 means no clipping: {1, norm}.
	NormAll: {Name: "norm_all", Args: args("clip:w part:r")},
	// Decoupled weight decay (Loshchilov and Hutter, 1711.05101, algorithm 2),
	// g scaled by clip[0] first, if there is one. g is f32; p16 is a bf16 copy of an
	// f32 p. Each of p, m and v is f32, or bf16 rounded up or down by chance, so that
	// what many steps add is not lost: see Chance. Attr.Param and First say which
	// elements of the model these are; without bf16 among them both are 0.
	AdamW: {Name: "adamw", Args: args("p:u m:u v:u g:r clip:r? scalars:r p16:w?")},
	Cast:  {Name: "cast", Args: args("dst:w src:r"), Kind: RowWise},
	Add:   {Name: "add", Args: args("y:u x:r"), Kind: RowWise},
	// Bytes from one tier to another, or within one.
	Copy: {Name: "copy", Args: args("dst:w src:r")},
	// Generation: rows are N tokens of one sequence at positions pos, pos+1, ...,
	// where pos [1,1] i32 is known when the program runs. Otherwise as Embed, RoPE
	// and Attention; Attr.Seq is not used. What a row becomes depends on its place
	// in the call too, so none of them is RowWise.
	EmbedAt: {Name: "embed_at", Args: args("x:wt tokens:rt wte:r wpe:r? pos:r"), Bytes: embedAtBytes},
	RoPEAt:  {Name: "rope_at", Args: args("qkv:ut table:r pos:r"), Bytes: ropeAtBytes},
	// Attention over a cache of C positions, to which the keys and values of the
	// rows are added first. kv [2*G*C, S]: for each key head its C rows, then for
	// each value head. Positions from pos+N on are not looked at.
	AttentionAt: {Name: "attention_at", Args: args("o:wt kv:u qkv:rt pos:r"), FLOPs: attentionAtFLOPs, Bytes: attentionAtBytes},
	// Between ranks. An instruction names its peers; the k-th collective of a
	// group on one rank meets the k-th on every other. Operands are flat, one row.
	// dst = the sources of all peers one after the other, in the group's order;
	// they may be of different lengths, or empty (absent). src may be its own place
	// in dst.
	AllGather: {Name: "all_gather", Between: true, Args: args("dst:w src:r?")},
	// dst (+)= this rank's part of the sum of all peers' sources, added in the
	// group's order: ((s0 + s1) + s2) + ... The parts are as long as the peers'
	// dst, one after the other; a peer may have none (absent). dst may be its own
	// place in src where it is not accumulated.
	ReduceScatter: {Name: "reduce_scatter", Between: true, Args: args("dst:s? src:r")},
	// x = the sum of all peers' x, added in the group's order.
	AllReduce: {Name: "all_reduce", Between: true, Args: args("x:u")},
	// A message meets the receive of the same tag on its peer.
	Send: {Name: "send", Between: true, Args: args("src:r")},
	Recv: {Name: "recv", Between: true, Args: args("dst:w")},
}

// SliceUnit is the number of rows at whose multiples sequences of seq rows may
// be cut into slices: the backward pass of attention sums over blocks of that
// many queries, the last block first.
func SliceUnit(seq int) int {
	switch {
	case seq <= 8:
		return 2
	case seq <= 32:
		return 8
	case seq <= 256: // more of a larger block's work is thrown away on the diagonal
		return 32
	}
	return 64
}

// NormPiece is the number of elements that one partial sum of NormPart
// covers, counted from the parameter's first element: the order of the sum
// does not depend on how parameters are cut into chunks at multiples of it.
const NormPiece = 1 << 16

// NormPieces is the number of partial sums of a parameter of n elements.
func NormPieces(n int64) int { return int((n + NormPiece - 1) / NormPiece) }

// Positions in the scalars operand [1, NumScalars] f32: what changes from step to step.
const (
	ScalarLR          = iota // learning rate
	ScalarCorrection1        // 1 - Beta1^t, t counting from 1
	ScalarCorrection2        // 1 - Beta2^t
	ScalarLossScale          // 1 / number of target tokens in the global batch
	ScalarChance             // see Chance
	NumScalars
)

// Chance is what ScalarChance holds: ChanceBits random bits of a run's seed and the
// step, as a whole number. With them and the place of an element in the model comes
// what AdamW rounds up and what down: nothing that a plan could change.
func Chance(seed uint64, step int) float32 {
	return float32(mix(mix(seed)+uint64(step)) >> (64 - ChanceBits))
}

// ChanceBits are as many as a float32 holds exactly.
const ChanceBits = 24

// ChanceKey is the 64 random bits for operand k of AdamW, of a parameter: those of
// its elements' rounding come from them and the element's number, see simd.Draws.
func ChanceKey(chance float32, param, k int) (low, high uint32) {
	key := mix(uint64(chance) | uint64(param)<<ChanceBits | uint64(k)<<(2*ChanceBits))
	return uint32(key), uint32(key >> 32)
}

// mix is the finaliser of splitmix64 (Steele, Lea and Flood 2014), a bijection.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Activation selects the function of Act.
type Activation uint8

const (
	GELUTanh Activation = iota // GPT-2's "gelu_new", "gelu_pytorch_tanh"
	GELUErf                    // "gelu"
	ReLU                       // OPT
	SiLU
)

var activations = [...]string{"gelu_tanh", "gelu", "relu", "silu"}

func (a Activation) String() string { return activations[a] }

// Attr holds an operator's constants; each operator reads the few that its
// row in the table names. Zero means absent and is not printed.
type Attr struct {
	Acc       bool // Sum operands are added to
	WT        bool // weight is stored [out, in]
	Grad      bool // CrossEntropy writes the gradient over the logits
	Inverse   bool // RoPE backwards
	Act       Activation
	Seq       int // rows per sequence
	Row0      int // position of the first row of the operands, where they start inside a sequence
	Heads     int // H
	KVHeads   int // G
	HeadDim   int // S
	Window    int // a query sees the last Window keys, itself included; 0: all
	Document  int // with starts: documents' length, for what attention costs, see Documents; changes no result
	Among     int // ranks that share each sequence: rows are one's part, see BuildShare; 0: one
	PosOffset int // rows of wpe before position 0 (OPT: 2)
	Cut       int // LinearDW in bf16: tokens are divided among calls at multiples of this; 0: of 2
	Param     int // the parameter that is updated
	First     int // the element of it that the operands begin with
	Scale     float64
	Eps       float64
	Clip      float64
	Beta1     float64
	Beta2     float64
	Decay     float64
}

// Info returns the operator's row. The result must not be changed.
func (o Op) Info() *Info { return &table[o] }

func (o Op) String() string {
	if o < NumOps {
		return table[o].Name
	}
	return fmt.Sprintf("op(%d)", uint8(o))
}

// FLOPs of one call on operands of these extents.
func (o Op) FLOPs(a *Attr, d []Dim) int64 {
	if f := table[o].FLOPs; f != nil {
		return f(a, d)
	}
	return 0
}

// Bytes that one call has to move at least.
func (o Op) Bytes(a *Attr, d []Dim) int64 {
	if f := table[o].Bytes; f != nil {
		return f(a, d)
	}
	var sum int64
	for i, s := range table[o].Args {
		if i >= len(d) || d[i].Absent() {
			continue
		}
		n := d[i].Bytes()
		if s.Access == Update || s.Access == Sum && a.Acc {
			n *= 2
		}
		sum += n
	}
	return sum
}

// args parses "name:access ..." with access r, w, u (update) or s (sum),
// followed by t for token rows, p for those before a slice too, ? for optional.
func args(s string) []ArgSpec {
	access := map[byte]Access{'r': Read, 'w': Write, 'u': Update, 's': Sum}
	var list []ArgSpec
	for _, f := range strings.Fields(s) {
		name, flags, _ := strings.Cut(f, ":")
		list = append(list, ArgSpec{
			Name:     name,
			Access:   access[flags[0]],
			Token:    strings.Contains(flags, "t"),
			Past:     strings.Contains(flags, "p"),
			Optional: strings.HasSuffix(flags, "?"),
		})
	}
	return list
}

// linearFLOPs: 2 * tokens * in * out, where operand 0 and one other operand
// (1 or 2) have the three extents between them.
func linearFLOPs(other int) func(*Attr, []Dim) int64 {
	return func(a *Attr, d []Dim) int64 {
		if other == 2 { // dw [in,out] from tokens
			return 2 * d[0].Elems() * int64(d[1].Rows)
		}
		return 2 * d[0].Elems() * int64(d[other].Cols)
	}
}

// attentionFLOPs: per counts multiply-adds of S numbers per (query, key) pair
// and head, times two; only the causal pairs inside the window count. Those of
// a sequence's slices add up to those of the sequence. Operand kv has the keys.
func attentionFLOPs(per int64, kv int) func(*Attr, []Dim) int64 {
	return func(a *Attr, d []Dim) int64 {
		end := d[kv].Rows
		return per * (pairsUpTo(a, end) - pairsUpTo(a, end-d[0].Rows)) * int64(a.Heads*a.HeadDim)
	}
}

// pairsUpTo counts the pairs of the first rows queries of a micro-batch.
// Of sequences that n ranks share, each has an n-th of the pairs.
func pairsUpTo(a *Attr, rows int) int64 {
	seq, n := max(a.Seq, 1), max(a.Among, 1)
	pairs := func(rows int) int64 {
		if doc := a.Document; doc > 0 {
			return int64(rows/doc)*AttentionPairs(doc, a.Window) + AttentionPairs(rows%doc, a.Window)
		}
		return AttentionPairs(rows*n, a.Window) / int64(n)
	}
	return int64(rows/seq)*pairs(seq) + pairs(rows%seq)
}

// attentionAtFLOPs and attentionAtBytes: of the last tokens that the cache has
// room for, since the position is not known yet.
func attentionAtFLOPs(a *Attr, d []Dim) int64 {
	return 4 * int64(d[0].Rows) * visible(a, d) * int64(a.Heads*a.HeadDim)
}

func attentionAtBytes(a *Attr, d []Dim) int64 {
	row := int64(2*a.KVHeads*a.HeadDim) * d[1].DType.Size()
	return d[0].Bytes() + d[2].Bytes() + row*(visible(a, d)+int64(d[0].Rows))
}

// visible is how many keys a token sees that finds the cache full.
func visible(a *Attr, d []Dim) int64 {
	context := int64(d[1].Rows / max(2*a.KVHeads, 1))
	if w := int64(a.Window); w > 0 && w < context {
		return w
	}
	return context
}

// embedAtBytes and ropeAtBytes: the rows that are touched, not the whole tables.
func embedAtBytes(_ *Attr, d []Dim) int64 { return 2 * d[0].Bytes() }

func ropeAtBytes(a *Attr, d []Dim) int64 {
	return 2*d[0].Bytes() + int64(d[0].Rows*a.HeadDim)*d[1].DType.Size()
}

// AttentionPairs counts the (query, key) pairs of one causal sequence.
func AttentionPairs(seq, window int) int64 {
	t, w := int64(seq), int64(window)
	if w <= 0 || w >= t {
		return t * (t + 1) / 2
	}
	return w*(w+1)/2 + (t-w)*w
}

// embedBytes: the rows that are touched, not the whole table.
func embedBytes(a *Attr, d []Dim) int64 {
	x := d[0]
	if x.Rows != d[1].Rows { // EmbedBwd: dwte, dx, tokens
		x = d[1]
	}
	n := 2 * x.Bytes()
	if a.Acc {
		n += x.Bytes()
	}
	return n
}
