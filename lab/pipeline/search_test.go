package pipeline

import (
	"math"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"

	"github.com/athanor-llm/athanor/schedule"
)

// TestSearchNeverWorse compares Search with all named schedules, over a grid of ranks,
// micro-batches, times, messages and memory.
func TestSearchNeverWorse(t *testing.T) {
	var goals []Goal
	for _, pm := range [][2]int{{2, 3}, {2, 8}, {3, 5}, {4, 4}, {4, 8}, {4, 13}, {6, 12}, {8, 16}} {
		for _, times := range []schedule.Times{{F: 1, B: 1, W: 1}, {F: 1, B: 1.2, W: .8}, {F: 2, B: 3, W: 1}, {F: 10, B: 7, W: 9}, {F: 1, B: 2, W: .1}} {
			for _, comm := range []float64{0, .3} {
				for _, cap := range []float64{0, float64(pm[0]), 1.5 * float64(pm[0])} {
					q := schedule.Request{Ranks: pm[0], Micros: pm[1], Chunks: 1 + len(goals)%2, Cap: cap}
					q.Cap *= float64(q.Chunks)
					q.Costs = schedule.Costs{Times: times, Comm: comm * times.F, WeightMemory: .5}
					goals = append(goals, Goal{Request: q, Effort: 60000, Nodes: 2000, Seed: uint64(len(goals))})
				}
			}
		}
	}
	points, better, optimal := 0, 0, 0
	for _, goal := range testkit.Sample(goals, 7, 37) {
		q := goal.Request
		found, err := Search(goal)
		if err != nil {
			t.Fatalf("%+v: %v", q, err)
		}
		points++
		named := bestNamed(t, q)
		checkFound(t, q, found)
		if found.Timeline.Makespan > named*(1+1e-9) {
			t.Errorf("%+v: searched %g, best named %g", q, found.Timeline.Makespan, named)
		}
		if found.Timeline.Makespan < named*(1-1e-6) {
			better++
		}
		if found.Optimal {
			optimal++
		}
	}
	t.Logf("%d points: better than the best named schedule at %d, proved optimal at %d", points, better, optimal)
	if points < testkit.Count(7, 37, 200) || better < points/2 {
		t.Errorf("better at %d of %d points only", better, points)
	}
}

// bestNamed returns the least makespan of all named schedules that keep the cap.
func bestNamed(t *testing.T, q schedule.Request) float64 {
	t.Helper()
	best := math.Inf(1)
	for _, name := range schedule.Names() {
		s, err := schedule.Generate(name, q)
		if err != nil {
			continue
		}
		tl, err := s.Simulate(q.Costs)
		if err != nil {
			t.Fatal(err)
		}
		if q.Cap == 0 || s.CheckCap(q.Costs, q.Cap) == nil {
			best = math.Min(best, tl.Makespan)
		}
	}
	return best
}

func checkFound(t *testing.T, q schedule.Request, found *Found) {
	t.Helper()
	if err := found.Check(); err != nil {
		t.Errorf("%+v: %v", q, err)
	}
	if q.Cap > 0 && found.CheckCap(q.Costs, q.Cap) != nil {
		t.Errorf("%+v: the cap is broken", q)
	}
	if found.Timeline.Makespan < found.LowerBound*(1-1e-9) {
		t.Errorf("%+v: makespan %g below the lower bound %g", q, found.Timeline.Makespan, found.LowerBound)
	}
}

// TestExact compares the branch and bound with trying all orders of two or three ranks.
func TestExact(t *testing.T) {
	rng := testkit.Rand(t)
	for range testkit.Count(5, 15, 30) {
		p, m, sorted := 2, 2, rng.IntN(2) == 0
		if sorted { // each pass in order of micro-batches: fewer orders, larger cases
			m = 3
			p += rng.IntN(2)
		}
		pick := func() float64 { return float64(1 + rng.IntN(5)) }
		c := schedule.Costs{Times: schedule.Times{F: pick(), B: pick(), W: pick()}, Comm: float64(rng.IntN(3)), WeightMemory: .5}
		limit := math.Inf(1)
		if rng.IntN(3) > 0 {
			limit = 1 + float64(rng.IntN(5))/2
		}
		s := schedule.Empty(schedule.Request{Ranks: p, Micros: m, Chunks: 1, Slices: 1}, schedule.Plain, schedule.Loop(p, 1))
		want := exhaustive(s, c, limit, sorted)
		orders, got, complete := exactSolve(s, c, limit, math.Inf(1), 1<<20)
		if !complete || orders == nil || math.Abs(got-want) > 1e-9 {
			t.Fatalf("p=%d m=%d %+v cap %g: exact %g (complete %v), all orders %g", p, m, c, limit, got, complete, want)
		}
		s.Orders = orders
		tl, err := s.Simulate(c)
		if err != nil || math.Abs(tl.Makespan-got) > 1e-9 || s.CheckCap(c, limit) != nil {
			t.Fatalf("p=%d m=%d: the order runs in %v (%v), stated %g", p, m, tl, err, got)
		}
	}
}

// exhaustive returns the least makespan over all orders.
func exhaustive(s *schedule.Schedule, c schedule.Costs, limit float64, sorted bool) float64 {
	best := math.Inf(1)
	var all func(r int)
	all = func(r int) {
		if r == s.Ranks {
			if m := s.Clock(c); m.Run() {
				best = math.Min(best, m.Score(false).First)
			}
			return
		}
		for _, order := range extensions(r, s.Micros, sorted, c, limit) {
			s.Orders[r] = order
			all(r + 1)
		}
	}
	all(0)
	return best
}

// extensions returns the orders of one rank in which each micro-batch has F before Bx
// before W, under the cap. sorted: each pass in order of micro-batches.
func extensions(r, m int, sorted bool, c schedule.Costs, limit float64) [][]schedule.Unit {
	var list [][]schedule.Unit
	done := make([]int, m)
	var order []schedule.Unit
	var grow func(held float64)
	grow = func(held float64) {
		if held > limit+1e-9 {
			return
		}
		if len(order) == 3*m {
			list = append(list, append([]schedule.Unit(nil), order...))
			return
		}
		for i := range m {
			if done[i] == 3 || sorted && i > 0 && done[i-1] <= done[i] {
				continue
			}
			u := schedule.Unit{Pass: [...]schedule.Pass{schedule.F, schedule.Bx, schedule.W}[done[i]], Stage: r, Micro: i}
			done[i]++
			order = append(order, u)
			grow(held + c.Memory(u))
			order = order[:len(order)-1]
			done[i]--
		}
	}
	grow(0)
	return list
}

// TestSearchBuffers: Search accounts for gathers of sharded parameters.
func TestSearchBuffers(t *testing.T) {
	for _, gather := range []float64{0, .5, 3} {
		for _, buffers := range []int{1, 2} {
			q := schedule.Request{Ranks: 4, Micros: 8, Chunks: 2, Costs: schedule.DefaultCosts()}
			q.Costs.Gather, q.Costs.Buffers = gather, buffers
			found, err := Search(Goal{Request: q, Effort: 100000, Copies: 1})
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"interleaved", "breadth-first", "zb-v"} {
				_, tl := simulated(t, name, q)
				if found.Timeline.Makespan > tl.Makespan*(1+1e-9) {
					t.Errorf("gather %g, %d buffers: searched %g, %s %g", gather, buffers, found.Timeline.Makespan, name, tl.Makespan)
				}
			}
		}
	}
}

// TestCompare: all schedules have the same work, and known makespans.
func TestCompare(t *testing.T) {
	list, err := Compare(schedule.Request{Ranks: 4, Micros: 8, Costs: schedule.DefaultCosts()}, 100000)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, line := range list {
		got[line.Name] = line.Makespan
		if line.Why != "" {
			t.Errorf("%s: %s", line.Name, line.Why)
		}
		if line.Ideal != 24 {
			t.Errorf("%s: ideal %g, want the same work for all", line.Name, line.Ideal)
		}
	}
	for name, want := range map[string]float64{"gpipe": 33, "1f1b": 33, "interleaved": 28.5, "breadth-first": 28.5, "seq1f1b": 28.5,
		"zb-h1": 27, "bitpipe": 27, "chimera": 28, "dualpipe": 26, "search": 24.5} {
		if got[name] != want {
			t.Errorf("%s: %g, want %g", name, got[name], want)
		}
	}
	list, err = Compare(schedule.Request{Ranks: 4, Micros: 6, Cap: 2, Costs: schedule.DefaultCosts()}, 100000)
	if err != nil || list[0].Why == "" || list[len(list)-1].Why != "" {
		t.Errorf("cap 2: %+v, %v", list, err)
	}
}

// TestSearchSpan: Search is never worse than named schedules for the longest span either.
func TestSearchSpan(t *testing.T) {
	for i, times := range []schedule.Times{{F: 1, B: 1, W: 1}, {F: 1, B: 1.2, W: .8}, {F: 3, B: 2, W: 2}} {
		for _, cap := range []float64{4, 8} {
			q := schedule.Request{Ranks: 4, Micros: 9 + i, Cap: cap, Costs: schedule.Costs{Times: times, Comm: .1, WeightMemory: .4}}
			found, err := Search(Goal{Request: q, Span: true, Effort: 60000})
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range schedule.Names() {
				s, err := schedule.Generate(name, q)
				if err != nil || s.Chunks > 1 || s.Slices > 1 || s.CheckCap(q.Costs, cap) != nil {
					continue
				}
				if _, tl := simulated(t, name, q); found.Timeline.Span() > tl.Span()*(1+1e-9) {
					t.Errorf("%v cap %g: searched %g, %s %g", times, cap, found.Timeline.Span(), name, tl.Span())
				}
			}
		}
	}
}
