package search

import (
	"slices"

	"github.com/athanor-llm/athanor/graph"
)

// census counts parameter elements in ranges of segments, by differences of prefix
// sums.
type census struct {
	before [2][]int64 // prefix sums over segments: trained and frozen elements
	shared []shared
}

// shared is a parameter that several segments read, such as that of a tied head.
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
			sums[kinds[p]] += g.Stored(p).Elems()
			readers[p] = append(readers[p], i)
		}
	}
	for p, list := range readers {
		if len(list) > 1 {
			c.shared = append(c.shared, shared{list, kinds[p], g.Stored(p).Elems()})
		}
	}
	return c
}

// count returns the trained and the frozen elements of ranges of segments, each
// parameter once.
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

// union sorts ranges and removes overlaps, such as those between the two directions on a rank.
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
