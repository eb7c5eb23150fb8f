package alloc

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/athanor-llm/athanor/alloc/parts"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// layered returns a leaf as in a training step: the same layer repeated forwards
// and backwards, and the buffers kept in between.
func layered(rng *rand.Rand) parts.Part {
	layers := 4 + rng.IntN(5)
	kept := 1 + rng.Int64N(20)
	var scratch []Buffer
	for range 4 + rng.IntN(8) {
		lo := rng.Int64N(8)
		scratch = append(scratch, Buffer{Lower: lo, Upper: lo + 1 + rng.Int64N(4), Size: 1 + rng.Int64N(16), Align: 1, Fixed: Free})
	}
	const span = 12
	var list []Buffer
	for l := range 2 * layers {
		for _, b := range scratch {
			b.Lower, b.Upper = b.Lower+int64(l*span), b.Upper+int64(l*span)
			list = append(list, b)
		}
		if l < layers {
			list = append(list, Buffer{Lower: int64(l * span), Upper: int64((2*layers - l) * span), Size: kept, Align: 1, Fixed: Free})
		}
	}
	items, sections := compress(list)
	return parts.Part{Items: items, Sections: sections}
}

// TestTwoLevelBound: given a height to beat, packing in two levels finds the same
// packing as without one, or nothing if that is not lower; and no group is packed
// where the groups' lower bounds already decide.
func TestTwoLevelBound(t *testing.T) {
	seed := testkit.Seed(t)
	rng := rand.New(rand.NewPCG(seed, 1))
	found, spared := 0, 0
	for range 20 {
		l := layered(rng)
		free, ok := twoLevel(t.Context(), l, math.MaxInt64, fastEffort)
		if !ok {
			continue
		}
		found++
		for _, below := range []int64{free.Height + 1, free.Height, free.Height / 2} {
			p, ok := twoLevel(t.Context(), l, below, fastEffort)
			if want := free.Height < below; ok != want || ok && p.Height != free.Height {
				t.Errorf("below %d: found %v, %d high; without that %d", below, ok, p.Height, free.Height)
			}
		}
		groups, rest := grouped(l.Items, 4)
		solved := &Cache{}
		if _, ok := assemble(t.Context(), l, groups, rest, 1, solved, fastEffort); ok || solved.Len() > 0 {
			t.Errorf("%d shapes were packed for a height that is out of reach", solved.Len())
		} else {
			spared++
		}
	}
	if found < 10 || spared == 0 {
		t.Errorf("%d packings in two levels, %d spared: this shows little", found, spared)
	}
}
