package gemm

import (
	"math"
	"unsafe"
)

// isa is a set of micro-kernels and data movers for one instruction set. The sets give the same bits, but for the
// portable one, which rounds some sums twice, and for products of two bf16, which some add in pairs or on tiles.
type isa struct {
	name  string
	nr    int // columns of a panel
	strip int // rows that transpose takes at most

	several bool // the kernels of family fma take several tiles at a time

	fma family // micro-kernels for fp32
	dot family // for pairs of bf16; may be missing

	// tiles[h][w] computes squares of bf16 products, h+1 tiles high and w+1 wide; may be missing. See tiles.go.
	tiles [2][2]func(*grid)

	transpose func(*move) // dst[c][r] = src[r][c]
	deal      func(*move) // dst[p][r][:] = src[r][p][:]
	zip       func(*move) // the same for pairs; comes with dot and tiles

	widen  func(*convert) // bf16 to fp32
	narrow func(*convert) // fp32 to bf16, rounded to nearest, ties to even

	peak, peakDot           func(*peak)
	peakFlops, peakDotFlops int // floating-point operations in a round
}

// family is micro-kernels of all heights. wide[h] computes tiles of h rows and panels of nr columns; narrow[h] is for
// a panel of which only the first nr/2 columns exist. columns[h] and rows[h] compute h rows of C in strips of columns or
// rows of B, see strip.go. The lengths tell the greatest heights.
type family struct {
	wide, narrow  []func(*tile)
	columns, rows []func(*strip)
}

// height returns the greatest height for the given number of columns.
func (f *family) height(cols, nr int) int {
	if cols <= nr/2 {
		return len(f.narrow) - 1
	}
	return len(f.wide) - 1
}

// tile is the argument of a micro-kernel: for each panel, C = init + A * B over k, every element one chain of fused
// multiply-adds in order of k. Strides are in bytes. A kernel uses up the fields that change from panel to panel.
//
// The generator knows the layout.
type tile struct {
	k int

	a          address
	aRow, aCol uintptr

	b            address // read in whole panels
	bRow, bPanel uintptr

	init               address // what the sums begin with; rows and panels may be 0 bytes apart
	initRow, initPanel uintptr

	c    address
	cRow uintptr

	panels int
	last   uint64 // bit per column of the last panel that exists; init and C are touched only there

	// Memory that will be needed soon: one address per k is prefetched into the second-level cache.
	ahead                 address
	aheadStep, aheadPanel uintptr

	// The way from the tile's rows of A to those that will be needed next, some of which are prefetched per panel.
	next uintptr

	back uintptr // from the last panel to the first one of the tile's rows, for what comes after it

	// Tiles of the same height below this one, and the ways there from behind a tile's last panel. Only for kernels that
	// take several.
	more                          int
	moreA, moreB, moreInit, moreC uintptr
	morePanels                    int

	rows int // for the portable kernel; the others know it
}

// move is the argument of a data mover; strides in bytes, elements of 4 bytes.
//
// transpose reads rows of cols elements, at most as many rows as the mask has bits, and writes cols rows of dst: of
// each the elements in mask, those of missing rows as 0.
//
// deal copies, of each row of src, cols panels to as many places in dst. Of a panel's row the elements in the low half
// of mask are read, the others count as 0, and those in the high half are written. zip does so with two rows of bf16 at a
// time: srcRow is the stride of such a double row, and an element of dst is a pair.
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

// address is where an element lies. Addresses, not pointers, are what the kernels work with, since stepping through a
// matrix ends beyond it, where a pointer would alarm the garbage collector. The job holds the operands meanwhile.
type address = uintptr

func addressOf(p *float32) address { return address(unsafe.Pointer(p)) }

// at returns the address i strides after p.
func at(p address, i int, stride uintptr) address { return p + uintptr(i)*stride }

func float(p address, i int) *float32 { return (*float32)(pointer(at(p, i, 4))) }

func half(p address, i int) *uint16 { return (*uint16)(pointer(at(p, i, 2))) }

// pointer makes a pointer of an address inside an operand.
func pointer(p address) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&p)) }

// portable is the instruction set of machines without assembly, and the slow clear version of the others.
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

// portableKernel is the micro-kernel in plain Go. The product of two float32 is exact in float64, so a chain rounds
// each sum to 53 bits and then to 24: not always the bits of a fused multiply-add, but always the same ones.
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
			*float(dst, i) = math.Float32frombits(uint32(*half(src, i)) << 16)
		}
	}
}

func portableNarrow(c *convert) {
	for r := range c.rows {
		src, dst := at(c.src, r, c.srcRow), at(c.dst, r, c.dstRow)
		for i := range c.cols {
			*half(dst, i) = narrow(*float(src, i))
		}
	}
}

// narrow rounds to bf16, to nearest, ties to even: 0x7fff and the lowest kept bit are added below the cut. What is not
// a number stays so by its quiet bit.
func narrow(x float32) uint16 {
	b := math.Float32bits(x)
	if x != x {
		return uint16(b>>16 | 0x40)
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}
