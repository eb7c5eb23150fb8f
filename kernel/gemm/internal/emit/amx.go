package emit

import "fmt"

// Offsets of the fields of gemm.grid. The configuration of the tile registers comes first and is 64 bytes long.
const (
	gridA = 64 + 8*iota
	gridB
	gridBPanel
	gridInit
	gridInitRow
	gridInitPanel
	gridC
	gridCRow
	gridBlocks
	gridPanels
)

// Layout of packed operands, in bytes: a block of A is two tiles of 16 rows of 64, and one of B is 16 rows of 128.
const (
	amxRow    = 64
	amxTile   = 16 * amxRow
	amxBlockA = 2 * amxTile
	amxRowB   = 2 * amxRow
	amxBlockB = 16 * amxRowB
)

// The tile registers: sums in T0 to T3, A in T4 and T5, B in T6 and T7.
const amxA, amxB = 4, 6

// amx writes the kernels on the tile registers, for one or two tiles of rows and of columns:
//
//	for each panel:
//	    sums = init                                      up to 2 x 2 tiles of 16 x 16
//	    for each block of 32 of k:
//	        sums[i][j] += A[i] * B[j]                    one TDPBF16PS of 16 x 16 x 32
//	    C = sums
//
// The configuration gives the number of rows and columns of each tile; no others are read or written. Every call
// loads and releases it: a goroutine may continue on another thread afterwards, and only a context switch during a
// call has to save tiles.
func amx(a *asm) {
	for h := 1; h <= 2; h++ {
		for w := 1; w <= 2; w++ {
			amxKernel(a, h, w)
		}
	}
	a.raw("\n")
	for i, word := range []string{"0x1", "0", "0x0040004000400040", "0x0040004000400040", "0", "0", "0x1010101010101010", "0"} {
		a.raw("DATA wholeTiles<>+%d(SB)/8, $%s\n", 8*i, word)
	}
	a.raw("GLOBL wholeTiles<>(SB), RODATA|NOPTR, $64\n")
	amxPeak(a)
}

func amxKernel(a *asm, h, w int) {
	sum := func(i, j int) int { return 2*i + j }
	each := func(f func(i, j int)) {
		for i := range h {
			for j := range w {
				f(i, j)
			}
		}
	}
	a.routine(fmt.Sprintf("amx%dx%d", h, w), "grid")
	loadConfig(a)
	a.op("MOVQ $%d, R8", amxRow)
	a.op("MOVQ $%d, R9", amxRowB)
	a.op("MOVQ %d(DI), R10", gridInitRow)
	a.op("MOVQ %d(DI), R11", gridCRow)
	a.op("MOVQ %d(DI), R12", gridC)
	a.op("MOVQ %d(DI), R13", gridInit)
	a.op("MOVQ %d(DI), R14", gridB)
	a.op("MOVQ %d(DI), BX", gridPanels)
	a.at("panel")
	tilesAt(a, "R13", "R10", h)
	each(func(i, j int) { loadTile(a, tileBases[i], "R10", amxRow*j, sum(i, j)) })
	a.op("MOVQ %d(DI), SI", gridA)
	a.op("MOVQ R14, DX")
	a.op("MOVQ %d(DI), CX", gridBlocks)
	a.at("loop")
	for j := range w {
		loadTile(a, "DX", "R9", amxRow*j, amxB+j)
	}
	for i := range h {
		loadTile(a, "SI", "R8", amxTile*i, amxA+i)
		for j := range w {
			multiplyTiles(a, amxA+i, amxB+j, sum(i, j))
		}
	}
	a.op("ADDQ $%d, SI", amxBlockA)
	a.op("ADDQ $%d, DX", amxBlockB)
	a.op("DECQ CX")
	a.op("JNZ loop")
	tilesAt(a, "R12", "R11", h)
	each(func(i, j int) { storeTile(a, tileBases[i], "R11", amxRow*j, sum(i, j)) })
	a.op("ADDQ $%d, R12", 2*amxRow)
	a.op("ADDQ %d(DI), R13", gridInitPanel)
	a.op("ADDQ %d(DI), R14", gridBPanel)
	a.op("DECQ BX")
	a.op("JNZ panel")
	releaseTiles(a)
	a.end()
}

// tileBases are the registers that hold the addresses of the upper and lower tiles of a panel.
var tileBases = []string{"AX", "DX"}

// tilesAt sets tileBases for rows from base on.
func tilesAt(a *asm, base, stride string, h int) {
	a.op("MOVQ %s, AX", base)
	if h > 1 {
		a.op("MOVQ %s, DX", stride)
		a.op("SHLQ $4, DX")
		a.op("ADDQ AX, DX")
	}
}

// amxPeak writes the loop that measures the peak rate. It has four independent products; a round counts two of them,
// so that calls are as short as those of the other loops.
func amxPeak(a *asm) {
	a.routine("peakAMX", "peak")
	a.op("MOVQ (DI), CX")
	a.op("SHRQ $1, CX")
	a.op("LEAQ wholeTiles<>(SB), DI")
	loadConfig(a)
	for i := range 8 {
		zeroTile(a, i)
	}
	a.at("loop")
	for i := range 4 {
		multiplyTiles(a, amxA+i/2, amxB+i%2, i)
	}
	a.op("DECQ CX")
	a.op("JNZ loop")
	releaseTiles(a)
	a.end()
}

// Go's assembler does not know these instructions. They are all VEX.128.0F38.W0; the encoding stores the upper bits of
// register numbers, and the third operand, inverted.
const (
	prefixNone, prefixF3, prefixF2 = 0, 2, 3

	opConfig, opMove, opProduct = 0x49, 0x4b, 0x5c
)

// amxOp prints the three bytes of a prefix, the opcode and what follows.
func amxOp(a *asm, x, b, v, prefix, opcode int, rest []int, comment string) {
	bytes := append([]int{0xc4, 0x80 | (^x>>3&1)<<6 | (^b>>3&1)<<5 | 2, (^v&15)<<3 | prefix, opcode}, rest...)
	line := ""
	for _, n := range bytes {
		line += fmt.Sprintf("BYTE $0x%02x; ", n)
	}
	a.op("%s// %s", line, comment)
}

func loadConfig(a *asm) {
	amxOp(a, 0, 0, 0, prefixNone, opConfig, []int{general["DI"]}, "LDTILECFG (DI)")
}

func releaseTiles(a *asm) {
	amxOp(a, 0, 0, 0, prefixNone, opConfig, []int{0xc0}, "TILERELEASE")
}

func zeroTile(a *asm, t int) {
	amxOp(a, 0, 0, 0, prefixF2, opConfig, []int{0xc0 | t<<3}, fmt.Sprintf("TILEZERO T%d", t))
}

// loadTile prints the load of a tile whose rows are stride apart.
func loadTile(a *asm, base, stride string, displacement, t int) {
	moveTile(a, "TILELOADD", prefixF2, base, stride, displacement, t)
}

func storeTile(a *asm, base, stride string, displacement, t int) {
	moveTile(a, "TILESTORED", prefixF3, base, stride, displacement, t)
}

func moveTile(a *asm, name string, prefix int, base, stride string, displacement, t int) {
	b, x := general[base], general[stride]
	rest := []int{0x84 | t<<3, x&7<<3 | b&7} // address in a SIB byte, with a displacement of 32 bits
	for shift := 0; shift < 32; shift += 8 {
		rest = append(rest, displacement>>shift&0xff)
	}
	amxOp(a, x, b, 0, prefix, opMove, rest, fmt.Sprintf("%s %d(%s)(%s*1), T%d", name, displacement, base, stride, t))
}

// multiplyTiles prints sum += x * y.
func multiplyTiles(a *asm, x, y, sum int) {
	amxOp(a, 0, 0, y, prefixF3, opProduct, []int{0xc0 | sum<<3 | x}, fmt.Sprintf("TDPBF16PS T%d, T%d, T%d", y, x, sum))
}

// general are the numbers of general registers.
var general = map[string]int{"AX": 0, "DX": 2, "SI": 6, "DI": 7, "R8": 8, "R9": 9, "R10": 10, "R11": 11}
