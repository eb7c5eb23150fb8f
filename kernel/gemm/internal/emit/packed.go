package emit

import "fmt"

// Offsets of the fields of gemm.strip for weights in 4 bits.
const (
	stripLevels = 8*iota + stripAdjacent + 8
	stripScales
)

// packedBlock is the number of weights that share a scale; words hold 8 indices. packedRows is the greatest height
// of the kernels.
const (
	packedBlock = 64
	packedWords = packedBlock / 8
	packedRows  = 3
)

// walkPacked reads a block's indices of each of 16 rows per step, twice. Rows are adjacent but for their scales.
var walkPacked = walker{rows: stripRows, bytes: packedBlock / 2, ptr: walk512.ptr, run: 2 * stripRows * (packedBlock/2 + 4)}

// packedStrips512 writes columnStrips512 for two strips at a time of a B of 4-bit indices, two in a byte, into a
// table of 16 levels; each block of 64 has a scale. (The sums of one strip would wait for each other.) Words of 8
// indices are transposed, so that lanes are columns of C: the scales of a step are a vector, and looking up needs no
// mask, as VPERMPS looks at the last 4 bits only. If units are pairs, levels times scales are rounded as weights in
// bf16 are.
func packedStrips512(a *asm, name string, height int, pairs bool) {
	w, sums := walkPacked, regs("Z", 32-2*packedRows, 2*height)
	const levels, order, elem = "Z24", "Z25", "Z22"
	scales := []string{"Z20", "Z21"}
	w.emit(a, name, func() {
		for m, sum := range sums {
			a.op("VMOVUPS %d(DX), %s", 64*m, sum)
		}
		a.op("MOVQ %d(DI), DX", stripLevels)
		a.op("VMOVUPS (DX), %s", levels)
		a.op("MOVQ %d(DI), DX", stripScales)
		a.op("MOVQ R15, BX")
		a.op("SHLQ $4, BX")
		if pairs {
			a.op("VMOVDQU32 interleave<>(SB), %s", order)
		}
	}, func() {
		words := [2][]string{packedNetwork(a, w, regs("Z", 0, 8), regs("Z", 8, 4))}
		move := func(how string) { // to the other strip
			for _, p := range w.ptr.pointers {
				a.op("%s BX, %s", how, p)
			}
		}
		move("ADDQ")
		words[1] = packedNetwork(a, w, append(regs("Z", 12, 4), regs("Z", 0, 4)...), regs("Z", 16, 4))
		for strip, scale := range scales {
			a.op("VMOVUPS %d(DX), %s", 64*strip, scale)
		}
		a.op("ADDQ $128, DX")
		for p := range packedBlock / 2 {
			for strip := range scales {
				t := regs("Z", 12+2*strip, 2) // weights 2p and 2p+1 of each row
				for i := range t {
					from := words[strip][p/4]
					if shift := p%4*8 + 4*i; shift > 0 {
						a.op("VPSRLD $%d, %s, %s", shift, from, t[i])
						from = t[i]
					}
					a.op("VPERMPS %s, %s, %s", levels, from, t[i])
					a.op("VMULPS %s, %s, %s", scales[strip], t[i], t[i])
				}
				if pairs {
					a.evex(3, 0x72, "VCVTNE2PS2BF16", t[0], t[1], t[0]) // the second to the upper half
					a.op("VPERMW %s, %s, %s", t[0], order, t[0])
				}
			}
			for m := range height {
				if pairs {
					a.op("VPBROADCASTD %d(R13), %s", 4*(p*height+m), elem)
					dpbf16(a, elem, "Z12", sums[m])
					dpbf16(a, elem, "Z14", sums[height+m])
					continue
				}
				for i := range 2 {
					a.op("VBROADCASTSS %d(R13), %s", 4*((2*p+i)*height+m), elem)
					a.op("VFMADD231PS %s, Z%d, %s", elem, 12+i, sums[m])
					a.op("VFMADD231PS %s, Z%d, %s", elem, 14+i, sums[height+m])
				}
			}
		}
		move("SUBQ")
		units := packedBlock
		if pairs {
			units /= 2
		}
		a.op("ADDQ $%d, R13", 4*units*height)
	}, func() {
		a.op("MOVQ %d(DI), DX", stripC)
		for m, sum := range sums {
			a.op("VMOVUPS %s, %d(DX)", sum, 64*m)
		}
	})
}

// packedNetwork loads 8 words of each of 16 rows to eight registers, and returns those that hold word by word, in
// the order of rows: four more, and the last four. It uses Z20 to Z23.
func packedNetwork(a *asm, w walker, r, more []string) []string {
	for i := range r { // rows 0 to 3 and, in upper halves, 4 to 7; then 8 to 11 and 12 to 15
		row := i/4*8 + i%4
		a.op("VMOVDQU %s, Y%s", w.at(row), r[i][1:])
		a.op("VINSERTI64X4 $1, %s, %s, %s", w.at(row+4), r[i], r[i])
	}
	t := regs("Z", 20, 4)
	lanes4(a, r[:4], t)
	lanes4(a, r[4:], t)
	for j := range 4 {
		a.op("VSHUFF32X4 $0x88, %s, %s, %s", r[4+j], r[j], more[j])
		a.op("VSHUFF32X4 $0xdd, %s, %s, %s", r[4+j], r[j], r[4+j])
	}
	return append(more, r[4:]...)
}

// packed512 writes the kernels of all heights for one kind of element, their table, and the order that makes pairs
// of two halves of a register.
func packed512(a *asm, suffix string, pairs bool) {
	for h := 1; h <= packedRows; h++ {
		packedStrips512(a, fmt.Sprintf("packed%sx%d", suffix, h), h, pairs)
	}
	a.stubs.list("packedKernels"+suffix, "strip", "packed"+suffix+"x", packedRows, "")
	if !pairs {
		return
	}
	a.raw("\n")
	for i := range 16 {
		a.raw("DATA interleave<>+%d(SB)/4, $0x%08x\n", 4*i, (16+i)<<16|i)
	}
	a.raw("GLOBL interleave<>(SB), RODATA|NOPTR, $64\n")
}
