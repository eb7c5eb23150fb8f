package advise

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
)

// Lab plans and runs models.
type Lab interface {
	// Plan returns the tokens per second of a setting; ErrTooLarge: it does not fit.
	Plan(ctx context.Context, s Setting) (float64, error)
	// Run trains for so many steps, in which the learning rate rises and falls, and returns the loss on held-out text.
	Run(ctx context.Context, s Setting, steps int) (loss float64, err error)
	// Spent returns the seconds since the advice began.
	Spent() float64
}

// ErrTooLarge is of models that do not fit, ErrTooShort of a time in which nothing can be learnt from short runs.
var (
	ErrTooLarge = errors.New("too large to train")
	ErrTooShort = errors.New("the time is too short for a prediction")
)

// Question is what is asked.
type Question struct {
	Seconds  float64 // for everything
	Share    float64 // of them, for pilots
	Own      Setting // what the configuration has: the first guess
	Sequence int     // tokens
	Unique   float64 // tokens of text
	Frequent float64 // the loss of a model that knows how frequent tokens are, and no more
	Say      func(string)
}

// Pilot is a short run.
type Pilot struct {
	Setting
	Steps  int     `json:"steps"`
	Tokens float64 `json:"tokens"`
	Loss   float64 `json:"loss"`
	Law    bool    `json:"law"` // the law was fitted to it; else it was for rate and batch
}

// Choice is a model, and what is predicted of it.
type Choice struct {
	Setting
	Params float64 `json:"params"`
	Speed  float64 `json:"tokens_per_second"`
	Tokens float64 `json:"tokens"` // that it reads
	Loss   float64 `json:"loss"`
	OfSize float64 `json:"of_size"` // parts of the loss that a larger model, and more text, would not have
	OfText float64 `json:"of_text"`
	Spread float64 `json:"spread"` // of the loss, to either side; only of the best
}

// Advice is the answer. Choices are sorted by predicted loss.
type Advice struct {
	Seconds float64  `json:"seconds"` // that are left for the run
	Unique  float64  `json:"unique_tokens"`
	Law     Law      `json:"law"`
	Pilots  []Pilot  `json:"pilots"`
	Choices []Choice `json:"choices"`
}

// Best returns the model that is advised.
func (a *Advice) Best() *Choice { return &a.Choices[0] }

const (
	learnt      = 0.85 // of that loss: short runs that stay above have learnt too little for a law
	tuning      = 0.25 // of the pilots' time, for learning rate and batch
	tuningRuns  = 6    // at most
	longer      = 3    // a run of a size, times the one before
	leastSteps  = 20   // of a pilot
	reserved    = 0.02 // of the run's time, for validation and checkpoints
	mostOfBatch = 16   // times what a pilot reads is what the run does, which must be steps enough
)

// adviser finds the answer to a question.
type adviser struct {
	Question
	lab    Lab
	models []Model
	pilots []Pilot
	base   Setting // of the middle pilot
	slower float64 // how many times longer than planned the last pilot took, with all that surrounds its steps; 0: there was none
}

// Answer runs the pilots and chooses.
func Answer(ctx context.Context, q Question, lab Lab) (*Advice, error) {
	a := &adviser{Question: q, lab: lab, base: q.Own}
	if err := a.plan(ctx); err != nil {
		return nil, err
	}
	if err := a.tune(ctx); err != nil {
		return nil, err
	}
	law, points, err := a.fit(ctx)
	if err != nil {
		return nil, err
	}
	left := a.Seconds - lab.Spent()
	if left <= 0 {
		return nil, fmt.Errorf("%w: planning and short runs took %.3g s of %.3g; hint: set a max_time several times as long", ErrTooShort, lab.Spent(), a.Seconds)
	}
	answer := &Advice{Seconds: left, Unique: q.Unique, Law: law, Pilots: a.pilots}
	for _, m := range a.models {
		tokens := m.Speed * left * (1 - reserved)
		worth := Worth(tokens, q.Unique)
		answer.Choices = append(answer.Choices, Choice{Setting: a.scaled(m.Shape), Params: m.Params(), Speed: m.Speed, Tokens: tokens,
			Loss: law.Loss(m.Params(), worth), OfSize: law.OfSize(m.Params()), OfText: law.OfText(worth)})
	}
	slices.SortStableFunc(answer.Choices, func(x, y Choice) int { return cmp.Compare(x.Loss, y.Loss) })
	best := answer.Best()
	best.Spread = best.Loss * law.Spread(points, best.Params, Worth(best.Tokens, q.Unique))
	return answer, nil
}

// plan finds how fast the models train that may be the best ones.
func (a *adviser) plan(ctx context.Context) error {
	own := a.Own
	rate, err := a.lab.Plan(ctx, own)
	if err != nil {
		return err
	}
	n := FitBudget(trainingFLOPs * own.Params() * rate * a.Seconds)
	shapes := Shapes(n, own.Shape)
	for i, s := range shapes {
		a.Say(fmt.Sprintf("planning %d of %d: %v", i+1, len(shapes), s))
		set, speed := own, rate
		if set.Shape = s; s != own.Shape {
			if speed, err = a.lab.Plan(ctx, set); errors.Is(err, ErrTooLarge) {
				continue
			}
			if err != nil {
				return err
			}
		}
		a.models = append(a.models, Model{s, speed})
	}
	middle := a.models[nearest(a.models, n)]
	a.base = a.scaledFrom(own, middle.Shape)
	return nil
}

// scaledFrom returns a setting for another width: the learning rate falls as the root of the width grows.
func (a *adviser) scaledFrom(from Setting, s Shape) Setting {
	return Setting{s, from.Batch, from.Rate * math.Sqrt(float64(from.Width)/float64(s.Width))}
}

// scaled returns the setting of a shape, by what was found in the middle.
func (a *adviser) scaled(s Shape) Setting { return a.scaledFrom(a.base, s) }

// speed returns the planned tokens per second of a shape.
func (a *adviser) speed(s Shape) float64 {
	return a.models[slices.IndexFunc(a.models, func(m Model) bool { return m.Shape == s })].Speed
}

// run makes a pilot of so many seconds, and records it.
func (a *adviser) run(ctx context.Context, s Setting, seconds float64, law bool) (*Pilot, error) {
	each := float64(s.Batch * a.Sequence)
	steps := max(leastSteps, int(seconds/max(a.slower, 1)*a.speed(s.Shape)/each))
	began := a.lab.Spent()
	a.Say(fmt.Sprintf("pilot %d: %v, batch %d, learning rate %.2g, %d steps", len(a.pilots)+1, s.Shape, s.Batch, s.Rate, steps))
	loss, err := a.lab.Run(ctx, s, steps)
	if err != nil {
		return nil, err
	}
	a.slower = (a.lab.Spent() - began) * a.speed(s.Shape) / (float64(steps) * each)
	a.pilots = append(a.pilots, Pilot{s, steps, float64(steps) * each, loss, law})
	return &a.pilots[len(a.pilots)-1], nil
}

// tune finds the learning rate and the batch of the middle pilot, by runs of equal time: it doubles or halves each as long as the loss
// falls. A batch of twice as many sequences has the learning rate times the root of two.
func (a *adviser) tune(ctx context.Context) error {
	slice := a.Seconds * a.Share * tuning / tuningRuns
	first, err := a.run(ctx, a.base, slice, false)
	if err != nil {
		return err
	}
	best, runs := first.Loss, 1
	try := func(next Setting) (better bool, err error) {
		reads := slice * a.speed(next.Shape)
		if runs == tuningRuns || next.Batch < 1 || float64(next.Batch*a.Sequence)*leastSteps > reads*mostOfBatch {
			return false, nil
		}
		p, err := a.run(ctx, next, slice, false)
		if runs++; err != nil || !(p.Loss < best) {
			return false, err
		}
		best, a.base = p.Loss, next
		return true, nil
	}
	for _, change := range []func(s Setting, up bool) Setting{changeRate, changeBatch} {
		for moved, ups := false, []bool{true, false}; len(ups) > 0 && !moved; ups = ups[1:] {
			for {
				better, err := try(change(a.base, ups[0]))
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

func changeRate(s Setting, up bool) Setting {
	if s.Rate /= 2; up {
		s.Rate *= 4
	}
	return s
}

func changeBatch(s Setting, up bool) Setting {
	if up {
		return Setting{s.Shape, s.Batch * 2, s.Rate * math.Sqrt2}
	}
	return Setting{s.Shape, s.Batch / 2, s.Rate / math.Sqrt2}
}

// fit runs three sizes for two lengths each, and the middle one for a third, and fits the law to them.
func (a *adviser) fit(ctx context.Context) (Law, []Point, error) {
	middle := a.base.Params()
	sizes := slices.Compact([]int{nearest(a.models, middle/smallPilot), nearest(a.models, middle), nearest(a.models, middle*farther)})
	slice := a.Seconds * a.Share * (1 - tuning) / float64(len(sizes)*(1+longer)+longer*longer)
	var points []Point
	for _, at := range sizes {
		m, lengths := &a.models[at], []float64{slice, slice * longer}
		if m.Shape == a.base.Shape {
			lengths = append(lengths, slice*longer*longer)
		}
		for _, seconds := range lengths {
			p, err := a.run(ctx, a.scaled(m.Shape), seconds, true)
			if err != nil {
				return Law{}, nil, err
			}
			points = append(points, Point{m.Params(), Worth(p.Tokens, a.Unique), p.Loss})
		}
	}
	least := slices.MinFunc(points, func(x, y Point) int { return cmp.Compare(x.Loss, y.Loss) }).Loss
	if least > learnt*a.Frequent {
		return Law{}, nil, fmt.Errorf("%w: the best of the short runs has the loss %.3f, and one that knows only how frequent tokens are %.3f; hint: set a max_time several times as long, or a larger --share", ErrTooShort, least, a.Frequent)
	}
	law, err := FitLaw(points)
	return law, points, err
}
