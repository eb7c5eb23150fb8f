package plan

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"
)

// Trials.
//
// What the description of a machine leaves out, how one call leaves the caches
// to the next and who waits for whose core, a step shows. So where the machine is
// at hand and the run is long enough for it to pay, the finalists run a few steps
// each, and the fastest is taken: a plan that is fast in the model only is not
// chosen.
//
//	predicted    0.120   0.122   0.131   0.170 (no finalist)
//	1st round    0.131   0.139   0.124
//	2nd round    0.130     -     0.125         the third is taken
//
// Approach: successive halving (Karnin, Koren and Somekh, ICML 2013). Finalists
// take turns, so that what else the machine does meets all; those that are clearly
// behind are left out of the next round. What counts is the best of a plan's
// rounds. Known weakness: a plan that the model puts far behind is never tried.

// Trial is a machine at hand.
type Trial struct {
	// Run executes a candidate's step so many times and tells the median seconds.
	Run func(ctx context.Context, c *Candidate, steps int) (float64, error)
	// Steps and Time (0: any) bound the run that is planned for.
	Steps int
	Time  time.Duration
}

const (
	trialShare   = 20 // of the run's time, at most one part of so many
	trialLongest = 2 * time.Minute
	trialSteps   = 3 // that count in a round
	trialCost    = 2 // times their steps: memory and first weights, a step that does not count

	finalists   = 8
	finalistGap = 1.3 // over the fastest, as predicted
)

// trialMargins: a finalist that is behind by more after a round is left out.
var trialMargins = [...]float64{1.15, 1.08, 1.05, 1.05, 1}

// trial puts the finalist first that is fastest on the machine.
func (s *search) trial() error {
	if s.m.Trial == nil {
		return nil
	}
	limit := s.m.Trial.worth(s.found[0].Seconds())
	list, err := s.finalists(limit)
	if err != nil || len(list) < 2 {
		return err
	}
	end := time.Now().Add(limit)
	for _, margin := range trialMargins {
		if done, err := s.round(list, end); err != nil {
			return err
		} else if done {
			break
		}
		fastest := slices.MinFunc(list, byTrial).Tried
		list = slices.DeleteFunc(list, func(c *Candidate) bool { return c.Tried > margin*fastest })
		if len(list) == 1 {
			break
		}
	}
	best := slices.MinFunc(list, byTrial)
	s.found = slices.Insert(slices.DeleteFunc(s.found, func(c *Candidate) bool { return c == best }), 0, best)
	return nil
}

// byTrial puts those that were not tried last.
func byTrial(a, b *Candidate) int {
	return cmp.Compare(cmp.Or(a.Tried, math.Inf(1)), cmp.Or(b.Tried, math.Inf(1)))
}

// worth is how long a run with steps of so many seconds may be kept waiting for a
// better plan.
func (t *Trial) worth(seconds float64) time.Duration {
	whole := float64(t.Steps) * seconds
	if t.Time > 0 {
		whole = min(whole, t.Time.Seconds())
	}
	return time.Duration(min(whole/trialShare, trialLongest.Seconds()) * float64(time.Second))
}

// finalists are the best of each kind, micro-batch and grouping that is not far
// behind and fits on all ranks, as many as can be tried in time.
func (s *search) finalists(limit time.Duration) (list []*Candidate, err error) {
	type kind struct {
		name  string
		b, gr int
	}
	known := map[kind]bool{}
	var cost float64
	for _, c := range s.found {
		k := kind{c.Kind, c.Plan.MicroBatch, c.Plan.Group}
		if c.Seconds() > finalistGap*s.found[0].Seconds() || len(list) == finalists {
			break
		}
		if known[k] {
			continue
		}
		if fits, err := c.Complete(s.ctx, s.req); err != nil {
			return nil, err
		} else if !fits {
			continue
		}
		if cost += trialCost * trialSteps * c.Seconds(); cost > limit.Seconds() {
			break
		}
		known[k] = true
		list = append(list, c)
	}
	return list, nil
}

// round tries each once, and reports whether there is no time for another.
func (s *search) round(list []*Candidate, end time.Time) (done bool, err error) {
	for i, c := range list {
		began := time.Now()
		s.say(fmt.Sprintf("trying %d of %d: %s", i+1, len(list), c.Label))
		seconds, err := s.m.Trial.Run(s.ctx, c, trialSteps)
		if err != nil {
			return false, fmt.Errorf("trying %s: %w", c.Label, err)
		}
		c.Tried = min(cmp.Or(c.Tried, math.Inf(1)), seconds)
		if now := time.Now(); now.Add(now.Sub(began)).After(end) {
			return true, nil // the next would come too late
		}
	}
	return false, nil
}
