//go:build linux

package cuda

import (
	"maps"
	"math"

	"github.com/athanor-llm/athanor/graph"
)

// withLatentSamples adds the operators of attention from latents.
func withLatentSamples(samples map[graph.Op]func(s *sample)) map[graph.Op]func(s *sample) {
	maps.Copy(samples, map[graph.Op]func(s *sample){
		graph.LatentKV: func(s *sample) {
			n, up, turned, kv := s.latent()
			s.mat(n, kv)
			s.mat(n, up)
			s.mat(n, turned)
		},
		graph.LatentKVBwd: func(s *sample) {
			n, up, turned, kv := s.latent()
			s.mat(n, up)
			s.mat(n, turned)
			s.mat(n, kv)
		},
		graph.Direction: func(s *sample) {
			n, in, out, rank := s.n(), s.cols(), s.cols(), 1+s.IntN(5)
			s.call.Attr = graph.Attr{Scale: 0.7, WT: true}
			s.mat(n, out)
			s.mat(rank, in)
			s.maybePacked(in, out)
			s.mat(out, rank)
		},
		graph.Distil: func(s *sample) {
			n, vocab := s.long()
			k := 1 + s.IntN(min(vocab, 64))
			s.call.Attr = graph.Attr{Grad: s.IntN(4) > 0, Rate: 0.25 * float64(1+s.IntN(4)), Scale: float64(1 + s.IntN(2))}
			s.f32(n, 1)
			x := func() float64 { return 4 * s.NormFloat64() }
			if s.IntN(3) == 0 {
				s.call.Attr.Limit = 5
				x = func() float64 { return 5 * math.Tanh(s.NormFloat64()) }
			}
			s.fill(s.float, n, vocab, x)
			s.ints(n, -1, vocab)
			s.fill(graph.F32, 1, graph.NumScalars, func() float64 { return 0.37 })
			at, first := 0, 0
			s.fill(graph.I32, n, k, func() float64 { // different ones in a row, and in some rows none
				if at++; at%k == 1 || k == 1 {
					if first = s.IntN(vocab); s.IntN(4) == 0 {
						return -1
					}
				}
				return float64((first + at%k) % vocab)
			})
			s.fill(graph.F32, n, k, func() float64 { return -math.Log(float64(k)) - 0.1 - s.Float64() })
		},
		graph.TopLogs: func(s *sample) {
			n, vocab := s.long()
			k := 1 + s.IntN(min(vocab, 40))
			s.call.Attr.Scale = float64(1 + s.IntN(2))
			s.fill(graph.I32, n, k, func() float64 { return 0 })
			s.f32(n, k)
			s.fill(s.float, n, vocab, func() float64 { return math.Round(8*s.NormFloat64()) / 2 })
		},
		graph.Drop: func(s *sample) {
			n, c := s.n(), s.cols()
			s.call.Attr = graph.Attr{Rate: 0.25, Param: int(s.Uint32()), Acc: s.acc}
			s.mat(n, c)
			s.mat(n, c)
			s.ints(n, 0, 4)
		},
		graph.Jitter: func(s *sample) {
			n := s.n()
			s.call.Attr = graph.Attr{Scale: 0.5, Param: int(s.Uint32())}
			s.mat(n, s.cols())
			s.ints(n, 0, 4)
		},
		graph.Gain: func(s *sample) {
			n, c := s.n(), s.cols()
			s.mat(n, c)
			s.mat(n, c)
			s.mat(1, c)
			if s.IntN(2) == 0 {
				s.mat(1, c)
			} else {
				s.absent()
			}
			if s.IntN(2) == 0 {
				s.mat(n, c)
			}
		},
		graph.GainGrad: func(s *sample) {
			n, c := s.long()
			s.call.Attr.Acc = s.acc
			s.f32(1, c)
			s.mat(n, c)
			s.mat(n, c)
		},
		graph.XIELU: func(s *sample) {
			n, c := s.n(), s.cols()
			s.mat(n, c)
			s.mat(n, c)
			s.xielu()
		},
		graph.XIELUBwd: func(s *sample) {
			n, c := s.n(), s.cols()
			s.mat(n, c)
			s.mat(n, c)
			s.mat(n, c)
			s.xielu()
			if s.IntN(2) == 0 {
				s.f32(n, 2)
			}
		},
		graph.HeadCols: func(s *sample) {
			heads, n := 1+s.IntN(4), s.n()
			s.call.Attr.Heads = heads
			s.mat(n, heads*(1+s.IntN(3))*s.cols())
			s.mat(n, heads*(1+s.IntN(3))*s.cols())
		},
	})
	return samples
}

// latent draws the extents of keys and values made from latents.
func (s *sample) latent() (rows, up, turned, kv int) {
	unit := []int{1, 2, 8, 16}[s.IntN(4)]
	turned, plain := unit*(1+s.IntN(4)), unit*(1+s.IntN(4))
	value, heads := unit*(1+s.IntN((turned+plain)/unit)), 1+s.IntN(4)
	s.call.Attr = graph.Attr{Heads: heads, KVHeads: heads, HeadDim: turned + plain}
	return s.n(), heads * (plain + value), turned, 2 * heads * (turned + plain)
}

// xielu adds the parameters and constants of the activation that has some.
func (s *sample) xielu() {
	rows := 1 + 2*s.IntN(2)
	s.mat(1, 1)
	s.mat(1, 1)
	s.mat(rows, 1)
	s.mat(rows, 1)
}
