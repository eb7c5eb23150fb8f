package graph

//go:generate go run ./gen

import (
	"fmt"
	"strings"
)

// Op names an operator. Operators are data: everything the compiler needs to know
// about one is in its row of the table below, and its implementation is in package
// kernel under the same name.
type Op uint8

const (
	None Op = iota
	Linear
	LinearDX
	LinearDW
	Direction
	Gain
	GainGrad
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
	SinkGrad
	Act
	ActBwd
	XIELU
	XIELUBwd
	SwiGLU
	SwiGLUBwd
	Gate
	GateBwd
	ShortConv
	ShortConvDX
	ShortConvDW
	Decay
	DecayBwd
	DecayGrad
	DeltaRule
	DeltaRuleBwd
	TimeSteps
	TimeStepsBwd
	StateScan
	StateScanBwd
	Route
	RouteBwd
	ExpertLinear
	ExpertDW
	ExpertDB
	Combine
	Embed
	EmbedBwd
	PosBwd
	LossPart
	CrossEntropy
	Distil
	TopLogs
	Preference
	LossSum
	NormPart
	NormAll
	AdamW
	Lion
	SGD
	Muon
	Cast
	Add
	Scale
	SoftCap
	Drop
	Jitter
	LatentKV
	LatentKVBwd
	HeadCols
	Compress
	Expand
	Copy
	EmbedAt
	RoPEAt
	AttentionAt
	ShortConvAt
	DeltaRuleAt
	StateScanAt
	AllGather
	ReduceScatter
	AllReduce
	AllToAll
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

// ArgSpec is one operand of an operator, by position. operands.go has a constant for each position.
type ArgSpec struct {
	Name     string
	Access   Access
	Optional bool
	Token    bool // rows are tokens of the micro-batch
	Room     bool // the operator works in it: what it holds afterwards means nothing
	Past     bool // for a slice, the rows include those of the sequence before it
	Shape    Shape
}

// Kind says how an operator's results depend on its token rows. It tells programs
// where they may cut micro-batches and row ranges without changing a bit, and lets
// Verify prove that they do not.
type Kind uint8

const (
	// Whole results depend on all of the operands.
	Whole Kind = iota
	// RowWise results have rows r that depend only on rows r of the token operands
	// (and on all of the others), so any row range may be computed separately.
	RowWise
	// Sequence results have rows that depend only on rows of the same sequence
	// (Attr.Seq rows), in the forward pass only up to their own: see Attention.
	Sequence
	// TokenSum results are sums over token rows in ascending order, continued from
	// the old value if Attr.Acc is set: rows may be cut (in bf16, see LinearDW, only
	// at some places) as long as the ranges run in order.
	TokenSum
)

// Alias says how operands 0 and 1 may overlap.
type Alias uint8

const (
	Apart           Alias = iota // not at all
	Same                         // they may be the same region
	SameUnlessAdded              // likewise, if the first is not added to (Attr.Acc)
	SecondInFirst                // the second may be part of the first
	FirstInSecond                // the first may be part of the second, if it is not added to
)

// Info is an operator's row in the table: all that is known of it but how it is computed.
type Info struct {
	Name string
	Args []ArgSpec
	// Kind says how results depend on token rows.
	Kind Kind
	// Position says that results also depend on where in its sequence a row is, on Attr.Row0.
	Position bool
	// Alike says that elements of operands correspond, except of those that always have one row, wherever in the
	// operands they are: programs cut all of them at the same places.
	Alike bool
	// Alias says how the first operand, a result, and the second may overlap. Other results overlap nothing.
	Alias Alias
	// Rule returns what is wrong with the operands beyond what their shapes say, or "". There is a Dim for each
	// operand.
	Rule requirement
	// Between marks operators between ranks: devices execute them, not kernels.
	Between bool
	// FLOPs counts the multiplications and additions of one call, a fused
	// multiply-add as two. Nil means memory-bound, counted as 0.
	FLOPs func(a *Attr, d []Dim) int64
	// Bytes is the traffic with a perfect cache. Nil means the sum over operands.
	Bytes func(a *Attr, d []Dim) int64
	// TrailingBytes is the traffic of what most devices do in a separate pass after the rest: its time
	// adds to the FLOPs' instead of overlapping it. Nil means none.
	TrailingBytes func(a *Attr, d []Dim) int64
}

// Legend of operands: name:type[rows,columns]:access. It is what Check checks. The constant for an operand's position is
// the operator's name and the operand's or, where that is too short, a word that follows it: g=Gain.
//
//	w:q[I,O]':r  the operand w, read, holds I x O numbers in f32, bf16 or int8, or O x I with Attr.WT
//
// A capital is an extent that is the same wherever it occurs in a row, 2F twice F, a number itself. Some come
// from attributes: T = Seq, H = Heads, S = HeadDim, A = H*S (all query heads), G = 2*KVHeads*S (key and
// value heads), Q = A+G, U = max(1, Heads) (groups of a norm). # is NumScalars. With Attr.NF4 columns of w are as
// many as NF4Cols says. Types: f f32 or bf16, s f32, r f32 or f64, p any of these three, m moments: f32, bf16 or packed, h bf16, i i32, d f64, u u16, q f32, bf16 or int8 (see int8.go), * any.
//
// Access: r read, w written, u updated, s a sum (see Sum), then t for token rows, p for those before a slice
// too, ? for optional.
//
// Comments call N the tokens of a micro-batch (rows; sequence-major, N = B*T), D the width, F the feed-forward
// width, V the vocabulary, E the elements of a parameter.
//
//	a token has K slots side by side, one for each expert that it goes to
//	weights are [in, out] (GPT-2's Conv1D) or, with Attr.WT, [out, in]
//	qkv is query heads, key heads, value heads side by side
//	stats are mean and 1/deviation, or 1/root mean square per group of columns
var table = [NumOps]Info{
	None: {Name: "none"},
	// y = x.w + bias + res, or y += x.w with Acc, without bias and res. Each element
	// is one chain of fused multiply-adds over the input index, ascending, that starts
	// from bias+res or y.
	// With Attr.NF4 w is stored in 4 bits per number, see NF4Block. With Attr.FP8 x and w are rounded first, see fp8.go.
	Linear: {Name: "linear", Args: args("y:f[N,O]:st x:f[N,I]:rt w:q[I,O]':r bias:f[1,O]:r? res:f[N,O]:rt?"), Kind: RowWise, FLOPs: linearFLOPs(LinearX), Bytes: linearBytes, TrailingBytes: scaledBytes, Rule: oneStart},
	// dx (+)= dy.w^T; w as above. With x (never with Acc) dx = (dy.w^T)*act'(x): the
	// derivatives of a product and of the activation before it.
	LinearDX: {Name: "linear_dx", Args: args("dx:f[N,I]:st dy:f[N,O]:rt w:q[I,O]':r x:f[N,I]:rt?"), Kind: RowWise, FLOPs: linearFLOPs(LinearDXDY), Bytes: linearBytes, TrailingBytes: derivedBytes, Rule: notAdded},
	// dw (+)= x^T.dy (or dy^T.x with WT), tokens ascending, continuing the chain in
	// dw: splitting the tokens over calls changes no bit. If both operands are bf16,
	// tokens are added in pairs, or Attr.Cut at a time, so they may be split only at multiples
	// of that. dw2 is a second gradient, of x2 and dy2: computed together, the two occupy
	// processors that either alone would leave idle.
	LinearDW: {Name: "linear_dw", Kind: TokenSum, Args: args("dw:s[I,O]':s x:f[N,I]:rt dy:f[N,O]:rt dw2:s[J,L]':s? x2:f[N,J]:rt? dy2:f[N,L]:rt?"), FLOPs: sumFLOPs, Rule: oneOrTwo},
	// db (+)= column sums of dy, tokens ascending.
	BiasGrad: {Name: "bias_grad", Kind: TokenSum, Args: args("db:s[1,O]:s dy:f[N,O]:rt")},
	// DoRA (2402.09353): column c of y is divided by the length of row c of w + Scale * b.a. NF4 as in Linear.
	Direction: {Name: "direction", Args: args("y:f[N,O]:ut a=Down:f[R,I]:r w:f[O,I]:r b=Up:f[O,R]:r"), Kind: RowWise, FLOPs: directionFLOPs},
	// y = x*g + bias + res, column by column.
	Gain:        {Name: "gain", Args: args("y:f[N,D]:wt x:f[N,D]:rt g=By:f[1,D]:r bias:f[1,D]:r? res:f[N,D]:rt?"), Kind: RowWise},
	GainGrad:    {Name: "gain_grad", Kind: TokenSum, Args: args("dg=DBy:s[1,D]:s dy:f[N,D]:rt x:f[N,D]:rt")},
	LayerNorm:   {Name: "layernorm", Args: args("y:f[N,D]:wt stats:s[N,2]:wt x:f[N,D]:rt g=Gain:f[1,D]:r b=Bias:f[1,D]:r?"), Kind: RowWise},
	LayerNormDX: {Name: "layernorm_dx", Args: args("dx:f[N,D]:st dy:f[N,D]:rt x:f[N,D]:rt g=Gain:f[1,D]:r stats:s[N,2]:rt"), Kind: RowWise},
	// dg, db: tokens ascending.
	LayerNormDW: {Name: "layernorm_dw", Kind: TokenSum, Args: args("dg=DGain:s[1,D]:s db=DBias:s[1,D]:s? dy:f[N,D]:rt x:f[N,D]:rt stats:s[N,2]:rt")},
	// y = x/rms(x)*g + res. A row consists of Attr.Heads groups of columns (one group if Heads
	// is 0), each as long as g and normalised by itself: stats [N, max(1, Heads)]. With
	// UnitOffset the gains are 1 + g.
	RMSNorm: {Name: "rmsnorm", Args: args("y:f[N,D]:wt stats:s[N,U]:wt x:f[N,D]:rt g=Gain:f[1,P]:r res:f[N,D]:rt?"), Kind: RowWise, Rule: grouped(RMSNormGain, RMSNormX)},
	// dx may be the same region as dy if it is not accumulated.
	RMSNormDX: {Name: "rmsnorm_dx", Args: args("dx:f[N,D]:st dy:f[N,D]:rt x:f[N,D]:rt g=Gain:f[1,P]:r stats:s[N,U]:rt"), Kind: RowWise, Alias: SameUnlessAdded, Rule: grouped(RMSNormDXGain, RMSNormDXX)},
	// dg: tokens ascending, and groups ascending within a token.
	RMSNormDW: {Name: "rmsnorm_dw", Kind: TokenSum, Args: args("dg=DGain:s[1,P]:s dy:f[N,D]:rt x:f[N,D]:rt stats:s[N,U]:rt"), Rule: grouped(RMSNormDWDGain, RMSNormDWX)},
	// Rotates the query and key heads of qkv (queries alone if KVHeads is 0) in place; row n is at position
	// (n+Row0) mod Seq. table [Seq, R] holds cos (first R/2) and sin (last R/2); pairs are
	// (i, i+R/2), and the last S-R columns of a head stay unchanged. Attr.Inverse rotates back: the
	// derivative.
	RoPE: {Name: "rope", Args: args("qkv:f[N,Q]:ut table:s[T,R]:r"), Kind: RowWise, Position: true, Rule: rotaryTableFault},
	// Causal attention per sequence of Seq rows, never storing Seq x Seq. q and kv
	// [M, 2*G*S] are bands of qkv. The queries are the last N of kv's M rows: all rows of whole
	// sequences (N = M), or a slice of one sequence, where kv also has the keys and values of
	// the rows before it. How a sequence is cut into slices changes no bit. lse [N, H] f32 is
	// the log of the softmax's denominator.
	// starts [N, 1] i32 has, for each query, the position in its sequence of the first key that
	// it sees, where its document begins: at most the query's own position, and ascending
	// within a sequence. If absent, all are 0.
	// sinks [1, H] adds to each head one score that every query sees. It is neither scaled nor
	// masked, and has no value (gpt-oss), so it is only a term of the denominator.
	// With Limit (Gemma 2) scaled scores become Limit*tanh(score/Limit), here, backward and in
	// AttentionAt.
	Attention: {Name: "attention", Kind: Sequence, Args: args("o:f[N,A]:wt lse:s[N,H]:wt q:f[N,A]:rt kv:f[M,G]:rtp starts:i[N,1]:rt? sinks:f[1,H]:r?"), FLOPs: attentionFLOPs(4, AttentionKV), Rule: sliced},
	// dkv (+)= the contribution of the slice's queries, all M rows. Slices run from
	// the last, which does not accumulate, to the first, and their bounds are
	// multiples of SliceUnit: then the sums in an f32 dkv are one chain however the
	// sequence is cut. A bf16 dkv is rounded after every slice.
	// delta [N, H] f32 is the row sums of do*o, which SinkGrad reads. Sinks change nothing
	// here: lse includes them.
	AttentionBwd: {Name: "attention_bwd", Kind: Sequence, Args: args("dq:f[N,A]:wt dkv:f[M,G]:stp delta:s[N,H]:wt do:f[N,A]:rt q:f[N,A]:rt kv:f[M,G]:rtp o:f[N,A]:rt lse:s[N,H]:rt starts:i[N,1]:rt?"), FLOPs: attentionFLOPs(10, AttentionBwdKV), Rule: slicedBack},
	// dsinks (+)= the sum of -exp(sinks-lse)*delta, tokens ascending: a sink's weight is taken
	// from the others'.
	SinkGrad: {Name: "sink_grad", Kind: TokenSum, Args: args("dsinks:s[1,D]:s delta:s[N,D]:rt lse:s[N,D]:rt sinks:f[1,D]:r")},
	Act:      {Name: "act", Args: args("y:f[N,D]:wt x:f[N,D]:rt"), Kind: RowWise},
	// dx may be the same region as dy.
	ActBwd: {Name: "act_bwd", Args: args("dx:f[N,D]:wt dy:f[N,D]:rt x:f[N,D]:rt"), Kind: RowWise, Alias: Same},
	// An activation with parameters: p = softplus(positive), n = beta + softplus(negative). Of x > 0 y = p*x^2 + beta*x, of others
	// n*(expm1(min(x, eps)) - x) + beta*x. beta and eps are sums of B rows, see StateRows.
	XIELU: {Name: "xielu", Args: args("y:f[N,D]:wt x:f[N,D]:rt p=Positive:f[1,1]:r n=Negative:f[1,1]:r beta:f[B,1]:r eps:f[B,1]:r"), Kind: RowWise},
	// dx may be the same region as dy. The columns of terms are what each token contributes to the gradients of positive and negative.
	XIELUBwd: {Name: "xielu_bwd", Args: args("dx:f[N,D]:wt dy:f[N,D]:rt x:f[N,D]:rt p=Positive:f[1,1]:r n=Negative:f[1,1]:r beta:f[B,1]:r eps:f[B,1]:r terms:s[N,2]:wt?"), Kind: RowWise, Alias: Same},
	// y [N,F] = Act(gate)*up of gu [N,2F] = gate|up: SwiGLU with SiLU, GeGLU with GELU. With
	// weights [N,K] f32 a row is K slots, y [N,K*F] and gu [N,K*2F], and each slot of y is
	// multiplied by its weight. With Attr.Limit (gpt-oss) gates are clamped to at most Limit,
	// ups to between -Limit and Limit, and y = gate*sigmoid(Alpha*gate)*(up + 1) times the
	// weights, which are then required.
	SwiGLU: {Name: "swiglu", Args: args("y:f[N,F]:wt gu=GateUp:f[N,2F]:rt weights:s[N,K]:rt?"), Kind: RowWise, Rule: either(weighted(SwiGLUY, SwiGLUWeights), clamped(SwiGLUWeights))},
	// dweights [N,K] f32 (+)= the sum of dy*Act(gate)*up over each slot.
	SwiGLUBwd: {Name: "swiglu_bwd", Args: args("dgu=DGateUp:f[N,2F]:wt dy:f[N,F]:rt gu=GateUp:f[N,2F]:rt weights:s[N,K]:rt? dweights:s[N,K]:st?"), Kind: RowWise, Rule: either(weighted(SwiGLUBwdDY, SwiGLUBwdWeights), clamped(SwiGLUBwdWeights))},
	// y = Act(gate)*up: a gate of what attention or a delta rule computed.
	Gate:    {Name: "gate", Args: args("y:f[N,F]:wt gate=Gates:f[N,F]:rt up:f[N,F]:rt"), Kind: RowWise},
	GateBwd: {Name: "gate_bwd", Args: args("dgate=DGates:f[N,F]:wt dup:f[N,F]:wt dy:f[N,F]:rt gate=Gates:f[N,F]:rt up:f[N,F]:rt"), Kind: RowWise},
	// y = Act(z), z[n,c] the sum of w[c,k]*x[n-K+1+k,c] over k, ascending, that starts from the bias: a causal convolution of each
	// column by itself. x is 0 before the token's document or, without starts (see Attention), its sequence of Seq rows.
	ShortConv:   {Name: "short_conv", Args: args("y:f[N,C]:wt x:f[N,C]:rt w:f[C,K]:r starts:i[N,1]:rt? bias:f[1,C]:r?"), Kind: Sequence, FLOPs: convFLOPs(ShortConvW), Rule: inSequences(ShortConvX)},
	ShortConvDX: {Name: "short_conv_dx", Args: args("dx:f[N,C]:wt dy:f[N,C]:rt x:f[N,C]:rt w:f[C,K]:r starts:i[N,1]:rt? bias:f[1,C]:r?"), Kind: Sequence, FLOPs: convFLOPs(ShortConvDXW), Rule: inSequences(ShortConvDXX)},
	// dw (+)= its gradient, tokens ascending, and so is db.
	ShortConvDW: {Name: "short_conv_dw", Kind: TokenSum, Args: args("dw:s[C,K]:s dy:f[N,C]:rt x:f[N,C]:rt w:f[C,K]:r starts:i[N,1]:rt? bias:f[1,C]:r? db=DBias:s[1,C]:s?"), FLOPs: convFLOPs(ShortConvDWW), Rule: either(inSequences(ShortConvDWX), biasHas(ShortConvDWBias, ShortConvDWDBias))},
	// gates [N,2P] = -exp(decay)*softplus(a+bias) | sigmoid(b) of ba = b|a: the logarithm of how much a state keeps, and how much it
	// takes in, of each of P heads.
	Decay:    {Name: "decay", Args: args("gates:s[N,2P]:wt ba=BA:f[N,2P]:rt decay=Rate:f[1,P]:r bias:f[1,P]:r"), Kind: RowWise},
	DecayBwd: {Name: "decay_bwd", Args: args("dba=DBA:f[N,2P]:wt dgates:s[N,2P]:rt ba=BA:f[N,2P]:rt decay=Rate:f[1,P]:r bias:f[1,P]:r"), Kind: RowWise},
	// ddecay (+)= the sum of dgates*gates, tokens ascending.
	DecayGrad: {Name: "decay_grad", Kind: TokenSum, Args: args("ddecay=DRate:s[1,P]:s dgates:s[N,2P]:rt gates:s[N,2P]:rt")},
	// The gated delta rule (2412.06464), per sequence of Seq rows and head. With g|beta the gates, a state S of HeadDim x R numbers,
	// 0 where a document begins (see Attention), becomes exp(g)*S, then S + k*(beta*(v - k.S)), and o = q.S. qkv is query heads, key
	// heads, value heads side by side; keys and queries have length 1, and queries are divided by the root of HeadDim. There are
	// KVHeads of both, each for as many consecutive ones of the Heads value heads. See delta.go for the order of sums, and for states.
	DeltaRule:    {Name: "delta_rule", Args: args("o:f[N,V]:wt states:s[N,Z]:wt qkv:f[N,W]:rt gates:s[N,2P]:rt starts:i[N,1]:rt?"), Kind: Sequence, FLOPs: deltaFLOPs(DeltaRuleO, 2, 6), Rule: deltaRule(DeltaRuleO, DeltaRuleQKV, DeltaRuleGates, DeltaRuleStates)},
	DeltaRuleBwd: {Name: "delta_rule_bwd", Args: args("dqkv:f[N,W]:wt dgates:s[N,2P]:wt do:f[N,V]:rt qkv:f[N,W]:rt gates:s[N,2P]:rt states:s[N,Z]:rt starts:i[N,1]:rt?"), Kind: Sequence, FLOPs: deltaFLOPs(DeltaRuleBwdDO, 8, 18), Rule: deltaRule(DeltaRuleBwdDO, DeltaRuleBwdQKV, DeltaRuleBwdGates, DeltaRuleBwdStates)},
	// gates [N,2P] = -exp(decay)*dt | dt, dt = softplus(x+bias), at least Least and, if Limit is not 0, at most that: the time that
	// passes, and the logarithm of how much a state keeps meanwhile, of each of P heads. DecayGrad sums the gradient of decay.
	TimeSteps:    {Name: "time_steps", Args: args("gates:s[N,2P]:wt x:f[N,P]:rt decay=Rate:f[1,P]:r bias:f[1,P]:r"), Kind: RowWise},
	TimeStepsBwd: {Name: "time_steps_bwd", Args: args("dx:f[N,P]:wt dgates:s[N,2P]:rt x:f[N,P]:rt decay=Rate:f[1,P]:r bias:f[1,P]:r"), Kind: RowWise},
	// The selective state-space scan of Mamba2 (2405.21060), per sequence of Seq rows and head. With g|dt the gates, a state S of HeadDim
	// x R numbers, 0 where a document begins (see Attention), becomes exp(g)*S + b*(dt*x), and o = c.S + skip*x. xbc is all heads' x,
	// then b and c of KVHeads groups, each for as many consecutive heads. See scan.go for the order of sums, and for states.
	StateScan: {Name: "state_scan", Args: args("o:f[N,V]:wt states:s[N,Z]:wt xbc=XBC:f[N,W]:rt gates:s[N,2P]:rt skip:f[1,P]:r starts:i[N,1]:rt?"), Kind: Sequence, FLOPs: scanFLOPs(StateScanO, 2, 4), Rule: stateScan(StateScanO, StateScanXBC, StateScanGates, StateScanStates)},
	// dgates [N,3P] also has what each token contributes to the gradient of skip. bands is room for the gradients of b and c that bands
	// of heads contribute, see ScanBands; absent if a group is one band.
	StateScanBwd: {Name: "state_scan_bwd", Args: args("dxbc=DXBC:f[N,W]:wt dgates:s[N,3P]:wt do:f[N,V]:rt xbc=XBC:f[N,W]:rt gates:s[N,2P]:rt skip:f[1,P]:r states:s[N,Z]:rt bands:s[N,Y]:wtm? starts:i[N,1]:rt?"), Kind: Sequence, FLOPs: scanFLOPs(StateScanBwdDO, 6, 12), Rule: either(stateScan(StateScanBwdDO, StateScanBwdXBC, StateScanBwdGates, StateScanBwdStates), scanRoom)},
	// The K experts of each token out of E (the columns of logits): those with the greatest
	// logits, the first among equals, in ascending order. experts [N,K] i32; weights [N,K] f32
	// are their softmax over all experts or, if Normed, over those K; with Sigmoid, the sigmoid of
	// their logits, divided by its sum over those K if Normed. Alpha multiplies them. With bias,
	// those are chosen whose softmax over all experts, or sigmoid, and bias together are greatest. The bias
	// is the sum of B rows, see StateRows. With Groups a token's experts are from the Best groups whose two
	// greatest add up to the most, the first among equals.
	Route: {Name: "route", Args: args("weights:s[N,K]:wt experts:i[N,K]:wt logits:f[N,E]:rt bias:f[B,E]:r?"), Kind: RowWise, Rule: either(enough(RouteExperts, RouteLogits), groupedExperts)},
	// With a Scale the loss has a term for each sequence of Seq rows. Its gradient with respect
	// to the probability of expert e at each token is Scale*scalars[ScalarLossScale]*(slots of
	// e in the sequence): see Balance in package model.
	RouteBwd: {Name: "route_bwd", Args: args("dlogits:f[N,E]:wt dweights:s[N,K]:rt weights:s[N,K]:rt experts:i[N,K]:rt logits:f[N,E]:rt scalars:s[1,#]:r?"), Kind: Sequence, Rule: balanced},
	// y [N,K*O]: slot k of token n is x.w of expert experts[n,k], w as in Linear. x is [N,I], the
	// same for all slots, or [N,K*I] with Slots. The matrices of Attr.Experts experts are
	// stacked: w is [Experts*I,O] or, with WT, [Experts*O,I]. NF4 and Acc as in Linear. With bias
	// [Experts,O] (never with Acc) sums start from the expert's row of bias or, with weights
	// [N,K] f32, from that row times the slot's weight.
	ExpertLinear: {Name: "expert_linear", Args: args("y:f[N,Y]:st x:f[N,X]:rt w:f[R,C]:r experts:i[N,K]:rt bias:f[E,O]:r? weights:s[N,K]:rt?"), Kind: RowWise, FLOPs: expertFLOPs, Bytes: expertBytes, Rule: either(expertLinear, expertBias)},
	// dw (+)= x^T.dy of each expert's tokens, ascending (or dy^T.x with WT). x, dy or both have
	// slots. If both are bf16, an expert's tokens of each sequence are added in groups of
	// max(2, Attr.Cut), the last one padded with zeros: then tokens may be split only between
	// sequences.
	ExpertDW: {Name: "expert_dw", Kind: TokenSum, Args: args("dw:s[R,C]:s x:f[N,X]:rt dy:f[N,Y]:rt experts:i[N,K]:rt"), FLOPs: expertDWFLOPs, Rule: expertDW},
	// db [Experts,O] (+)= the sum of dy over each expert's tokens, ascending. dy is [N,O], or
	// [N,K*O] with slots. With weights [N,K] f32 each term is multiplied by the slot's weight.
	ExpertDB: {Name: "expert_db", Kind: TokenSum, Args: args("db:s[E,O]:s dy:f[N,Y]:rt experts:i[N,K]:rt weights:s[N,K]:rt?"), Rule: expertDB},
	// y = res + the slots of x [N,K*D], added in ascending order; with Acc, y += the slots.
	Combine: {Name: "combine", Args: args("y:f[N,D]:st x:f[N,X]:rt res:f[N,D]:rt?"), Kind: RowWise, Rule: combined},
	// x[n] = wte[tokens[n]]*Scale + wpe[(n+Row0) mod Seq + PosOffset]. tokens is [N,1] i32.
	// A Scale of 0 is 1. With Vocab wte has the rows from First on of that
	// many tokens, and of the others there is nothing; with Acc the rows of x of other tokens stay as they are.
	Embed: {Name: "embed", Kind: RowWise, Args: args("x:f[N,D]:st tokens:i[N,1]:rt wte:q[V,D]:r wpe:q[P,D]:r?"), Bytes: embedBytes, Position: true, Rule: positions(EmbedWPE)},
	// dwte (+)= rows of dx*Scale scattered, tokens ascending; without Acc dwte is
	// cleared first.
	EmbedBwd: {Name: "embed_bwd", Kind: TokenSum, Args: args("dwte:s[V,D]:s dx:f[N,D]:rt tokens:i[N,1]:rt"), Bytes: embedBytes},
	PosBwd:   {Name: "pos_bwd", Kind: TokenSum, Args: args("dwpe:s[P,D]:s dx:f[N,D]:rt"), Position: true, Rule: positions(PosBwdDWPE)},
	// loss [N,1] f32 = -log softmax(logits)[target] (0 where target < 0);
	// with Attr.Grad the logits are replaced by (softmax - onehot)*scalars[ScalarLossScale]
	// (0 where target < 0). With weights [N,1] f32 each row's gradient is multiplied by its
	// weight. With Limit the logits are from SoftCap, and the gradient is of what they were before. With parts the
	// logits are columns First to First+V of the vocabulary, and parts has what LossPart says of all columns. With values the loss is
	// that of a regression, (logit-value)² where target >= 0, V is 1, and the gradient is of that.
	CrossEntropy: {Name: "cross_entropy", Args: args("loss:s[N,1]:wt logits:f[N,V]:ut targets:i[N,1]:rt scalars:s[1,#]:r weights:s[N,1]:rt? parts:s[N,2P]:rt? values:s[N,1]:rt?"), Kind: RowWise, Rule: regresses},
	// What CrossEntropy does where a teacher is learnt from, too, see distil.go. ids [N,K] are different tokens, logs [N,K] f32 their
	// log-probabilities under the teacher. With weight Rate and temperature t = Scale, and with both models' probabilities at t, the loss is
	// (1-Rate) times that of CrossEntropy + Rate t² times KL(teacher || model), in which all other tokens are one. Rows whose first id is negative
	// have CrossEntropy's loss.
	Distil: {Name: "distil", Args: args("loss:s[N,1]:wt logits:f[N,V]:ut targets:i[N,1]:rt scalars:s[1,#]:r ids:i[N,K]:rt logs:s[N,K]:rt"), Kind: RowWise, Rule: distils},
	// ids [N,K] are the tokens with the largest logits, in descending order, of equal ones the first first; logs [N,K] f32 are their
	// log-probabilities, of softmax(logits/Scale).
	TopLogs: {Name: "top_logs", Args: args("ids:i[N,K]:wt logs:s[N,K]:wt logits:f[N,V]:rt"), Kind: RowWise, Rule: ofLargest},
	// parts [N,2P] f32 = 0 but for columns 2k and 2k+1, where logits are columns First = k*V to First+V of a vocabulary of P*V:
	// log(sum(exp(logits))), and logits[target-First], or 0 where that is another's. Or parts has only these two columns.
	LossPart: {Name: "loss_part", Args: args("parts:s[N,2P]:wt logits:f[N,V]:rt targets:i[N,1]:rt"), Kind: RowWise, Rule: ofVocabulary},
	// The loss of pairs, see PairLoss. A sequence of Seq rows, at least two,
	// consists of documents, each the rows with the same start: the first is chosen and the second rejected,
	// the third chosen and the fourth rejected. nll [N,1] has their tokens' losses. A document's values are in
	// its first row:
	//
	//	reference  log-probability of the document under the reference, 0 where the loss has none
	//	ratios     that under the model (-sum or mean of nll, where target >= 0) minus reference
	//	loss       of a chosen document that of its ratio and that of the rejected, with beta Scale; else 0
	//
	// and the other rows have 0. weights [N,1] is the derivative of the pair's loss with respect to each row's
	// nll. Two documents without targets are no pair, nor is a last document without a partner: all their
	// results are 0. With verdicts the loss is Unpaired, and each document has its own, of its verdict: the weight of a desirable one,
	// minus that of an undesirable one, or 0, which counts nothing; then reference has the batch's kl in it.
	Preference: {Name: "preference", Kind: Sequence, Args: args("loss:s[N,1]:wt ratios:s[N,1]:wt weights:s[N,1]:wt nll:s[N,1]:rt reference:s[N,1]:rt targets:i[N,1]:rt starts:i[N,1]:rt verdicts:s[N,1]:rt?"), Rule: paired},
	// total [1,1] f64 = sum of loss, tokens ascending.
	LossSum: {Name: "loss_sum", Kind: TokenSum, Args: args("total:d[1,1]:s loss:s[N,1]:rt")},
	// part [1,K] f64: sums of squares of g in pieces of NormPiece elements.
	NormPart: {Name: "norm_part", Args: args("part:d[1,K]:w g=Grad:s[R,C]:r"), Rule: pieces},
	// clip [1,2] f32 = {min(1, Clip/(norm+1e-6)), norm}, norm = sqrt(sum of parts
	// in float64, in an order chosen by the device). A norm that is not a number or, as f32,
	// above scalars[ScalarBound] makes clip {0, norm}. Clip <= 0 means no clipping: {1, norm}
	// always, since updates then do not wait for the norm.
	NormAll: {Name: "norm_all", Args: args("clip:s[1,2]:w part:d[1,K]:r scalars:s[1,#]:r")},
	// AdamW (Loshchilov and Hutter, 1711.05101, algorithm 2), with g scaled by
	// clip[0] first, if clip is present. A clip[0] of 0 skips the update: p, m and v keep their
	// bits. g is f32; p16 is a bf16 copy of an f32 p, written even if the update is skipped.
	// Each of p, m and v is f32, or bf16 with stochastic rounding, or p is int8 with the same, so that small updates add up
	// over many steps: see Chance. Attr.Param and First identify the elements in the model; if
	// none is rounded stochastically, both are 0. m and v may be packed, in rows of PackedMoments(C) bytes.
	// With rest, p and rest are the halves of fp32 numbers: p the bf16 that others read, rest
	// what it leaves out. See float16.Halves.
	// With Attr.Masked elements whose p is 0 keep it, whatever g is, and their m and v become 0.
	AdamW: {Name: "adamw", Args: args("p:q[R,C]:u m:m[R,C]:u v:m[R,C]:u g=Grad:s[R,C]:r clip:s[1,2]:r? scalars:s[1,#]:r p16:h[R,C]:w? rest:u[R,C]:u?"), Alike: true, FLOPs: packedFLOPs, Rule: halved(AdamWP, AdamWP16, AdamWRest)},
	// Lion (Chen et al., 2302.06675, algorithm 2), all else as in AdamW: p moves by the learning rate against the sign of
	// Beta1*m + (1-Beta1)*g, 0 where that is 0, and m becomes Beta2*m + (1-Beta2)*g.
	Lion: {Name: "lion", Args: args("p:q[R,C]:u m:m[R,C]:u g=Grad:s[R,C]:r clip:s[1,2]:r? scalars:s[1,#]:r p16:h[R,C]:w? rest:u[R,C]:u?"), Alike: true, FLOPs: packedFLOPs, Rule: halved(LionP, LionP16, LionRest)},
	// SGD: p moves by the learning rate against g, all else as in AdamW. It has no moments.
	SGD: {Name: "sgd", Args: args("p:q[R,C]:u g=Grad:s[R,C]:r clip:s[1,2]:r? scalars:s[1,#]:r p16:h[R,C]:w? rest:u[R,C]:u?"), Alike: true, Rule: halved(SGDP, SGDP16, SGDRest)},
	// Muon (Jordan et al.), of a whole matrix, all else as in AdamW: m becomes Beta1*m + (1-Beta1)*g, X is Beta1*m + (1-Beta1)*g
	// over its norm, and p moves by Attr.Scale times the learning rate against what X becomes in the products of muon.go,
	// which take place in work, with its type.
	Muon: {Name: "muon", Args: args("p:f[R,C]:u m:f[R,C]:u g=Grad:s[R,C]:r clip:s[1,2]:r? scalars:s[1,#]:r p16:h[R,C]:w? rest:u[R,C]:u? work:f[1,K]:wm"), FLOPs: muonFLOPs, Rule: either(halved(MuonP, MuonP16, MuonRest), muonRoom)},
	Cast: {Name: "cast", Args: args("dst:f[R,C]:w src:f[R,C]:r"), Kind: RowWise, Alike: true},
	Add:  {Name: "add", Args: args("y:f[R,C]:u x:f[R,C]:r"), Kind: RowWise, Alike: true},
	// y *= Attr.Scale or, if that is 0, y *= by, the sum of B rows, see StateRows.
	Scale: {Name: "scale", Args: args("y:f[N,D]:ut by:f[B,1]:r?"), Kind: RowWise, Rule: scaledOnce},
	// y = Limit*tanh(y/Limit).
	SoftCap: {Name: "soft_cap", Args: args("y:f[N,D]:ut"), Kind: RowWise, Rule: hasLimit},
	// y (+)= x/(1-Rate) or, with the probability Rate, 0. A token's key and Attr.Param, the number of the mask, decide which elements
	// are 0, see Masks. Of a token whose key is 0 all are kept as they are.
	Drop: {Name: "drop", Args: args("y:f[N,D]:st x:f[N,D]:rt keys:i[N,1]:rt"), Kind: RowWise, Rule: dropsSome},
	// y += Scale * numbers between -1 and 1, evenly distributed, which are drawn as Drop's are. A token whose key is 0 gets none.
	Jitter: {Name: "jitter", Args: args("y:f[N,D]:ut keys:i[N,1]:rt"), Kind: RowWise},
	// Key heads turned | plain and value heads value | zeros of up, which has plain | value for each of the KVHeads, and of the columns
	// that keys of all heads have in common. See model.Latent.
	LatentKV: {Name: "latent_kv", Args: args("kv:f[N,G]:wt up:f[N,W]:rt turned:f[N,R]:rt"), Kind: RowWise, Rule: latentHeads(LatentKVUp, LatentKVTurned)},
	// dturned is the sum over heads, ascending.
	LatentKVBwd: {Name: "latent_kv_bwd", Args: args("dup:f[N,W]:wt dturned:f[N,R]:wt dkv:f[N,G]:rt"), Kind: RowWise, Rule: latentHeads(LatentKVBwdDUp, LatentKVBwdDTurned)},
	// Of each of the Heads of x the first columns, as many as y has, and zeros where x has fewer.
	HeadCols: {Name: "head_cols", Args: args("y:f[N,X]:wt x:f[N,Y]:rt"), Kind: RowWise, Rule: headWise},
	// y = the kept elements of x, then zeros; y = kept x at its places, and zeros elsewhere. See MaskLine.
	Compress: {Name: "compress", Args: args("y:f[1,K]:w x:f[1,E]:r mask:i[1,M]:r"), Rule: masked(CompressY, CompressX, CompressMask)},
	Expand:   {Name: "expand", Args: args("y:f[1,E]:w x:f[1,K]:r mask:i[1,M]:r"), Rule: masked(ExpandX, ExpandY, ExpandMask)},
	// Copies bytes from one tier to another, or within one.
	Copy: {Name: "copy", Args: args("dst:*[R,C]:w src:*[R,C]:r"), Alike: true, Rule: copied},
	// Generation: rows are N tokens at positions that are an input of the step, pos. With pos
	// [1,1] i32 they are at positions pos, pos+1, ... of one sequence. [1,2] also has the number
	// of the sequence among those of the cache. [N,2] has both for each row: then rows may be of
	// any sequences, and rows with a negative position are idle, which attention makes 0 and
	// leaves out of the cache. Otherwise like Embed, RoPE and Attention. A row's result
	// also depends on its index in the call, so none of them is RowWise.
	EmbedAt: {Name: "embed_at", Args: args("x:f[N,D]:wt tokens:i[N,1]:rt wte:f[V,D]:r wpe:f[P,D]:r? pos:i[B,W]:r"), Bytes: embedAtBytes, Rule: positionsAt(EmbedAtX, EmbedAtWPE, EmbedAtPos)},
	RoPEAt:  {Name: "rope_at", Args: args("qkv:f[N,Q]:ut table:s[P,R]:r pos:i[B,W]:r"), Bytes: ropeAtBytes, Rule: either(rotaryTableFault, positionsAt(RoPEAtQKV, RoPEAtTable, RoPEAtPos))},
	// Attention over a cache of C positions, to which the keys and values of the rows are added
	// first. kv [2*G*C, S]: C rows for each key head, then C for each value head. Positions
	// after a row's own are not read. qkv may be queries alone: then the cache has them. With Attr.Seq C is Seq, and kv is as many such caches, of a
	// sequence each, as it has rows for. With CacheBits it is packed, see CacheGroup.
	AttentionAt: {Name: "attention_at", Args: args("o:f[N,A]:wt kv:f[R,C]:u qkv:f[N,X]:rt pos:i[B,W]:r sinks:f[1,H]:r?"), FLOPs: attentionAtFLOPs, Bytes: attentionAtBytes, Rule: either(either(attends, cached), placed(AttentionAtO, AttentionAtPos))},
	// ShortConv, DeltaRule and StateScan of tokens that continue what earlier calls did with their sequences: at position 0 they begin anew. Rows of the
	// same sequence are in the order of its tokens; idle ones change nothing. past has the last K-1 rows of x of each sequence, that of position p in row
	// p mod K-1. state has the heads' states, one below the other, of the first sequence, then of the next.
	ShortConvAt: {Name: "short_conv_at", Args: args("y:f[N,C]:wt past:f[R,C]:u x:f[N,C]:rt w:f[C,K]:r pos:i[B,W]:r bias:f[1,C]:r?"), FLOPs: convFLOPs(ShortConvAtW), Bytes: continuedBytes(ShortConvAtPast, ShortConvAtPos), Rule: either(remembered, placed(ShortConvAtY, ShortConvAtPos))},
	DeltaRuleAt: {Name: "delta_rule_at", Args: args("o:f[N,V]:wt state:s[R,D]:u qkv:f[N,Y]:rt gates:s[N,2P]:rt pos:i[B,W]:r"), FLOPs: continuedFLOPs(7), Bytes: continuedBytes(DeltaRuleAtState, DeltaRuleAtPos), Rule: either(deltaRuleAt, placed(DeltaRuleAtO, DeltaRuleAtPos))},
	StateScanAt: {Name: "state_scan_at", Args: args("o:f[N,V]:wt state:s[R,D]:u xbc=XBC:f[N,Y]:rt gates:s[N,2P]:rt skip:f[1,P]:r pos:i[B,W]:r"), FLOPs: continuedFLOPs(5), Bytes: continuedBytes(StateScanAtState, StateScanAtPos), Rule: either(stateScanAt, placed(StateScanAtO, StateScanAtPos))},
	// Between ranks. An instruction names its peers; the k-th collective of a
	// group on one rank meets the k-th on every other. Operands are flat, one row, but for all_reduce's.
	// dst = the concatenation of all peers' sources, in the group's order; they may
	// differ in length, or be empty (absent). src may be its own region of dst.
	AllGather: {Name: "all_gather", Between: true, Args: args("dst:*[1,X]:w src:*[1,Y]:r?"), Alias: SecondInFirst},
	// dst (+)= this rank's shard of the sum of all peers' sources, added in the
	// group's order: ((s0 + s1) + s2) + ... Shards are consecutive and as long as the
	// peers' dst; a peer may have none (absent). dst may be its own region of src if
	// it is not accumulated.
	ReduceScatter: {Name: "reduce_scatter", Between: true, Args: args("dst:r[1,X]:s? src:r[1,Y]:r"), Alias: FirstInSecond},
	// x = the sum of all peers' x, added in the group's order. Of bf16 the sum is rounded once. Rows are without gaps.
	AllReduce: {Name: "all_reduce", Between: true, Kind: RowWise, Args: args("x:p[N,C]:u")},
	// The peers share a sequence, of which each has the rows that Runs says. dst of as many times the rows of src as there are peers is the
	// sequence with this rank's columns, the member's part of each peer's src or, if src is no wider, all of them. dst of as many times the
	// columns is the way back: this rank's rows, with each peer's columns next to those of the peer before it.
	AllToAll: {Name: "all_to_all", Between: true, Args: args("dst:*[M,X]:w src:*[N,Y]:r"), Rule: crossing},
	// A send matches the receive of the same tag on its peer.
	Send: {Name: "send", Between: true, Args: args("src:*[R,C]:r")},
	Recv: {Name: "recv", Between: true, Args: args("dst:*[R,C]:w")},
}

// KeyCut is the number of keys at multiples of which the keys that a slice reads may begin, if none of its queries sees those before: blocks
// of keys end at multiples of it.
const KeyCut = 256

// SliceUnit returns the number of rows at multiples of which sequences of seq rows may be cut
// into slices: the backward pass of attention sums over blocks of that many queries, the last
// block first.
func SliceUnit(seq int) int {
	switch {
	case seq <= 8:
		return 2
	case seq <= 32:
		return 8
	case seq <= 256: // larger blocks waste more work on the diagonal
		return 32
	}
	return 64
}

// NormPiece is the number of elements that one partial sum of NormPart
// covers, counted from the parameter's first element: the order of the sum
// does not depend on how parameters are cut into chunks at multiples of it.
const NormPiece = 1 << 16

// NormPieces returns the number of partial sums of a parameter of n elements.
func NormPieces(n int64) int { return int((n + NormPiece - 1) / NormPiece) }

// Positions in the scalars operand [1, NumScalars] f32, the per-step inputs.
const (
	ScalarLR          = iota // learning rate
	ScalarCorrection1        // 1 - Beta1^t, t counting from 1
	ScalarCorrection2        // 1 - Beta2^t
	ScalarLossScale          // 1 / number of target tokens in the global batch
	ScalarChance             // see Chance
	ScalarBound              // greatest gradient norm of an update, at most the greatest float32
	NumScalars
)

// Info returns the operator's row. The result must not be changed.
func (o Op) Info() *Info { return &table[o] }

func (o Op) String() string {
	if o < NumOps {
		return table[o].Name
	}
	return fmt.Sprintf("op(%d)", uint8(o))
}

// FLOPs returns the FLOPs of one call on operands of these extents.
func (o Op) FLOPs(a *Attr, d []Dim) int64 {
	if f := table[o].FLOPs; f != nil {
		return f(a, d)
	}
	return 0
}

// Bytes returns the least number of bytes that one call must move.
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

// TrailingBytes returns the bytes that most devices move after the rest of a call.
func (o Op) TrailingBytes(a *Attr, d []Dim) int64 {
	if f := table[o].TrailingBytes; f != nil {
		return f(a, d)
	}
	return 0
}

// args parses the legend of operands.
func args(s string) []ArgSpec {
	access := map[byte]Access{'r': Read, 'w': Write, 'u': Update, 's': Sum}
	var list []ArgSpec
	for _, f := range strings.Fields(s) {
		part := strings.Split(f, ":")
		name, _, _ := strings.Cut(part[0], "=")
		flags := part[2]
		list = append(list, ArgSpec{
			Name:     name,
			Access:   access[flags[0]],
			Token:    strings.Contains(flags, "t"),
			Past:     strings.Contains(flags, "p"),
			Room:     strings.Contains(flags, "m"),
			Optional: strings.HasSuffix(flags, "?"),
			Shape:    parseShape(part[1]),
		})
	}
	return list
}
