package pack

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/athanor-llm/athanor/alloc/parts"
)

// Courses
//
// Approach: half way up, a cover may already have wasted more than any work on
// its top can recover: one deep hole at one moment is enough. So build it like a
// wall, in courses (horizontal layers). Check the waste of each course at once,
// and where it is worst, lay the course again with other noise, alone or with
// some courses below it, while there are still enough items to choose from.
//
// The order in which niches are filled does not change the result, so what
// happens around a moment depends only on what is nearby. Noise is drawn for each
// course and each window of a few lifetimes. Windows that change are at least
// three apart, and each returns to its old noise if it and its neighbours came
// out worse. This searches many windows for the price of one.
//
// The badness of a window is the sum over its sections of exp(-slack), in units of
// half a mean size (slack: see cover.go): the worst sections dominate.
//
// Example: course 13 of 20 leaves a hole 26 high above 1201, since the only item
// short enough lies in course 12. Laying course 13 again twice with other noise
// does not remove the hole; laying 12 and 13 again does.
//
// Weakness: a hole that is found too late stays, as in one of twelve cuts of 100 000
// items by coarse edges; so packings far from the target are laid again from the
// ground (lowerByCrests). Noise only decides between near-equal chains: with a taste that
// is wrong for the items, every attempt is wrong. And the last course, where a third
// of all waste occurs, has few items to choose from; crests go on from there.

const (
	courseCount  = 40    // courses from the ground to the target
	courseDeep   = 8     // most courses laid again at a time
	courseNoise  = 0.005 // noise of a window at first,
	courseMore   = 4     // up to this many times as much when it is laid again
	courseUnit   = 0.5   // slack, in mean sizes, that divides a section's badness by e
	courseApart  = 3     // least distance of windows that change together
	courseSteep  = 4     // a course's share of the effort grows with this power of its number;
	courseHole   = 0.5   // while a moment's excess waste is above this fraction of the start's mean loss,
	courseLonger = 24    // it may use at least 1/courseLonger of all the effort left
	courseWorth  = 10    // courses are tried if the effort exceeds this many times that of one cover
)

// courses is a covering laid course by course.
type courses struct {
	*covering
	parts.Packing
	windows int
	levels  []int64   // top of each course
	tastes  [][]taste // per course and window
	stands  []stand   // state before each course
	rng     *rand.Rand
	effort  int64
}

// A stand is a snapshot of a covering. Items placed after it keep their stale
// offsets until they are placed again.
type stand struct {
	slack []int64
	price []float64
	born  []int32
	count []int32
	alive []int32
	left  int
	line  parts.Niches
}

// note saves the covering's state in s.
func (c *covering) note(s *stand) {
	s.slack, s.price = append(s.slack[:0], c.slack...), append(s.price[:0], c.price...)
	s.born, s.count, s.alive = append(s.born[:0], c.born...), append(s.count[:0], c.count...), append(s.alive[:0], c.alive...)
	s.left = c.left
	s.line.Copy(c.line)
}

// restore restores the state saved in s.
func (c *covering) restore(s *stand) {
	copy(c.slack, s.slack)
	copy(c.price, s.price)
	copy(c.born, s.born)
	copy(c.count, s.count)
	copy(c.alive, s.alive)
	c.left = s.left
	c.line.Copy(&s.line)
}

// packInCourses covers a part course by course, with other noise in each attempt. loss is the
// start's mean loss over all sections when it covers the part in one go.
func (s start) packInCourses(ctx context.Context, l parts.Part, target, effort int64, loss float64, attempt uint64) parts.Packing {
	c, p := s.layGround(l, target)
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
		w.layNext(level, s.taste)
		w.redoCourses(ctx, int64(float64(w.effort)*courseWeight(k)/weights), int64(courseHole*loss))
		weights -= courseWeight(k)
	}
	w.Height = 0 // rise left the maximum over all tries
	for k := range c.items {
		w.Height = max(w.Height, w.Offsets[k]+c.items[k].Size)
	}
	return joined(p, c.items, w.Packing)
}

// courseWeight returns the weight of course k when effort is divided.
func courseWeight(k int) float64 { return math.Pow(float64(k+1), courseSteep) }

func newCourses(c *covering, effort int64, attempt uint64) *courses {
	w := &courses{covering: c, Packing: parts.Packing{Offsets: make([]int64, len(c.items))}, windows: len(c.tastes),
		stands: make([]stand, 1), rng: rand.New(rand.NewPCG(3+attempt<<32, uint64(len(c.items)))), effort: effort}
	c.note(&w.stands[0])
	return w
}

// layNext lays the next course, up to level.
func (w *courses) layNext(level int64, t taste) {
	k := len(w.levels)
	w.levels = append(w.levels, level)
	w.tastes = append(w.tastes, slices.Repeat([]taste{t}, w.windows))
	for i := range w.windows {
		w.drawNoise(k, i, courseNoise)
	}
	w.stands = append(w.stands, stand{})
	if k >= courseDeep {
		w.stands[k+1], w.stands[k-courseDeep] = w.stands[k-courseDeep], stand{} // too deep to be laid again: reuse its memory
	}
	w.layAgain(k)
}

// drawNoise draws new noise for one window of course k.
func (w *courses) drawNoise(k, window int, noise float64) {
	w.tastes[k][window].seed, w.tastes[k][window].noise = w.rng.Uint64(), noise
}

// layAgain lays course from, and those above it, again.
func (w *courses) layAgain(from int) {
	for k := from; k < len(w.levels); k++ {
		w.restore(&w.stands[k])
		w.prefer(w.tastes[k])
		left := int64(math.MaxInt64)
		w.rise(w.levels[k], &w.Packing, &left)
		w.effort -= math.MaxInt64 - left + int64(max(len(w.items)/2, 1))
		w.note(&w.stands[k+1])
	}
}

// redoCourses lays the last course, and some below it, again while a section has wasted
// more than its slack and effort is left. An excess above hole may also use up to
// 1/courseLonger of all the effort left.
func (w *courses) redoCourses(ctx context.Context, effort, hole int64) {
	until, last := w.effort-effort, w.effort-max(effort, w.effort/courseLonger)
	top := len(w.levels) - 1
	lowest := max(top-courseDeep+1, 0)
	best, first := cloned(w.tastes[lowest:]), top+1
	stale := top + 1 // courses from here up do not match their tastes
	for bad, least := w.badness(); ctx.Err() == nil; {
		if lost := -slices.Min(w.slack); lost <= 0 || w.effort <= last || w.effort <= until && lost <= hole {
			break
		}
		from := top
		for from > lowest && w.rng.IntN(2) == 0 {
			from--
		}
		before, change := cloned(w.tastes[from:]), w.chooseWindows(bad)
		for _, i := range change {
			for k := from; k <= top; k++ {
				w.drawNoise(k, i, drawLogUniform(w.rng, courseNoise, courseMore*courseNoise))
			}
		}
		w.layAgain(min(from, stale))
		stale, first = top+1, min(first, from)
		now, sum := w.badness()
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
	w.layAgain(first)
}

// chooseWindows picks the windows to change, at least courseApart apart, among those no
// better than a random window of the worse half.
func (w *courses) chooseWindows(bad []float64) (change []int) {
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

// badness returns the badness of each window, and their sum.
func (w *courses) badness() (bad []float64, sum float64) {
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
