package plan

import (
	"slices"

	"github.com/athanor-llm/athanor/graph"
)

// census counts the elements of parameters of segments, by differences of sums.
type census struct {
	before [2][]int64 // trained and frozen ones that the segments before each read
	shared []shared
}

// shared is a parameter that several segments read: that of a tied head.
type shared struct {
	readers []int // segments
	kind    int
	elems   int64
}

func newCensus(g *graph.Graph) *census {
	c := &census{}
	readers := make([][]int, len(g.Params))
	kinds := make([]int, len(g.Params))
	var sums [2]int64
	for i := 0; ; i++ {
		for kind := range sums {
			c.before[kind] = append(c.before[kind], sums[kind])
		}
		if i == len(g.Segments) {
			break
		}
		for _, p := range g.Segments[i].Params {
			if g.Params[p].Frozen {
				kinds[p] = 1
			}
			sums[kinds[p]] += g.Params[p].Elems()
			readers[p] = append(readers[p], i)
		}
	}
	for p, list := range readers {
		if len(list) > 1 {
			c.shared = append(c.shared, shared{list, kinds[p], g.Params[p].Elems()})
		}
	}
	return c
}

// count adds up the parameters of ranges of segments, each once: those that are
// trained, and the frozen ones.
func (c *census) count(ranges [][2]int) (trained, frozen int64) {
	var sums [2]int64
	ranges = union(ranges)
	for _, r := range ranges {
		for kind, before := range c.before {
			sums[kind] += before[r[1]] - before[r[0]]
		}
	}
	for _, p := range c.shared {
		times := 0
		for _, segment := range p.readers {
			for _, r := range ranges {
				if r[0] <= segment && segment < r[1] {
					times++
				}
			}
		}
		sums[p.kind] -= int64(max(times-1, 0)) * p.elems
	}
	return sums[0], sums[1]
}

// union makes ranges that may overlap, such as those of both directions on a
// rank, ascending ones that do not.
func union(ranges [][2]int) [][2]int {
	if len(ranges) == 1 {
		return ranges
	}
	ranges = slices.Clone(ranges)
	slices.SortFunc(ranges, func(a, b [2]int) int { return a[0] - b[0] })
	end := 0
	for i := range ranges {
		r := &ranges[i]
		r[0], r[1] = max(r[0], end), max(r[1], end)
		end = r[1]
	}
	return ranges
}
