package emit

import (
	"fmt"
	"strings"
)

// Offsets in simd.Codes.
const (
	codesMiddles     = 0
	codesValueBytes  = 1024
	codesMiddleBytes = 2048
	codesSlope       = 3072
	codesOffset      = 3136
	codesLast        = 3200
	codesLeast       = 3264
	codesZero        = 3268
)

// Decimal places by a number's upper 16 bits, of which 128 are a factor of 2: by a line through the places' borders, which
// are a factor of 10 apart.
const (
	placesFrom  = 13275 // 128 * (127 - 23.29)
	placesScale = 154   // 65536/128 / 3.325
)

// codesWriter prints functions for blocks of moments: see simd.Codes.
type codesWriter struct {
	b            strings.Builder
	stubs        strings.Builder
	suffix, file string
	lanes        int
}

func (w *codesWriter) op(format string, args ...any) { fmt.Fprintf(&w.b, "\t"+format+"\n", args...) }
func (w *codesWriter) v(n int) string                { return fmt.Sprintf("%s%d", w.file, n) }

// head prints a function's first lines.
func (w *codesWriter) head(name, params, result string, size int) {
	signature := fmt.Sprintf("func %s%s(%s)%s\n", name, w.suffix, params, result)
	fmt.Fprintf(&w.b, "\n// %sTEXT ·%s%s(SB), NOSPLIT, $0-%d\n", signature, name, w.suffix, size)
	w.stubs.WriteString("\n//go:noescape\n" + signature)
}

// repeat prints a loop.
func (w *codesWriter) repeat(label string, times int, body func()) {
	w.op("MOVQ $%d, CX", times)
	fmt.Fprintf(&w.b, "%s:\n", label)
	body()
	w.op("SUBQ $1, CX")
	w.op("JNE %s", label)
}

func (w *codesWriter) end() { w.b.WriteString("\tVZEROUPPER\n\tRET\n") }

// codes prints them for AVX2, or AVX-512 with its permutations of bytes.
func codes(suffix, file string, lanes int) (text, stubs string) {
	w := &codesWriter{suffix: suffix, file: file, lanes: lanes}
	w.largest()
	if lanes == 16 {
		w.decodeBytes()
	}
	w.head("encode", "codes *[256]uint8, x *[256]float32, by float32, c *Codes", "", 32)
	w.op("MOVQ codes+0(FP), DI")
	w.op("MOVQ x+8(FP), SI")
	w.op("MOVQ c+24(FP), DX")
	if lanes == 16 {
		w.encodeBytes()
	} else {
		w.encode()
	}
	words := []uint32{0x7fffffff, 1, placesFrom | placesFrom<<16, placesScale | placesScale<<16}
	for i := range 16 { // groups of 4 elements, as interleaved bytes have them
		words = append(words, uint32(i%4*4+i/4))
	}
	for _, n := range []uint32{0, 4, 1, 5, 2, 6, 3, 7} {
		words = append(words, n)
	}
	for i, x := range words {
		fmt.Fprintf(&w.b, "DATA codes%s<>+%d(SB)/4, $0x%08x\n", suffix, 4*i, x)
	}
	fmt.Fprintf(&w.b, "GLOBL codes%s<>(SB), RODATA|NOPTR, $%d\n", suffix, 4*len(words))
	return w.b.String(), w.stubs.String()
}

// word returns the address of one of the constants above.
func (w *codesWriter) word(i int) string { return fmt.Sprintf("codes%s<>+%d(SB)", w.suffix, 4*i) }

// largest prints the maximum of the magnitudes' bits.
func (w *codesWriter) largest() {
	w.head("largest", "x *[256]float32", " (bits uint32)", 12)
	w.op("MOVQ x+0(FP), SI")
	w.op("VPBROADCASTD %s, %s", w.word(0), w.v(4))
	for i := range 4 {
		w.op("VPAND%s (SI), %s, %s", map[int]string{16: "D", 8: ""}[w.lanes], w.v(4), w.v(i))
		w.op("ADDQ $%d, SI", 4*w.lanes)
	}
	w.repeat("loop", 256/4/w.lanes-1, func() {
		for i := range 4 {
			w.op("VPAND%s %d(SI), %s, %s", map[int]string{16: "D", 8: ""}[w.lanes], 4*i*w.lanes, w.v(4), w.v(5+i))
			w.op("VPMAXUD %s, %s, %s", w.v(5+i), w.v(i), w.v(i))
		}
		w.op("ADDQ $%d, SI", 16*w.lanes)
	})
	for _, p := range [][2]int{{0, 1}, {2, 3}, {0, 2}} {
		w.op("VPMAXUD %s, %s, %s", w.v(p[1]), w.v(p[0]), w.v(p[0]))
	}
	if w.lanes == 16 {
		w.op("VEXTRACTI64X4 $1, Z0, Y1")
		w.op("VPMAXUD Y1, Y0, Y0")
	}
	w.op("VEXTRACTI128 $1, Y0, X1")
	w.op("VPMAXUD X1, X0, X0")
	for _, order := range []int{0x4e, 0xb1} {
		w.op("VPSHUFD $%#x, X0, X1", order)
		w.op("VPMAXUD X1, X0, X0")
	}
	w.op("VMOVD X0, AX")
	w.op("MOVL AX, bits+8(FP)")
	w.end()
}

// tables loads the bytes of 64*quarters numbers of 256 into registers 0 to 15.
func (w *codesWriter) tables(from, quarters int) {
	for i := range 16 {
		if i%4 < quarters {
			w.op("VMOVDQU32 %d(DX), Z%d", from+64*i, i)
		}
	}
}

// lookUp leaves the numbers of the indices in Z16 in the registers whose numbers it returns: of each 16 bytes in the first
// four, and so on.
func (w *codesWriter) lookUp(quarters int) [4]int {
	if quarters == 4 {
		w.op("VPMOVB2M Z16, K1")
	}
	for k := range 4 {
		w.op("VMOVDQA64 Z16, Z%d", 17+k)
		w.op("VPERMI2B Z%d, Z%d, Z%d", 4*k+1, 4*k, 17+k)
		if quarters == 4 {
			w.op("VMOVDQA64 Z16, Z21")
			w.op("VPERMI2B Z%d, Z%d, Z21", 4*k+3, 4*k+2)
			w.op("VMOVDQU8 Z21, K1, Z%d", 17+k)
		}
	}
	w.op("VPUNPCKLBW Z18, Z17, Z21")
	w.op("VPUNPCKHBW Z18, Z17, Z17")
	w.op("VPUNPCKLBW Z20, Z19, Z18")
	w.op("VPUNPCKHBW Z20, Z19, Z19")
	w.op("VPUNPCKLWD Z18, Z21, Z20")
	w.op("VPUNPCKHWD Z18, Z21, Z21")
	w.op("VPUNPCKLWD Z19, Z17, Z18")
	w.op("VPUNPCKHWD Z19, Z17, Z17")
	return [4]int{20, 21, 18, 17}
}

// decodeBytes looks the values of 64 indices up, byte by byte.
func (w *codesWriter) decodeBytes() {
	w.head("decode", "y *[256]float32, codes *[256]uint8, scale float32, c *Codes", "", 32)
	w.op("MOVQ y+0(FP), DI")
	w.op("MOVQ codes+8(FP), SI")
	w.op("MOVQ c+24(FP), DX")
	w.tables(codesValueBytes, 4)
	w.op("VBROADCASTSS scale+16(FP), Z30")
	w.op("VMOVDQU32 %s, Z31", w.word(4))
	w.repeat("loop", 4, func() {
		w.op("PREFETCHT0 %d(SI)", 4*260) // what is unpacked 1024 elements later
		w.op("VPERMD (SI), Z31, Z16")
		for i, n := range w.lookUp(4) {
			w.op("VMULPS Z30, Z%d, Z%d", n, n)
			w.op("VMOVUPS Z%d, %d(DI)", n, 64*i)
		}
		w.op("ADDQ $64, SI")
		w.op("ADDQ $256, DI")
	})
	w.end()
}

// count prints the count of values up to the magnitude a, or one of which the nearest is the next: see simd.Codes. t and s are
// scratch.
func (w *codesWriter) count(a, t, s, count, from, scale int) {
	w.op("VPSRLD $16, %s, %s", w.v(a), w.v(t))
	w.op("VPSUBUSW %s, %s, %s", w.v(from), w.v(t), w.v(t))
	w.op("VPMULHUW %s, %s, %s", w.v(scale), w.v(t), w.v(t))
	w.op("VPERMPS %d(DX), %s, %s", codesOffset, w.v(t), w.v(count))
	w.op("VPERMPS %d(DX), %s, %s", codesSlope, w.v(t), w.v(s))
	w.op("VFMADD231PS %s, %s, %s", w.v(s), w.v(a), w.v(count))
	w.op("VCVTTPS2DQ %s, %s", w.v(count), w.v(count))
	w.op("VPERMD %d(DX), %s, %s", codesLast, w.v(t), w.v(t))
	w.op("VPMINSD %s, %s, %s", w.v(t), w.v(count), w.v(count))
}

// encode finds the indices of 32 numbers at a time, and gathers the middles.
func (w *codesWriter) encode() {
	const by, absolute, from, scale, least, zero = 15, 14, 13, 12, 11, 10
	w.op("VBROADCASTSS by+16(FP), Y%d", by)
	w.op("VPBROADCASTD %s, Y%d", w.word(0), absolute)
	w.op("VPBROADCASTD %s, Y%d", w.word(2), from)
	w.op("VPBROADCASTD %s, Y%d", w.word(3), scale)
	w.op("VPBROADCASTD %d(DX), Y%d", codesLeast, least)
	w.op("VPBROADCASTD %d(DX), Y%d", codesZero, zero)
	w.repeat("loop", 8, func() {
		for i := range 4 {
			w.op("VMULPS %d(SI), Y%d, Y4", 32*i, by)
			w.op("VMAXPS Y%d, Y4, Y4", least)
			w.op("VPSRAD $31, Y4, Y5") // -1 of numbers with signs
			w.op("VPAND Y%d, Y4, Y4", absolute)
			w.op("VPSUBD Y5, Y4, Y6") // half way to 0 is down for these
			w.count(4, 7, 8, i, from, scale)
			w.op("VPCMPEQD Y7, Y7, Y7")
			w.op("VPGATHERDD Y7, %d(DX)(Y%d*4), Y8", codesMiddles, i)
			w.op("VPCMPGTD Y8, Y6, Y6")
			w.op("VPSUBD Y6, Y%d, Y%d", i, i)
			w.op("VPXOR Y5, Y%d, Y%d", i, i)
			w.op("VPSUBD Y5, Y%d, Y%d", i, i)
			w.op("VPADDD Y%d, Y%d, Y%d", zero, i, i)
			w.op("VPXOR Y8, Y8, Y8")
			w.op("VPMAXSD Y8, Y%d, Y%d", i, i) // there is no -1
		}
		w.op("VPACKUSDW Y1, Y0, Y0")
		w.op("VPACKUSDW Y3, Y2, Y2")
		w.op("VPACKUSWB Y2, Y0, Y0")
		w.op("VMOVUPS %s, Y1", w.word(20))
		w.op("VPERMD Y0, Y1, Y0")
		w.op("VMOVUPS Y0, (DI)")
		w.op("ADDQ $128, SI")
		w.op("ADDQ $32, DI")
	})
	w.end()
}

// encodeBytes finds the indices of 64 numbers at a time, and looks the middles up byte by byte. Numbers with signs have half as
// many middles above 0.
func (w *codesWriter) encodeBytes() {
	w.op("VBROADCASTSS by+16(FP), Z26")
	w.op("VPBROADCASTD %s, Z27", w.word(2))
	w.op("VPBROADCASTD %s, Z28", w.word(3))
	w.op("VMOVDQU32 %s, Z30", w.word(4))
	w.op("CMPL %d(DX), $0", codesZero)
	w.op("JEQ squares")
	w.op("VPBROADCASTD %s, Z29", w.word(0))
	w.op("VPBROADCASTB %d(DX), Z31", codesZero)
	w.tables(codesMiddleBytes, 2)
	w.repeat("signed", 4, func() { w.encode64(true) })
	w.end()
	w.b.WriteString("squares:\n")
	w.op("VPXORD Z29, Z29, Z29")
	w.tables(codesMiddleBytes, 4)
	w.repeat("unsigned", 4, func() { w.encode64(false) })
	w.end()
}

// encode64 is a pass of this loop.
func (w *codesWriter) encode64(signed bool) {
	const a, by, from, scale, absolute, least, order, zero = 22, 26, 27, 28, 29, 29, 30, 31 // a: four magnitudes
	join := func(k int) {                                                                   // masks of 16 lanes
		w.op("KUNPCKWD K%d, K%d, K%d", k, k+1, k)
		w.op("KUNPCKWD K%d, K%d, K%d", k+2, k+3, k+2)
		w.op("KUNPCKDQ K%d, K%d, K%d", k, k+2, k)
	}
	quarters := 4
	for i := range 4 {
		w.op("VMULPS %d(SI), Z%d, Z%d", 64*i, by, a+i)
		if signed {
			w.op("VPMOVD2M Z%d, K%d", a+i, 2+i)
			w.op("VPANDD Z%d, Z%d, Z%d", absolute, a+i, a+i)
		} else {
			w.op("VMAXPS Z%d, Z%d, Z%d", least, a+i, a+i)
		}
		w.count(a+i, 20, 21, 16+i, from, scale)
		if signed { // half way to 0 is down
			w.op("VPADDD.BCST %s, Z%d, K%d, Z%d", w.word(1), a+i, 2+i, a+i)
		}
	}
	if signed {
		quarters = 2
		join(2)
	}
	w.op("VPACKUSDW Z17, Z16, Z16")
	w.op("VPACKUSDW Z19, Z18, Z18")
	w.op("VPACKUSWB Z18, Z16, Z16")
	for i, middle := range w.lookUp(quarters) {
		w.op("VPCMPGTD Z%d, Z%d, K%d", middle, a+i, 3+i)
	}
	join(3)
	w.op("VPERMD Z16, Z%d, Z16", order)
	w.op("VPMOVM2B K3, Z17")
	w.op("VPSUBB Z17, Z16, Z16")
	if signed {
		w.op("VPADDB Z16, Z%d, Z17", zero)
		w.op("VPSUBUSB Z16, Z%d, K2, Z17", zero) // at least 0: there is no -1
		w.op("VMOVDQU32 Z17, (DI)")
	} else {
		w.op("VMOVDQU32 Z16, (DI)")
	}
	w.op("ADDQ $256, SI")
	w.op("ADDQ $64, DI")
}
