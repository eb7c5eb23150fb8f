package alloc

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// Whatever they start from, crests leave a valid packing, no higher than before,
// deterministically.
func TestCrestsPackEverything(t *testing.T) {
	lowered, rounds := 0, testkit.Count(4, 25, 100)
	for seed := range uint64(rounds) {
		rng := rand.New(rand.NewPCG(seed, 41))
		l, p, start := randomLeaf(rng, seed%2 == 1)
		before, target, effort := slices.Clone(start.offsets), slices.Max(loads(l.items, l.sections)), rng.Int64N(1_000_000)
		got := recrest(t.Context(), l, start, target, effort)
		if err := Validate(p, Solution{Offsets: got.offsets, Height: got.height}); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if got.height > start.height || !slices.Equal(start.offsets, before) {
			t.Fatalf("seed %d: from height %d to %d", seed, start.height, got.height)
		}
		if again := recrest(t.Context(), l, start, target, effort); !slices.Equal(again.offsets, got.offsets) {
			t.Fatalf("seed %d: another packing the second time", seed)
		}
		if got.height < start.height {
			lowered++
		}
	}
	if lowered < rounds/2 {
		t.Errorf("only %d of %d packings were lowered", lowered, rounds)
	}
}

// A bite leaves a packing that is no worse, moves only what lay within its pit,
// and knows the tops.
func TestBiteIsLocal(t *testing.T) {
	moved := 0
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 42))
		l, p, start := randomLeaf(rng, seed%2 == 1)
		c := newCrest(l, start)
		c.spare = slices.Max(loads(l.items, l.sections))
		for range 20 {
			c.effort = 1_000_000
			lo := rng.Int32N(l.sections)
			pit := pit{lo: lo, hi: lo + 1 + rng.Int32N(l.sections-lo), height: rng.Int64N(start.height)}
			pit.from = pit.lo + rng.Int32N(pit.hi-pit.lo)
			pit.to, pit.depth = pit.from+1+rng.Int32N(pit.hi-pit.from), rng.Int64N(pit.height+1)
			before, harm := slices.Clone(c.offsets), c.harm(c.top)
			c.bite(pit)
			q := packing{offsets: c.offsets, height: slices.Max(c.top)}
			if err := Validate(p, Solution{Offsets: q.offsets, Height: q.height}); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			if !slices.Equal(c.top, tops(l, q, 0)[:l.sections]) {
				t.Fatalf("seed %d: the tops are %v, not %v", seed, tops(l, q, 0), c.top)
			}
			if c.harm(c.top) > harm*(1+1e-9) {
				t.Fatalf("seed %d: harm rose from %g to %g", seed, harm, c.harm(c.top))
			}
			for i := range l.items {
				if it := &l.items[i]; c.offsets[i] != before[i] {
					moved++
					if it.lo < pit.lo || it.hi > pit.hi || before[i] < pit.bottom(it.lo, it.hi) || c.offsets[i] < pit.depth {
						t.Fatalf("seed %d: item %d, alive in [%d, %d), moved from %d to %d; open was %+v",
							seed, i, it.lo, it.hi, before[i], c.offsets[i], pit)
					}
				}
			}
		}
	}
	if moved < 1000 {
		t.Errorf("only %d items were moved", moved)
	}
}
