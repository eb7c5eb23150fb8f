package alloc

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/alloc/parts"
)

// However often pieces are broken and glued, every item is contained once, and
// owners and seams stay up to date.
func TestShakenPiecesAreWhole(t *testing.T) {
	parted := 0
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 41))
		items, sections := slices.Clone(slab), int32(0)
		for range 1 + rng.IntN(5) { // slabs that are alike, over each other and in a row
			at := items[rng.IntN(len(items))].Lo &^ 3
			for _, it := range slab {
				it.Lo, it.Hi = it.Lo+at, it.Hi+at
				items = append(items, it)
			}
			at = 4 * (1 + rng.Int32N(3))
			for _, it := range slab {
				it.Lo, it.Hi = it.Lo+at, it.Hi+at
				items = append(items, it)
			}
		}
		for i := range items {
			sections = max(sections, items[i].Hi)
		}
		g := newGluing(items, sections, seed%2 == 0)
		g.joinAll(t.Context())
		for range 30 {
			if i := g.whole[g.rng.IntN(len(g.whole))]; g.breakRivalSeams(i) {
				parted++
			}
			g.joinAll(t.Context())
			g.breakAndJoin(t.Context())
			checkGluing(t, seed, g, len(items))
		}
		whole := len(g.whole)
		g = g.compact(len(items))
		checkGluing(t, seed, g, len(items))
		if len(g.whole) != whole {
			t.Fatalf("seed %d: %d pieces are whole, were %d", seed, len(g.whole), whole)
		}
		for i := range g.pieces {
			if g.at[i] < 0 && g.owner[i] < 0 {
				t.Fatalf("seed %d: piece %d was broken, and stayed", seed, i)
			}
		}
	}
	if parted < 1000 {
		t.Errorf("seams were parted only %d times", parted)
	}
}

// slab is a rectangle of 4 x 3 in five pieces.
var slab = []parts.Item{
	{Lo: 0, Hi: 2, Size: 1, Align: 1, Fixed: Free}, {Lo: 2, Hi: 4, Size: 1, Align: 1, Fixed: Free},
	{Lo: 0, Hi: 1, Size: 1, Align: 1, Fixed: Free}, {Lo: 1, Hi: 4, Size: 1, Align: 1, Fixed: Free},
	{Lo: 0, Hi: 4, Size: 1, Align: 1, Fixed: Free},
}

// checkGluing compares the indexes of a gluing with the contents of its whole pieces.
func checkGluing(t *testing.T, seed uint64, g *gluing, items int) {
	t.Helper()
	seen := make([]int, items)
	seams := map[edge]int{}
	var walk func(i int32)
	walk = func(i int32) {
		p := &g.pieces[i]
		if len(p.parts) == 0 {
			seen[i]++
		}
		if e, ok := g.seamOf(i); ok {
			seams[e]++
		}
		for _, q := range p.parts {
			if g.owner[q.piece] != i || g.at[q.piece] >= 0 {
				t.Fatalf("seed %d: piece %d is part of %d, known: %d", seed, q.piece, i, g.owner[q.piece])
			}
			walk(q.piece)
		}
	}
	for _, i := range g.whole {
		if g.owner[i] >= 0 {
			t.Fatalf("seed %d: whole piece %d is part of %d", seed, i, g.owner[i])
		}
		walk(i)
	}
	for i, n := range seen {
		if n != 1 {
			t.Fatalf("seed %d: item %d is there %d times", seed, i, n)
		}
	}
	for e, list := range g.seams {
		if alive := g.unbrokenAt(e); len(alive) != seams[e] {
			t.Fatalf("seed %d: %d seams at %v of %d live, counted %d", seed, len(alive), e, len(list), seams[e])
		}
	}
}
