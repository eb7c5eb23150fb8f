package alloc

import (
	"math/rand/v2"

	"github.com/athanor-llm/athanor/alloc/parts"
)

// randomItems returns up to n items that leave no moment unused, compressed.
func randomItems(rng *rand.Rand, n int, steps int64) ([]parts.Item, int32) {
	var buffers []Buffer
	for range n {
		lower := rng.Int64N(steps)
		buffers = append(buffers, Buffer{Lower: lower, Upper: lower + 1 + rng.Int64N(steps), Size: 1 + rng.Int64N(20), Fixed: Free})
	}
	return compress(buffers)
}
