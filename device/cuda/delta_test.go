//go:build linux

package cuda

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/kernel"
	"github.com/athanor-llm/athanor/model"
)

// withDeltaSamples adds those of the operators of linear attention.
func withDeltaSamples(samples map[graph.Op]func(s *sample)) map[graph.Op]func(s *sample) {
	samples[graph.Gate] = func(s *sample) { s.gate(3) }
	samples[graph.GateBwd] = func(s *sample) { s.gate(5) }
	samples[graph.ShortConv] = func(s *sample) { s.conv(2) }
	samples[graph.ShortConvDX] = func(s *sample) { s.conv(3) }
	samples[graph.ShortConvDW] = func(s *sample) {
		n, c, taps := s.sequences(), s.cols(), s.taps()
		s.call.Attr.Acc = s.acc
		s.f32(c, taps)
		s.convOf(n, c, taps, 2)
		if s.biased(c) {
			s.f32(1, c)
		}
	}
	samples[graph.ShortConvAt] = func(s *sample) {
		n, c, taps, slots := 1+s.IntN(9), s.cols(), 2+s.IntN(4), 1+s.IntN(3)
		s.call.Attr.Act = model.SiLU
		s.mat(n, c)
		s.mat(slots*(taps-1), c)
		s.mat(n, c)
		s.mat(c, taps)
		s.places(n, slots, s.IntN(9))
		s.biased(c)
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
	samples[graph.DeltaRule] = func(s *sample) {
		n, width, states := s.deltaRule()
		s.mat(n, width)
		s.f32(n, states)
		s.mat(n, 2*s.call.Attr.KVHeads*s.call.Attr.HeadDim+width)
		s.gates(n)
		s.call.Args = append(s.call.Args, s.begins(n))
	}
	samples[graph.DeltaRuleBwd] = func(s *sample) { s.deltaRuleBwd(0, 0) }
	withScanSamples(samples)
	samples[graph.DeltaRuleAt] = func(s *sample) {
		_, width, _ := s.deltaRule()
		n, slots, a := 1+s.IntN(9), 1+s.IntN(3), &s.call.Attr
		a.Seq = 0
		s.mat(n, width)
		s.f32(slots*a.Heads*a.HeadDim, width/a.Heads)
		s.mat(n, 2*a.KVHeads*a.HeadDim+width)
		s.gates(n)
		s.places(n, slots, s.IntN(3))
	}
	return samples
}

// deltaRule draws heads and sequences of a gated delta rule. It returns the rows, the columns of results and those of states.
func (s *sample) deltaRule() (n, width, states int) {
	n = s.sequences()
	if s.IntN(4) == 0 { // several states are kept
		s.call.Attr.Seq = 300
		n = 300
	}
	sizes := []int{1, 3, 6, 20, 33}
	if s.wide {
		sizes = []int{4, 16, 40, 64}
	}
	a, v := &s.call.Attr, sizes[s.IntN(len(sizes))]
	a.HeadDim, a.KVHeads = sizes[s.IntN(len(sizes))], 1+s.IntN(2)
	if s.head > 0 {
		a.HeadDim, v = s.head, s.head
	}
	a.Heads = a.KVHeads * (1 + s.IntN(2))
	return n, a.Heads * v, a.Heads * graph.DeltaStateCols(a.Seq, a.HeadDim*v)
}

// deltaRuleBwd draws the operands of its derivative, of so many rows in sequences of seq, or of as many as are drawn.
func (s *sample) deltaRuleBwd(rows, seq int) {
	n, width, states := s.deltaRule()
	if a := &s.call.Attr; rows > 0 {
		n, a.Seq, states = rows, seq, a.Heads*graph.DeltaStateCols(seq, a.HeadDim*width/a.Heads)
	}
	a, in := s.call.Attr, 2*s.call.Attr.KVHeads*s.call.Attr.HeadDim+width
	s.tol, s.floor = 4e-5, 1e-4
	s.mat(n, in)
	s.f32(n, 2*a.Heads)
	s.mat(n, width)
	qkv, gates := s.mat(n, in), s.gates(n)
	kept, starts := s.f32(n, states), s.begins(n)
	s.call.Args = append(s.call.Args, starts)
	o := kernel.NewTensor(graph.F32, n, width)
	kernel.Lookup(graph.DeltaRule).Reference(nil, &a, []kernel.Tensor{o, tensor(s.image, kept), tensor(s.image, qkv), tensor(s.image, gates), tensor(s.image, starts)})
}

// gates are those of a gated delta rule: logarithms of what is kept, and what is taken in.
func (s *sample) gates(n int) device.Operand {
	heads, i := s.call.Attr.Heads, 0
	return s.fill(graph.F32, n, 2*heads, func() float64 {
		i++
		if (i-1)%(2*heads) < heads {
			return -s.Float64() * s.Float64()
		}
		return s.Float64()
	})
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
	s.call.Attr.Seq = max(s.n(), 10+s.IntN(30))
	return s.call.Attr.Seq * (1 + s.IntN(3))
}

// taps draws how many rows a sum has: as many as models' have where there are documents.
func (s *sample) taps() int {
	if s.acc {
		return 4
	}
	return 1 + s.IntN(5)
}

// conv draws a convolution with this many wide operands.
func (s *sample) conv(wide int) {
	cols := s.cols()
	s.convOf(s.sequences(), cols, s.taps(), wide)
	s.biased(cols)
}

// biased sometimes adds a bias of so many columns.
func (s *sample) biased(cols int) bool {
	if s.IntN(2) == 0 {
		return false
	}
	s.mat(1, cols)
	return true
}

func (s *sample) convOf(n, c, taps, wide int) {
	s.call.Attr.Act, s.floor = model.SiLU, 1e-5
	for range wide {
		s.mat(n, c)
	}
	s.mat(c, taps)
	s.call.Args = append(s.call.Args, s.begins(n))
}

// begins draws where documents begin in n rows. Sometimes there is no such operand.
func (s *sample) begins(n int) device.Operand {
	if !s.acc && s.IntN(3) > 0 {
		return device.Operand{}
	}
	o := s.documents(n, n, []int{2, 10, 60}[s.IntN(3)])
	s.call.Args = s.call.Args[:len(s.call.Args)-1]
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
	if at := numberOf("starts", s.call.Op, s.call.Args); at > 0 {
		starts := s.call.Args[at]
		t := tensor(s.image, starts)
		for r := range starts.Rows {
			t.I32[r*starts.Stride] = int32(r % seq / 7 * 7)
		}
	}
}

// TestDeltaLaunches: however many rows and sequences of a gated delta rule's backward pass scratch memory has room for, the bits are
// the same, and close to the reference's; wherever documents begin. Heads are as wide as models' where that takes no time.
func TestDeltaLaunches(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	deltaLaunchesAgree(t, machine)
}

func TestCompiledDeltaLaunches(t *testing.T) {
	testkit.Needs(t, testkit.All)
	deltaLaunchesAgree(t, compiled)
}

func deltaLaunchesAgree(t *testing.T, machine maker) {
	t.Helper()
	for _, i := range testkit.Sample([]int{0, 1}, 1, 1) {
		seq, head := []int{300, 40}[i], 36
		if onGPU() || testkit.AtLevel() == testkit.All {
			head = []int{128, 64}[i]
		}
		s := &sample{Rand: rand.New(rand.NewPCG(fresh(t)+uint64(i), 7)), image: make([]byte, imageBytes), wide: true, head: head, float: []graph.DType{graph.BF16, graph.F32}[i]}
		s.call.Op = graph.DeltaRuleBwd
		s.deltaRuleBwd([]int{1, 3}[i]*seq, seq)
		s.poison()
		want := s.reference()
		one := int64(4 * s.call.Attr.Heads * head * head)
		chunk := int64(graph.DeltaChunk(seq))
		var all []byte
		for _, places := range []int64{3, 2*2*int64(graph.DeltaKept(seq))/chunk + 2, 1 << 10} { // of a chunk, of two sequences' kept rows, of everything
			d, _ := machine(t, Options{}, imageBytes)
			d.arenas.room = min(d.arenas.room, places*one)
			got := execute(t, d, s.call, s.image)
			if all == nil {
				all = got
			} else if !bytes.Equal(got, all) {
				t.Errorf("%d tokens with room for %d places: the bits differ", seq, places)
			}
		}
		if err := s.check(all, want); err != nil {
			t.Errorf("%d tokens: %v", seq, err)
		}
	}
}
