package alloc

import (
	"cmp"
	"context"
	"math"
	"math/rand/v2"
	"slices"
)

// Tides
//
// Approach: where most bytes are alive nothing may be wasted, so begin there and
// go outwards in time, first to one side, then to the other, with time running
// the other way.
//
// At the highest moment all that is alive is stacked without a gap: what ends
// soonest hangs from the limit, in order of ends; what began latest lies at the
// bottom, in order of births; each item is where it leaves sooner. So what is
// freed outwards of the peak is one piece at the top on one side, at the bottom
// on the other. (After the idea behind Buchsbaum et al., "OPT versus LOAD in
// dynamic storage allocation", 2003.)
//
// From then on items are placed as they are born, each in a gap beside the
// neighbour that ends at most nearly the same time, at its foot or its head:
// neighbours that end together leave one large gap rather than two small ones.
// What is left of the gap, and for how long, is weighed too.
//
// Large items are given their places somewhat before they are born, while there
// are large gaps. For one that finds none the tide goes back and places it
// earlier still, so that others, which fit elsewhere, make room for it. If that
// does not help, it is missed, and goes on top of everything.
//
// Where a second peak is less than a lifetime away on one side, few items are missed, but
// always some. Then it helps to stack more at the peak for that side than for the
// other: such preferences are drawn at random until nothing is missed (lean).
//
// Example, limit 4:   at the peak lie a of size 1 that ends at once, b of size 2
// and c of size 1 that ends soon. From the top: a, c, b. When a has ended there
// is room for 1, when c has ended for 2, without a gap between.
//
// Weakness: what lies ahead is not looked at, so gaps gather on the way to the
// next peak; and where no moment has slack, large items are missed everywhere.

// The rounds of tides, and what each of them does. Lifetimes and sizes are mean
// ones.
const (
	tideRounds  = 12
	tidePerItem = 30_000 // effort in steps of some nanoseconds,
	tideMost    = 3_000_000_000
	tideSlack   = 110  // the first limit is above the target by this fraction
	tideLead    = 0.03 // an item of one size is placed so many lifetimes early,
	tideLarge   = 10   // others in proportion, up to so many sizes,
	tideShore   = 2    // and less if they are nearer to the peak than so many lifetimes
	tideHurry   = 0.01 // one that finds no gap, so many lifetimes earlier,
	tideHurries = 5    // and twice as many each time; after so many times it is missed
	tideMissed  = 50   // with so many missed it gives up,
	tideOf      = 1000 // and one for so many items
	tideWaste   = 0.15 // see drift
	tideDrifts  = 40   // so many are tried,
	tideFew     = 20   // if the first misses no more than so many
	tideSweep   = 16   // placements between two looks at who has died
)

// A tide packs a leaf outwards from its highest moment.
type tide struct {
	leaf
	drift
	peak    int32
	size    float64   // mean
	width   float64   // mean lifetime in sections
	lead    []float64 // per item: how long before its birth it is placed, in sections
	hurries []int     // per item: how often that was raised
	limit   int64
	offsets []int64 // of items that have a place
	missed  []int32 // lie above the limit
	effort  int64
}

// A drift bends a tide: what it leans to differs where a second peak is near.
type drift struct {
	side  float64 // at the peak, what ends within so many times the time since its birth hangs from the limit
	lead  float64 // factor of how early items are placed
	waste float64 // what a byte left over costs, beside one whose neighbour has another end
}

// ebb lowers the packing of a leaf without fixed items towards target, if it
// can: it looks for the lowest limit below which a tide misses nothing.
func ebb(ctx context.Context, l leaf, from packing, target, effort int64) packing {
	t := newTide(l)
	t.limit = target + target/tideSlack
	return t.lower(ctx, from, target, &effort)
}

// lean does so with drifts drawn at random, half of them near to the best so far, until
// one comes near to the target. From is further away than that, and is returned if none does.
func lean(ctx context.Context, l leaf, from packing, target, effort int64) packing {
	t, rng := newTide(l), rand.New(rand.NewPCG(4, uint64(len(l.items))))
	near, least := t.drift, math.MaxInt // the drift that has missed fewest
	for n := 0; n < tideDrifts && effort > 0 && ctx.Err() == nil; n++ {
		switch {
		case n%2 == 1:
			t.turn(drift{between(rng, 0.1, 10), between(rng, 0.8, 2), between(rng, 0.1, 1)})
		case n > 0:
			t.turn(drift{near.side * between(rng, 0.7, 1.4), near.lead * between(rng, 0.8, 1.2), near.waste * between(rng, 0.7, 1.4)})
		}
		t.limit = target + target/tightenAbove
		p, ok := t.spend(ctx, &effort)
		if ok && len(t.missed) <= least {
			near, least = t.drift, len(t.missed)
		}
		if ok && len(t.missed) == 0 && p.height < from.height {
			t.limit = target + target/tideSlack/2
			return t.lower(ctx, p, target, &effort)
		}
		if least > tideFew {
			break
		}
	}
	return from
}

// lower looks for a limit in rounds, the first one at what it is now.
func (t *tide) lower(ctx context.Context, best packing, target int64, effort *int64) packing {
	low := target - 1 // a limit that is too low
	for round := 0; round < tideRounds && t.limit > low && t.limit < best.height && ctx.Err() == nil; round++ {
		p, ok := t.spend(ctx, effort)
		if ok && p.height < best.height {
			best = p
		}
		if ok && len(t.missed) == 0 {
			t.limit = low + (t.limit-low)/2
			continue
		}
		low = t.limit
		t.limit = min(target+2*(low-target), low+(best.height-low)/2)
	}
	return best
}

// spend runs a tide for half of the effort at most.
func (t *tide) spend(ctx context.Context, effort *int64) (packing, bool) {
	t.effort = *effort / 2
	*effort -= t.effort
	p, ok := t.run(ctx)
	*effort += max(t.effort, 0)
	return p, ok
}

func newTide(l leaf) *tide {
	n := float64(len(l.items))
	t := &tide{leaf: l, lead: make([]float64, len(l.items)), hurries: make([]int, len(l.items))}
	highest := int64(-1)
	for s, load := range loads(l.items, l.sections) {
		if load > highest {
			t.peak, highest = int32(s), load
		}
	}
	for i := range l.items {
		t.size += float64(l.items[i].size) / n
		t.width += float64(l.items[i].width()) / n
	}
	t.turn(drift{side: 1, lead: 1, waste: tideWaste})
	return t
}

// turn gives the tide another drift, and forgets what it has learned with the last.
func (t *tide) turn(d drift) {
	t.drift = d
	for i := range t.items {
		it := &t.items[i]
		away := float64(max(it.lo-t.peak, t.peak-it.hi, 0)) / t.width
		t.lead[i] = d.lead * tideLead * t.width * min(float64(it.size)/t.size, tideLarge) * min(away/tideShore, 1)
	}
}

// run packs all items, those that are missed above the limit. It gives up, and
// reports false, when too many are, the effort is spent or the context ends.
func (t *tide) run(ctx context.Context) (packing, bool) {
	t.offsets = make([]int64, len(t.items))
	clear(t.hurries)
	stack := t.stack()
	back := slices.Clone(t.items)
	for i := range back {
		back[i].lo, back[i].hi = t.sections-t.items[i].hi, t.sections-t.items[i].lo
	}
	if !t.flow(ctx, t.items, t.peak, stack) || !t.flow(ctx, back, t.sections-1-t.peak, stack) {
		return packing{}, false
	}
	t.heap()
	p := packing{offsets: t.offsets}
	for i := range t.items {
		p.height = max(p.height, t.offsets[i]+t.items[i].size)
	}
	return p, true
}

// stack places what is alive at the peak and returns it, by offset.
func (t *tide) stack() []int32 {
	var low, high []int32 // by how soon they leave
	for i := range t.items {
		switch it := &t.items[i]; {
		case it.lo > t.peak || it.hi <= t.peak:
		case float64(it.hi-t.peak) <= t.side*float64(t.peak+1-it.lo):
			high = append(high, int32(i))
		default:
			low = append(low, int32(i))
		}
	}
	slices.SortFunc(low, func(i, j int32) int { return cmp.Or(cmp.Compare(t.items[j].lo, t.items[i].lo), cmp.Compare(i, j)) })
	slices.SortFunc(high, func(i, j int32) int { return cmp.Or(cmp.Compare(t.items[i].hi, t.items[j].hi), cmp.Compare(i, j)) })
	var stacked []int32
	floor, roof := int64(0), t.limit
	for _, i := range low {
		it := &t.items[i]
		if at := it.up(floor); at <= roof-it.size {
			t.offsets[i], floor = at, at+it.size
			stacked = append(stacked, i)
		} else {
			t.offsets[i] = missing
		}
	}
	from := len(stacked)
	for _, i := range high {
		it := &t.items[i]
		if at := (roof - it.size) / it.align * it.align; roof >= it.size && at >= floor {
			t.offsets[i], roof = at, at
			stacked = append(stacked, i)
		} else {
			t.offsets[i] = missing
		}
	}
	slices.Reverse(stacked[from:])
	return stacked
}

// flow places the items born after a moment at which a stack is alive.
func (t *tide) flow(ctx context.Context, items []item, moment int32, stack []int32) bool {
	var order []int32
	for i := range items {
		if items[i].lo > moment {
			order = append(order, int32(i))
		}
	}
	due := func(i int32) float64 { return float64(items[i].lo) - t.lead[i] }
	slices.SortFunc(order, func(i, j int32) int {
		return cmp.Or(cmp.Compare(due(i), due(j)), cmp.Compare(items[j].size, items[i].size), cmp.Compare(i, j))
	})
	near := t.alive(items, float64(moment), stack)
	missed := 0
	for n := 0; n < len(order); {
		i := order[n]
		if n%tideSweep == 0 {
			near = slices.DeleteFunc(near, func(r resident) bool { return float64(r.hi) <= due(i) })
		}
		if t.effort -= int64(len(near)); t.effort < 0 || n%tideSweep == 0 && ctx.Err() != nil {
			return false
		}
		if at, ok := t.beside(&items[i], near); ok {
			t.offsets[i] = at
			r := resident{at, at + items[i].size, items[i].lo, items[i].hi, i}
			k, _ := slices.BinarySearchFunc(near, r, byOffset)
			near = slices.Insert(near, k, r)
			n++
			continue
		}
		if t.hurries[i] == tideHurries {
			t.offsets[i] = missing
			if missed++; missed > tideMissed+len(items)/tideOf {
				return false
			}
			n++
			continue
		}
		t.lead[i] += tideHurry * t.width * float64(int(1)<<t.hurries[i])
		t.hurries[i]++
		back, _ := slices.BinarySearchFunc(order[:n], due(i), func(j int32, at float64) int { return cmp.Compare(due(j), at) })
		copy(order[back+1:n+1], order[back:n])
		order[back], n = i, back
		near = t.alive(items, due(i), stack, order[:back])
		t.effort -= int64(back)
	}
	return true
}

// missing is the offset of an item that was missed.
const missing = -1

// alive lists those of some items that have places and end after a moment, by
// offset.
func (t *tide) alive(items []item, moment float64, some ...[]int32) (near []resident) {
	for _, list := range some {
		for _, i := range list {
			if at := t.offsets[i]; at != missing && float64(items[i].hi) > moment {
				near = append(near, resident{at, at + items[i].size, items[i].lo, items[i].hi, i})
			}
		}
	}
	slices.SortFunc(near, byOffset)
	return near
}

// beside finds the best place for an item below the limit, in a gap between
// residents, which are sorted by offset. Floor and limit end with anything.
func (t *tide) beside(it *item, near []resident) (at int64, ok bool) {
	least, size := math.Inf(1), float64(it.size)/t.size
	consider := func(place, left, gap int64, beside, across int32) {
		ends := float64(max(beside-it.hi, it.hi-beside))
		until := float64(min(it.hi, across) - it.lo)
		waste := t.lost(left)*until - t.lost(gap)*min(until, float64(beside-it.lo))
		if cost := size*ends + t.waste*waste; cost < least {
			at, ok, least = place, true, cost
		}
	}
	floor, beneath := int64(0), it.hi // what the gap lies on, and its end
	for k := range len(near) + 1 {
		roof, above := t.limit, it.hi
		if k < len(near) {
			r := &near[k]
			if r.hi <= it.lo || r.lo >= it.hi {
				continue
			}
			roof, above = r.off, r.hi
		}
		if gap := roof - floor; gap >= it.size {
			if foot := it.up(floor); foot <= roof-it.size {
				consider(foot, roof-foot-it.size, gap, beneath, above)
			}
			if head := (roof - it.size) / it.align * it.align; head >= floor {
				consider(head, head-floor, gap, above, beneath)
			}
		}
		if k < len(near) && near[k].end > floor {
			floor, beneath = near[k].end, near[k].hi
		}
	}
	return at, ok
}

// lost is how much of a gap is as good as lost if it stays as it is, in mean
// sizes: large gaps find their items.
func (t *tide) lost(gap int64) float64 {
	x := float64(gap) / t.size
	return x * math.Exp(-x)
}

// heap puts what was missed on top of the limit, large items first.
func (t *tide) heap() {
	t.missed = t.missed[:0]
	for i, at := range t.offsets {
		if at == missing {
			t.missed = append(t.missed, int32(i))
		}
	}
	slices.SortFunc(t.missed, func(i, j int32) int {
		return cmp.Or(cmp.Compare(t.items[j].size, t.items[i].size), cmp.Compare(i, j))
	})
	line := newProfile(t.sections)
	line.raise(0, t.sections, t.limit)
	for _, i := range t.missed {
		it := &t.items[i]
		t.offsets[i] = it.up(line.highest(it.lo, it.hi))
		line.raise(it.lo, it.hi, t.offsets[i]+it.size)
	}
}
