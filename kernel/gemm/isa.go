package gemm

import (
	"unsafe"

	"github.com/athanor-llm/athanor/internal/float16"
)

//go:generate go run ./gen

// isa is a set of micro-kernels and data movers for one instruction set. All sets give the same bits, with two
// exceptions: the portable one rounds some sums twice, and some sets add products of two bf16 in pairs or on tiles.
type isa struct {
	name  string
	nr    int // columns of a panel
	strip int // rows that transpose takes at most

	several bool // the kernels of family fma take several tiles at a time

	fma family // micro-kernels for fp32
	dot family // for pairs of bf16; may be missing

	halfColumns, halfRows []func(*strip) // fma.columns and rows for a B in bf16; may be missing

	// tiles[h][w] computes squares of bf16 products, h+1 tiles high and w+1 wide; may be missing. See tiles.go.
	tiles [2][2]func(*grid)

	transpose func(*move) // dst[c][r] = src[r][c]
	deal      func(*move) // dst[p][r][:] = src[r][p][:]
	zip       func(*move) // deal for pairs; set if dot or tiles are

	widen  func(*convert) // bf16 to fp32
	narrow func(*convert) // fp32 to bf16, rounded to nearest, ties to even

	peak, peakDot           func(*peak)
	peakFlops, peakDotFlops int // floating-point operations per round
}

// family is a set of micro-kernels of all heights. wide[h] computes tiles of h rows and panels of nr columns;
// narrow[h] is for a last panel of at most nr/2 columns. columns[h] and rows[h] compute h rows of C in strips of
// columns or rows of B, see strip.go. Index 0 is unused, so the length minus one is the greatest height.
type family struct {
	wide, narrow  []func(*tile)
	columns, rows []func(*strip)
	packed        []func(*strip) // columns for weights in 4 bits, see packed.go; may be missing
}

// height returns the greatest height for the given number of columns.
func (f *family) height(cols, nr int) int {
	if cols <= nr/2 {
		return len(f.narrow) - 1
	}
	return len(f.wide) - 1
}

// tile is the argument of a micro-kernel: for each panel, C = init + A * B over k, every element one chain of fused
// multiply-adds in order of k. Strides are in bytes. A kernel modifies the fields that change from panel to panel.
//
// The generator knows the layout.
type tile struct {
	k int

	a          address
	aRow, aCol uintptr

	b            address // read in whole panels
	bRow, bPanel uintptr

	init               address // initial values of the sums; strides may be 0
	initRow, initPanel uintptr

	c    address
	cRow uintptr

	panels int
	last   uint64 // mask of the last panel's existing columns; other columns of init and C are not touched

	// Memory that will be needed soon: one address per k is prefetched into the second-level cache.
	ahead                 address
	aheadStep, aheadPanel uintptr

	// Distance from the tile's rows of A to those needed next; each panel prefetches some of them.
	next uintptr

	back uintptr // distance from the last panel back to the first, to prefetch what follows the last

	// Tiles of the same height below this one, and the distances to them from the end of a tile's last panel. Only
	// for kernels that take several.
	more                          int
	moreA, moreB, moreInit, moreC uintptr
	morePanels                    int

	rows int // height, for the portable kernel; each other kernel has a fixed one
}

// move is the argument of a data mover; strides in bytes, elements of 4 bytes.
//
// transpose reads rows of cols elements, at most as many rows as the mask has bits. It writes the elements in mask of
// cols rows of dst, with 0 for missing rows of src.
//
// deal splits each row of src into cols panels and copies each to its panel of dst. The low half of mask selects the
// elements to read; the others count as 0. The high half selects those to write. zip does the same with two rows of
// bf16 at a time: srcRow is the stride of such a double row, and an element of dst is a pair.
//
// The generator knows the layout.
type move struct {
	src              address
	srcRow, srcPanel uintptr
	dst              address
	dstRow, dstPanel uintptr
	rows, cols       int
	mask             uint64
}

// convert is the argument of a conversion; strides in bytes.
//
// The generator knows the layout.
type convert struct {
	src        address
	srcRow     uintptr
	dst        address
	dstRow     uintptr
	rows, cols int
}

// address is the location of an element. Kernels use addresses, not pointers: stepping through a matrix ends beyond
// it, where a pointer would be invalid for the garbage collector. The job keeps the operands alive meanwhile.
type address = uintptr

func addressOf(p *float32) address { return address(unsafe.Pointer(p)) }

// at returns the address i strides after p.
func at(p address, i int, stride uintptr) address { return p + uintptr(i)*stride }

func float(p address, i int) *float32 { return (*float32)(pointer(at(p, i, 4))) }

func half(p address, i int) *uint16 { return (*uint16)(pointer(at(p, i, 2))) }

// pointer converts an address inside an operand to a pointer.
func pointer(p address) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&p)) }

// portable is the instruction set of machines without assembly, and the slow, clear version of the others.
var portable = isa{
	name:      "portable",
	nr:        portableCols,
	strip:     portableCols,
	fma:       family{wide: portableKernels, narrow: portableKernels},
	transpose: portableTranspose,
	deal:      portableDeal,
	widen:     portableWiden,
	narrow:    portableNarrow,
	peak:      portablePeak,
	peakFlops: 8,
}

var portableKernels = []func(*tile){nil, portableKernel, portableKernel, portableKernel, portableKernel}

const portableCols = 16

// portableKernel is the micro-kernel in plain Go. The product of two float32 is exact in float64, so each sum is
// rounded to 53 bits and then to 24. The bits are deterministic but may differ from those of a fused multiply-add.
func portableKernel(t *tile) {
	for ; t.panels > 0; t.panels-- {
		cols := t.last
		if t.panels > 1 {
			cols = 1<<portableCols - 1
		}
		for i := range t.rows {
			var sums [portableCols]float32
			init, c := at(t.init, i, t.initRow), at(t.c, i, t.cRow)
			for j := range sums {
				if cols>>j&1 != 0 {
					sums[j] = *float(init, j)
				}
			}
			a, b := at(t.a, i, t.aRow), t.b
			for range t.k {
				x := float64(*(*float32)(pointer(a)))
				for j, y := range (*[portableCols]float32)(pointer(b)) {
					sums[j] = float32(float64(sums[j]) + x*float64(y))
				}
				a, b = a+t.aCol, b+t.bRow
			}
			for j, sum := range sums {
				if cols>>j&1 != 0 {
					*float(c, j) = sum
				}
			}
		}
		t.b, t.init, t.c = t.b+t.bPanel, t.init+t.initPanel, t.c+4*portableCols
	}
}

func portableTranspose(m *move) {
	for c := range m.cols {
		dst := at(m.dst, c, m.dstRow)
		for r := 0; m.mask>>r != 0; r++ {
			switch {
			case m.mask>>r&1 == 0:
			case r < m.rows:
				*float(dst, r) = *float(at(m.src, r, m.srcRow), c)
			default:
				*float(dst, r) = 0
			}
		}
	}
}

func portableDeal(m *move) {
	for r := range m.rows {
		for p := range m.cols {
			src := at(at(m.src, r, m.srcRow), p, m.srcPanel)
			dst := at(at(m.dst, r, m.dstRow), p, m.dstPanel)
			for i := 0; m.mask>>(32+i) != 0; i++ {
				switch {
				case m.mask>>(32+i)&1 == 0:
				case m.mask>>i&1 != 0:
					*float(dst, i) = *float(src, i)
				default:
					*float(dst, i) = 0
				}
			}
		}
	}
}

func portableWiden(c *convert) {
	for r := range c.rows {
		src, dst := at(c.src, r, c.srcRow), at(c.dst, r, c.dstRow)
		for i := range c.cols {
			*float(dst, i) = float16.FromBF16(*half(src, i))
		}
	}
}

func portableNarrow(c *convert) {
	for r := range c.rows {
		src, dst := at(c.src, r, c.srcRow), at(c.dst, r, c.dstRow)
		for i := range c.cols {
			*half(dst, i) = float16.ToBF16(*float(src, i))
		}
	}
}
