//go:build linux

package cuda

import (
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/kernel"
)

// withScanSamples adds those of the operators of state-space scans.
func withScanSamples(samples map[graph.Op]func(s *sample)) {
	samples[graph.TimeSteps] = func(s *sample) {
		n, heads := s.n(), s.cols()
		s.timeBounds()
		s.f32(n, 2*heads)
		s.stepRates(n, heads)
	}
	samples[graph.TimeStepsBwd] = func(s *sample) {
		n, heads := s.n(), s.cols()
		s.timeBounds()
		s.mat(n, heads)
		s.f32(n, 2*heads)
		s.stepRates(n, heads)
	}
	samples[graph.StateScan] = func(s *sample) {
		n, width, states := s.stateScan()
		s.floor = 1
		s.mat(n, width)
		s.f32(n, states)
		s.mat(n, 2*s.call.Attr.KVHeads*s.call.Attr.HeadDim+width)
		s.gates(n)
		s.mat(1, s.call.Attr.Heads)
		s.call.Args = append(s.call.Args, s.begins(n))
	}
	samples[graph.StateScanBwd] = func(s *sample) {
		n, width, states := s.stateScan()
		a, in := s.call.Attr, 2*s.call.Attr.KVHeads*s.call.Attr.HeadDim+width
		s.tol, s.floor = 4e-5, 1
		s.mat(n, in)
		s.f32(n, 3*a.Heads)
		s.mat(n, width)
		xbc, gates, skip := s.mat(n, in), s.gates(n), s.mat(1, a.Heads)
		kept := s.f32(n, states)
		if cols := graph.ScanRoom(&a); cols > 0 {
			s.f32(n, cols)
		} else {
			s.absent()
		}
		starts := s.begins(n)
		s.call.Args = append(s.call.Args, starts)
		o := kernel.NewTensor(graph.F32, n, width)
		kernel.Lookup(graph.StateScan).Reference(nil, &a, []kernel.Tensor{o, tensor(s.image, kept), tensor(s.image, xbc), tensor(s.image, gates), tensor(s.image, skip), tensor(s.image, starts)})
	}
	samples[graph.StateScanAt] = func(s *sample) {
		_, width, _ := s.stateScan()
		n, slots, a := 1+s.IntN(9), 1+s.IntN(3), &s.call.Attr
		a.Seq, s.floor = 0, 1
		s.mat(n, width)
		s.f32(slots*a.Heads*a.HeadDim, width/a.Heads)
		s.mat(n, 2*a.KVHeads*a.HeadDim+width)
		s.gates(n)
		s.mat(1, a.Heads)
		s.places(n, slots, s.IntN(3))
	}
}

// stateScan draws heads and sequences of a scan, whose groups sometimes have several bands of heads, if sequences are short. It returns the rows, the columns of
// results and those of states.
func (s *sample) stateScan() (n, width, states int) {
	n, width, _ = s.deltaRule()
	a := &s.call.Attr
	if v := width / a.Heads; s.IntN(3) == 0 && a.Seq < 300 {
		a.Heads = a.KVHeads * (graph.ScanBand + 1)
		width = a.Heads * v
	}
	return n, width, a.Heads * graph.ScanStateCols(a.Seq, a.HeadDim*width/a.Heads)
}

// timeBounds sometimes bounds time steps.
func (s *sample) timeBounds() {
	if s.IntN(2) == 0 {
		s.call.Attr.Least, s.call.Attr.Limit = 0.5, 1.5
	}
}

// stepRates are the last operands of TimeSteps and its derivative.
func (s *sample) stepRates(n, heads int) {
	s.mat(n, heads)
	s.mat(1, heads)
	s.mat(1, heads)
}
