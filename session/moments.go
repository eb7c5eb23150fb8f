package session

import (
	"context"
	"fmt"

	"github.com/athanor-llm/athanor/exec"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/kernel"
	"github.com/athanor-llm/athanor/optimizer"
)

// Moment is one kind of a parameter's state that may be kept in 8 bits, see graph.MomentBlock. Its bytes are those of its blocks, in
// the order of operators.
type Moment struct {
	session *Session
	param   int
	kind    optimizer.Kind
}

// MomentOf returns one kind of a parameter's state.
func MomentOf(s *Session, param int, kind optimizer.Kind) Moment { return Moment{s, param, kind} }

// Packed reports whether steps keep it in 8 bits.
func (m Moment) Packed() bool {
	if !m.kind.Moment() {
		return false
	}
	for r := range m.session.ranks {
		p := m.session.ranks[r].progs[0]
		for i := range p.Homes {
			if h := &p.Homes[i]; h.Param == m.param && h.Kind == m.kind {
				return p.Buffers[h.Region.Buf].DType == graph.U8
			}
		}
	}
	return false
}

// Read copies bytes from byte first on into dst.
func (m Moment) Read(first int, dst []byte) error {
	return m.access(first+len(dst), func(e *exec.Engine) error { return e.ReadBytes(m.param, m.kind, graph.U8, first, dst) })
}

// Write is the inverse of Read, on every rank that holds some of these bytes.
func (m Moment) Write(first int, src []byte) error {
	return m.access(first+len(src), func(e *exec.Engine) error { return e.WriteBytes(m.param, m.kind, first, src) })
}

// access does something for each rank, if it is in 8 bits and has bytes up to end.
func (m Moment) access(end int, do func(e *exec.Engine) error) error {
	if p := &m.session.Graph.Params[m.param]; !m.Packed() || end > graph.PackedMoments(int(p.Elems())) {
		return fmt.Errorf("the %s of parameter %s has no %d bytes of blocks", m.kind.Words(), p.Name, end)
	}
	if err := m.session.Settle(context.Background()); err != nil {
		return err
	}
	return m.session.each(do)
}

// readNumbers reads what the bytes stand for.
func (m Moment) readNumbers(dst []float32) error {
	b := make([]byte, graph.PackedMoments(len(dst)))
	if err := m.Read(0, b); err != nil {
		return err
	}
	kernel.UnpackMoments(m.kind == optimizer.SecondMoment, dst, b)
	return nil
}

// writeNumbers writes the bytes that are nearest to numbers.
func (m Moment) writeNumbers(src []float32) error {
	return m.Write(0, kernel.PackMoments(m.kind == optimizer.SecondMoment, src))
}
