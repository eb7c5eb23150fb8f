package testkit

import (
	"slices"
	"testing"
)

// levels runs a test as each level would.
func levels(t *testing.T, f func(t *testing.T, level Level)) {
	for level, name := range []string{"fast", "usual", "all"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("ATHANOR_TESTS", [...]string{"", "", "all"}[level])
			if AtLevel() == Level(level) { // -short cannot be set from within
				f(t, Level(level))
			}
		})
	}
}

// TestSample: a sample has as many cases as it should, in order, none twice, and the same again.
func TestSample(t *testing.T) {
	cases := make([]int, 20)
	for i := range cases {
		cases[i] = i
	}
	levels(t, func(t *testing.T, level Level) {
		for k := range len(cases) + 5 {
			got := Sample(cases, k, k)
			want := min(k, len(cases))
			if level == All {
				want = len(cases)
			}
			if len(got) != want || !slices.IsSorted(got) || len(slices.Compact(slices.Clone(got))) != want {
				t.Errorf("%d of %d: %v", k, len(cases), got)
			}
			if again := Sample(cases, k, k); !slices.Equal(again, got) {
				t.Errorf("%v, then %v", got, again)
			}
		}
		if n := Count(3, 5, 7); n != []int{3, 5, 7}[level] {
			t.Errorf("a count of %d", n)
		}
	})
}

// TestSeed: a test's seed is the same again, and another for another test.
func TestSeed(t *testing.T) {
	seen := map[uint64]bool{Seed(t): true}
	if !seen[Seed(t)] {
		t.Error("a seed changed within a test")
	}
	for _, name := range []string{"a", "b"} {
		t.Run(name, func(t *testing.T) { seen[Seed(t)] = true })
	}
	if len(seen) != 3 {
		t.Errorf("%d seeds of 3 tests", len(seen))
	}
}

// TestFirstSeed: only where all is tried do tests begin differently each time, and a named seed
// holds everywhere.
func TestFirstSeed(t *testing.T) {
	levels(t, func(t *testing.T, level Level) {
		t.Setenv("ATHANOR_SEED", "")
		if a, b := readSeed(), readSeed(); (a != b) != (level == All) || level != All && a != 0 {
			t.Errorf("seeds %d and %d", a, b)
		}
		t.Setenv("ATHANOR_SEED", "18446744073709551615")
		if seed := readSeed(); seed != 1<<64-1 {
			t.Errorf("seed %d", seed)
		}
	})
}
