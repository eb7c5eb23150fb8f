package alloc

import (
	"context"
	"math"
	"math/rand/v2"
)

// Glue
//
// Where no byte is to spare, nearly every edge of a buffer meets one that is
// just as long, and such coincidences tell who lies beside whom. So glue
//
//	abut   two pieces of equal size, one born where the other dies, side by side,
//	stack  two pieces of equal lifetime, one on top of the other,
//
// and go on with the larger pieces, until one is left or few enough remain for
// the search. The joint that is least likely a coincidence goes first: among
// few rivals, where few pieces meet.
//
// A wrong joint shows later, when pieces are left that fit nowhere. Then some
// neighbours are broken up again and glued with other luck; what leaves no more
// pieces than before is kept (ruin and recreate, Schrimpf et al. 2000).
//
// Example:   a a c    a and b stack (equal lifetimes); c is as tall as the
//
//	b b c    pair and born where it dies, so they abut: one piece.
//
// Weakness: a packing need not consist of such joints (a pinwheel does not),
// and with slack the coincidences mean little; so it is tried on leaves that
// are full to the brim only, and proves nothing by itself.

// The rounds of glueing.
const (
	glueFull      = 0.999   // least share of the area that is in use
	glueRounds    = 30_000  // breakings at most,
	glueRoundsPer = 100     // and per item
	glueLook      = 50      // breakings allowed without a search
	glueBroken    = 6       // pieces broken at once,
	glueDepth     = 3       // and about so many times over
	glueRivals    = 12      // partners considered for one piece
	glueSearch    = 70      // pieces that are left to the search,
	glueNodes     = 2000    // with so many nodes
	glueEffort    = 200_000 // steps of the heuristics on the rest
	gluePatient   = 40      // rounds between two looks at the rest
)

// A piece is an item, or two pieces glued.
type piece struct {
	lo, hi  int32
	size    int64
	align   int64
	a, b    int32 // its parts, a below or before b; -1 for an item
	stacked bool
}

// A joint could glue two pieces; higher scores go first.
type joint struct {
	score float64
	a, b  int32
	stack bool
}

type edge struct {
	at   int32
	size int64
}

// A gluing is a set of pieces that together are all items.
type gluing struct {
	pieces []piece // the first are the items
	whole  []int32 // pieces that are part of no other
	at     []int32 // position in whole, or -1
	starts map[edge][]int32
	ends   map[edge][]int32
	spans  map[[2]int32][]int32
	born   []int32 // per section: whole pieces that start there
	died   []int32 // per section: whole pieces that end before it
	joints []joint // heap
	fresh  []int32 // pieces whose joints have not been looked for
	log    []int32 // what became whole (i) or part of another (^i)
	rng    *rand.Rand
	nodes  int64 // of searches, and breakings
}

func newGluing(items []item, sections int32) *gluing {
	g := &gluing{starts: map[edge][]int32{}, ends: map[edge][]int32{}, spans: map[[2]int32][]int32{},
		born: make([]int32, sections+1), died: make([]int32, sections+1), rng: rand.New(rand.NewPCG(1, uint64(len(items))))}
	for i := range items {
		it := &items[i]
		g.add(piece{lo: it.lo, hi: it.hi, size: it.size, align: it.align, a: -1, b: -1})
	}
	return g
}

func (g *gluing) add(p piece) {
	i := int32(len(g.pieces))
	g.pieces, g.at = append(g.pieces, p), append(g.at, -1)
	g.enter(i)
}

// enter makes piece i whole.
func (g *gluing) enter(i int32) {
	p := &g.pieces[i]
	g.at[i] = int32(len(g.whole))
	g.whole = append(g.whole, i)
	g.born[p.lo]++
	g.died[p.hi]++
	s, e, w := edge{p.lo, p.size}, edge{p.hi, p.size}, [2]int32{p.lo, p.hi}
	g.starts[s] = append(g.starts[s], i)
	g.ends[e] = append(g.ends[e], i)
	g.spans[w] = append(g.spans[w], i)
	g.fresh = append(g.fresh, i)
	g.log = append(g.log, i)
}

// leave takes piece i out of the whole ones.
func (g *gluing) leave(i int32) {
	p := &g.pieces[i]
	last := g.whole[len(g.whole)-1]
	g.whole[g.at[i]], g.at[last] = last, g.at[i]
	g.whole, g.at[i] = g.whole[:len(g.whole)-1], -1
	g.born[p.lo]--
	g.died[p.hi]--
	s, e, w := edge{p.lo, p.size}, edge{p.hi, p.size}, [2]int32{p.lo, p.hi}
	g.starts[s] = without(g.starts[s], i)
	g.ends[e] = without(g.ends[e], i)
	g.spans[w] = without(g.spans[w], i)
	g.log = append(g.log, ^i)
}

func without(list []int32, i int32) []int32 {
	for k, j := range list {
		if j == i {
			list[k] = list[len(list)-1]
			return list[:len(list)-1]
		}
	}
	return list
}

// offer notes the joints that piece i could be part of.
func (g *gluing) offer(i int32) {
	p := &g.pieces[i]
	left, right := g.ends[edge{p.lo, p.size}], g.starts[edge{p.hi, p.size}]
	for _, j := range left[:min(len(left), glueRivals)] {
		rivals := len(left) * len(g.starts[edge{p.lo, p.size}])
		g.push(joint{g.lonely(p.lo) - math.Log(float64(rivals)), j, i, false})
	}
	for _, j := range right[:min(len(right), glueRivals)] {
		rivals := len(right) * len(g.ends[edge{p.hi, p.size}])
		g.push(joint{g.lonely(p.hi) - math.Log(float64(rivals)), i, j, false})
	}
	const confirmed = 3 // the pair fits a third piece
	same := g.spans[[2]int32{p.lo, p.hi}]
	for _, j := range same[:min(len(same), glueRivals)] {
		if j == i {
			continue
		}
		score := max(g.lonely(p.lo), g.lonely(p.hi)) - math.Log(float64(len(same)*len(same)/4+1))
		sum := p.size + g.pieces[j].size
		if len(g.ends[edge{p.lo, sum}])+len(g.starts[edge{p.hi, sum}]) > 0 {
			score += confirmed
		}
		g.push(joint{score, i, j, true})
	}
}

// lonely is high where few pieces meet: coincidence needs company.
func (g *gluing) lonely(t int32) float64 {
	return -math.Log(float64(max(g.born[t], 1)) * float64(max(g.died[t], 1)))
}

// run glues until no joint is left.
func (g *gluing) run() {
	for {
		for _, i := range g.fresh {
			if g.at[i] >= 0 {
				g.offer(i)
			}
		}
		g.fresh = g.fresh[:0]
		if len(g.joints) == 0 {
			return
		}
		if j := g.pop(); g.at[j.a] >= 0 && g.at[j.b] >= 0 {
			g.join(j)
		}
	}
}

func (g *gluing) join(j joint) {
	a, b := &g.pieces[j.a], &g.pieces[j.b]
	p := piece{lo: a.lo, hi: b.hi, size: a.size, align: max(a.align, b.align), a: j.a, b: j.b, stacked: j.stack}
	if p.align%a.align != 0 || p.align%b.align != 0 {
		return
	}
	if j.stack {
		if a.size%b.align != 0 {
			p.a, p.b, a, b = j.b, j.a, b, a
		}
		if a.size%b.align != 0 {
			return
		}
		p.size = a.size + b.size
	}
	g.leave(j.a)
	g.leave(j.b)
	g.add(p)
}

// shake breaks a few neighbouring pieces up and glues again, and goes back if
// that leaves more pieces.
func (g *gluing) shake() {
	before, known := len(g.whole), len(g.pieces)
	g.log = g.log[:0]
	center := g.pieces[g.whole[g.rng.IntN(len(g.whole))]]
	var broken []int32
	for _, i := range g.whole {
		p := &g.pieces[i]
		if p.lo <= center.hi && center.lo <= p.hi {
			broken = append(broken, i)
		}
	}
	g.rng.Shuffle(len(broken), func(i, j int) { broken[i], broken[j] = broken[j], broken[i] })
	depth := 1 + g.rng.IntN(glueDepth)
	for _, i := range broken[:min(len(broken), 1+g.rng.IntN(glueBroken))] {
		g.split(i, depth)
	}
	g.run()
	if len(g.whole) <= before {
		return
	}
	undo := g.log
	g.log = nil
	for k := len(undo) - 1; k >= 0; k-- {
		if i := undo[k]; i >= 0 {
			g.leave(i)
		} else {
			g.enter(^i)
		}
	}
	g.pieces, g.at, g.fresh = g.pieces[:known], g.at[:known], g.fresh[:0]
	g.log = undo
}

// split breaks piece i into its parts, and these again, up to a depth.
func (g *gluing) split(i int32, depth int) {
	p := g.pieces[i]
	if p.a < 0 || depth == 0 {
		return
	}
	g.leave(i)
	g.enter(p.a)
	g.enter(p.b)
	g.split(p.a, depth-g.rng.IntN(2))
	g.split(p.b, depth-1-g.rng.IntN(2))
}

func (g *gluing) push(j joint) {
	j.score += g.rng.Float64()
	g.joints = append(g.joints, j)
	for k := len(g.joints) - 1; k > 0; {
		up := (k - 1) / 2
		if g.joints[up].score >= g.joints[k].score {
			return
		}
		g.joints[k], g.joints[up] = g.joints[up], g.joints[k]
		k = up
	}
}

func (g *gluing) pop() joint {
	top := g.joints[0]
	last := len(g.joints) - 1
	g.joints[0] = g.joints[last]
	g.joints = g.joints[:last]
	for k := 0; ; {
		best := k
		for c := 2*k + 1; c <= 2*k+2 && c < last; c++ {
			if g.joints[c].score > g.joints[best].score {
				best = c
			}
		}
		if best == k {
			return top
		}
		g.joints[k], g.joints[best] = g.joints[best], g.joints[k]
		k = best
	}
}

// finish packs the whole pieces below target, if it can, and with them the
// items.
func (g *gluing) finish(ctx context.Context, target int64) (packing, bool) {
	whole := make([]item, 0, len(g.whole))
	for _, i := range g.whole {
		p := &g.pieces[i]
		whole = append(whole, item{lo: p.lo, hi: p.hi, size: p.size, align: p.align, fixed: Free, index: i})
	}
	rest, sections := restrict(whole)
	outer := greedy(ctx, rest, sections, target, glueEffort)
	if outer.height > target && len(rest) <= glueSearch {
		pf := newPortfolio(rest, sections, target, 0)
		if v, offsets := pf.decide(ctx, glueNodes, 1); v == fits {
			outer = packing{offsets: offsets}
			for k := range rest {
				outer.height = max(outer.height, offsets[k]+rest[k].size)
			}
		}
		g.nodes += pf.nodes
	}
	p := packing{offsets: make([]int64, len(g.pieces)), height: outer.height}
	for k := range rest {
		g.place(rest[k].index, outer.offsets[k], p.offsets)
	}
	return p, p.height <= target
}

// place gives the items of a piece their offsets.
func (g *gluing) place(i int32, off int64, offsets []int64) {
	p := &g.pieces[i]
	if p.a < 0 {
		offsets[i] = off
		return
	}
	g.place(p.a, off, offsets)
	if p.stacked {
		off += g.pieces[p.a].size
	}
	g.place(p.b, off, offsets)
}

// glue packs a leaf that is full to the brim below target, if it can. It counts
// each breaking as a node and stops at about limit nodes.
func glue(ctx context.Context, l leaf, target, limit int64) (p packing, nodes int64, ok bool) {
	if !brimful(l, target) {
		return packing{}, 0, false
	}
	g := newGluing(l.items, l.sections)
	g.run()
	least, looked := len(l.items)/2, 0
	for round := range min(glueRounds, glueRoundsPer*len(l.items)) {
		if ctx.Err() != nil || len(g.whole) > len(l.items)/2 || g.nodes >= limit {
			break
		}
		if len(g.whole) < least || round-looked >= gluePatient && len(g.whole) <= glueSearch {
			least, looked = len(g.whole), round
			if p, ok := g.finish(ctx, target); ok {
				p.offsets = p.offsets[:len(l.items)]
				return p, g.nodes, true
			}
		}
		g.shake()
		g.nodes++
	}
	return packing{}, g.nodes, false
}

// brimful reports that nearly all of a leaf's area below target is in use.
func brimful(l leaf, target int64) bool {
	used := 0.0
	for i := range l.items {
		if l.items[i].fixed >= 0 {
			return false
		}
		used += float64(l.items[i].size) * float64(l.items[i].width())
	}
	return used >= glueFull*float64(target)*float64(l.sections)
}
