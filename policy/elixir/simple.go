package elixir

import (
	"fmt"
	"slices"
)

// LeastWaste is the original's simpler mode, for a model that was not traced:
// the chunk size with the fewest unfilled elements, parameters in the order of
// the model's definition. Blocks are as many as one operator needs, four more if
// the next chunk is fetched ahead. All chunks stay on the GPU, or none does.
func LeastWaste(t *Trace, f Format, overlap bool) (*Choice, error) {
	n, _, largest := t.public()
	if n == 0 {
		return nil, fmt.Errorf("elixir: no parameters to put into chunks")
	}
	r := Sizes(t, f)
	var best *Choice
	var last Packing
	for size := up(max(r.Low, largest), r.Interval); size <= r.High; size += r.Interval {
		p := Pack(t.Params, size)
		if slices.Equal(p.Chunk, last.Chunk) {
			continue
		}
		last = p
		if best == nil || p.Waste < best.Packing.Waste {
			best = &Choice{Size: size, Packing: p}
		}
	}
	steps := best.Packing.Steps(t.Steps)
	best.Blocks = Widest(steps)
	if overlap {
		best.Blocks += 4
	}
	best.Blocks = min(best.Blocks, best.Packing.Chunks)
	best.Moves, _ = Moves(steps, best.Blocks)
	return best, nil
}
