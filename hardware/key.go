package hardware

import (
	"strconv"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
)

// A key contains everything about a call that its time depends on: stream,
// operator, the attributes that change the amount or kind of work, and the
// operands' element types and extents (not their addresses). Calls with equal
// keys are assumed to take equally long; equal layers share their keys.
//
//	compute linear_dw wt acc cut 32 f32:768x3072 bf16:512x768 bf16:512x3072
//	h2d copy host>device 4194304
//	compute copy device>device 512x1024
//
// Only copies distinguish operands with gaps between rows; operators process strided
// bands at full speed.

// Key returns the call's key.
func Key(c *device.Call) string { return string(appendKey(nil, c)) }

func appendKey(b []byte, c *device.Call) []byte {
	b = append(b, c.Stream.String()...)
	b = append(b, ' ')
	b = append(b, c.Op.String()...)
	if c.Op == graph.Copy {
		return appendCopy(b, c.Args[graph.CopyDst], c.Args[graph.CopySrc])
	}
	b = appendAttr(b, &c.Attr)
	b = appendRanks(b, c)
	for _, a := range c.Args {
		if a.Absent() {
			b = append(b, " -"...)
			continue
		}
		b = append(b, ' ')
		b = append(b, a.DType.String()...)
		b = append(b, ':')
		b = strconv.AppendInt(b, int64(a.Rows), 10)
		b = append(b, 'x')
		b = strconv.AppendInt(b, int64(a.Cols), 10)
	}
	return b
}

// appendRanks appends the number of a collective's ranks, or of a message's peers.
func appendRanks(b []byte, c *device.Call) []byte {
	if n := len(c.Peers); n > 0 {
		b = append(b, " ranks "...)
		b = strconv.AppendInt(b, int64(n), 10)
	}
	return b
}

// appendCopy appends the bytes of a copy, or rows x bytes if either side has gaps.
func appendCopy(b []byte, dst, src device.Operand) []byte {
	b = append(b, ' ')
	b = append(b, src.Tier.String()...)
	b = append(b, '>')
	b = append(b, dst.Tier.String()...)
	b = append(b, ' ')
	if dst.Contiguous() && src.Contiguous() {
		return strconv.AppendInt(b, src.Bytes(), 10)
	}
	b = strconv.AppendInt(b, int64(src.Rows), 10)
	b = append(b, 'x')
	return strconv.AppendInt(b, src.Bytes()/int64(src.Rows), 10)
}

func appendAttr(b []byte, a *graph.Attr) []byte {
	for _, f := range []struct {
		set  bool
		name string
	}{{a.WT, "wt"}, {a.Acc, "acc"}, {a.Grad, "grad"}, {a.NF4, "nf4"}, {a.FP8, "fp8"}, {a.Slots, "slots"}, {a.Limit > 0, "limit"}} {
		if f.set {
			b = append(b, ' ')
			b = append(b, f.name...)
		}
	}
	if a.Act != 0 {
		b = append(b, ' ')
		b = append(b, a.Act.String()...)
	}
	if a.Cut > 0 { // sums that may be cut elsewhere cannot use tile registers
		b = append(b, " cut "...)
		b = strconv.AppendInt(b, int64(a.Cut), 10)
	}
	if a.Experts > 0 {
		b = append(b, " experts "...)
		b = strconv.AppendInt(b, int64(a.Experts), 10)
	}
	if a.Heads != 0 {
		for _, n := range [...]int{a.Seq, a.Heads, a.KVHeads, a.HeadDim, a.Window} {
			b = append(b, '/')
			b = strconv.AppendInt(b, int64(n), 10)
		}
		if a.Document > 0 {
			b = append(b, " documents "...)
			b = strconv.AppendInt(b, int64(a.Document), 10)
		}
		if a.Among > 0 {
			b = append(b, " among "...)
			b = strconv.AppendInt(b, int64(a.Among), 10)
		}
	}
	return b
}

// shortCopy is the number of bytes below which the time of a copy is mostly latency
// and does not calibrate longer ones. Otherwise a plan that copies nothing but norms
// would make a slow link appear ten times as fast.
const shortCopy = 64 << 10

// appendFamily appends the name of a family of calls, whose times are assumed to
// deviate from the roofline by one factor: stream, operator, element type, whether products are in FP8; for copies
// the tiers and whether they are short; for collectives the number of ranks.
func appendFamily(b []byte, c *device.Call) []byte {
	b = append(b, c.Stream.String()...)
	b = append(b, ' ')
	b = append(b, c.Op.String()...)
	b = append(b, ' ')
	if c.Op == graph.Copy {
		b = append(b, c.Args[graph.CopySrc].Tier.String()...)
		b = append(b, '>')
		b = append(b, c.Args[graph.CopyDst].Tier.String()...)
		if c.Args[graph.CopyDst].Bytes() < shortCopy {
			b = append(b, " short"...)
		}
		return b
	}
	t := graph.F32
	for _, a := range c.Args {
		if (a.DType == graph.BF16 || a.DType == graph.U8) && !a.Absent() {
			t = a.DType
		}
	}
	b = append(b, t.String()...)
	if c.Attr.FP8 {
		b = append(b, " fp8"...)
	}
	return appendRanks(b, c)
}
