package optimizer

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/athanor-llm/athanor/internal/suggest"
)

// RateSchedule is how the learning rate falls from its peak to its end, after the warm-up.
type RateSchedule struct {
	Name string
	// Fallen returns how much of the fall is behind where a share x of the steps after the warm-up is, if the share decay at
	// their end is set apart for the fall. All are 0 to 1. Both ends are exact: at 0 and at 1.
	Fallen func(x, decay float64) float64
	// Decays reports whether Fallen depends on decay.
	Decays bool
	// End is the usual rate at the end, as a share of the peak.
	End float64
}

var rateSchedules = []RateSchedule{
	{Name: "cosine", End: 0.1, Fallen: func(x, _ float64) float64 { return (1 - math.Cos(math.Pi*x)) / 2 }},
	{Name: "linear", End: 0.1, Fallen: func(x, _ float64) float64 { return x }},
	{Name: "constant", End: 0.1, Fallen: func(_, _ float64) float64 { return 0 }},
	// Warm-up, stable, decay (Hu et al., 2404.06395): the rate stays at its peak, so that a run may end anywhere.
	{Name: "wsd", Decays: true, Fallen: decayed},
	// With 1-sqrt, which Hägele et al. (2405.18392, section 3) find better than a linear decay.
	{Name: "wsd-sqrt", Decays: true, Fallen: func(x, decay float64) float64 { return math.Sqrt(decayed(x, decay)) }},
}

// decayed returns how much of the last part of the steps is behind.
func decayed(x, decay float64) float64 {
	switch {
	case x >= 1:
		return 1
	case decay <= 0:
		return 0
	}
	const rounded = 1e-12 // whose root is not small
	if over := 1 - (1-x)/decay; over > rounded {
		return over
	}
	return 0
}

// RateScheduleNamed returns the schedule of a name.
func RateScheduleNamed(name string) (RateSchedule, error) {
	var names []string
	for _, s := range rateSchedules {
		names = append(names, s.Name)
	}
	if i := slices.Index(names, name); i >= 0 {
		return rateSchedules[i], nil
	}
	return RateSchedule{}, fmt.Errorf("%q is not one of %s%s", name, strings.Join(names, ", "), suggest.Hint(name, names))
}
