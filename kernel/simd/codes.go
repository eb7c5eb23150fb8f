package simd

import (
	"math"
	"slices"
)

// Codes is a set of 256 ascending values, see graph.MomentBlock, with what vector instructions need to find the one nearest
// to a number. They take the number's magnitude, and count values from 0 on:
//
//	upper 16 bits  ->  decimal place d, nearly  ->  trunc(magnitude*Slope[d] + Offset[d]), at most Last[d]
//	               ->  +1 if above the middle between this value and the next
//
// Values of a decimal place have equal distances, so the first line finds the value below, and the second the nearest. A
// place may begin some hundredths too early or too late: its first value is further away from the one before than its
// others are from each other.
//
// Assembly knows the fields' offsets.
type Codes struct {
	Middles     [256]uint32   // bits of the middle between the value of a count and the next one
	ValueBytes  [4][256]uint8 // the first bytes of all values, then the second ones
	MiddleBytes [4][256]uint8
	Slope       [16]float32 // of the decimal places; from the last one on it is repeated
	Offset      [16]float32
	Last        [16]int32
	Least       float32 // numbers below it are taken for it
	Zero        int32   // index of the value 0
}

// places is the number of decimal places.
const places = 7

// NewCodes returns the set of these values.
func NewCodes(values *[256]float32) *Codes {
	c := &Codes{Zero: int32(slices.Index(values[:], 0))}
	if c.Zero > 0 {
		c.Least = float32(math.Inf(-1))
	}
	above := values[c.Zero:]
	for i := range c.Middles {
		c.Middles[i] = math.Float32bits(float32(math.Inf(1)))
		if i+1 < len(above) {
			c.Middles[i] = math.Float32bits((above[i] + above[i+1]) / 2)
		}
	}
	for k := range 4 {
		for i, x := range values {
			c.ValueBytes[k][i] = uint8(math.Float32bits(x) >> (8 * k))
			c.MiddleBytes[k][i] = uint8(c.Middles[i] >> (8 * k))
		}
	}
	first, n := 1, (len(above)-2)/(1<<places-1) // without 0 and 1
	for d := range c.Slope {
		if d < places {
			last := first + n - 1
			slope := 1 / float64(above[first])
			if n > 1 {
				slope = float64(n-1) / (float64(above[last]) - float64(above[first]))
			}
			c.Slope[d], c.Offset[d] = float32(slope), float32(float64(first)-slope*float64(above[first]))
			c.Last[d] = int32(last)
			first, n = last+1, 2*n
		} else {
			c.Slope[d], c.Offset[d], c.Last[d] = c.Slope[d-1], c.Offset[d-1], c.Last[d-1]
		}
	}
	return c
}
