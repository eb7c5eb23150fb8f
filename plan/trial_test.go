package plan

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"
)

// TestTrial: on a machine that differs from its description, no plan that was tried
// is both predicted to be faster and really faster than the chosen one, but for the
// machine's noise; with time for all rounds, none is much faster whatever was
// predicted. The plan that was predicted to be fastest is among those that were
// tried, and trying takes no longer than it may.
func TestTrial(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	changed := 0
	for range 6 {
		synctest.Test(t, func(t *testing.T) {
			const noise, much = 0.03, 1.15
			req, m := small(t), machine(t, 40<<20, 1)
			alone := find(t, req, m).Best
			truth, runs := map[*Candidate]float64{}, map[*Candidate]int{}
			m.Trial = &Trial{Steps: []int{200, 3000, 1e6}[rng.IntN(3)], Run: func(ctx context.Context, c *Candidate, steps int) (float64, error) {
				if _, ok := truth[c]; !ok {
					truth[c] = c.Seconds() * (0.7 + 0.6*rng.Float64())
				}
				runs[c]++
				took := truth[c] * (1 + noise*rng.Float64())
				time.Sleep(time.Duration(float64(steps) * took * trialCost * float64(time.Second)))
				return took, nil
			}}
			began := time.Now()
			r := find(t, req, m)
			took, limit := time.Since(began), m.Trial.worth(alone.Seconds())
			if float64(took) > 1.5*float64(limit) { // all are slower than was thought
				t.Errorf("trying took %v, the run is worth %v", took, limit)
			}
			if len(truth) == 0 {
				return // it is not worth it
			}
			rounds, known := 0, false
			for _, n := range runs {
				rounds = max(rounds, n)
			}
			got := truth[r.Best]
			for c, seconds := range truth {
				known = known || c.Label == alone.Label
				if c.Seconds() > finalistGap*alone.Seconds() {
					t.Errorf("%s was tried, %.4g s where %.4g were predicted at best", c.Label, c.Seconds(), alone.Seconds())
				}
				if got > (1+noise)*seconds && r.Best.Seconds() >= c.Seconds() || rounds == len(trialMargins) && got > much*seconds {
					t.Errorf("%s takes %.4g s, predicted %.4g; but %s takes %.4g, predicted %.4g (%d rounds)",
						r.Best.Label, got, r.Best.Seconds(), c.Label, seconds, c.Seconds(), rounds)
				}
			}
			if !known || r.Best.Tried < got || r.Best.Tried > got*(1+noise) {
				t.Errorf("%s takes %.4g s, %.4g when tried; %s was tried: %v", r.Best.Label, got, r.Best.Tried, alone.Label, known)
			}
			if r.Best.Label != alone.Label {
				changed++
			}
		})
	}
	if changed == 0 {
		t.Error("no trial has changed the choice")
	}
}

// TestTrialIsWorthIt: a short run is not kept waiting, and a long one not for ever.
func TestTrialIsWorthIt(t *testing.T) {
	req, m := small(t), machine(t, 40<<20, 1)
	m.Trial = &Trial{Steps: 3, Run: func(context.Context, *Candidate, int) (float64, error) {
		t.Error("a run of three steps was kept waiting")
		return 1, nil
	}}
	find(t, req, m)
	for _, c := range []struct {
		trial Trial
		want  time.Duration
	}{
		{Trial{Steps: 1000}, 100 * time.Second},
		{Trial{Steps: 1e9}, trialLongest},
		{Trial{Steps: 1e9, Time: time.Minute}, 3 * time.Second},
		{Trial{Steps: 10, Time: time.Hour}, time.Second},
	} {
		if got := c.trial.worth(2); got != c.want {
			t.Errorf("%d steps of 2 s, at most %v: %v of trying, want %v", c.trial.Steps, c.trial.Time, got, c.want)
		}
	}
}

// TestTrialFails: what goes wrong on the machine is told, with the plan's name.
func TestTrialFails(t *testing.T) {
	req, m := small(t), machine(t, 40<<20, 1)
	broken := errors.New("no arena")
	m.Trial = &Trial{Steps: 1e6, Run: func(context.Context, *Candidate, int) (float64, error) { return 0, broken }}
	if _, err := Search(t.Context(), req, m, nil); !errors.Is(err, broken) {
		t.Errorf("the search says %v", err)
	}
}
