package alloc

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/athanor-llm/athanor/alloc/parts"
)

// Glue
//
// Without slack, nearly every edge of a buffer meets one of equal length, and
// such coincidences reveal which buffers are neighbours. So glue
//
//	abut   two pieces of equal size, one born where the other dies, side by side,
//	stack  two pieces of equal lifetime, one on top of the other,
//	wheel  five pieces of which no two make a rectangle; see wheel.go,
//
// and continue with the larger pieces, until one is left or few enough remain for
// the search. The joint least likely to match by accident goes first: one with
// few rivals, where few pieces meet, whose result fits a third piece. Each joint
// leaves fewer choices at its moments, so the joints there are scored anew.
// Doubtful joints are first left open, to be settled by pieces further away; see
// strip.go. If that leaves most of them open, chance decides.
//
// A wrong joint shows later, when pieces are left that fit nowhere. Then some
// neighbours, or seams that are alike (see seam.go), are broken up and glued
// again at random; a result with no more pieces than before is kept (ruin and
// recreate, Schrimpf et al. 2000).
//
// Example:
//
//	a a c    a and b stack (equal lifetimes); c is as tall as the pair and born
//	b b c    where it dies, so they abut: one piece.
//
// Weakness: a packing need not consist of such joints, and with slack or with
// many edges at each moment the coincidences mean little; so only leaves that are
// nearly full are glued, and glueing proves nothing by itself.

// Limits of glueing. A round breaks some pieces and glues again.
const (
	glueFull      = 0.999   // least fraction of the area in use
	glueRounds    = 200_000 // most rounds,
	glueRoundsPer = 100     // and most rounds per item
	gluePace      = 5000    // in this many rounds a twentieth of the pieces must go
	glueGarbage   = 6       // pieces per item before broken ones are dropped
	glueLook      = 50      // rounds allowed without a search
	glueSmash     = 5       // one round in this many ignores seams; see seam.go
	glueSmall     = 3       // break the smallest of glueSmall+1 random pieces: errors are local
	glueBroken    = 6       // most pieces broken at once,
	glueDepth     = 3       // to about this depth at most
	glueRivals    = 12      // partners considered for one piece
	glueSearch    = 70      // most pieces left to the search,
	glueNodes     = 2000    // and its nodes
	glueEffort    = 200_000 // heuristic steps for packing the remaining pieces
	gluePatient   = 40      // rounds between two attempts to pack them
	glueConfirmed = 3       // added to a score if the result fits a third piece
	glueBlind     = 1000    // joints between two checks of the context
	glueTime      = 65      // percent of the time left that glueing may take
	glueFew       = 6       // joints are sought anew at moments with at most this many edges
	glueDoubt     = 0       // joints with a lower score are doubtful: they wait while glueing is careful
)

// A piece is an item, or several pieces glued together.
type piece struct {
	lo, hi int32
	size   int64
	align  int64
	parts  []part // none for an item
}

func (p *piece) area() float64 { return float64(p.hi-p.lo) * float64(p.size) }

// A part is a piece inside a larger one, up bytes above its bottom.
type part struct {
	piece int32
	up    int64
}

// A joint is a candidate for glueing pieces; higher scores go first.
type joint struct {
	score float64
	how   how
	of    [5]int32 // the pieces: two to abut or stack, five for a wheel
}

type how int8

const (
	abut how = iota
	stack
	wheel
)

// pieces returns the pieces that the joint glues.
func (j *joint) pieces() []int32 {
	if j.how == wheel {
		return j.of[:]
	}
	return j.of[:2]
}

type edge struct {
	at   int32
	size int64
}

// A gluing is a set of pieces that together contain every item once.
type gluing struct {
	pieces []piece // the items come first
	whole  []int32 // pieces that are part of no other
	at     []int32 // per piece: position in whole, or -1
	starts map[edge][]int32
	ends   map[edge][]int32
	spans  map[[2]int32][]int32
	owner  []int32          // per piece: the piece it is part of, or -1
	seams  map[edge][]int32 // pieces whose parts abut there, including broken ones
	born   [][]int32        // per section: whole pieces that start there
	died   [][]int32        // per section: whole pieces that end before it
	joints []joint          // heap
	fresh  []int32          // pieces whose joints are still to be sought
	log    []int32          // pieces that became whole (i) or ceased to be (^i)
	rng    *rand.Rand
	nodes  int64 // search nodes plus rounds

	careful bool    // leave doubtful joints open; see strip.go
	touched []int32 // moments changed since strips were last sought
	linked  int     // pieces glued into wheels of strips
}

func newGluing(items []parts.Item, sections int32, careful bool) *gluing {
	g := emptyGluing(sections, rand.New(rand.NewPCG(1, uint64(len(items)))))
	g.careful = careful
	for i := range items {
		it := &items[i]
		g.add(piece{lo: it.Lo, hi: it.Hi, size: it.Size, align: it.Align})
	}
	return g
}

func emptyGluing(sections int32, rng *rand.Rand) *gluing {
	return &gluing{starts: map[edge][]int32{}, ends: map[edge][]int32{}, spans: map[[2]int32][]int32{}, seams: map[edge][]int32{},
		born: make([][]int32, sections+1), died: make([][]int32, sections+1), rng: rng}
}

// compact returns the same gluing without broken pieces. The others are renumbered;
// the items still come first.
func (g *gluing) compact(items int) *gluing {
	h := emptyGluing(int32(len(g.born)-1), g.rng)
	h.nodes, h.careful, h.linked = g.nodes, g.careful, g.linked
	for i := range items {
		h.storePiece(g.pieces[i])
	}
	var move func(i int32) int32
	move = func(i int32) int32 {
		p := g.pieces[i]
		if len(p.parts) == 0 {
			return i
		}
		p.parts = slices.Clone(p.parts)
		for k := range p.parts {
			p.parts[k].piece = move(p.parts[k].piece)
		}
		return h.storePiece(p)
	}
	for _, i := range g.whole {
		h.addPiece(move(i))
	}
	h.fresh, h.log, h.touched = nil, nil, nil
	return h
}

func (g *gluing) add(p piece) { g.addPiece(g.storePiece(p)) }

// storePiece stores a piece, makes it the owner of its parts, and returns its number.
func (g *gluing) storePiece(p piece) int32 {
	i := int32(len(g.pieces))
	g.pieces, g.at, g.owner = append(g.pieces, p), append(g.at, -1), append(g.owner, -1)
	g.ownParts(i)
	if e, ok := g.seamOf(i); ok {
		g.seams[e] = append(g.seams[e], i)
	}
	return i
}

// ownParts makes piece i the owner of its parts.
func (g *gluing) ownParts(i int32) {
	for _, q := range g.pieces[i].parts {
		g.owner[q.piece] = i
	}
}

// addPiece makes piece i whole.
func (g *gluing) addPiece(i int32) {
	p := &g.pieces[i]
	g.owner[i] = -1
	g.ownParts(i)
	g.at[i] = int32(len(g.whole))
	g.whole = append(g.whole, i)
	g.born[p.lo] = append(g.born[p.lo], i)
	g.died[p.hi] = append(g.died[p.hi], i)
	s, e, w := edge{p.lo, p.size}, edge{p.hi, p.size}, [2]int32{p.lo, p.hi}
	g.starts[s] = append(g.starts[s], i)
	g.ends[e] = append(g.ends[e], i)
	g.spans[w] = append(g.spans[w], i)
	g.fresh = append(g.fresh, i)
	g.log = append(g.log, i)
	g.noteChange(p)
}

// removePiece removes piece i from the whole ones.
func (g *gluing) removePiece(i int32) {
	p := &g.pieces[i]
	last := g.whole[len(g.whole)-1]
	g.whole[g.at[i]], g.at[last] = last, g.at[i]
	g.whole, g.at[i] = g.whole[:len(g.whole)-1], -1
	g.born[p.lo] = removed(g.born[p.lo], i)
	g.died[p.hi] = removed(g.died[p.hi], i)
	s, e, w := edge{p.lo, p.size}, edge{p.hi, p.size}, [2]int32{p.lo, p.hi}
	g.starts[s] = removed(g.starts[s], i)
	g.ends[e] = removed(g.ends[e], i)
	g.spans[w] = removed(g.spans[w], i)
	g.log = append(g.log, ^i)
	g.noteChange(p)
}

// noteChange records that the start and end of a piece have changed.
func (g *gluing) noteChange(p *piece) {
	if g.careful {
		g.touched = append(g.touched, p.lo, p.hi)
	}
}

func removed(list []int32, i int32) []int32 {
	for k, j := range list {
		if j == i {
			list[k] = list[len(list)-1]
			return list[:len(list)-1]
		}
	}
	return list
}

// offerJoints pushes the joints that piece i could be part of.
func (g *gluing) offerJoints(i int32) {
	p := &g.pieces[i]
	for _, j := range atMost(g.ends[edge{p.lo, p.size}], glueRivals) {
		g.offerAbut(j, i)
	}
	for _, j := range atMost(g.starts[edge{p.hi, p.size}], glueRivals) {
		g.offerAbut(i, j)
	}
	same := g.spans[[2]int32{p.lo, p.hi}]
	for _, j := range atMost(same, glueRivals) {
		if j == i {
			continue
		}
		score := max(g.rarityAt(p.lo), g.rarityAt(p.hi)) - math.Log(float64(len(same)*len(same)/4+1))
		sum := p.size + g.pieces[j].size
		if len(g.ends[edge{p.lo, sum}])+len(g.starts[edge{p.hi, sum}]) > 0 {
			score += glueConfirmed
		}
		g.push(joint{score, stack, [5]int32{i, j}})
	}
	g.offerWheels(i)
}

func atMost(list []int32, most int) []int32 { return list[:min(len(list), most)] }

// offerAbut pushes the joint of two pieces side by side.
func (g *gluing) offerAbut(a, b int32) {
	p, q := &g.pieces[a], &g.pieces[b]
	meeting := edge{q.lo, q.size}
	score := g.rarityAt(q.lo) - math.Log(float64(len(g.ends[meeting])*len(g.starts[meeting])))
	if len(g.spans[[2]int32{p.lo, q.hi}]) > 0 {
		score += glueConfirmed
	}
	g.push(joint{score, abut, [5]int32{a, b}})
}

// refreshMoment has the joints at moment t sought anew if few edges are left there.
func (g *gluing) refreshMoment(t int32) {
	if len(g.died[t])+len(g.born[t]) <= glueFew {
		g.fresh = append(append(g.fresh, g.died[t]...), g.born[t]...)
	}
}

// rarityAt is higher where fewer pieces meet, and accidental matches are rarer.
func (g *gluing) rarityAt(t int32) float64 {
	return -math.Log(float64(max(len(g.born[t]), 1)) * float64(max(len(g.died[t]), 1)))
}

// joinAll glues until no joint is left or the context ends.
func (g *gluing) joinAll(ctx context.Context) {
	for n := 0; n%glueBlind != 0 || ctx.Err() == nil; n++ {
		for _, i := range g.fresh {
			if g.at[i] >= 0 {
				g.offerJoints(i)
			}
		}
		g.fresh = g.fresh[:0]
		if g.careful && (len(g.joints) == 0 || g.joints[0].score < glueDoubt) {
			if !g.joinStripWheels() {
				return
			}
			continue
		}
		if len(g.joints) == 0 {
			return
		}
		j := g.pop()
		if !slices.ContainsFunc(j.pieces(), func(i int32) bool { return g.at[i] < 0 }) {
			g.join(j)
		}
	}
}

// join glues the pieces of j. It reports false if alignments forbid it.
func (g *gluing) join(j joint) bool {
	p, ok := g.compose(j)
	if !ok {
		return false
	}
	moments := []int32{p.hi}
	for _, i := range j.pieces() {
		moments = append(moments, g.pieces[i].lo)
		g.removePiece(i)
	}
	g.add(p)
	slices.Sort(moments)
	for _, t := range slices.Compact(moments) {
		g.refreshMoment(t)
	}
	return true
}

// compose returns the piece that a joint makes; ok is false if alignments forbid it.
func (g *gluing) compose(j joint) (p piece, ok bool) {
	a, b := &g.pieces[j.of[0]], &g.pieces[j.of[1]]
	switch j.how {
	case abut:
		p = piece{lo: a.lo, hi: b.hi, size: a.size, parts: []part{{j.of[0], 0}, {j.of[1], 0}}}
	case stack:
		if a.size%b.align != 0 {
			j.of[0], j.of[1], a, b = j.of[1], j.of[0], b, a
		}
		p = piece{lo: a.lo, hi: a.hi, size: a.size + b.size, parts: []part{{j.of[0], 0}, {j.of[1], a.size}}}
	case wheel:
		p = g.wheelPiece(j.of)
	}
	p.align = 1
	for _, q := range p.parts {
		p.align = max(p.align, g.pieces[q.piece].align)
	}
	for _, q := range p.parts {
		if align := g.pieces[q.piece].align; p.align%align != 0 || q.up%align != 0 {
			return piece{}, false
		}
	}
	return p, true
}

// joinDoubtful continues with doubtful joints too.
func (g *gluing) joinDoubtful(ctx context.Context) {
	g.careful, g.touched, g.joints, g.fresh = false, nil, g.joints[:0], slices.Clone(g.whole)
	g.joinAll(ctx)
}

// breakAndJoin breaks a few pieces up and glues again. It undoes both if that leaves more
// pieces.
func (g *gluing) breakAndJoin(ctx context.Context) {
	before, known := len(g.whole), len(g.pieces)
	g.log, g.joints = g.log[:0], g.joints[:0]
	i := g.whole[g.rng.IntN(len(g.whole))]
	for range glueSmall {
		if j := g.whole[g.rng.IntN(len(g.whole))]; g.pieces[j].area() < g.pieces[i].area() {
			i = j
		}
	}
	if g.rng.IntN(glueSmash) == 0 || !g.breakRivalSeams(i) {
		g.breakAround(i)
	}
	g.joinAll(ctx)
	if len(g.whole) <= before {
		return
	}
	undo := g.log
	g.log = nil
	for k := len(undo) - 1; k >= 0; k-- {
		if i := undo[k]; i >= 0 {
			g.removePiece(i)
		} else {
			g.addPiece(^i)
		}
	}
	for i := len(g.pieces) - 1; i >= known; i-- {
		if e, ok := g.seamOf(int32(i)); ok {
			g.seams[e] = removed(g.seams[e], int32(i))
		}
	}
	g.pieces, g.at, g.owner, g.fresh = g.pieces[:known], g.at[:known], g.owner[:known], g.fresh[:0]
	g.log, g.touched = undo, g.touched[:0]
}

// breakAround breaks piece i and some of its neighbours.
func (g *gluing) breakAround(i int32) {
	center := g.pieces[i]
	broken := []int32{i}
	for _, t := range []int32{center.lo, center.hi} {
		broken = append(append(broken, g.born[t]...), g.died[t]...)
	}
	slices.Sort(broken)
	broken = slices.Compact(broken)
	g.rng.Shuffle(len(broken), func(i, j int) { broken[i], broken[j] = broken[j], broken[i] })
	depth := 1 + g.rng.IntN(glueDepth)
	for _, i := range broken[:min(len(broken), 1+g.rng.IntN(glueBroken))] {
		g.breakPiece(i, depth)
	}
}

// breakPiece breaks piece i into its parts, and these again, to about a depth.
func (g *gluing) breakPiece(i int32, depth int) {
	p := g.pieces[i]
	if len(p.parts) == 0 || depth == 0 {
		return
	}
	g.removePiece(i)
	for _, q := range p.parts {
		g.addPiece(q.piece)
	}
	for k, q := range p.parts {
		g.breakPiece(q.piece, depth-min(k, 1)-g.rng.IntN(2))
	}
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

// finish packs the whole pieces, and so the items, below target. It reports false
// if it cannot.
func (g *gluing) finish(ctx context.Context, target int64) (parts.Packing, bool) {
	whole := make([]parts.Item, 0, len(g.whole))
	for _, i := range g.whole {
		p := &g.pieces[i]
		whole = append(whole, parts.Item{Lo: p.lo, Hi: p.hi, Size: p.size, Align: p.align, Fixed: Free, Index: i})
	}
	sections := parts.Restrict(whole)
	outer := greedy(ctx, whole, sections, target, glueEffort)
	if outer.Height > target && len(whole) <= glueSearch {
		pf := newPortfolio(whole, sections, target, 0)
		if v, offsets := pf.decide(ctx, glueNodes, 1); v == fits {
			outer = parts.Packing{Offsets: offsets}
			for k := range whole {
				outer.Height = max(outer.Height, offsets[k]+whole[k].Size)
			}
		}
		g.nodes += pf.nodes
	}
	if outer.Height > target {
		return parts.Packing{}, false
	}
	p := parts.Packing{Offsets: make([]int64, len(g.pieces)), Height: outer.Height}
	for k := range whole {
		g.placePiece(whole[k].Index, outer.Offsets[k], p.Offsets)
	}
	return p, true
}

// placePiece writes the offsets of the items of piece i, which lies at off.
func (g *gluing) placePiece(i int32, off int64, offsets []int64) {
	p := &g.pieces[i]
	if len(p.parts) == 0 {
		offsets[i] = off
	}
	for _, q := range p.parts {
		g.placePiece(q.piece, off+q.up, offsets)
	}
}

// glue packs a nearly full leaf below target, if it can. It counts each round as
// a node and stops at about limit nodes.
func glue(ctx context.Context, l parts.Part, target, limit int64) (p parts.Packing, nodes int64, ok bool) {
	if !isNearlyFull(l, target) {
		return parts.Packing{}, 0, false
	}
	g := newGluing(l.Items, l.Sections, true)
	g.joinAll(ctx)
	if g.linked < len(g.whole) { // careful glueing left most doubtful joints open
		g = newGluing(l.Items, l.Sections, false)
		g.joinAll(ctx)
	}
	least, looked, before := len(l.Items)/2, 0, len(l.Items)
	for round := range min(glueRounds, glueRoundsPer*len(l.Items)) {
		if ctx.Err() != nil || len(g.whole) > len(l.Items)/2 || g.nodes >= limit {
			break
		}
		if round%gluePace == 0 && len(g.pieces) > glueGarbage*len(l.Items) {
			g = g.compact(len(l.Items))
		}
		if round%gluePace == 0 && len(g.whole) > glueSearch {
			switch slow := 20*len(g.whole) > 19*before; {
			case slow && !g.careful:
				return parts.Packing{}, g.nodes, false
			case slow:
				g.joinDoubtful(ctx)
			}
			before = len(g.whole)
		}
		if 10*len(g.whole) < 9*least || round-looked >= gluePatient && len(g.whole) <= glueSearch {
			least, looked = len(g.whole), round
			if p, ok := g.finish(ctx, target); ok {
				p.Offsets = p.Offsets[:len(l.Items)]
				return p, g.nodes, true
			}
		}
		g.breakAndJoin(ctx)
		g.nodes++
	}
	return parts.Packing{}, g.nodes, false
}

// isNearlyFull reports whether nearly all of a leaf's area below target is in use and
// no item is fixed.
func isNearlyFull(l parts.Part, target int64) bool {
	used := 0.0
	for i := range l.Items {
		if l.Items[i].Fixed >= 0 {
			return false
		}
		used += float64(l.Items[i].Size) * float64(l.Items[i].Width())
	}
	return used >= glueFull*float64(target)*float64(l.Sections)
}
