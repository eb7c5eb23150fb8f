package schedule

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// Which layers belong to which stage of a 1F1B pipeline, and how each stage is run: the inter-stage problem of Mist
// (EuroSys 2025, 2503.19050, 3.3), solved exactly without its integer program.
//
//	min (G-1)*M + sum T_i + X    M >= T_i,  X >= D_i - (T_0 + ... + T_(i-1)),  X >= 0
//
// G micro-batches; T_i what stage i needs for one, forward and backward; D_i what its first and last ones need in
// addition (optimizer, reduction, fetching), of which what the fill of the pipeline hides costs nothing.
//
// Approach: let Q_i = T_0 + ... + T_i + X so far. Then Q_i = T_i + max(Q_(i-1), D_i): one number, and less is never worse.
// So the front of (M, Q) over all ways to give the first layers to the first stages is all that the next stage needs to
// know, and the best of the last front is the optimum.
//
// Example: layers of 1, 1, 1, 3 on two stages: 3 + 3. With 8 micro-batches (8-1)*3 + 6 = 27; two layers each cost
// (8-1)*4 + 6 = 34.
//
// Weakness: the formula. 1F1B takes just that with equal stages, and no more than that if backwards are longer than
// forwards by the same factor everywhere; otherwise it can take a little more.

// Option is a way to run a stage. Times are in any one unit.
type Option struct {
	Time  float64 // of one micro-batch, forward and backward
	Extra float64 // of the first and the last micro-batch together, beyond that
}

// Split is a division of layers over stages.
type Split struct {
	Ends    []int   // the first layer after each stage
	Options []int   // which option of each stage
	Slowest float64 // M
	Time    float64 // the objective: seconds of a step, if the options are in seconds
}

// Balance cuts layers of these times into stages, contiguous and none empty.
func Balance(times []float64, stages, micros int) (Split, error) {
	sums := make([]float64, len(times)+1)
	for i, t := range times {
		if !(t >= 0) || t > math.MaxFloat32 {
			return Split{}, &UsageError{fmt.Sprintf("a time of %g for layer %d", t, i), "times are finite and not negative", "give a number >= 0"}
		}
		sums[i+1] = sums[i] + t
	}
	return BalanceOptions(len(times), stages, micros, func(_, first, end int) []Option {
		return []Option{{Time: sums[end] - sums[first]}}
	})
}

// part is one way to give the first layers to the first stages, a point of the front.
type part struct {
	slowest, done float64 // M and Q
	end, option   int     // of the last stage
	before        *part
}

// BalanceOptions is Balance where a stage may be run in several ways, or in none if it does not fit: options lists them for
// layers [first, end) on a stage. Different stages may have different ones: they hold different numbers of micro-batches.
// The error is a *SplitError if no split has an option for every stage.
func BalanceOptions(layers, stages, micros int, options func(stage, first, end int) []Option) (Split, error) {
	if stages < 1 || micros < 1 || layers < stages {
		return Split{}, &UsageError{fmt.Sprintf("%s on %s with %s", plural(layers, "layer"), plural(stages, "stage"), plural(micros, "micro-batch")),
			"each stage has a layer, and there is something to do", "take no more stages than layers"}
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

// front keeps what is not worse than another one in both ways.
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
