package emit

import (
	"fmt"
	"strconv"
)

// Offsets of the fields of gemm.tile.
const (
	tileK = 8 * iota
	tileA
	tileARow
	tileACol
	tileB
	tileBRow
	tileBPanel
	tileInit
	tileInitRow
	tileInitPanel
	tileC
	tileCRow
	tilePanels
	tileLast
	tileAhead
	tileAheadStep
	tileAheadPanel
	tileNext
	tileBack
	tileMore
	tileMoreA
	tileMoreB
	tileMoreInit
	tileMoreC
	tileMorePanels
)

// Greatest heights and widths of the micro-kernels. There is a kernel for each height up to these, so that edges
// waste no rows.
//
// AVX-512 has 32 registers: 14x2 accumulators, 2 for B, 2 for elements of A in turn. AVX2 has 16: 6x2, 2, 2.
const (
	rows512 = 14
	rows256 = 6
	vectors = 2  // per row, in the kernels for full panels
	narrow  = 10 // rows of the AVX2 kernels of one vector, enough chains to hide the latency
)

// fmaKernel describes a family of micro-kernels; see fma.
type fmaKernel struct {
	prefix    string // of the routines' names
	reg       string // register name prefix, Z or Y
	bytes     int    // of a register
	broadcast string // instruction that copies one element (or pair) of A to all lanes
	multiply  func(a *asm, x, y, sum string)
	masked    func(a *asm) maskedMoves
	unroll    int  // steps of k between branches
	branch    bool // test whether the panel is whole: pays where unmasked moves are much cheaper
}

// maskedMoves print moves to and from a panel that may be narrower than nr columns. Their masks are set up per panel,
// while no register is in use.
type maskedMoves struct {
	load, store func(vector int, addr, reg string)
}

func fmaAVX512(a *asm) {
	k := fmaKernel{prefix: "fma512x", reg: "Z", bytes: 64, broadcast: "VBROADCASTSS", multiply: fma, masked: masks512}
	for r := 1; r <= rows512; r++ {
		k.emit(a, r, 2)
		k.emit(a, r, 1)
	}
	strips512(a, "512", fmaElement, rowStrips512)
	packed512(a, "512", false)
	halfStrips512(a)
	a.stubs.table("kernels512", k.prefix, rows512, 2)
	a.stubs.table("narrows512", k.prefix, rows512, 1)
}

func fmaAVX2(a *asm) {
	laneBits(a)
	k := fmaKernel{prefix: "fma256x", reg: "Y", bytes: 32, broadcast: "VBROADCASTSS", multiply: fma, masked: masks256, branch: true, unroll: 2}
	for r := 1; r <= rows256; r++ {
		k.emit(a, r, 2)
	}
	for r := 1; r <= narrow; r++ {
		k.emit(a, r, 1)
	}
	columnStrips256(a)
	rowStrips256(a)
	halfColumns256(a)
	halfRows256(a)
	a.stubs.table("kernels256", k.prefix, rows256, 2)
	a.stubs.table("narrows256", k.prefix, narrow, 1)
}

// bf16AVX512 is the family whose unit is a pair of bf16: each sum takes two products per instruction.
func bf16AVX512(a *asm) {
	k := fmaKernel{prefix: "bf16x", reg: "Z", bytes: 64, broadcast: "VPBROADCASTD", multiply: dpbf16, masked: masks512}
	for r := 1; r <= rows512; r++ {
		k.emit(a, r, 2)
		k.emit(a, r, 1)
	}
	strips512(a, "BF16", dotElement, rowStripsBF16)
	packed512(a, "BF16", true)
	a.stubs.table("kernelsBF16", k.prefix, rows512, 2)
	a.stubs.table("narrowsBF16", k.prefix, rows512, 1)
}

// dpbf16 prints VDPBF16PS, which Go's assembler does not know.
func dpbf16(a *asm, x, y, sum string) { a.evex(2, 0x52, "VDPBF16PS", x, y, sum) }

// evex prints an instruction that Go's assembler does not know as bytes: EVEX.512.F3.0F38.W0 if prefix is 2, F2 if
// it is 3, then the opcode and /r. The encoding stores the upper bits of register numbers inverted.
func (a *asm) evex(prefix, opcode int, name, x, y, to string) {
	rm, v, reg := number(x), number(y), number(to)
	not := func(n, bit int) int { return ^n >> bit & 1 }
	p0 := not(reg, 3)<<7 | not(rm, 4)<<6 | not(rm, 3)<<5 | not(reg, 4)<<4 | 2
	p1 := (^v&15)<<3 | 4 | prefix
	p2 := 2<<5 | not(v, 4)<<3
	modRM := 3<<6 | reg&7<<3 | rm&7
	a.op("LONG $0x%02x%02x%02x62; WORD $0x%02x%02x // %s %s, %s, %s", p2, p1, p0, modRM, opcode, name, x, y, to)
}

// number returns the number of a vector register.
func number(reg string) int {
	n, err := strconv.Atoi(reg[1:])
	if err != nil {
		panic(err)
	}
	return n
}

func fma(a *asm, x, y, sum string) { a.op("VFMADD231PS %s, %s, %s", x, y, sum) }

// masks512 sets K1 and K2 to the existing lanes of the current panel.
func masks512(a *asm) maskedMoves {
	full := a.newLabel("full")
	a.op("MOVQ $-1, AX")
	a.op("CMPQ %d(DI), $1", tilePanels)
	a.op("JNE %s", full)
	a.op("MOVQ %d(DI), AX", tileLast)
	a.at(full)
	a.op("KMOVW AX, K1")
	a.op("SHRQ $16, AX")
	a.op("KMOVW AX, K2")
	return maskedMoves{
		load:  func(v int, addr, reg string) { a.op("VMOVUPS.Z %s, K%d, %s", addr, v+1, reg) },
		store: func(v int, addr, reg string) { a.op("VMOVUPS %s, K%d, %s", reg, v+1, addr) },
	}
}

// masks256 sets Y14 and Y15, which are free at both ends of a tile, to the lanes of the last panel, given by the bits
// in AX.
func masks256(a *asm) maskedMoves {
	maskFromBits(a, 14)
	return maskedMoves{
		load:  func(v int, addr, reg string) { a.op("VMASKMOVPS %s, Y%d, %s", addr, 14+v, reg) },
		store: func(v int, addr, reg string) { a.op("VMASKMOVPS %s, Y%d, %s", reg, 14+v, addr) },
	}
}

// maskFromBits expands the bits in AX to masks for two AVX2 registers, in Y(first) and the next: it isolates and
// compares the bit of each lane.
func maskFromBits(a *asm, first int) {
	for y := first; y < first+vectors; y++ {
		a.op("VMOVD AX, X%d", y)
		a.op("VPBROADCASTD X%d, Y%d", y, y)
		a.op("VPAND laneBits<>(SB), Y%d, Y%d", y, y)
		a.op("VPCMPEQD laneBits<>(SB), Y%d, Y%d", y, y)
		a.op("SHRQ $8, AX")
	}
}

// laneBits declares the bit of each lane of an AVX2 register.
func laneBits(a *asm) {
	for i := range 8 {
		a.raw("DATA laneBits<>+%d(SB)/4, $%d\n", 4*i, 1<<i)
	}
	a.raw("GLOBL laneBits<>(SB), RODATA|NOPTR, $32\n")
}

// emit writes the micro-kernel of the given height and width:
//
//	for each panel:
//	    sums = init                  height x vectors registers
//	    for each k:
//	        sums[i][j] += A[i][k] * B[k][j]     one fused multiply-add
//	    C = sums
//
// A is reached by a row and a column stride, B by a row stride, so one routine serves packed and plain operands and
// both forms of A. Every sum is one chain over k in one register, which is what makes results independent of blocking.
//
// Rows of B are seldom in the L1 cache yet, which costs a processor with two multiply-add units of this width 5 % of
// its rate. So they are prefetched some 100 cycles ahead, as are the next rows of A, if load slots are free: such a
// processor has two load units, a prefetch takes a slot, and low or narrow tiles need all of them.
func (f fmaKernel) emit(a *asm, height, vectors int) {
	t := fmaTile{fmaKernel: f, height: height, vectors: vectors, room: height*vectors - (height + vectors + 2),
		ptr: sevens{low: "SI", high: "R8", stride: "R15", three: "R9", five: "R10"}}
	a.routine(fmt.Sprintf("%s%dx%d", f.prefix, height, vectors), "tile")
	a.at("panel")
	var lasting maskedMoves // for both ends of a panel
	if !f.branch {
		lasting = f.masked(a)
	}
	a.op("MOVQ %d(DI), R13", tileInit)
	a.op("MOVQ %d(DI), R14", tileInitRow)
	f.sums(a, lasting, "begun", height, vectors, func(m maskedMoves, v int, addr, reg string) { m.load(v, addr, reg) })
	t.operands(a)
	t.steps(a)
	a.at("store")
	a.op("MOVQ %d(DI), R13", tileC)
	a.op("MOVQ %d(DI), R14", tileCRow)
	f.sums(a, lasting, "stored", height, vectors, func(m maskedMoves, v int, addr, reg string) { m.store(v, addr, reg) })
	t.next(a)
	if f.branch {
		f.further(a)
	}
	a.end()
}

// fmaTile is the micro-kernel of one height and width.
type fmaTile struct {
	fmaKernel
	height, vectors int
	room            int    // loads that fit alongside the multiply-adds of a step
	ptr             sevens // rows of A
}

// operands loads the pointers and strides of A and B, and those of what is prefetched.
func (t *fmaTile) operands(a *asm) {
	a.op("MOVQ %d(DI), CX", tileK)
	a.op("MOVQ %d(DI), SI", tileA)
	a.op("MOVQ %d(DI), R15", tileARow)
	a.op("MOVQ %d(DI), BX", tileACol)
	a.op("MOVQ %d(DI), DX", tileB)
	a.op("MOVQ %d(DI), R12", tileBRow)
	t.ptr.load(a, t.height)
	if t.room >= 4 {
		a.op("MOVQ %d(DI), R11", tileNext)
		a.op("ADDQ R15, %d(DI)", tileNext)
	}
	t.fetchSums(a, t.height, t.vectors)
	a.op("MOVQ %d(DI), R13", tileAhead)
	a.op("MOVQ %d(DI), R14", tileAheadStep)
}

// steps prints the loop over k.
func (t *fmaTile) steps(a *asm) {
	if t.unroll > 1 {
		a.op("SUBQ $%d, CX", t.unroll)
		a.op("JLT few")
		a.op("PCALIGN $32")
		a.at("steps")
		for range t.unroll {
			t.step(a)
		}
		a.op("SUBQ $%d, CX", t.unroll)
		a.op("JGE steps")
		a.at("few")
		a.op("ADDQ $%d, CX", t.unroll)
	} else {
		a.op("TESTQ CX, CX")
	}
	a.op("JZ store")
	a.op("PCALIGN $32")
	a.at("loop")
	t.step(a)
	a.op("DECQ CX")
	a.op("JNZ loop")
}

// step prints one step of k.
func (t *fmaTile) step(a *asm) {
	top := 32
	if t.reg == "Y" {
		top = 16
	}
	acc := func(i, v int) string { return fmt.Sprintf("%s%d", t.reg, i*t.vectors+v) }
	bvec := func(v int) string { return fmt.Sprintf("%s%d", t.reg, top-1-v) }
	elem := func(i int) string { return fmt.Sprintf("%s%d", t.reg, top-3-i%2) }
	for v := range t.vectors {
		a.op("VMOVUPS %d(DX), %s", v*t.bytes, bvec(v))
	}
	if t.room >= 4 {
		for offset := 0; offset < t.vectors*t.bytes; offset += 64 {
			a.op("PREFETCHT0 %d(DX)(R12*8)", offset)
		}
		a.op("PREFETCHT1 (SI)(R11*1)")
	}
	if t.room >= 9 {
		a.op("PREFETCHT1 (R8)(R11*1)")
	}
	a.op("ADDQ R12, DX")
	a.op("PREFETCHT1 (R13)")
	a.op("PREFETCHT1 64(R13)")
	a.op("ADDQ R14, R13")
	for i := range t.height {
		a.op("%s %s, %s", t.broadcast, t.ptr.addr(i), elem(i))
		for v := range t.vectors {
			t.multiply(a, elem(i), bvec(v), acc(i, v))
		}
	}
	t.ptr.advance(a, t.height, "BX")
}

// next moves on to the panel to the right.
func (t *fmaTile) next(a *asm) {
	a.op("ADDQ $%d, %d(DI)", t.vectors*t.bytes, tileC)
	a.op("MOVQ %d(DI), AX", tileBPanel)
	a.op("ADDQ AX, %d(DI)", tileB)
	a.op("MOVQ %d(DI), AX", tileInitPanel)
	a.op("ADDQ AX, %d(DI)", tileInit)
	a.op("MOVQ %d(DI), AX", tileAheadPanel)
	a.op("ADDQ AX, %d(DI)", tileAhead)
	a.op("DECQ %d(DI)", tilePanels)
	a.op("JNZ panel")
}

// further continues with the next tile below, if there is one.
func (f fmaKernel) further(a *asm) {
	a.op("DECQ %d(DI)", tileMore)
	a.op("JLT end")
	for _, step := range [][2]int{{tileMoreA, tileA}, {tileMoreB, tileB}, {tileMoreInit, tileInit}, {tileMoreC, tileC}, {tileMorePanels, tilePanels}} {
		a.op("MOVQ %d(DI), AX", step[0])
		a.op("ADDQ AX, %d(DI)", step[1])
	}
	a.op("JMP panel")
	a.at("end")
}

// sums moves the sums of a panel from or to the rows at R13, which are R14 apart. A masked AVX2 store takes some 12
// cycles on AMD processors (Zen 3, derived from the time of tiles with and without); those of a tile together take as
// long as 25 steps of k.
func (f fmaKernel) sums(a *asm, lasting maskedMoves, done string, height, vectors int, move func(m maskedMoves, v int, addr, reg string)) {
	rows := func(m maskedMoves) {
		for i := range height {
			for v := range vectors {
				move(m, v, fmt.Sprintf("%d(R13)", v*f.bytes), fmt.Sprintf("%s%d", f.reg, i*vectors+v))
			}
			a.op("ADDQ R14, R13")
		}
	}
	if !f.branch {
		rows(lasting)
		return
	}
	whole := a.newLabel("whole")
	a.op("CMPQ %d(DI), $1", tilePanels)
	a.op("JNE %s", whole)
	a.op("MOVQ %d(DI), AX", tileLast)
	a.op("CMPQ AX, $%d", 1<<(vectors*f.bytes/4)-1)
	a.op("JEQ %s", whole)
	rows(f.masked(a))
	a.op("JMP %s", done)
	a.at(whole)
	plain := func(addr, reg string) { a.op("VMOVUPS %s, %s", addr, reg) }
	rows(maskedMoves{
		load:  func(_ int, addr, reg string) { plain(addr, reg) },
		store: func(_ int, addr, reg string) { plain(reg, addr) },
	})
	a.at(done)
}

// fetchSums prefetches the next panel of C and of its initial values: the one to the right or, after the last, the
// first one of the rows below.
func (f fmaKernel) fetchSums(a *asm, height, vectors int) {
	fetch := func(matrix, row int) {
		right := a.newLabel("right")
		a.op("MOVQ %d(DI), R13", matrix)
		a.op("MOVQ %d(DI), R14", row)
		a.op("MOVQ $%d, AX", vectors*f.bytes)
		a.op("CMPQ %d(DI), $1", tilePanels)
		a.op("JNE %s", right)
		a.op("IMUL3Q $%d, R14, AX", height)
		a.op("SUBQ %d(DI), AX", tileBack)
		a.at(right)
		a.op("ADDQ AX, R13")
		for range height {
			for offset := 0; offset < vectors*f.bytes; offset += 64 {
				a.op("PREFETCHT0 %d(R13)", offset)
			}
			a.op("ADDQ R14, R13")
		}
	}
	fetch(tileC, tileCRow)
	a.op("MOVQ %d(DI), AX", tileInit)
	a.op("CMPQ AX, %d(DI)", tileC)
	a.op("JEQ fetched")
	a.op("CMPQ %d(DI), $0", tileInitRow)
	a.op("JEQ fetched")
	fetch(tileInit, tileInitRow)
	a.at("fetched")
}
