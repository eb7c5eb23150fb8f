// Package testkit says how much a test does and what it draws.
//
// Tests run at one of three levels, each of which includes the one before:
//
//   - Fast, go test -short: something of each package, in a minute.
//   - Usual, go test: each law, on a fixed choice of cases.
//   - All, go test with ATHANOR_TESTS=all: every case, with numbers drawn anew.
//
// What Fast and Usual do never changes from run to run. All begins with a seed of its own, which
// ATHANOR_SEED overrides at any level; a test that fails prints the line that repeats it.
package testkit

import (
	"encoding/binary"
	"flag"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// Level is how much the tests of this process do.
type Level int

const (
	Fast Level = iota
	Usual
	All
)

// AtLevel returns the level of this process.
func AtLevel() Level {
	switch all := os.Getenv("ATHANOR_TESTS"); {
	case all != "" && all != "all":
		panic(fmt.Sprintf("ATHANOR_TESTS is %q; hint: it may be all, or not be set", all))
	case testing.Short():
		return Fast
	case all == "all":
		return All
	}
	return Usual
}

// Needs skips a test whose whole is too slow for the levels below.
func Needs(t testing.TB, level Level) {
	t.Helper()
	if AtLevel() < level {
		t.Skipf("left to %s", [...]string{"-short", "go test without -short", "ATHANOR_TESTS=all"}[level])
	}
}

// Count is the number of rounds or draws at this process's level.
func Count(fast, usual, all int) int { return [...]int{fast, usual, all}[AtLevel()] }

// Sample returns the cases that a test tries at this process's level: so many of them, evenly
// spread and always the same, or all.
func Sample[T any](cases []T, fast, usual int) []T {
	n := len(cases)
	k := min(Count(fast, usual, n), n)
	list := make([]T, 0, k)
	for i := range k {
		list = append(list, cases[i*n/k])
	}
	return list
}

// Seed returns where the random numbers of a test begin, and logs how to have them again. Tests
// differ by their names, so that it does not matter which others run.
func Seed(t testing.TB) uint64 {
	t.Helper()
	first := sharedSeed()
	how := [...]string{"ATHANOR_SEED=%d go test -short", "ATHANOR_SEED=%d go test", "ATHANOR_TESTS=all ATHANOR_SEED=%d go test"}[AtLevel()]
	t.Logf("to repeat: "+how+" -run '^%s$'", first, t.Name())
	h := fnv.New64a()
	h.Write(binary.LittleEndian.AppendUint64([]byte(t.Name()), first))
	return h.Sum64()
}

// Rand returns random numbers that begin at Seed.
func Rand(t testing.TB) *rand.Rand {
	t.Helper()
	return rand.New(rand.NewPCG(Seed(t), 0))
}

// Check is rapid.Check with this process's seed, and more draws where all is tried.
func Check(t *testing.T, law func(*rapid.T)) {
	t.Helper()
	for name, value := range map[string]uint64{"rapid.seed": max(1, Seed(t)), "rapid.checks": uint64(Count(100, 100, 500))} {
		if err := flag.Set(name, strconv.FormatUint(value, 10)); err != nil {
			t.Fatal(err)
		}
	}
	rapid.Check(t, law)
}

// sharedSeed is the seed that all tests of this process share.
var sharedSeed = sync.OnceValue(readSeed)

func readSeed() uint64 {
	text := os.Getenv("ATHANOR_SEED")
	switch {
	case text == "" && AtLevel() == All:
		return rand.Uint64()
	case text == "":
		return 0
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		panic(fmt.Sprintf("ATHANOR_SEED: %v; hint: use the number that a failed test printed", err))
	}
	return seed
}
