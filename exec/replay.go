package exec

import (
	"fmt"
	"math"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/verify"
)

// Replay executes one step of all ranks turn by turn (see verify.Turns) and after each
// instruction calls look, which may read operands, since nothing else runs then. It is a
// slow way to find out what went wrong in a step, and has no watchdog. It ends when look
// returns false; the arenas then hold part of a step.
func (g *Group) Replay(turns [][]verify.At, look func(at verify.At) (more bool, err error)) error {
	for _, turn := range turns {
		for _, at := range turn {
			e := g.engines[at.Rank]
			e.device.Launch(e.first + at.Instr)
		}
		for _, at := range turn {
			e := g.engines[at.Rank]
			if err := e.device.Sync(); err != nil {
				e.broken = e.explain(err, e.first)
				return e.broken
			}
		}
		for _, at := range turn {
			if more, err := look(at); err != nil || !more {
				return err
			}
		}
	}
	return nil
}

// Extent summarises the numbers of an operand.
type Extent struct {
	Bad     int     // the first element, in rows, that is not finite; -1: none
	Value   float64 // of that element
	Largest float64 // absolute value of the finite elements
}

// Extent reads an operand of an instruction. Operands that are absent or hold no floating-point
// numbers are finite.
func (e *Engine) Extent(instr, arg int) (Extent, error) {
	x := Extent{Bad: -1}
	in := &e.program.Instrs[instr]
	r := in.Args[arg]
	if r.Absent() || in.Op.Info().Args[arg].Name == "w" && in.Attr.NF4 {
		return x, nil
	}
	var room [512]float64
	err := e.pieces(r, func(tier device.Tier, t graph.DType, addr int64, at int, b []byte) error {
		if t == graph.I32 {
			return nil
		}
		if err := e.device.Read(tier, addr, b); err != nil {
			return err
		}
		size := int(t.Size())
		for lo := 0; lo < len(b); lo += len(room) * size {
			part := b[lo:min(lo+len(room)*size, len(b))]
			list := room[:len(part)/size]
			toFloat64(t, list, part)
			for i, v := range list {
				switch {
				case !math.IsNaN(v) && !math.IsInf(v, 0):
					x.Largest = max(x.Largest, math.Abs(v))
				case x.Bad < 0:
					x.Bad, x.Value = at+lo/size+i, v
				}
			}
		}
		return nil
	})
	if err != nil {
		return x, fmt.Errorf("%s: %w", e.name(instr), err)
	}
	if e.program.Buffers[r.Buf].DType == graph.I8 {
		x.Largest *= in.Attr.Unit
	}
	return x, nil
}
