//go:build linux

package cuda

import (
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/model"
)

// withDeltaSamples adds those of the operators of linear attention.
func withDeltaSamples(samples map[graph.Op]func(s *sample)) map[graph.Op]func(s *sample) {
	samples[graph.Gate] = func(s *sample) { s.gate(3) }
	samples[graph.GateBwd] = func(s *sample) { s.gate(5) }
	samples[graph.ShortConv] = func(s *sample) { s.conv(2) }
	samples[graph.ShortConvDX] = func(s *sample) { s.conv(3) }
	samples[graph.ShortConvDW] = func(s *sample) {
		n, c, taps := s.sequences(), s.cols(), 1+s.IntN(5)
		s.call.Attr.Acc = s.acc
		s.f32(c, taps)
		s.convOf(n, c, taps, 2)
	}
	samples[graph.ShortConvAt] = func(s *sample) {
		n, c, taps, pos := 1+s.IntN(9), s.cols(), 2+s.IntN(4), s.IntN(9)
		s.call.Attr.Act = model.SiLU
		s.mat(n, c)
		s.mat(taps-1, c)
		s.mat(n, c)
		s.mat(c, taps)
		s.ints(1, pos, pos+1)
	}
	samples[graph.Decay] = func(s *sample) {
		n, heads := s.n(), s.cols()
		s.f32(n, 2*heads)
		s.rates(n, heads)
	}
	samples[graph.DecayBwd] = func(s *sample) {
		n, heads := s.n(), s.cols()
		s.mat(n, 2*heads)
		s.f32(n, 2*heads)
		s.rates(n, heads)
	}
	samples[graph.DecayGrad] = func(s *sample) {
		n, heads := s.n(), s.cols()
		s.call.Attr.Acc, s.floor = s.acc, 1e-5
		s.f32(1, heads)
		s.f32(n, 2*heads)
		s.f32(n, 2*heads)
	}
	return samples
}

// gate draws an activation and this many operands.
func (s *sample) gate(operands int) {
	n, c := s.n(), s.cols()
	s.call.Attr.Act = model.Activation(s.IntN(int(model.NumActivations)))
	for range operands {
		s.mat(n, c)
	}
}

// rates are the last operands of Decay and its derivative.
func (s *sample) rates(n, heads int) {
	s.mat(n, 2*heads)
	s.mat(1, heads)
	s.mat(1, heads)
}

// sequences draws how long sequences are and returns how many rows some of them have.
func (s *sample) sequences() int {
	s.call.Attr.Seq = s.n()
	return s.call.Attr.Seq * (1 + s.IntN(3))
}

// conv draws a convolution with this many wide operands.
func (s *sample) conv(wide int) { s.convOf(s.sequences(), s.cols(), 1+s.IntN(5), wide) }

func (s *sample) convOf(n, c, taps, wide int) {
	s.call.Attr.Act, s.floor = model.SiLU, 1e-5
	for range wide {
		s.mat(n, c)
	}
	s.mat(c, taps)
	s.call.Args = append(s.call.Args, s.begins(n))
}

// begins draws where documents begin in n rows, often at few of them. Half of the time there is no such operand.
func (s *sample) begins(n int) device.Operand {
	o := s.starts(n, n)
	if !o.Absent() {
		s.call.Args = s.call.Args[:len(s.call.Args)-1]
	}
	return o
}

// wholeSequences makes the rows of a convolution's gradient whole sequences of so many rows, or one sequence if they are fewer.
func (s *sample) wholeSequences(seq int) {
	seq = min(seq, s.call.Args[graph.ShortConvDWX].Rows)
	s.call.Attr.Seq = seq
	for i, spec := range s.call.Op.Info().Args {
		if spec.Token && i < len(s.call.Args) && !s.call.Args[i].Absent() {
			s.call.Args[i].Rows = s.call.Args[i].Rows / seq * seq
		}
	}
	if starts := s.call.Args[len(s.call.Args)-1]; s.call.Op.Info().Args[len(s.call.Args)-1].Name == "starts" && !starts.Absent() {
		t := tensor(s.image, starts)
		for r := range starts.Rows {
			t.I32[r*starts.Stride] = int32(r % seq / 7 * 7)
		}
	}
}
