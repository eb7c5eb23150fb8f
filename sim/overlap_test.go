package sim

import (
	"math"
	"math/bits"
	"math/rand/v2"
	"testing"

	"github.com/athanor-llm/athanor/device"
)

// overlap returns how long work takes on streams that slow each other down if all of it starts at once, by Mist's routine
// (EuroSys 2025, 2503.19050): the remaining kinds of work run, each slowed by its factor among exactly these kinds, until
// the first one is done; then the same with the others.
func overlap(alone []float64, factor func(active uint, kind int) float64) (total float64) {
	alone = append([]float64(nil), alone...)
	var active uint
	for k, t := range alone {
		if t > 0 {
			active |= 1 << k
		}
	}
	for active != 0 {
		step, first := math.Inf(1), 0 // until the first is done
		for k := range alone {
			if active>>k&1 != 0 && alone[k]*factor(active, k) < step {
				step, first = alone[k]*factor(active, k), k
			}
		}
		for k := range alone {
			alone[k] -= step / factor(active, k)
		}
		total += step
		active &^= 1 << first
	}
	return total
}

// TestOverlap: calls that start together take as long as Mist's model of interference says, whose factors among a set of
// streams are sums over pairs here. So its bounds hold too: at least the longest call by itself, at most all in a row,
// each at its slowest; and a call by itself takes its own time.
func TestOverlap(t *testing.T) {
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 4))
		n := 1 + r.IntN(5)
		cost := &slowed{CostFunc: bySize}
		for of := range n {
			for by := range n {
				cost.by[of][by] = 3 * r.Float64()
			}
		}
		factor := func(active uint, k int) float64 {
			more := 1.0
			for by := range n {
				if by != k && active>>by&1 != 0 {
					more += cost.by[k][by]
				}
			}
			return more
		}
		streams := r.Perm(n) // the i-th copy takes i+1 seconds
		alone, least, most := make([]float64, n), float64(n), 0.0
		for i, s := range streams {
			alone[s] = float64(i + 1)
			most += alone[s] * factor(1<<n-1, s)
		}
		got := mustRun(t, copies(n, func(i int) (device.Stream, []int) { return device.Stream(streams[i]), nil }), cost).Makespan
		if want := overlap(alone, factor); math.Abs(got-want) > 1e-9 {
			t.Errorf("seed %d: %d streams take %g s, by Mist's routine %g", seed, n, got, want)
		}
		if got < least-1e-9 || got > most+1e-9 {
			t.Errorf("seed %d: %g s are not between %g and %g", seed, got, least, most)
		}
	}
	halves := func(active uint, _ int) float64 { return 1 + 0.5*float64(bits.OnesCount(active)-1) }
	if got := overlap([]float64{4, 2}, halves); got != 5 {
		t.Errorf("4 s and 2 s, each slowed 1.5 times by the other: %g s, not 5", got)
	}
}
