package search

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
)

// problem is what a search is about: the request, the machine, and what follows from these. It never changes, so
// stages may read it in any order; but what follows from the machine's prices is not kept in it, since
// measurements improve them. Four values hang from it that stages share: the recorder, and three caches.
type problem struct {
	req        *Request
	machine    *Machine
	graph      *graph.Graph
	prices     prices
	ranks      int
	copies     int // ranks that have the same parameters, or slabs of them
	batch      int // sequences per step of one replica
	placements []residency
	// Elements of trained and of frozen parameters, as they are stored, how many of the former operators compute, and bytes of one
	// layer's weights.
	trained, frozen float64
	computed        float64
	layerBytes      int64
	census          *census
	told            *recorder
	growths         *growths
	needs           *needs
	known           *evaluations
	tables          bool         // are so large that they are on the host
	untimed         bool         // only asked is what fits, so nothing is simulated
	halt            *atomic.Bool // nil but for scouts: recalls them, see ahead.go
}

func newProblem(req *Request, m *Machine) *problem {
	g, ranks := req.Graph, max(req.Ranks, 1)
	p := &problem{req: req, machine: m, graph: g, prices: prices{req, m}, ranks: ranks, batch: req.GlobalBatch / ranks,
		copies: ranks / g.Shared(), placements: residenciesOf(ranks / g.Shared()), census: newCensus(g), told: &recorder{sketch: req.Sketch, enough: req.Enough, early: req.Early, start: time.Now()}, growths: &growths{}, needs: newNeeds(req, m, ranks), known: newEvaluations()}
	for i, param := range g.Params {
		if n := float64(g.Stored(i).Elems()); param.Frozen {
			p.frozen += n
		} else {
			p.computed += n
			if kept, _ := graph.Kept(g, i); req.Compact {
				n = float64(kept)
			}
			p.trained += n
		}
		if param.Layer == 0 {
			p.layerBytes += g.Stored(i).Bytes()
		}
	}
	if mayMoveTables(p, largeTables) {
		return withTablesOnHost(p)
	}
	return p
}

// updatedBy returns the same problem, except that it is decided what updates chunks whose state is not on the
// device.
func (p *problem) updatedBy(what string) *problem {
	other, req := *p, *p.req
	req.Pins.Update = what
	other.req, other.prices.req = &req, &req
	other.known = newEvaluations()
	return &other
}

// onMachine returns the same problem on a machine with other capacities.
func onMachine(p *problem, m *Machine) *problem {
	other, needs := *p, *p.needs
	needs.machine = m
	other.machine, other.needs, other.known = m, &needs, newEvaluations()
	return &other
}

// divisible reports whether each rank gets the same number of sequences.
func (p *problem) divisible() bool { return p.batch*p.ranks == p.req.GlobalBatch }

// microBatches lists divisors of the batch, largest first, of at most 1<<16 tokens unless the smallest that the
// order of sums permits is longer. If there are many, those that differ little are left out.
func (p *problem) microBatches() []int {
	if b := p.req.Pins.MicroBatch; b > 0 {
		return []int{b}
	}
	var all []int
	for b := 1; b <= p.batch && (len(all) == 0 || b*p.graph.Seq <= 1<<16); b++ {
		if p.batch%b == 0 && p.graph.Takes(b*p.graph.Seq, p.batch*p.graph.Seq) {
			all = append(all, b)
		}
	}
	slices.Reverse(all)
	const many, apart = 6, 1.5
	if len(all) <= many {
		return all
	}
	list := all[:1:1]
	for i, b := range all[1:] {
		if float64(list[len(list)-1]) >= apart*float64(b) || i == len(all)-2 {
			list = append(list, b)
		}
	}
	return list
}

// groups lists how many micro-batches may go through a layer before they go on to the next: one or all. Where layers share
// parameters, all do: only then have sums over the layers one order.
func (p *problem) groups(b int) []int {
	n := p.batch / b
	if g := p.req.Pins.Group; g > 0 {
		return []int{min(g, n)}
	}
	if n == 1 || p.graph.Model.Shares > 0 {
		return []int{n}
	}
	return []int{1, n}
}

// styles lists the styles to try, from roomy to frugal.
func (p *problem) styles(of aim, b int, r residency) []style {
	rows := b * p.graph.Seq
	head := p.req.Head(rows, p.machine.Capacity[device.DeviceTier])
	const blocks = 1024 // per micro-batch, at most: a million tokens would otherwise make a long program
	frugal := head
	for of != fastestPlan || p.req.logitsMatter(frugal, p.machine.Capacity[device.DeviceTier]) {
		fewer := p.req.fewerRows(frugal)
		if fewer == frugal || frugal <= 32 || fewer < rows/blocks {
			break
		}
		frugal = fewer
	}
	feed := p.req.Pins.FeedRows
	if b == 1 { // else smaller micro-batches, which are tried too, need less memory without reading weights again for each tile
		feed = p.req.Feed(rows, p.machine.Capacity[device.DeviceTier])
	}
	list := []style{{head, feed, true, 1 << 62, 1, 2}, {frugal, feed, false, 1 << 62, 0, 1}, {frugal, feed, false, 1, 0, 1}}
	if r.weights == device.HostTier {
		list = append([]style{{head, feed, true, 1 << 62, 3, 2}}, list...)
	}
	if h := p.req.Pins.HeadRows; h > 0 {
		for i := range list {
			list[i].headRows = h
		}
	}
	if of == anyFrugal {
		list = list[len(list)-1:]
	}
	return list
}
