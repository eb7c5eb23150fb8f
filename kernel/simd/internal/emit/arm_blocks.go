package emit

import (
	"fmt"
	"math"
	"strings"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/kernel/internal/neon"
)

// neonBlocks prints nf4Blocks and transposeBlocks for NEON.
func neonBlocks() (text, stubs string) {
	const (
		nf4       = "func nf4BlocksNEON(y []float32, indices []byte, scales []float32, blocks int)"
		transpose = "func transposeBlocks(dst, src []float32, rows, cols, stride int)"
	)
	text = "\n// " + nf4 + "\nTEXT ·nf4BlocksNEON(SB), NOSPLIT, $0-80\n" + neonNF4() +
		"\n// " + transpose + "\nTEXT ·transposeBlocks(SB), NOSPLIT, $0-72\n" + neonTranspose()
	return text, "\n//go:noescape\n" + nf4 + "\n\n//go:noescape\n" + transpose + "\n"
}

// neonNF4 prints the body of the function that unpacks whole blocks of weights in 4 bits. An instruction looks
// up 16 bytes in a table of 16, so there is a table for each of the four bytes of a level; pairs of bytes, then
// pairs of those, are interleaved into levels.
func neonNF4() string {
	var b strings.Builder
	op := func(format string, args ...any) { fmt.Fprintf(&b, "\t"+format+"\n", args...) }
	v := func(format string, regs ...any) { op("%s", neon.Line(format, regs...)) }
	const low, scale = 20, 21
	op("MOVD y_base+0(FP), R0")
	op("MOVD indices_base+24(FP), R1")
	op("MOVD scales_base+48(FP), R2")
	op("MOVD blocks+72(FP), R3")
	op("MOVD $levelsNEON<>(SB), R4")
	for i := range 5 {
		op("FMOVQ %d(R4), F%d", 16*i, 16+i) // F20 is low
	}
	op("CBZ R3, done")
	b.WriteString("block:\n")
	op("FMOVS.P 4(R2), F%d", scale)
	v("dup v%d.4s, v%d.s[0]", scale, scale)
	for at := 0; at < graph.NF4Block; at += 32 {
		op("FMOVQ %d(R1), F0", at/2)
		v("ushr v1.16b, v0.16b, #4")
		v("and v0.16b, v0.16b, v%d.16b", low)
		v("zip1 v2.16b, v0.16b, v1.16b")
		v("zip2 v3.16b, v0.16b, v1.16b")
		for half := range 2 {
			for i := range 4 {
				v("tbl v%d.16b, {v%d.16b}, v%d.16b", 4+i, 16+i, 2+half)
			}
			for i := range 4 { // bytes 0 and 1, then 2 and 3: eight elements in 8 and 10, eight in 9 and 11
				v("zip%d v%d.16b, v%d.16b, v%d.16b", 1+i%2, 8+i, 4+i/2*2, 5+i/2*2)
			}
			for i := range 4 {
				v("zip%d v%d.8h, v%d.8h, v%d.8h", 1+i%2, 4+i, 8+i/2, 10+i/2)
				v("fmul v%d.4s, v%d.4s, v%d.4s", 4+i, 4+i, scale)
				op("FMOVQ F%d, %d(R0)", 4+i, 4*(at+16*half+4*i))
			}
		}
	}
	op("ADD $%d, R0", 4*graph.NF4Block)
	op("ADD $%d, R1", graph.NF4Block/2)
	op("SUBS $1, R3, R3")
	op("BNE block")
	b.WriteString("done:\n\tRET\n")
	for plane := range 4 {
		for i, level := range graph.NF4Levels {
			fmt.Fprintf(&b, "DATA levelsNEON<>+%d(SB)/1, $0x%02x\n", 16*plane+i, math.Float32bits(level)>>(8*plane)&0xff)
		}
	}
	for i := range 2 {
		fmt.Fprintf(&b, "DATA levelsNEON<>+%d(SB)/8, $0x0f0f0f0f0f0f0f0f\n", 64+8*i)
	}
	b.WriteString("GLOBL levelsNEON<>(SB), RODATA|NOPTR, $80\n")
	return b.String()
}

// neonTranspose prints the body of dst[c*rows+r] = src[r*stride+c] for whole blocks of 8 x 8: four squares of 4 x 4,
// in each of which two rounds of interleaving bring element (i, j) to (j, i).
func neonTranspose() string {
	var b strings.Builder
	op := func(format string, args ...any) { fmt.Fprintf(&b, "\t"+format+"\n", args...) }
	v := func(format string, regs ...any) { op("%s", neon.Line(format, regs...)) }
	b.WriteString(`	MOVD dst_base+0(FP), R0
	MOVD src_base+24(FP), R1
	MOVD rows+48(FP), R2
	MOVD cols+56(FP), R3
	MOVD stride+64(FP), R4
	LSL $2, R4, R4 // bytes from row to row of src
	LSL $2, R2, R5 // and of dst
	LSR $3, R2, R2 // blocks
	LSR $3, R3, R3
	CBZ R3, done
rows:
	CBZ R2, done
	SUB $1, R2
	MOVD R1, R6
	MOVD R0, R7
	MOVD R3, R8
block:
	MOVD R6, R9
`)
	for i := range 8 {
		op("FLDPQ (R9), (F%d, F%d)", i, 8+i)
		op("ADD R4, R9, R9")
	}
	for at := 0; at < 16; at += 4 { // the squares: columns 0 to 3 of rows 0 to 3 and 4 to 7, then columns 4 to 7
		for i := range 4 {
			v("zip%d v%d.4s, v%d.4s, v%d.4s", 1+i%2, 16+i, at+i/2, at+i/2+2)
		}
		for i := range 4 {
			v("zip%d v%d.4s, v%d.4s, v%d.4s", 1+i%2, at+i, 16+i/2, 18+i/2)
		}
	}
	op("MOVD R7, R9")
	for c := range 8 {
		at := c/4*8 + c%4
		op("FSTPQ (F%d, F%d), (R9)", at, at+4)
		op("ADD R5, R9, R9")
	}
	b.WriteString(`	ADD $32, R6
	ADD R5<<3, R7, R7
	SUBS $1, R8, R8
	BNE block
	ADD R4<<3, R1, R1
	ADD $32, R0
	B rows
done:
	RET
`)
	return b.String()
}
