package emit

import "fmt"

// NEON's micro-kernels, for arm64: 32 registers of 4 floats, of which 24 are sums (6 rows of 16 columns, or up to 12
// of 8): four multiply-add units of latency 4 need 16 independent chains. Elements of A are loaded alone and multiply
// by index: a broadcasting load would take a slot of the units that multiply. So any strides of A serve, as with AVX2.
//
// Example, one step of k of the 6 x 16 kernel:
//
//	VLD1.P (R4)(R5), [V28.S4, V29.S4, V30.S4, V31.S4]    a row of B, and on to the next
//	FMOVS  (R12)(R2), F24                                an element of the first row of A
//	fmla   v0.4s, v28.4s, v24.s[0]                       ... four of them, and all that for each row of A
//
// It is 37 instructions, of which 24 multiply-add and 12 load or prefetch (the load of B counts as 4 there):
// with four units that multiply and add, three that load, and eight instructions per cycle, as on Neoverse V2,
// the multiply-adds are the limit, 6 cycles of 24. LLVM's models of processors say the same of the loop
// (llvm-mca 19): 3.98 multiply-adds per cycle on Neoverse V1 and V2, which can do 4, and 1.99 to 2.00 on N1 and
// N2, which can do 2.
//
// Known weakness: nothing here has been measured on a processor, neither the rate nor what prefetching brings. Panels
// narrower than the kernel pass through a buffer on the stack, float by float.

// Greatest heights of the NEON kernels.
const (
	rowsNEON    = 6
	narrowNEON  = 12 // of the kernels for half a panel
	vectorsNEON = 4  // in a row of a full panel
	fewRowsNEON = 4  // rows of A of the kernels on strips
)

func fmaNEON(a *asm) {
	for h := 1; h <= rowsNEON; h++ {
		neonTile{h, vectorsNEON}.emit(a)
	}
	for h := 1; h <= narrowNEON; h++ {
		neonTile{h, vectorsNEON / 2}.emit(a)
	}
	for h := 1; h <= fewRowsNEON; h++ {
		columnStripsNEON(a, "columnsNEONx", h, false)
		rowStripsNEON(a, "rowsNEONx", h, false)
		columnStripsNEON(a, "halfColumnsNEONx", h, true)
		rowStripsNEON(a, "halfRowsNEONx", h, true)
	}
	a.stubs.table("kernelsNEON", "fmaNEONx", rowsNEON, vectorsNEON)
	a.stubs.table("narrowsNEON", "fmaNEONx", narrowNEON, vectorsNEON/2)
	a.stubs.list("columnKernelsNEON", "strip", "columnsNEONx", fewRowsNEON, "")
	a.stubs.list("rowKernelsNEON", "strip", "rowsNEONx", fewRowsNEON, "")
	a.stubs.list("halfColumnKernelsNEON", "strip", "halfColumnsNEONx", fewRowsNEON, "")
	a.stubs.list("halfRowKernelsNEON", "strip", "halfRowsNEONx", fewRowsNEON, "")
}

// neonTile is the micro-kernel of one height and width; see fmaKernel.emit for the loops. R0 is the argument. In the
// loop over k, R1 counts, R2 is the offset in the rows of A and R3 its step, R4 is at B and R5 its step, R6 and R8 are at
// what is prefetched, R7 is the step of R6.
type neonTile struct{ height, vectors int }

func (t neonTile) emit(a *asm) {
	a.routineNEON(fmt.Sprintf("fmaNEONx%dx%d", t.height, t.vectors), "tile", t.height*t.rowBytes())
	a.at("panel")
	t.sums(a, true, tileInit, tileInitRow)
	t.operands(a)
	t.steps(a)
	a.at("store")
	t.sums(a, false, tileC, tileCRow)
	t.next(a)
	a.op("RET")
}

func (t neonTile) rowBytes() int { return 16 * t.vectors }

// room returns how many more loads fit alongside the multiply-adds of a step.
func (t neonTile) room() int { return 3*t.height*t.vectors/4 - (t.height + t.vectors + 1) }

// sums loads or stores the sums of a panel, whose rows in memory are described by two fields. There are no masked
// moves, so a panel that is not whole passes through a buffer.
func (t neonTile) sums(a *asm, load bool, matrix, row int) {
	whole, done := a.newLabel("whole"), a.newLabel("done")
	rows := func(place string) {
		for i := range t.height {
			if load {
				a.op("VLD1.P %s, %s", place, vs(i*t.vectors, t.vectors))
			} else {
				a.op("VST1.P %s, %s", vs(i*t.vectors, t.vectors), place)
			}
		}
	}
	buffer := func() { a.op("MOVD $sums-%d(SP), R12", t.height*t.rowBytes()) }
	a.op("MOVD %d(R0), R9", matrix)
	a.op("MOVD %d(R0), R10", row)
	a.op("MOVD %d(R0), R11", tilePanels)
	a.op("CMP $1, R11")
	a.op("BNE %s", whole)
	a.op("MOVD %d(R0), R11", tileLast)
	a.op("CMP $%d, R11", 1<<(4*t.vectors)-1)
	a.op("BEQ %s", whole)
	buffer()
	if load {
		t.copy(a, "R9", "R10", "R12", "R13")
		buffer()
	}
	rows(fmt.Sprintf("%d(R12)", t.rowBytes()))
	if !load {
		buffer()
		t.copy(a, "R12", "R13", "R9", "R10")
	}
	a.op("B %s", done)
	a.at(whole)
	rows("(R9)(R10)")
	a.at(done)
}

// copy copies the columns whose mask is in R11 from rows to rows. The buffer's pointer and stride are R12 and
// R13.
func (t neonTile) copy(a *asm, from, fromStep, to, toStep string) {
	row, column := a.newLabel("row"), a.newLabel("column")
	a.op("CLZ R11, R11")
	a.op("MOVD $64, R25")
	a.op("SUB R11, R25, R11")
	a.op("MOVD $%d, R13", t.rowBytes())
	a.op("MOVD $%d, R25", t.height)
	a.at(row)
	a.op("MOVD %s, R6", from)
	a.op("MOVD %s, R7", to)
	a.op("MOVD R11, R8")
	a.at(column)
	a.op("FMOVS.P 4(R6), F31")
	a.op("FMOVS.P F31, 4(R7)")
	a.op("SUBS $1, R8, R8")
	a.op("BNE %s", column)
	a.op("ADD %s, %s", fromStep, from)
	a.op("ADD %s, %s", toStep, to)
	a.op("SUBS $1, R25, R25")
	a.op("BNE %s", row)
}

// operands sets the registers of the loop over k.
func (t neonTile) operands(a *asm) {
	t.fetchSums(a)
	a.op("MOVD %d(R0), R1", tileK)
	a.op("MOVD ZR, R2")
	a.op("MOVD %d(R0), R3", tileACol)
	a.op("MOVD %d(R0), R4", tileB)
	a.op("MOVD %d(R0), R5", tileBRow)
	a.op("MOVD %d(R0), R6", tileAhead)
	a.op("MOVD %d(R0), R7", tileAheadStep)
	a.op("MOVD %d(R0), R12", tileA)
	a.op("MOVD %d(R0), R9", tileARow)
	setPointers(a, t.height, "R9")
	if t.room() > 0 {
		a.op("MOVD %d(R0), R8", tileNext)
		a.op("ADD R8, R9")
		a.op("MOVD R9, %d(R0)", tileNext)
		a.op("ADD R12, R8")
	}
}

// steps prints the loop over k.
func (t neonTile) steps(a *asm) {
	const unroll = 2
	a.op("SUBS $%d, R1, R1", unroll)
	a.op("BLT few")
	a.op("PCALIGN $32")
	a.at("steps")
	for range unroll {
		t.step(a)
	}
	a.op("SUBS $%d, R1, R1", unroll)
	a.op("BGE steps")
	a.at("few")
	a.op("ADDS $%d, R1, R1", unroll)
	a.op("BEQ store")
	t.step(a) // at most one is left
}

// step prints one step of k.
func (t neonTile) step(a *asm) {
	b, spare := 32-t.vectors, 32-t.vectors-t.height*t.vectors
	a.op("VLD1.P (R4)(R5), %s", vs(b, t.vectors))
	a.op("PRFM (R6), PLDL2KEEP")
	a.op("ADD R7, R6")
	if t.room() > 0 {
		a.op("PRFM (R8), PLDL2KEEP")
		a.op("ADD R3, R8")
	}
	for i := range t.height {
		elem := b - 1 - i%min(spare, 4)
		a.op("FMOVS (%s)(R2), F%d", pointersNEON[i], elem)
		for v := range t.vectors {
			a.neon("fmla v%d.4s, v%d.4s, v%d.s[0]", i*t.vectors+v, b+v, elem)
		}
	}
	a.op("ADD R3, R2")
}

// fetchSums prefetches the next panel of C and of its initial values: see fmaKernel.fetchSums.
func (t neonTile) fetchSums(a *asm) {
	fetch := func(matrix, row int) {
		right := a.newLabel("right")
		a.op("MOVD %d(R0), R9", matrix)
		a.op("MOVD %d(R0), R10", row)
		a.op("MOVD $%d, R11", t.rowBytes())
		a.op("MOVD %d(R0), R12", tilePanels)
		a.op("CMP $1, R12")
		a.op("BNE %s", right)
		a.op("MOVD $%d, R11", t.height)
		a.op("MUL R10, R11")
		a.op("MOVD %d(R0), R12", tileBack)
		a.op("SUB R12, R11")
		a.at(right)
		a.op("ADD R11, R9")
		for range t.height {
			a.op("PRFM (R9), PLDL1KEEP")
			a.op("ADD R10, R9")
		}
	}
	fetch(tileC, tileCRow)
	a.op("MOVD %d(R0), R9", tileInit)
	a.op("MOVD %d(R0), R10", tileC)
	a.op("CMP R9, R10")
	a.op("BEQ fetched")
	a.op("MOVD %d(R0), R10", tileInitRow)
	a.op("CBZ R10, fetched")
	fetch(tileInit, tileInitRow)
	a.at("fetched")
}

// next moves on to the panel to the right and, after the last one, to the next tile below.
func (t neonTile) next(a *asm) {
	a.op("MOVD $%d, R9", t.rowBytes())
	a.addTo(tileC, "R9")
	a.advance([][2]int{{tileBPanel, tileB}, {tileInitPanel, tileInit}, {tileAheadPanel, tileAhead}})
	a.countDown(tilePanels, "BNE panel")
	a.countDown(tileMore, "BLT end")
	a.advance([][2]int{{tileMoreA, tileA}, {tileMoreB, tileB}, {tileMoreInit, tileInit}, {tileMoreC, tileC}, {tileMorePanels, tilePanels}})
	a.op("B panel")
	a.at("end")
}

// columnStripsNEON writes the kernel for height rows of A and a B whose columns are contiguous: see strip.go.
// Blocks of 4x4 are transposed in registers, four columns at a time; the sums are in V0 and up. One step of one
// row of A is 64 loads of B, 128 instructions of transposition and 64 multiply-adds, in four chains, for 1024
// bytes of B: with four vector units at least 48 cycles, or 64 where a chain's multiply-adds follow each other
// after 4 cycles. A core at 3 GHz then consumes 48 GB/s, and few cores get more from memory. (llvm-mca: 48 on
// Neoverse V2, 64 on V1, 96 on N1.)
//
// Two neighbours in a bf16 B are transposed as one element, and then become floats by a shift and by a mask:
// twice as many multiply-adds for the same bytes, at least 96 cycles, or 128. (llvm-mca: 96, 128, 197.)
func columnStripsNEON(a *asm, name string, height int, half bool) {
	const mask = 24
	a.stripNEON(fmt.Sprintf("%s%d", name, height), func() {
		a.op("MOVD R2, R12")
		a.op("MOVD %d(R0), R6", stripBRow)
		setPointers(a, stripRows, "R6")
		if half {
			a.op("MOVD $0xffff0000, R6")
			a.op("VDUP R6, V%d.S4", mask)
		}
		for m := range height {
			a.op("VLD1.P 64(R5), %s", vs(4*m, 4))
		}
		a.op("SUB $%d, R5", 64*height)
	}, func() {
		for _, p := range pointersNEON[:stripRows] {
			a.op("ADD R3, %s, R6", p)
			a.op("PRFM (R6), PLDL2KEEP")
		}
		for range stripRows / 4 {
			k := 0
			for j := range 4 {
				multiply := func(column int) {
					if k%4 == 0 {
						a.op("VLD1.P %d(R6), %s", 16*height, vs(28, height))
					}
					for m := range height {
						e := k%4*height + m
						a.neon("fmla v%d.4s, v%d.4s, v%d.s[%d]", 4*m+j, column, 28+e/4, e%4)
					}
					k++
				}
				for i := range 4 {
					a.op("FMOVQ.P 16(%s), F%d", pointersNEON[4*j+i], 16+i)
				}
				quadNEON(a, 16, 20, [4]int{16, 17, 18, 19})
				a.op("MOVD R4, R6")
				k = 0
				for column := 16; column < 20; column++ {
					if half {
						a.neon("shl v20.4s, v%d.4s, #16", column)
						multiply(20)
						a.op("VAND V%d.B16, V%d.B16, V%d.B16", mask, column, column)
					}
					multiply(column)
				}
			}
			a.op("ADD $%d, R4", 4*height*k)
		}
	}, func() {
		for m := range height {
			a.op("VST1.P %s, 64(R5)", vs(4*m, 4))
		}
	})
}

// rowStripsNEON writes the kernel for height rows of A and a B whose rows are contiguous. Each sum is loaded from C and
// extended by 16 products. A step of a B in bf16 is 32 columns, 16 at a time. (llvm-mca, one row, cycles for 1024 bytes:
// 31 on Neoverse V2, 34 on V1, 50 on N1; of bf16 67, 81, 134.)
func rowStripsNEON(a *asm, name string, height int, half bool) {
	a.stripNEON(fmt.Sprintf("%s%d", name, height), func() {
		a.op("MOVD %d(R0), R6", stripBRow)
	}, func() {
		columns := func(load func(b int)) {
			a.op("MOVD R5, R7")
			for m := range height {
				a.op("VLD1.P 64(R7), %s", vs(4*m, 4))
			}
			a.op("MOVD R4, R7")
			for i := range stripRows {
				if i%4 == 0 {
					a.op("VLD1.P %d(R7), %s", 16*height, vs(28, height))
				}
				b := 20 + 4*(i%2)
				load(b)
				for m := range height {
					e := i%4*height + m
					for v := range 4 {
						a.neon("fmla v%d.4s, v%d.4s, v%d.s[%d]", 4*m+v, b+v, 28+e/4, e%4)
					}
				}
			}
			a.op("MOVD R5, R7") // R5 itself must not wait for the sums, which the next step does not need
			for m := range height {
				a.op("VST1.P %s, 64(R7)", vs(4*m, 4))
			}
			a.op("ADD $%d, R5", 64*height)
		}
		fetch := func() {
			a.op("PRFM (R9), PLDL2KEEP")
			a.op("ADD R6, R9")
		}
		widened := func(b int) {
			a.op("VLD1.P (R8)(R6), %s", vs(16, 2))
			for i := range 2 {
				a.neon("shll v%d.4s, v%d.4h, #16", b+2*i, 16+i)
				a.neon("shll2 v%d.4s, v%d.8h, #16", b+2*i+1, 16+i)
			}
		}
		a.op("ADD R3, R2, R9")
		a.op("MOVD R2, R8")
		if half {
			columns(func(b int) { widened(b); fetch() })
			a.op("ADD $32, R2, R8")
			columns(widened)
		} else {
			columns(func(b int) { a.op("VLD1.P (R8)(R6), %s", vs(b, 4)); fetch() })
		}
		a.op("ADD $64, R2")
	}, func() {})
}

// stripNEON writes a kernel that reads strips. In its parts, R0 is the argument, R2 points to B, R4 to A and R5
// to C, R3 is the distance to what is prefetched, and R1 counts steps.
func (a *asm) stripNEON(name string, begin, step, end func()) {
	a.routineNEON(name, "strip", 0)
	a.at("strip")
	for i, field := range []int{stripSteps, stripB, stripAhead, stripA, stripC} {
		a.op("MOVD %d(R0), R%d", field, 1+i)
	}
	begin()
	a.op("PCALIGN $32")
	a.at("loop")
	step()
	a.op("SUBS $1, R1, R1")
	a.op("BNE loop")
	end()
	a.advance([][2]int{{stripAPanel, stripA}, {stripBPanel, stripB}, {stripCPanel, stripC}})
	a.countDown(stripStrips, "BNE strip")
	a.op("RET")
}
