//go:build linux

package cuda

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/kernel"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/optimizer"
)

// sample is a random call on an image of the device arena.
type sample struct {
	*rand.Rand
	call  device.Call
	image []byte
	end   int64
	float graph.DType // of activations and weights
	wide  bool        // extents and addresses that allow whole packs
	acc   bool
	tol   float64
	floor float64 // that an element may be off, whatever its size
	head  int     // size of attention's heads; 0: drawn
	early float64 // of the largest element: what sums in bf16 may be off by being rounded before their last term
}

const imageBytes = 4 << 20

// fresh is where the seeds of a test's samples begin: drawn on a GPU, where nothing has been seen yet. What a
// seed's last bits choose stays the same.
func fresh(t *testing.T) uint64 {
	t.Helper()
	if !onGPU() {
		return 0
	}
	return testkit.Seed(t) &^ 31
}

func newSample(op graph.Op, seed uint64) *sample {
	s := &sample{Rand: rand.New(rand.NewPCG(seed, uint64(op))), image: make([]byte, imageBytes), wide: seed%2 == 0, acc: seed%4 < 2, tol: 2e-5}
	s.call.Op = op
	if seed%8 >= 4 {
		s.float = graph.BF16
	}
	for i := range s.image {
		s.image[i] = 0xff // NaN in every type
	}
	samples[op](s)
	s.library()
	return s
}

// library allows what some of cublasLt's kernels do on a GPU: they round a product to bf16, then add residual and bias.
func (s *sample) library() {
	if onGPU() && (s.call.Op == graph.Linear || s.call.Op == graph.LinearDX) && s.float == graph.BF16 {
		s.early = 1. / 256
	}
}

func (s *sample) String() string {
	out := fmt.Sprintf("%s %+v", s.call.Op, s.call.Attr)
	for i, a := range s.call.Args {
		out += fmt.Sprintf(" %s[%dx%d/%d %v @%d]", s.call.Op.Info().Args[i].Name, a.Rows, a.Cols, a.Stride, a.DType, a.Addr)
	}
	return out
}

// place makes an operand somewhere in the arena.
func (s *sample) place(d graph.DType, rows, cols int) device.Operand {
	o := device.Operand{DType: d, Rows: rows, Cols: cols, Stride: cols}
	if s.wide {
		s.end = (s.end + 63) &^ 63
		o.Stride += 8 * s.IntN(2)
	} else {
		s.end = (s.end + d.Size() - 1) &^ (d.Size() - 1)
		s.end += d.Size() * int64(s.IntN(4))
		o.Stride += s.IntN(4)
	}
	o.Addr = s.end
	s.end += int64(rows*o.Stride)*d.Size() + 8
	s.call.Args = append(s.call.Args, o)
	return o
}

// tensor is an operand as it lies in an image of the arena.
func tensor(image []byte, o device.Operand) kernel.Tensor {
	if o.Absent() {
		return kernel.Tensor{}
	}
	t := kernel.Tensor{DType: o.DType, Rows: o.Rows, Cols: o.Cols, Stride: o.Stride}
	p, n := unsafe.Pointer(&image[o.Addr]), int((o.End()-o.Addr)/o.DType.Size())
	switch o.DType {
	case graph.F32:
		t.F32 = unsafe.Slice((*float32)(p), n)
	case graph.BF16, graph.U16:
		t.BF16 = unsafe.Slice((*uint16)(p), n)
	case graph.I32:
		t.I32 = unsafe.Slice((*int32)(p), n)
	case graph.F64:
		t.F64 = unsafe.Slice((*float64)(p), n)
	case graph.U8:
		t.U8 = unsafe.Slice((*uint8)(p), n)
	}
	return t
}

// fill makes an operand of numbers.
func (s *sample) fill(d graph.DType, rows, cols int, f func() float64) device.Operand {
	o := s.place(d, rows, cols)
	t := tensor(s.image, o)
	for r := range rows {
		for c := range cols {
			t.Set(r, c, f())
		}
	}
	return o
}

func (s *sample) mat(rows, cols int) device.Operand {
	return s.fill(s.float, rows, cols, s.NormFloat64)
}
func (s *sample) f32(rows, cols int) device.Operand {
	return s.fill(graph.F32, rows, cols, s.NormFloat64)
}
func (s *sample) positive(rows, cols int) device.Operand {
	return s.fill(graph.F32, rows, cols, func() float64 { return 0.05 + math.Abs(s.NormFloat64()) })
}
func (s *sample) ints(rows, lo, hi int) device.Operand {
	return s.fill(graph.I32, rows, 1, func() float64 { return float64(lo + s.IntN(hi-lo)) })
}

// cache draws keys and values of heads, perhaps in few bits: rows then begin with the ranges of their groups.
func (s *sample) cache(rows int) {
	a, n := &s.call.Attr, 0
	a.CacheBits = []int{0, 0, 4, 8}[s.IntN(4)]
	cols, groups := graph.CacheCols(a.HeadDim, a.CacheBits, s.float), 0
	if a.CacheBits > 0 {
		groups = graph.CacheGroups(a.HeadDim)
	}
	s.fill(s.float, rows, cols, func() float64 {
		c, least, step := n%cols, float32(s.NormFloat64()), float32((math.Abs(s.NormFloat64())+0.1)/float64(int(1)<<a.CacheBits))
		switch n++; {
		case s.float == graph.F32 && c < groups: // both in one number, little-endian
			return float64(math.Float32frombits(math.Float32bits(step)&^0xffff | math.Float32bits(least)>>16))
		case s.float == graph.BF16 && c < 2*groups && c%2 == 1:
			return float64(step)
		}
		return float64(least)
	})
}

// places draws where n rows are, among so many sequences: from position pos on of one of them, or each by itself, some idle.
func (s *sample) places(n, slots, pos int) device.Operand {
	list, rows, cols := []float64{float64(pos), float64(s.IntN(slots))}, 1, 2
	switch {
	case n > 1 && s.IntN(2) == 0:
		list, rows = nil, n
		for _, p := range s.Perm(slots * (pos + n))[:n] { // no two rows in one place
			position := p % (pos + n)
			if s.IntN(4) == 0 {
				position = -1
			}
			list = append(list, float64(position), float64(p/(pos+n)))
		}
	case slots == 1 && s.IntN(2) == 0:
		cols = 1
	}
	return s.fill(graph.I32, rows, cols, func() float64 {
		first := list[0]
		list = list[1:]
		return first
	})
}

// starts draws where documents begin for queries that are the last of this many rows with keys. Half of
// the time there is no such operand.
func (s *sample) starts(queries, keys int) device.Operand {
	if s.IntN(2) == 0 {
		return device.Operand{}
	}
	return s.documents(queries, keys, 1+s.IntN(100))
}

// documents have this mean length.
func (s *sample) documents(queries, keys, mean int) device.Operand {
	row, start := 0, 0
	next := func() float64 {
		if at := row % s.call.Attr.Seq; at == 0 {
			start = 0
		} else if s.IntN(mean) == 0 {
			start = at
		}
		row++
		return float64(start)
	}
	for row < keys-queries {
		next()
	}
	return s.fill(graph.I32, queries, 1, next)
}

func (s *sample) absent() { s.call.Args = append(s.call.Args, device.Operand{}) }

// samples makes the operands and attributes of a call, by operator.
var samples = withLatentSamples(withDeltaSamples(withUpdateSamples(map[graph.Op]func(s *sample){
	graph.Linear: func(s *sample) {
		n, in, out := s.n(), s.cols(), s.cols()
		s.call.Attr.WT = s.IntN(2) == 0
		s.mat(n, out)
		s.mat(n, in)
		s.maybePacked(in, out)
		if s.acc && s.IntN(2) == 0 {
			s.call.Attr.Acc = true
			return
		}
		if s.IntN(2) == 0 {
			s.mat(1, out)
		} else {
			s.absent()
		}
		if s.IntN(2) == 0 {
			s.mat(n, out)
			if s.call.Attr.FP8 {
				s.early = 1. / 256 // of bias and residual
			}
		}
	},
	graph.LinearDX: func(s *sample) {
		n, in, out := s.n(), s.cols(), s.cols()
		s.call.Attr = graph.Attr{WT: s.IntN(2) == 0, Acc: s.acc}
		s.mat(n, in)
		s.mat(n, out)
		s.maybePacked(in, out)
		if !s.acc && s.IntN(2) == 0 {
			s.call.Attr.Act = model.Activation(s.IntN(int(model.NumActivations)))
			s.mat(n, in)
		}
	},
	graph.LinearDW: func(s *sample) {
		n := s.n()
		s.call.Attr = graph.Attr{WT: s.IntN(2) == 0, Acc: s.acc}
		for range 1 + s.IntN(2) {
			in, out := s.cols(), s.cols()
			s.weight(graph.F32, in, out)
			s.mat(n, in)
			s.mat(n, out)
		}
	},
	graph.BiasGrad: func(s *sample) {
		n, c := s.long()
		if s.IntN(4) == 0 {
			n, c = n+64*128, min(c, 24) // more pieces than a block takes at a time
		}
		s.call.Attr.Acc = s.acc
		s.f32(1, c)
		s.mat(n, c)
	},
	graph.LayerNorm: func(s *sample) {
		n, c := s.long()
		s.call.Attr.Eps, s.tol = 1e-5, 5e-5
		s.mat(n, c)
		s.f32(n, 2)
		s.mat(n, c)
		s.mat(1, c)
		if s.IntN(3) > 0 {
			s.mat(1, c)
		}
	},
	graph.LayerNormDX: func(s *sample) {
		n, c := s.long()
		s.call.Attr.Acc = s.acc
		s.mat(n, c)
		s.mat(n, c)
		s.mat(n, c)
		s.mat(1, c)
		s.stats(n)
	},
	graph.LayerNormDW: func(s *sample) {
		n, c := s.long()
		s.call.Attr.Acc = s.acc
		s.f32(1, c)
		if s.IntN(3) > 0 {
			s.f32(1, c)
		} else {
			s.absent()
		}
		s.mat(n, c)
		s.mat(n, c)
		s.stats(n)
	},
	graph.RMSNorm: func(s *sample) {
		n, c, k := s.groups()
		s.call.Attr.Eps = 1e-5
		s.mat(n, c*k)
		s.f32(n, k)
		s.mat(n, c*k)
		s.mat(1, c)
		if s.IntN(2) == 0 {
			s.mat(n, c*k)
		}
	},
	graph.RMSNormDX: func(s *sample) {
		n, c, k := s.groups()
		s.call.Attr.Acc = s.acc
		s.mat(n, c*k)
		s.mat(n, c*k)
		s.mat(n, c*k)
		s.mat(1, c)
		s.positive(n, k)
	},
	graph.RMSNormDW: func(s *sample) {
		n, c, k := s.groups()
		s.call.Attr.Acc = s.acc
		s.f32(1, c)
		s.mat(n, c*k)
		s.mat(n, c*k)
		s.positive(n, k)
	},
	graph.RoPE: func(s *sample) {
		n, width := s.heads()
		s.call.Attr.Inverse = s.IntN(2) == 0
		s.mat(n, width)
		s.f32(s.call.Attr.Seq, s.turned())
	},
	graph.RoPEAt: func(s *sample) {
		_, width := s.heads()
		n, pos := s.n(), s.IntN(9)
		s.mat(n, width)
		s.f32(pos+n, s.turned())
		s.places(n, 1, pos)
	},
	graph.Attention: func(s *sample) {
		m, width := s.heads()
		n, m := s.slice(m, 1)
		a := s.call.Attr
		q := a.Heads * a.HeadDim
		s.mat(n, q)
		s.f32(n, a.Heads)
		s.mat(n, q)
		s.mat(m, width-q)
		s.starts(n, m)
		s.sinks(5)
		s.cap()
	},
	graph.AttentionAt: func(s *sample) {
		_, width := s.heads()
		if s.float == graph.BF16 {
			s.tol = 1e-3 // of the sums, whose terms are bf16
		}
		n, pos, a, slots := 1+s.IntN(9), s.IntN(100), &s.call.Attr, 1+s.IntN(3)
		context := pos + n + s.IntN(4)
		if a.Seq, a.Row0 = context, 0; slots == 1 {
			a.Seq = 0
		}
		s.mat(n, a.Heads*a.HeadDim)
		s.cache(slots * 2 * a.KVHeads * context)
		s.mat(n, width-2*a.KVHeads*a.HeadDim*s.IntN(2)) // or queries alone
		s.places(n, slots, pos)
		s.sinks(4)
		s.cap()
	},
	graph.SinkGrad: func(s *sample) {
		n, heads := s.n(), s.cols()
		s.f32(1, heads)
		s.f32(n, heads)
		s.positive(n, heads) // the denominator has the sink
		s.fill(s.float, 1, heads, func() float64 { return -math.Abs(s.NormFloat64()) })
		s.floor = 1e-5
	},
	graph.AttentionBwd: func(s *sample) {
		m, width := s.heads()
		n, m := s.slice(m, graph.SliceUnit(s.call.Attr.Seq))
		s.call.Attr.Acc = s.acc
		s.cap()
		a := s.call.Attr
		s.tol, s.floor = max(s.tol, 5e-5), 4e-6 // what is left of dp-delta where the one is the other: of a sequence of one row
		w := a.Heads * a.HeadDim
		s.mat(n, w)
		s.mat(m, width-w)
		s.f32(n, a.Heads)
		s.mat(n, w)
		q, kv := s.mat(n, w), s.mat(m, width-w)
		o, lse := s.mat(n, w), s.f32(n, a.Heads)
		starts := s.starts(n, m)
		kernel.Lookup(graph.Attention).Reference(nil, &a, []kernel.Tensor{tensor(s.image, o), tensor(s.image, lse), tensor(s.image, q), tensor(s.image, kv), tensor(s.image, starts)})
	},
	graph.Act: func(s *sample) {
		n, c := s.n(), s.cols()
		s.call.Attr.Act = model.Activation(s.IntN(int(model.NumActivations)))
		s.mat(n, c)
		s.mat(n, c)
	},
	graph.ActBwd: func(s *sample) {
		n, c := s.n(), s.cols()
		s.call.Attr.Act = model.Activation(s.IntN(int(model.NumActivations)))
		s.mat(n, c)
		s.mat(n, c)
		s.mat(n, c)
	},
	graph.SwiGLU: func(s *sample) {
		n, c := s.n(), s.cols()
		s.call.Attr.Act = model.Activation(s.IntN(int(model.NumActivations)))
		k := s.slots()
		s.mat(n, k*c)
		s.mat(n, 2*k*c)
		if k > 1 {
			s.f32(n, k)
			s.bound()
		}
	},
	graph.SwiGLUBwd: func(s *sample) {
		n, c := s.n(), s.cols()
		s.call.Attr.Act = model.Activation(s.IntN(int(model.NumActivations)))
		k := s.slots()
		s.mat(n, 2*k*c)
		s.mat(n, k*c)
		s.mat(n, 2*k*c)
		if k > 1 {
			s.f32(n, k)
			s.bound()
		}
		if k > 1 && s.IntN(3) > 0 {
			s.f32(n, k)
			s.call.Attr.Acc = s.acc
		}
	},
	graph.Route: func(s *sample) {
		n, k := s.n(), 1+s.IntN(8)
		s.call.Attr.Normed = s.IntN(2) == 0
		s.f32(n, k)
		s.place(graph.I32, n, k)
		all := (k + s.IntN(100) + 5) / 6 * 6
		s.fill(s.float, n, all, func() float64 { return math.Round(8*s.NormFloat64()) / 4 }) // some are equal
		if s.scored(); s.IntN(2) == 0 {
			s.mat([]int{1, 3}[s.IntN(2)], all)
		}
		s.grouped(all, k)
	},
	graph.RouteBwd: func(s *sample) {
		n, k := s.n(), 1+s.IntN(8)
		balanced := s.IntN(2) == 0
		if s.call.Attr.Seq = 1; balanced { // of whole sequences
			s.call.Attr.Seq, s.call.Attr.Scale = 1+s.IntN(40), 2.5
			n = (n + s.call.Attr.Seq - 1) / s.call.Attr.Seq * s.call.Attr.Seq
		}
		if s.call.Attr.Normed = s.IntN(2) == 0; !balanced {
			s.scored()
		}
		all := k + s.IntN(100)
		s.mat(n, all)
		s.f32(n, k)
		weights, experts, logits := s.f32(n, k), s.place(graph.I32, n, k), s.mat(n, all)
		if balanced {
			s.fill(graph.F32, 1, graph.NumScalars, func() float64 { return 0.37 })
		}
		kernel.Lookup(graph.Route).Reference(nil, &s.call.Attr, []kernel.Tensor{tensor(s.image, weights), tensor(s.image, experts), tensor(s.image, logits), {}})
	},
	graph.ExpertLinear: func(s *sample) {
		n, k, in, out := s.n(), s.slots(), s.cols(), s.cols()
		s.call.Attr = graph.Attr{WT: s.IntN(2) == 0, Experts: k + s.IntN(6), NF4: s.IntN(3) == 0, Acc: s.acc}
		s.mat(n, k*out)
		s.mat(n, s.some(k)*in)
		s.experts(n, k, in, out, s.float)
		s.biases(n, k, out)
	},
	graph.ExpertDB: func(s *sample) {
		n, k, out := s.n(), s.slots(), s.cols()
		s.call.Attr = graph.Attr{Experts: k + s.IntN(6), Acc: s.acc}
		s.f32(s.call.Attr.Experts, out)
		s.mat(n, s.some(k)*out)
		s.chosen(n, k)
		if s.IntN(2) == 0 {
			s.f32(n, k)
		}
	},
	graph.ExpertDW: func(s *sample) {
		n, k, in, out := s.n(), s.slots(), s.cols(), s.cols()
		s.call.Attr = graph.Attr{WT: s.IntN(2) == 0, Experts: k + s.IntN(6), Acc: s.acc, Seq: 1 + s.IntN(70)}
		x, dy := s.some(k)*in, s.some(k)*out
		s.experts(n, k, in, out, graph.F32, x, dy)
	},
	graph.Combine: func(s *sample) {
		n, c := s.n(), s.cols()
		s.call.Attr.Acc, s.floor = s.acc, 1e-6
		s.mat(n, c)
		s.mat(n, s.slots()*c)
		if !s.acc && s.IntN(2) == 0 {
			s.mat(n, c)
		}
	},
	graph.Embed: func(s *sample) {
		n, c, vocab, parts := s.n(), s.cols(), s.n(), 1+s.IntN(2)
		a := graph.Attr{Seq: s.n(), PosOffset: s.IntN(3), Row0: s.IntN(9), Scale: 2.5 * float64(s.IntN(2)), First: vocab * s.IntN(parts), Vocab: vocab * parts, Acc: s.acc && parts > 1}
		s.call.Attr = a
		s.mat(n, c)
		s.ints(n, 0, parts*vocab)
		s.mat(vocab, c)
		if s.IntN(2) == 0 {
			s.mat(a.Seq+a.PosOffset, c)
		}
	},
	graph.EmbedAt: func(s *sample) {
		n, c, vocab, pos := s.n(), s.cols(), s.n(), s.IntN(9)
		s.call.Attr = graph.Attr{PosOffset: s.IntN(3), Scale: 2.5 * float64(s.IntN(2))}
		s.mat(n, c)
		s.ints(n, 0, vocab)
		s.mat(vocab, c)
		if s.IntN(2) == 0 {
			s.mat(pos+n+s.call.Attr.PosOffset, c)
		} else {
			s.absent()
		}
		s.places(n, 1, pos)
	},
	graph.EmbedBwd: func(s *sample) {
		n, c, vocab, parts := 3*s.n(), s.cols(), s.n(), 1+s.IntN(2)
		s.call.Attr = graph.Attr{Acc: s.acc, Scale: 2.5 * float64(s.IntN(2)), First: vocab * s.IntN(parts), Vocab: vocab * parts}
		s.f32(vocab, c)
		s.mat(n, c)
		s.ints(n, 0, parts*vocab)
	},
	graph.PosBwd: func(s *sample) {
		c, seq := s.cols(), s.n()
		s.call.Attr = graph.Attr{Seq: seq, PosOffset: s.IntN(3), Row0: s.IntN(9), Acc: s.acc}
		s.f32(seq+s.call.Attr.PosOffset+s.IntN(2), c)
		s.mat(seq*(1+s.IntN(3)), c)
	},
	graph.CrossEntropy: func(s *sample) {
		n, vocab := s.long()
		if s.IntN(4) == 0 { // more logits than shared memory has room for
			n, vocab = 1+s.IntN(2), 60000+s.cols()
		}
		s.call.Attr.Grad = s.IntN(4) > 0
		s.f32(n, 1)
		x := func() float64 { return 4 * s.NormFloat64() }
		if s.IntN(3) == 0 {
			s.call.Attr.Limit = 5
			x = func() float64 { return 5 * math.Tanh(s.NormFloat64()) }
		}
		s.fill(s.float, n, vocab, x)
		s.ints(n, -1, vocab)
		s.fill(graph.F32, 1, graph.NumScalars, func() float64 { return 0.37 })
		if s.IntN(2) == 0 {
			s.f32(n, 1)
		} else if s.IntN(2) == 0 { // the second of three parts of a vocabulary
			s.absent()
			s.f32(n, 6)
			s.call.Attr.First = vocab
		}
		s.oneLogit()
	},
	graph.LossPart: func(s *sample) {
		n, vocab := s.long()
		s.call.Attr.First = 2 * vocab
		s.f32(n, 2+6*s.IntN(2)) // this part's columns, or those of all
		s.fill(s.float, n, vocab, func() float64 { return 4 * s.NormFloat64() })
		s.ints(n, -1, 4*vocab)
	},
	graph.Preference: func(s *sample) {
		seq := 2 + s.IntN(600)
		n := seq * (1 + s.IntN(3))
		s.call.Attr = graph.Attr{Seq: seq, Scale: 0.1, PairLoss: s.IntN(int(graph.NumPairLosses)), Margin: 0.4}
		for range 5 {
			s.f32(n, 1)
		}
		learnt, r := 1-s.IntN(2), 0 // in some samples the second sequence has no pair
		s.fill(graph.I32, n, 1, func() float64 {
			r++
			if (r-1)/seq == 1 && learnt == 0 {
				return -1
			}
			return float64(s.IntN(3) - 1)
		})
		rate := s.Float64() // of rows that begin a document: few in most samples, every second or more in some
		start := 0
		r = 0
		s.fill(graph.I32, n, 1, func() float64 {
			if at := r % seq; at == 0 || at == seq/2 || s.Float64() < rate*rate*rate {
				start = at
			}
			r++
			return float64(start)
		})
		if graph.PairLoss(s.call.Attr.PairLoss).Rule().Unpaired {
			s.f32(n, 1)
		}
	},
	graph.LossSum: func(s *sample) {
		s.call.Attr.Acc = s.acc
		s.fill(graph.F64, 1, 1, s.NormFloat64)
		s.f32(20*s.n(), 1)
	},
	graph.NormPart: func(s *sample) {
		n, c := 4*s.n(), 8*s.cols()
		s.fill(graph.F64, 1, graph.NormPieces(int64(n*c)), s.NormFloat64)
		s.f32(n, c)
	},
	graph.NormAll: func(s *sample) {
		s.call.Attr.Clip = float64(s.IntN(3))
		s.f32(1, 2)
		n := 10 * s.n()
		if s.IntN(4) == 0 {
			n += 8 * 1024 // more than the block fetches at a time
		}
		s.fill(graph.F64, 1, n, s.Float64)
		bound := []float64{float64(n) / 100, math.MaxFloat32}[s.IntN(2)]
		s.fill(graph.F32, 1, graph.NumScalars, func() float64 { return bound })
	},
	graph.Cast: func(s *sample) {
		n, c := s.n(), s.cols()
		s.mat(n, c)
		s.f32(n, c)
	},
	graph.Add: func(s *sample) {
		n, c := s.n(), s.cols()
		s.mat(n, c)
		s.mat(n, c)
	},
	graph.Scale: func(s *sample) {
		s.mat(s.n(), s.cols())
		if s.call.Attr.Scale = 2.5 * float64(s.IntN(2)); s.call.Attr.Scale == 0 {
			s.mat([]int{1, 3}[s.IntN(2)], 1)
		}
	},
	graph.Compress: func(s *sample) { s.masked(true) },
	graph.Expand:   func(s *sample) { s.masked(false) },
	graph.SoftCap: func(s *sample) {
		s.call.Attr.Limit = 1.5
		s.mat(s.n(), s.cols())
	},
})))

// withUpdateSamples adds those of the optimizers.
func withUpdateSamples(samples map[graph.Op]func(s *sample)) map[graph.Op]func(s *sample) {
	for o := range optimizer.NumOptimizers {
		samples[o.Rule().Op] = func(s *sample) { s.update(o.Rule()) }
	}
	return samples
}

func (s *sample) update(rule *optimizer.Rule) {
	n, c := s.n(), s.cols()
	s.call.Attr = graph.Attr{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Decay: 0.1, Param: s.IntN(1000), First: s.IntN(1 << 33)}
	p := tensor(s.image, s.mat(n, c))
	if s.call.Attr.Masked = s.IntN(2) == 0; s.call.Attr.Masked {
		for i := range n * c / 2 {
			p.Set(i*2/c, i*2%c, 0)
		}
	}
	moments := []graph.DType{graph.F32, graph.BF16, graph.U8}[s.IntN(2+bit(rule.Elementwise))]
	for _, kind := range rule.Moments {
		if moments == graph.U8 {
			s.packedMoments(n, c, kind == optimizer.SecondMoment)
			continue
		}
		s.fill(moments, n, c, func() float64 {
			if kind == optimizer.SecondMoment {
				return 0.01 + math.Abs(s.NormFloat64())
			}
			return s.NormFloat64()
		})
	}
	s.f32(n, c)
	if clip := tensor(s.image, s.positive(1, 2)); s.IntN(4) == 0 {
		clip.Set(0, 0, 0) // it is skipped
	}
	o := s.positive(1, graph.NumScalars)
	t := tensor(s.image, o)
	t.Set(0, graph.ScalarLR, 0.01)
	t.Set(0, graph.ScalarCorrection1, 0.3)
	t.Set(0, graph.ScalarCorrection2, 0.1)
	t.Set(0, graph.ScalarChance, float64(graph.Chance(s.Uint64(), 1)))
	switch halves := s.IntN(3); {
	case s.float == graph.F32 && halves > 0:
		s.fill(graph.BF16, n, c, s.NormFloat64)
	case s.float == graph.BF16 && halves > 0:
		s.call.Args = append(s.call.Args, device.Operand{})
		rest := tensor(s.image, s.fill(graph.U16, n, c, func() float64 { return float64(s.IntN(1 << 16)) }))
		for i := range n * c {
			if s.call.Attr.Masked && p.At(i/c, i%c) == 0 {
				rest.Set(i/c, i%c, 0x8000) // the lower half of 0, see float16.Halves
			}
		}
	}
	if !rule.Elementwise {
		s.call.Attr.Scale, s.tol = 0.3, 1e-4
		for len(s.call.Args) < rule.WorkAt() {
			s.call.Args = append(s.call.Args, device.Operand{})
		}
		s.fill([]graph.DType{graph.F32, graph.BF16}[s.IntN(2)], 1, graph.MuonPlacesOf(n, c).Len, s.NormFloat64)
	}
}
