package cuda

import (
	"errors"
	"fmt"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cuda/kernels"
	"github.com/athanor-llm/athanor/device/cuda/nv"
	"github.com/athanor-llm/athanor/graph"
)

// Products in FP8 (graph.MaxE4M3). Both matrices are rounded to codes in scratch memory, a byte a number, for as many columns of the
// result at a time as half of it has room for, and of these for as many rows as the rest has. Codes of both begin with the inner
// dimension, as tensor cores want them, so a weight that is stored otherwise is turned while it is rounded. Then:
//
//	y = (bias + res) / scales    if there is something to add; y / scales with acc
//	y = a.b + y                  of codes: the library's product
//	y = y * scales               of y's row times its column's, which are powers of two, so nothing is rounded by it
//
// The inner dimension is not divided, the division into columns does not depend on the rows, and a row's bits do not depend on which
// others are with it, so no plan changes a bit.
//
// Known weaknesses: rows are rounded anew for every panel of columns; with many inputs panels are small; where y is in bf16, bias + res is
// rounded before the product is added; and Hopper's library could multiply by both scales itself.

// codesPack is what numbers of rows of codes, and of columns of y, have to be multiples of for the library.
const codesPack = 16

// firstFP8 is the first compute capability whose tensor cores multiply E4M3: Ada's.
const firstFP8 = 89

// codes is a matrix that is rounded, row by row, and what the numbers of each row are multiplied by.
type codes struct{ numbers, undo device.Operand }

// inFP8 adds a product whose operands are rounded to E4M3.
func inFP8(b *builder, p product) error {
	if !b.fp8 {
		return errors.New("the card's tensor cores have no FP8, as those of Ada, Hopper and Blackwell do; hint: use precision: bf16")
	}
	deep := blocks(int64(p.a.Cols), codesPack) * codesPack
	each := deep + 4 // and its scale
	fit := func(room int64) int { return int((room - codesPack) / each / codesPack * codesPack) }
	step := fit(b.room / 2)
	if step < 1 {
		return fmt.Errorf("%d inputs are too many for the scratch memory of %d bytes; hint: use precision: bf16", p.a.Cols, b.room)
	}
	for c := 0; c < p.y.Cols; c += step {
		part := p.columns(c, min(step, p.y.Cols-c))
		weights, used, err := roundCodes(b, part.b, !p.tb, int(deep), 0)
		if err != nil {
			return err
		}
		most := fit(b.room - used)
		for r := 0; r < p.y.Rows; r += most {
			n := min(most, p.y.Rows-r)
			rows, _, err := roundCodes(b, rowsOf(p.a, r, n), false, int(deep), used)
			if err != nil {
				return err
			}
			to := part
			to.y, to.res = rowsOf(part.y, r, n), rowsOf(part.res, r, n)
			if err := multiplyCodes(b, to, rows, weights); err != nil {
				return err
			}
		}
	}
	return nil
}

// roundCodes rounds rows of a matrix, or its columns, to codes at a place in scratch memory, and returns where they end.
func roundCodes(b *builder, x device.Operand, columns bool, deep int, at int64) (c codes, end int64, err error) {
	rows, kernel, per := x.Rows, "round_rows", int64(1)
	v, _ := b.vector(x.Cols, x)
	if columns {
		rows, kernel, per, v = x.Cols, "round_columns", 32, 1
	}
	base := int64(b.scratch) - int64(b.base[device.DeviceTier]) + at
	c.numbers = device.Operand{Tier: device.DeviceTier, DType: graph.U8, Addr: base, Rows: rows, Cols: deep, Stride: deep}
	c.undo = device.Operand{Tier: device.DeviceTier, DType: graph.F32, Addr: base + int64(rows)*int64(deep), Rows: 1, Cols: rows, Stride: rows}
	end = blocks(at+int64(rows)*int64(deep+4), codesPack) * codesPack
	unit := kernels.Unit{File: "fp8", Defines: fmt.Sprintf("%sVEC=%d", types(c.numbers, x, c.undo, device.Operand{}, device.Operand{}), v)}
	return c, end, b.start(unit, kernel, [3]int64{blocks(int64(rows), per), 1, 1}, threads, 0, b.newArgs(c.numbers, x, c.undo))
}

// multiplyCodes adds the product of codes and what is done before and after it.
func multiplyCodes(b *builder, p product, x, w codes) error {
	v, _ := b.vector(p.y.Cols, p.y, p.bias, p.res)
	ops := []device.Operand{p.y, x.undo, w.undo, p.bias, p.res}
	unit := kernels.Unit{File: "rescale", Defines: fmt.Sprintf("%sVEC=%d", types(ops...), v)}
	rescale := func(before int32) error {
		a := b.newArgs(ops...)
		a.n[0], a.accum = before, int32(bit(p.acc))
		return b.start(unit, "rescale", [3]int64{blocks(int64(p.y.Rows)*int64(p.y.Cols/v), threads), 1, 1}, threads, 0, a)
	}
	product := product{y: p.y, a: x.numbers, b: w.numbers, tb: true, acc: p.added() || !p.bias.Absent(), rowWise: true}
	if product.acc {
		if err := rescale(1); err != nil {
			return err
		}
	}
	if err := b.plain(product); err != nil {
		return err
	}
	if b.library && p.y.Rows > 0 && p.y.Cols%codesPack == 0 && b.begins(p.y, p.y.DType, codesPack) {
		last := &b.work[len(b.work)-1]
		*last = work{product: &product, instead: []work{*last}}
	}
	return rescale(0)
}

// fp8 reports whether tensor cores multiply E4M3.
func (c *chip) fp8() bool { return c.capability >= firstFP8 }

// ofCodes reports whether a product is one of codes. No other algorithms take the place of its first: the random numbers of trials are no codes.
func ofCodes(p nv.Product) bool { return p.A.Type == nv.LtE4M3 }
