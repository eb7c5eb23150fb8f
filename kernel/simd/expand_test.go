package simd

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestExpand compares with a loop, and checks that nothing is read or written beyond the ends.
func TestExpand(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 9))
	for _, v := range Sets() {
		for n := range 40 {
			if v.Expand == nil {
				break
			}
			words := make([]int32, n)
			var x []float32
			want := make([]float32, 32*n+1)
			for i := range words {
				words[i] = int32([]uint32{r.Uint32(), r.Uint32() & r.Uint32(), 0, ^uint32(0)}[r.IntN(4)])
				for k := range 32 {
					if uint32(words[i])>>k&1 == 1 {
						x = append(x, float32(len(x)+1))
						want[32*i+k] = x[len(x)-1]
					}
				}
			}
			got := slices.Repeat([]float32{-1}, 32*n+1)
			got[32*n] = 0
			v.Expand(got[:32*n], slices.Clip(x), words)
			if !slices.Equal(got, want) {
				t.Fatalf("%s, %d words: got %v, want %v", v.Name, n, got, want)
			}
		}
	}
}
