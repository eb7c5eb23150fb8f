package session

import (
	"context"
	"fmt"

	"github.com/athanor-llm/athanor/checkpoint/safetensors"
	"github.com/athanor-llm/athanor/exec"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/optimizer"
)

// Parameters are loaded in pieces, so that a large embedding, which is a gigabyte or two in fp32, is not in memory a second time:
//
//	files -> piece of 32 MB -> its home and replicas, in each tier and on each rank
//
// Known weakness: what operators have in another order than files, in 4 bits, in int8 or divided among ranks, rows of a vocabulary that
// has grown, which are the mean of all others, and weights of which only what is not 0 may be stored go through memory whole.

// pieceElems is the number of elements of a piece: a multiple of initialBlock, and so many of those that cores have enough to draw.
const pieceElems = 8 * initialBlock

// InParts reports whether parts of parameter i can be read and written by themselves.
func InParts(g *graph.Graph, i int) bool { return AsInFiles(g, i) && !g.Divided(i) }

// AsInFiles reports whether ranks hold parameter i, or what they have of it, in the order of files and as numbers.
func AsInFiles(g *graph.Graph, i int) bool {
	p := &g.Params[i]
	return !(p.Reordered() || p.NF4 || p.Unit > 0 || p.State && g.Stored(i).Rows > 1)
}

// WrittenApart reports whether those who hold elements of parameter i can write them to files by themselves: as numbers, and a row or part
// of a row at a time. Else it is put together first.
func WrittenApart(g *graph.Graph, i int) bool {
	p := &g.Params[i]
	slab, divided := g.Slab(i)
	return p.InRuns() && !(p.NF4 || p.Unit > 0 || p.State && g.Stored(i).Rows > 1) && !(p.Reordered() && divided && !slab.InRuns())
}

// piece returns the most elements of a parameter that are loaded at once.
func piece(g *graph.Graph, i int) int {
	n := int(g.Params[i].Elems())
	if _, less := graph.Kept(g, i); InParts(g, i) && !less && g.Params[i].Grown == 0 {
		n = min(n, pieceElems)
	}
	return n
}

// LargestPiece returns the most elements that are loaded at once.
func LargestPiece(g *graph.Graph) (elements int) {
	for i := range g.Params {
		elements = max(elements, piece(g, i))
	}
	return elements
}

// Loader fills parameters and their optimizer's state. It reuses its memory: fresh memory would cost more than the copies.
type Loader struct {
	session *Session
	room    []float32
	savers  *Savers // processes that read from files by themselves; nil: none
}

// NewLoader returns a loader for a session's parameters. Savers, if they are not nil, read by themselves what is in files that they see.
func NewLoader(s *Session, v *Savers) *Loader {
	return &Loader{s, make([]float32, LargestPiece(s.Graph)), v}
}

// Supply is where elements of a parameter's state come from.
type Supply struct {
	Read   func(first int, dst []float32) error          // fills all of dst with elements from index first on
	Places func(first, n int) (list []safetensors.Place) // where in files they are, if they are there as they are; nil: they are not
	Drawn  bool                                          // they are what Initial draws with Seed
	Seed   uint64
}

// Fill writes one kind of a parameter's state, in the order of files: all of it, or one piece after another.
func (l *Loader) Fill(param int, kind optimizer.Kind, from Supply) error {
	n, step := int(l.session.Graph.Params[param].Elems()), piece(l.session.Graph, param)
	for first := 0; first < n; first += step {
		dst := l.room[:min(step, n-first)]
		apart, here, err := l.fillElsewhere(param, kind, first, len(dst), &from)
		if err == nil && here {
			err = from.Read(first, dst)
		}
		switch {
		case err != nil || !here:
		case apart:
			err = l.session.some(func(rank int) bool { return l.savers.process[rank] == 0 }, func(e *exec.Engine) error { return e.WriteHome(param, kind, first, dst) })
		case len(dst) == n:
			err = l.session.Write(param, kind, dst)
		default:
			err = l.session.WritePart(param, kind, first, dst)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// fillElsewhere reports whether other processes read or draw n elements by themselves, and whether ranks here need them.
func (l *Loader) fillElsewhere(param int, kind optimizer.Kind, first, n int, from *Supply) (done, here bool, err error) {
	if l.savers == nil || !InParts(l.session.Graph, param) {
		return false, true, nil
	}
	if err := l.session.Settle(context.Background()); err != nil {
		return false, true, err
	}
	if from.Drawn {
		done, here = l.savers.draw(param, first, n, from.Seed)
		return done, here, nil
	}
	if from.Places == nil {
		return false, true, nil
	}
	list := from.Places(first, n)
	if list == nil {
		return false, true, nil
	}
	return l.savers.Fill(param, kind, first, list)
}

// Load fills every parameter and zeroes the optimizer's moments. read is that of a Supply.
func (s *Session) Load(read func(p model.Param, first int, dst []float32) error) error {
	return NewLoader(s, nil).Load(func(p model.Param) Supply {
		return Supply{Read: func(first int, dst []float32) error { return read(p, first, dst) }}
	})
}

// Load is Session.Load with supplies.
func (l *Loader) Load(of func(p model.Param) Supply) error {
	for i, p := range l.session.Graph.Params {
		if err := l.Fill(i, optimizer.Weights, of(p)); err != nil {
			return fmt.Errorf("parameter %s: %w", p.Name, err)
		}
		if err := l.session.clearMoments(i); err != nil {
			return err
		}
	}
	return l.End()
}

// End waits until other processes have read what they read by themselves.
func (l *Loader) End() error {
	if l.savers == nil {
		return nil
	}
	return l.savers.Filled()
}
