package gemm

import (
	"fmt"
	"math"
	"sync"

	"golang.org/x/sys/cpu"
)

// emulated returns avx512AMX with its kernels in Go, for processors with AVX-512 but without tile registers; nil
// elsewhere. So the code around the kernels (cuts, packing, edges) is tested on more machines.
var emulated = sync.OnceValue(func() *isa {
	if hasTiles() || !(cpu.X86.HasAVX512F && cpu.X86.HasAVX512DQ && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512VL) {
		return nil
	}
	x := avx512AMX
	x.name = "avx512-amx in Go"
	for h := range 2 {
		for w := range 2 {
			x.tiles[h][w] = func(g *grid) { emulate(g, h+1, w+1) }
		}
	}
	return &x
})

// emulate does in Go what package emit's AMX kernels do, as strict about the configuration as the processor.
func emulate(g *grid, h, w int) {
	const row, tile, block = 64, 1024, 2048
	width := func(t int) int { return int(g.config.rowBytes[t]) / 4 }
	for i := range h {
		for j := range w {
			sum, a, b := 2*i+j, 4+i, 6+j
			rows, cols, pairs := int(g.config.rows[sum]), width(sum), width(a)
			if rows == 0 || cols == 0 || pairs == 0 || int(g.config.rows[a]) != rows || width(b) != cols || int(g.config.rows[b]) != pairs {
				panic(fmt.Sprintf("gemm: tiles %d, %d and %d do not fit each other: %+v", sum, a, b, g.config))
			}
			for p := range g.panels {
				init := at(at(g.init, p, g.initPanel), tileRows*i, g.initRow) + uintptr(row*j)
				c := at(at(g.c, p, 2*row), tileRows*i, g.cRow) + uintptr(row*j)
				for r := range rows {
					for e := range cols {
						s := *float(at(init, r, g.initRow), e)
						for k := range g.blocks * pairs {
							x := at(at(g.a, k/pairs, block), r, row) + uintptr(tile*i)
							y := at(at(at(g.b, p, g.bPanel), k/pairs, block), k%pairs, 2*row) + uintptr(row*j)
							for i := range 2 { // products are exact; sums may be rounded twice
								s = flushed(float32(widened(x, 2*(k%pairs)+i)*widened(y, 2*e+i) + float64(s)))
							}
						}
						*float(at(c, r, g.cRow), e) = s
					}
				}
			}
		}
	}
}

// widened returns a factor as tile registers read it.
func widened(p address, i int) float64 {
	return float64(flushed(math.Float32frombits(uint32(*half(p, i)) << 16)))
}

// flushed returns v, or 0 if it is denormal.
func flushed(v float32) float32 {
	if -0x1p-126 < v && v < 0x1p-126 {
		return 0
	}
	return v
}
