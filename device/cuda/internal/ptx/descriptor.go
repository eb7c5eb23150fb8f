package ptx

// Matrices in shared memory, as a warpgroup's product addresses them.
//
// A descriptor gives the addresses of a matrix's 16-byte pieces: 8 bf16 that are adjacent along x (rows of a or
// columns of b: x-major) or along k, of which a product takes 16. The layouts are those of the PTX ISA, "Strides" and
// "Canonical layouts" of wgmma. Without a swizzle, 8 consecutive pieces are a tile of 8 x 8, and two strides lead to
// the next tiles. With one, 8 rows of 2, 4 or 8 pieces each are a pattern, and address bits from the fifth on are
// XORed with those from the eighth on, so that pieces of a column are in different banks.
//
// For example, x-major in rows of 128 bytes: rows k and k+1 are 128 bytes apart, tiles of 8 k sbo bytes, and blocks
// of 64 x lbo bytes.
//
// Known weakness: patterns that do not begin at a multiple of their size (with a base offset) are rejected.

type descriptor struct {
	start, lbo, sbo uint64
	width           uint64 // pieces per row of the pattern; 1: no swizzle
	alongX          bool
}

// descriptorOf decodes and checks a descriptor for n rows or columns.
func (b *block) descriptorOf(v uint64, alongX bool, n int) descriptor {
	field := func(at int) uint64 { return v >> at & 0x3fff << 4 }
	d := descriptor{start: field(0), lbo: field(16), sbo: field(32), width: []uint64{1, 8, 4, 2}[v>>62], alongX: alongX}
	const unused = 3<<14 | 3<<30 | 7<<46 | 0x3ff<<52
	if v&unused != 0 {
		b.fail("descriptor %#x has bits that mean nothing", v)
	}
	if d.width == 1 {
		return d
	}
	if v>>49&7 != 0 {
		b.fail("descriptor %#x has a base offset", v)
	}
	row, pattern, tile := 16*d.width, 128*d.width, uint64(32) // tile: bytes of a row that the product reads
	if alongX {
		tile = min(row, uint64(2*n))
	}
	if d.start%pattern+tile > row {
		b.fail("descriptor %#x: the matrix begins at %#x, which is not in the first row of a swizzle's pattern, or leaves it", v, d.start)
	}
	if (alongX || n > 8) && d.sbo%pattern != 0 || alongX && uint64(2*n) > row && d.lbo%pattern != 0 {
		b.fail("descriptor %#x: strides of %d and %d bytes do not lead from pattern to pattern", v, d.lbo, d.sbo)
	}
	return d
}

// piece returns the address of the 16 bytes that hold element (x, k).
func (d *descriptor) piece(x, k uint64) uint64 {
	at := d.start
	switch {
	case d.width == 1 && d.alongX:
		at += x/8*d.sbo + k%8*16 + k/8*d.lbo
	case d.width == 1:
		at += x%8*16 + x/8*d.sbo + k/8*d.lbo
	case d.alongX:
		at += x/8%d.width*16 + x/8/d.width*d.lbo + k%8*16*d.width + k/8*d.sbo
	default:
		at += x%8*16*d.width + x/8*d.sbo + k/8*16
	}
	return at ^ at>>7&(d.width-1)<<4
}

// spot is an element's position in a matrix.
type spot struct{ x, k int }

// pieces iterates over the pieces of n rows or columns: the position of each one's first element, and its address.
func (d *descriptor) pieces(first, n int) func(func(spot, uint64) bool) {
	stepX, stepK := 1, 8
	if d.alongX {
		stepX, stepK = 8, 1
	}
	return func(yield func(spot, uint64) bool) {
		for x := first; x < first+n; x += stepX {
			for k := 0; k < 16; k += stepK {
				if !yield(spot{x, k}, d.piece(uint64(x), uint64(k))) {
					return
				}
			}
		}
	}
}

// lines returns the values of n rows or columns.
func (b *block) lines(d *descriptor, first, n int) [][16]float64 {
	list := make([][16]float64, n)
	for s, at := range d.pieces(first, n) {
		for e := range 8 {
			v := half(uint64(b.shared[at+uint64(2*e)])|uint64(b.shared[at+uint64(2*e)+1])<<8, 0)
			if d.alongX {
				list[s.x-first+e][s.k] = v
			} else {
				list[s.x-first][s.k+e] = v
			}
		}
	}
	return list
}
