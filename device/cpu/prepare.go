package cpu

import (
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
)

// call is a prepared call: a copy, a kernel bound to its operands, or what
// ranks do together.
type call struct {
	op     graph.Op
	stream device.Stream
	copy   *transfer
	kernel func()
	meet   *exchange
	span   *device.Span
	end    [device.NumTiers]int64 // highest byte touched, per tier
}

// transfer is a copy of rows of width bytes, each step bytes after the last.
type transfer struct {
	from, to         device.Tier
	rows             int
	width            int64
	src, dst         int64
	srcStep, dstStep int64
	bytes            int64
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
			p.copy = newTransfer(c.Args[0], c.Args[1])
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

func newTransfer(dst, src device.Operand) *transfer {
	t := &transfer{
		from: src.Tier, to: dst.Tier, src: src.Addr, dst: dst.Addr,
		rows: 1, width: src.Bytes(), bytes: src.Bytes(),
	}
	if !dst.Contiguous() || !src.Contiguous() {
		t.rows, t.width = src.Rows, src.Bytes()/int64(src.Rows)
		t.srcStep = int64(src.Stride) * src.DType.Size()
		t.dstStep = int64(dst.Stride) * dst.DType.Size()
	}
	return t
}

// memory returns n bytes of a tier in RAM.
func (d *Device) memory(t device.Tier, addr, n int64) []byte {
	return d.arenas[t].bytes[addr : addr+n : addr+n]
}

// copy moves the bytes of one transfer.
func (s *stream) copy(t *transfer) error {
	d := s.device
	if d.disk != nil && s.access == nil {
		s.access = d.disk.access(&d.meter)
	}
	src, dst := t.src, t.dst
	for range t.rows {
		var err error
		switch {
		case t.from == device.DiskTier:
			err = s.access.Read(d.memory(t.to, dst, t.width), src)
		case t.to == device.DiskTier:
			err = s.access.Write(d.memory(t.from, src, t.width), dst)
		default:
			copyBytes(d.memory(t.to, dst, t.width), d.memory(t.from, src, t.width))
		}
		if err != nil {
			return err
		}
		src, dst = src+t.srcStep, dst+t.dstStep
	}
	s.stats.Moved[t.from][t.to] += t.bytes
	return nil
}

// copyPiece is what one call of copy moves at most: it cannot be preempted,
// and the garbage collector waits for it. From this size on Go's memmove also
// writes past the caches.
const copyPiece = 1 << 20

// copyBytes copies len(dst) bytes.
func copyBytes(dst, src []byte) {
	for len(dst) > copyPiece {
		copy(dst[:copyPiece], src)
		dst, src = dst[copyPiece:], src[copyPiece:]
	}
	copy(dst, src)
}
