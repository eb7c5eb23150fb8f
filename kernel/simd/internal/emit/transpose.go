package emit

import (
	"fmt"
	"strings"
)

// transpose prints dst[c*rows+r] = src[r*stride+c] for whole blocks of 8 x 8, in
// AVX2, which is limited by memory on any machine.
//
// Three rounds of shuffles bring element (i, j) to (j, i): pairs of rows are
// interleaved, then pairs of pairs, then the halves of the registers.
func transpose() string {
	var b strings.Builder
	op := func(format string, args ...any) { fmt.Fprintf(&b, "\t"+format+"\n", args...) }
	b.WriteString(`
// func transposeBlocks(dst, src []float32, rows, cols, stride int)
TEXT ·transposeBlocks(SB), NOSPLIT, $0-72
	MOVQ dst_base+0(FP), DI
	MOVQ src_base+24(FP), SI
	MOVQ rows+48(FP), DX
	MOVQ cols+56(FP), CX
	MOVQ stride+64(FP), R8
	SHLQ $2, R8            // bytes from row to row of src
	LEAQ (R8)(R8*2), R9
	LEAQ (DX*4), R10       // and of dst
	LEAQ (R10)(R10*2), R11
	SHRQ $3, DX            // blocks
	SHRQ $3, CX
	TESTQ CX, CX
	JEQ done
rows:
	SUBQ $1, DX
	JLT done
	MOVQ SI, AX
	MOVQ DI, BX
	MOVQ CX, R12
block:
	LEAQ (AX)(R8*4), R13
`)
	four := []string{"(%s)", "(%s)(%s*1)", "(%s)(%s*2)", "(%s)(%s*1)"}
	at := func(base, step, three string, i int) string {
		switch i {
		case 0:
			return fmt.Sprintf(four[0], base)
		case 3:
			return fmt.Sprintf(four[3], base, three)
		}
		return fmt.Sprintf(four[i], base, step)
	}
	for i := range 8 {
		op("VMOVUPS %s, Y%d", at([]string{"AX", "R13"}[i/4], "R8", "R9", i%4), i)
	}
	for i := 0; i < 8; i += 2 {
		op("VUNPCKLPS Y%d, Y%d, Y%d", i+1, i, 8+i)
		op("VUNPCKHPS Y%d, Y%d, Y%d", i+1, i, 9+i)
	}
	for i := range 8 { // columns i%4 of the upper and of the lower four rows
		a := 8 + i/4*4 + i%4/2
		op("VSHUFPS $%#x, Y%d, Y%d, Y%d", []int{0x44, 0xee}[i%2], a+2, a, i)
	}
	op("LEAQ (BX)(R10*4), R13")
	for i := range 8 {
		op("VPERM2F128 $%#x, Y%d, Y%d, Y%d", []int{0x20, 0x31}[i/4], i%4+4, i%4, 8+i)
		op("VMOVUPS Y%d, %s", 8+i, at([]string{"BX", "R13"}[i/4], "R10", "R11", i%4))
	}
	b.WriteString(`	ADDQ $32, AX
	LEAQ (BX)(R10*8), BX
	SUBQ $1, R12
	JNE block
	LEAQ (SI)(R8*8), SI
	ADDQ $32, DI
	JMP rows
done:
	VZEROUPPER
	RET
`)
	return b.String()
}
