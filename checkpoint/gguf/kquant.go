package gguf

import (
	"encoding/binary"
	"math"

	"github.com/athanor-llm/athanor/internal/float16"
)

// K-quants: blocks of 256 numbers whose parts have scales that are themselves small integers (ggml-org/ggml,
// ggml-quants.c: quantize_row_q4_K_ref and quantize_row_q6_K_ref, whose choices these are).
//
//	Q4_K  8 parts of 32: x = d*scale*q - dmin*min;  q has 4 bits, scale and min have 6, d and dmin are F16      4.5 bits a number
//	Q6_K  16 parts of 16: x = d*scale*(q-32);       q has 6 bits, scale has 8, d is F16                         6.56 bits
//
// A part's scale is found by trying some around the one at which its range just fits: for each, numbers are rounded, and then
// the scale (and offset) that fits what they were rounded to best, in weighted squares, is computed; the best try counts.
// Numbers of greater magnitude weigh more.
//
// Products are rounded before they are added, as conversions to float32 say, so the bits do not depend on the processor.
//
// Known weakness: there is no importance matrix: all columns count alike.

const (
	superBlock = 256
	q4Part     = 32
	q6Part     = 16
	tiny       = 1e-15 // below it, a part's magnitude is taken for zero
)

// nearest rounds halves to even.
func nearest(x float32) int { return int(math.RoundToEven(float64(x))) }

func clamp(x, least, most int) int { return max(least, min(most, x)) }

// line is x = scale*q + low, with low <= 0.
type line struct{ scale, low float32 }

// weightedError returns the sum of weighted squares by which a line with the given q misses x.
func (l line) weightedError(x, weights []float32, q []uint8) (sum float32) {
	for i, v := range x {
		miss := float32(l.scale*float32(q[i])) + l.low - v
		sum += float32(weights[i] * float32(miss*miss))
	}
	return sum
}

// fitLine finds a line and q in 0..top for a part.
func fitLine(x, weights []float32, top int) line {
	low, high := min(x[0], 0), x[0]
	var w, wx float32
	for i, v := range x {
		low, high = min(low, v), max(high, v)
		w += weights[i]
		wx += float32(weights[i] * v)
	}
	if high == low {
		return line{0, low}
	}
	var q [q4Part]uint8
	round := func(inverse float32) {
		for i, v := range x {
			q[i] = uint8(clamp(nearest(float32(inverse*(v-low))), 0, top))
		}
	}
	inverse := float32(top) / (high - low)
	round(inverse)
	best := line{1 / inverse, low}
	least := best.weightedError(x, weights, q[:])
	for try := range 21 {
		round((-1 + float32(0.1*float32(try)) + float32(top)) / (high - low))
		var wq, wqq, wxq float32
		for i, v := range x {
			l := float32(q[i])
			wq += float32(weights[i] * l)
			wqq += float32(float32(weights[i]*l) * l)
			wxq += float32(float32(weights[i]*l) * v)
		}
		det := float32(w*wqq) - float32(wq*wq)
		if det <= 0 {
			continue
		}
		l := line{(float32(w*wxq) - float32(wx*wq)) / det, (float32(wqq*wx) - float32(wq*wxq)) / det}
		if l.low > 0 {
			l = line{wxq / wqq, 0}
		}
		if err := l.weightedError(x, weights, q[:]); err < least {
			least, best, low = err, l, l.low // further tries begin where this line does
		}
	}
	return best
}

// appendQ4K appends a block of Q4_K.
func appendQ4K(b []byte, x []float32) []byte {
	const parts, top = superBlock / q4Part, 63
	var lines [parts]line
	var most line // the largest scale and offset
	for j := range parts {
		part := x[j*q4Part:][:q4Part]
		var squares float32
		for _, v := range part {
			squares += float32(v * v)
		}
		mean := float32(math.Sqrt(float64(squares / q4Part)))
		var weights [q4Part]float32
		for i, v := range part {
			weights[i] = mean + float32(math.Abs(float64(v)))
		}
		lines[j] = fitLine(part, weights[:], 15)
		lines[j].low = -lines[j].low
		most.scale, most.low = max(most.scale, lines[j].scale), max(most.low, lines[j].low)
	}
	d, dmin := float16.ToF16(most.scale/top), float16.ToF16(most.low/top)
	var scales, mins [parts]int
	var packed [12]byte
	for j, l := range lines {
		if most.scale > 0 {
			scales[j] = min(nearest(float32(top/most.scale)*l.scale), top)
		}
		if most.low > 0 {
			mins[j] = min(nearest(float32(top/most.low)*l.low), top)
		}
		if j < 4 {
			packed[j], packed[j+4] = byte(scales[j]), byte(mins[j])
			continue
		}
		packed[j+4] = byte(scales[j]&15 | mins[j]&15<<4)
		packed[j-4] |= byte(scales[j] >> 4 << 6)
		packed[j] |= byte(mins[j] >> 4 << 6)
	}
	var q [superBlock]byte
	for i, v := range x {
		j := i / q4Part
		if scale := float32(float16.FromF16(d) * float32(scales[j])); scale != 0 {
			q[i] = byte(clamp(nearest((v+float32(float16.FromF16(dmin)*float32(mins[j])))/scale), 0, 15))
		}
	}
	b = binary.LittleEndian.AppendUint16(b, d)
	b = binary.LittleEndian.AppendUint16(b, dmin)
	b = append(b, packed[:]...)
	for at := 0; at < superBlock; at += 64 {
		for i := range 32 {
			b = append(b, q[at+i]|q[at+32+i]<<4)
		}
	}
	return b
}

// fitScale returns the scale of a part for q in -32..31, of the sign at which the number of the largest magnitude is -32.
func fitScale(x []float32) (best float32) {
	const half = 32
	var most, magnitude float32
	for _, v := range x {
		if a := float32(math.Abs(float64(v))); a > magnitude {
			most, magnitude = v, a
		}
	}
	if magnitude < tiny {
		return 0
	}
	var gain float32 // scale * sum of weights*x*q: the more, the smaller the error
	for _, try := range [...]int{0, -9, -8, -7, -6, -5, -4, -3, -2, -1, 1, 2, 3, 4, 5, 6, 7, 8, 9} {
		inverse := -(half + float32(0.1*float32(try))) / most
		var wxq, wqq float32
		for _, v := range x {
			q := float32(clamp(nearest(float32(inverse*v)), -half, half-1))
			w := float32(v * v)
			wxq += float32(float32(w*v) * q)
			wqq += float32(float32(w*q) * q)
		}
		if wqq > 0 && (try == 0 || float32(wxq*wxq) > float32(gain*wqq)) {
			best = wxq / wqq
			gain = float32(best * wxq)
		}
	}
	return best
}

// appendQ6K appends a block of Q6_K.
func appendQ6K(b []byte, x []float32) []byte {
	const parts = superBlock / q6Part
	var scales [parts]float32
	var most float32
	for j := range parts {
		scales[j] = fitScale(x[j*q6Part:][:q6Part])
		if math.Abs(float64(scales[j])) > math.Abs(float64(most)) {
			most = scales[j]
		}
	}
	if math.Abs(float64(most)) < tiny {
		return append(b, make([]byte, types[Q6K].bytes)...)
	}
	inverse := -128 / most
	d := float16.ToF16(1 / inverse)
	var q [superBlock]byte
	var small [parts]byte
	for j := range parts {
		scale := min(127, nearest(float32(inverse*scales[j])))
		small[j] = byte(int8(scale))
		by := float32(float16.FromF16(d) * float32(scale))
		for i := j * q6Part; i < (j+1)*q6Part; i++ {
			q[i] = 32
			if by != 0 {
				q[i] = byte(clamp(nearest(x[i]/by), -32, 31) + 32)
			}
		}
	}
	var low, high []byte
	for at := 0; at < superBlock; at += 128 {
		for i := range 64 {
			low = append(low, q[at+i]&15|q[at+64+i]&15<<4)
		}
		for i := range 32 {
			high = append(high, q[at+i]>>4|q[at+32+i]>>4<<2|q[at+64+i]>>4<<4|q[at+96+i]>>4<<6)
		}
	}
	b = append(append(append(b, low...), high...), small[:]...)
	return binary.LittleEndian.AppendUint16(b, d)
}
