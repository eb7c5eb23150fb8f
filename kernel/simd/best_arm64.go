package simd

// Sets returns the tables that this processor can use, the best first.
func Sets() []*Set { return []*Set{setNEON(), Portable()} }

func nf4NEON(y []float32, indices []byte, scales []float32) {
	n := nf4Blocks(y, indices, scales)
	nf4BlocksNEON(y, indices, scales, n)
	nf4Rest(y, indices, scales, n)
}

func countsNEON(y []float32, list []byte, bits int, least, step float32) {
	counts(y, list, bits, least, step)
}
