package emit

import (
	"fmt"
	"strings"
)

// Offsets of the fields of gemm.strip.
const (
	stripA = 8 * iota
	stripAPanel
	stripB
	stripBRow
	stripBPanel
	stripC
	stripCPanel
	stripSteps
	stripStrips
	stripAhead
	stripAdjacent
)

// fewRows is the greatest height of the kernels for few rows of A with AVX-512; with AVX2 it is 1.
const fewRows = 8

// stripRows is the number of stored rows of B in a strip, and blockRows the number that AVX2 handles at a time. line is the
// number of bytes that are prefetched at a time.
const (
	stripRows = 16
	blockRows = 8
	line      = 64
)

// walker writes kernels that read strips of stored rows of B, some bytes of each row per step, and prefetch what follows
// a distance "ahead". They have one loop or two: for strips with gaps between rows, prefetched as they are read, into the
// L2 cache; for adjacent rows, prefetched in the order of addresses.
type walker struct {
	rows, bytes int // of a block
	ptr         rows
	gaps        bool
	run         int // bytes per step of adjacent rows; 0: no loop of their own
}

var (
	walk512 = walker{rows: stripRows, bytes: 64, ptr: rows{[]string{"SI", "R8", "R9", "R10", "R11", "R12"}, "R15"}, gaps: true}
	walk256 = walker{rows: blockRows, bytes: 32, ptr: rows{[]string{"SI", "R8", "R9"}, "R15"}, gaps: true}
	runs512 = walker{rows: stripRows, bytes: 64, ptr: walk512.ptr, gaps: true, run: stripRows * 64}
)

// at returns the operand for the step's bytes of row i.
func (w walker) at(i int) string { return w.ptr.addr(i, 0) }

// emit writes a kernel. In begin, step and end, A is at R13 and C at DX; where there are no gaps, BX is free.
func (w walker) emit(a *asm, name string, begin, step, end func()) {
	a.routine(name, "strip")
	a.at("strip")
	a.op("MOVQ %d(DI), SI", stripB)
	a.op("MOVQ %d(DI), R15", stripBRow)
	w.ptr.load(a, w.rows, "AX")
	a.op("MOVQ %d(DI), R14", stripAhead)
	a.op("MOVQ %d(DI), R13", stripA)
	a.op("MOVQ %d(DI), DX", stripC)
	a.op("MOVQ %d(DI), CX", stripSteps)
	begin()
	if w.gaps && w.run > 0 {
		a.op("CMPQ %d(DI), $0", stripAdjacent)
		a.op("JEQ gaps")
	}
	if w.run > 0 {
		a.op("ADDQ SI, R14")
		w.loop(a, "run", step, w.run/line, func(i int) { a.op("PREFETCHT0 %d(R14)", line*i) }, w.run)
	}
	if w.gaps && w.run > 0 {
		a.op("JMP done")
		a.at("gaps")
	}
	if w.gaps {
		ahead := []string{"R14", "AX", "BX"} // of the row at a pointer and the two after it
		a.op("LEAQ (R14)(R15*1), AX")
		a.op("LEAQ (R14)(R15*2), BX")
		w.loop(a, "loop", step, w.rows, func(i int) { a.op("PREFETCHT1 (%s)(%s*1)", w.ptr.pointers[i/3], ahead[i%3]) }, 0)
	}
	a.at("done")
	end()
	for _, f := range [][2]int{{stripAPanel, stripA}, {stripBPanel, stripB}, {stripCPanel, stripC}} {
		a.op("MOVQ %d(DI), AX", f[0])
		a.op("ADDQ AX, %d(DI)", f[1])
	}
	a.op("DECQ %d(DI)", stripStrips)
	a.op("JNZ strip")
	a.end()
}

// loop writes the loop over the steps of a strip, with n prefetches in each, after which the address of what is prefetched
// moves on by so many bytes.
func (w walker) loop(a *asm, label string, step func(), n int, fetch func(i int), bytes int) {
	a.op("PCALIGN $32")
	a.at(label)
	a.spread(step, n, fetch)
	w.ptr.advance(a, w.rows, fmt.Sprintf("$%d", w.bytes))
	if bytes > 0 {
		a.op("ADDQ $%d, R14", bytes)
	}
	a.op("DECQ CX")
	a.op("JNZ %s", label)
}

// spread writes instructions and, at equal distances among them, n prefetches. Memory is an eighth slower on Zen 5 if they
// come in a row.
func (a *asm) spread(write func(), n int, fetch func(i int)) {
	start := a.text.Len()
	write()
	lines := strings.SplitAfter(string(a.text.Bytes()[start:]), "\n")
	a.text.Truncate(start)
	for i, line := range lines {
		for done := (i*n + len(lines) - 1) / len(lines); done*len(lines) < (i+1)*n; done++ {
			fetch(done)
		}
		a.text.WriteString(line)
	}
}

// columnStrips512 writes the kernel for height (up to fewRows) rows of A and a B whose columns are contiguous. A
// strip is 16 columns. Blocks of 16x16 units are transposed in registers, so that the chains of the sums lie side by
// side.
func columnStrips512(a *asm, name string, height int, multiply func(a *asm, elem, y, sum string)) {
	w, sums := runs512, regs("Z", 32-fewRows, height)
	w.emit(a, name, func() {
		for m, sum := range sums {
			a.op("VMOVUPS %d(DX), %s", 64*m, sum)
		}
	}, func() {
		for i := range stripRows {
			a.op("VMOVUPS %s, Z%d", w.at(i), i)
		}
		network512(a)
		for k := range stripRows {
			for m, sum := range sums {
				multiply(a, fmt.Sprintf("%d(R13)", 4*(k*height+m)), fmt.Sprintf("Z%d", k), sum)
			}
		}
		a.op("ADDQ $%d, R13", 64*height)
	}, func() {
		for m, sum := range sums {
			a.op("VMOVUPS %s, %d(DX)", sum, 64*m)
		}
	})
}

// fmaElement and dotElement multiply by an element, or a pair, in memory.
func fmaElement(a *asm, elem, y, sum string) { a.op("VFMADD231PS.BCST %s, %s, %s", elem, y, sum) }

func dotElement(a *asm, elem, y, sum string) {
	a.op("VPBROADCASTD %s, Z23", elem)
	dpbf16(a, "Z23", y, sum)
}

// rowStrips512 writes the kernel for height (up to fewRows) rows of A and a B whose rows are contiguous. A strip is
// 16 rows. Each sum is loaded from C and extended by 16 products.
func rowStrips512(a *asm, name string, height int) {
	w, sums := walk512, regs("Z", 32-fewRows, height)
	w.emit(a, name, func() {
		for i := range stripRows {
			if height == 1 { // there is room for the elements of A
				a.op("VBROADCASTSS %d(R13), Z%d", 4*i, i)
			}
		}
	}, func() {
		for m, sum := range sums {
			a.op("VMOVUPS %d(DX), %s", 64*m, sum)
		}
		for i := range stripRows {
			if height == 1 {
				a.op("VFMADD231PS %s, Z%d, %s", w.at(i), i, sums[0])
				continue
			}
			a.op("VMOVUPS %s, Z%d", w.at(i), i)
			for m, sum := range sums {
				fmaElement(a, fmt.Sprintf("%d(R13)", 4*(i*height+m)), fmt.Sprintf("Z%d", i), sum)
			}
		}
		for m, sum := range sums {
			a.op("VMOVUPS %s, %d(DX)", sum, 64*m)
		}
		a.op("ADDQ $%d, DX", 64*height)
	}, func() {})
}

// rowStripsBF16 is rowStrips512 for pairs of bf16: a strip is 8 rows of pairs, a step 32 columns. Interleaving two
// rows inside 128-bit lanes leaves every other group of four columns in one register and the rest in the next; the
// sums are arranged likewise.
func rowStripsBF16(a *asm, name string, height int) {
	const even, odd = 0x88, 0xdd // lanes 0 and 2, or 1 and 3, of each source
	const low, high, spread = 0x44, 0xee, 0xd8
	w := walk512
	w.emit(a, name, func() {}, func() {
		for i := 0; i < stripRows; i += 2 {
			a.op("VMOVDQU32 %s, Z22", w.at(i))
			a.op("VMOVDQU32 %s, Z23", w.at(i+1))
			a.op("VPUNPCKLWD Z23, Z22, Z%d", i)
			a.op("VPUNPCKHWD Z23, Z22, Z%d", i+1)
		}
		for m := range height {
			first, second := fmt.Sprintf("%d(DX)", 64*m), fmt.Sprintf("%d(DX)", 64*(height+m))
			a.op("VMOVUPS %s, Z16", first)
			a.op("VMOVUPS %s, Z17", second)
			a.op("VSHUFF32X4 $%d, Z17, Z16, Z18", even)
			a.op("VSHUFF32X4 $%d, Z17, Z16, Z19", odd)
			for i := 0; i < stripRows; i += 2 {
				a.op("VPBROADCASTD %d(R13), Z20", 4*(i/2*height+m))
				dpbf16(a, "Z20", fmt.Sprintf("Z%d", i), "Z18")
				dpbf16(a, "Z20", fmt.Sprintf("Z%d", i+1), "Z19")
			}
			a.op("VSHUFF32X4 $%d, Z19, Z18, Z16", low)
			a.op("VSHUFF32X4 $%d, Z19, Z18, Z17", high)
			a.op("VSHUFF32X4 $%d, Z16, Z16, Z16", spread)
			a.op("VSHUFF32X4 $%d, Z17, Z17, Z17", spread)
			a.op("VMOVUPS Z16, %s", first)
			a.op("VMOVUPS Z17, %s", second)
		}
		a.op("ADDQ $%d, DX", 128*height)
	}, func() {})
}

// columnStrips256 is columnStrips512 for one row of A, 8 columns at a time and blocks of 8x8.
func columnStrips256(a *asm) {
	w := walk256
	w.emit(a, "columns256", func() { a.op("VMOVUPS (DX), Y12") }, func() {
		for i := range blockRows {
			a.op("VMOVUPS %s, Y%d", w.at(i), i)
		}
		network256(a)
		for k := range blockRows {
			column256(a, k, "Y8")
			a.op("VBROADCASTSS %d(R13), Y9", 4*k)
			a.op("VFMADD231PS Y8, Y9, Y12")
		}
		a.op("ADDQ $32, R13")
	}, func() { a.op("VMOVUPS Y12, (DX)") })
}

// rowStrips256 is rowStrips512 for one row of A and 8 rows of B.
func rowStrips256(a *asm) {
	w := walk256
	w.emit(a, "rows256", func() {
		for i := range blockRows {
			a.op("VBROADCASTSS %d(R13), Y%d", 4*i, i)
		}
	}, func() {
		a.op("VMOVUPS (DX), Y8")
		for i := range blockRows {
			a.op("VFMADD231PS %s, Y%d, Y8", w.at(i), i)
		}
		a.op("VMOVUPS Y8, (DX)")
		a.op("ADDQ $32, DX")
	}, func() {})
}

// strips512 writes the kernels of all heights for one kind of element, and their tables.
func strips512(a *asm, suffix string, multiply func(a *asm, elem, y, sum string), rows func(a *asm, name string, height int)) {
	for h := 1; h <= fewRows; h++ {
		columnStrips512(a, fmt.Sprintf("columns%sx%d", suffix, h), h, multiply)
		rows(a, fmt.Sprintf("rows%sx%d", suffix, h), h)
	}
	a.stubs.list("columnKernels"+suffix, "strip", "columns"+suffix+"x", fewRows, "")
	a.stubs.list("rowKernels"+suffix, "strip", "rows"+suffix+"x", fewRows, "")
}
