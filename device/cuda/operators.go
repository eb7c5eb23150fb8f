package cuda

import (
	"cmp"
	"fmt"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cuda/kernels"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/optimizer"
)

// operators is the table of kernels: files, geometry and constants per operator. The
// operands are those of the operator's row in graph's table.
var operators = withUpdates([graph.NumOps]operator{
	graph.Linear:   linear,
	graph.LinearDX: linearDX,
	graph.LinearDW: linearDW,
	graph.BiasGrad: func(b *builder) error {
		return b.sums(tokenSum{terms: plainTerms, y: b.op(graph.BiasGradDB), dy: b.op(graph.BiasGradDY)})
	},
	graph.Direction:    direction,
	graph.Gain:         gain,
	graph.GainGrad:     gainGrad,
	graph.LayerNorm:    func(b *builder) error { return b.norm("norm", "normalize", layerNorm, graph.LayerNormStats) },
	graph.LayerNormDX:  func(b *builder) error { return b.norm("norm_dx", "norm_dx", layerNorm, graph.LayerNormDXStats) },
	graph.LayerNormDW:  layerNormDW,
	graph.RMSNorm:      func(b *builder) error { return b.norm("norm", "normalize", rmsNorm, graph.RMSNormStats) },
	graph.RMSNormDX:    func(b *builder) error { return b.norm("norm_dx", "norm_dx", rmsNorm, graph.RMSNormDXStats) },
	graph.RMSNormDW:    rmsNormDW,
	graph.RoPE:         func(b *builder) error { return b.rope(false) },
	graph.RoPEAt:       func(b *builder) error { return b.rope(true) },
	graph.Attention:    attention,
	graph.AttentionBwd: attentionBwd,
	graph.AttentionAt:  attentionAt,
	graph.SinkGrad:     sinkGrad,
	graph.Act:          func(b *builder) error { return b.elements(b.activation("act"), nil, b.ops()...) },
	graph.ActBwd:       func(b *builder) error { return b.elements(b.activation("act_bwd"), nil, b.ops()...) },
	graph.XIELU:        xielu,
	graph.XIELUBwd:     xieluBwd,
	graph.SwiGLU:       func(b *builder) error { return b.halves("swiglu", graph.SwiGLUWeights) },
	graph.SwiGLUBwd:    func(b *builder) error { return b.halves("swiglu_bwd", graph.SwiGLUBwdWeights) },
	graph.Gate:         func(b *builder) error { return b.elements(b.activation("gate"), nil, b.ops()...) },
	graph.GateBwd:      func(b *builder) error { return b.elements(b.activation("gate_bwd"), nil, b.ops()...) },
	graph.ShortConv:    shortConv("short_conv", graph.ShortConvW),
	graph.ShortConvDX:  shortConv("short_conv_dx", graph.ShortConvDXW),
	graph.ShortConvDW:  shortConvDW,
	graph.ShortConvAt:  shortConvAt,
	graph.Decay:        decays("decay"),
	graph.DecayBwd:     decays("decay_bwd"),
	graph.DecayGrad: func(b *builder) error {
		return b.sums(tokenSum{terms: rateTerms, y: b.op(graph.DecayGradDRate), dy: b.op(graph.DecayGradDGates), x: b.op(graph.DecayGradGates)})
	},
	graph.DeltaRule:    deltaRule,
	graph.DeltaRuleBwd: deltaRuleBwd,
	graph.DeltaRuleAt:  deltaRuleAt,
	graph.TimeSteps:    timeSteps("time_steps", graph.TimeStepsRate),
	graph.TimeStepsBwd: timeSteps("time_steps_bwd", graph.TimeStepsBwdRate),
	graph.StateScan:    stateScan,
	graph.StateScanBwd: stateScanBwd,
	graph.StateScanAt:  stateScanAt,
	graph.Route: func(b *builder) error {
		return b.router("route", b.op(graph.RouteLogits), b.op(graph.RouteExperts), false)
	},
	graph.RouteBwd: func(b *builder) error {
		return b.router("route_bwd", b.op(graph.RouteBwdLogits), b.op(graph.RouteBwdExperts), b.call.Attr.Scale != 0)
	},
	graph.ExpertLinear: expertLinear,
	graph.ExpertDW:     expertDW,
	graph.ExpertDB:     expertDB,
	graph.Combine:      combine,
	graph.Embed:        func(b *builder) error { return b.embed(false) },
	graph.EmbedAt:      func(b *builder) error { return b.embed(true) },
	graph.EmbedBwd:     embedBwd,
	graph.PosBwd:       posBwd,
	graph.LossPart:     lossPart,
	graph.CrossEntropy: crossEntropy,
	graph.Distil:       distil,
	graph.TopLogs:      topLogs,
	graph.Preference: func(b *builder) error {
		a := b.newArgs(b.ops()...)
		at := &b.call.Attr
		a.f[0], a.n[0] = float32(at.Scale), int32(at.PairLoss)
		if graph.PairLoss(at.PairLoss).Rule().Margin > 0 { // the kernel adds it to others that it computes alike
			a.f[1] = float32(at.Margin)
		}
		if graph.PairLoss(at.PairLoss).Rule().Averages {
			a.n[1] = 1
		}
		if graph.PairLoss(at.PairLoss).Rule().Unpaired {
			a.n[2] = 1
		}
		return b.start(kernels.Unit{File: "preference"}, "preference", [3]int64{int64(b.op(graph.PreferenceLoss).Rows / b.call.Attr.Seq), 1, 1}, threads, 0, a)
	},
	graph.LossSum: func(b *builder) error {
		a := b.newArgs(b.ops()...)
		a.n[0] = int32(b.sumPiece(256))
		return b.start(kernels.Unit{File: "loss_sum"}, "loss_sum", [3]int64{1, 1, 1}, 1024, 0, a)
	},
	graph.NormPart: normPart,
	graph.NormAll: func(b *builder) error {
		a := b.newArgs(b.ops()...)
		a.d[0], a.n[0] = b.call.Attr.Clip, graph.ScalarBound
		return b.start(kernels.Unit{File: "norm_all"}, "norm_all", [3]int64{1, 1, 1}, 1024, 0, a)
	},
	graph.Muon:        muon,
	graph.LatentKV:    latentKV,
	graph.LatentKVBwd: latentKVBwd,
	graph.HeadCols:    headCols,
	graph.Cast:        func(b *builder) error { return b.elements(kernels.Unit{File: "cast"}, nil, b.ops()...) },
	graph.Add:         func(b *builder) error { return b.elements(kernels.Unit{File: "add"}, nil, b.ops()...) },
	graph.Compress:    func(b *builder) error { return masked(b, "compress", graph.CompressY, graph.CompressX) },
	graph.Expand:      func(b *builder) error { return masked(b, "expand", graph.ExpandX, graph.ExpandY) },
	graph.Drop:        drop,
	graph.Jitter:      jitter,
	graph.SoftCap: func(b *builder) error {
		return b.elements(kernels.Unit{File: "soft_cap", Defines: "CAP=1 "}, func(a *args) { a.setScale(&graph.Attr{Scale: 1, Limit: b.call.Attr.Limit}) }, b.ops()...)
	},
	graph.Scale: func(b *builder) error {
		by := b.op(graph.ScaleBy)
		set := func(a *args) {
			a.t[graph.ScaleBy], a.n[0], a.f[0] = b.mat(by), int32(by.Rows), float32(b.call.Attr.Scale)
		}
		return b.elements(kernels.Unit{File: "scale", Defines: fmt.Sprintf("T%d=%s ", graph.ScaleBy, by.DType)}, set, b.op(graph.ScaleY))
	},
})

// withUpdates adds the elementwise optimizers' operators to a table.
func withUpdates(table [graph.NumOps]operator) [graph.NumOps]operator {
	for o := range optimizer.NumOptimizers {
		if o.Rule().Elementwise {
			table[o.Rule().Op] = update
		}
	}
	return table
}

// normKind is RMS in kernels/norm.cu and norm_dx.cu.
type normKind int

const (
	layerNorm normKind = iota
	rmsNorm
)

// norm launches a block per row of the operator's operands, in table order, or per
// several rows if one warp has a row. stats is the number of the operand with one or
// two columns.
func (b *builder) norm(file, kernel string, kind normKind, stats int) error {
	ops := b.ops()
	var wide []device.Operand
	for i, o := range ops {
		if i != stats {
			wide = append(wide, o)
		}
	}
	cols, groups := ops[graph.LayerNormGain].Cols, max(1, b.call.Attr.Heads)
	v, _ := b.vector(cols, wide...)
	v = elementsPerThread(v, cols, 8)
	n, packs := rowThreads(int(blocks(int64(cols), int64(v))))
	rows := 1
	if n <= 32 {
		rows = 128 / n
	}
	res := b.call.Op == graph.RMSNorm && !ops[graph.RMSNormRes].Absent()
	bias := b.call.Op == graph.LayerNorm && !ops[graph.LayerNormBias].Absent()
	defines := fmt.Sprintf("%sRMS=%d GROUPS=%d UNIT=%d RES=%d BIAS=%d VEC=%d COLS=%d PACKS=%d ROW_THREADS=%d ROWS=%d", types(ops...), kind, bit(groups > 1),
		bit(b.call.Attr.UnitOffset), bit(res), bit(bias), v, cols, packs, n, rows)
	a := b.newArgs(ops...)
	a.f[0] = float32(b.call.Attr.Eps)
	return b.start(kernels.Unit{File: file, Defines: defines}, kernel, [3]int64{blocks(int64(ops[0].Rows)*int64(groups), int64(rows)), 1, 1}, rows*n, 0, a)
}

// rowThreads returns how many threads share a row of this many packs, and the most packs that one has.
// With rows of heads, the other threads of a warp have other rows. Registers hold 7 packs of each of
// three operands; of wider rows the compiler puts some into local memory. With 3 packs or more, blocks
// are small enough for several to share an SM, where some load while others compute: that is worth
// leaving up to an eighth of the packs' places empty. Otherwise few threads should have fewer packs,
// and few should have to meet.
func rowThreads(packs int) (threads, each int) {
	for _, n := range []int{8, 16} {
		if packs <= n {
			return n, 1
		}
	}
	for _, least := range []int{3, 1} {
		for n := 1024; n >= 32; n -= 32 {
			e := (packs + n - 1) / n
			ok := e >= least && e <= 7 && (least == 1 || 8*n*e <= 9*packs)
			if ok && (threads == 0 || n*e <= threads*each) {
				threads, each = n, e
			}
		}
		if threads > 0 {
			return threads, each
		}
	}
	return 1024, (packs + 1023) / 1024
}

// elementsPerThread returns the elements per thread: at most v, and so few that n threads have at most cols columns.
func elementsPerThread(v, cols, n int) int {
	for v > 1 && v*n > cols {
		v /= 2
	}
	return v
}

func bit(set bool) int {
	if set {
		return 1
	}
	return 0
}

// masked launches a kernel that moves elements that a mask keeps, a warp for each line of the mask.
func masked(b *builder, kernel string, kept, dense int) error {
	ops := []device.Operand{b.op(kept), b.op(dense), b.op(graph.ExpandMask)}
	unit := kernels.Unit{File: "mask", Defines: fmt.Sprintf("%sMASK_LINE=%d ", types(ops...), graph.MaskLine)}
	return b.start(unit, kernel, [3]int64{blocks(int64(ops[graph.ExpandMask].Cols/graph.MaskLine), threads/32), 1, 1}, threads, 0, b.newArgs(ops...))
}

// normPart launches a block per piece of the gradient.
func normPart(b *builder) error {
	part, g := b.op(graph.NormPartPart), b.op(graph.NormPartGrad)
	v, flat := b.vector(g.Cols, g)
	a := b.newArgs(part, g)
	a.n[0] = graph.NormPiece
	n := int64(g.Rows) * int64(g.Cols)
	if flat = flat && n < 1<<31; flat {
		a.t[graph.NormPartGrad].rows, a.t[graph.NormPartGrad].cols = 1, int32(n)
	}
	unit := kernels.Unit{File: "norm_part", Defines: fmt.Sprintf("%sVEC=%d FLAT=%t PART_THREADS=%d", types(part, g), v, flat, 2*threads)}
	return b.start(unit, "norm_part", [3]int64{int64(part.Cols), 1, 1}, 2*threads, 0, a)
}

// crossEntropy launches a block per row of logits. It keeps as much of a gradient's row
// in shared memory as a block may have.
func crossEntropy(b *builder) error {
	ops := b.ops()
	a := b.newArgs(ops...)
	a.n[1], a.n[3], a.n[4] = graph.ScalarLossScale, int32(bit(!ops[graph.CrossEntropyWeights].Absent())), int32(b.call.Attr.First)
	a.n[5] = int32(bit(b.call.Attr.Score))
	if limit := b.call.Attr.Limit; limit > 0 {
		a.f[0] = float32(1 / limit)
	}
	logits, room := ops[graph.CrossEntropyLogits], max(b.shared-2<<10, 0) // the 2 KiB are more than the kernel's other shared memory
	row := int(int64(logits.Cols) * logits.DType.Size())
	n := threads
	if logits.Cols > 8192 {
		n = 2 * threads
	}
	if row > room/2 { // only one block fits an SM
		n = 4 * threads
	}
	shared := 0
	if b.call.Attr.Grad {
		a.n[0] = 1
	}
	if b.call.Attr.Grad && ops[graph.CrossEntropyParts].Absent() {
		shared = min(row, room) &^ 15
		a.n[2] = int32(shared / 16)
	}
	unit := kernels.Unit{File: "cross_entropy", Defines: types(ops[:graph.CrossEntropyWeights]...)}
	return b.start(unit, "cross_entropy", [3]int64{int64(logits.Rows), 1, 1}, n, shared, a)
}

// lossPart launches a block per row of logits.
func lossPart(b *builder) error {
	ops := b.ops()
	a, logits := b.newArgs(ops...), ops[graph.LossPartLogits]
	a.n[1], a.n[4] = int32(b.call.Attr.First), int32(b.call.Attr.First/logits.Cols%max(ops[graph.LossPartParts].Cols/2, 1))
	unit := kernels.Unit{File: "cross_entropy", Defines: types(ops...)}
	return b.start(unit, "loss_part", [3]int64{int64(logits.Rows), 1, 1}, 2*threads, 0, a)
}

// activation is a file for the call's activation.
func (b *builder) activation(file string) kernels.Unit {
	return kernels.Unit{File: file, Defines: fmt.Sprintf("ACT=%d ", b.call.Attr.Act)}
}

// halves launches an element-wise kernel on wide operands, the last two of which are y and gu, and
// others, from the operand weights on. Wide operands are as wide as y or, with gate next to up, twice as wide, so they never form
// one long row. With weights, a row of y is one slot for each of its weights; if
// the weights have gradients too, a block sums one of those.
func (b *builder) halves(file string, weights int) error {
	ops := b.ops()
	y, slots, sums := ops[weights-2], ops[weights].Cols, !b.op(weights+1).Absent()
	cols := y.Cols / max(1, slots)
	v, _ := b.vector(cols, ops[:weights]...)
	grid, n := blocks(int64(y.Rows)*int64(y.Cols)/int64(v), threads), threads
	if sums {
		grid, n = int64(y.Rows)*int64(slots), min((cols/v+31)/32*32, threads)
	}
	unit := kernels.Unit{File: file, Defines: fmt.Sprintf("%sACT=%d SLOTS=%d SUMS=%d VEC=%d", types(ops...), b.call.Attr.Act, slots, bit(sums), v)}
	a := b.newArgs(ops...)
	if limit, alpha := b.call.Attr.Limit, b.call.Attr.Alpha; limit > 0 {
		unit.Defines += " BOUND=1"
		a.f[0], a.f[1], a.f[2] = float32(limit), float32(alpha), float32(1/alpha)
	}
	return b.start(unit, file, [3]int64{grid, 1, 1}, n, 0, a)
}

// rope launches a thread per pack of pairs; if at is set, the position is an operand.
func (b *builder) rope(at bool) error {
	a := &b.call.Attr
	x := b.newArgs(b.ops()...)
	if a.Inverse {
		x.n[0] = 1
	}
	qkv, table := b.op(graph.RoPEQKV), b.op(graph.RoPETable)
	half := table.Cols / 2
	v, _ := b.vector(half, qkv, table)
	for a.HeadDim%v != 0 {
		v /= 2
	}
	n := int64(qkv.Rows) * int64(a.Heads+a.KVHeads) * int64(half/v)
	unit := kernels.Unit{File: "rope", Defines: fmt.Sprintf("%s%s VEC=%d", types(qkv, table), atDefine(at), v)}
	return b.start(unit, "rope", [3]int64{blocks(n, threads), 1, 1}, threads, 0, x)
}

// Embed's operands differ in rows but not in columns, so they never form one long row.
func (b *builder) embed(at bool) error {
	ops := b.ops()
	x := ops[graph.EmbedX]
	v, _ := b.vector(x.Cols, x, ops[graph.EmbedWTE], ops[graph.EmbedWPE])
	n := int64(x.Rows) * int64(x.Cols) / int64(v)
	unit := kernels.Unit{File: "embed", Defines: fmt.Sprintf("%s%s VEC=%d", types(ops[:graph.EmbedAtPos]...), atDefine(at), v)}
	a := b.newArgs(ops...)
	a.n[0], a.n[1], a.f[0] = int32(b.call.Attr.First), int32(bit(b.call.Attr.Acc)), b.embedScale()
	return b.start(unit, "embed", [3]int64{blocks(n, threads), 1, 1}, threads, 0, a)
}

// embedScale returns what embeddings are multiplied by.
func (b *builder) embedScale() float32 { return float32(cmp.Or(b.call.Attr.Scale, 1)) }

func atDefine(at bool) string {
	if at {
		return "AT=1"
	}
	return "AT=0"
}

// posBwd's operands differ in rows, too.
func posBwd(b *builder) error {
	dwpe, dx := b.op(graph.PosBwdDWPE), b.op(graph.PosBwdDX)
	v, _ := b.vector(dwpe.Cols, dwpe, dx)
	n := int64(dwpe.Rows) * int64(dwpe.Cols) / int64(v)
	unit := kernels.Unit{File: "pos_bwd", Defines: fmt.Sprintf("%sVEC=%d", types(dwpe, dx), v)}
	return b.start(unit, "pos_bwd", [3]int64{blocks(n, threads), 1, 1}, threads, 0, b.newArgs(dwpe, dx))
}

// embedBwd sorts the tokens and then sums the rows of each. If scratch is too small for
// all tokens they are cut, and later parts continue the sums.
func embedBwd(b *builder) error {
	dwte, dx, tokens := b.op(graph.EmbedBwdDWTE), b.op(graph.EmbedBwdDX), b.op(graph.EmbedBwdTokens)
	if !b.call.Attr.Acc {
		if err := b.elements(kernels.Unit{File: "clear"}, nil, dwte); err != nil {
			return err
		}
	}
	v, _ := b.vector(dx.Cols, dwte, dx)
	v = min(v, 4) // columns per thread: with more, a frequent token would have too few threads
	unit := kernels.Unit{File: "embed_bwd", Defines: fmt.Sprintf("%sVEC=%d", types(dwte, dx, tokens), v)}
	buckets := 1
	for buckets*idsPerBucket <= dwte.Rows { // and one id for tokens of other rows
		buckets *= 2
	}
	const bytesPerToken = 16 + 4 // a Place and an entry of the list
	most := int(b.room / bytesPerToken)
	for r0 := 0; r0 < dx.Rows; r0 += most {
		n := min(most, dx.Rows-r0)
		a := b.newArgs(dwte, rowsOf(dx, r0, n), rowsOf(tokens, r0, n))
		a.n[0], a.n[1], a.f[0] = int32(buckets), int32(b.call.Attr.First), b.embedScale()
		if err := b.start(unit, "arrange", [3]int64{int64(buckets), 1, 1}, 1024, 0, a); err != nil {
			return err
		}
		grid := [3]int64{blocks(int64(n), threads/32), blocks(int64(dx.Cols), int64(32*v)), 1}
		if err := b.start(unit, "embed_bwd", grid, threads, 0, a); err != nil {
			return err
		}
	}
	return nil
}

// idsPerBucket makes as many blocks as fit an SM or two of a large GPU: each block
// reads all tokens.
const idsPerBucket = 256

// update launches an optimizer's kernel, which has the name of its operator.
func update(b *builder) error {
	at, rule := &b.call.Attr, optimizer.Updating(b.call.Op)
	operands := make([]device.Operand, rule.LowerHalvesAt()+1)
	for i := range operands {
		if i != rule.ClipAt() && i != rule.ScalarsAt() { // they are not elementwise
			operands[i] = b.op(i)
		}
	}
	unit, set := kernels.Unit{File: rule.Name}, func(a *args) {
		a.f = [8]float32{float32(at.Beta1), float32(1 - at.Beta1), float32(at.Beta2), float32(1 - at.Beta2), float32(at.Eps)}
		a.d[0] = at.Decay
		a.n = [8]int32{graph.ScalarLR, graph.ScalarCorrection1, graph.ScalarCorrection2, graph.ScalarChance, int32(at.Param), int32(uint32(at.First)), int32(bit(at.Masked))}
		for _, i := range []int{rule.ClipAt(), rule.ScalarsAt()} {
			a.t[i] = b.mat(b.op(i))
		}
	}
	if b.op(1).DType != graph.U8 {
		return b.elements(unit, set, operands...)
	}
	const each = 4 // blocks of moments per warp
	o, a := operands[0], b.newArgs(operands...)
	set(&a)
	a.n[7] = each
	unit.Defines = "PACKED=1 " + types(operands...) + "VEC=1"
	n := int64(o.Rows) * blocks(int64(o.Cols), graph.MomentBlock)
	return b.start(unit, unit.File, [3]int64{blocks(n, each*threads/32), 1, 1}, threads, 0, a)
}

// sumPiece returns the number of tokens per partial sum, at most most. Calls that split
// the tokens at multiples of it give the same bits as one call, so it divides sumRows.
func (t target) sumPiece(most int) int {
	n := most
	for t.sumRows > 0 && t.sumRows%n != 0 {
		n--
	}
	return n
}

// sumTerms are what is summed over tokens: STATS in kernels/sums.cu.
type sumTerms int

const (
	plainTerms   sumTerms = iota // dy
	rmsTerms                     // of the gains of RMSNorm
	layerTerms                   // of the gains and biases of LayerNorm
	sinkTerms                    // of attention sinks
	rateTerms                    // of the rates of Decay, and of gains
	centredTerms                 // of the gains of LayerNorm without biases
)

// tokenSum has the operands of a sum over tokens, in the order of kernels/sums.cu.
type tokenSum struct {
	terms sumTerms
	y     device.Operand // the sum
	other device.Operand // a second one, of biases; with sinkTerms, the sinks
	dy, x device.Operand // with sinkTerms, delta and lse
	stats device.Operand
}

func layerNormDW(b *builder) error {
	terms := layerTerms
	if b.op(graph.LayerNormDWDBias).Absent() {
		terms = centredTerms
	}
	return b.sums(tokenSum{terms, b.op(graph.LayerNormDWDGain), b.op(graph.LayerNormDWDBias), b.op(graph.LayerNormDWDY), b.op(graph.LayerNormDWX), b.op(graph.LayerNormDWStats)})
}

func rmsNormDW(b *builder) error {
	return b.sums(tokenSum{terms: rmsTerms, y: b.op(graph.RMSNormDWDGain), dy: b.op(graph.RMSNormDWDY), x: b.op(graph.RMSNormDWX), stats: b.op(graph.RMSNormDWStats)})
}

func sinkGrad(b *builder) error {
	return b.sums(tokenSum{terms: sinkTerms, y: b.op(graph.SinkGradDSinks), other: b.op(graph.SinkGradSinks), dy: b.op(graph.SinkGradDelta), x: b.op(graph.SinkGradLSE)})
}

// sums launches the two stages of a sum over tokens. If scratch memory is too small for all partial sums the tokens
// are cut, and later parts continue the sums.
func (b *builder) sums(s tokenSum) error {
	const dyAt, xAt, statsAt = 2, 3, 4
	ops := []device.Operand{s.y, s.other, dyAt: s.dy, xAt: s.x, statsAt: s.stats}
	cols, groups := s.y.Cols, max(1, b.call.Attr.Heads)
	read := []device.Operand{s.dy, s.x}
	if s.terms == sinkTerms {
		read = append(read, s.other)
	}
	v, _ := b.vector(cols, read...)
	v = elementsPerThread(v, cols, 32) // columns per thread: fewer where a warp would have less to do
	lanes, parts := sumLanes(int(blocks(int64(cols), int64(v))))
	piece := b.sumPiece(max(4, 128/groups))
	parts = min(parts, piece)
	unit := kernels.Unit{File: "sums", Defines: fmt.Sprintf("%sSUM_ROWS=%d GROUPS=%d STATS=%d VEC=%d LANES=%d PARTS=%d", types(ops...), piece, bit(groups > 1), s.terms, v, lanes, parts)}
	perPiece := int64(cols) * 2 * 4
	pieces := int(min(b.room/perPiece, 65535))
	if pieces < 1 {
		return fmt.Errorf("%d columns are too many for the scratch memory of %d bytes", cols, b.room)
	}
	grid := blocks(int64(cols), int64(lanes*v))
	acc := b.call.Attr.Acc
	for r0 := 0; r0 == 0 || r0 < s.dy.Rows; r0 += pieces * piece {
		part := make([]device.Operand, len(ops))
		copy(part, ops)
		n := min(pieces*piece, s.dy.Rows-r0)
		for i := dyAt; i <= statsAt; i++ {
			part[i] = rowsOf(part[i], r0, n)
		}
		a := b.newArgs(part...)
		a.t[dyAt].cols = int32(cols) // even without rows
		a.accum = 0
		if acc || r0 > 0 {
			a.accum = 1
		}
		a.n[0] = int32(blocks(int64(n), int64(piece)))
		if err := b.start(unit, "pieces", [3]int64{grid, int64(a.n[0]), 1}, parts*lanes, 0, a); err != nil {
			return err
		}
		if err := b.start(unit, "total", [3]int64{blocks(int64(cols), 32), 1, 1}, threads, 0, a); err != nil {
			return err
		}
	}
	return nil
}

// sumLanes returns how many threads of a block share a token's columns, which are this many packs: a
// multiple of eight, since eight have a line of memory, with few of the last block's left over. parts
// is the number of such groups among which a piece's tokens are divided.
func sumLanes(packs int) (lanes, parts int) {
	idle := packs + 64
	for n := 64; n >= 32; n -= 8 {
		if rest := (packs+n-1)/n*n - packs; rest < idle {
			lanes, idle = n, rest
		}
	}
	if lanes > 32 {
		return lanes, 4
	}
	return lanes, 8
}

// rowsOf returns rows [r0, r0+n) of an operand.
func rowsOf(o device.Operand, r0, n int) device.Operand {
	if !o.Absent() {
		o.Addr += int64(r0) * int64(o.Stride) * o.DType.Size()
		o.Rows = n
	}
	return o
}

// columnsOf returns columns [c, c+n) of an operand.
func columnsOf(o device.Operand, c, n int) device.Operand {
	if !o.Absent() {
		o.Addr += int64(c) * o.DType.Size()
		o.Cols = n
	}
	return o
}
