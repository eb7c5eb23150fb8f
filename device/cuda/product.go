package cuda

import (
	"fmt"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cuda/kernels"
	"github.com/athanor-llm/athanor/device/cuda/nv"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/model"
)

// The three products of a linear layer share one form: y = bias + res + op(a).op(b),
// row-major, where acc stands for res = y. cublasLt is column-major, so it gets the
// transposed equation, y^T = op(b)^T . op(a)^T.
//
// Law L1 requires the bits of a row to be the same in any range of rows. So the
// algorithm is chosen for canonRows rows, without split-k, and then used for any number
// of rows: the same chain per element. Other algorithms take its place where their bits
// are the same (tune.go). LinearDW sums over the rows. If target.sumRows is set, programs
// may split the tokens at multiples of it (see SumRows). Our own kernel respects these
// cuts (wgrad.go); for the library the product is split into products of that many rows
// that continue each other.

const canonRows = 4096

// SumRows returns the number of tokens at whose multiples programs may cut sums, for
// Options.SumRows: a sequence, or for long sequences, whose logits would otherwise need
// too much memory, its smallest part of at least 4096 tokens.
func SumRows(seq int) int {
	const long = 4096
	for n := seq / long; n > 1; n-- {
		if seq%n == 0 {
			return seq / n
		}
	}
	return seq
}

// product is y = bias + res + op(a).op(b), on operands of one tier, or, with x, op(a).op(b)*gelu'(x).
type product struct {
	y, a, b, bias, res, x device.Operand
	ta, tb                bool
	acc                   bool
	rowWise               bool // rows of a are tokens, so the result must not depend on their number
}

func linear(b *builder) error {
	return b.weighted(product{y: b.op(graph.LinearY), a: b.op(graph.LinearX), b: b.op(graph.LinearW), bias: b.op(graph.LinearBias), res: b.op(graph.LinearRes),
		tb: b.call.Attr.WT, acc: b.call.Attr.Acc, rowWise: true})
}

func linearDX(b *builder) error {
	p := product{y: b.op(graph.LinearDXDX), a: b.op(graph.LinearDXDY), b: b.op(graph.LinearDXW), tb: !b.call.Attr.WT, acc: b.call.Attr.Acc, rowWise: true}
	if err := b.weighted(p); err != nil || b.op(graph.LinearDXX).Absent() {
		return err
	}
	x := b.op(graph.LinearDXX)
	if err := b.elements(b.activation("act_bwd"), nil, p.y, p.y, x); err != nil {
		return err
	}
	if b.derives(p, x) {
		p.x = x
		b.work = []work{{product: &p, instead: b.work}}
	}
	return nil
}

// derives reports whether the library's kernel multiplies by the derivative of the activation at x,
// which saves writing and reading the product. llm.c recommends that from Hopper on, not for earlier
// cards; those of compute capability 12 (GeForce) multiply with the same instructions as these.
func (b *builder) derives(p product, x device.Operand) bool {
	a := &b.call.Attr
	return b.library && (b.major == 9 || b.major == 10) && a.Act == model.GELUTanh && !a.NF4 && !a.FP8 && p.y.Rows > 0 && inWholePacks(p.y) && inWholePacks(p.a) &&
		b.packed(p.y) && b.packed(p.a) && b.packed(p.b) && b.packed(x)
}

func linearDW(b *builder) error {
	var list []gradient
	for first := graph.LinearDWDW; !b.op(first).Absent(); first += graph.LinearDWDW2 {
		g := gradient{b.op(first + graph.LinearDWDW), b.op(first + graph.LinearDWX), b.op(first + graph.LinearDWDY)}
		if b.call.Attr.WT {
			g.x, g.dy = g.dy, g.x
		}
		list = append(list, g)
	}
	if len(list) > 1 && b.paired(list[0], list[1]) {
		return b.wgrad(list...)
	}
	for _, g := range list {
		if err := b.sum(g); err != nil {
			return err
		}
	}
	return nil
}

// sum computes the gradient of a weight.
func (b *builder) sum(g gradient) error {
	if b.own(g) {
		return b.wgrad(g)
	}
	y, x, dy := g.y, g.x, g.dy
	step := b.sumRows
	if step < 1 || !b.library {
		step = max(x.Rows, 1)
	}
	for r := 0; r == 0 || r < x.Rows; r += step {
		n := min(step, x.Rows-r)
		p := product{y: y, a: rowsOf(x, r, n), b: rowsOf(dy, r, n), ta: true, acc: b.call.Attr.Acc || r > 0}
		if err := b.product(p); err != nil {
			return err
		}
	}
	return nil
}

// product adds a product. The library has fast kernels only for rows that are whole packs of 16 bytes.
// For other rows that begin where packs do, such as GPT-2's 50257 logits, it computes the columns or
// the terms up to the last whole pack, and the plain kernel computes the few that are left.
func (b *builder) product(p product) error {
	cols, inner := p.y.Cols, p.a.Cols
	switch {
	case !b.library || p.ta || !b.packed(p.y) || !b.packed(p.a) || !b.packed(p.b):
	case cols > pack && cols%pack > 0:
		most := cols - cols%pack
		if err := b.product(p.columns(0, most)); err != nil {
			return err
		}
		return b.plain(p.columns(most, cols-most))
	case inner > pack && inner%pack > 0 && !p.acc && p.bias.Absent() && p.res.Absent():
		most := inner - inner%pack
		if err := b.plain(p.terms(most, inner-most)); err != nil {
			return err
		}
		p = p.terms(0, most)
		p.acc = true
	}
	if err := b.plain(p); err != nil {
		return err
	}
	if b.library && p.y.Rows > 0 && p.suits() {
		w := &b.work[len(b.work)-1]
		*w = work{product: &p, instead: []work{*w}}
	}
	return nil
}

// pack is the number of elements of bf16 in 16 bytes.
const pack = 8

// inWholePacks reports whether rows are whole packs.
func inWholePacks(o device.Operand) bool { return o.Cols%pack == 0 }

// packed reports whether an operand is in bf16 with rows that begin at multiples of 16 bytes.
func (b *builder) packed(o device.Operand) bool { return b.begins(o, graph.BF16, 16) }

// columns returns the product for n columns of y from c on.
func (p product) columns(c, n int) product {
	p.y, p.bias, p.res = columnsOf(p.y, c, n), columnsOf(p.bias, c, n), columnsOf(p.res, c, n)
	if p.tb {
		p.b = rowsOf(p.b, c, n)
	} else {
		p.b = columnsOf(p.b, c, n)
	}
	return p
}

// terms returns the part of a product that sums n terms from k on; a is not transposed.
func (p product) terms(k, n int) product {
	p.a = columnsOf(p.a, k, n)
	if p.tb {
		p.b = columnsOf(p.b, k, n)
	} else {
		p.b = rowsOf(p.b, k, n)
	}
	return p
}

// plain adds a product on the plain kernel, which accepts everything.
func (b *builder) plain(p product) error {
	ops := []device.Operand{p.y, p.a, p.b, p.bias, p.res}
	a := b.newArgs(ops...)
	a.n, a.accum = [8]int32{}, 0
	for i, set := range []bool{p.ta, p.tb} {
		if set {
			a.n[i] = 1
		}
	}
	if p.acc {
		a.accum = 1
	}
	grid := [3]int64{blocks(int64(p.y.Rows), 64), blocks(int64(p.y.Cols), 64), 1}
	return b.start(kernels.Unit{File: "product", Defines: types(ops...)}, "product", grid, threads, 0, a)
}

func (p *product) String() string {
	turned := func(o device.Operand, t bool) string {
		if t {
			return fmt.Sprintf("%v[%dx%d/%d]^T", o.DType, o.Rows, o.Cols, o.Stride)
		}
		return fmt.Sprintf("%v[%dx%d/%d]", o.DType, o.Rows, o.Cols, o.Stride)
	}
	s := fmt.Sprintf("%s = %s %s", turned(p.y, false), turned(p.a, p.ta), turned(p.b, p.tb))
	if !p.bias.Absent() {
		s += " + bias"
	}
	if !p.res.Absent() || p.acc {
		s += " + residual"
	}
	if !p.x.Absent() {
		s += " * gelu'"
	}
	return s
}

// suits reports whether the library supports the combination of types.
func (p *product) suits() bool {
	for _, o := range []device.Operand{p.y, p.a, p.b} {
		if !isFloat(o) {
			return false
		}
	}
	return p.a.Rows > 0 && p.a.DType == p.b.DType && (p.y.DType == p.a.DType || p.y.DType == graph.F32) &&
		(p.bias.Absent() || p.bias.DType == p.y.DType) && (p.res.Absent() || p.res.DType == p.y.DType)
}

// added reports whether the product is added to something.
func (p *product) added() bool { return !p.res.Absent() || p.acc }

var (
	ltTypes = map[graph.DType]int{graph.F32: nv.LtF32, graph.BF16: nv.LtBF16, graph.U8: nv.LtE4M3}
	ltBytes = map[int]int64{nv.LtF32: 4, nv.LtBF16: 2}
)

// mostAligned is the alignment that programs give every buffer. If a buffer happens to
// be aligned better, the library must not choose another algorithm: the bits would then
// depend on the plan.
const mostAligned = 64

// describe returns the product as the library sees it: columns of B, C and D are rows
// of a and y.
func (p *product) describe(address func(device.Operand) uintptr) nv.Product {
	aligned := func(o device.Operand, lead int) int {
		n := mostAligned
		for n > 1 && (address(o)%uintptr(n) != 0 || lead*int(o.DType.Size())%n != 0) {
			n /= 2
		}
		return n
	}
	matrix := func(o device.Operand) nv.LtMatrix {
		lead := max(o.Stride, o.Cols)
		return nv.LtMatrix{Type: ltTypes[o.DType], Rows: o.Cols, Cols: o.Rows, Lead: lead, Align: aligned(o, lead)}
	}
	d := nv.Product{TransA: p.tb, TransB: p.ta, Whole: p.rowWise, A: matrix(p.b), B: matrix(p.a), D: matrix(p.y)}
	switch {
	case !p.bias.Absent():
		d.Epilogue, d.Align = nv.LtBias, aligned(p.bias, 0)
	case !p.x.Absent():
		x := matrix(p.x)
		d.Epilogue, d.Lead, d.Align = nv.LtDGELU, x.Lead, x.Align
	}
	d.C = d.D
	if !p.res.Absent() {
		d.C = matrix(p.res)
	}
	return d
}

// extra is what the product's epilogue reads.
func (p *product) extra() device.Operand {
	if !p.bias.Absent() {
		return p.bias
	}
	return p.x
}

// canonical returns the product for which the algorithm is chosen.
func canonical(d nv.Product) nv.Product {
	if d.Whole {
		d.B.Cols, d.C.Cols, d.D.Cols = canonRows, canonRows, canonRows
	}
	return d
}
