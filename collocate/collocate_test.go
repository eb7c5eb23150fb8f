package collocate

import (
	"math"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
)

var all = [numResources]bool{true, true, true, true, true}

func run(seconds float64, use ...float64) *Run {
	r := &Run{Seconds: seconds}
	copy(r.Use[:], use)
	return r
}

// TestFairRates: rates in closed form.
func TestFairRates(t *testing.T) {
	for _, c := range []struct {
		what string
		runs []*Run
		want []float64
	}{
		{"idle for long enough", []*Run{run(1, 0.4), run(2, 0.8)}, []float64{1, 1}},
		{"busy", []*Run{run(1, 0.8), run(1, 0.8)}, []float64{0.625, 0.625}},
		{"one needs little", []*Run{run(1, 1), run(1, 0.1)}, []float64{1 / 1.1, 1 / 1.1}},
		{"another resource is full", []*Run{run(1, 0.2, 1), run(1, 0.2, 1), run(1, 0.5)}, []float64{0.5, 0.5, 1}},
		{"alone", []*Run{run(3, 3, 3, 3)}, []float64{1}},
	} {
		got := FairRates(c.runs, all)
		for i := range got {
			if math.Abs(got[i]-c.want[i]) > 1e-12 {
				t.Errorf("%s: %v, want %v", c.what, got, c.want)
			}
		}
	}
	if got := FairRates([]*Run{run(1, 1, 1), run(1, 1, 1)}, [numResources]bool{}); !slices.Equal(got, []float64{1, 1}) {
		t.Errorf("nothing is shared: %v", got)
	}
}

// TestFairRatesHold: no resource is used for more than all of the time, no job is faster than alone, and none can be made
// faster but at the cost of one that is no faster: each slower one uses a full resource, on which it is among the fastest.
func TestFairRatesHold(t *testing.T) {
	r := testkit.Rand(t)
	for range testkit.Count(100, 300, 3000) {
		runs := make([]*Run, 1+r.IntN(6))
		for i := range runs {
			runs[i] = &Run{Seconds: 0.1 + r.Float64()}
			for k := range numResources {
				if r.IntN(3) > 0 {
					runs[i].Use[k] = r.Float64() * runs[i].Seconds
				}
			}
		}
		rates := FairRates(runs, all)
		var used [numResources]float64
		for i, run := range runs {
			for k := range numResources {
				used[k] += rates[i] * run.Use[k] / run.Seconds
			}
		}
		for i, run := range runs {
			held := rates[i] > 1-1e-9
			for k := range numResources {
				if used[k] > 1+1e-9 {
					t.Fatalf("resource %d is used %v of the time", k, used[k])
				}
				fastest := !slices.ContainsFunc(runs, func(o *Run) bool { return o.Use[k] > 0 && rates[slices.Index(runs, o)] > rates[i]+1e-9 })
				held = held || run.Use[k] > 0 && used[k] > 1-1e-9 && fastest
			}
			if !held || rates[i] > 1+1e-9 {
				t.Fatalf("job %d has rate %v, and nothing holds it back: %v", i, rates[i], used)
			}
		}
	}
}

// TestAssign: the best of all assignments, by trying permutations of numbers.
func TestAssign(t *testing.T) {
	r := testkit.Rand(t)
	for range testkit.Count(50, 200, 2000) {
		instances := []string{"a", "a", "b", "b", "c"}[:1+r.IntN(5)]
		jobs := 1 + r.IntN(4)
		values := map[string][]float64{}
		for _, name := range []string{"a", "b", "c"} {
			for range jobs {
				v := r.Float64()
				if r.IntN(5) == 0 {
					v = math.Inf(-1)
				}
				values[name] = append(values[name], v)
			}
		}
		want := math.Inf(-1)
		order := make([]int, jobs)
		for code := range int(math.Pow(float64(len(instances)), float64(jobs))) {
			sum, rest := 0.0, code
			for j := range order {
				order[j], rest = rest%len(instances), rest/len(instances)
				sum += values[instances[order[j]]][j]
			}
			if slices.Sort(order); len(slices.Compact(order)) == jobs {
				want = max(want, sum)
			}
		}
		sum, on := Assign(jobs, instances, func(j int, name string) float64 { return values[name][j] })
		if sum != want && math.Abs(sum-want) > 1e-12 || (len(on) == jobs) == math.IsInf(want, -1) {
			t.Fatalf("%v on %v, want %v", sum, on, want)
		}
	}
}
