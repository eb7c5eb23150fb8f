package alloc

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
)

// Courses
//
// Approach: a cover has lost by the middle of its height what no work on its top
// will bring back: one deep hole in one moment is enough. So it is laid as a wall
// is, course by course. What a course has lost is looked at at once, and where
// that is most it is laid again with other noise, alone or with some of those
// below it, while there are items enough to choose from.
//
// Niches are filled in any order with the same result, so all that happens
// around a moment depends on what is near. Noise is drawn for each course and
// each window of some lifetimes; windows that change are three apart, and each
// goes back to its old noise if it has come out worse with its neighbours. Many
// are searched at once at the price of one.
//
// A window is as bad as the sum, over its sections, of e to the power of what it
// has lost, in units of half a mean size: few things matter but the worst.
//
// Example: course 13 of 20 leaves a hole 26 high above 1201, since the only item
// short enough lies in course 12. Twice 13 is laid again with other noise, and
// the hole is there; then 12 and 13 are, and it is not.
//
// Weakness: a hole that is found too late stays, as in one of twelve cuts of 100 000
// items by coarse edges; so what is far from the target is laid once more from the
// ground (recrest). Noise changes what is chosen among equals: if a taste is wrong
// for the items, courses are laid wrong again. And the last course, where a third of
// all is lost, has little to choose from; crests go on from there.

const (
	courseCount  = 40    // to the target
	courseDeep   = 8     // so many, at most, are laid again at a time
	courseNoise  = 0.005 // of a window at first,
	courseMore   = 4     // up to so many times more when it is laid again
	courseUnit   = 0.5   // mean sizes of loss that make a section e times as bad
	courseApart  = 3     // windows
	courseSteep  = 4     // the effort for a course grows with its height to this power,
	courseHole   = 0.5   // or, while one moment has lost more than so much of what the start loses in the mean,
	courseLonger = 24    // it is at least such a part of what is left
	courseWorth  = 10    // the effort is so many times what a cover takes, or it is not worth it
)

// courses are a covering that is being laid.
type courses struct {
	*covering
	packing
	windows int
	levels  []int64   // where each course ends
	tastes  [][]taste // per course and window
	stands  []stand   // before each course
	rng     *rand.Rand
	effort  int64
}

// A stand is the state of a covering, to which it can go back. What has been
// placed since keeps its offset until it gets another.
type stand struct {
	slack []int64
	price []float64
	born  []int32
	count []int32
	alive []int32
	left  int
	line  niches
}

// note makes a stand what the covering is now.
func (c *covering) note(s *stand) {
	s.slack, s.price = append(s.slack[:0], c.slack...), append(s.price[:0], c.price...)
	s.born, s.count, s.alive = append(s.born[:0], c.born...), append(s.count[:0], c.count...), append(s.alive[:0], c.alive...)
	s.left = c.left
	s.line.copy(c.line)
}

// back makes the covering what it was.
func (c *covering) back(s *stand) {
	copy(c.slack, s.slack)
	copy(c.price, s.price)
	copy(c.born, s.born)
	copy(c.count, s.count)
	copy(c.alive, s.alive)
	c.left = s.left
	c.line.copy(&s.line)
}

// lay covers a leaf course by course, with other noise in each attempt. Loss is what
// the start loses in the mean of all moments if it covers the leaf at once.
func (s start) lay(ctx context.Context, l leaf, target, effort int64, loss float64, attempt uint64) packing {
	c, p := s.ground(l, target)
	w := newCourses(c, effort, attempt)
	weights := 0.0
	for k := range courseCount {
		weights += courseWeight(k)
	}
	for k := range courseCount {
		level := target / courseCount * int64(k+1)
		if k == courseCount-1 {
			level = math.MaxInt64
		}
		w.begin(level, s.taste)
		w.mend(ctx, int64(float64(w.effort)*courseWeight(k)/weights), int64(courseHole*loss))
		weights -= courseWeight(k)
	}
	w.height = 0 // it was that of the highest try
	for k := range c.items {
		w.height = max(w.height, w.offsets[k]+c.items[k].size)
	}
	return p.with(c.items, w.packing)
}

// courseWeight is a course's part of the effort.
func courseWeight(k int) float64 { return math.Pow(float64(k+1), courseSteep) }

func newCourses(c *covering, effort int64, attempt uint64) *courses {
	w := &courses{covering: c, packing: packing{offsets: make([]int64, len(c.items))}, windows: len(c.tastes),
		stands: make([]stand, 1), rng: rand.New(rand.NewPCG(3+attempt<<32, uint64(len(c.items)))), effort: effort}
	c.note(&w.stands[0])
	return w
}

// begin lays another course, up to a level.
func (w *courses) begin(level int64, t taste) {
	k := len(w.levels)
	w.levels = append(w.levels, level)
	w.tastes = append(w.tastes, slices.Repeat([]taste{t}, w.windows))
	for i := range w.windows {
		w.renew(k, i, courseNoise)
	}
	w.stands = append(w.stands, stand{})
	if k >= courseDeep {
		w.stands[k+1], w.stands[k-courseDeep] = w.stands[k-courseDeep], stand{} // is not gone back to
	}
	w.relay(k)
}

// renew draws other noise for a window of a course.
func (w *courses) renew(k, window int, noise float64) {
	w.tastes[k][window].seed, w.tastes[k][window].noise = w.rng.Uint64(), noise
}

// relay lays a course, and those above it, once more.
func (w *courses) relay(from int) {
	for k := from; k < len(w.levels); k++ {
		w.back(&w.stands[k])
		w.prefer(w.tastes[k])
		left := int64(math.MaxInt64)
		w.rise(w.levels[k], &w.packing, &left)
		w.effort -= math.MaxInt64 - left + int64(max(len(w.items)/2, 1))
		w.note(&w.stands[k+1])
	}
}

// mend lays the last course again, and some below it, as long as the effort allows
// and something has been lost that there was not to spare; longer if that is more
// than a hole.
func (w *courses) mend(ctx context.Context, effort, hole int64) {
	until, last := w.effort-effort, w.effort-max(effort, w.effort/courseLonger)
	top := len(w.levels) - 1
	lowest := max(top-courseDeep+1, 0)
	best, first := cloned(w.tastes[lowest:]), top+1
	stale := top + 1 // courses from here on are not what their tastes make of them
	for bad, least := w.bad(); ctx.Err() == nil; {
		if lost := -slices.Min(w.slack); lost <= 0 || w.effort <= last || w.effort <= until && lost <= hole {
			break
		}
		from := top
		for from > lowest && w.rng.IntN(2) == 0 {
			from--
		}
		before, change := cloned(w.tastes[from:]), w.choose(bad)
		for _, i := range change {
			for k := from; k <= top; k++ {
				w.renew(k, i, between(w.rng, courseNoise, courseMore*courseNoise))
			}
		}
		w.relay(min(from, stale))
		stale, first = top+1, min(first, from)
		now, sum := w.bad()
		if sum < least {
			least, best = sum, cloned(w.tastes[lowest:])
		}
		for _, i := range change {
			near, end := max(i-1, 0), min(i+2, w.windows)
			if total(now[near:end]) <= total(bad[near:end]) {
				copy(bad[near:end], now[near:end])
				continue
			}
			for k := from; k <= top; k++ {
				w.tastes[k][i] = before[k-from][i]
			}
			stale = from
		}
	}
	copy(w.tastes[lowest:], best)
	w.relay(first)
}

// choose picks windows to change among those that are worse than a random one of
// the worse half.
func (w *courses) choose(bad []float64) (change []int) {
	sorted := slices.Sorted(slices.Values(bad))
	limit := sorted[w.windows-1-w.rng.IntN((w.windows+1)/2)]
	taken := make([]bool, w.windows)
	for _, i := range w.rng.Perm(w.windows) {
		near := taken[max(i-courseApart+1, 0):min(i+courseApart, w.windows)]
		if bad[i] >= limit && !slices.Contains(near, true) {
			taken[i] = true
			change = append(change, i)
		}
	}
	return change
}

// bad is how bad each window is, and the sum.
func (w *courses) bad() (bad []float64, sum float64) {
	bad = make([]float64, w.windows)
	for s, slack := range w.slack {
		bad[s>>w.shift] += math.Exp(-float64(slack) / (courseUnit * w.mean))
	}
	return bad, total(bad)
}

func total(x []float64) (sum float64) {
	for _, v := range x {
		sum += v
	}
	return sum
}

func cloned(tastes [][]taste) [][]taste {
	c := make([][]taste, len(tastes))
	for k := range tastes {
		c[k] = slices.Clone(tastes[k])
	}
	return c
}
