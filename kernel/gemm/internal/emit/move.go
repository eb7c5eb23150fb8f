package emit

import "fmt"

// Offsets of the fields of gemm.move.
const (
	moveSrc = 8 * iota
	moveSrcRow
	moveSrcPanel
	moveDst
	moveDstRow
	moveDstPanel
	moveRows
	moveCols
	moveMask
)

// The network below transposes blocks of 4x4 in two steps of unpacking, inside the 128-bit lanes of its registers.
// lanes4 does it for the four registers at r[0..3], with t[0..3] as scratch, and returns where the columns are.
func lanes4(a *asm, r, t []string) {
	a.op("VUNPCKLPS %s, %s, %s", r[1], r[0], t[0])
	a.op("VUNPCKHPS %s, %s, %s", r[1], r[0], t[1])
	a.op("VUNPCKLPS %s, %s, %s", r[3], r[2], t[2])
	a.op("VUNPCKHPS %s, %s, %s", r[3], r[2], t[3])
	a.op("VUNPCKLPD %s, %s, %s", t[2], t[0], r[0])
	a.op("VUNPCKHPD %s, %s, %s", t[2], t[0], r[1])
	a.op("VUNPCKLPD %s, %s, %s", t[3], t[1], r[2])
	a.op("VUNPCKHPD %s, %s, %s", t[3], t[1], r[3])
}

func regs(prefix string, from, n int) []string {
	r := make([]string, n)
	for i := range r {
		r[i] = fmt.Sprintf("%s%d", prefix, from+i)
	}
	return r
}

// moveAVX512 writes transpose512, deal512 and zip512.
func moveAVX512(a *asm) {
	transpose512(a)
	for v := 1; v <= vectors; v++ {
		deal512(a, v)
		zip512(a, v)
	}
}

// network512 transposes the block of 16x16 in Z0 to Z15, with Z16 to Z19 as scratch.
func network512(a *asm) {
	t := regs("Z", 16, 4)
	for g := range 4 {
		lanes4(a, regs("Z", 4*g, 4), t)
	}
	// Z(4g+j) holds in lane L the elements of column 4L+j and rows 4g..4g+3.
	const even, odd = 0x88, 0xdd // take lanes 0 and 2, or 1 and 3, of each source
	for j := range 4 {
		u := func(g int) string { return fmt.Sprintf("Z%d", 4*g+j) }
		a.op("VSHUFF32X4 $%d, %s, %s, %s", even, u(1), u(0), t[0])
		a.op("VSHUFF32X4 $%d, %s, %s, %s", odd, u(1), u(0), t[1])
		a.op("VSHUFF32X4 $%d, %s, %s, %s", even, u(3), u(2), t[2])
		a.op("VSHUFF32X4 $%d, %s, %s, %s", odd, u(3), u(2), t[3])
		a.op("VSHUFF32X4 $%d, %s, %s, %s", even, t[2], t[0], u(0))
		a.op("VSHUFF32X4 $%d, %s, %s, %s", even, t[3], t[1], u(1))
		a.op("VSHUFF32X4 $%d, %s, %s, %s", odd, t[2], t[0], u(2))
		a.op("VSHUFF32X4 $%d, %s, %s, %s", odd, t[3], t[1], u(3))
	}
}

// transpose512 writes dst[c][r] = src[r][c] for up to 16 rows and any number of columns, 16 at a time. Missing rows
// count as zeros; the mask selects which of the 16 elements of a row of dst are written.
func transpose512(a *asm) {
	ptr := rows{[]string{"SI", "R8", "R9", "R10", "R11", "R12"}, "R15"}
	a.routine("transpose512", "move")
	a.op("MOVQ %d(DI), SI", moveSrc)
	a.op("MOVQ %d(DI), R15", moveSrcRow)
	ptr.load(a, 16, "AX")
	a.op("MOVQ %d(DI), DX", moveDst)
	a.op("MOVQ %d(DI), BX", moveDstRow)
	a.op("MOVQ %d(DI), CX", moveCols)
	a.op("MOVQ %d(DI), R13", moveRows)
	a.op("MOVQ %d(DI), AX", moveMask)
	a.op("KMOVW AX, K2")
	a.op("MOVQ $-1, AX")
	a.op("KMOVW AX, K1")
	a.at("block")
	a.op("CMPQ CX, $16")
	a.op("JGE whole")
	a.op("MOVQ $1, AX")
	a.op("SHLQ CX, AX")
	a.op("DECQ AX")
	a.op("KMOVW AX, K1")
	a.at("whole")
	a.op("CMPQ R13, $16")
	a.op("JL few")
	for i := range 16 {
		a.op("PREFETCHT0 %s", ptr.addr(i, 128))
		a.op("VMOVUPS.Z %s, K1, Z%d", ptr.addr(i, 0), i)
	}
	a.at("loaded")
	network512(a)
	a.op("CMPQ CX, $16")
	a.op("JL tail")
	for c := range 16 {
		a.op("PREFETCHT0 64(DX)")
		a.op("VMOVUPS Z%d, K2, (DX)", c)
		a.op("ADDQ BX, DX")
	}
	ptr.advance(a, 16, "$64")
	a.op("SUBQ $16, CX")
	a.op("JNZ block")
	a.end()
	a.at("tail")
	for c := range 15 {
		a.op("VMOVUPS Z%d, K2, (DX)", c)
		a.op("ADDQ BX, DX")
		a.op("DECQ CX")
		a.op("JZ done")
	}
	a.at("done")
	a.end()
	a.at("few")
	for i := range 16 {
		a.op("VPXORD Z%d, Z%d, Z%d", i, i, i)
	}
	for i := range 15 {
		a.op("VMOVUPS.Z %s, K1, Z%d", ptr.addr(i, 0), i)
		a.op("CMPQ R13, $%d", i+1)
		a.op("JE loaded")
	}
	a.op("JMP loaded")
}

// deal512 writes dst[p][r][0..w] = src[r][p][0..w] for panels up to v registers wide: it reads rows sequentially and
// distributes them to the panels.
func deal512(a *asm, v int) {
	a.routine(fmt.Sprintf("deal512x%d", v), "move")
	dealMasks(a, v)
	dealLoop(a, func() {
		a.op("PREFETCHT0 (SI)(R9*8)")
		if v == 2 {
			a.op("PREFETCHT0 64(SI)(R9*8)")
		}
		a.op("PREFETCHT0 (DX)(R12*4)")
		if v == 2 {
			a.op("PREFETCHT0 64(DX)(R12*4)")
		}
		for i := range v {
			a.op("VMOVUPS.Z %d(SI), K%d, Z%d", 64*i, 1+i, i)
			a.op("VMOVUPS Z%d, K%d, %d(DX)", i, 3+i, 64*i)
		}
	})
}

// dealMasks sets K1.. to the elements that are read and K3.. to those that are written.
func dealMasks(a *asm, v int) {
	a.op("MOVQ %d(DI), AX", moveMask)
	for i := range v {
		a.op("KMOVW AX, K%d", 1+i)
		a.op("SHRQ $16, AX")
	}
	a.op("MOVQ %d(DI), AX", moveMask)
	a.op("SHRQ $32, AX")
	for i := range v {
		a.op("KMOVW AX, K%d", 3+i)
		a.op("SHRQ $16, AX")
	}
}

// zip512 is deal512 for rows of bf16, two of which make one row of pairs: dst[p][r][i] = src[2r][p][i], src[2r+1][p][i].
// The stride of the source is that of two rows.
func zip512(a *asm, v int) {
	a.routine(fmt.Sprintf("zip512x%d", v), "move")
	dealMasks(a, v)
	dealLoop(a, func() {
		a.op("PREFETCHT0 (SI)(R9*4)")
		a.op("PREFETCHT0 (R14)(R9*4)")
		for i := range v {
			a.op("VPMOVZXWD.Z %d(SI), K%d, Z%d", 32*i, 1+i, i)
			a.op("VPMOVZXWD.Z %d(R14), K%d, Z%d", 32*i, 1+i, 2+i)
			a.op("VPSLLD $16, Z%d, Z%d", 2+i, 2+i)
			a.op("VPORD Z%d, Z%d, Z%d", i, 2+i, i)
			a.op("VMOVUPS Z%d, K%d, %d(DX)", i, 3+i, 64*i)
		}
	})
}

// dealLoop runs over the rows and panels of a move with SI at the source, R14 half a row further, and DX at the
// destination.
func dealLoop(a *asm, body func()) {
	a.op("MOVQ %d(DI), R8", moveSrc)
	a.op("MOVQ %d(DI), R9", moveSrcRow)
	a.op("MOVQ %d(DI), R10", moveSrcPanel)
	a.op("MOVQ %d(DI), R11", moveDst)
	a.op("MOVQ %d(DI), R12", moveDstRow)
	a.op("MOVQ %d(DI), R13", moveDstPanel)
	a.op("MOVQ %d(DI), CX", moveRows)
	a.op("MOVQ R9, R15")
	a.op("SHRQ $1, R15")
	a.at("row")
	a.op("MOVQ R8, SI")
	a.op("LEAQ (R8)(R15*1), R14")
	a.op("MOVQ R11, DX")
	a.op("MOVQ %d(DI), BX", moveCols)
	a.at("panel")
	body()
	a.op("ADDQ R10, SI")
	a.op("ADDQ R10, R14")
	a.op("ADDQ R13, DX")
	a.op("DECQ BX")
	a.op("JNZ panel")
	a.op("ADDQ R9, R8")
	a.op("ADDQ R12, R11")
	a.op("DECQ CX")
	a.op("JNZ row")
	a.end()
}

// moveAVX2 writes transpose256, which handles whole blocks only (Go code handles the edges), and three forms of deal:
// panels of 16, tiles of the greatest height, and a general one with masks, which is slower, most of all on AMD
// processors.
func moveAVX2(a *asm) {
	laneBits(a)
	transpose256(a)
	a.routine("deal256", "move")
	dealLoop(a, func() {
		for i := range vectors {
			a.op("VMOVUPS %d(SI), Y%d", 32*i, i)
			a.op("VMOVUPS Y%d, %d(DX)", i, 32*i)
		}
	})
	a.routine("deal256high", "move")
	dealLoop(a, func() {
		a.op("VMOVUPS (SI), X0")
		a.op("VMOVSD 16(SI), X1")
		a.op("VMOVUPS X0, (DX)")
		a.op("VMOVSD X1, 16(DX)")
	})
	a.routine("deal256masked", "move")
	a.op("MOVQ %d(DI), AX", moveMask)
	maskFromBits(a, 12)
	a.op("MOVQ %d(DI), AX", moveMask)
	a.op("SHRQ $32, AX")
	maskFromBits(a, 14)
	dealLoop(a, func() {
		for i := range vectors {
			a.op("VMASKMOVPS %d(SI), Y%d, Y%d", 32*i, 12+i, i)
			a.op("VMASKMOVPS Y%d, Y%d, %d(DX)", i, 14+i, 32*i)
		}
	})
}

// network256 begins to transpose the block of 8x8 in Y0 to Y7, with Y8 to Y11 as scratch: Y(4g+j) then holds in lane
// L the elements of column 4L+j and rows 4g..4g+3. column256 assembles one of the columns.
func network256(a *asm) {
	for g := range 2 {
		lanes4(a, regs("Y", 4*g, 4), regs("Y", 8, 4))
	}
}

func column256(a *asm, c int, dst string) {
	a.op("VPERM2F128 $%d, Y%d, Y%d, %s", 0x20+0x11*(c/4), 4+c%4, c%4, dst)
}

// transpose256 writes dst[c][r] = src[r][c] for 8 rows and a multiple of 8 columns.
func transpose256(a *asm) {
	ptr := rows{[]string{"SI", "R8", "R9"}, "R15"}
	a.routine("transpose256", "move")
	a.op("MOVQ %d(DI), SI", moveSrc)
	a.op("MOVQ %d(DI), R15", moveSrcRow)
	ptr.load(a, 8, "AX")
	a.op("MOVQ %d(DI), DX", moveDst)
	a.op("MOVQ %d(DI), BX", moveDstRow)
	a.op("MOVQ %d(DI), CX", moveCols)
	a.at("block")
	for i := range 8 {
		a.op("VMOVUPS %s, Y%d", ptr.addr(i, 0), i)
	}
	network256(a)
	for c := range 8 {
		column256(a, c, "Y8")
		a.op("VMOVUPS Y8, (DX)")
		a.op("ADDQ BX, DX")
	}
	ptr.advance(a, 8, "$32")
	a.op("SUBQ $8, CX")
	a.op("JNZ block")
	a.end()
}
