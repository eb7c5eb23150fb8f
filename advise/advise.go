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

// UsualShare returns which part of so many seconds pilots may take: a tenth, but of less than an hour more, up to a quarter of ten minutes,
// since short runs of a small part of a short time learn too little.
func UsualShare(seconds float64) float64 { return min(0.25, max(0.1, 0.25*math.Sqrt(600/seconds))) }

// Pilot is a short run.
type Pilot struct {
	Setting
	Steps   int     `json:"steps"`
	Tokens  float64 `json:"tokens"`
	Loss    float64 `json:"loss"`
	Seconds float64 `json:"seconds"`
	Law     bool    `json:"law"` // the law was fitted to it; else it was for rate and batch
	slower  float64 // how many times longer than planned it took
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

const reserved = 0.02 // of the run's time, for validation and checkpoints

// adviser finds the answer to a question.
type adviser struct {
	Question
	lab    Lab
	models []Model
	size   float64 // parameters that the time is about right for
	recipe recipe
	speeds map[Setting]float64 // that were planned, at a rate of 0
	pilots []Pilot
	began  float64 // seconds after which the pilots began
}

// Answer runs the pilots and chooses.
func Answer(ctx context.Context, q Question, lab Lab) (*Advice, error) {
	a := &adviser{Question: q, lab: lab, speeds: map[Setting]float64{}}
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
	if answer.Choices, err = a.choose(ctx, law, left*(1-reserved)); err != nil {
		return nil, err
	}
	best := answer.Best()
	best.Spread = best.Loss * law.Spread(points, best.Params, Worth(best.Tokens, q.Unique))
	return answer, nil
}

// choose predicts what every model reaches in the time left. Speeds were planned with the configuration's batch: those of models that
// come first are planned anew with their own, until the best is such a one.
func (a *adviser) choose(ctx context.Context, law Law, seconds float64) (list []Choice, err error) {
	predict := func(s Setting, speed float64) Choice {
		tokens := speed * seconds
		worth := Worth(tokens, a.Unique)
		return Choice{Setting: s, Params: s.Params(), Speed: speed, Tokens: tokens, Loss: law.Loss(s.Params(), worth), OfSize: law.OfSize(s.Params()), OfText: law.OfText(worth)}
	}
	for _, m := range a.models {
		list = append(list, predict(a.recipe.of(m.Shape, m.Speed*seconds), m.Speed))
	}
	for exact := map[Shape]bool{}; len(list) > 0; {
		slices.SortStableFunc(list, func(x, y Choice) int { return cmp.Compare(x.Loss, y.Loss) })
		first := list[0]
		if exact[first.Shape] {
			return list, nil
		}
		exact[first.Shape] = true
		speed, err := a.speed(ctx, first.Setting)
		if errors.Is(err, ErrTooLarge) {
			list = list[1:]
			continue
		}
		if err != nil {
			return nil, err
		}
		list[0] = predict(first.Setting, speed)
	}
	return nil, fmt.Errorf("%w with the batch that is best for so long a run; hint: set a smaller global_batch", ErrTooLarge)
}

// plan finds how fast the models train that may be the best ones.
func (a *adviser) plan(ctx context.Context) error {
	own := a.Own
	rate, err := a.speed(ctx, own)
	if err != nil {
		return err
	}
	n := FitBudget(trainingFLOPs * own.Params() * rate * a.Seconds)
	shapes := Shapes(n, own.Shape)
	for i, s := range shapes {
		a.Say(fmt.Sprintf("planning %d of %d: %v", i+1, len(shapes), s))
		speed, err := a.speed(ctx, Setting{s, own.Batch, own.Rate})
		if errors.Is(err, ErrTooLarge) {
			continue
		}
		if err != nil {
			return err
		}
		a.models = append(a.models, Model{s, speed})
	}
	a.size = a.models[nearest(a.models, n)].Params()
	a.recipe = recipe{batch: float64(own.Batch), rate: own.Rate, width: own.Width, tokens: rate * a.Seconds}
	return nil
}

// speed returns the planned tokens per second of a setting, which do not depend on its learning rate.
func (a *adviser) speed(ctx context.Context, s Setting) (float64, error) {
	key := Setting{s.Shape, s.Batch, 0}
	if speed, ok := a.speeds[key]; ok {
		return speed, nil
	}
	speed, err := a.lab.Plan(ctx, s)
	if err == nil {
		a.speeds[key] = speed
	}
	return speed, err
}
