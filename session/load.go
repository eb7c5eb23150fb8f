package session

import (
	"fmt"

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
}

// NewLoader returns a loader for a session's parameters.
func NewLoader(s *Session) *Loader {
	return &Loader{s, make([]float32, LargestPiece(s.Graph))}
}

// Fill writes one kind of a parameter's state, in the order of files. read must fill all of dst with its elements from index first
// on: all of them, or one piece after another.
func (l *Loader) Fill(param int, kind optimizer.Kind, read func(first int, dst []float32) error) error {
	n, step := int(l.session.Graph.Params[param].Elems()), piece(l.session.Graph, param)
	for first := 0; first < n; first += step {
		dst := l.room[:min(step, n-first)]
		if err := read(first, dst); err != nil {
			return err
		}
		var err error
		if len(dst) == n {
			err = l.session.Write(param, kind, dst)
		} else {
			err = l.session.WritePart(param, kind, first, dst)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Load fills every parameter and zeroes the optimizer's moments. read is that of Fill.
func (s *Session) Load(read func(p model.Param, first int, dst []float32) error) error {
	l := NewLoader(s)
	for i, p := range s.Graph.Params {
		err := l.Fill(i, optimizer.Weights, func(first int, dst []float32) error {
			if err := read(p, first, dst); err != nil {
				return fmt.Errorf("parameter %s: %w", p.Name, err)
			}
			return nil
		})
		if err != nil {
			return err
		}
		if err := s.clearMoments(i); err != nil {
			return err
		}
	}
	return nil
}
