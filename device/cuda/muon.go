package cuda

import (
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cuda/kernels"
	"github.com/athanor-llm/athanor/graph"
)

// muon launches the update of a whole matrix, see graph/muon.go. Its elementwise parts have the arithmetic of the CPU's
// kernel; products are the library's, on tensor cores where the steps' matrices are in bf16.
//
// Known weakness: both halves of symmetric products are computed, and one block adds the squares of a matrix.
func muon(b *builder) error {
	p, at, work := b.op(graph.MuonP), b.call.Attr, b.op(graph.MuonWork)
	places := graph.MuonPlacesOf(p.Rows, p.Cols)
	place := func(from, rows, cols int) device.Operand {
		o := work
		o.Addr += int64(from) * o.DType.Size()
		o.Rows, o.Cols, o.Stride = rows, cols, cols
		return o
	}
	x, next, norm := place(places.Y, p.Rows, p.Cols), place(places.Next, p.Rows, p.Cols), place(places.Norm, 1, 1)
	norm.DType = graph.F32
	side := min(p.Rows, p.Cols)
	gram, poly := place(places.Gram, side, side), place(places.Poly, side, side)
	clip, scalars := b.op(graph.MuonClip), b.op(graph.MuonScalars)
	constants := func(a *args) {
		a.f[0], a.f[1] = float32(at.Beta1), float32(1-at.Beta1)
		a.d[0], a.d[1] = at.Decay, at.Scale*graph.MuonGain()
		a.n = [8]int32{graph.ScalarLR, 3: graph.ScalarChance, 4: int32(at.Param), 5: int32(uint32(at.First)), 6: int32(bit(at.Masked))}
	}
	var weights, rest device.Operand // if those that are 0 stay so
	if at.Masked {
		weights, rest = p, b.op(graph.MuonRest)
	}
	err := b.elements(kernels.Unit{File: "muon_mean"}, func(a *args) {
		constants(a)
		a.t[5], a.t[6] = b.mat(clip), b.mat(scalars)
	}, b.op(graph.MuonM), x, b.op(graph.MuonGrad), weights, rest)
	if err != nil {
		return err
	}
	sum := b.newArgs(norm, place(places.Y, 1, p.Rows*p.Cols))
	sum.d[0] = at.Eps
	if err := b.start(kernels.Unit{File: "muon_norm", Defines: types(norm, work)}, "muon_norm", [3]int64{1, 1, 1}, 1024, 0, sum); err != nil {
		return err
	}
	if err := b.elements(kernels.Unit{File: "muon_unit"}, func(a *args) { a.t[1] = b.mat(norm) }, x); err != nil {
		return err
	}
	wide := p.Rows <= p.Cols
	for k := range graph.MuonSteps {
		if err := b.product(product{y: gram, a: x, b: x, ta: !wide, tb: wide}); err != nil {
			return err
		}
		if err := b.product(product{y: poly, a: gram, b: gram}); err != nil {
			return err
		}
		err := b.elements(kernels.Unit{File: "muon_poly"}, func(a *args) {
			linear, square := graph.MuonPolynomial(k)
			a.f[0], a.f[1] = float32(linear), float32(square)
		}, poly, gram)
		if err != nil {
			return err
		}
		step := product{y: next, a: poly, b: x, res: x}
		if !wide {
			step.a, step.b = x, poly
		}
		if err := b.product(step); err != nil {
			return err
		}
		x, next = next, x
	}
	return b.elements(kernels.Unit{File: "muon"}, func(a *args) {
		constants(a)
		a.t[4], a.t[5] = b.mat(clip), b.mat(scalars)
	}, p, x, b.op(graph.MuonP16), b.op(graph.MuonRest))
}
