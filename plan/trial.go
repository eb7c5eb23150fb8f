package plan

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/athanor-llm/athanor/internal/stat"
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
// behind are left out of the next round. Rounds are noisy too, so what counts is the
// geometric mean of what was predicted, as if that were two rounds, and the median
// of the rounds. Known weakness: a plan that the model puts far behind is never tried.

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
	trialRound   = 1.0 // seconds of steps that count in a round, but so many steps:
	trialLeast   = 3
	trialMost    = 20
	trialCost    = 2 // times these steps: memory and first weights, a step that does not count
	trialPrior   = 2 // rounds that the prediction counts as

	finalists   = 8
	finalistGap = 1.3 // over the fastest, as predicted
)

// trialMargins: a finalist whose score is behind by more after a round is left out.
var trialMargins = [...]float64{1.2, 1.12, 1.08, 1.06, 1.05, 1.05, 1}

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
	rounds := 0.0 // that all have had
	for _, margin := range trialMargins {
		if done, err := s.round(list, end); err != nil {
			return err
		} else if done {
			break
		}
		rounds++
		best := fastest(list, rounds).score(rounds)
		list = slices.DeleteFunc(list, func(c *Candidate) bool { return c.score(rounds) > margin*best })
		if len(list) == 1 {
			break
		}
	}
	best := fastest(list, max(rounds, 1))
	s.found = slices.Insert(slices.DeleteFunc(s.found, func(c *Candidate) bool { return c == best }), 0, best)
	return nil
}

// fastest of some by score.
func fastest(list []*Candidate, rounds float64) *Candidate {
	return slices.MinFunc(list, func(a, b *Candidate) int { return cmp.Compare(a.score(rounds), b.score(rounds)) })
}

// score is the time of a candidate by its prediction and by trials, which count as so
// many rounds.
func (c *Candidate) score(rounds float64) float64 {
	if c.Tried == 0 { // there was no time
		return math.Inf(1)
	}
	return math.Exp((trialPrior*math.Log(c.seconds) + rounds*math.Log(c.Tried)) / (trialPrior + rounds))
}

// stepsOf is how many steps of so many seconds count in a round.
func stepsOf(seconds float64) int {
	return min(max(int(trialRound/seconds), trialLeast), trialMost)
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
		if cost += trialCost * float64(stepsOf(c.Seconds())) * c.Seconds(); cost > limit.Seconds() {
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
		seconds, err := s.m.Trial.Run(s.ctx, c, stepsOf(c.Seconds()))
		if err != nil {
			return false, fmt.Errorf("trying %s: %w", c.Label, err)
		}
		c.trials = append(c.trials, seconds)
		c.Tried = stat.Median(c.trials)
		if now := time.Now(); now.Add(now.Sub(began)).After(end) {
			return true, nil // the next would come too late
		}
	}
	return false, nil
}
