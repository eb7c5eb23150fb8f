package plan

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
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
// take turns, step by step where memory holds all of them at once, so that what
// else the machine does meets all; those that are clearly behind are left out of
// the next round. Rounds are noisy too, so what counts is the geometric mean of what
// was predicted, as if that were two rounds, and the median of the steps. Known
// weakness: a plan that the model puts far behind is never tried.

// Trial is a machine at hand.
type Trial struct {
	// Open makes candidates ready to run.
	Open func(ctx context.Context, list []*Candidate) (Trials, error)
	// Steps and Time (0: any) bound the run that is planned for.
	Steps int
	Time  time.Duration
}

// Trials are candidates that are ready to run, by their place in a list.
type Trials interface {
	// Together tells whether all are in memory at once; else it takes a while to
	// go from one to another.
	Together() bool
	// Step executes a step of one, past its first, and tells the seconds.
	Step(ctx context.Context, i int) (float64, error)
	Close() error
}

const (
	trialShare   = 20 // of the run's time, at most one part of so many
	trialLongest = 2 * time.Minute
	trialRound   = 1.0 // seconds of a candidate's steps in a round, but so many steps:
	trialLeast   = 3
	trialMost    = 20
	trialCost    = 2 // times the steps of a round: memory and first weights, a step that does not count
	trialPrior   = 2 // rounds that the prediction counts as

	finalists   = 8
	finalistGap = 1.3 // over the fastest, as predicted
)

// trialMargins: a finalist whose score is behind by more after a round is left out.
var trialMargins = [...]float64{1.2, 1.12, 1.08, 1.06, 1.05, 1.05, 1}

// prepare makes candidates comparable that trials are to choose from: operators
// depend on the sequences of a micro-batch, and by now those of the fastest were
// timed. With the best of the others timed too, the search is made once more: what
// it has decided by estimates may be otherwise. So may what a policy's formula
// says, with or without trials.
func (s *search) prepare() error {
	const near = 1.5 // over the fastest
	tried := s.m.Trial != nil && s.m.Trial.worth(s.found[0].Seconds()) >= s.found[0].round()*2
	if s.m.Measure == nil || !tried && s.req.Pins.Policy == "" {
		return nil
	}
	timed := map[int]bool{}
	for _, c := range s.found {
		if b := c.Plan.MicroBatch; !timed[b] && c.Seconds() < near*s.found[0].Seconds() {
			timed[b] = true
			s.say("timing the operators of: " + c.Label)
			if err := s.m.Measure(c); err != nil {
				return err
			}
		}
	}
	if err := s.again(); err != nil {
		return err
	}
	return s.settle()
}

// again searches as if nothing were found, by prices as they are known now, and
// adds what was.
func (s *search) again() error {
	before := s.found
	s.found, s.spent, s.reached = nil, 0, map[residency]float64{}
	if err := s.alike(); err != nil {
		return err
	}
	for _, c := range before {
		if !slices.ContainsFunc(s.found, func(now *Candidate) bool { return reflect.DeepEqual(now.Plan, c.Plan) }) {
			s.found = append(s.found, c)
		}
	}
	return s.simulate()
}

// round is how long a candidate's first round takes, about.
func (c *Candidate) round() time.Duration {
	return time.Duration(trialCost * float64(stepsOf(c.Seconds())) * c.Seconds() * float64(time.Second))
}

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
	t, err := s.m.Trial.Open(s.ctx, list)
	if err != nil {
		return fmt.Errorf("trying plans: %w", err)
	}
	best, err := s.rounds(t, list, end)
	if err = errors.Join(err, t.Close()); err != nil {
		return err
	}
	s.found = slices.Insert(slices.DeleteFunc(s.found, func(c *Candidate) bool { return c == best }), 0, best)
	return nil
}

// rounds tries candidates until one is left or the time is over, and returns the
// best of those that have had all rounds.
func (s *search) rounds(t Trials, list []*Candidate, end time.Time) (best *Candidate, err error) {
	left := make([]int, len(list))
	for i := range left {
		left[i] = i
	}
	for n, margin := range trialMargins {
		s.say(fmt.Sprintf("trying %d plans, round %d", len(left), n+1))
		done, err := s.round(t, list, left, end)
		if err != nil {
			return nil, err
		}
		rounds := float64(n + 1)
		score := func(i int) float64 { return list[i].score(rounds) }
		first := slices.MinFunc(left, func(a, b int) int { return cmp.Compare(score(a), score(b)) })
		best = list[first]
		least := score(first)
		left = slices.DeleteFunc(left, func(i int) bool { return score(i) > margin*least })
		if done || len(left) == 1 {
			break
		}
	}
	return best, nil
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
		if limit -= c.round(); limit < 0 {
			break
		}
		known[k] = true
		list = append(list, c)
	}
	return list, nil
}

// round runs steps of those that are left, and reports whether the time is over.
func (s *search) round(t Trials, list []*Candidate, left []int, end time.Time) (done bool, err error) {
	turns, inTurn := 1, stepsOf(list[0].Seconds())
	if t.Together() {
		turns, inTurn = inTurn, 1
	}
	rng := rand.New(rand.NewPCG(1, uint64(len(left))))
	for range turns {
		rng.Shuffle(len(left), func(i, j int) { left[i], left[j] = left[j], left[i] }) // a step has to do with the one before it: disk
		for _, i := range left {
			c := list[i]
			for range inTurn {
				seconds, err := t.Step(s.ctx, i)
				if err != nil {
					return false, fmt.Errorf("trying %s: %w", c.Label, err)
				}
				c.trials = append(c.trials, seconds)
			}
			c.Tried = stat.Median(c.trials)
			if time.Now().After(end) {
				return true, nil
			}
		}
	}
	return false, nil
}
