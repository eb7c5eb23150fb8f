package kernel

import (
	"encoding/binary"
	"math"
	"sync"
	"unsafe"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/kernel/gemm"
)

// Weights in 4 bits (graph.NF4Block). A product with such weights is computed panel by panel:
// for some columns of the result at a time, the weights are unpacked into memory that stays in a
// cache, and then multiplied as usual. The inner dimension is never divided, so the bits are
// those of weights unpacked beforehand. With few rows, when text is generated, each worker unpacks and multiplies small panels by
// itself; with AVX-512 and up to three rows, nothing is unpacked (gemm.Serial.Packed).
//
// Known weakness: with AVX2 and NEON, unpacking takes longer than the product of one row.

// panelElems bounds the weights that are unpacked at a time.
const panelElems = 1 << 20

// panelCols returns how many columns of a result are computed at a time if each needs inner
// weights: whole blocks.
func (e *Env) panelCols(inner int) int {
	return max(e.panelElems/max(inner, 1)/graph.NF4Block, 1) * graph.NF4Block
}

// product computes y = init + x.op(w), where the columns of y are the rows of w if turned, else
// its columns. With Attr.NF4 w is packed, as it is in int8; with Attr.FP8 x and w are rounded first.
func (e *Env) product(a *graph.Attr, turned bool, y, x, w *Tensor, init gemm.Init) {
	switch {
	case a.FP8:
		e.product8(turned, y, x, w, init)
		return
	case !a.NF4 && w.DType != graph.I8:
		e.multiply(turned, y, x, w, init)
		return
	}
	if x.Rows <= fewRows {
		e.productInStrips(turned, y, x, w, init)
		return
	}
	step := e.panelCols(x.Cols)
	for c := 0; c < y.Cols; c += step {
		n := min(step, y.Cols-c)
		part := columns(y, c, n)
		e.multiply(turned, &part, x, e.unpack(w, panelType(x, w), turned, x.Cols, y.Cols, [2]int{c, n}), initOf(init, c, n))
	}
}

// fewRows is the most rows for which a worker unpacks its own panels: with more, packing them for the product again costs more than waiting for others.
const fewRows = 8

// stripElems is about how many weights a worker unpacks at a time: they stay in the first caches.
const stripElems = 1 << 15

// tasksEach is how many tasks each worker has where weights are multiplied as they are.
const tasksEach = 2

// productInStrips is product for few rows. Where there are instructions for it, the weights are multiplied as they are.
func (e *Env) productInStrips(turned bool, y, x, w *Tensor, init gemm.Init) {
	c := e.begin(nil, nil)
	c.t[0], c.t[1], c.t[2], c.init = *y, *x, *w, init
	form, unit := gemm.NN, graph.NF4Block
	if turned {
		form, unit = gemm.NT, gemm.PackedUnit
	}
	step := max(min(stripElems, e.panelElems)/max(x.Cols, 1)/unit, 1) * unit
	if turned && x.DType == w.DType && e.Gemm.MultipliesPacked(x.Rows, x.Cols, x.DType == graph.BF16) { // nothing has to stay in a cache
		n := tasksEach * e.Pool.Workers() * unit
		step = (y.Cols + n - 1) / n * unit
	}
	c.n[0], c.n[1] = int(form), step
	c.tasks((y.Cols+step-1)/step, func(c *call, w *worker, i int) {
		y, x, form, lo := &c.t[0], &c.t[1], gemm.Form(c.n[0]), i*c.n[1]
		part := columns(y, lo, min(c.n[1], y.Cols-lo))
		init := initOf(c.init, lo, part.Cols)
		if form == gemm.NT && multiplyPacked(w.serial, &part, x, &c.t[2], lo, init) {
			return
		}
		weights := w.unpack(&c.t[2], panelType(x, &c.t[2]), form == gemm.NT, x.Cols, y.Cols, [2]int{lo, part.Cols})
		w.serial.Gemm(form, y.Rows, part.Cols, x.Cols, x.matrix(), weights.matrix(), part.matrix(), init)
	})
}

// multiplyPacked multiplies with rows of packed weights, from row lo on, and reports whether it could.
func multiplyPacked(s *gemm.Serial, y, x, packed *Tensor, lo int, init gemm.Init) bool {
	if x.DType != packed.DType {
		return false
	}
	size := int(packed.DType.Size())
	rows := unsafe.Slice((*byte)(unsafe.Add(packed.begin(), lo*packed.Stride*size)), ((y.Cols-1)*packed.Stride+packed.Cols)*size)
	four := gemm.Packed{Rows: rows, Stride: packed.Stride * size, Levels: &graph.NF4Levels}
	return s.Packed(y.Rows, y.Cols, x.Cols, x.matrix(), four, y.matrix(), init)
}

// unpack is Env.unpack for one worker.
func (w *worker) unpack(packed *Tensor, to graph.DType, turned bool, inner, cols int, band [2]int) *Tensor {
	p, first, lo, n := &w.rows[2], 0, band[0], band[1]
	if turned {
		p.resize(to, n, inner)
		first, lo, cols = lo, 0, inner
	} else {
		p.resize(to, inner, n)
	}
	for r := range p.Rows {
		w.unpackRow(p, packed, r, 0, p.Cols, first, lo, cols)
	}
	return p
}

// multiply is product for weights that are not packed.
func (e *Env) multiply(turned bool, y, x, w *Tensor, init gemm.Init) {
	form := gemm.NN
	if turned {
		form = gemm.NT
	}
	e.Gemm.Gemm(form, y.Rows, y.Cols, x.Cols, x.matrix(), w.matrix(), y.matrix(), init)
}

// columns returns columns [c, c+n) of a tensor.
func columns(t *Tensor, c, n int) Tensor {
	y := *t
	y.Cols = n
	if t.DType == graph.BF16 {
		y.BF16 = t.BF16[c:]
	} else {
		y.F32 = t.F32[c:]
	}
	return y
}

// initOf returns columns [c, c+n) of initial values.
func initOf(i gemm.Init, c, n int) gemm.Init {
	if i.Bias != nil {
		i.Bias = i.Bias[c : c+n]
	}
	if i.Residual.Data != nil {
		i.Residual.Data = i.Residual.Data[c:]
	}
	if i.Residual.Half != nil {
		i.Residual.Half = i.Residual.Half[c:]
	}
	return i
}

// panelType returns the type of unpacked weights: that of weights in 4 bits, or, of those in int8, that of what is multiplied with them.
func panelType(x, w *Tensor) graph.DType {
	if w.DType == graph.I8 {
		return x.DType
	}
	return w.DType
}

// unpack unpacks, to a type, the weights of a band of columns, first and number, of a result with cols columns.
func (e *Env) unpack(w *Tensor, to graph.DType, turned bool, inner, cols int, band [2]int) *Tensor {
	p := &e.panel
	first, lo, n := 0, band[0], band[1]
	if turned {
		p.resize(to, n, inner)
		first, lo, cols = lo, 0, inner
	} else {
		p.resize(to, inner, n)
	}
	call := e.begin(nil, nil)
	call.t[0], call.t[1] = *p, *w
	call.n = [4]int{first, lo, cols}
	call.inBuffers(1).byRows(p.Rows, p.Cols, unpackBody)
	return p
}

// unpackBody unpacks rows of a panel, which begins at column n[1] of row n[0] of the weights.
func unpackBody(c *call, w *worker, b block) {
	for r := b.R0; r < b.R1; r++ {
		w.unpackRow(&c.t[0], &c.t[1], r, b.C0, b.C1, c.n[0], c.n[1], c.n[2])
	}
}

// unpackRow unpacks columns [c0, c1) of row r of p, which is row first+r of the packed weights,
// of cols columns, from column lo on.
func (w *worker) unpackRow(p, packed *Tensor, r, c0, c1, first, lo, cols int) {
	if packed.DType == graph.I8 {
		y := w.dest(0, p, r, c0, c1)
		widen8(y[:c1-c0], packed.row8(first+r, lo+c0, lo+c1), packed.Unit)
		w.store(y, p, r, c0, c1)
		return
	}
	indices, scales := packed.nf4(first+r, cols)
	indices = indices[(lo+c0)/2:]
	scales = scales[(lo+c0)/graph.NF4Block*4:]
	own := w.tmp(1, len(scales)/4) // aligned
	copy(bytesOf(own), scales)
	if p.DType == graph.BF16 && w.v.NF4Half != nil {
		w.v.NF4Half(p.row16(r, c0, c1), indices, own)
		return
	}
	y := w.dest(0, p, r, c0, c1)
	w.v.NF4(y[:c1-c0], indices, own)
	w.store(y, p, r, c0, c1)
}

// nf4 returns the bytes of a row of packed weights: the indices, and the scales, which may not be
// aligned.
func (t *Tensor) nf4(r, cols int) (indices, scales []byte) {
	size := int(t.DType.Size())
	row := unsafe.Slice((*byte)(unsafe.Add(t.begin(), r*t.Stride*size)), t.Cols*size)
	at := (cols + graph.NF4Block - 1) / graph.NF4Block * (graph.NF4Block / 2)
	return row[:at], row[at:]
}

// unpacked returns packed weights with rows of cols elements, in plain Go: the reference.
func unpacked(t *Tensor, cols int) Tensor {
	y := NewTensor(t.DType, t.Rows, cols)
	for r := range t.Rows {
		indices, scales := t.nf4(r, cols)
		for c := range cols {
			y.Set(r, c, float64(nf4At(indices, scales, c)))
		}
	}
	return y
}

// nf4At returns element c of a row.
func nf4At(indices, scales []byte, c int) float32 {
	scale := math.Float32frombits(binary.LittleEndian.Uint32(scales[c/graph.NF4Block*4:]))
	return graph.NF4Levels[indices[c/2]>>(c%2*4)&15] * scale
}

// nf4Bounds are the midpoints between levels: a value between two of them is nearest to the
// level between them.
var nf4Bounds = func() (list [15]float32) {
	for i := range list {
		list[i] = (graph.NF4Levels[i] + graph.NF4Levels[i+1]) / 2
	}
	return list
}()

// PackNF4 stores a matrix with rows of cols elements in 4 bits, on several cores. A NaN makes
// its whole block NaN.
func PackNF4(src []float32, cols int) []byte {
	rows := len(src) / cols
	row := graph.NF4Cols(cols, graph.F32) * 4
	dst := make([]byte, rows*row)
	var all sync.WaitGroup
	const each = 1 << 18
	step := max(each/cols, 1)
	for r := 0; r < rows; r += step {
		all.Go(func() {
			for i := r; i < min(r+step, rows); i++ {
				packRow(dst[i*row:(i+1)*row], src[i*cols:(i+1)*cols])
			}
		})
	}
	all.Wait()
	return dst
}

// leastScale is the least scale of a block that is not zero. Of smaller ones, levels may be subnormal, which some instructions
// take for zero: no level but 0 is below 2^-4.
const leastScale = 0x1p-121

func packRow(dst []byte, src []float32) {
	const block = graph.NF4Block
	blocks := (len(src) + block - 1) / block
	scales := dst[blocks*block/2:]
	for b := range blocks {
		x := src[b*block : min((b+1)*block, len(src))]
		scale := float32(0)
		for _, v := range x {
			if v = abs(v); v > scale || v != v {
				scale = v
			}
		}
		if scale < leastScale {
			scale = 0
		}
		binary.LittleEndian.PutUint32(scales[4*b:], math.Float32bits(scale))
		indices := dst[b*block/2 : (b+1)*block/2]
		for i := range indices {
			indices[i] = scaledIndex(x, 2*i, scale) | scaledIndex(x, 2*i+1, scale)<<4
		}
	}
}

// scaledIndex returns the index of the level of element i, which counts as 0 past the last one.
func scaledIndex(x []float32, i int, scale float32) byte {
	if i < len(x) && scale > 0 {
		return nearest(x[i] / scale)
	}
	return nearest(0)
}

func abs(v float32) float32 { return math.Float32frombits(math.Float32bits(v) &^ (1 << 31)) }

// nearest returns the index of the level nearest to v, from -1 to 1, the lower of two equally
// near. The interval is divided into cells so small that each has at most one bound between
// levels.
func nearest(v float32) byte {
	c, above := &nf4Cells[cellOf(v)], byte(0)
	if v > c.bound { // compiled without a jump, which would be taken at random
		above = 1
	}
	return c.below + above
}

const cells = 32

// cellOf returns the number of the cell of v; for a NaN, any cell's.
func cellOf(v float32) int { return int(int32(v*(cells/2-0.01)+cells/2)) & (cells - 1) }

// cell holds the bound in it, infinite if there is none, and the number of bounds in cells
// below.
type cell struct {
	bound float32
	below byte
}

var nf4Cells = func() (list [cells]cell) {
	for i := range list {
		list[i].bound = float32(math.Inf(1))
		for _, bound := range nf4Bounds {
			switch at := cellOf(bound); {
			case at < i:
				list[i].below++
			case at == i:
				list[i].bound = bound
			}
		}
	}
	return list
}()

// UnpackNF4 unpacks rows of cols elements.
func UnpackNF4(dst []float32, src []byte, cols int) {
	row := graph.NF4Cols(cols, graph.F32) * 4
	indices := (cols + graph.NF4Block - 1) / graph.NF4Block * (graph.NF4Block / 2)
	for r := range len(dst) / cols {
		from := src[r*row : (r+1)*row]
		for c := range cols {
			dst[r*cols+c] = nf4At(from[:indices], from[indices:], c)
		}
	}
}

// bytesOf returns the memory of x.
func bytesOf(x []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x))
}
