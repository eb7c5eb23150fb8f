package exec

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/float16"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/program"
)

// Access to state of which a mask says which elements are kept (graph.MaskLine): others are 0. All
// weights of a parameter make its mask, so they are written before all else.

// maskOf returns the mask of a parameter whose state of one kind has only what it keeps; nil: there is none.
func (e *Arenas) maskOf(param int, kind optimizer.Kind) *program.Home {
	for h := range e.homes(param, kind, true) {
		if h.Of > 0 {
			for m := range e.homes(param, optimizer.Mask, false) {
				return m
			}
		}
	}
	return nil
}

// span is the elements of a range that a mask keeps: where they are in the range, and the place of the first among all kept.
type span struct {
	index []int
	place int
}

// spanOf reads which of the n elements from index first on are kept.
func (e *Arenas) spanOf(mask *program.Home, first, n int) (s span, err error) {
	line, end := first/graph.MaskSpan, (first+n+graph.MaskSpan-1)/graph.MaskSpan
	words := make([]int32, (end-line)*graph.MaskLine)
	r := program.Region{Buf: mask.Region.Buf, Off: mask.Region.Off + line*graph.MaskLine, Rows: 1, Cols: len(words), Stride: len(words)}
	err = e.read(r, func(_ graph.DType, at int, b []byte) {
		for i := range len(b) / 4 {
			words[at+i] = int32(binary.LittleEndian.Uint32(b[4*i:]))
		}
	})
	graph.EachKept(words, first-line*graph.MaskSpan, n, func(i, place int) {
		if len(s.index) == 0 {
			s.place = place
		}
		s.index = append(s.index, i)
	})
	return s, err
}

// of returns where n elements, the first of which is the span's, are in a home.
func (s span) of(h *program.Home, n int) program.Region {
	return program.Region{Buf: h.Region.Buf, Off: h.Region.Off + s.place, Rows: min(n, 1), Cols: n, Stride: n}
}

// loses reports whether any number but 0 is not kept.
func (s span) loses(all []float32) bool {
	k := 0
	for i, v := range all {
		if k < len(s.index) && s.index[k] == i {
			k++
		} else if math.Float32bits(v) != 0 {
			return true
		}
	}
	return false
}

// readKept is ReadHome of what a mask keeps.
func (e *Arenas) readKept(param int, kind optimizer.Kind, mask *program.Home, first int, dst []float32) error {
	s, err := e.spanOf(mask, first, len(dst))
	if err != nil {
		return err
	}
	clear(dst)
	values := make([]float32, len(s.index))
	for h := range e.homes(param, kind, false) {
		if err := e.read(s.of(h, len(values)), func(t graph.DType, at int, b []byte) { toFloat32(t, values[at:], b) }); err != nil {
			return err
		}
	}
	err = e.halves(param, kind, func(h *program.Home) error {
		return e.read(s.of(h, len(values)), func(_ graph.DType, at int, b []byte) { float16.ReadRest(values[at:][:len(b)/2], b) })
	})
	for k, i := range s.index {
		dst[i] = values[k]
	}
	return err
}

// writeKept is WriteHome of what a mask keeps.
func (e *Arenas) writeKept(param int, kind optimizer.Kind, mask *program.Home, first int, src []float32) error {
	of := 0
	for h := range e.homes(param, kind, true) {
		of = h.Of
	}
	if kind == optimizer.Weights && len(src) == of {
		if err := e.setMask(param, mask, src); err != nil {
			return err
		}
	}
	const most = 1 << 20 // elements at a time
	for at := 0; at < len(src); at += most {
		if err := e.writeSpan(param, kind, mask, first+at, src[at:min(at+most, len(src))]); err != nil {
			return err
		}
	}
	return nil
}

// writeSpan is writeKept of elements of which the mask is known.
func (e *Arenas) writeSpan(param int, kind optimizer.Kind, mask *program.Home, first int, src []float32) error {
	s, err := e.spanOf(mask, first, len(src))
	if err != nil {
		return err
	}
	if kind == optimizer.Weights && s.loses(src) {
		return fmt.Errorf("exec: parameter %d has zeros among elements %d to %d that would become other numbers, but only what is not 0 is stored; hint: write all of it", param, first, first+len(src))
	}
	values := make([]float32, len(s.index))
	for k, i := range s.index {
		values[k] = src[i]
	}
	for h := range e.homes(param, kind, true) {
		err := e.write(s.of(h, len(values)), func(t graph.DType, at int, b []byte) {
			if from := values[at:]; kind == optimizer.Weights && t == graph.BF16 {
				float16.WriteUpper(b, from[:len(b)/2])
			} else {
				fromFloat32(t, b, from)
			}
		})
		if err != nil {
			return err
		}
	}
	return e.halves(param, kind, func(h *program.Home) error {
		return e.write(s.of(h, len(values)), func(_ graph.DType, at int, b []byte) { float16.WriteRest(b, values[at:][:len(b)/2]) })
	})
}

// setMask has a mask keep the weights that are not 0. What there is room for besides is 0.
func (e *Arenas) setMask(param int, mask *program.Home, src []float32) error {
	words := make([]int32, mask.Region.Cols)
	kept := graph.SetMask(words, src)
	zero := func(_ graph.DType, _ int, b []byte) { clear(b) }
	for h := range e.homes(param, optimizer.Weights, true) {
		if kept > h.Region.Cols {
			return fmt.Errorf("exec: %d weights of parameter %d are not 0, and the plan has room for %d; hint: start with the folder that the plan was made for", kept, param, h.Region.Cols)
		}
		if err := e.write(h.Region, zero); err != nil {
			return err
		}
	}
	if err := e.halves(param, optimizer.Weights, func(h *program.Home) error { return e.write(h.Region, zero) }); err != nil {
		return err
	}
	return e.write(mask.Region, func(_ graph.DType, at int, b []byte) {
		for i := range len(b) / 4 {
			binary.LittleEndian.PutUint32(b[4*i:], uint32(words[at+i]))
		}
	})
}
