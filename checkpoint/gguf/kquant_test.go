package gguf

import (
	"encoding/binary"
	"math"
	"os"
	"testing"

	"github.com/athanor-llm/athanor/internal/float16"
)

// hardBlocks are those of tools/gguf_fixtures.py.
func hardBlocks() (blocks [][]float32) {
	x := make([]float32, 16*superBlock)
	for i := range x {
		n := 0
		for j := range 4 {
			n += (i*7919*(j+1)+j*12345)%1009 - 504
		}
		x[i] = float32(n) / 4096
	}
	for r := range 16 {
		b := x[r*superBlock:][:superBlock]
		for i := range b {
			switch a := float32(math.Abs(float64(b[i]))); {
			case r == 1, r == 2 && i < 32:
				b[i] = 0
			case r == 3:
				b[i] = a
			case r == 4:
				b[i] = -a
			case r == 5:
				b[i] = 0.5
			case r == 6 && i == 7:
				b[i] = 100
			case r == 7:
				b[i] *= 0x1p-40
			}
		}
		blocks = append(blocks, b)
	}
	return blocks
}

// fromQ4K and fromQ6K return a block's numbers, by the description of the format.
func fromQ4K(b []byte) []float64 {
	d, dmin := number(b), number(b[2:])
	packed, q := b[4:16], b[16:]
	x := make([]float64, superBlock)
	for i := range x {
		j := i / 32
		scale, low := packed[j&3]&63, packed[j&3+4]&63
		if j >= 4 {
			scale, low = packed[j+4]&15|packed[j-4]>>6<<4, packed[j+4]>>4|packed[j]>>6<<4
		}
		x[i] = d*float64(scale)*float64(q[i/64*32+i%32]>>(i/32%2*4)&15) - dmin*float64(low)
	}
	return x
}

func fromQ6K(b []byte) []float64 {
	d := number(b[208:])
	x := make([]float64, superBlock)
	for i := range x {
		half, at := i/128, i%128
		q := b[half*64+at%64]>>(at/64*4)&15 | b[128+half*32+at%32]>>(at/32*2)&3<<4
		x[i] = d * float64(int8(b[192+i/16])) * float64(int(q)-32)
	}
	return x
}

func number(b []byte) float64 { return float64(float16.FromF16(binary.LittleEndian.Uint16(b))) }

// TestKQuants: blocks are as near to the numbers as those of ggml's own code, and nearly all have its bytes. (It is compiled with
// multiplications and additions that are rounded once.)
func TestKQuants(t *testing.T) {
	theirs, err := os.ReadFile("testdata/kquants.bin")
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []struct {
		Type
		numbers func([]byte) []float64
		most    float64 // error of ordinary blocks, relative to their norm
	}{{Q4K, fromQ4K, 0.08}, {Q6K, fromQ6K, 0.025}} {
		same := 0
		for r, x := range hardBlocks() {
			want := theirs[:types[kind.Type].bytes]
			theirs = theirs[len(want):]
			got := kind.encode(x)
			if len(got) != len(want) {
				t.Fatalf("%v: %d bytes, want %d", kind.Type, len(got), len(want))
			}
			for i := range got {
				if got[i] == want[i] || r == 2 || r == 6 || r == 7 { // where a scale is zero, what it multiplies is free
					same++
				}
			}
			ours, norm := miss(kind.numbers(got), x)
			their, _ := miss(kind.numbers(want), x)
			if ours > 1.001*their+1e-12*norm || r > 7 && ours > kind.most*norm {
				t.Errorf("%v: block %d misses by %.3g, ggml's by %.3g, of %.3g", kind.Type, r, ours, their, norm)
			}
		}
		if n := 16 * types[kind.Type].bytes; same < n*99/100 {
			t.Errorf("%v: %d of %d bytes are ggml's", kind.Type, same, n)
		}
	}
}

// miss returns the norm of a difference, and that of x.
func miss(got []float64, x []float32) (difference, norm float64) {
	for i, v := range x {
		difference += (got[i] - float64(v)) * (got[i] - float64(v))
		norm += float64(v) * float64(v)
	}
	return math.Sqrt(difference), math.Sqrt(norm)
}
