package graph

import (
	"crypto/sha256"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
)

// e4m3 are the numbers of E4M3 that are not negative, by their codes: the table of 2209.05433, section 3.
func e4m3() (list []float64) {
	for code := range 127 {
		exponent, mantissa := code/8, float64(code%8)
		if exponent == 0 {
			list = append(list, mantissa/8*math.Exp2(-6))
		} else {
			list = append(list, (1+mantissa/8)*math.Exp2(float64(exponent-7)))
		}
	}
	return list
}

// TestRound8: every number of bf16 within E4M3 is rounded to the code that PyTorch rounds it to, whatever the power of two.
func TestRound8(t *testing.T) {
	want, err := os.ReadFile("../testdata/torch/e4m3.sha256")
	if err != nil {
		t.Fatal(err)
	}
	code := map[float64]byte{}
	for i, v := range e4m3() {
		code[v] = byte(i)
	}
	for _, scale := range []float32{1, 0x1p48, 0x1p-119, 0x1p5} {
		h := sha256.New()
		for bits := range 1 << 16 {
			x := math.Float32frombits(uint32(bits) << 16)
			if !(math.Abs(float64(x)) <= MaxE4M3) {
				continue
			}
			y := float64(Round8(x/scale, scale)) * float64(scale)
			if x/scale*scale != x { // too small for fp32
				y = 0
			}
			c, ok := code[math.Abs(y)]
			if !ok {
				t.Fatalf("%v became %v, which E4M3 does not have", x, y)
			}
			h.Write([]byte{c | byte(bits>>8)&128})
		}
		if got := fmt.Sprintf("%x", h.Sum(nil)); got != strings.TrimSpace(string(want)) {
			t.Errorf("with scale %v: codes differ from PyTorch's", scale)
		}
	}
}

// TestScale8: what is scaled by the magnitude that it reaches is at most MaxE4M3 and more than half of that; numbers that are not finite
// leave nothing finite.
func TestScale8(t *testing.T) {
	for bits := range 1 << 15 {
		for low := range uint32(2) {
			x := math.Float32frombits(uint32(bits)<<16 + low)
			scale := float64(Scale8(x))
			switch reached := max(float64(x), 1e-12) * scale; {
			case x-x != 0:
				if scale == scale {
					t.Errorf("%v has scale %v", x, scale)
				}
			case reached > MaxE4M3 || reached <= MaxE4M3/2:
				t.Errorf("%v times %v is %v", x, scale, reached)
			}
			if frac, _ := math.Frexp(scale); scale == scale && frac != 0.5 {
				t.Errorf("%v has scale %v", x, scale)
			}
		}
	}
	if y := Round8(1, Scale8(float32(math.Inf(1)))); y == y {
		t.Errorf("1 beside an infinity became %v", y)
	}
}
