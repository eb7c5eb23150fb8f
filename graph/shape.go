package graph

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/athanor-llm/athanor/model"
)

// Shape is what an operator requires of one operand, as the legend of the table has it.
type Shape struct {
	Types      string // one letter, see dtypeSets
	Rows, Cols Extent
	Turned     bool // with Attr.WT rows and columns change places
}

// Extent is a letter's value times a factor, or a number.
type Extent struct {
	Times  int
	Letter byte // 0: none
}

var dtypeSets = map[string][]DType{
	"f": {F32, BF16}, "s": {F32}, "r": {F32, F64}, "p": {F32, BF16, F64}, "h": {BF16}, "i": {I32}, "d": {F64}, "u": {U16}, "q": {F32, BF16, I8}, "m": {F32, BF16, U8},
	"*": {F32, BF16, I32, F64, U16, I8, U8},
}

// parseShape parses TYPE[ROWS,COLS], perhaps followed by '.
func parseShape(s string) Shape {
	types, box, _ := strings.Cut(s, "[")
	box, turned := strings.CutSuffix(box, "'")
	rows, cols, _ := strings.Cut(strings.TrimSuffix(box, "]"), ",")
	return Shape{types, parseExtent(rows), parseExtent(cols), turned}
}

func parseExtent(s string) Extent {
	if n, err := strconv.Atoi(s); err == nil {
		return Extent{Times: n}
	}
	e := Extent{Times: 1, Letter: s[len(s)-1]}
	if len(s) > 1 {
		e.Times, _ = strconv.Atoi(s[:len(s)-1])
	}
	return e
}

// letters has the values of letters, 0 where they are unknown.
type letters [128]int

// given sets the letters whose values attributes determine.
func (v *letters) given(a *Attr) {
	v['#'], v['T'], v['U'] = NumScalars, a.Seq, max(1, a.Heads)
	v['S'], v['H'], v['A'], v['G'] = a.HeadDim, a.Heads, a.Heads*a.HeadDim, 2*a.KVHeads*a.HeadDim
	v['Q'] = v['A'] + v['G']
}

// takesHeads reports whether extents of operands come from attributes of heads.
func (o Op) takesHeads() bool {
	return slices.ContainsFunc(table[o].Args, func(s ArgSpec) bool {
		return strings.IndexByte("AGHQS", s.Shape.Rows.Letter) >= 0 || strings.IndexByte("AGHQS", s.Shape.Cols.Letter) >= 0
	})
}

// bind matches an extent with its required value, or binds its letter to it.
func (e Extent) bind(v *letters, n int) (want int, ok bool) {
	if e.Letter == 0 {
		return e.Times, n == e.Times
	}
	x := &v[e.Letter]
	if *x == 0 && n%e.Times == 0 {
		*x = n / e.Times
	}
	return *x * e.Times, n == *x*e.Times
}

// Misfit says why a call is not one of its operator.
type Misfit struct {
	Arg  int // the operand at fault; -1: none, or several
	Why  string
	Hint string
}

func (m *Misfit) Error() string { return m.Why + "; hint: " + m.Hint }

// Bounds of what Check accepts, so that nothing overflows that is computed from it.
const (
	MaxCount = 1 << 40 // attributes, rows and columns
	maxElems = 1 << 47
	maxHeads = 1 << 20 // heads, and elements of one
	maxCut   = 1 << 8  // tokens to which those of an expert are padded
)

// Check says what is wrong with a call of an operator that exists: with its attributes, or with the types and
// extents of its operands, of which trailing optional ones may be left out. It returns nil if operands of these
// extents are all that the operator touches and, provided that the numbers in index operands (tokens, targets,
// experts, starts, pos) are in range, it computes what its row says.
func (o Op) Check(a *Attr, d []Dim) *Misfit {
	if why := o.CheckAttr(a); why != "" {
		return &Misfit{-1, why, "see package graph for what the operator reads"}
	}
	return o.CheckOperands(a, d)
}

// possibleHeads reports whether there can be such heads. Queries are rotated alone where their keys are another layer's.
func possibleHeads(o Op, a *Attr) bool {
	alone := a.KVHeads == 0 && (o == RoPE || o == RoPEAt)
	return a.Heads >= 1 && a.HeadDim >= 1 && a.Heads <= maxHeads && a.HeadDim <= maxHeads && (alone || a.KVHeads >= 1 && a.Heads%a.KVHeads == 0)
}

// CheckOperands is Check where the attributes have passed CheckAttr.
func (o Op) CheckOperands(a *Attr, d []Dim) *Misfit {
	specs := table[o].Args
	if len(d) > len(specs) {
		return &Misfit{-1, fmt.Sprintf("has %d operands, but takes at most %d", len(d), len(specs)), "see the operator's row in package graph"}
	}
	if len(d) < len(specs) {
		d = append(slices.Clip(d), make([]Dim, len(specs)-len(d))...)
	}
	var values letters
	values.given(a)
	for i, x := range d {
		switch {
		case !x.Absent():
			if m := o.checkDim(a, &values, d, i); m != nil {
				return m
			}
		case !specs[i].Optional:
			return &Misfit{i, "is missing", "see the operator's row in package graph"}
		}
	}
	if rule := table[o].Rule; rule != nil {
		if why := rule(a, d); why != "" {
			return &Misfit{-1, why, "extents of operands must agree"}
		}
	}
	return nil
}

// checkDim checks operand i, whose letters those before it may have bound.
func (o Op) checkDim(a *Attr, values *letters, d []Dim, i int) *Misfit {
	const agree = "extents of operands must agree"
	x, shape := d[i], &table[o].Args[i].Shape
	if x.Rows < 1 || x.Cols < 1 || x.Rows > MaxCount || x.Cols > MaxCount || x.Rows > maxElems/x.Cols {
		return &Misfit{i, fmt.Sprintf("has impossible extents %dx%d", x.Rows, x.Cols), agree}
	}
	if !slices.Contains(dtypeSets[shape.Types], x.DType) {
		return &Misfit{i, fmt.Sprintf("has elements of type %v", x.DType), "cast it first"}
	}
	if shape.Types == "q" && x.DType == I8 && (a.Unit == 0 || a.NF4 || a.FP8) {
		return &Misfit{i, "has elements of type i8, but the call has no unit, or nf4 or fp8", "say what they are multiples of"}
	}
	rows, cols := shape.Rows, shape.Cols
	if shape.Turned && a.WT {
		rows, cols = cols, rows
	}
	if want, ok := rows.bind(values, x.Rows); !ok {
		return &Misfit{i, fmt.Sprintf("has %d rows, want %d", x.Rows, want), agree}
	}
	if a.NF4 && table[o].Args[i].Name == "w" {
		plain := values[cols.Letter]
		if o == ExpertLinear {
			_, plain = expertExtents(a, d)
		}
		cols = Extent{Times: NF4Cols(plain, x.DType)}
	}
	if shape.Types == "m" && x.DType == U8 {
		cols = Extent{Times: PackedMoments(values[cols.Letter])}
	}
	if want, ok := cols.bind(values, x.Cols); !ok {
		return &Misfit{i, fmt.Sprintf("has %d columns, want %d", x.Cols, want), agree}
	}
	return nil
}

// CheckAttr says what is wrong with an operator's attributes, or "".
func (o Op) CheckAttr(a *Attr) string {
	if why := a.outside(); why != "" {
		return why
	}
	if a.Acc && !slices.ContainsFunc(table[o].Args, func(s ArgSpec) bool { return s.Access == Sum }) {
		return "acc is set, but the operator adds to nothing"
	}
	switch {
	case a.NF4 && o != Linear && o != LinearDX && o != ExpertLinear && o != Direction:
		return "nf4 is set, but the operator takes no weights in NF4"
	case a.FP8 && (o != Linear && o != LinearDX || a.NF4):
		return "fp8 is set, but the operator multiplies nothing in FP8, or its weights are in NF4"
	case a.Cut != 0 && o != LinearDW && o != ExpertDW:
		return fmt.Sprintf("cut is %d, but the operator has no sum to cut", a.Cut)
	case a.Cut%2 != 0: // an operator that adds in pairs would form different pairs
		return fmt.Sprintf("cut is %d, which is odd", a.Cut)
	case a.Seq < 1 && (table[o].Kind == Sequence || table[o].Position):
		return "seq is missing"
	case o.takesHeads() && !possibleHeads(o, a):
		return fmt.Sprintf("impossible heads: %d query, %d key/value heads of size %d", a.Heads, a.KVHeads, a.HeadDim)
	}
	return ""
}

// outside names an attribute that no operator could have.
func (a *Attr) outside() string {
	for _, f := range AttrFields {
		switch v := f.Ptr(a).(type) {
		case *int:
			if *v < 0 || *v > MaxCount {
				return fmt.Sprintf("%s is %d", f.Name, *v)
			}
		case *float64:
			if math.IsNaN(*v) || math.IsInf(*v, 0) {
				return fmt.Sprintf("%s is %g", f.Name, *v)
			}
		case *model.Activation:
			if *v >= model.NumActivations {
				return fmt.Sprintf("%s is %d", f.Name, *v)
			}
		}
	}
	return ""
}
