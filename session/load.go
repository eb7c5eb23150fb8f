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
// Known weakness: what operators have in another order than files, in 4 bits or divided among ranks, and rows of a vocabulary that
// has grown, which are the mean of all others, go through memory whole.

// pieceElems is the number of elements of a piece: a multiple of initialBlock, and so many of those that cores have enough to draw.
const pieceElems = 8 * initialBlock

// InParts reports whether parts of parameter i can be read and written by themselves.
func InParts(g *graph.Graph, i int) bool {
	p := &g.Params[i]
	return !(p.Reordered() || p.NF4 || p.State && g.Stored(i).Rows > 1 || g.Divided(i))
}

// piece returns the most elements of a parameter that are loaded at once.
func piece(g *graph.Graph, i int) int {
	n := int(g.Params[i].Elems())
	if InParts(g, i) && g.Params[i].Grown == 0 {
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

// Places says where in files elements are, from index first on; nil: nowhere as they are.
type Places func(first, n int) []safetensors.Place

// Fill writes one kind of a parameter's state, in the order of files. read must fill all of dst with its elements from index first
// on: all of them, or one piece after another. What it would read is in files at places.
func (l *Loader) Fill(param int, kind optimizer.Kind, read func(first int, dst []float32) error, places Places) error {
	n, step := int(l.session.Graph.Params[param].Elems()), piece(l.session.Graph, param)
	for first := 0; first < n; first += step {
		dst := l.room[:min(step, n-first)]
		apart, here, err := l.readElsewhere(param, kind, first, len(dst), places)
		if err == nil && here {
			err = read(first, dst)
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

// readElsewhere reports whether other processes read n elements by themselves, and whether ranks here need them.
func (l *Loader) readElsewhere(param int, kind optimizer.Kind, first, n int, places Places) (done, here bool, err error) {
	if l.savers == nil || !InParts(l.session.Graph, param) {
		return false, true, nil
	}
	list := places(first, n)
	if list == nil {
		return false, true, nil
	}
	if err := l.session.Settle(context.Background()); err != nil {
		return false, true, err
	}
	return l.savers.Fill(param, kind, first, list)
}

// Load fills every parameter and zeroes the optimizer's moments. read is that of Fill.
func (s *Session) Load(read func(p model.Param, first int, dst []float32) error) error {
	return NewLoader(s, nil).Load(read, func(model.Param, int, int) []safetensors.Place { return nil })
}

// Load is Session.Load; places are those of Fill.
func (l *Loader) Load(read func(p model.Param, first int, dst []float32) error, places func(p model.Param, first, n int) []safetensors.Place) error {
	s := l.session
	for i, p := range s.Graph.Params {
		err := l.Fill(i, optimizer.Weights, func(first int, dst []float32) error {
			if err := read(p, first, dst); err != nil {
				return fmt.Errorf("parameter %s: %w", p.Name, err)
			}
			return nil
		}, func(first, n int) []safetensors.Place { return places(p, first, n) })
		if err != nil {
			return err
		}
		if err := s.clearMoments(i); err != nil {
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
