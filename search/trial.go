package search

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/athanor-llm/athanor/internal/stat"
)

// Trials.
//
// A machine's description omits in what state one call leaves the caches for the next, and who waits for whose
// core; a real step includes both. If the machine is at hand and the run is long enough to pay for it, the
// finalists run a few steps each, and the fastest is chosen. So a plan that is fast only in the model is
// rejected.
//
//	predicted    0.120   0.122   0.131   0.170 (no finalist)
//	1st round    0.131   0.139   0.124
//	2nd round    0.130     -     0.125         the third is taken
//
// Approach: successive halving (Karnin, Koren and Somekh, ICML 2013). Finalists
// alternate, step by step if memory holds all of them, so that other load affects
// all alike. Those clearly behind are dropped after each round. Rounds are noisy
// too, so the score is a weighted geometric mean of the prediction, counted as two
// rounds, and the median of the steps. Known weakness: a plan that the model puts
// far behind is never tried.

// Trial runs candidates on the machine at hand.
type Trial struct {
	// Open prepares candidates to run.
	Open func(ctx context.Context, list []*Candidate) (Trials, error)
	// Steps and Time (0: any) bound the planned run.
	Steps int
	Time  time.Duration
}

// Trials are candidates that are ready to run, by their index in a list.
type Trials interface {
	// AllResident reports whether all are in memory at once; otherwise switching takes
	// time.
	AllResident() bool
	// Step runs one step of a candidate, after an uncounted first one, and returns its seconds.
	Step(ctx context.Context, i int) (float64, error)
	Close() error
}

const (
	trialShare   = 20 // trials take at most 1/trialShare of the run's time
	trialLongest = 2 * time.Minute
	trialRound   = 1.0 // seconds of a candidate's steps in a round, within these numbers of steps:
	trialLeast   = 3
	trialMost    = 20
	trialCost    = 2 // cost of a first round over its counted steps: it sets up memory and weights, and runs an uncounted step
	trialPrior   = 2 // rounds that the prediction counts as

	finalists   = 8
	finalistGap = 1.3 // over the fastest, as predicted
)

// trialMargins are the ratios, by round, to the best score above which a finalist
// is dropped.
var trialMargins = [...]float64{1.2, 1.12, 1.08, 1.06, 1.05, 1.05, 1}

// roundTime returns the approximate duration of a candidate's first round.
func (c *Candidate) roundTime() time.Duration {
	return time.Duration(trialCost * float64(stepsOf(c.Seconds())) * c.Seconds() * float64(time.Second))
}

// tryFinalists moves the finalist that is fastest on the machine to the front.
func tryFinalists(ctx context.Context, p *problem, found shortlist) (shortlist, error) {
	trial := p.machine.Trial
	if trial == nil {
		return found, nil
	}
	limit := trial.Worth(found[0].Seconds())
	list, err := finalistsOf(ctx, p, found, limit)
	if err != nil || len(list) < 2 {
		return found, err
	}
	end := time.Now().Add(limit)
	t, err := trial.Open(ctx, list)
	if err != nil {
		return nil, fmt.Errorf("trying plans: %w", err)
	}
	best, err := runRounds(ctx, p.told, t, list, end)
	if err = errors.Join(err, t.Close()); err != nil {
		return nil, err
	}
	return found.first(best), nil
}

// Choose runs the best plans of several searches in turn, as trials of one search do, and returns the fastest. Plans that are predicted to be
// far behind are left out.
func (t *Trial) Choose(ctx context.Context, list []*Candidate, progress func(string)) (*Candidate, error) {
	least := slices.MinFunc(list, func(a, b *Candidate) int { return cmp.Compare(a.Seconds(), b.Seconds()) })
	list = slices.DeleteFunc(slices.Clone(list), func(c *Candidate) bool { return c.Seconds() > finalistGap*least.Seconds() })
	if len(list) == 1 {
		return least, nil
	}
	end := time.Now().Add(t.Worth(least.Seconds()))
	trials, err := t.Open(ctx, list)
	if err != nil {
		return nil, fmt.Errorf("trying plans: %w", err)
	}
	best, err := runRounds(ctx, &recorder{progress: progress}, trials, list, end)
	return best, errors.Join(err, trials.Close())
}

// runRounds runs rounds until one candidate is left or time is up, and returns the best of those that completed
// all rounds.
func runRounds(ctx context.Context, told *recorder, t Trials, list []*Candidate, end time.Time) (best *Candidate, err error) {
	left := make([]int, len(list))
	for i := range left {
		left[i] = i
	}
	for n, margin := range trialMargins {
		told.say(fmt.Sprintf("trying %d plans, round %d", len(left), n+1), nil)
		done, err := runRound(ctx, t, list, left, end)
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

// score returns a candidate's time from its prediction and its trials, which count as that many rounds.
func (c *Candidate) score(rounds float64) float64 {
	if c.Tried == 0 { // not tried
		return math.Inf(1)
	}
	return math.Exp((trialPrior*math.Log(c.seconds) + rounds*math.Log(c.Tried)) / (trialPrior + rounds))
}

// stepsOf returns how many steps that take the given seconds count in a round.
func stepsOf(seconds float64) int {
	return min(max(int(trialRound/seconds), trialLeast), trialMost)
}

// Worth returns how long trials may delay a run whose steps take the given seconds.
func (t *Trial) Worth(seconds float64) time.Duration {
	whole := float64(t.Steps) * seconds
	if t.Time > 0 {
		whole = min(whole, t.Time.Seconds())
	}
	return time.Duration(min(whole/trialShare, trialLongest.Seconds()) * float64(time.Second))
}

// finalistsOf returns the best candidate of each kind, micro-batch and grouping, with deferred updates and without, with keys exchanged and
// with heads, that is near the fastest and fits on all ranks, as many as time permits.
func finalistsOf(ctx context.Context, p *problem, found shortlist, limit time.Duration) (list []*Candidate, err error) {
	type kind struct {
		name     string
		b, gr    int
		defers   bool
		exchange string
	}
	known := map[kind]bool{}
	for _, c := range found {
		k := kind{c.Kind, c.Plan.MicroBatch, c.Plan.Group, c.Plan.Defer, c.Plan.Exchange}
		if c.Seconds() > finalistGap*found[0].Seconds() || len(list) == finalists {
			break
		}
		if known[k] {
			continue
		}
		if fits, err := c.Complete(ctx, p.req); err != nil {
			return nil, err
		} else if !fits {
			continue
		}
		if limit -= c.roundTime(); limit < 0 {
			break
		}
		known[k] = true
		list = append(list, c)
	}
	return list, nil
}

// runRound runs a round of the remaining finalists, and reports whether time is up.
func runRound(ctx context.Context, t Trials, list []*Candidate, left []int, end time.Time) (done bool, err error) {
	turns, inTurn := 1, stepsOf(list[0].Seconds())
	if t.AllResident() {
		turns, inTurn = inTurn, 1
	}
	rng := rand.New(rand.NewPCG(1, uint64(len(left))))
	for range turns {
		rng.Shuffle(len(left), func(i, j int) { left[i], left[j] = left[j], left[i] }) // a step affects the next through the disk
		for _, i := range left {
			c := list[i]
			for range inTurn {
				seconds, err := t.Step(ctx, i)
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
