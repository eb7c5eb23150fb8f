// Package pack adds to package alloc what a training step is not worth: improvers that take
// seconds, for large problems in which hardly a moment has slack; and files and pictures of
// packings.
//
//	tide     pack a part outwards in time from its peak load             tide.go
//	courses  or fill it course by course, redoing each where it wastes
//	         most                                            course.go, cover.go
//	crest    repack the top of the packing where it is too high         crest.go
//	tighten  or fill repeatedly, with new preferences where the packing
//	         is too high                                   tighten.go, cover.go
//	eject    move what is too high to where it displaces least, then move
//	         what it displaced                                          eject.go
//
// Example: alloc.Pack(ctx, problem, alloc.Options{Nodes: -1, Improve: pack.Improver(0)}).
//
// Weakness: nothing here proves anything, and the last percent of gap to the bound of cuts
// without slack remains.
package pack

import (
	"context"
	"math"

	"github.com/athanor-llm/athanor/alloc"
	"github.com/athanor-llm/athanor/alloc/parts"
)

// A Technique can be switched off, for experiments.
type Technique uint

const (
	Tide    Technique = 1 << iota // pack outwards from the peak; tide.go
	Crest                         // or cover course by course and repack the top; course.go, crest.go
	Tighten                       // or cover with preferences that vary over time; tighten.go
	Eject                         // and lower the packing by ejection; eject.go
)

// Improver applies all techniques but some to a part, with an effort that depends only
// on the number of its items.
func Improver(without Technique) alloc.Improver {
	return func(ctx context.Context, l parts.Part, from parts.Packing, target int64) parts.Packing {
		return improve(ctx, l, from, target, without)
	}
}

func improve(ctx context.Context, l parts.Part, best parts.Packing, target int64, without Technique) parts.Packing {
	n := int64(len(l.Items))
	if without&Tide == 0 {
		best = lowerByTide(ctx, l, best, target, min(tidePerItem*n, tideMost))
	}
	for _, p := range starts(ctx, l, best, target, without) { // ejection may get further from the higher one
		if without&Eject == 0 && best.Height > target {
			p = lowerByEjection(ctx, l, p, target, min(ejectPerItem*n, ejectMost))
		}
		if p.Height < best.Height {
			best = p
		}
	}
	if without&Tide == 0 && best.Height-target > target/tightenAbove {
		best = lowerByDrifts(ctx, l, best, target, min(tidePerItem*n, tideMost))
	}
	return best
}

// starts returns the packings to go on from: from or, if it is far from the target, what
// covers make of the part.
func starts(ctx context.Context, l parts.Part, from parts.Packing, target int64, without Technique) []parts.Packing {
	n, starts := int64(len(l.Items)), []parts.Packing{from}
	if from.Height-target <= target/tightenAbove {
		return starts
	}
	if without&Crest == 0 {
		starts[0] = lowerByCrests(ctx, l, from, target, min(max(crestLeast, crestPerItem*n), crestMost))
	}
	if without&Tighten == 0 && starts[0].Height-target > (from.Height-target)/tightenStill {
		if p := packInWindows(ctx, l, target, min(max(tightenLeast, tightenPerItem*n), tightenMost)); p.Height < math.MaxInt64 {
			starts = append(starts, p)
		}
	}
	return starts
}
