package verify

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/program"
)

// What operators require of their operands, as a table. A shape is written per operand
// as "ROWS,COLS/TYPE"; letters are extents that must agree wherever they occur in one
// instruction:
//
//	linear  y is N,O, x is N,I, w is I,O: columns of x are rows of w
//
// T, S, H, A, G and Q come from the attributes: rows per sequence, head size, number of
// query heads, and the width of all query heads, of all key and value heads, and of both.
// In norms, so does K, the number of groups. 2F is twice F; a bare number is itself. Types:
// f fp32 or bf16, s fp32, r fp32 or f64, h bf16, i i32, d f64, u u16, * any.

type rule struct {
	shapes  []shape                                         // by operand
	swapped []shape                                         // with Attr.WT, where that makes a difference
	seq     bool                                            // Attr.Seq is used
	heads   bool                                            // Attr.Heads, KVHeads and HeadDim are used
	groups  bool                                            // each row is Attr.Heads groups, or one
	alike   bool                                            // atoms of all operands correspond, except those that always have one row
	alias   func(in *program.Instr, first, second box) bool // operands 0 and 1 may overlap like this
	// position: results depend on where in its sequence a row is.
	position bool
	extra    func(in *program.Instr) string // what is wrong, or ""
}

type length struct {
	times  int  // the factor of the letter, or a bare number
	letter byte // 0: none
}

type shape struct {
	rows, cols length
	types      string
}

var dtypeSets = map[string][]graph.DType{
	"f": {graph.F32, graph.BF16}, "s": {graph.F32}, "r": {graph.F32, graph.F64}, "h": {graph.BF16}, "i": {graph.I32}, "d": {graph.F64}, "u": {graph.U16},
	"*": {graph.F32, graph.BF16, graph.I32, graph.F64, graph.U16},
}

var verifyRules = withUpdates([graph.NumOps]rule{
	graph.Linear:        {shapes: shapes("N,O/f N,I/f I,O/f 1,O/f N,O/f"), swapped: shapes("N,O/f N,I/f O,I/f 1,O/f N,O/f"), extra: oneStart},
	graph.LinearDX:      {shapes: shapes("N,I/f N,O/f I,O/f N,I/f"), swapped: shapes("N,I/f N,O/f O,I/f N,I/f"), extra: notAdded},
	graph.LinearDW:      {shapes: shapes("I,O/s N,I/f N,O/f A,B/s N,A/f N,B/f"), swapped: shapes("O,I/s N,I/f N,O/f B,A/s N,A/f N,B/f"), extra: oneOrTwo},
	graph.BiasGrad:      {shapes: shapes("1,O/s N,O/f")},
	graph.LayerNorm:     {shapes: shapes("N,D/f N,2/s N,D/f 1,D/f 1,D/f")},
	graph.LayerNormDX:   {shapes: shapes("N,D/f N,D/f N,D/f 1,D/f N,2/s")},
	graph.LayerNormDW:   {shapes: shapes("1,D/s 1,D/s N,D/f N,D/f N,2/s")},
	graph.RMSNorm:       {shapes: shapes("N,D/f N,K/s N,D/f 1,P/f N,D/f"), groups: true, extra: grouped(3)},
	graph.RMSNormDX:     {shapes: shapes("N,D/f N,D/f N,D/f 1,P/f N,K/s"), groups: true, alias: sameUnlessAdded, extra: grouped(3)},
	graph.RMSNormDW:     {shapes: shapes("1,P/s N,D/f N,D/f N,K/s"), groups: true, extra: grouped(0)},
	graph.RoPE:          {shapes: shapes("N,Q/f T,R/s"), seq: true, heads: true, position: true, extra: turned},
	graph.Attention:     {shapes: shapes("N,A/f N,H/s N,A/f M,G/f N,1/i 1,H/f"), seq: true, heads: true},
	graph.AttentionBwd:  {shapes: shapes("N,A/f M,G/f N,H/s N,A/f N,A/f M,G/f N,A/f N,H/s N,1/i"), seq: true, heads: true},
	graph.SinkGrad:      {shapes: shapes("1,D/s N,D/s N,D/s 1,D/f")},
	graph.Act:           {shapes: shapes("N,D/f N,D/f")},
	graph.ActBwd:        {shapes: shapes("N,D/f N,D/f N,D/f"), alias: same},
	graph.SwiGLU:        {shapes: shapes("N,F/f N,2F/f N,K/s"), extra: either(weighted(0, 2), clamped(2))},
	graph.SwiGLUBwd:     {shapes: shapes("N,2F/f N,F/f N,2F/f N,K/s N,K/s"), extra: either(weighted(1, 3), clamped(3))},
	graph.Route:         {shapes: shapes("N,K/s N,K/i N,E/f"), extra: enough(2)},
	graph.RouteBwd:      {shapes: shapes("N,E/f N,K/s N,K/s N,K/i N,E/f 1,6/s"), seq: true, extra: either(enough(4), balanced)},
	graph.ExpertLinear:  {shapes: shapes("N,Y/f N,X/f R,C/f N,K/i E,O/f N,K/s"), extra: either(expertLinear, expertBias)},
	graph.ExpertDW:      {shapes: shapes("R,C/s N,X/f N,Y/f N,K/i"), extra: expertDW},
	graph.ExpertDB:      {shapes: shapes("E,O/s N,Y/f N,K/i N,K/s"), extra: expertDB},
	graph.Combine:       {shapes: shapes("N,D/f N,X/f N,D/f"), extra: either(slotted(0, 1), combined)},
	graph.Embed:         {shapes: shapes("N,D/f N,1/i V,D/f P,D/f"), seq: true, position: true, extra: positions(3)},
	graph.EmbedBwd:      {shapes: shapes("V,D/s N,D/f N,1/i")},
	graph.PosBwd:        {shapes: shapes("P,D/s N,D/f"), seq: true, position: true, extra: positions(0)},
	graph.CrossEntropy:  {shapes: shapes("N,1/s N,V/f N,1/i 1,6/s N,1/s")},
	graph.Preference:    {shapes: shapes("N,1/s N,1/s N,1/s N,1/s N,1/s N,1/i N,1/i"), seq: true, extra: paired},
	graph.LossSum:       {shapes: shapes("1,1/d N,1/s")},
	graph.NormPart:      {shapes: shapes("1,K/d R,C/s"), extra: pieces},
	graph.NormAll:       {shapes: shapes("1,2/s 1,K/d 1,6/s")},
	graph.Cast:          {shapes: shapes("R,C/f R,C/f"), alike: true},
	graph.Add:           {shapes: shapes("R,C/f R,C/f"), alike: true},
	graph.Scale:         {shapes: shapes("N,D/f"), extra: scaled},
	graph.Copy:          {shapes: shapes("R,C/* R,C/*"), alike: true},
	graph.EmbedAt:       {shapes: shapes("N,D/f N,1/i V,D/f P,D/f 1,1/i"), extra: positionsAt(3)},
	graph.RoPEAt:        {shapes: shapes("N,Q/f P,R/s 1,1/i"), heads: true, extra: either(turned, positionsAt(1))},
	graph.AttentionAt:   {shapes: shapes("N,A/f R,S/f N,Q/f 1,1/i 1,H/f"), heads: true, extra: cached},
	graph.AllGather:     {shapes: shapes("1,A/* 1,B/*"), alias: inDst},
	graph.ReduceScatter: {shapes: shapes("1,A/r 1,B/r"), alias: inSrc},
	graph.AllReduce:     {shapes: shapes("1,C/r")},
	graph.Send:          {shapes: shapes("R,C/*")},
	graph.Recv:          {shapes: shapes("R,C/*")},
})

// withUpdates adds the rules of the optimizers' operators, which follow from their rows.
func withUpdates(rules [graph.NumOps]rule) [graph.NumOps]rule {
	for o := range optimizer.NumOptimizers {
		r := o.Rule()
		state := strings.Repeat("R,C/f ", 1+len(r.Moments))
		rules[r.Op] = rule{shapes: shapes(state + "R,C/s 1,2/s 1,6/s R,C/h R,C/u"), alike: true}
	}
	return rules
}

func same(_ *program.Instr, first, second box) bool { return first == second }

func sameUnlessAdded(in *program.Instr, first, second box) bool {
	return !in.Attr.Acc && first == second
}

// A gather's source may already be at its place in the destination, and a reduction's
// result may go to its own place in the source. checkMeetings checks that it is the
// right place.
func inDst(_ *program.Instr, dst, src box) bool { return dst.holds(src) }

func inSrc(in *program.Instr, dst, src box) bool { return !in.Attr.Acc && src.holds(dst) }

func shapes(s string) []shape {
	var list []shape
	for _, f := range strings.Fields(s) {
		box, types, _ := strings.Cut(f, "/")
		rows, cols, _ := strings.Cut(box, ",")
		list = append(list, shape{parseExtent(rows), parseExtent(cols), types})
	}
	return list
}

func parseExtent(s string) length {
	if n, err := strconv.Atoi(s); err == nil {
		return length{times: n}
	}
	e := length{times: 1, letter: s[len(s)-1]}
	if len(s) > 1 {
		e.times, _ = strconv.Atoi(s[:len(s)-1])
	}
	return e
}

// positions: learned positions must have rows for a whole sequence.
func positions(arg int) func(*program.Instr) string {
	return func(in *program.Instr) string {
		r, a := in.Arg(arg), &in.Attr
		if !r.Absent() && (a.PosOffset < 0 || r.Rows-a.PosOffset < a.Seq) {
			return fmt.Sprintf("%d positions are too few for sequences of %d from offset %d", r.Rows, a.Seq, a.PosOffset)
		}
		return ""
	}
}

// positionsAt: a table must have rows for at least the tokens of one call. The caller
// must ensure that the position leaves room for them.
func positionsAt(arg int) func(*program.Instr) string {
	return func(in *program.Instr) string {
		r, n := in.Arg(arg), in.Args[0].Rows
		if !r.Absent() && (in.Attr.PosOffset < 0 || r.Rows-in.Attr.PosOffset < n) {
			return fmt.Sprintf("%d positions are too few for %d tokens from offset %d", r.Rows, n, in.Attr.PosOffset)
		}
		return ""
	}
}

// grouped: the columns of x are groups as long as the gains.
func grouped(gains int) func(*program.Instr) string {
	return func(in *program.Instr) string {
		if g, cols, n := in.Args[gains].Cols, in.Args[2].Cols, max(1, in.Attr.Heads); g*n != cols {
			return fmt.Sprintf("%d columns are not %d groups of %d", cols, n, g)
		}
		return ""
	}
}

// turned: a rotary table has cosines and sines for at most a head's columns.
func turned(in *program.Instr) string {
	if cols := in.Args[1].Cols; cols%2 != 0 || cols > in.Attr.HeadDim {
		return fmt.Sprintf("a rotary table of %d columns does not fit heads of size %d", cols, in.Attr.HeadDim)
	}
	return ""
}

// either returns what the first check finds wrong, or else the second.
func either(first, second func(*program.Instr) string) func(*program.Instr) string {
	return func(in *program.Instr) string { return cmp.Or(first(in), second(in)) }
}

// cached: the cache has the same number of rows for each key and value head.
func cached(in *program.Instr) string {
	kv, heads, n := in.Args[1], 2*in.Attr.KVHeads, in.Args[0].Rows
	if kv.Rows%heads != 0 || kv.Rows/heads < n {
		return fmt.Sprintf("a cache of %d rows for %d heads has no room for %d tokens", kv.Rows, heads, n)
	}
	return ""
}

// oneStart: what accumulates begins at its old value, not at a bias or residual.
func oneStart(in *program.Instr) string {
	if in.Attr.Acc && !(in.Arg(3).Absent() && in.Arg(4).Absent()) {
		return "acc cannot be set with a bias or a residual"
	}
	return ""
}

// notAdded: what is multiplied by a derivative begins at 0.
func notAdded(in *program.Instr) string {
	if in.Attr.Acc && !in.Arg(3).Absent() {
		return "acc cannot be set with an activation to differentiate"
	}
	return ""
}

// oneOrTwo: a second gradient has all of its operands.
func oneOrTwo(in *program.Instr) string {
	n := 0
	for k := range 3 {
		if !in.Arg(3 + k).Absent() {
			n++
		}
	}
	if n%3 != 0 {
		return fmt.Sprintf("only %d of the three operands of a second gradient are given", n)
	}
	return ""
}

// slotted: the columns of operand number of are slots, each as wide as operand number one.
func slotted(one, of int) func(*program.Instr) string {
	return func(in *program.Instr) string {
		if width, cols := in.Args[one].Cols, in.Args[of].Cols; cols%width != 0 {
			return fmt.Sprintf("%d columns cannot be divided into slots of %d", cols, width)
		}
		return ""
	}
}

// combined: what accumulates begins at its old value.
func combined(in *program.Instr) string {
	if in.Attr.Acc && !in.Arg(2).Absent() {
		return "acc cannot be set with a residual"
	}
	return ""
}

// weighted: the columns of y are one slot for each weight, and a gradient of weights needs
// weights.
func weighted(y, weights int) func(*program.Instr) string {
	return func(in *program.Instr) string {
		w := in.Arg(weights)
		switch {
		case w.Absent() && !in.Arg(weights+1).Absent():
			return "there is a gradient of weights, but no weights"
		case !w.Absent() && in.Args[y].Cols%w.Cols != 0:
			return fmt.Sprintf("%d columns cannot be divided into %d slots", in.Args[y].Cols, w.Cols)
		}
		return ""
	}
}

// clamped: bounds need both of their constants, and exist only for SiLU with weights.
func clamped(weights int) func(*program.Instr) string {
	return func(in *program.Instr) string {
		if a := &in.Attr; (a.Limit > 0) != (a.Alpha > 0) || a.Limit < 0 || a.Alpha < 0 || a.Limit > 0 && (in.Arg(weights).Absent() || a.Act != graph.SiLU) {
			return fmt.Sprintf("limit is %g and alpha %g with %v, but only both or neither can be set, and only with silu and weights", a.Limit, a.Alpha, a.Act)
		}
		return ""
	}
}

// enough: a token's experts are different.
func enough(logits int) func(*program.Instr) string {
	return func(in *program.Instr) string {
		if k, all := in.Args[1].Cols, in.Args[logits].Cols; k > all {
			return fmt.Sprintf("%d different experts cannot be chosen from %d", k, all)
		}
		return ""
	}
}

// balanced: the loss term that evens out the use of experts has both scale and scalars.
func balanced(in *program.Instr) string {
	if (in.Attr.Scale != 0) == in.Arg(5).Absent() {
		return "scale and scalars must be given together"
	}
	return ""
}

// expertLinear: w holds a matrix for each expert, whose extents are the columns of x and y per
// slot (of x: in all, without Attr.Slots). Packed columns are checked where their type is known.
func expertLinear(in *program.Instr) string {
	n, k, w := in.Attr.Experts, in.Args[3].Cols, in.Args[2]
	if in.Attr.Slots && in.Args[1].Cols%k != 0 || in.Args[0].Cols%k != 0 {
		return fmt.Sprintf("%d and %d columns cannot be divided into %d slots", in.Args[0].Cols, in.Args[1].Cols, k)
	}
	if in.Attr.Acc && !in.Arg(4).Absent() {
		return "acc cannot be set with a bias"
	}
	if rows, cols := expertExtents(in); n < 1 || w.Rows != n*rows || w.Cols != cols && !in.Attr.NF4 {
		return fmt.Sprintf("weights of %d x %d, want %d x %d for %d experts", w.Rows, w.Cols, n*rows, cols, n)
	}
	return ""
}

// expertExtents returns the extents of an expert's matrix, by the columns of x and y.
func expertExtents(in *program.Instr) (rows, cols int) {
	k := max(in.Args[3].Cols, 1)
	rows, cols = in.Args[1].Cols, in.Args[0].Cols/k
	if in.Attr.Slots {
		rows /= k
	}
	if in.Attr.WT {
		rows, cols = cols, rows
	}
	return rows, cols
}

// expertBias: a bias has a row for each expert, as wide as a slot of the result, and only
// biases are multiplied by weights.
func expertBias(in *program.Instr) string {
	bias, k := in.Arg(4), in.Args[3].Cols
	switch {
	case bias.Absent() && !in.Arg(5).Absent():
		return "there are weights, but no bias"
	case !bias.Absent() && in.Attr.Acc:
		return "acc cannot be set with a bias"
	case !bias.Absent() && (bias.Rows != in.Attr.Experts || bias.Cols*k != in.Args[0].Cols):
		return fmt.Sprintf("a bias of %d x %d does not fit %d experts, %d slots and %d columns", bias.Rows, bias.Cols, in.Attr.Experts, k, in.Args[0].Cols)
	}
	return ""
}

// expertDB: dy is shared by all slots, or has a part for each.
func expertDB(in *program.Instr) string {
	db, dy, k := in.Args[0], in.Args[1], in.Args[2].Cols
	if db.Rows != in.Attr.Experts || dy.Cols != db.Cols && dy.Cols != k*db.Cols {
		return fmt.Sprintf("gradients of %d columns, in %d slots, do not fit %d experts with biases of %d x %d in all", dy.Cols, k, in.Attr.Experts, db.Rows, db.Cols)
	}
	return ""
}

// expertDW: like expertLinear, for gradients; dy, too, may be shared by all slots.
func expertDW(in *program.Instr) string {
	n, k, dw := in.Attr.Experts, in.Args[3].Cols, in.Args[0]
	if in.Attr.Seq < 1 {
		return "seq is missing"
	}
	if n < 1 || dw.Rows%n != 0 {
		return fmt.Sprintf("%d rows cannot be divided among %d experts", dw.Rows, n)
	}
	rows, cols := dw.Rows/n, dw.Cols
	if in.Attr.WT {
		rows, cols = cols, rows
	}
	if x, y := in.Args[1].Cols, in.Args[2].Cols; x != rows && x != k*rows || y != cols && y != k*cols {
		return fmt.Sprintf("%d inputs and %d outputs do not fit experts with %d and %d, and %d slots", x, y, rows, cols, k)
	}
	return ""
}

// paired: what is known of a pair is in the first rows of its two documents.
func paired(in *program.Instr) string {
	if in.Attr.Seq < 2 {
		return fmt.Sprintf("sequences of %d rows have no room for a pair", in.Attr.Seq)
	}
	return scaled(in)
}

// scaled: an absent scale would leave zeros.
func scaled(in *program.Instr) string {
	if in.Attr.Scale == 0 {
		return "scale is missing"
	}
	return ""
}

func pieces(in *program.Instr) string {
	part, g := in.Args[0], in.Args[1]
	if k := graph.NormPieces(int64(g.Rows) * int64(g.Cols)); part.Cols != k {
		return fmt.Sprintf("%d partial sums for %d elements, want %d", part.Cols, g.Rows*g.Cols, k)
	}
	return ""
}

// streamTiers gives the tiers written and read by a stream's operands.
var streamTiers = [device.NumStreams]struct {
	write, read device.Tier
	only        []graph.Op // nil: all that run on one rank
}{
	device.Compute:     {device.DeviceTier, device.DeviceTier, nil},
	device.HostToDev:   {device.DeviceTier, device.HostTier, copies},
	device.DevToHost:   {device.HostTier, device.DeviceTier, copies},
	device.DiskRead:    {device.HostTier, device.DiskTier, copies},
	device.DiskWrite:   {device.DiskTier, device.HostTier, copies},
	device.HostCompute: {device.HostTier, device.HostTier, updating},
	device.Collective:  {device.DeviceTier, device.DeviceTier, []graph.Op{graph.AllGather, graph.ReduceScatter, graph.AllReduce}},
	device.Send:        {device.DeviceTier, device.DeviceTier, []graph.Op{graph.Send}},
	device.Recv:        {device.DeviceTier, device.DeviceTier, []graph.Op{graph.Recv}},
}

var copies = []graph.Op{graph.Copy}

// updating lists the optimizer's operators, which compute the same on the host's cores
// as on the device, except for NormPart's order of fp64 summation. Matrix products are
// excluded: their bits differ there.
var updating = func() []graph.Op {
	list := []graph.Op{graph.NormPart, graph.NormAll}
	for o := range optimizer.NumOptimizers {
		list = append(list, o.Rule().Op)
	}
	return append(list, graph.Cast, graph.Add, graph.Copy)
}()
