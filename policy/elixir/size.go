package elixir

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
)

// Format is how parameters and optimizer state are stored.
type Format struct {
	Bytes   int64 // of a parameter as operators read it: 2 or 4
	Moments int64 // optimizer moments per element: Adam 2, SGD with momentum 1
}

// Units returns the size of a parameter with its optimizer state, in elements of
// the parameter: 1 + (1 + moments) in fp32. It is 7 for half-precision Adam (14
// bytes) and 4 for single precision.
func (f Format) Units() int64 { return 1 + (1+f.Moments)*4/f.Bytes }

// Range is the chunk sizes to try, in elements: multiples of Interval from Low, or
// from the largest parameter if that is more, to High.
type Range struct{ Low, High, Interval int64 }

const (
	smallest  = 32 << 20 // bytes of a chunk
	ratio     = 3        // largest over smallest candidate
	effort    = 16 << 20 // parameters visited, over all candidates
	alignment = 1024     // bytes
)

// Sizes returns the range for a trace: from 32 MiB, doubled until the largest
// parameter fits, to three times that, as finely as effort allows.
func Sizes(t *Trace, f Format) Range {
	n, _, largest := t.public()
	low := int64(smallest)
	for low < largest*f.Bytes {
		low *= 2
	}
	power := int64(1) << bits.Len(uint(max(n, 1)-1)) // the next power of two
	budget := max(effort/(2*power), 1)
	interval := int64(alignment)
	if steps := (ratio - 1) * low / alignment; budget <= steps {
		interval = (ratio - 1) * low / budget
	}
	return Range{low / f.Bytes, ratio * low / f.Bytes, interval / f.Bytes}
}

// roundUp rounds n up to a multiple of to.
func roundUp(n, to int64) int64 { return (n + to - 1) / to * to }

// Choice is a chunk size and its consequences.
type Choice struct {
	Size    int64 // elements of a chunk
	Blocks  int   // of the cache, if it had the whole budget
	Moves   int   // of the step in that cache
	Packing Packing
}

// ErrMemory means that the budget is too small for any chunk size.
var ErrMemory = errors.New("too little memory")

// prefetchBlocks are reserved with overlap: the next chunk is prefetched while the
// previous one is still being reduced.
const prefetchBlocks = 2

// Choose returns the chunk size with the fewest elements moved: moves(k) * C for
// the k blocks of size C that capacity (elements) holds. The smallest of equal ones
// wins. If even the smallest candidate leaves too few blocks it returns ErrMemory;
// the original never ends.
//
// Few candidates have to be simulated. A larger chunk with the same packing has no
// more blocks and so no fewer moves; and every chunk is loaded at least once, which
// bounds the cost from below.
func Choose(t *Trace, f Format, capacity int64, gpus int, overlap bool) (*Choice, error) {
	_, total, largest := t.public()
	r := Sizes(t, f)
	if total <= r.Low {
		p := Pack(t.Params, max(total, 1))
		m, _ := Moves(p.Steps(t.Steps), 1)
		return (&Choice{Size: max(total, 1), Blocks: 1, Moves: m, Packing: p}).align(capacity, gpus)
	}
	usable := capacity / r.Interval * r.Interval
	held := int64(0)
	if overlap {
		held = prefetchBlocks
	}
	var best *Choice
	var last Packing
	for size := roundUp(max(r.Low, largest), r.Interval); size <= min(r.High, usable) && usable/size > held; size += r.Interval {
		p := Pack(t.Params, size)
		least := 2 * int64(p.Chunks) * size
		if slices.Equal(p.Chunk, last.Chunk) || best != nil && least >= best.cost() {
			continue
		}
		last = p
		k := min(int(usable/size-held), p.Chunks)
		m, ok := Moves(p.Steps(t.Steps), k)
		if c := (&Choice{Size: size, Blocks: k, Moves: m, Packing: p}); ok && (best == nil || c.cost() < best.cost()) {
			best = c
		}
	}
	if best == nil {
		return nil, fmt.Errorf("elixir: %w: %d elements are too few for the blocks that chunks of %d elements need; hint: use a smaller batch or more memory", ErrMemory, capacity, max(r.Low, largest))
	}
	return best.align(capacity, gpus)
}

// cost returns the number of elements moved.
func (c *Choice) cost() int64 { return int64(c.Moves) * c.Size }

// align rounds the chunk size up to a multiple of the number of GPUs.
func (c *Choice) align(capacity int64, gpus int) (*Choice, error) {
	c.Size = roundUp(c.Size, int64(gpus))
	if c.Size*int64(c.Blocks) > capacity {
		return nil, fmt.Errorf("elixir: %w: %d blocks of %d elements do not fit into %d; hint: use a smaller batch or more memory", ErrMemory, c.Blocks, c.Size, capacity)
	}
	return c, nil
}
