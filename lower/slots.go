package lower

import (
	"slices"

	"github.com/athanor-llm/athanor/graph"
)

// The slots of the norm: one partial sum of squares per NormPiece elements of every run, in chunk order.

// owned returns what a rank contributes of a chunk to the norm: its shard or, if the
// chunk is replicated, all of it on the group's first rank and nothing elsewhere.
func (geo *geometry) owned(rank, c int) piece {
	n, terms := geo.g.Shared(), geo.g.Terms(geo.pl.Chunks[c].First)
	if terms == 1 && !geo.divided(c) && rank%n > 0 { // what is whole on all ranks with other slabs is the first one's
		return piece{}
	}
	rank += geo.rank%n/terms*terms - rank%n/terms*terms // all of them divide chunks alike
	switch group := geo.top.Groups[c]; {
	case !slices.Contains(group, rank), geo.frozen(c):
		return piece{}
	case geo.sharded(c, "state") || rank == group[0]:
		return geo.heldBy(rank, c, "state")
	}
	return piece{}
}

// countSlots returns the number of a rank's slots for a chunk.
func (geo *geometry) countSlots(rank, c int) (n int) {
	for _, q := range geo.splitByRun(c, geo.owned(rank, c)) {
		n += graph.NormPieces(int64(q.hi - q.lo))
	}
	return n
}

// addSlots appends to cuts the ends of the slots of a rank's part of a chunk. Within a
// run, the slots are cut where an atom and a slot begin at the same element.
func (geo *geometry) addSlots(cuts []int, rank, c int) []int {
	end, own := endOf(cuts), geo.owned(rank, c)
	for _, q := range geo.splitByRun(c, own) {
		for _, e := range geo.atomsIn(c, own) {
			if n := e - q.lo; n > 0 && e < q.hi && n%graph.NormPiece == 0 {
				cuts = append(cuts, end+n/graph.NormPiece)
			}
		}
		end += graph.NormPieces(int64(q.hi - q.lo))
		cuts = append(cuts, end)
	}
	return cuts
}

// endOf returns the last of cuts, or 0.
func endOf(cuts []int) int {
	if len(cuts) == 0 {
		return 0
	}
	return cuts[len(cuts)-1]
}

// allSlots returns the ends of the slots of all atoms, rank by rank.
func (geo *geometry) allSlots() (cuts []int) {
	for r := range geo.top.Ranks {
		for c := range geo.pl.Chunks {
			cuts = geo.addSlots(cuts, r, c)
		}
	}
	return cuts
}

// squaredParts lists this rank's runs of a chunk. After a run that ends with a whole NormPiece, the same call handles the
// next run, too.
func (geo *geometry) squaredParts(c int) (list []part) {
	for _, q := range geo.splitByRun(c, geo.owned(geo.rank, c)) {
		if n := len(list); n > 0 && (q.lo-list[n-1].lo)%graph.NormPiece == 0 && q.hi-list[n-1].lo <= mostJoined {
			list[n-1].hi = q.hi
			continue
		}
		list = append(list, q)
	}
	return list
}
