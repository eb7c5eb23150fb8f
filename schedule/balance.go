package schedule

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// Balance and BalanceOptions choose which layers each stage of a 1F1B pipeline gets and
// how it runs them. This is the inter-stage problem of Mist (EuroSys 2025, arXiv
// 2503.19050, 3.3), solved exactly but without its integer program:
//
//	min (G-1)*M + sum T_i + X    M >= T_i,  X >= D_i - (T_0 + ... + T_(i-1)),  X >= 0
//
// G is the number of micro-batches and T_i the time of stage i for one of them, forward
// and backward. D_i is the additional time of its first and last micro-batch (optimizer,
// reduction, fetching weights); the part that the pipeline's warm-up hides is free.
//
// Approach: let Q_i be T_0 + ... + T_i plus the least X that stages 0 to i permit. Then
// Q_i = T_i + max(Q_(i-1), D_i), and a smaller Q is never worse. So of all ways to assign
// the first layers to the first stages, the next stage needs only the Pareto front of
// (M, Q), and the best point of the last front is the optimum.
//
// Example: layers of 1, 1, 1, 3 on two stages, 8 micro-batches. Cut 3 + 1 (times 3, 3),
// the step takes (8-1)*3 + 6 = 27; cut 2 + 2 (times 2, 4), it takes (8-1)*4 + 6 = 34.
//
// Weakness: the formula is a model. 1F1B takes exactly that long with equal stages, and
// at most that long if on all stages the backward is longer than the forward by the same
// factor; otherwise it can take a little longer.

// Option is a way to run a stage. Times are in any one unit.
type Option struct {
	Time  float64 // of one micro-batch, forward and backward
	Extra float64 // additional time of the first and the last micro-batch together
}

// Split is a division of layers over stages.
type Split struct {
	Ends    []int   // by stage: the first layer after it
	Options []int   // by stage: the index of the option taken
	Slowest float64 // M: the largest Time of a stage
	Time    float64 // the objective: time of a step, in the unit of the options
}

// Balance divides layers with these times (forward and backward of one micro-batch) into
// contiguous stages, none of them empty. It returns a *UsageError for impossible numbers.
func Balance(times []float64, stages, micros int) (Split, error) {
	sums := make([]float64, len(times)+1)
	for i, t := range times {
		if !(t >= 0) || t > math.MaxFloat32 {
			return Split{}, &UsageError{fmt.Sprintf("a time of %g for layer %d", t, i), "times must be finite and not negative", "give a number >= 0"}
		}
		sums[i+1] = sums[i] + t
	}
	return BalanceOptions(len(times), stages, micros, func(_, first, end int) []Option {
		return []Option{{Time: sums[end] - sums[first]}}
	})
}

// part is one way to assign the first layers to the first stages, a point of a front.
type part struct {
	slowest, done float64 // M and Q
	end, option   int     // of its last stage
	before        *part   // the stages before that
}

// BalanceOptions is Balance with several ways to run a stage. options lists them for
// layers [first, end) on a stage; none means that they do not fit there. They may depend
// on the stage, since stages hold different numbers of micro-batches. BalanceOptions
// returns a *SplitError if no division has an option for every stage, and a *UsageError
// for impossible numbers.
func BalanceOptions(layers, stages, micros int, options func(stage, first, end int) []Option) (Split, error) {
	if stages < 1 || micros < 1 || layers < stages {
		return Split{}, &UsageError{fmt.Sprintf("%s on %s with %s", plural(layers, "layer"), plural(stages, "stage"), plural(micros, "micro-batch")),
			"each stage needs a layer, and there must be at least one stage and one micro-batch", "take no more stages than layers"}
	}
	fronts := make([][]*part, layers+1) // by the number of layers given away
	fronts[0] = []*part{{}}
	for stage := range stages {
		next := make([][]*part, layers+1)
		for end := stage + 1; end <= layers-(stages-1-stage); end++ {
			var all []*part
			for first := stage; first < end; first++ {
				if len(fronts[first]) == 0 {
					continue
				}
				for k, o := range options(stage, first, end) {
					for _, p := range fronts[first] {
						all = append(all, &part{max(p.slowest, o.Time), o.Time + max(p.done, o.Extra), end, k, p})
					}
				}
			}
			next[end] = front(all)
		}
		fronts = next
	}
	var best *part
	least := math.Inf(1)
	for _, p := range fronts[layers] {
		if time := float64(micros-1)*p.slowest + p.done; time < least {
			best, least = p, time
		}
	}
	if best == nil {
		return Split{}, &SplitError{layers, stages}
	}
	s := Split{Ends: make([]int, stages), Options: make([]int, stages), Slowest: best.slowest, Time: least}
	for i := stages - 1; i >= 0; i-- {
		s.Ends[i], s.Options[i], best = best.end, best.option, best.before
	}
	return s, nil
}

// front returns the Pareto front of all, by ascending slowest. It reuses all's memory.
func front(all []*part) []*part {
	slices.SortStableFunc(all, func(a, b *part) int {
		return cmp.Or(cmp.Compare(a.slowest, b.slowest), cmp.Compare(a.done, b.done))
	})
	kept, least := all[:0], math.Inf(1)
	for _, p := range all {
		if p.done < least {
			kept, least = append(kept, p), p.done
		}
	}
	return kept
}
