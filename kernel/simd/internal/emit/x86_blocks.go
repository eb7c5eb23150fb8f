package emit

import (
	"fmt"
	"math"
	"strings"

	"github.com/athanor-llm/athanor/graph"
)

// nf4 prints the function that unpacks whole blocks of weights in 4 bits. A word of 8 indices is
// broadcast to 8 lanes, each of which shifts its own index to the lowest bits; the levels are in
// one register of 16 or two of 8, between which the index's highest bit decides.
func nf4(suffix, file string, bytes int) (text, stub string) {
	var b strings.Builder
	mask := file == "Z"
	signature := fmt.Sprintf("func nf4Blocks%s(y []float32, indices []byte, scales []float32, blocks int)\n", suffix)
	op := func(format string, args ...any) { fmt.Fprintf(&b, "\t"+format+"\n", args...) }
	fmt.Fprintf(&b, "\n// %sTEXT ·nf4Blocks%s(SB), NOSPLIT, $0-80\n", signature, suffix)
	op("MOVQ y_base+0(FP), DI")
	op("MOVQ indices_base+24(FP), SI")
	op("MOVQ scales_base+48(FP), DX")
	op("MOVQ blocks+72(FP), CX")
	v := func(n int) string { return fmt.Sprintf("%s%d", file, n) }
	op("VMOVUPS levels%s<>+0(SB), %s", suffix, v(2))
	op("VMOVUPS shifts%s<>+0(SB), %s", suffix, v(4))
	if mask {
		op("MOVL $0xff00, AX")
		op("KMOVW AX, K1")
	} else {
		op("VMOVUPS levels%s<>+32(SB), Y3", suffix)
	}
	b.WriteString("\tTESTQ CX, CX\n\tJLE done\nblock:\n")
	op("VBROADCASTSS (DX), %s", v(5))
	for at := 0; at < graph.NF4Block; at += bytes / 4 {
		op("VPBROADCASTD %d(SI), %s", at/2, v(0))
		if mask {
			op("VPBROADCASTD %d(SI), K1, Z0", at/2+4)
			op("VPSRLVD Z4, Z0, Z0")
			op("VPERMPS Z2, Z0, Z1")
		} else {
			op("VPSRLVD Y4, Y0, Y0")
			op("VPERMPS Y2, Y0, Y1")
			op("VPERMPS Y3, Y0, Y6")
			op("VPSLLD $28, Y0, Y0")
			op("VBLENDVPS Y0, Y6, Y1, Y1")
		}
		op("VMULPS %s, %s, %s", v(5), v(1), v(1))
		op("VMOVUPS %s, %d(DI)", v(1), 4*at)
	}
	op("ADDQ $%d, DI", 4*graph.NF4Block)
	op("ADDQ $%d, SI", graph.NF4Block/2)
	op("ADDQ $4, DX")
	op("SUBQ $1, CX")
	b.WriteString("\tJNE block\ndone:\n\tVZEROUPPER\n\tRET\n")
	for i, level := range graph.NF4Levels {
		fmt.Fprintf(&b, "DATA levels%s<>+%d(SB)/4, $0x%08x\n", suffix, 4*i, math.Float32bits(level))
	}
	fmt.Fprintf(&b, "GLOBL levels%s<>(SB), RODATA|NOPTR, $64\n", suffix)
	for i := range 16 {
		fmt.Fprintf(&b, "DATA shifts%s<>+%d(SB)/4, $%d\n", suffix, 4*i, i%8*4)
	}
	fmt.Fprintf(&b, "GLOBL shifts%s<>(SB), RODATA|NOPTR, $64\n", suffix)
	return b.String(), "\n//go:noescape\n" + signature
}

// counts prints the functions that unpack a group of numbers in 8 or 4 bits: see simd.Set.Counts. The counts of 4 bits are shifted
// as nf4 does, whose table of shifts this is.
func counts(suffix, file string, bytes int) (text, stubs string) {
	var b strings.Builder
	op := func(format string, args ...any) { fmt.Fprintf(&b, "\t"+format+"\n", args...) }
	v := func(n int) string { return fmt.Sprintf("%s%d", file, n) }
	for _, bits := range []int{8, 4} {
		signature := fmt.Sprintf("func counts%d%s(y []float32, counts []byte, least, step float32)\n", bits, suffix)
		stubs += "\n//go:noescape\n" + signature
		fmt.Fprintf(&b, "\n// %sTEXT ·counts%d%s(SB), NOSPLIT, $0-56\n", signature, bits, suffix)
		op("MOVQ y_base+0(FP), DI")
		op("MOVQ counts_base+24(FP), SI")
		op("VBROADCASTSS least+48(FP), %s", v(5))
		op("VBROADCASTSS step+52(FP), %s", v(6))
		op("VMOVUPS shifts%s<>+0(SB), %s", suffix, v(4))
		if bytes == 64 {
			op("MOVL $0xff00, AX")
			op("KMOVW AX, K1")
		}
		for at := 0; at < graph.CacheGroup; at += bytes / 4 {
			if bits == 8 {
				op("VPMOVZXBD %d(SI), %s", at, v(0))
			} else {
				op("VPBROADCASTD %d(SI), %s", at/2, v(0))
				if bytes == 64 {
					op("VPBROADCASTD %d(SI), K1, Z0", at/2+4)
				}
				op("VPSRLVD %s, %s, %s", v(4), v(0), v(0))
				op("VPSLLD $28, %s, %s", v(0), v(0))
				op("VPSRLD $28, %s, %s", v(0), v(0))
			}
			op("VCVTDQ2PS %s, %s", v(0), v(0))
			op("VMULPS %s, %s, %s", v(6), v(0), v(0))
			op("VADDPS %s, %s, %s", v(5), v(0), v(0))
			op("VMOVUPS %s, %d(DI)", v(0), 4*at)
		}
		b.WriteString("\tVZEROUPPER\n\tRET\n")
	}
	return b.String(), stubs
}

// nf4Half prints the function that unpacks whole blocks to bf16 with AVX-512: a block's 16 levels are scaled and rounded once, as Narrow does, and
// then looked up, 32 at a time. A byte's two indices become two words.
func nf4Half() (text, stub string) {
	var b strings.Builder
	const signature = "func nf4HalfBlocksAVX512(y []uint16, indices []byte, scales []float32, blocks int)\n"
	op := func(format string, args ...any) { fmt.Fprintf(&b, "\t"+format+"\n", args...) }
	fmt.Fprintf(&b, "\n// %sTEXT ·nf4HalfBlocksAVX512(SB), NOSPLIT, $0-80\n", signature)
	op("MOVQ y_base+0(FP), DI")
	op("MOVQ indices_base+24(FP), SI")
	op("MOVQ scales_base+48(FP), DX")
	op("MOVQ blocks+72(FP), CX")
	op("VMOVUPS levelsAVX512<>+0(SB), Z2")
	for i := range 4 {
		op("VPBROADCASTD halvesAVX512<>+%d(SB), Z%d", 4*i, 10+i)
	}
	b.WriteString("\tTESTQ CX, CX\n\tJLE done\nblock:\n")
	op("VMULPS.BCST (DX), Z2, Z5")
	op("VPSRLD $16, Z5, Z6")
	op("VPANDD Z10, Z6, Z6")
	op("VPADDD Z11, Z6, Z6")
	op("VPADDD Z5, Z6, Z6")
	op("VFIXUPIMMPS $0, Z12, Z5, Z6")
	op("VPSRLD $16, Z6, Z6")
	op("VPMOVDW Z6, Y7")
	for at := 0; at < graph.NF4Block; at += 32 {
		op("VPMOVZXBD %d(SI), Z0", at/2)
		op("VPSLLD $12, Z0, Z1")
		op("VPORD Z1, Z0, Z0")
		op("VPANDD Z13, Z0, Z0")
		op("VPERMW Z7, Z0, Z1")
		op("VMOVDQU32 Z1, %d(DI)", 2*at)
	}
	op("ADDQ $%d, DI", 2*graph.NF4Block)
	op("ADDQ $%d, SI", graph.NF4Block/2)
	op("ADDQ $4, DX")
	op("SUBQ $1, CX")
	b.WriteString("\tJNE block\ndone:\n\tVZEROUPPER\n\tRET\n")
	for i, v := range []uint32{1, 0x7fff, 0x22, 0x000f000f} { // rounding to even; quiet NaNs; the indices of a byte
		fmt.Fprintf(&b, "DATA halvesAVX512<>+%d(SB)/4, $0x%08x\n", 4*i, v)
	}
	b.WriteString("GLOBL halvesAVX512<>(SB), RODATA|NOPTR, $16\n")
	return b.String(), "\n//go:noescape\n" + signature
}

// expandWords prints the function that puts elements that the bits of words keep at their places, with AVX-512: an instruction takes as many
// elements as a mask of 16 lanes has bits, and others become 0.
func expandWords() (text, stub string) {
	var b strings.Builder
	const signature = "func expandWordsAVX512(y, x []float32, words []int32)\n"
	op := func(format string, args ...any) { fmt.Fprintf(&b, "\t"+format+"\n", args...) }
	fmt.Fprintf(&b, "\n// %sTEXT ·expandWordsAVX512(SB), NOSPLIT, $0-72\n", signature)
	op("MOVQ y_base+0(FP), DI")
	op("MOVQ x_base+24(FP), SI")
	op("MOVQ words_base+48(FP), DX")
	op("MOVQ words_len+56(FP), CX")
	b.WriteString("\tTESTQ CX, CX\n\tJLE done\nword:\n")
	op("MOVL (DX), AX")
	op("MOVWLZX AX, BX")
	op("SHRL $16, AX")
	op("KMOVW BX, K1")
	op("KMOVW AX, K2")
	op("POPCNTL BX, BX")
	op("POPCNTL AX, AX")
	op("VEXPANDPS.Z (SI), K1, Z0")
	op("LEAQ (SI)(BX*4), SI")
	op("VEXPANDPS.Z (SI), K2, Z1")
	op("LEAQ (SI)(AX*4), SI")
	op("VMOVUPS Z0, (DI)")
	op("VMOVUPS Z1, 64(DI)")
	op("ADDQ $4, DX")
	op("ADDQ $128, DI")
	op("SUBQ $1, CX")
	b.WriteString("\tJNE word\ndone:\n\tVZEROUPPER\n\tRET\n")
	return b.String(), "\n//go:noescape\n" + signature
}

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
