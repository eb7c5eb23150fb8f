package pack

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/alloc"
	"github.com/athanor-llm/athanor/alloc/generate"
	"github.com/athanor-llm/athanor/alloc/parts"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// A cover is the same whether it rises at once or level by level, in whatever
// order its niches are filled, and after going back to where it stood.
func TestRiseByLevels(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 43))
		l, _, _ := randomLeaf(rng, seed%2 == 1)
		load := parts.Loads(l.Items, l.Sections)
		tastes := make([]taste, l.Sections/4+1)
		for k := range tastes {
			tastes[k] = drawTaste(rng)
			tastes[k].brief, tastes[k].late = rng.Float64()/10, late{rng.Float64(), rng.Float64(), rng.Float64()}
		}
		start := func() *covering {
			return newCovering(l.Items, parts.NewNiches(l.Sections), load, slices.Max(load), tastes, 2)
		}
		effort := int64(math.MaxInt64)
		whole, _ := start().fill(&effort)
		c, p := start(), parts.Packing{Offsets: make([]int64, len(l.Items))}
		for level := rng.Int64N(20); c.left > 0; level += 1 + rng.Int64N(40) {
			var s stand
			c.note(&s)
			if !c.rise(level+rng.Int64N(100), &p, &effort) {
				t.Fatalf("seed %d: gave up", seed)
			}
			c.restore(&s)
			c.line.NextBelow(math.MaxInt64, rng.Int32N(c.line.Sections)) // wherever it goes on
			c.prefer(tastes)
			c.rise(level, &p, &effort)
			for s := int32(0); s < l.Sections && c.left > 0; s = c.line.End[s] {
				if c.line.Floor[s] < level {
					t.Fatalf("seed %d: niche %d is at %d, below %d", seed, s, c.line.Floor[s], level)
				}
			}
		}
		if !slices.Equal(p.Offsets, whole.Offsets) {
			t.Fatalf("seed %d: %v level by level, %v at once", seed, p.Offsets, whole.Offsets)
		}
	}
}

// Whatever the effort, courses make a valid packing, deterministically, and a
// different one in each attempt.
func TestCoursesPackEverything(t *testing.T) {
	changed, rounds := 0, testkit.Count(2, 10, 100)
	for seed := range uint64(rounds) {
		rng := rand.New(rand.NewPCG(seed, 44))
		l, p, _ := randomLeaf(rng, seed%2 == 1)
		target, s := slices.Max(parts.Loads(l.Items, l.Sections)), drawStart(rng)
		effort := rng.Int64N(1_000_000)
		got := s.packInCourses(t.Context(), l, target, effort, 1, 0)
		if err := generate.Validate(p, alloc.Solution{Offsets: got.Offsets, Height: got.Height}); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if again := s.packInCourses(t.Context(), l, target, effort, 1, 0); !slices.Equal(again.Offsets, got.Offsets) {
			t.Fatalf("seed %d: another packing the second time", seed)
		}
		other := s.packInCourses(t.Context(), l, target, effort, 1, 1)
		if err := generate.Validate(p, alloc.Solution{Offsets: other.Offsets, Height: other.Height}); err != nil {
			t.Fatalf("seed %d: second attempt: %v", seed, err)
		}
		if !slices.Equal(other.Offsets, got.Offsets) {
			changed++
		}
	}
	if changed < rounds/2 {
		t.Errorf("only %d of %d second attempts differ from the first", changed, rounds)
	}
}

// However often courses are laid again, their state matches their tastes: the
// loss of each section is its top less its load.
func TestMendedCourses(t *testing.T) {
	mended := 0
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 45))
		items, sections := someItems(rng, 400, 40)
		l := parts.Part{Items: items, Sections: sections}
		load := parts.Loads(l.Items, l.Sections)
		target := slices.Max(load)
		tastes := slices.Repeat([]taste{openings[0].taste}, int(l.Sections/2)+1)
		w := newCourses(newCovering(l.Items, parts.NewNiches(l.Sections), load, target, tastes, 1), 0, 0)
		for k := int64(1); k <= 5; k++ {
			level := target * k / 5
			if k == 5 {
				level = math.MaxInt64
			}
			w.layNext(level, openings[0].taste)
			_, before := w.badness()
			w.effort = 300_000
			w.redoCourses(t.Context(), 50_000, 1)
			_, after := w.badness()
			if after > before*(1+1e-9) {
				t.Fatalf("seed %d: course %d is worse mended, %g, than %g", seed, k, after, before)
			}
			if after < before {
				mended++
			}
		}
		top := tops(l, w.Packing, 0)
		for s := range load {
			if lost := top[s] - load[s]; lost != target-load[s]-w.slack[s] {
				t.Fatalf("seed %d: section %d has lost %d, said %d", seed, s, lost, target-load[s]-w.slack[s])
			}
		}
	}
	if mended < 50 {
		t.Errorf("only %d courses were mended", mended)
	}
}

// With sizes of all magnitudes, few bytes, one moment or huge alignments, courses
// still pack everything and terminate.
func TestCoursesOfExtremes(t *testing.T) {
	for seed := range uint64(testkit.Count(10, 40, 300)) {
		rng := rand.New(rand.NewPCG(seed, 46))
		n, steps := 1+rng.IntN(80), 1+rng.Int64N(30)
		var p alloc.Problem
		for range n {
			b := alloc.Buffer{Lower: rng.Int64N(steps), Size: 1, Align: 1, Fixed: alloc.Free}
			b.Upper = b.Lower + 1 + rng.Int64N(1+rng.Int64N(steps))
			if seed%3 > 0 { // otherwise the target is less than a byte for each course
				b.Size = 1 + rng.Int64N(1<<rng.IntN(54))
			}
			if seed%3 > 1 {
				b.Align = 1 << rng.IntN(50)
			}
			p.Buffers = append(p.Buffers, b)
		}
		items, sections := itemsOf(p.Buffers)
		l := parts.Part{Items: items, Sections: sections}
		target, start := slices.Max(parts.Loads(items, sections)), drawStart(rng)
		got := start.packInCourses(t.Context(), l, target, rng.Int64N(1_000_000), rng.Float64(), rng.Uint64())
		if err := generate.Validate(p, alloc.Solution{Offsets: got.Offsets, Height: got.Height}); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}
