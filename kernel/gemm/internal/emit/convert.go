package emit

// Offsets of the fields of gemm.convert.
const (
	convertSrc = 8 * iota
	convertSrcRow
	convertDst
	convertDstRow
	convertRows
	convertCols
)

// converts writes the conversions between bf16 and fp32, for whole vectors; Go code handles the ends of rows.
func converts(a *asm) {
	for _, w := range []struct {
		bits, reg, half string
		bytes           int
	}{{"512", "Z", "Y", 64}, {"256", "Y", "X", 32}} {
		a.routine("widen"+w.bits, "convert")
		convertLoop(a, w.bytes/2, w.bytes, func() {
			a.op("VPMOVZXWD (SI), %s0", w.reg)
			a.op("VPSLLD $16, %s0, %s0", w.reg, w.reg)
			a.op("VMOVUPS %s0, (DX)", w.reg)
		})
	}
	narrow512(a)
	narrow256(a)
}

// narrow512 rounds to nearest, ties to even, by adding 0x7fff and the lowest kept bit. For a NaN it sets the quiet
// bit instead, since the addition could make it infinite.
func narrow512(a *asm) {
	a.routine("narrow512", "convert")
	a.op("MOVL $0x7fff, AX")
	a.op("VPBROADCASTD AX, Z5")
	a.op("MOVL $1, AX")
	a.op("VPBROADCASTD AX, Z6")
	a.op("MOVL $0x400000, AX")
	a.op("VPBROADCASTD AX, Z7")
	convertLoop(a, 64, 32, func() {
		a.op("VMOVUPS (SI), Z0")
		a.op("VCMPPS $3, Z0, Z0, K1") // unordered
		a.op("VPSRLD $16, Z0, Z1")
		a.op("VPANDD Z6, Z1, Z1")
		a.op("VPADDD Z5, Z1, Z1")
		a.op("VPADDD Z0, Z1, Z1")
		a.op("VPORD Z7, Z0, K1, Z1")
		a.op("VPSRLD $16, Z1, Z1")
		a.op("VPMOVDW Z1, (DX)")
	})
}

// narrow256 is narrow512 with blends instead of masks.
func narrow256(a *asm) {
	a.routine("narrow256", "convert")
	for i, constant := range []string{"0x7fff", "1", "0x400000"} {
		a.op("MOVL $%s, AX", constant)
		a.op("VMOVD AX, X%d", 5+i)
		a.op("VPBROADCASTD X%d, Y%d", 5+i, 5+i)
	}
	convertLoop(a, 32, 16, func() {
		a.op("VMOVUPS (SI), Y0")
		a.op("VCMPPS $3, Y0, Y0, Y2") // unordered
		a.op("VPSRLD $16, Y0, Y1")
		a.op("VPAND Y6, Y1, Y1")
		a.op("VPADDD Y5, Y1, Y1")
		a.op("VPADDD Y0, Y1, Y1")
		a.op("VPOR Y7, Y0, Y3")
		a.op("VBLENDVPS Y2, Y3, Y1, Y1")
		a.op("VPSRLD $16, Y1, Y1")
		a.op("VEXTRACTI128 $1, Y1, X2")
		a.op("VPACKUSDW X2, X1, X1")
		a.op("VMOVUPS X1, (DX)")
	})
}

// convertLoop runs over the rows and vectors of a conversion with SI at the source and DX at the destination.
// Columns are counted in vectors here.
func convertLoop(a *asm, srcBytes, dstBytes int, body func()) {
	a.op("MOVQ %d(DI), R8", convertSrc)
	a.op("MOVQ %d(DI), R9", convertSrcRow)
	a.op("MOVQ %d(DI), R11", convertDst)
	a.op("MOVQ %d(DI), R12", convertDstRow)
	a.op("MOVQ %d(DI), CX", convertRows)
	a.at("row")
	a.op("MOVQ R8, SI")
	a.op("MOVQ R11, DX")
	a.op("MOVQ %d(DI), BX", convertCols)
	a.at("vector")
	body()
	a.op("ADDQ $%d, SI", srcBytes)
	a.op("ADDQ $%d, DX", dstBytes)
	a.op("DECQ BX")
	a.op("JNZ vector")
	a.op("ADDQ R9, R8")
	a.op("ADDQ R12, R11")
	a.op("DECQ CX")
	a.op("JNZ row")
	a.end()
}
