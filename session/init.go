package session

import (
	"hash/fnv"
	"math"
	"math/rand/v2"
	"sync"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/exec"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/optimizer"
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
	case model.Ones, model.Lengths: // whoever knows the weights sets the latter
		for i := range dst {
			dst[i] = 1
		}
	case model.Filled:
		for i := range dst {
			dst[i] = float32(p.Std)
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

// DrawState writes what a parameter begins with to a rank's part of it. The range begins at a multiple of initialBlock, and is a
// block of numbers that are drawn one by one, or the whole parameter.
func DrawState(a *exec.Arenas, s device.StateRange, from device.Beginning) error {
	values := make([]float32, s.N)
	Initial(model.Param{Name: from.Name, Init: model.Init(from.Init), Std: from.Std}, from.Seed, s.First, values)
	return a.WriteHome(s.Param, s.Kind, s.First, values)
}

// draw has the other processes, which know the rule by which a parameter begins, draw n elements of it from index first on.
// It reports whether they do, and whether a rank here is left that has some of them.
func (v *Savers) draw(param, first, n int, seed uint64) (done, here bool) {
	p := &v.session.Graph.Params[param]
	if first%initialBlock != 0 || p.Init == model.Rates && n > initialBlock {
		return false, true
	}
	from := device.Beginning{Name: p.Name, Init: uint8(p.Init), Std: p.Std, Seed: seed}
	for end := first + n; first < end; first += initialBlock {
		s := device.StateRange{Param: param, Kind: optimizer.Weights, As: graph.F32, First: first, N: min(initialBlock, end-first)}
		for r, process := range v.process {
			e := v.session.ranks[r].engines[0]
			switch {
			case e.Keeps(s).N == 0:
			case process == 0:
				here = true
			default:
				e.Draw(from, s)
			}
		}
	}
	return true, here
}
