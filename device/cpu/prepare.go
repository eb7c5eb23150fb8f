package cpu

import (
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
)

// call is a prepared call: a copy, a kernel bound to its operands, or a call between
// ranks.
type call struct {
	op     graph.Op
	stream device.Stream
	copy   *Transfer
	kernel func()
	meet   *exchange
	span   *device.Span
	end    [device.NumTiers]int64 // highest byte touched, per tier
}

// Prepare checks the calls against the arenas and binds them to their memory.
func (d *Device) Prepare(calls []device.Call, spans []device.Span) (first int, err error) {
	if spans != nil && len(spans) != len(calls) {
		return 0, fmt.Errorf("prepare: %d spans for %d calls", len(spans), len(calls))
	}
	if d.refused != nil {
		return 0, fmt.Errorf("prepare: %w", d.refused)
	}
	first = len(d.calls)
	list, sizes := slices.Clone(d.calls), d.sizes()
	for i := range calls {
		c := &calls[i]
		if err := device.Check(c, sizes); err != nil {
			return 0, fmt.Errorf("prepare: %w", &device.CallError{Call: i, Op: c.Op, Err: err})
		}
		p := call{op: c.Op, stream: c.Stream}
		switch {
		case c.Op == graph.Copy:
			p.copy = NewTransfer(c.Args[graph.CopyDst], c.Args[graph.CopySrc])
		case c.Op.Info().Between:
			p.meet, err = d.join(c)
		default:
			p.kernel, err = d.bind(c)
		}
		if err != nil {
			return 0, fmt.Errorf("prepare: %w", &device.CallError{Call: i, Op: c.Op, Err: err})
		}
		for _, a := range c.Args {
			if !a.Absent() {
				p.end[a.Tier] = max(p.end[a.Tier], a.End())
			}
		}
		if spans != nil {
			p.span = &spans[i]
		}
		list = append(list, p)
	}
	d.calls = list
	d.done = make([]atomic.Uint32, len(list)) // no round is under way
	d.issued = make([]uint32, len(list))
	return first, nil
}

// memory returns n bytes of a RAM tier.
func (d *Device) memory(t device.Tier, addr, n int64) []byte {
	return d.arenas[t].bytes[addr : addr+n : addr+n]
}

// copy executes one transfer.
func (s *stream) copy(t *Transfer) error {
	d := s.device
	if d.disk != nil && s.access == nil {
		s.access = d.disk.access(&d.meter)
	}
	if err := t.Move(d.arenas[t.To].bytes, d.arenas[t.From].bytes, s.access); err != nil {
		return err
	}
	s.stats.Moved[t.From][t.To] += t.Bytes()
	return nil
}

// copyPiece is the most that one call of copy moves: it cannot be preempted, and the
// garbage collector waits for it. From this size on, Go's memmove also bypasses the
// caches.
const copyPiece = 1 << 20

// copyBytes copies len(dst) bytes.
func copyBytes(dst, src []byte) {
	for len(dst) > copyPiece {
		copy(dst[:copyPiece], src)
		dst, src = dst[copyPiece:], src[copyPiece:]
	}
	copy(dst, src)
}
