package pack

import (
	"cmp"
	"context"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/athanor-llm/athanor/alloc/parts"
)

// Tides
//
// Approach: at the moment with most bytes alive (the peak) nothing may be wasted,
// so begin there and go outwards in time: first forwards, then backwards, with
// time reversed.
//
// The items alive at the peak are stacked without a gap. Those that end soonest
// hang from the limit, in order of ends; those that began latest lie at the
// bottom, latest first. Each item joins the group where it leaves sooner. So the
// bytes freed away from the peak are contiguous: at the top on one side, at the
// bottom on the other. (After the idea behind Buchsbaum et al., "OPT versus LOAD
// in dynamic storage allocation", 2003.)
//
// From then on items are placed as they are born, each in a gap beside the
// neighbour whose end is nearest to its own, at the bottom or top of the gap:
// neighbours that end together leave one large gap rather than two small ones.
// The size and duration of the rest of the gap count too.
//
// Large items get their places somewhat before they are born, while there are
// large gaps. If one finds none, the tide backs up and places it earlier still, so
// that items that fit elsewhere make room for it. If that does not help, it is
// missed: it goes on top of everything.
//
// Where a second peak is less than a lifetime away on one side, a few items are
// always missed. Then it helps to bias the stack at the peak towards that side:
// such biases (drifts) are drawn at random until nothing is missed (lowerByDrifts).
//
// Example, limit 4:   alive at the peak are a of size 1, which ends at once, b of
// size 2, and c of size 1, which ends soon. From the top: a, c, b. When a has ended
// there is room for 1, when c has ended for 2, in one piece.
//
// Weakness: it does not look ahead, so gaps accumulate on the way to the next
// peak; and where no moment has slack, large items are missed everywhere.

// Parameters of a tide. Units of lifetime and size are the means over all items.
const (
	tideRounds  = 12     // most limits tried
	tidePerItem = 30_000 // effort per item, in steps of a few nanoseconds,
	tideMost    = 3_000_000_000
	tideSlack   = 110  // the first limit is target + target/tideSlack
	tideLead    = 0.03 // an item of mean size is placed this many lifetimes before its birth,
	tideLarge   = 10   // others in proportion to their size, up to this many mean sizes,
	tideShore   = 2    // and later if they are nearer to the peak than this many lifetimes
	tideHurry   = 0.01 // an item that finds no gap is placed this many lifetimes earlier,
	tideHurries = 5    // twice as many each time; after this many times it is missed
	tideMissed  = 50   // it gives up with more than this many missed,
	tideOf      = 1000 // plus one per tideOf items
	tideWaste   = 0.15 // default of drift.waste
	tideDrifts  = 40   // most drifts tried,
	tideFew     = 20   // while the best one misses no more than this many items
	tideSweep   = 16   // placements between two removals of dead items
)

// A tide packs a part outwards from its highest moment.
type tide struct {
	parts.Part
	drift
	peak    int32
	size    float64   // mean
	width   float64   // mean lifetime in sections
	lead    []float64 // per item: sections before its birth at which it is placed
	hurries []int     // per item: how often lead was raised
	limit   int64
	offsets []int64 // of placed items
	missed  []int32 // items above the limit
	effort  int64
}

// A drift is a tide's bias, which helps where a second peak is near.
type drift struct {
	side  float64 // an item at the peak hangs from the limit if it ends within side times its age
	lead  float64 // factor of all leads
	waste float64 // cost of a leftover gap, relative to that of a neighbour with another end
}

// lowerByTide lowers the packing of a part without fixed items towards target, if it
// can, by seeking the lowest limit with which a tide misses nothing.
func lowerByTide(ctx context.Context, l parts.Part, from parts.Packing, target, effort int64) parts.Packing {
	t := newTide(l)
	t.limit = target + target/tideSlack
	return t.lower(ctx, from, target, &effort)
}

// lowerByDrifts does the same as lowerByTide with random drifts, half of them near the best so far, until
// one comes within target/tightenAbove of the target. If none does it returns from, which
// must be higher than that.
func lowerByDrifts(ctx context.Context, l parts.Part, from parts.Packing, target, effort int64) parts.Packing {
	t, rng := newTide(l), rand.New(rand.NewPCG(4, uint64(len(l.Items))))
	near, least := t.drift, math.MaxInt // the drift that missed fewest, and how many
	for n := 0; n < tideDrifts && effort > 0 && ctx.Err() == nil; n++ {
		switch {
		case n%2 == 1:
			t.setDrift(drift{drawLogUniform(rng, 0.1, 10), drawLogUniform(rng, 0.8, 2), drawLogUniform(rng, 0.1, 1)})
		case n > 0:
			t.setDrift(drift{near.side * drawLogUniform(rng, 0.7, 1.4), near.lead * drawLogUniform(rng, 0.8, 1.2), near.waste * drawLogUniform(rng, 0.7, 1.4)})
		}
		t.limit = target + target/tightenAbove
		p, ok := t.spend(ctx, &effort)
		if ok && len(t.missed) <= least {
			near, least = t.drift, len(t.missed)
		}
		if ok && len(t.missed) == 0 && p.Height < from.Height {
			t.limit = target + target/tideSlack/2
			return t.lower(ctx, p, target, &effort)
		}
		if least > tideFew {
			break
		}
	}
	return from
}

// lower searches for the lowest limit by bisection, starting at t.limit, and returns
// the lowest packing found.
func (t *tide) lower(ctx context.Context, best parts.Packing, target int64, effort *int64) parts.Packing {
	low := target - 1 // highest limit known to be too low
	for round := 0; round < tideRounds && t.limit > low && t.limit < best.Height && ctx.Err() == nil; round++ {
		p, ok := t.spend(ctx, effort)
		if ok && p.Height < best.Height {
			best = p
		}
		if ok && len(t.missed) == 0 {
			t.limit = low + (t.limit-low)/2
			continue
		}
		low = t.limit
		t.limit = min(target+2*(low-target), low+(best.Height-low)/2)
	}
	return best
}

// spend runs a tide with at most half of the effort and subtracts what it used.
func (t *tide) spend(ctx context.Context, effort *int64) (parts.Packing, bool) {
	t.effort = *effort / 2
	*effort -= t.effort
	p, ok := t.run(ctx)
	*effort += max(t.effort, 0)
	return p, ok
}

func newTide(l parts.Part) *tide {
	n := float64(len(l.Items))
	t := &tide{Part: l, lead: make([]float64, len(l.Items)), hurries: make([]int, len(l.Items))}
	highest := int64(-1)
	for s, load := range parts.Loads(l.Items, l.Sections) {
		if load > highest {
			t.peak, highest = int32(s), load
		}
	}
	for i := range l.Items {
		t.size += float64(l.Items[i].Size) / n
		t.width += float64(l.Items[i].Width()) / n
	}
	t.setDrift(drift{side: 1, lead: 1, waste: tideWaste})
	return t
}

// setDrift sets the tide's drift and resets the leads.
func (t *tide) setDrift(d drift) {
	t.drift = d
	for i := range t.Items {
		it := &t.Items[i]
		away := float64(max(it.Lo-t.peak, t.peak-it.Hi, 0)) / t.width
		t.lead[i] = d.lead * tideLead * t.width * min(float64(it.Size)/t.size, tideLarge) * min(away/tideShore, 1)
	}
}

// run packs all items, missed ones above the limit. It gives up and reports false
// when too many are missed, the effort is spent or the context ends.
func (t *tide) run(ctx context.Context) (parts.Packing, bool) {
	t.offsets = make([]int64, len(t.Items))
	clear(t.hurries)
	stack := t.stackPeak()
	back := slices.Clone(t.Items)
	for i := range back {
		back[i].Lo, back[i].Hi = t.Sections-t.Items[i].Hi, t.Sections-t.Items[i].Lo
	}
	if !t.placeForward(ctx, t.Items, t.peak, stack) || !t.placeForward(ctx, back, t.Sections-1-t.peak, stack) {
		return parts.Packing{}, false
	}
	t.stackMissed()
	p := parts.Packing{Offsets: t.offsets}
	for i := range t.Items {
		p.Height = max(p.Height, t.offsets[i]+t.Items[i].Size)
	}
	return p, true
}

// stackPeak places the items alive at the peak and returns them, by offset.
func (t *tide) stackPeak() []int32 {
	var low, high []int32 // at the bottom, at the limit
	for i := range t.Items {
		switch it := &t.Items[i]; {
		case it.Lo > t.peak || it.Hi <= t.peak:
		case float64(it.Hi-t.peak) <= t.side*float64(t.peak+1-it.Lo):
			high = append(high, int32(i))
		default:
			low = append(low, int32(i))
		}
	}
	slices.SortFunc(low, func(i, j int32) int { return cmp.Or(cmp.Compare(t.Items[j].Lo, t.Items[i].Lo), cmp.Compare(i, j)) })
	slices.SortFunc(high, func(i, j int32) int { return cmp.Or(cmp.Compare(t.Items[i].Hi, t.Items[j].Hi), cmp.Compare(i, j)) })
	var stacked []int32
	floor, roof := int64(0), t.limit
	for _, i := range low {
		it := &t.Items[i]
		if at := it.AlignUp(floor); at <= roof-it.Size {
			t.offsets[i], floor = at, at+it.Size
			stacked = append(stacked, i)
		} else {
			t.offsets[i] = missing
		}
	}
	from := len(stacked)
	for _, i := range high {
		it := &t.Items[i]
		if at := (roof - it.Size) / it.Align * it.Align; roof >= it.Size && at >= floor {
			t.offsets[i], roof = at, at
			stacked = append(stacked, i)
		} else {
			t.offsets[i] = missing
		}
	}
	slices.Reverse(stacked[from:])
	return stacked
}

// placeForward places the items born after moment, at which stack is alive. It reports false
// if it gives up.
func (t *tide) placeForward(ctx context.Context, items []parts.Item, moment int32, stack []int32) bool {
	var order []int32
	for i := range items {
		if items[i].Lo > moment {
			order = append(order, int32(i))
		}
	}
	due := func(i int32) float64 { return float64(items[i].Lo) - t.lead[i] }
	slices.SortFunc(order, func(i, j int32) int {
		return cmp.Or(cmp.Compare(due(i), due(j)), cmp.Compare(items[j].Size, items[i].Size), cmp.Compare(i, j))
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
		if at, ok := t.bestGap(&items[i], near); ok {
			t.offsets[i] = at
			r := resident{at, at + items[i].Size, items[i].Lo, items[i].Hi, i}
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

// alive lists, by offset, those items of some that have places and end after
// moment.
func (t *tide) alive(items []parts.Item, moment float64, some ...[]int32) (near []resident) {
	for _, list := range some {
		for _, i := range list {
			if at := t.offsets[i]; at != missing && float64(items[i].Hi) > moment {
				near = append(near, resident{at, at + items[i].Size, items[i].Lo, items[i].Hi, i})
			}
		}
	}
	slices.SortFunc(near, byOffset)
	return near
}

// bestGap finds the best place for an item below the limit, in a gap between
// residents, which are sorted by offset. The floor and the limit count as
// neighbours that end with the item.
func (t *tide) bestGap(it *parts.Item, near []resident) (at int64, ok bool) {
	least, size := math.Inf(1), float64(it.Size)/t.size
	consider := func(place, left, gap int64, beside, across int32) {
		ends := float64(max(beside-it.Hi, it.Hi-beside))
		until := float64(min(it.Hi, across) - it.Lo)
		waste := t.leftOver(left)*until - t.leftOver(gap)*min(until, float64(beside-it.Lo))
		if cost := size*ends + t.waste*waste; cost < least {
			at, ok, least = place, true, cost
		}
	}
	floor, beneath := int64(0), it.Hi // top and end of the item below the gap
	for k := range len(near) + 1 {
		roof, above := t.limit, it.Hi
		if k < len(near) {
			r := &near[k]
			if r.hi <= it.Lo || r.lo >= it.Hi {
				continue
			}
			roof, above = r.off, r.hi
		}
		if gap := roof - floor; gap >= it.Size {
			if foot := it.AlignUp(floor); foot <= roof-it.Size {
				consider(foot, roof-foot-it.Size, gap, beneath, above)
			}
			if head := (roof - it.Size) / it.Align * it.Align; head >= floor {
				consider(head, head-floor, gap, above, beneath)
			}
		}
		if k < len(near) && near[k].end > floor {
			floor, beneath = near[k].end, near[k].hi
		}
	}
	return at, ok
}

// leftOver estimates how much of a gap will stay unused, in mean sizes: large gaps are
// likely to be filled.
func (t *tide) leftOver(gap int64) float64 {
	x := float64(gap) / t.size
	return x * math.Exp(-x)
}

// stackMissed places the missed items on top of the limit, large ones first.
func (t *tide) stackMissed() {
	t.missed = t.missed[:0]
	for i, at := range t.offsets {
		if at == missing {
			t.missed = append(t.missed, int32(i))
		}
	}
	slices.SortFunc(t.missed, func(i, j int32) int {
		return cmp.Or(cmp.Compare(t.Items[j].Size, t.Items[i].Size), cmp.Compare(i, j))
	})
	line := parts.NewProfile(t.Sections)
	line.Raise(0, t.Sections, t.limit)
	for _, i := range t.missed {
		it := &t.Items[i]
		t.offsets[i] = it.AlignUp(line.Highest(it.Lo, it.Hi))
		line.Raise(it.Lo, it.Hi, t.offsets[i]+it.Size)
	}
}
