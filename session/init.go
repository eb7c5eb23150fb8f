package session

import (
	"hash/fnv"
	"math/rand/v2"

	"github.com/athanor-llm/athanor/model"
)

// Initial fills dst with the initial values of a parameter. They depend on the
// seed and the parameter's name only, so neither the plan nor the order of
// filling matters.
func Initial(p model.Param, seed uint64, dst []float32) {
	switch p.Init {
	case model.Zeros:
		clear(dst)
	case model.Ones:
		for i := range dst {
			dst[i] = 1
		}
	case model.Normal:
		h := fnv.New64a()
		h.Write([]byte(p.Name))
		r := rand.New(rand.NewPCG(seed, h.Sum64()))
		for i := range dst {
			dst[i] = float32(r.NormFloat64() * p.Std)
		}
	}
}
