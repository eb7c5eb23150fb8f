package pack

import (
	"cmp"
	"math"
	"slices"

	"github.com/athanor-llm/athanor/alloc/parts"
)

// Covers
//
// Approach: fill the niches of the skyline, as niche.go does, but choose all
// items on a niche's floor at once, so that little of the floor stays bare. Bare
// floor is lost up to the height of its lower neighbour.
//
// A loss matters where there is no slack. A section's slack is the target less
// its load and less what has been lost there; its price falls exponentially with
// the slack. The items on the floor are the chain of disjoint lifetimes with the
// least loss at these prices, found by dynamic programming from the end of the niche
// to its start. Tastes decide between chains of similar loss: long items first,
// large items first, tops level with their neighbours', so that niches stay
// wide; see taste. Tastes weigh more higher up: at the bottom the best fit is
// best, but near the top the remaining items have to fit.
//
// Example: floor [0,6), prices 1 1 9 9 1 1, items [0,3), [3,6) and [1,5): the
// first two leave nothing bare. Without [3,6) the third is best: the bare floor
// it leaves costs 2, that left by [0,3) costs 11.
//
// Weakness: each niche is judged by itself; only the tastes consider the niches
// above it, and no taste is right for all inputs.

// A taste says which chains are preferred. Gains and costs are per unit of price.
type taste struct {
	near  float64 // the slack at which the price is 1/e, in mean sizes per 300 items alive (at least 1)
	bend  float64 // a loss of height h costs (h / mean size)^bend
	tall  float64 // gain of covering with an item of the largest size
	few   float64 // cost per item, times the mean width
	flush float64 // gain of a top level with its neighbour's, times the mean width
	brief float64 // cost of covering a section with an item one section wide; e times less per further section
	noise float64 // largest random gain
	late  late
	seed  uint64
}

// late scales tall, few and flush at the target by 1 + late.
type late struct{ tall, few, flush float64 }

// at returns a taste's tall, few and flush at a floor of share times the target.
func (t *taste) at(share float64) (tall, few, flush float64) {
	x := share * share
	return t.tall * (1 + x*t.late.tall), t.few * (1 + x*t.late.few), t.flush * (1 + x*t.late.flush)
}

// coverSteps is the fixed effort of one niche, in steps.
const coverSteps = 20

// A covering is a partial packing and its unplaced items.
type covering struct {
	items  []parts.Item
	left   int // not placed yet
	line   *parts.Niches
	target int64
	tastes []taste // per window of 1<<shift sections
	shift  uint
	slack  []int64   // per section
	price  []float64 // per section
	gain   []float64 // per item: gain per price covered, except that for its size
	pain   []float64 // per item: cost of losing its size, per price

	// Unplaced items by birth, then death: those born in section s are
	// born[at[s]:at[s]+count[s]].
	born      []int32
	at, count []int32
	alive     []int32 // per section: unplaced items alive there

	mean, largest float64 // sizes
	width         float64 // mean lifetime in sections
	unit          float64 // of taste.near, in bytes

	// The best chain on [x, end of the niche), for each x of the niche.
	value []float64
	first []int32   // where its first item starts, or the end
	pick  []int32   // the item that starts at x
	sum   []float64 // price of [x, end)
}

// cover packs the items, aiming at target. It gives up and reports false when
// effort, in steps of a few nanoseconds, is spent. No item may be fixed.
func cover(items []parts.Item, load []int64, target int64, tastes []taste, shift uint, effort *int64) (parts.Packing, bool) {
	return newCovering(items, parts.NewNiches(int32(len(load))), load, target, tastes, shift).fill(effort)
}

// newCovering prepares to cover the skyline line with items. load is, per section,
// the height that they and everything below them need.
func newCovering(items []parts.Item, line *parts.Niches, load []int64, target int64, tastes []taste, shift uint) *covering {
	n, sections := len(items), int32(len(load))
	c := &covering{items: items, left: n, line: line, target: target, shift: shift,
		slack: make([]int64, sections), price: make([]float64, sections), gain: make([]float64, n), pain: make([]float64, n),
		born: make([]int32, n), at: make([]int32, sections+1), count: make([]int32, sections), alive: make([]int32, sections+1),
		value: make([]float64, sections+1), first: make([]int32, sections+1), pick: make([]int32, sections+1), sum: make([]float64, sections+1)}
	for i := range items {
		it := &items[i]
		c.mean += float64(it.Size) / float64(n)
		c.width += float64(it.Width()) / float64(n)
		c.largest = max(c.largest, float64(it.Size))
		c.born[i] = int32(i)
		c.at[it.Lo+1]++
		c.count[it.Lo]++
		c.alive[it.Lo]++
		c.alive[it.Hi]--
	}
	c.unit = c.mean * max(1, c.width*float64(n)/float64(sections)/300)
	for s := range sections {
		c.at[s+1] += c.at[s]
		c.alive[s+1] += c.alive[s]
	}
	slices.SortFunc(c.born, func(i, j int32) int {
		a, b := &items[i], &items[j]
		return cmp.Or(cmp.Compare(a.Lo, b.Lo), cmp.Compare(a.Hi, b.Hi), cmp.Compare(b.Size, a.Size), cmp.Compare(i, j))
	})
	c.prefer(tastes)
	for s := range sections {
		c.slack[s] = target - load[s]
		c.reprice(s)
	}
	return c
}

// prefer sets the taste of each window from here on.
func (c *covering) prefer(tastes []taste) {
	before := c.tastes
	c.tastes = tastes
	for s, count := range c.count {
		t := &tastes[s>>c.shift]
		bent := before == nil || before[s>>c.shift].bend != t.bend
		for _, i := range c.born[c.at[s] : c.at[s]+count] {
			it := &c.items[i]
			c.gain[i] = t.noise*chance(t.seed, uint64(i)) - t.brief*math.Exp(1-float64(it.Width()))
			if bent {
				c.pain[i] = c.loss(t, it.Size)
			}
		}
	}
}

// fill places all items. It reports false if the effort is spent first.
func (c *covering) fill(effort *int64) (parts.Packing, bool) {
	p := parts.Packing{Offsets: make([]int64, len(c.items))}
	return p, c.rise(math.MaxInt64, &p, effort)
}

// rise fills all niches below level. It reports false if the effort is spent first.
func (c *covering) rise(level int64, p *parts.Packing, effort *int64) bool {
	for s := int32(0); c.left > 0; {
		lo := c.line.Valley()
		if c.line.Floor[lo] >= level {
			if s = c.line.NextBelow(level, s); s == c.line.Sections {
				break
			}
			continue
		}
		hi := c.line.End[lo]
		*effort -= c.chain(lo, hi)
		if *effort < 0 {
			return false
		}
		if c.first[lo] == hi && hi-lo == c.line.Sections {
			c.take(lo)
		}
		if c.first[lo] < hi {
			c.left -= c.build(lo, hi, p)
			continue
		}
		c.lose(lo, hi, c.line.Lift(lo))
	}
	return true
}

// take makes the first unplaced item the chain of the niche that spans all of time.
// Every item fits there, but chain may find none worth its cost.
func (c *covering) take(lo int32) {
	s := slices.IndexFunc(c.count, func(n int32) bool { return n > 0 })
	c.first[lo], c.pick[s] = int32(s), c.born[c.at[s]]
}

// loss returns the cost of losing a height, per unit of price.
func (c *covering) loss(t *taste, height int64) float64 {
	return math.Pow(min(float64(height), c.largest)/c.mean, t.bend)
}

func (c *covering) reprice(s int32) {
	const least, most = 1e-4, 40 // bare floor always costs something, and prices stay within float64 precision
	c.price[s] = least + math.Exp(min(-float64(c.slack[s])/(c.unit*c.tastes[s>>c.shift].near), most))
}

// lose records that height over [lo, hi) stays empty for good. A section without
// unplaced items loses nothing.
func (c *covering) lose(lo, hi int32, height int64) {
	for s := lo; s < hi; s++ {
		if c.alive[s] > 0 {
			c.slack[s] -= height
			c.reprice(s)
		}
	}
}

// chain finds the best chain for the niche [lo, hi) and returns the steps taken.
func (c *covering) chain(lo, hi int32) (steps int64) {
	t, floor := &c.tastes[lo>>c.shift], c.line.Floor[lo]
	left, right := int64(-1), int64(math.MaxInt64)
	if l := c.line.Prev[lo]; l >= 0 {
		left = c.line.Floor[l] - floor
	}
	if hi < c.line.Sections {
		right = c.line.Floor[hi] - floor
	}
	c.sum[hi], c.value[hi], c.first[hi], c.pick[hi] = 0, 0, hi, -1
	for x := hi - 1; x >= lo; x-- {
		c.sum[x] = c.sum[x+1] + c.price[x]
	}
	width := float64(hi - lo)
	unit := min(c.sum[lo]/width, 1) * min(c.width, width)
	tall, few, flush := t.at(min(float64(floor)/float64(c.target), 1))
	tall, few, flush = tall/c.largest, few*unit, flush*unit
	edge := c.loss(t, right) // cost of losing the size, or wall, at first[x+1]
	steps = int64(hi-lo) + coverSteps
	for x := hi - 1; x >= lo; x-- {
		value, pick := c.value[x+1]-c.price[x]*edge, int32(-1)
		for _, i := range c.born[c.at[x] : c.at[x]+c.count[x]] {
			it := &c.items[i]
			if it.Hi > hi {
				break
			}
			steps += 2
			covered := c.sum[x] - c.sum[it.Hi]
			v := c.value[it.Hi] + covered*(c.gain[i]+tall*float64(it.Size)) - min(few, covered/2)
			next, size := c.first[it.Hi], right
			if next < hi {
				size = c.items[c.pick[next]].Size
			}
			switch {
			case next == it.Hi && size == it.Size:
				v += flush
			case next > it.Hi && it.Size < size: // the bare floor after it is lost up to the lower neighbour
				pain := c.loss(t, size)
				if next < hi {
					pain = c.pain[c.pick[next]]
				}
				v += (c.sum[it.Hi] - c.sum[next]) * max(pain-c.pain[i], 0)
			}
			if x == lo && it.Size == left {
				v += flush
			}
			if v > value {
				value, pick = v, i
			}
		}
		c.value[x], c.pick[x], c.first[x] = value, pick, c.first[x+1]
		if pick >= 0 {
			c.first[x], edge = x, c.pain[pick]
		}
	}
	return steps
}

// build places the chain in the niche [lo, hi) and returns its length.
func (c *covering) build(lo, hi int32, p *parts.Packing) (placed int) {
	floor, rest := c.line.Floor[lo], lo // rest: start of the part not yet built on
	for x := c.first[lo]; x < hi; x = c.first[rest] {
		i := c.pick[x]
		it := &c.items[i]
		off := it.AlignUp(floor)
		if off > floor {
			c.lose(it.Lo, it.Hi, off-floor)
		}
		p.Offsets[i] = off
		p.Height = max(p.Height, off+it.Size)
		for s := it.Lo; s < it.Hi; s++ {
			c.alive[s]--
		}
		c.remove(i)
		c.line.Build(rest, it.Lo, it.Hi, off+it.Size)
		rest = it.Hi
		placed++
	}
	return placed
}

func (c *covering) remove(i int32) {
	lo := c.items[i].Lo
	list := c.born[c.at[lo] : c.at[lo]+c.count[lo]]
	k := slices.Index(list, i)
	copy(list[k:], list[k+1:])
	c.count[lo]--
}

// chance hashes both arguments to a number in [0, 1).
func chance(seed, i uint64) float64 {
	x := (seed+1)*0x9e3779b97f4a7c15 ^ (i+1)*0xc2b2ae3d27d4eb4f
	x ^= x >> 32
	x *= 0xd6e8feb86659fd93
	x ^= x >> 29
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 32
	return float64(x>>11) / (1 << 53)
}
