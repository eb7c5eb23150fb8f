package graph

import (
	"cmp"
	"fmt"

	"github.com/athanor-llm/athanor/model"
)

// What operators require beyond the shapes of the table. All operands' types and extents are what the shapes say
// when a rule is asked, so none is empty.

// requirement returns what is wrong with a call, or "".
type requirement = func(a *Attr, d []Dim) string

// positions: learned positions must have rows for a whole sequence.
func positions(arg int) requirement {
	return func(a *Attr, d []Dim) string {
		r := d[arg]
		if !r.Absent() && (a.PosOffset < 0 || r.Rows-a.PosOffset < a.Seq) {
			return fmt.Sprintf("%d positions are too few for sequences of %d from offset %d", r.Rows, a.Seq, a.PosOffset)
		}
		return ""
	}
}

// positionsAt: a table must have rows for at least the tokens of one call, if they are consecutive. The caller
// must ensure that the position leaves room for them.
func positionsAt(x, arg, pos int) requirement {
	return either(placed(x, pos), func(a *Attr, d []Dim) string {
		r, n := d[arg], d[x].Rows
		if d[pos].Rows > 1 {
			n = 1
		}
		if !r.Absent() && (a.PosOffset < 0 || r.Rows-a.PosOffset < n) {
			return fmt.Sprintf("%d positions are too few for %d tokens from offset %d", r.Rows, n, a.PosOffset)
		}
		return ""
	})
}

// placed: there is one position for all rows, or one for each with the number of its sequence.
func placed(x, pos int) requirement {
	return func(_ *Attr, d []Dim) string {
		if p, n := d[pos], d[x].Rows; p.Cols > 2 || p.Rows != 1 && (p.Rows != n || p.Cols != 2) {
			return fmt.Sprintf("positions of %d x %d do not fit %d tokens", p.Rows, p.Cols, n)
		}
		return ""
	}
}

// masked: the mask is that of the dense operand, whose type the kept elements have.
func masked(kept, dense, mask int) requirement {
	return func(_ *Attr, d []Dim) string {
		switch k, all, m := d[kept], d[dense], d[mask]; {
		case k.DType != all.DType:
			return fmt.Sprintf("kept elements in %v of a matrix in %v", k.DType, all.DType)
		case m.Cols != MaskWords(all.Cols):
			return fmt.Sprintf("a mask of %d words for %d elements, which take %d", m.Cols, all.Cols, MaskWords(all.Cols))
		}
		return ""
	}
}

// grouped: the columns of x are groups as long as the gains.
func grouped(gains, x int) requirement {
	return func(a *Attr, d []Dim) string {
		if g, cols, n := d[gains].Cols, d[x].Cols, max(1, a.Heads); cols%n != 0 || cols/n != g {
			return fmt.Sprintf("%d columns are not %d groups of %d", cols, n, g)
		}
		return ""
	}
}

// rotaryTableFault: a rotary table has cosines and sines for at most a head's columns.
func rotaryTableFault(a *Attr, d []Dim) string {
	if cols := d[RoPETable].Cols; cols%2 != 0 || cols > a.HeadDim {
		return fmt.Sprintf("a rotary table of %d columns does not fit heads of size %d", cols, a.HeadDim)
	}
	return ""
}

// either returns what the first check finds wrong, or else the second.
func either(first, second requirement) requirement {
	return func(a *Attr, d []Dim) string { return cmp.Or(first(a, d), second(a, d)) }
}

// cached: the cache has the same number of rows for each key and value head, of one sequence or of each.
func cached(a *Attr, d []Dim) string {
	kv, heads, n := d[AttentionAtKV], 2*a.KVHeads, d[AttentionAtO].Rows
	if d[AttentionAtPos].Rows > 1 {
		n = 1
	}
	if a.CacheBits != 0 && a.CacheBits != 4 && a.CacheBits != 8 {
		return fmt.Sprintf("numbers of a cache have 4 or 8 bits, not %d", a.CacheBits)
	}
	if cols := CacheCols(a.HeadDim, a.CacheBits, kv.DType); kv.Cols != cols {
		return fmt.Sprintf("a row of the cache has %d elements, not the %d of a head", kv.Cols, cols)
	}
	context := CacheContext(a, kv.Rows)
	if kv.Rows%heads != 0 || context < n || kv.Rows/heads%context != 0 {
		return fmt.Sprintf("a cache of %d rows for %d heads has no room for %d tokens", kv.Rows, heads, n)
	}
	return ""
}

// oneStart: what accumulates begins at its old value, not at a bias or residual.
func oneStart(a *Attr, d []Dim) string {
	if a.Acc && !(d[LinearBias].Absent() && d[LinearRes].Absent()) {
		return "acc cannot be set with a bias or a residual"
	}
	return ""
}

// notAdded: what is multiplied by a derivative begins at 0.
func notAdded(a *Attr, d []Dim) string {
	if a.Acc && !d[LinearDXX].Absent() {
		return "acc cannot be set with an activation to differentiate"
	}
	return ""
}

// oneOrTwo: a second gradient has all of its operands.
func oneOrTwo(a *Attr, d []Dim) string {
	n := 0
	for _, x := range d[LinearDWDW2:] {
		if !x.Absent() {
			n++
		}
	}
	if n%3 != 0 {
		return fmt.Sprintf("only %d of the three operands of a second gradient are given", n)
	}
	return ""
}

// combined: the columns of x are slots as wide as y, and what accumulates begins at its old value.
func combined(a *Attr, d []Dim) string {
	width, cols := d[CombineY].Cols, d[CombineX].Cols
	switch {
	case cols%width != 0:
		return fmt.Sprintf("%d columns cannot be divided into slots of %d", cols, width)
	case a.Acc && !d[CombineRes].Absent():
		return "acc cannot be set with a residual"
	}
	return ""
}

// weighted: the columns of y are one slot for each weight, and a gradient of weights needs
// weights.
func weighted(y, weights int) requirement {
	return func(a *Attr, d []Dim) string {
		w := d[weights]
		switch {
		case w.Absent() && len(d) > weights+1 && !d[weights+1].Absent():
			return "there is a gradient of weights, but no weights"
		case !w.Absent() && d[y].Cols%w.Cols != 0:
			return fmt.Sprintf("%d columns cannot be divided into %d slots", d[y].Cols, w.Cols)
		}
		return ""
	}
}

// clamped: bounds need both of their constants, and exist only for SiLU with weights.
func clamped(weights int) requirement {
	return func(a *Attr, d []Dim) string {
		if (a.Limit > 0) != (a.Alpha > 0) || a.Limit < 0 || a.Alpha < 0 || a.Limit > 0 && (d[weights].Absent() || a.Act != model.SiLU) {
			return fmt.Sprintf("limit is %g and alpha %g with %v, but only both or neither can be set, and only with silu and weights", a.Limit, a.Alpha, a.Act)
		}
		return ""
	}
}

// enough: a token's experts are different.
func enough(experts, logits int) requirement {
	return func(a *Attr, d []Dim) string {
		if k, all := d[experts].Cols, d[logits].Cols; k > all {
			return fmt.Sprintf("%d different experts cannot be chosen from %d", k, all)
		}
		return ""
	}
}

// groupedExperts: groups are alike, have two experts at least, and those that are chosen have enough.
func groupedExperts(a *Attr, d []Dim) string {
	n, k := d[RouteLogits].Cols, d[RouteExperts].Cols
	if a.Groups == 0 && a.Best == 0 {
		return ""
	}
	if a.Groups < 1 || n%a.Groups != 0 || n/a.Groups < 2 || a.Best < 1 || a.Best > a.Groups || a.Best*(n/a.Groups) < k || a.Groups > 32 {
		return fmt.Sprintf("%d experts cannot be chosen from %d of %d groups of %d experts", k, a.Best, a.Groups, n)
	}
	return ""
}

// balanced: the loss term that evens out the use of experts has both scale and scalars.
func balanced(a *Attr, d []Dim) string {
	if why := enough(RouteBwdExperts, RouteBwdLogits)(a, d); why != "" {
		return why
	}
	if (a.Scale != 0) == d[RouteBwdScalars].Absent() {
		return "scale and scalars must be given together"
	}
	return wholeSequences(a, d[RouteBwdLogits].Rows)
}

// distils: there are a weight and a temperature, and no more tokens than the vocabulary has.
func distils(a *Attr, d []Dim) string {
	switch k, v := d[DistilIds].Cols, d[DistilLogits].Cols; {
	case !(a.Rate > 0 && a.Rate <= 1):
		return fmt.Sprintf("the weight is %v, want more than 0 and at most 1", a.Rate)
	case !(a.Scale > 0):
		return fmt.Sprintf("the temperature is %v, want more than 0", a.Scale)
	case k > v:
		return fmt.Sprintf("%d tokens of a vocabulary of %d", k, v)
	}
	return ""
}

// ofLargest: there are a temperature, and no more tokens than the vocabulary has.
func ofLargest(a *Attr, d []Dim) string {
	switch k, v := d[TopLogsIds].Cols, d[TopLogsLogits].Cols; {
	case !(a.Scale > 0):
		return fmt.Sprintf("the temperature is %v, want more than 0", a.Scale)
	case k < 1 || k > v:
		return fmt.Sprintf("%d tokens of a vocabulary of %d", k, v)
	}
	return ""
}

// ofVocabulary: logits are one of the equal parts of a vocabulary, or one of any size whose columns alone the result has.
func ofVocabulary(a *Attr, d []Dim) string {
	if v := d[LossPartLogits].Cols; v > 0 && d[LossPartParts].Cols > 2 && (a.First%v != 0 || a.First/v >= d[LossPartParts].Cols/2) {
		return fmt.Sprintf("columns %d to %d are none of %d equal parts of a vocabulary", a.First, a.First+v, d[LossPartParts].Cols/2)
	}
	return ""
}

// expertLinear: w holds a matrix for each expert, whose extents are the columns of x and y per
// slot (of x: in all, without Attr.Slots). Packed columns are checked where their type is known.
func expertLinear(a *Attr, d []Dim) string {
	x, y, w, n, k := d[ExpertLinearX].Cols, d[ExpertLinearY].Cols, d[ExpertLinearW], a.Experts, d[ExpertLinearExperts].Cols
	if a.Slots && x%k != 0 || y%k != 0 {
		return fmt.Sprintf("%d and %d columns cannot be divided into %d slots", y, x, k)
	}
	if a.Acc && !d[ExpertLinearBias].Absent() {
		return "acc cannot be set with a bias"
	}
	if rows, cols := expertExtents(a, d); n < 1 || w.Rows%n != 0 || w.Rows/n != rows || w.Cols != cols && !a.NF4 {
		return fmt.Sprintf("weights of %d x %d, want %d x %d for each of %d experts", w.Rows, w.Cols, rows, cols, n)
	}
	return ""
}

// expertExtents returns the extents of an expert's matrix, by the columns of x and y.
func expertExtents(a *Attr, d []Dim) (rows, cols int) {
	k := max(d[ExpertLinearExperts].Cols, 1)
	rows, cols = d[ExpertLinearX].Cols, d[ExpertLinearY].Cols/k
	if a.Slots {
		rows /= k
	}
	if a.WT {
		rows, cols = cols, rows
	}
	return rows, cols
}

// expertBias: a bias has a row for each expert, as wide as a slot of the result, and only
// biases are multiplied by weights.
func expertBias(a *Attr, d []Dim) string {
	bias, y, k := d[ExpertLinearBias], d[ExpertLinearY].Cols, d[ExpertLinearExperts].Cols
	switch {
	case bias.Absent() && !d[ExpertLinearWeights].Absent():
		return "there are weights, but no bias"
	case !bias.Absent() && (bias.Rows != a.Experts || bias.Cols != y/k):
		return fmt.Sprintf("a bias of %d x %d does not fit %d experts, %d slots and %d columns", bias.Rows, bias.Cols, a.Experts, k, y)
	}
	return ""
}

// expertDB: dy is shared by all slots, or has a part for each.
func expertDB(a *Attr, d []Dim) string {
	db, dy, k := d[ExpertDBDB], d[ExpertDBDY], d[ExpertDBExperts].Cols
	if db.Rows != a.Experts || dy.Cols != db.Cols && !times(dy.Cols, k, db.Cols) {
		return fmt.Sprintf("gradients of %d columns, in %d slots, do not fit %d experts with biases of %d x %d in all", dy.Cols, k, a.Experts, db.Rows, db.Cols)
	}
	return ""
}

// times reports whether n is k times each.
func times(n, k, each int) bool { return n%k == 0 && n/k == each }

// expertDW: like expertLinear, for gradients; dy, too, may be shared by all slots.
func expertDW(a *Attr, d []Dim) string {
	n, k, dw := a.Experts, d[ExpertDWExperts].Cols, d[ExpertDWDW]
	if a.Seq < 1 {
		return "seq is missing"
	}
	if a.Cut > maxCut {
		return fmt.Sprintf("cut is %d, but the tokens of an expert are padded to at most %d", a.Cut, maxCut)
	}
	if n < 1 || dw.Rows%n != 0 {
		return fmt.Sprintf("%d rows cannot be divided among %d experts", dw.Rows, n)
	}
	rows, cols := dw.Rows/n, dw.Cols
	if a.WT {
		rows, cols = cols, rows
	}
	if x, y := d[ExpertDWX].Cols, d[ExpertDWDY].Cols; x != rows && !times(x, k, rows) || y != cols && !times(y, k, cols) {
		return fmt.Sprintf("%d inputs and %d outputs do not fit experts with %d and %d, and %d slots", x, y, rows, cols, k)
	}
	return ""
}

// regresses: a value is of one logit, which is as it is.
func regresses(a *Attr, d []Dim) string {
	if d[CrossEntropyValues].Rows == 0 {
		return ""
	}
	if n := d[CrossEntropyLogits].Cols; n != 1 || a.Limit > 0 || a.Score || d[CrossEntropyParts].Rows > 0 || d[CrossEntropyWeights].Rows > 0 {
		return fmt.Sprintf("values are of one logit, without parts, weights and a bound, and there are %d", n)
	}
	return ""
}

// paired: what is known of a pair is in the first rows of its two documents.
func paired(a *Attr, d []Dim) string {
	if a.Seq < 2 {
		return fmt.Sprintf("sequences of %d rows have no room for a pair", a.Seq)
	}
	if a.PairLoss < 0 || a.PairLoss >= int(NumPairLosses) {
		return fmt.Sprintf("there is no loss of pairs number %d", a.PairLoss)
	}
	if PairLoss(a.PairLoss).Rule().Unpaired != (d[PreferenceVerdicts].Rows > 0) {
		return fmt.Sprintf("verdicts belong to losses of single documents only, and %v is another", PairLoss(a.PairLoss))
	}
	return cmp.Or(hasScale(a, d), wholeSequences(a, d[PreferenceLoss].Rows))
}

// wholeSequences: the rows are whole sequences.
func wholeSequences(a *Attr, rows int) string {
	if rows%a.Seq != 0 {
		return fmt.Sprintf("%d rows are not whole sequences of %d", rows, a.Seq)
	}
	return ""
}

// sliced: the queries are all rows of whole sequences, or the last rows of one sequence's keys.
func sliced(a *Attr, d []Dim) string {
	return slice(a, d[AttentionQ].Rows, d[AttentionKV].Rows)
}

// slicedBack: where sums depend on the cuts, sequences are cut at multiples of SliceUnit.
func slicedBack(a *Attr, d []Dim) string {
	queries, keys, unit := d[AttentionBwdQ].Rows, d[AttentionBwdKV].Rows, SliceUnit(a.Seq)
	if why := slice(a, queries, keys); why != "" {
		return why
	}
	if keys < a.Seq && keys%unit != 0 || (keys-queries)%unit != 0 {
		return fmt.Sprintf("a slice of rows %d to %d, which are not multiples of %d", keys-queries, keys, unit)
	}
	return ""
}

func slice(a *Attr, queries, keys int) string {
	switch {
	case queries > keys:
		return fmt.Sprintf("%d queries with keys of %d rows", queries, keys)
	case keys > a.Seq && (keys%a.Seq != 0 || queries != keys):
		return fmt.Sprintf("%d queries and %d keys with sequences of %d rows", queries, keys, a.Seq)
	}
	return ""
}

// scaledOnce: there is one factor, a constant or an operand.
func scaledOnce(a *Attr, d []Dim) string {
	if (a.Scale != 0) != d[ScaleBy].Absent() {
		return fmt.Sprintf("scale is %v, and there is an operand that says it: %v", a.Scale, !d[ScaleBy].Absent())
	}
	return ""
}

// hasScale: an absent scale would leave zeros.
func hasScale(a *Attr, _ []Dim) string {
	if a.Scale == 0 {
		return "scale is missing"
	}
	return ""
}

// hasLimit: likewise.
func hasLimit(a *Attr, _ []Dim) string {
	if !(a.Limit > 0) {
		return fmt.Sprintf("limit is %g, but must be positive", a.Limit)
	}
	return ""
}

// pieces: there is a partial sum for each piece of the gradient.
func pieces(_ *Attr, d []Dim) string {
	part, g := d[NormPartPart], d[NormPartGrad]
	if k := NormPieces(g.Elems()); part.Cols != k {
		return fmt.Sprintf("%d partial sums for %d elements, want %d", part.Cols, g.Elems(), k)
	}
	return ""
}

// halved: only bf16 numbers, of which there is no other copy, are the upper halves of something.
func halved(p, p16, rest int) requirement {
	return func(_ *Attr, d []Dim) string {
		if !d[p16].Absent() && d[p].DType == I8 {
			return "p16 is a copy of weights in fp32, and p is in int8"
		}
		if !d[rest].Absent() && (d[p].DType != BF16 || !d[p16].Absent()) {
			return "rest holds the lower halves of weights, which p and p16 do not fit: p must be bf16, the upper halves, and p16 absent"
		}
		return ""
	}
}

// copied: copies do not convert.
func copied(_ *Attr, d []Dim) string {
	if src, dst := d[CopySrc].DType, d[CopyDst].DType; src != dst {
		return fmt.Sprintf("src is %v, the destination is %v: convert it with cast", src, dst)
	}
	return ""
}

// crossing: rows become columns, or the other way around.
func crossing(_ *Attr, d []Dim) string {
	to, from := d[AllToAllDst], d[AllToAllSrc]
	switch {
	case from.DType != to.DType:
		return fmt.Sprintf("src is %v, the destination is %v: convert it with cast", from.DType, to.DType)
	case to.Rows%from.Rows == 0 && from.Rows%2 == 0 && from.Cols%to.Cols == 0 && to.Rows/from.Rows%(from.Cols/to.Cols) == 0:
		return "" // as many groups of columns as members, or fewer
	case from.Rows%to.Rows == 0 && to.Rows%2 == 0 && to.Cols == from.Rows/to.Rows*from.Cols:
		return ""
	}
	return fmt.Sprintf("%d x %d elements cannot become %d x %d, in equal parts of two runs of rows", from.Rows, from.Cols, to.Rows, to.Cols)
}

// dropsSome: there is a probability with which Drop keeps elements.
func dropsSome(a *Attr, _ []Dim) string {
	if !(a.Rate >= 0 && a.Rate < 1) {
		return fmt.Sprintf("the rate is %v, want less than 1", a.Rate)
	}
	return ""
}
