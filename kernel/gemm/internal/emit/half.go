package emit

import "fmt"

// Kernels on strips of a B in bf16 that is not multiplied in pairs, for processors without instructions for
// that. B is widened in registers: where its columns are contiguous, two neighbours are transposed as one
// element and then become floats by a shift and by a mask; where its rows are, a load widens.

// halfStrips512 writes the kernels of all heights, and their tables.
func halfStrips512(a *asm) {
	for h := 1; h <= fewRows; h++ {
		halfColumns512(a, h)
		halfRows512(a, h)
	}
	a.stubs.list("halfColumnKernels512", "strip", "halfColumns512x", fewRows, "")
	a.stubs.list("halfRowKernels512", "strip", "halfRows512x", fewRows, "")
}

// halfColumns512 is columnStrips512 for a step of 32 products.
func halfColumns512(a *asm, height int) {
	w, sums := runs512, regs("Z", 32-fewRows, height)
	w.emit(a, fmt.Sprintf("halfColumns512x%d", height), func() {
		a.op("VPTERNLOGD $0xff, Z20, Z20, Z20")
		a.op("VPSLLD $16, Z20, Z20")
		for m, sum := range sums {
			a.op("VMOVUPS %d(DX), %s", 64*m, sum)
		}
	}, func() {
		for i := range stripRows {
			a.op("VMOVUPS %s, Z%d", w.at(i), i)
		}
		network512(a)
		for pair := range stripRows {
			a.op("VPSLLD $16, Z%d, Z16", pair)
			a.op("VPANDD Z20, Z%d, Z17", pair)
			for i := range 2 {
				for m, sum := range sums {
					fmaElement(a, fmt.Sprintf("%d(R13)", 4*((2*pair+i)*height+m)), fmt.Sprintf("Z%d", 16+i), sum)
				}
			}
		}
		a.op("ADDQ $%d, R13", 128*height)
	}, func() {
		for m, sum := range sums {
			a.op("VMOVUPS %s, %d(DX)", sum, 64*m)
		}
	})
}

// halfRows512 is rowStrips512 for a step of 32 columns, 16 at a time.
func halfRows512(a *asm, height int) {
	w, sums := walk512, regs("Z", 32-fewRows, height)
	w.emit(a, fmt.Sprintf("halfRows512x%d", height), func() {}, func() {
		for panel := range 2 {
			for m, sum := range sums {
				a.op("VMOVUPS %d(DX), %s", 64*(panel*height+m), sum)
			}
			for i := range stripRows {
				a.op("VPMOVZXWD %s, Z%d", w.ptr.addr(i, 32*panel), i)
				a.op("VPSLLD $16, Z%d, Z%d", i, i)
				for m, sum := range sums {
					fmaElement(a, fmt.Sprintf("%d(R13)", 4*(i*height+m)), fmt.Sprintf("Z%d", i), sum)
				}
			}
			for m, sum := range sums {
				a.op("VMOVUPS %s, %d(DX)", sum, 64*(panel*height+m))
			}
		}
		a.op("ADDQ $%d, DX", 128*height)
	}, func() {})
}

// halfColumns256 is columnStrips256 for whole strips: two chains of sums, since one chain of 32 products per
// step would take as long as memory takes for twice the bytes.
func halfColumns256(a *asm) {
	w, sums := walk512, []string{"Y12", "Y14"}
	w.emit(a, "halfColumns256", func() {
		a.op("VPCMPEQD Y13, Y13, Y13")
		a.op("VPSLLD $16, Y13, Y13")
		for block, sum := range sums {
			a.op("VMOVUPS %d(DX), %s", 32*block, sum)
		}
	}, func() {
		for part := range 2 {
			for block, sum := range sums {
				for i := range blockRows {
					a.op("VMOVUPS %s, Y%d", w.ptr.addr(blockRows*block+i, 32*part), i)
				}
				network256(a)
				for pair := range blockRows {
					column256(a, pair, "Y8")
					a.op("VPSLLD $16, Y8, Y9")
					a.op("VPAND Y13, Y8, Y8")
					for i, column := range []string{"Y9", "Y8"} {
						a.op("VBROADCASTSS %d(R13), Y%d", 64*part+8*pair+4*i, 10+i)
						a.op("VFMADD231PS %s, Y%d, %s", column, 10+i, sum)
					}
				}
			}
		}
		a.op("ADDQ $128, R13")
	}, func() {
		for block, sum := range sums {
			a.op("VMOVUPS %s, %d(DX)", sum, 32*block)
		}
	})
}

// halfRows256 is rowStrips256 for a step of 16 columns.
func halfRows256(a *asm) {
	w := walk256
	w.emit(a, "halfRows256", func() {
		for i := range blockRows {
			a.op("VBROADCASTSS %d(R13), Y%d", 4*i, i)
		}
	}, func() {
		for v := range 2 {
			a.op("VMOVUPS %d(DX), Y%d", 32*v, 8+v)
		}
		for i := range blockRows {
			for v := range 2 {
				a.op("VPMOVZXWD %s, Y%d", w.ptr.addr(i, 16*v), 10+v)
				a.op("VPSLLD $16, Y%d, Y%d", 10+v, 10+v)
				a.op("VFMADD231PS Y%d, Y%d, Y%d", 10+v, i, 8+v)
			}
		}
		for v := range 2 {
			a.op("VMOVUPS Y%d, %d(DX)", 8+v, 32*v)
		}
		a.op("ADDQ $64, DX")
	}, func() {})
}
