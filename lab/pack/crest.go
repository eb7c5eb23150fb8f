package pack

import (
	"cmp"
	"context"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/athanor-llm/athanor/alloc/parts"
)

// Crests
//
// Approach: where no moment has slack, covers waste almost nothing except in the
// top fifth of the height, and there the waste varies from place to place. So
// choose a stretch of time that is too high, take out the topmost items that lie
// within the stretch, and cover what remains anew with a random taste. Keep the
// result if it is no worse. Badness is the sum over sections of the fourth power
// of the excess height, so one section that is far too high may come down while
// many others rise a little. (Ruin and recreate, Schrimpf et al. 2000.)
//
// An item can be taken out when nothing stays above it, so the pit is an inverted
// triangle, narrower with depth: a stretch of ten mean lifetimes is open some ten
// items deep in its middle.
//
// Example, of four sections:
//
//	d d d .    [0,3) is too high. d is on top; without it, b and c are. a reaches
//	b b c .    beyond the stretch and stays. b, d on it and c on top of both would
//	a a a a    be no better; b and c side by side below d is the old packing.
//
// Items with long lifetimes near the top block access to those below. So a start
// places the longest at the bottom, and every other pit also takes out the highest
// blocking item, with everything above it. Space lost far below the top cannot be
// recovered, so several starts are tried, and the one that wastes least is laid
// again in courses (course.go). If a single hole still keeps it from the target,
// the courses are laid from the ground again, with other noise.
//
// Weakness: the last places that are too high are those where a long item lies
// near the top regardless; and wheels, where many items are long, gain nothing.

const (
	crestPerItem  = 25_000 // effort per item, in steps of a few nanoseconds,
	crestLeast    = 500_000_000
	crestMost     = 2_500_000_000
	crestRace     = 5    // 1/crestRace of it chooses a start,
	crestStarts   = 4    // each start may take 1/crestStarts of that; half of the rest is for courses,
	crestTurns    = 20   // and half for work on crests, in this many turns
	crestFirst    = 0.25 // fraction of the highest excess over the target that is harmless in the first turn,
	crestLast     = 0.75 // and in the last
	crestShort    = 3    // length of a pit, in mean lifetimes, from
	crestLong     = 16   // to,
	crestThin     = 3    // and its depth, in mean sizes, from
	crestThick    = 100  // to
	crestBite     = 100  // fixed effort of a pit, in steps
	crestAttempts = 3    // most attempts to get within target/tightenAbove of the target
	crestBed      = 12   // a start puts lifetimes longer than this many mean ones at the bottom: from
	crestBeds     = 24   // to
)

// A crest is a packing whose top is being reworked.
type crest struct {
	parts.Part
	offsets     []int64
	top         []int64   // per section
	spare       int64     // tops up to this height do no harm
	alive       [][]int32 // per stretch of 1<<shift sections: the items alive there
	shift       uint
	size, width float64 // means over all items
	effort      int64
	rng         *rand.Rand
}

// lowerByCrests packs a part without fixed items, aiming at target, and returns the lower of the
// result and from. An attempt takes at most effort, or half of it if that is too little for
// courses.
func lowerByCrests(ctx context.Context, l parts.Part, from parts.Packing, target, effort int64) parts.Packing {
	best := from
	s, first, price, loss := bestStart(ctx, l, from.Height, target, effort/crestRace)
	if s == nil {
		return best
	}
	effort -= effort / crestRace
	effort /= 2
	laid := effort > courseWorth*price
	for attempt := range crestAttempts {
		if laid {
			first = s.packInCourses(ctx, l, target, effort, loss, uint64(attempt))
		}
		if p := newCrest(l, first).lower(ctx, target, effort); p.Height < best.Height {
			best = p
		}
		if !laid || best.Height-target <= target/tightenAbove || ctx.Err() != nil {
			break
		}
	}
	return best
}

// lower reworks the crests in turns and returns the lowest packing found.
func (c *crest) lower(ctx context.Context, target, effort int64) (best parts.Packing) {
	best.Height = math.MaxInt64
	for turn := 0; ; turn++ {
		h := slices.Max(c.top)
		if h < best.Height {
			best = parts.Packing{Offsets: slices.Clone(c.offsets), Height: h}
		}
		if turn == crestTurns || best.Height <= target || ctx.Err() != nil {
			return best
		}
		share := crestFirst + (crestLast-crestFirst)*float64(turn)/(crestTurns-1)
		c.spare = target + int64(share*float64(h-target))
		c.repackPits(ctx, effort/crestTurns)
	}
}

// bestStart covers the part in one go with the openings and some random starts. It
// returns the start that wastes least, its packing, the effort that took, and its mean
// loss over all sections. It returns nil if no start succeeds within the effort or all
// openings are higher than from.
func bestStart(ctx context.Context, l parts.Part, from, target, effort int64) (best *start, first parts.Packing, price int64, loss float64) {
	rng := rand.New(rand.NewPCG(2, uint64(len(l.Items))))
	least, lowest, most := math.Inf(1), int64(math.MaxInt64), effort/crestStarts
	for k := 0; effort > 0 && ctx.Err() == nil; k++ {
		s := drawStart(rng)
		switch {
		case k < len(openings):
			s = openings[k]
		case lowest > from:
			return nil, first, 0, 0
		}
		left := most
		p, ok := s.pack(l, target, &left)
		effort -= most - left
		if !ok {
			continue
		}
		lowest = min(lowest, p.Height)
		wasted := 0.0 // a sum, since courses mend single holes
		for _, top := range tops(l, p, 0) {
			wasted += float64(max(top-target, 0))
		}
		if wasted < least {
			best, first, price, least = &s, p, most-left, wasted
		}
	}
	return best, first, price, least / float64(l.Sections)
}

// openings are tried first.
var openings = []start{
	{taste{near: 1.4, bend: 0.3, tall: 0.09, few: 0.08, flush: 0.04, brief: 0.03, late: late{tall: 7, few: 1.2, flush: 0.9}}, 24},
	{taste{near: 0.5, bend: 0.35, tall: 0.11, few: 0.075, flush: 0.03}, 20},
	{taste{near: 0.5, bend: 0.35, tall: 0.11, few: 0.075, flush: 0.03}, 13},
}

// drawStart returns a random start.
func drawStart(rng *rand.Rand) start {
	return start{bed: drawLogUniform(rng, crestBed, crestBeds), taste: taste{near: drawLogUniform(rng, 0.3, 2), bend: 0.7 * rng.Float64(),
		tall: drawLogUniform(rng, 0.04, 0.5), few: drawLogUniform(rng, 0.05, 0.1), flush: drawLogUniform(rng, 0.015, 0.05),
		brief: drawLogUniform(rng, 0.01, 0.1), late: late{8 * rng.Float64(), 2 * rng.Float64(), 2 * rng.Float64()}}}
}

// A start packs a part so that short lifetimes are on top.
type start struct {
	taste
	bed float64 // lifetimes longer than this many mean ones lie at the bottom
}

// layGround puts the longest lifetimes at the bottom, longest first, each as low as
// possible. It returns the covering for the other items, and the packing so far.
func (s start) layGround(l parts.Part, target int64) (*covering, parts.Packing) {
	p := parts.Packing{Offsets: make([]int64, len(l.Items))}
	long, short := s.splitByWidth(l.Items)
	load, floor := parts.Loads(l.Items, l.Sections), make([]int64, l.Sections)
	for _, i := range long {
		it := &l.Items[i]
		under := floor[it.Lo:it.Hi]
		p.Offsets[i] = it.AlignUp(slices.Max(under))
		for k := range under {
			load[int(it.Lo)+k] += p.Offsets[i] - under[k] // a hole, lost
			under[k] = p.Offsets[i] + it.Size
		}
	}
	p.Height = slices.Max(floor)
	shift := windowShift(l.Items)
	return newCovering(short, parts.NichesOf(floor), load, target, slices.Repeat([]taste{s.taste}, int(l.Sections>>shift)+1), shift), p
}

// pack covers the ground in one go. It reports false if the effort is spent first.
func (s start) pack(l parts.Part, target int64, effort *int64) (parts.Packing, bool) {
	c, p := s.layGround(l, target)
	q, ok := c.fill(effort)
	return joined(p, c.items, q), ok
}

// joined adds to p the packing q of the items that cover it.
func joined(p parts.Packing, items []parts.Item, q parts.Packing) parts.Packing {
	for k := range items {
		p.Offsets[items[k].Index] = q.Offsets[k]
	}
	p.Height = max(p.Height, q.Height)
	return p
}

// splitByWidth divides the items into the long ones, listed longest first, and the others,
// whose index becomes their position in items.
func (s start) splitByWidth(items []parts.Item) (long []int32, short []parts.Item) {
	width := 0.0
	for i := range items {
		width += float64(items[i].Width()) / float64(len(items))
	}
	for i, it := range items {
		if float64(it.Width()) > s.bed*width {
			long = append(long, int32(i))
			continue
		}
		it.Index = int32(i)
		short = append(short, it)
	}
	slices.SortStableFunc(long, func(i, j int32) int { return int(items[j].Width()) - int(items[i].Width()) })
	return long, short
}

// repackPits opens pit after pit until the effort is spent.
func (c *crest) repackPits(ctx context.Context, effort int64) {
	c.effort = effort
	for c.effort > 0 && ctx.Err() == nil {
		c.repackPit(c.choosePit())
	}
}

func newCrest(l parts.Part, from parts.Packing) *crest {
	n := float64(len(l.Items))
	c := &crest{Part: l, offsets: slices.Clone(from.Offsets), top: tops(l, from, 0)[:l.Sections],
		shift: parts.ShelfShift(l.Items, l.Sections), rng: rand.New(rand.NewPCG(1, uint64(len(l.Items))))}
	c.alive = make([][]int32, l.Sections>>c.shift+1)
	for i := range l.Items {
		it := &l.Items[i]
		c.size += float64(it.Size) / n
		c.width += float64(it.Width()) / n
		for k := it.Lo >> c.shift; k <= (it.Hi-1)>>c.shift; k++ {
			c.alive[k] = append(c.alive[k], int32(i))
		}
	}
	return c
}

func (c *crest) harm(tops []int64) float64 { return harm(tops, c.spare, c.size) }

// harm returns the sum of the fourth powers of the excess over spare, in units of size.
func harm(tops []int64, spare int64, size float64) (sum float64) {
	for _, t := range tops {
		x := float64(max(t-spare, 0)) / size
		sum += x * x * x * x
	}
	return sum
}

// A pit is the region from which items are taken out: those within [lo, hi) at
// offset height or above, and those within [from, to) at offset depth or above.
type pit struct {
	lo, hi   int32
	height   int64
	from, to int32 // part of [lo, hi)
	depth    int64 // at most the height
}

// bottom returns the lowest offset at which an item alive during [lo, hi) is taken out.
func (p *pit) bottom(lo, hi int32) int64 {
	if p.from <= lo && hi <= p.to {
		return p.depth
	}
	return p.height
}

// choosePit returns a pit around the highest of a random number of random sections.
func (c *crest) choosePit() pit {
	s := c.rng.Int32N(c.Sections)
	tries := int64(drawLogUniform(c.rng, 1, float64(c.Sections)))
	for range tries {
		if o := c.rng.Int32N(c.Sections); c.top[o] > c.top[s] {
			s = o
		}
	}
	here := c.alive[s>>c.shift]
	c.effort -= tries + crestBite + 2*int64(len(here))
	length := c.width * drawLogUniform(c.rng, crestShort, crestLong)
	for _, i := range here {
		if it := &c.Items[i]; it.Lo <= s && s < it.Hi && c.offsets[i]+it.Size == c.top[s] {
			length = max(length, float64(it.Width())*drawLogUniform(c.rng, 1, crestLong/2))
		}
	}
	p := c.around(s, int32(min(1+length, float64(c.Sections))))
	if c.rng.IntN(2) == 0 {
		c.widen(&p, s)
	}
	return p
}

// widen adds to a pit around section s the highest item that blocks it there, and
// the items above that one during its lifetime.
func (c *crest) widen(p *pit, s int32) {
	bar := int32(-1)
	for _, i := range c.alive[s>>c.shift] {
		it := &c.Items[i]
		barred := it.Lo <= s && s < it.Hi && (it.Lo < p.lo || it.Hi > p.hi) && c.offsets[i] > p.depth
		if barred && (bar < 0 || c.offsets[i] > c.offsets[bar]) {
			bar = i
		}
	}
	if bar >= 0 {
		it := &c.Items[bar]
		p.lo, p.hi, p.height = min(p.lo, it.Lo), max(p.hi, it.Hi), c.offsets[bar]
	}
}

// around returns a pit of random depth and the given length around section s.
func (c *crest) around(s, length int32) pit {
	lo := min(max(s-c.rng.Int32N(length), 0), c.Sections-length)
	depth := max(c.top[s]-int64(c.size*drawLogUniform(c.rng, crestThin, crestThick)), 0)
	return pit{lo, lo + length, depth, lo, lo + length, depth}
}

// drawLogUniform returns a random number in [lo, hi) whose logarithm is uniform.
func drawLogUniform(rng *rand.Rand, lo, hi float64) float64 {
	return lo * math.Pow(hi/lo, rng.Float64())
}

// repackPit takes out the items of a pit that have nothing above them and covers the
// rest anew. It keeps the old packing if the new one is worse.
func (c *crest) repackPit(p pit) {
	out, floor := c.openPit(p)
	if len(out) < 2 {
		return
	}
	load := slices.Clone(floor)
	for k := range out {
		for s := out[k].Lo; s < out[k].Hi; s++ {
			load[s] += out[k].Size
		}
	}
	w := taste{near: drawLogUniform(c.rng, 0.3, 10), bend: c.rng.Float64(), tall: drawLogUniform(c.rng, 0.01, 1), few: drawLogUniform(c.rng, 0.01, 0.3),
		flush: drawLogUniform(c.rng, 0.01, 0.1), noise: drawLogUniform(c.rng, 0.005, 0.05), seed: c.rng.Uint64()}
	q, ok := newCovering(out, parts.NichesOf(floor), load, c.spare, []taste{w}, 31).fill(&c.effort)
	if !ok {
		return
	}
	top := floor
	for k := range out {
		for s := out[k].Lo; s < out[k].Hi; s++ {
			top[s] = max(top[s], q.Offsets[k]+out[k].Size)
		}
	}
	if c.harm(top) > c.harm(c.top[p.lo:p.hi]) {
		return
	}
	for k := range out {
		c.offsets[out[k].Index] = q.Offsets[k]
	}
	copy(c.top[p.lo:p.hi], top)
}

// openPit lists the items that can be taken out of a pit, with sections relative to
// it and their positions as index, and the tops of what remains below them.
func (c *crest) openPit(p pit) (out []parts.Item, floor []int64) {
	near := c.itemsAbove(p.lo, p.hi, p.depth)
	slices.SortFunc(near, func(i, j int32) int {
		return cmp.Or(cmp.Compare(c.offsets[j], c.offsets[i]), cmp.Compare(i, j))
	})
	c.effort -= 12 * int64(len(near))
	floor = slices.Repeat([]int64{-1}, int(p.hi-p.lo)) // top of what stays; -1: nothing seen yet
	for _, i := range near {
		it := &c.Items[i]
		under := floor[max(it.Lo-p.lo, 0):min(it.Hi-p.lo, p.hi-p.lo)]
		if it.Lo >= p.lo && it.Hi <= p.hi && c.offsets[i] >= p.bottom(it.Lo, it.Hi) && slices.Max(under) < 0 {
			o := *it
			o.Lo, o.Hi, o.Index = it.Lo-p.lo, it.Hi-p.lo, i
			out = append(out, o)
			continue
		}
		for s := range under {
			if under[s] < 0 {
				under[s] = c.offsets[i] + it.Size
			}
		}
	}
	for s := range floor {
		if floor[s] < 0 {
			floor[s] = min(p.depth, c.top[p.lo+int32(s)]) // items not listed end here at the latest
		}
	}
	return out, floor
}

// itemsAbove lists the items that are alive during [lo, hi) and reach above height.
func (c *crest) itemsAbove(lo, hi int32, height int64) (near []int32) {
	first := lo >> c.shift
	for k := first; k <= (hi-1)>>c.shift; k++ {
		for _, i := range c.alive[k] {
			it := &c.Items[i]
			if it.Lo < hi && lo < it.Hi && (k == first || it.Lo>>c.shift == k) && c.offsets[i]+it.Size > height { // else it was listed before
				near = append(near, i)
			}
		}
		c.effort -= int64(len(c.alive[k]))
	}
	return near
}
