package schedule

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

// fluid runs the kinds in small steps: in each, every active one does step/factor of its work.
func fluid(s *Slowdown, left [Kinds]float64, step float64) (total float64) {
	for {
		var active uint
		for k, t := range left {
			if t > step/1e6 {
				active |= 1 << k
			}
		}
		if active == 0 {
			return total
		}
		for k := range Kinds {
			if active>>k&1 != 0 {
				left[k] -= step / s.factor(active, k)
			}
		}
		total += step
	}
}

func drawnSlowdown(r *rapid.T) (s Slowdown, alone [Kinds]float64) {
	for set := range s {
		for k := range Kinds {
			s[set][k] = rapid.Float64Range(1, 4).Draw(r, "factor")
		}
	}
	for k := range Kinds {
		if rapid.IntRange(0, 3).Draw(r, "active") > 0 {
			alone[k] = rapid.Float64Range(.01, 5).Draw(r, "alone")
		}
	}
	return s, alone
}

func TestOverlap(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		s, alone := drawnSlowdown(r)
		got := s.Overlap(alone)
		if played := fluid(&s, alone, 1e-3); math.Abs(got-played) > .05 {
			r.Errorf("%g, played %g", got, played)
		}
		least, most, active := 0.0, 0.0, 0
		for k, t := range alone {
			worst := 1.0
			for set := range s {
				worst = max(worst, s[set][k])
			}
			least, most = max(least, t), most+t*worst
			if t > 0 {
				active++
			}
		}
		if got < least-1e-9 || got > most+1e-9 || active == 1 && got != least {
			r.Errorf("%g is not between %g and %g", got, least, most)
		}
		if free := new(Slowdown).Overlap(alone); math.Abs(free-least) > 1e-12 {
			r.Errorf("without interference %g, want %g", free, least)
		}
	})
	var s Slowdown
	s[1<<Compute|1<<ToHost] = [Kinds]float64{Compute: 1.5, ToHost: 1.5}
	if got := s.Overlap([Kinds]float64{Compute: 4, ToHost: 2}); got != 5 {
		t.Errorf("%g s, want 5", got)
	}
}
