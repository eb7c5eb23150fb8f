package pack

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/alloc"
	"github.com/athanor-llm/athanor/alloc/generate"
	"github.com/athanor-llm/athanor/alloc/parts"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// Whatever they start from, crests leave a valid packing, no higher than before,
// deterministically.
func TestCrestsPackEverything(t *testing.T) {
	lowered, rounds := 0, testkit.Count(2, 10, 100)
	for seed := range uint64(rounds) {
		rng := rand.New(rand.NewPCG(seed, 41))
		l, p, start := randomLeaf(rng, seed%2 == 1)
		before, target, effort := slices.Clone(start.Offsets), slices.Max(parts.Loads(l.Items, l.Sections)), rng.Int64N(1_000_000)
		got := lowerByCrests(t.Context(), l, start, target, effort)
		if err := generate.Validate(p, alloc.Solution{Offsets: got.Offsets, Height: got.Height}); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if got.Height > start.Height || !slices.Equal(start.Offsets, before) {
			t.Fatalf("seed %d: from height %d to %d", seed, start.Height, got.Height)
		}
		if again := lowerByCrests(t.Context(), l, start, target, effort); !slices.Equal(again.Offsets, got.Offsets) {
			t.Fatalf("seed %d: another packing the second time", seed)
		}
		if got.Height < start.Height {
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
		c.spare = slices.Max(parts.Loads(l.Items, l.Sections))
		for range 20 {
			c.effort = 1_000_000
			lo := rng.Int32N(l.Sections)
			pit := pit{lo: lo, hi: lo + 1 + rng.Int32N(l.Sections-lo), height: rng.Int64N(start.Height)}
			pit.from = pit.lo + rng.Int32N(pit.hi-pit.lo)
			pit.to, pit.depth = pit.from+1+rng.Int32N(pit.hi-pit.from), rng.Int64N(pit.height+1)
			before, harm := slices.Clone(c.offsets), c.harm(c.top)
			c.repackPit(pit)
			q := parts.Packing{Offsets: c.offsets, Height: slices.Max(c.top)}
			if err := generate.Validate(p, alloc.Solution{Offsets: q.Offsets, Height: q.Height}); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			if !slices.Equal(c.top, tops(l, q, 0)[:l.Sections]) {
				t.Fatalf("seed %d: the tops are %v, not %v", seed, tops(l, q, 0), c.top)
			}
			if c.harm(c.top) > harm*(1+1e-9) {
				t.Fatalf("seed %d: harm rose from %g to %g", seed, harm, c.harm(c.top))
			}
			for i := range l.Items {
				if it := &l.Items[i]; c.offsets[i] != before[i] {
					moved++
					if it.Lo < pit.lo || it.Hi > pit.hi || before[i] < pit.bottom(it.Lo, it.Hi) || c.offsets[i] < pit.depth {
						t.Fatalf("seed %d: item %d, alive in [%d, %d), moved from %d to %d; open was %+v",
							seed, i, it.Lo, it.Hi, before[i], c.offsets[i], pit)
					}
				}
			}
		}
	}
	if moved < 1000 {
		t.Errorf("only %d items were moved", moved)
	}
}
