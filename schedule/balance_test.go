package schedule

import (
	"errors"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// objective evaluates Mist's objective as its integer program states it.
func objective(micros int, chosen []Option) float64 {
	slowest, sum, x := 0.0, 0.0, 0.0
	for _, o := range chosen {
		slowest = max(slowest, o.Time)
		x = max(x, o.Extra-sum)
		sum += o.Time
	}
	return float64(micros-1)*slowest + sum + x
}

// splits visits every division of layers over stages with every choice of options.
func splits(layers, stages int, options func(stage, first, end int) []Option, visit func(ends []int, chosen []Option)) {
	var next func(ends []int, chosen []Option)
	next = func(ends []int, chosen []Option) {
		stage, first := len(ends), 0
		if stage > 0 {
			first = ends[stage-1]
		}
		if stage == stages {
			if first == layers {
				visit(ends, chosen)
			}
			return
		}
		for end := first + 1; end <= layers; end++ {
			for _, o := range options(stage, first, end) {
				next(append(slices.Clone(ends), end), append(slices.Clone(chosen), o))
			}
		}
	}
	next(nil, nil)
}

// TestBalance compares with all divisions and options. Options are drawn per stage and
// range of layers, sometimes none.
func TestBalance(t *testing.T) {
	testkit.Check(t, func(r *rapid.T) {
		layers := rapid.IntRange(1, 6).Draw(r, "layers")
		stages := rapid.IntRange(1, min(layers, 4)).Draw(r, "stages")
		micros := rapid.SampledFrom([]int{1, 2, 5, 32}).Draw(r, "micro-batches")
		table := map[[3]int][]Option{}
		options := func(stage, first, end int) []Option {
			at := [3]int{stage, first, end}
			if _, drawn := table[at]; !drawn {
				table[at] = []Option{}
				for range rapid.IntRange(0, 3).Draw(r, "options") {
					table[at] = append(table[at], Option{float64(rapid.IntRange(0, 9).Draw(r, "time")), float64(rapid.IntRange(0, 20).Draw(r, "extra"))})
				}
			}
			return table[at]
		}
		least := math.Inf(1)
		splits(layers, stages, options, func(_ []int, chosen []Option) { least = min(least, objective(micros, chosen)) })
		got, err := BalanceOptions(layers, stages, micros, options)
		if misfit := new(SplitError); errors.As(err, &misfit) != math.IsInf(least, 1) {
			r.Fatalf("%v, the best of all is %g", err, least)
		}
		if err != nil {
			return
		}
		var chosen []Option
		first := 0
		for i, end := range got.Ends {
			chosen = append(chosen, options(i, first, end)[got.Options[i]])
			first = end
		}
		if first != layers || len(got.Ends) != stages || objective(micros, chosen) != got.Time || got.Time != least {
			r.Errorf("%+v is worth %g, the best of all is %g", got, objective(micros, chosen), least)
		}
	})
}

// TestBalanceTimes: with one option per stage, the slowest stage decides.
func TestBalanceTimes(t *testing.T) {
	testkit.Check(t, func(r *rapid.T) {
		times := rapid.SliceOfN(rapid.Float64Range(0, 10), 1, 9).Draw(r, "times")
		stages := rapid.IntRange(1, len(times)).Draw(r, "stages")
		total := 0.0
		for _, x := range times {
			total += x
		}
		slowest := math.Inf(1)
		splits(len(times), stages, func(_, first, end int) []Option {
			sum := 0.0
			for _, x := range times[first:end] {
				sum += x
			}
			return []Option{{Time: sum}}
		}, func(_ []int, chosen []Option) {
			worst := 0.0
			for _, o := range chosen {
				worst = max(worst, o.Time)
			}
			slowest = min(slowest, worst)
		})
		got, err := Balance(times, stages, 7)
		if err != nil {
			r.Fatal(err)
		}
		if math.Abs(got.Slowest-slowest) > 1e-9 || math.Abs(got.Time-6*slowest-total) > 1e-9 {
			r.Errorf("%+v, want %g", got, slowest)
		}
	})
	got, err := Balance([]float64{1, 1, 1, 3}, 2, 8)
	if err != nil || !slices.Equal(got.Ends, []int{3, 4}) || got.Time != 27 {
		t.Errorf("%+v %v", got, err)
	}
	// An embedding (1), twelve layers (2 each), head and loss (5): the last stage has fewer layers.
	long := append(append([]float64{1}, slices.Repeat([]float64{2}, 12)...), 5)
	if got, err = Balance(long, 4, 16); err != nil || got.Slowest != 8 || got.Ends[3]-got.Ends[2] >= got.Ends[1]-got.Ends[0] {
		t.Errorf("%+v %v", got, err)
	}
	for _, x := range []struct {
		times          []float64
		stages, micros int
	}{{nil, 1, 1}, {long, 0, 1}, {long, 2, 0}, {long, 15, 1}, {[]float64{1, math.NaN()}, 1, 1}, {[]float64{-1}, 1, 1}} {
		if misuse := new(UsageError); func() bool { _, err := Balance(x.times, x.stages, x.micros); return !errors.As(err, &misuse) }() {
			t.Errorf("%+v is accepted", x)
		}
	}
}

// TestBalanceSimulated compares the objective with simulated 1F1B if on all stages the
// backward is longer than the forward by the same factor: it is equal for equal stages,
// else never less.
func TestBalanceSimulated(t *testing.T) {
	testkit.Check(t, func(r *rapid.T) {
		p, m := rapid.IntRange(1, 5).Draw(r, "stages"), rapid.IntRange(1, 9).Draw(r, "micro-batches")
		factor := float64(rapid.IntRange(0, 4).Draw(r, "backward/forward"))
		equal := rapid.Bool().Draw(r, "equal")
		s, err := Generate("1f1b", Request{Ranks: p, Micros: m})
		if err != nil {
			r.Fatal(err)
		}
		c := DefaultCosts()
		var chosen []Option
		for i := range p {
			f := float64(rapid.IntRange(1, 9).Draw(r, "forward"))
			if equal && i > 0 {
				f = c.Stages[0].F
			}
			c.Stages = append(c.Stages, Times{F: f, B: factor * f})
			chosen = append(chosen, Option{Time: f + factor*f})
		}
		run, err := s.Simulate(c)
		if err != nil {
			r.Fatal(err)
		}
		want := objective(m, chosen)
		if equal && run.Makespan != want || run.Makespan > want {
			r.Errorf("%g simulated, %g by the formula", run.Makespan, want)
		}
	})
}
