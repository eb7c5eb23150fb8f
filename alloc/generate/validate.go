package generate

import (
	"fmt"
	"math"

	"github.com/athanor-llm/athanor/alloc"
)

// Validate checks a solution against its problem the slow and obvious way,
// every pair of buffers. It is the oracle for every packer.
func Validate(p alloc.Problem, s alloc.Solution) error {
	if err := p.Check(); err != nil {
		return err
	}
	if len(s.Offsets) != len(p.Buffers) {
		return fmt.Errorf("solution has %d offsets for %d buffers", len(s.Offsets), len(p.Buffers))
	}
	var height int64
	for i := range p.Buffers {
		b, off := &p.Buffers[i], s.Offsets[i]
		if off < 0 || off > math.MaxInt64-b.Size {
			return fault(b, i, "offset %d is out of range", off)
		}
		if off%max(b.Align, 1) != 0 {
			return fault(b, i, "offset %d is not a multiple of alignment %d", off, b.Align)
		}
		if b.Fixed >= 0 && off != b.Fixed {
			return fault(b, i, "offset %d, but it is fixed at %d", off, b.Fixed)
		}
		if p.Capacity > 0 && off+b.Size > p.Capacity {
			return fault(b, i, "ends at %d, beyond the capacity %d", off+b.Size, p.Capacity)
		}
		height = max(height, off+b.Size)
		for j := range p.Buffers[:i] {
			o, ooff := &p.Buffers[j], s.Offsets[j]
			if b.Lower < o.Upper && o.Lower < b.Upper && off < ooff+o.Size && ooff < off+b.Size {
				return fault(b, i, "overlaps buffer %d (%q): both alive at step %d, both own byte %d",
					j, o.ID, max(b.Lower, o.Lower), max(off, ooff))
			}
		}
	}
	if height != s.Height {
		return fmt.Errorf("solution says height %d, its offsets reach %d", s.Height, height)
	}
	return nil
}

func fault(b *alloc.Buffer, i int, format string, args ...any) error {
	return fmt.Errorf("buffer %d (%q): "+format, append([]any{i, b.ID}, args...)...)
}
