package emit

import (
	"fmt"
	"strings"

	"github.com/athanor-llm/athanor/kernel/internal/neon"
)

// routineNEON opens a function func name(t *args) for arm64, whose argument is in R0 from here on.
func (a *asm) routineNEON(name, args string, frame int) {
	a.open(name, args, frame)
	a.op("MOVD t+0(FP), R0")
}

// neon prints an instruction that Go's assembler does not know.
func (a *asm) neon(format string, args ...any) { a.op("%s", neon.Line(format, args...)) }

// vs returns a list of vector registers in the form that loads and stores of several registers
// take.
func vs(from, n int) string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf("V%d.S4", from+i)
	}
	return "[" + strings.Join(list, ", ") + "]"
}

// addTo adds a register to a field of the argument. Like the next two it overwrites R26.
func (a *asm) addTo(field int, reg string) {
	a.op("MOVD %d(R0), R26", field)
	a.op("ADD %s, R26", reg)
	a.op("MOVD R26, %d(R0)", field)
}

// advance adds the first field of each pair to the second; R25 is overwritten, too.
func (a *asm) advance(pairs [][2]int) {
	for _, p := range pairs {
		a.op("MOVD %d(R0), R25", p[0])
		a.addTo(p[1], "R25")
	}
}

// countDown subtracts 1 from a field and branches on the result.
func (a *asm) countDown(field int, branch string) {
	a.op("MOVD %d(R0), R26", field)
	a.op("SUBS $1, R26, R26")
	a.op("MOVD R26, %d(R0)", field)
	a.op("%s", branch)
}

// pointersNEON are registers for the addresses of up to 16 rows, two of them only where R8 to R11 are free.
// Operating systems own R18; Go owns R27, R28 and R30.
var pointersNEON = []string{"R12", "R13", "R14", "R15", "R16", "R17", "R19", "R20", "R21", "R22", "R23", "R24", "R8", "R9", "R10", "R11"}

// setPointers sets the pointers to n rows, from the first of them on.
func setPointers(a *asm, n int, stride string) {
	for i := 1; i < n; i++ {
		a.op("ADD %s, %s, %s", stride, pointersNEON[i-1], pointersNEON[i])
	}
}

// quadNEON transposes the block of 4x4 in four registers from in on, with four from t on as scratch, to the given
// registers.
func quadNEON(a *asm, in, t int, out [4]int) {
	zip := func(half int, lanes string, x, y, to int) {
		a.op("VZIP%d V%d.%s, V%d.%s, V%d.%s", half, y, lanes, x, lanes, to, lanes)
	}
	for half := 1; half <= 2; half++ {
		zip(half, "S4", in, in+1, t+half-1)
		zip(half, "S4", in+2, in+3, t+half+1)
	}
	for c, to := range out {
		zip(1+c%2, "D2", t+c/2, t+2+c/2, to)
	}
}

// moveNEON writes transpositions of whole blocks, of 4 and of 16 rows, and deal for panels of each width. Go code
// handles edges.
func moveNEON(a *asm) {
	transposeNEON(a, 4)
	transposeNEON(a, 16)
	for w := 1; w <= 16; w++ {
		dealNEON(a, w)
	}
	a.stubs.list("dealsNEON", "move", "dealNEONx", 16, "")
}

// transposeNEON writes dst[c][r] = src[r][c] for the given number of rows and a multiple of 4 columns.
func transposeNEON(a *asm, rows int) {
	a.routineNEON(fmt.Sprintf("transposeNEON%d", rows), "move", 0)
	a.op("MOVD %d(R0), R12", moveSrc)
	a.op("MOVD %d(R0), R1", moveSrcRow)
	setPointers(a, rows, "R1")
	a.op("MOVD %d(R0), R2", moveDst)
	a.op("MOVD %d(R0), R3", moveDstRow)
	a.op("MOVD %d(R0), R4", moveCols)
	a.at("block")
	for g := range rows / 4 {
		in := 16 + 8*(g%2)
		for i := range 4 {
			a.op("FMOVQ.P 16(%s), F%d", pointersNEON[4*g+i], in+i)
		}
		n := rows / 4 // registers of a row of the result
		quadNEON(a, in, in+4, [4]int{g, n + g, 2*n + g, 3*n + g})
	}
	for c := range 4 {
		a.op("VST1.P %s, (R2)(R3)", vs(c*rows/4, rows/4))
	}
	a.op("SUBS $4, R4, R4")
	a.op("BNE block")
	a.op("RET")
}

// dealNEON writes dst[p][r][0..width] = src[r][p][0..width].
func dealNEON(a *asm, width int) {
	a.routineNEON(fmt.Sprintf("dealNEONx%d", width), "move", 0)
	for i, field := range []int{moveRows, moveSrc, moveSrcRow, moveSrcPanel, moveDst, moveDstRow, moveDstPanel} {
		a.op("MOVD %d(R0), R%d", field, 1+i)
	}
	a.at("row")
	a.op("MOVD R2, R8")
	a.op("MOVD R5, R9")
	a.op("MOVD %d(R0), R10", moveCols)
	a.at("panel")
	if width == 16 {
		a.op("VLD1 (R8), %s", vs(0, 4))
		a.op("VST1 %s, (R9)", vs(0, 4))
	} else {
		n := 0
		for _, part := range []struct {
			size int
			name string
		}{{4, "FMOVQ"}, {4, "FMOVQ"}, {4, "FMOVQ"}, {2, "FMOVD"}, {1, "FMOVS"}} {
			if n+part.size <= width {
				a.op("%s %d(R8), F0", part.name, 4*n)
				a.op("%s F0, %d(R9)", part.name, 4*n)
				n += part.size
			}
		}
	}
	a.op("ADD R4, R8")
	a.op("ADD R7, R9")
	a.op("SUBS $1, R10, R10")
	a.op("BNE panel")
	a.op("ADD R3, R2")
	a.op("ADD R6, R5")
	a.op("SUBS $1, R1, R1")
	a.op("BNE row")
	a.op("RET")
}

// convertNEON writes the conversions between bf16 and fp32, for whole groups of 8; Go code handles the ends of rows.
// For rounding see narrow512.
func convertNEON(a *asm) {
	a.routineNEON("widenNEON", "convert", 0)
	a.convertLoopNEON(func() {
		a.op("FMOVQ.P 16(R7), F0")
		a.neon("shll v1.4s, v0.4h, #16")
		a.neon("shll2 v2.4s, v0.8h, #16")
		a.op("VST1.P %s, 32(R8)", vs(1, 2))
	})
	a.routineNEON("narrowNEON", "convert", 0)
	for i, constant := range []string{"0x7fff", "1", "0x400000"} {
		a.op("MOVD $%s, R9", constant)
		a.op("VDUP R9, V%d.S4", 16+i)
	}
	a.convertLoopNEON(func() {
		a.op("VLD1.P 32(R7), %s", vs(0, 2))
		for x := range 2 {
			sum, ordered, quiet := 2+x, 4+x, 6+x
			a.neon("ushr v%d.4s, v%d.4s, #16", sum, x)
			a.op("VAND V17.B16, V%d.B16, V%d.B16", sum, sum)
			a.op("VADD V16.S4, V%d.S4, V%d.S4", sum, sum)
			a.op("VADD V%d.S4, V%d.S4, V%d.S4", x, sum, sum)
			a.neon("fcmeq v%d.4s, v%d.4s, v%d.4s", ordered, x, x)
			a.op("VORR V18.B16, V%d.B16, V%d.B16", x, quiet)
			a.op("VBSL V%d.B16, V%d.B16, V%d.B16", quiet, sum, ordered)
		}
		a.neon("shrn v0.4h, v4.4s, #16")
		a.neon("shrn2 v0.8h, v5.4s, #16")
		a.op("FMOVQ.P F0, 16(R8)")
	})
}

// convertLoopNEON runs over the rows and groups of a conversion with R7 at the source and R8 at the destination, which
// the body advances. Columns are counted in groups here.
func (a *asm) convertLoopNEON(body func()) {
	for i, field := range []int{convertSrc, convertSrcRow, convertDst, convertDstRow, convertRows} {
		a.op("MOVD %d(R0), R%d", field, 1+i)
	}
	a.at("row")
	a.op("MOVD R1, R7")
	a.op("MOVD R3, R8")
	a.op("MOVD %d(R0), R6", convertCols)
	a.at("group")
	body()
	a.op("SUBS $1, R6, R6")
	a.op("BNE group")
	a.op("ADD R2, R1")
	a.op("ADD R4, R3")
	a.op("SUBS $1, R5, R5")
	a.op("BNE row")
	a.op("RET")
}

// peakNEON writes a loop of 24 chains of multiply-adds.
func peakNEON(a *asm) {
	const chains = 24
	a.routineNEON("peakNEON", "peak", 0)
	a.op("MOVD (R0), R1")
	for i := range chains + 2 {
		a.op("VEOR V%d.B16, V%d.B16, V%d.B16", i, i, i)
	}
	a.op("PCALIGN $32")
	a.at("loop")
	for range peakUnroll {
		for i := range chains {
			a.neon("fmla v%d.4s, v%d.4s, v%d.4s", i, chains, chains+1)
		}
	}
	a.op("SUBS $1, R1, R1")
	a.op("BNE loop")
	a.op("RET")
}
