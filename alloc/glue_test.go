package alloc_test

import (
	"math/rand/v2"
	"testing"

	"github.com/athanor-llm/athanor/alloc"
	"github.com/athanor-llm/athanor/alloc/generate"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// Coarse cuts, full of coincidences, are beyond the search alone.
func TestCoarseCutsAreSolved(t *testing.T) {
	for _, c := range []struct {
		buffers         int
		steps, capacity int64
	}{{200, 200, 1024}, {300, 200, 1024}, {200, 60, 200}, {300, 60, 200}} {
		for seed := range uint64(5) {
			p := generate.Guillotine(rand.New(rand.NewPCG(seed, 77)), c.buffers, c.steps, c.capacity)
			p.Capacity = 0
			if s := pack(t, p, alloc.Options{Nodes: 2_000_000}); s.Height != c.capacity || !s.Optimal {
				t.Errorf("seed %d, %v: height %d", seed, c, s.Height)
			}
		}
	}
}

// At a size where nothing can be searched, joints alone find the optimum: also
// where few sizes leave many to choose from, and where no two pieces fit.
func TestManyCutsAreSolved(t *testing.T) {
	for _, c := range testkit.Sample([]struct {
		name     string
		cut      func(rng *rand.Rand, n int, steps, capacity int64) alloc.Problem
		buffers  int
		capacity int64
	}{
		{"few sizes", generate.Guillotine, 5_000, 80},
		{"guillotine", generate.Guillotine, 20_000, 1 << 20},
		{"pinwheel", generate.Pinwheel, 20_000, 1 << 20},
	}, 1, 2) {
		for seed := range testkit.Count(1, 1, 2) {
			p := c.cut(rand.New(rand.NewPCG(uint64(seed), 13)), c.buffers, 1<<20, c.capacity)
			p.Capacity = 0
			s, err := alloc.Pack(background, p, alloc.Options{Nodes: 20_000})
			if err != nil || s.Height != c.capacity || !s.Optimal {
				t.Errorf("%s, seed %d: height %d of %d, %v", c.name, seed, s.Height, c.capacity, err)
			}
		}
	}
}

// Alignment forbids some joints; sizes that are not a multiple must lie on top.
func TestGlueHeedsAlignment(t *testing.T) {
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 12))
		p := generate.Guillotine(rng, 60, 40, 64)
		for i := range p.Buffers {
			p.Buffers[i].Align = 4
			if p.Buffers[i].Size%8 == 0 {
				p.Buffers[i].Align = 8
			}
		}
		p.Capacity = 0
		pack(t, p, alloc.Options{Nodes: 5000})
	}
}

// Five pieces round a centre: no two can be glued, and the search takes over.
func TestPinwheel(t *testing.T) {
	p := alloc.Problem{}
	for _, b := range [][3]int64{{0, 4, 2}, {4, 6, 4}, {2, 6, 2}, {0, 2, 4}, {2, 4, 2}} {
		p.Buffers = append(p.Buffers, alloc.Buffer{Lower: b[0], Upper: b[1], Size: b[2], Fixed: alloc.Free})
	}
	if s := pack(t, p, alloc.Options{Nodes: -1}); s.Height != 6 || !s.Optimal {
		t.Errorf("height %d", s.Height)
	}
}
