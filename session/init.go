package session

import (
	"hash/fnv"
	"math"
	"math/rand/v2"
	"sync"

	"github.com/athanor-llm/athanor/model"
)

// initialBlock is the number of elements drawn from one random sequence. All cores draw blocks: one core
// would need a minute and a half for 8 billion elements.
const initialBlock = 1 << 20

// Initial fills dst with the initial values of a parameter, from index first on, a multiple of initialBlock. They depend
// on the seed and the parameter's name only, so neither the plan nor the order of filling matters.
func Initial(p model.Param, seed uint64, first int, dst []float32) {
	switch p.Init {
	case model.Zeros:
		clear(dst)
	case model.Ones:
		for i := range dst {
			dst[i] = 1
		}
	case model.Rates:
		h := fnv.New64a()
		h.Write([]byte(p.Name))
		r := rand.New(rand.NewPCG(seed, h.Sum64()))
		for i := range dst {
			dst[i] = float32(math.Log(0.01 + (16-0.01)*r.Float64()))
		}
	case model.Normal:
		h := fnv.New64a()
		h.Write([]byte(p.Name))
		h.Write(make([]byte, first/initialBlock))
		var all sync.WaitGroup
		for len(dst) > 0 {
			block, key := dst[:min(initialBlock, len(dst))], h.Sum64()
			all.Go(func() {
				r := rand.New(rand.NewPCG(seed, key))
				for i := range block {
					block[i] = float32(r.NormFloat64() * p.Std)
				}
			})
			dst = dst[len(block):]
			h.Write([]byte{0}) // another key for the next block
		}
		all.Wait()
	}
}
