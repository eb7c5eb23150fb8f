package ptx

// Matrices in shared memory, as a product of a warpgroup finds them.
//
// A descriptor says where 16-byte pieces of a matrix lie, of 8 bf16 that follow each other along x (rows of a or columns
// of b: x-major) or along k, of which a product takes 16. The layouts are those of the PTX ISA, "Strides" and
// "Canonical layouts" of wgmma. Without a swizzle, 8 pieces that lie one behind the other are a tile of 8 x 8, and two
// strides say where the next tiles are. With one, 8 rows of 2, 4 or 8 pieces each are a pattern, and of a piece's
// address the bits from the fifth on are changed by those from the eighth on, so that pieces of a
// column lie in different banks.
//
// For example, x-major in rows of 128 bytes: rows k and k+1 are 128 bytes apart, tiles of 8 k sbo bytes, and
// after 64 x the next ones are lbo bytes further on.
//
// Known weakness: patterns that do not begin at a multiple of their size (the base offset) are refused.

type descriptor struct {
	start, lbo, sbo uint64
	width           uint64 // pieces of a row of the pattern; 1: no swizzle
	alongX          bool
}

// descriptorOf reads a descriptor for n rows or columns.
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
	row, pattern, tile := 16*d.width, 128*d.width, uint64(32) // tile: bytes of a row that the product takes
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

// piece is the address of the 16 bytes that have an element.
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

// spot is an element's place in a matrix.
type spot struct{ x, k int }

// pieces goes through those of n rows or columns, each with its first element, and their addresses.
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

// lines are n rows or columns as numbers.
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
