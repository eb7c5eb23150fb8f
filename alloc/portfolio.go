package alloc

import (
	"context"
	"sync"

	"github.com/athanor-llm/athanor/alloc/parts"
)

// Portfolio
//
// The time a search takes has a heavy tail: one branching order solves a case in
// a thousand nodes, another not in ten million. So several searchers with
// different orders take turns. A turn ends after a number of nodes given by
// Luby's sequence (1 1 2 1 1 2 4 ...), and what a searcher learnt (blame, failed
// parts) guides its next turn.
//
// The turns of one round may run at the same time. The answer is that of the
// lowest-numbered searcher that decides in the earliest round, so it does not
// depend on the number of cores.

// A member is a searcher's branching order and the techniques it leaves out.
type member struct {
	order   []func(a, b *parts.Item) int
	without Technique
}

// turnNodes is the length of the shortest turn, about a millisecond.
const turnNodes = 1000

type portfolio struct {
	searchers []*searcher
	perms     [][]int32
	round     int
	nodes     int64 // of completed turns
}

func newPortfolio(items []parts.Item, sections int32, capacity int64, without Technique) *portfolio {
	markPeaks(items, sections)
	members := []member{
		{[]func(a, b *parts.Item) int{byPeak, byWidth, byArea}, 0},
		{[]func(a, b *parts.Item) int{byWidth, byArea, byPeak}, Critical},
		{[]func(a, b *parts.Item) int{bySize, byWidth}, 0},
		{[]func(a, b *parts.Item) int{byPeak, byArea, byWidth}, Critical},
	}
	pf := &portfolio{}
	for _, m := range members {
		pf.searchers = append(pf.searchers, newSearcher(items, sections, capacity, without|m.without))
		pf.perms = append(pf.perms, sorted(items, chain("", m.order...)))
	}
	return pf
}

// decide runs rounds until one searcher has the answer or the nodes are
// spent (negative: no limit). It can be called again to go on.
func (pf *portfolio) decide(ctx context.Context, nodes int64, workers int) (verdict, []int64) {
	limit := pf.nodes + nodes
	for nodes < 0 || pf.nodes < limit {
		if ctx.Err() != nil {
			return unknown, nil
		}
		pf.round++
		if v, offsets := pf.turns(ctx, luby(pf.round)*turnNodes, workers); v != unknown {
			return v, offsets
		}
	}
	return unknown, nil
}

// turns gives every searcher one turn.
func (pf *portfolio) turns(ctx context.Context, nodes int64, workers int) (verdict, []int64) {
	n := len(pf.searchers)
	answers, spent := make([]verdict, n), make([]int64, n)
	cancels := make([]context.CancelFunc, n)
	ctxs := make([]context.Context, n)
	for m := range n {
		ctxs[m], cancels[m] = context.WithCancel(ctx)
		defer cancels[m]()
	}
	turn := func(m int) {
		if ctxs[m].Err() != nil {
			return
		}
		s := pf.searchers[m]
		before := s.nodes
		answers[m] = s.decide(ctxs[m], pf.perms[m], nodes)
		spent[m] = s.nodes - before
		if answers[m] != unknown {
			for _, cancel := range cancels[m+1:] {
				cancel() // only a lower number could still win
			}
		}
	}
	if workers <= 1 {
		for m := range n {
			turn(m)
		}
	} else {
		queue := make(chan int, n)
		for m := range n {
			queue <- m
		}
		close(queue)
		var wg sync.WaitGroup
		for range min(workers, n) {
			wg.Go(func() {
				for m := range queue {
					turn(m)
				}
			})
		}
		wg.Wait()
	}
	for m, v := range answers {
		pf.nodes += spent[m]
		if v != unknown {
			return v, pf.searchers[m].bound
		}
	}
	return unknown, nil
}

// luby returns the k-th number, from 1, of the sequence 1 1 2 1 1 2 4 1 1 2 ...
func luby(k int) int64 {
	for size := 1; ; size = 2*size + 1 {
		if k == size {
			return int64(size+1) / 2
		}
		if k < size {
			return luby(k - size/2)
		}
	}
}
