package program

import (
	"slices"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
)

// cache is what is on the device while the units are gone through.
type cache struct {
	room  int64
	lines []line
	held  []int64 // bytes held during each unit gone through so far
}

type line struct {
	chunk         int
	lastUse, next int // units; next: that uses it again
	copied        store
	bytes         int64
}

func (k *cache) find(chunk int) *line {
	for i := range k.lines {
		if k.lines[i].chunk == chunk {
			return &k.lines[i]
		}
	}
	return nil
}

// evict makes room for bytes at unit i, whose own chunks stay.
func (k *cache) evict(i int, bytes int64) bool {
	var sum int64
	for n := range k.lines {
		sum += k.lines[n].bytes
	}
	for sum+bytes > k.room {
		at := -1
		for n := range k.lines {
			l := &k.lines[n]
			if l.lastUse < i && l.next > i && (at < 0 || l.next > k.lines[at].next) {
				at = n
			}
		}
		if at < 0 {
			return false
		}
		l := k.lines[at]
		for u := l.lastUse + 1; u < i; u++ {
			k.held[u] -= l.bytes // it might as well have gone then
		}
		sum -= l.bytes
		k.lines = slices.Delete(k.lines, at, at+1)
	}
	return true
}

// load takes a chunk in and returns the unit before which it is sent off.
func (k *cache) load(i, chunk int, copied store, bytes int64, prefetch int) int {
	at := i
	for at > 0 && at > i-prefetch && k.held[at-1]+bytes <= k.room {
		at--
		k.held[at] += bytes
	}
	k.lines = append(k.lines, line{chunk: chunk, copied: copied, lastUse: i, bytes: bytes})
	return at
}

// uses lists per unit the chunks that it reads through the cache.
func (lo *lowering) uses() [][]int {
	uses := make([][]int, len(lo.units))
	for i := range lo.units {
		for j := range lo.units[i].work {
			for _, r := range lo.units[i].work[j].in.Args {
				if c := -1 - r.Buf; r.Buf < 0 && !slices.Contains(uses[i], c) {
					uses[i] = append(uses[i], c)
				}
			}
		}
	}
	return uses
}

// nextUses says for each use of a chunk in uses which unit uses it next; never
// again counts as the furthest.
func nextUses(uses [][]int, chunks int) [][]int {
	next := make([][]int, len(uses))
	coming := slices.Repeat([]int{len(uses)}, chunks)
	for i := len(uses) - 1; i >= 0; i-- {
		next[i] = make([]int, len(uses[i]))
		for k, c := range uses[i] {
			next[i][k], coming[c] = coming[c], i
		}
	}
	return next
}

// read points the unit's operands of chunk c to a copy of it.
func (lo *lowering) read(u *unit, c int, copied store) {
	for j := range u.work {
		o := &u.work[j]
		for k := range o.in.Args {
			if o.in.Args[k].Buf == -1-c {
				o.in.Args[k] = lo.param(copied, o.refs[k].value)
			}
		}
	}
}

// CacheNeeded is the least Cache: the most bytes of chunks on the host, or
// divided among ranks, that one segment reads.
func (pl *Plan) CacheNeeded(g *graph.Graph) (most int64) {
	bytes := make([]int64, len(g.Params)) // of the cached chunk that begins with a parameter
	for _, c := range pl.Chunks {
		if c.Weights == device.HostTier || c.Shard == "weights" && pl.Replicas() > 1 {
			for _, p := range g.Params[c.First:c.Last] {
				bytes[c.First] += p.Elems() * g.DType.Size()
			}
		}
	}
	for s := range g.Segments {
		var sum int64
		for _, p := range g.Segments[s].Params {
			sum += bytes[p]
		}
		most = max(most, sum)
	}
	return most
}
