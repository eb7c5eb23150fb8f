package pack

import (
	"context"
	"math"
	"math/rand/v2"

	"github.com/athanor-llm/athanor/alloc/parts"
)

// Tightening
//
// Approach: a cover around one moment hardly depends on tastes at distant
// moments. So time is divided into windows a few lifetimes long, each with a
// taste of its own. First all windows share one taste, several tastes in turn,
// and each window keeps the one that left it lowest. Then, round by round,
// windows that are too high try a random new taste, and return to the old one if
// that was better. This searches all windows for the price of one.
//
// Example: of 90 windows two reach beyond the best height's lower quarter; they
// alone get new tastes, and the packing of the other 88 stays much the same.
//
// Weakness: where no moment has slack, most windows are too high and change
// each other; then all get the same new taste, which is a plain restart. For
// 100 000 pieces of a rectangle without slack, a gap of 0.5 to 5 % to the bound
// remains, and up to 18 % if they are cut as pinwheels.

// The effort of tightening, in steps: some 30 rounds, fewer beyond 100k items.
const (
	tightenLeast   = 80_000_000
	tightenPerItem = 6000
	tightenMost    = 600_000_000
	tightenAbove   = 100 // a packing within target/tightenAbove of the target is not tightened,
	tightenStill   = 2   // nor one whose excess over the target crests cut to 1/tightenStill or less
)

// tastes are tried first.
var tastes = []taste{
	{near: 3, tall: 0.1, flush: 0.02},
	{near: 3, few: 0.1, flush: 0.03},
	{near: 1, tall: 1, few: 0.3, flush: 0.1, bend: 1},
	{near: 10, tall: 0.1, few: 0.1, flush: 0.01},
}

// drawTaste returns a random taste.
func drawTaste(rng *rand.Rand) taste {
	between := func(lo, hi float64) float64 { return lo * math.Pow(hi/lo, rng.Float64()) }
	return taste{near: between(1, 10), tall: between(0.01, 0.3), few: between(0.01, 0.3),
		flush: between(0.01, 0.1), noise: between(0.005, 0.05), seed: rng.Uint64()}
}

// A window is a stretch of time with its best taste so far.
type window struct {
	taste taste
	top   int64 // height of the packing here with that taste
	trial bool  // it tries another taste this round
}

// packInWindows packs a part without fixed items as near to target as it can.
func packInWindows(ctx context.Context, l parts.Part, target, effort int64) parts.Packing {
	load := parts.Loads(l.Items, l.Sections)
	best := parts.Packing{Height: math.MaxInt64}
	shift := windowShift(l.Items)
	windows := make([]window, l.Sections>>shift+1)
	for k := range windows {
		windows[k].top = math.MaxInt64
	}
	trial := make([]taste, len(windows))
	rng := rand.New(rand.NewPCG(1, uint64(len(l.Items))))
	for round := 0; ctx.Err() == nil; round++ {
		if round < len(tastes) {
			shareTaste(windows, trial, tastes[round])
		} else {
			varyTastes(windows, trial, target+(best.Height-target)/4, rng)
		}
		p, ok := cover(l.Items, load, target, trial, shift, &effort)
		if !ok {
			break
		}
		if p.Height < best.Height {
			best = p
		}
		if best.Height <= target {
			break
		}
		keepBetter(windows, trial, tops(l, p, shift))
	}
	return best
}

// windowShift returns the base-2 logarithm of a window's sections: at least three
// mean lifetimes.
func windowShift(items []parts.Item) (shift uint) {
	total := int64(0)
	for i := range items {
		total += int64(items[i].Width())
	}
	for int64(len(items))<<shift < 3*total {
		shift++
	}
	return shift
}

// shareTaste gives all windows one taste to try.
func shareTaste(windows []window, trial []taste, t taste) {
	for k := range windows {
		windows[k].trial, trial[k] = true, t
	}
}

// varyTastes gives the windows higher than limit new tastes to try; if they are more than
// half, it gives all windows the same new one.
func varyTastes(windows []window, trial []taste, limit int64, rng *rand.Rand) {
	high := 0
	for k := range windows {
		w := &windows[k]
		w.trial, trial[k] = w.top > limit, w.taste
		if w.trial {
			high++
			trial[k] = drawTaste(rng)
		}
	}
	if high > len(windows)/2 {
		shareTaste(windows, trial, drawTaste(rng))
	}
}

// keepBetter keeps each tried taste that left its window no higher.
func keepBetter(windows []window, trial []taste, tops []int64) {
	for k := range windows {
		if w := &windows[k]; !w.trial || tops[k] <= w.top {
			w.taste, w.top = trial[k], tops[k]
		}
	}
}

// tops returns the height of a packing in each window.
func tops(l parts.Part, p parts.Packing, shift uint) []int64 {
	t := make([]int64, l.Sections>>shift+1)
	for i := range l.Items {
		it := &l.Items[i]
		top := p.Offsets[i] + it.Size
		for k := it.Lo >> shift; k <= (it.Hi-1)>>shift; k++ {
			t[k] = max(t[k], top)
		}
	}
	return t
}
