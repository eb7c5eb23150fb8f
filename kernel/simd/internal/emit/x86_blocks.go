package emit

import (
	"fmt"
	"math"
	"strings"

	"github.com/athanor-llm/athanor/graph"
)

// nf4 prints the function that writes out whole blocks of weights in 4 bits. A word of 8 indices
// is given to all lanes of 8, each of which shifts its own to the lowest bits; the levels lie in
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
