// Package alloc solves the static allocation problem: given buffers whose
// sizes and lifetimes are known before the program runs, choose one fixed
// address for each so that no two buffers that are alive together share a
// byte, and the highest address used is as low as possible.
//
// Picture time running to the right and addresses running up. A buffer is a
// rectangle whose left and right edges are given and which may only slide up
// and down. Packing them is NP-hard, yet training programs are kind: a step
// is repeated thousands of times, so minutes of planning would pay off, and
// for most instances a good heuristic meets a simple lower bound
// (the bytes alive at the busiest moment), which proves it optimal.
//
// The steps, cheapest first:
//
//	bound    how low can any packing be?                         bound.go
//	reduce   cut time where nothing is alive, peel spanning buffers
//	         off, so that small independent parts remain          reduce.go
//	greedy   several orders, above all filling the lowest niche;
//	         stop as soon as the bound is met            greedy.go, niche.go
//	levels   pack repeated layers once, as blocks                   level.go
//	glue     where there is no slack, join buffers whose edges match
//	                                    glue.go, seam.go, strip.go, wheel.go
//	search   branch and bound with proof             search.go, portfolio.go
//
// Pack runs them all. Whoever can spend seconds on a packing adds a step before the
// search, Options.Improve. generate.Validate is a deliberately naive checker that shares
// no code with them. Times are abstract steps, sizes and offsets are bytes.
//
// Sources: Moffitt, "MiniMalloc: A Lightweight Memory Allocator for
// Hardware-Accelerated Machine Learning" (ASPLOS 2023); Burke, Kendall and
// Whitwell, "A New Placement Heuristic for the Orthogonal Stock-Cutting
// Problem" (2004); the two-level plan of MEMO (SIGMOD 2025).
package alloc

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
)

// Free is the value of Buffer.Fixed that lets the allocator choose.
const Free int64 = -1

// A Buffer is Size bytes that must stay at one address during the half-open
// lifetime [Lower, Upper), in steps of the program.
type Buffer struct {
	ID           string // names the buffer in files, pictures and errors
	Lower, Upper int64  // first step alive, first step no longer alive
	Size         int64  // bytes, > 0
	Align        int64  // the offset is a multiple of Align; 0 means 1
	Fixed        int64  // the offset if >= 0; Free (-1) lets Pack choose
}

// A Problem is the set of buffers that share one arena.
type Problem struct {
	Buffers  []Buffer
	Capacity int64 // bytes in the arena; 0 asks for the least height
}

// A Solution gives every buffer its offset.
type Solution struct {
	Offsets    []int64 // bytes, parallel to Problem.Buffers
	Height     int64   // largest Offset+Size
	LowerBound int64   // no packing can be lower; the search may raise it above LowerBound(p)
	Optimal    bool    // Height equals LowerBound, so it is proven minimal
	Nodes      int64   // search nodes visited; 0 when the heuristics sufficed
}

// Gap returns the distance to the lower bound as a fraction of the height.
func (s Solution) Gap() float64 {
	if s.Height == 0 {
		return 0
	}
	return float64(s.Height-s.LowerBound) / float64(s.Height)
}

var (
	// ErrInfeasible means that the buffers provably do not fit. The error
	// returned is an *InfeasibleError and names the buffers in conflict.
	ErrInfeasible = errors.New("buffers do not fit in the capacity")
	// ErrUndecided means that the effort allowed ran out before a packing within
	// the capacity was found; whether one exists is unknown. The Solution
	// returned with it is valid except that it exceeds the capacity.
	ErrUndecided = errors.New("no packing within the capacity was found with the effort allowed")
)

// An InfeasibleError proves that a problem has no solution.
type InfeasibleError struct {
	Capacity int64
	Conflict []int // indices of buffers that already cannot be packed by themselves
	Minimal  bool  // without any one buffer of Conflict, the rest can be packed
	ids      []string
}

func (e *InfeasibleError) Error() string {
	const shown = 8
	list := ""
	for i, id := range e.ids {
		if i == shown {
			list += fmt.Sprintf(" and %d more", len(e.ids)-shown)
			break
		}
		list += " " + id
	}
	return fmt.Sprintf("%v: %d bytes are too few for buffers%s\nhint: raise the capacity, or shorten or shrink one of these",
		ErrInfeasible, e.Capacity, list)
}

func (e *InfeasibleError) Unwrap() error { return ErrInfeasible }

// Check rejects buffers that no packing could honour or whose sums overflow.
func (p Problem) Check() error {
	if p.Capacity < 0 {
		return fmt.Errorf("capacity %d is negative\nhint: give bytes, or 0 for the least height", p.Capacity)
	}
	var sum int64
	for i := range p.Buffers {
		b := &p.Buffers[i]
		if b.Lower >= b.Upper {
			return b.fault(i, "lifetime [%d, %d) is empty\nhint: make upper greater than lower", b.Lower, b.Upper)
		}
		if b.Lower < 0 && b.Upper > math.MaxInt64+b.Lower {
			return b.fault(i, "lifetime [%d, %d) is longer than 63 bits\nhint: count time from zero", b.Lower, b.Upper)
		}
		if b.Size <= 0 {
			return b.fault(i, "size %d is not positive\nhint: leave out buffers without bytes", b.Size)
		}
		if b.Align < 0 {
			return b.fault(i, "alignment %d is negative\nhint: use 0 or 1 for none", b.Align)
		}
		if b.Fixed < Free {
			return b.fault(i, "fixed offset %d is negative\nhint: use -1 to leave the choice to the allocator", b.Fixed)
		}
		if b.Fixed > 0 && b.Fixed%b.align() != 0 {
			return b.fault(i, "fixed offset %d is not a multiple of its alignment %d\nhint: leave out one of the two", b.Fixed, b.Align)
		}
		// A stack of all buffers, each padded, must be addressable.
		room := math.MaxInt64/4 - sum
		if b.Size > room || b.align() > room-b.Size || b.Fixed > room-b.Size-b.align() {
			return b.fault(i, "size %d with alignment %d brings the sum of all sizes beyond 61 bits\nhint: give sizes in bytes", b.Size, b.Align)
		}
		sum += b.Size + b.align() + max(b.Fixed, 0)
	}
	return p.checkFixed()
}

// checkFixed rejects fixed buffers that share a byte, for which no capacity is
// enough. It sweeps over time and keeps the living buffers sorted by offset: as
// no two of them overlap, a new one can only collide with its two neighbours.
func (p Problem) checkFixed() error {
	var starts []int
	for i := range p.Buffers {
		if p.Buffers[i].Fixed >= 0 {
			starts = append(starts, i)
		}
	}
	ends := slices.Clone(starts)
	slices.SortStableFunc(starts, func(i, j int) int { return cmp.Compare(p.Buffers[i].Lower, p.Buffers[j].Lower) })
	slices.SortStableFunc(ends, func(i, j int) int { return cmp.Compare(p.Buffers[i].Upper, p.Buffers[j].Upper) })
	var alive []int
	at := func(i int) int {
		k, _ := slices.BinarySearchFunc(alive, p.Buffers[i].Fixed, func(j int, offset int64) int { return cmp.Compare(p.Buffers[j].Fixed, offset) })
		return k
	}
	for _, i := range starts {
		b := &p.Buffers[i]
		for p.Buffers[ends[0]].Upper <= b.Lower {
			k := at(ends[0])
			alive, ends = slices.Delete(alive, k, k+1), ends[1:]
		}
		k := at(i)
		for _, j := range alive[max(k-1, 0):min(k+1, len(alive))] {
			if o := &p.Buffers[j]; b.Fixed < o.Fixed+o.Size && o.Fixed < b.Fixed+b.Size {
				return b.fault(i, "fixed at %d, it shares bytes with buffer %d (%q), fixed at %d and alive at step %d too\nhint: leave one of the two offsets open",
					b.Fixed, j, o.ID, o.Fixed, b.Lower)
			}
		}
		alive = slices.Insert(alive, k, i)
	}
	return nil
}

func (b *Buffer) align() int64 { return max(b.Align, 1) }

func (b *Buffer) fault(i int, format string, args ...any) error {
	return fmt.Errorf("buffer %d (%q): "+format, append([]any{i, b.ID}, args...)...)
}
