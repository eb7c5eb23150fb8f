package advise

import (
	"context"
	"fmt"
	"math"
	"slices"
)

// Pilots: short runs, which batch and rate they have, and what they are compared for.
//
// A run that is as short as a pilot is best with a much smaller batch than the run that it stands for: with that one's it has so few
// steps that it learns nothing. So the first guess is what the configuration has, for a run of the whole time, and pilots have what a
// recipe makes of it.

// recipe is the batch and the learning rate of a run of so many tokens of a model of one width. The best batch grows as the root of a
// run's length, the learning rate as the root of the batch, and it falls as that of the width.
type recipe struct {
	batch, rate float64
	width       int
	tokens      float64
}

// of returns the setting of another run.
func (r recipe) of(s Shape, tokens float64) Setting {
	batch := max(1, math.Round(r.batch*math.Sqrt(tokens/r.tokens)))
	return Setting{s, int(batch), r.rate * math.Sqrt(batch/r.batch*float64(r.width)/float64(s.Width))}
}

const (
	learnt      = 0.8 // of that loss: short runs that stay above have learnt too little for a law
	tuning      = 0.2 // of the pilots' time, for learning rate and batch
	tuningRuns  = 4   // at most
	leastSteps  = 20  // of a pilot
	leastPoints = 3   // that have learnt something
)

// rungs are the pilots that the law is fitted to: of models whose size is that part of the one that the time is about right for, and for
// that part of the time. The law's two exponents are those of sizes and of lengths that are as far apart as possible, so most of the
// time is for long runs of small models. The longest one is last: it has what the others left.
var rungs = []struct{ size, time float64 }{{1. / 9, 1. / 31}, {1. / 9, 3. / 31}, {1. / 3, 3. / 31}, {1, 3. / 31}, {1. / 3, 9. / 31}, {1. / 9, 12. / 31}}

// pilot is the run of a model for so many seconds.
func (a *adviser) pilot(ctx context.Context, s Shape, seconds float64) (set Setting, steps int, err error) {
	speed, err := a.speed(ctx, Setting{s, a.Own.Batch, a.Own.Rate})
	for range 2 { // a smaller batch is slower
		if err != nil {
			return set, 0, err
		}
		set = a.recipe.of(s, max(seconds*speed, float64(leastSteps*a.Sequence)))
		speed, err = a.speed(ctx, set)
		speed /= a.slower(s)
	}
	if err != nil {
		return set, 0, err
	}
	return set, max(leastSteps, int(seconds*speed/float64(set.Batch*a.Sequence))), nil
}

// slower returns how many times longer than planned a model's pilot takes, with all that surrounds its steps: as the last one of this
// shape did, or at most as any other.
func (a *adviser) slower(s Shape) float64 {
	most := 1.0
	for _, p := range slices.Backward(a.pilots) {
		if p.Shape == s {
			return p.slower
		}
		most = max(most, p.slower)
	}
	return most
}

// run makes a pilot, and records it.
func (a *adviser) run(ctx context.Context, s Setting, steps int) (*Pilot, error) {
	speed, err := a.speed(ctx, s)
	if err != nil {
		return nil, err
	}
	began, tokens := a.lab.Spent(), float64(steps*s.Batch*a.Sequence)
	a.Say(fmt.Sprintf("pilot %d: %v, batch %d, learning rate %.2g, %d steps", len(a.pilots)+1, s.Shape, s.Batch, s.Rate, steps))
	loss, err := a.lab.Run(ctx, s, steps)
	if err != nil {
		return nil, err
	}
	seconds := a.lab.Spent() - began
	a.pilots = append(a.pilots, Pilot{Setting: s, Steps: steps, Tokens: tokens, Seconds: seconds, Loss: loss, slower: seconds * speed / tokens})
	return &a.pilots[len(a.pilots)-1], nil
}

// tune finds the learning rate and the batch, by runs of the smaller model that read equally much: it doubles or halves each as long as
// the loss falls by more than chance, to one that says that something was learnt, since before that other rates are the best ones.
// A batch of twice as many sequences has the learning rate times the root of two. Where runs take longer than planned there are fewer.
func (a *adviser) tune(ctx context.Context) error {
	a.began = a.lab.Spent()
	shape := nearestShape(a.size * rungs[0].size)
	set, steps, err := a.pilot(ctx, shape, a.Seconds*a.Share*tuning/tuningRuns)
	if err != nil {
		return err
	}
	tokens := float64(steps * set.Batch * a.Sequence)
	first, err := a.run(ctx, set, steps)
	if err != nil {
		return err
	}
	best := first.Loss
	try := func(next recipe) (better bool, err error) {
		set := next.of(shape, tokens)
		steps := int(tokens) / (set.Batch * a.Sequence)
		tried := func(p Pilot) bool { return p.Setting == set }
		if len(a.pilots) == tuningRuns || a.lab.Spent()-a.began > a.Seconds*a.Share*tuning || next.batch < 1 || steps < leastSteps || slices.ContainsFunc(a.pilots, tried) {
			return false, nil
		}
		p, err := a.run(ctx, set, steps)
		if err != nil || !(p.Loss < min(best*(1-lossNoise), learnt*a.Frequent)) {
			return false, err
		}
		best, a.recipe = p.Loss, next
		return true, nil
	}
	for _, change := range []func(r recipe, times float64) recipe{changeRate, changeBatch} {
		for moved, times := false, []float64{2, 0.5}; len(times) > 0 && !moved; times = times[1:] {
			for {
				better, err := try(change(a.recipe, times[0]))
				if err != nil {
					return err
				}
				if !better {
					break
				}
				moved = true
			}
		}
	}
	return nil
}

func changeRate(r recipe, times float64) recipe {
	r.rate *= times
	return r
}

func changeBatch(r recipe, times float64) recipe {
	r.batch *= times
	r.rate *= math.Sqrt(times)
	return r
}

// fit runs the rungs, and fits the law to those that have learnt something.
func (a *adviser) fit(ctx context.Context) (Law, []Point, error) {
	var points []Point
	least, ahead := math.Inf(1), 1.0 // part of the time
	for _, r := range rungs {
		left := a.began + a.Seconds*a.Share - a.lab.Spent()
		set, steps, err := a.pilot(ctx, nearestShape(a.size*r.size), left*r.time/ahead)
		if err != nil {
			return Law{}, nil, err
		}
		ahead -= r.time
		p, err := a.run(ctx, set, steps)
		if err != nil {
			return Law{}, nil, err
		}
		least = min(least, p.Loss)
		if p.Law = p.Loss < learnt*a.Frequent; p.Law {
			points = append(points, Point{p.Params(), Worth(p.Tokens, a.Unique), p.Loss})
		}
	}
	if len(points) < leastPoints {
		return Law{}, nil, fmt.Errorf("%w: %d of the short runs have learnt something; the best has the loss %.3f, and one that knows only how frequent tokens are %.3f; hint: set a max_time several times as long, or a larger --share", ErrTooShort, len(points), least, a.Frequent)
	}
	law, err := FitLaw(points)
	return law, points, err
}
