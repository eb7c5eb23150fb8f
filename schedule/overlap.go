package schedule

import (
	"math"
	"math/bits"
)

// How long work of several kinds takes that runs at once and slows each other down: Mist's interference model (EuroSys
// 2025, 2503.19050; its code).
//
// Approach: all that is left runs, each kind slowed by the factor that it has among just these kinds, until the first
// one is done; then the same with the others.
//
// Example: 4 s of computing and 2 s of copying, each slowed 1.5 times by the other: after 3 s the copy is done and 2 s of
// computing are left, 5 s together. Weakness: factors are constants; what really slows down depends on sizes.

// Kind of work that has an engine of its own.
type Kind uint8

const (
	Compute Kind = iota
	Peers        // between GPUs
	ToDevice
	ToHost
	Kinds
)

// Slowdown has a factor, at least 1, for every kind among every set of active kinds, a bit per kind: 4 for all four, 4*3
// for three, 6*2 for two, and 1 for one alone. 0 stands for 1.
type Slowdown [1 << Kinds][Kinds]float64

// Overlap is the time from the common start to the end of the last one; alone are the times without interference.
func (s *Slowdown) Overlap(alone [Kinds]float64) (total float64) {
	var active uint
	for k, t := range alone {
		if t > 0 {
			active |= 1 << k
		}
	}
	for active != 0 {
		step := math.Inf(1) // until the first is done
		for k := range Kinds {
			if active>>k&1 != 0 {
				step = min(step, alone[k]*s.factor(active, k))
			}
		}
		total += step
		left := active
		for k := range Kinds {
			if active>>k&1 == 0 {
				continue
			}
			if f := s.factor(active, k); alone[k]*f <= step {
				left &^= 1 << k
			} else {
				alone[k] -= step / f
			}
		}
		active = left
	}
	return total
}

// factor of a kind among the active ones.
func (s *Slowdown) factor(active uint, k Kind) float64 {
	if bits.OnesCount(active) == 1 {
		return 1
	}
	return max(1, s[active][k])
}
