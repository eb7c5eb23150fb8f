//go:build linux

package cuda

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/kernel"
)

var tiers = []device.Tier{device.DeviceTier, device.HostTier, device.DiskTier}

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
}

const imageBytes = 4 << 20

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
	return s
}

func (s *sample) String() string {
	out := fmt.Sprintf("%s %+v", s.call.Op, s.call.Attr)
	for i, a := range s.call.Args {
		out += fmt.Sprintf(" %s[%dx%d/%d %v @%d]", s.call.Op.Info().Args[i].Name, a.Rows, a.Cols, a.Stride, a.DType, a.Addr)
	}
	return out
}

func (s *sample) n() int { return []int{1, 2, 3, 7, 8, 16, 17, 33, 64, 67, 100, 130}[s.IntN(12)] }

// cols is an extent along rows.
func (s *sample) cols() int {
	if s.wide {
		return 8 * (1 + s.IntN(12))
	}
	return s.n()
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
	case graph.BF16:
		t.BF16 = unsafe.Slice((*uint16)(p), n)
	case graph.I32:
		t.I32 = unsafe.Slice((*int32)(p), n)
	case graph.F64:
		t.F64 = unsafe.Slice((*float64)(p), n)
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
func (s *sample) absent() { s.call.Args = append(s.call.Args, device.Operand{}) }

func (s *sample) weight(d graph.DType, in, out int) {
	if s.call.Attr.WT {
		in, out = out, in
	}
	s.fill(d, in, out, s.NormFloat64)
}

func (s *sample) stats(rows int) {
	o := s.positive(rows, 2)
	t := tensor(s.image, o)
	for r := range rows {
		t.Set(r, 0, s.NormFloat64())
	}
}

// heads draws an attention shape and returns the rows and the width of qkv.
func (s *sample) heads() (rows, width int) {
	g := 1 + s.IntN(2)
	a := &s.call.Attr
	*a = graph.Attr{Seq: []int{1, 7, 32, 33, 70, 130}[s.IntN(6)], KVHeads: g, Heads: g * (1 + s.IntN(2)), HeadDim: 6, Row0: s.IntN(9)}
	if s.wide {
		a.HeadDim = 16 * (1 + 2*s.IntN(2))
		if s.float == graph.BF16 {
			s.tol = 8e-3 // of tensor cores, whose operands are bf16: the largest element's rounding
		}
	}
	a.Scale = 1 / math.Sqrt(float64(a.HeadDim))
	if s.IntN(2) == 0 {
		a.Window = 1 + s.IntN(40)
	}
	return a.Seq * (1 + s.IntN(2)), (a.Heads + 2*a.KVHeads) * a.HeadDim
}

// slice draws numbers of queries and keys: those of m rows, or of a slice of one
// sequence whose bounds are multiples of unit.
func (s *sample) slice(m, unit int) (queries, keys int) {
	seq := s.call.Attr.Seq
	if s.IntN(2) == 0 || seq <= unit {
		return m, m
	}
	from := unit * s.IntN((seq-1)/unit)
	to := min(seq, from+unit*(1+s.IntN(seq/unit)))
	return to - from, to
}

// samples makes the operands and attributes of a call per operator.
var samples = map[graph.Op]func(s *sample){
	graph.Linear: func(s *sample) {
		n, in, out := s.n(), s.cols(), s.cols()
		s.call.Attr.WT = s.IntN(2) == 0
		s.mat(n, out)
		s.mat(n, in)
		s.weight(s.float, in, out)
		if s.IntN(2) == 0 {
			s.mat(1, out)
		} else {
			s.absent()
		}
		if s.IntN(2) == 0 {
			s.mat(n, out)
		}
	},
	graph.LinearDX: func(s *sample) {
		n, in, out := s.n(), s.cols(), s.cols()
		s.call.Attr = graph.Attr{WT: s.IntN(2) == 0, Acc: s.acc}
		s.mat(n, in)
		s.mat(n, out)
		s.weight(s.float, in, out)
	},
	graph.LinearDW: func(s *sample) {
		n, in, out := s.n(), s.cols(), s.cols()
		s.call.Attr = graph.Attr{WT: s.IntN(2) == 0, Acc: s.acc}
		s.weight(graph.F32, in, out)
		s.mat(n, in)
		s.mat(n, out)
	},
	graph.BiasGrad: func(s *sample) {
		n, c := s.n(), s.cols()
		s.call.Attr.Acc = s.acc
		s.f32(1, c)
		s.mat(n, c)
	},
	graph.LayerNorm: func(s *sample) {
		n, c := s.n(), s.cols()
		s.call.Attr.Eps, s.tol = 1e-5, 5e-5
		s.mat(n, c)
		s.f32(n, 2)
		s.mat(n, c)
		s.mat(1, c)
		s.mat(1, c)
	},
	graph.LayerNormDX: func(s *sample) {
		n, c := s.n(), s.cols()
		s.call.Attr.Acc = s.acc
		s.mat(n, c)
		s.mat(n, c)
		s.mat(n, c)
		s.mat(1, c)
		s.stats(n)
	},
	graph.LayerNormDW: func(s *sample) {
		n, c := s.n(), s.cols()
		s.call.Attr.Acc = s.acc
		s.f32(1, c)
		s.f32(1, c)
		s.mat(n, c)
		s.mat(n, c)
		s.stats(n)
	},
	graph.RMSNorm: func(s *sample) {
		n, c := s.n(), s.cols()
		s.call.Attr.Eps = 1e-5
		s.mat(n, c)
		s.f32(n, 1)
		s.mat(n, c)
		s.mat(1, c)
	},
	graph.RMSNormDX: func(s *sample) {
		n, c := s.n(), s.cols()
		s.call.Attr.Acc = s.acc
		s.mat(n, c)
		s.mat(n, c)
		s.mat(n, c)
		s.mat(1, c)
		s.positive(n, 1)
	},
	graph.RMSNormDW: func(s *sample) {
		n, c := s.n(), s.cols()
		s.call.Attr.Acc = s.acc
		s.f32(1, c)
		s.mat(n, c)
		s.mat(n, c)
		s.positive(n, 1)
	},
	graph.RoPE: func(s *sample) {
		n, width := s.heads()
		s.call.Attr.Inverse = s.IntN(2) == 0
		s.mat(n, width)
		s.f32(s.call.Attr.Seq, s.call.Attr.HeadDim)
	},
	graph.RoPEAt: func(s *sample) {
		_, width := s.heads()
		n, pos := s.n(), s.IntN(9)
		s.mat(n, width)
		s.f32(pos+n, s.call.Attr.HeadDim)
		s.ints(1, pos, pos+1)
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
	},
	graph.AttentionAt: func(s *sample) {
		_, width := s.heads()
		if s.float == graph.BF16 {
			s.tol = 1e-3 // of the sums, whose terms are bf16
		}
		n, pos, a := 1+s.IntN(9), s.IntN(100), &s.call.Attr
		a.Seq, a.Row0 = 0, 0
		s.mat(n, a.Heads*a.HeadDim)
		s.mat(2*a.KVHeads*(pos+n+s.IntN(4)), a.HeadDim)
		s.mat(n, width)
		s.ints(1, pos, pos+1)
	},
	graph.AttentionBwd: func(s *sample) {
		m, width := s.heads()
		n, m := s.slice(m, graph.SliceUnit(s.call.Attr.Seq))
		s.call.Attr.Acc = s.acc && m <= s.call.Attr.Seq
		a := s.call.Attr
		s.tol = max(s.tol, 5e-5)
		w := a.Heads * a.HeadDim
		s.mat(n, w)
		s.mat(m, width-w)
		s.f32(n, a.Heads)
		s.mat(n, w)
		q, kv := s.mat(n, w), s.mat(m, width-w)
		o, lse := s.mat(n, w), s.f32(n, a.Heads)
		kernel.Lookup(graph.Attention).Reference(nil, &a, []kernel.Tensor{tensor(s.image, o), tensor(s.image, lse), tensor(s.image, q), tensor(s.image, kv)})
	},
	graph.Act: func(s *sample) {
		n, c := s.n(), s.cols()
		s.call.Attr.Act = graph.Activation(s.IntN(4))
		s.mat(n, c)
		s.mat(n, c)
	},
	graph.ActBwd: func(s *sample) {
		n, c := s.n(), s.cols()
		s.call.Attr.Act = graph.Activation(s.IntN(4))
		s.mat(n, c)
		s.mat(n, c)
		s.mat(n, c)
	},
	graph.SwiGLU: func(s *sample) {
		n, c := s.n(), s.cols()
		s.mat(n, c)
		s.mat(n, 2*c)
	},
	graph.SwiGLUBwd: func(s *sample) {
		n, c := s.n(), s.cols()
		s.mat(n, 2*c)
		s.mat(n, c)
		s.mat(n, 2*c)
	},
	graph.Embed: func(s *sample) {
		n, c, vocab := s.n(), s.cols(), s.n()
		a := graph.Attr{Seq: s.n(), PosOffset: s.IntN(3), Row0: s.IntN(9)}
		s.call.Attr = a
		s.mat(n, c)
		s.ints(n, 0, vocab)
		s.mat(vocab, c)
		if s.IntN(2) == 0 {
			s.mat(a.Seq+a.PosOffset, c)
		}
	},
	graph.EmbedAt: func(s *sample) {
		n, c, vocab, pos := s.n(), s.cols(), s.n(), s.IntN(9)
		s.call.Attr = graph.Attr{PosOffset: s.IntN(3)}
		s.mat(n, c)
		s.ints(n, 0, vocab)
		s.mat(vocab, c)
		if s.IntN(2) == 0 {
			s.mat(pos+n+s.call.Attr.PosOffset, c)
		} else {
			s.absent()
		}
		s.ints(1, pos, pos+1)
	},
	graph.EmbedBwd: func(s *sample) {
		n, c, vocab := 3*s.n(), s.cols(), s.n()
		s.call.Attr.Acc = s.acc
		s.f32(vocab, c)
		s.mat(n, c)
		s.ints(n, 0, vocab)
	},
	graph.PosBwd: func(s *sample) {
		c, seq := s.cols(), s.n()
		s.call.Attr = graph.Attr{Seq: seq, PosOffset: s.IntN(3), Row0: s.IntN(9), Acc: s.acc}
		s.f32(seq+s.call.Attr.PosOffset+s.IntN(2), c)
		s.mat(seq*(1+s.IntN(3)), c)
	},
	graph.CrossEntropy: func(s *sample) {
		n, vocab := s.n(), s.cols()
		s.call.Attr.Grad = s.IntN(4) > 0
		s.f32(n, 1)
		s.fill(s.float, n, vocab, func() float64 { return 4 * s.NormFloat64() })
		s.ints(n, -1, vocab)
		s.fill(graph.F32, 1, graph.NumScalars, func() float64 { return 0.37 })
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
		s.fill(graph.F64, 1, 10*s.n(), func() float64 { return s.Float64() })
	},
	graph.AdamW: func(s *sample) {
		n, c := s.n(), s.cols()
		s.call.Attr = graph.Attr{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Decay: 0.1}
		s.f32(n, c)
		s.f32(n, c)
		s.positive(n, c)
		s.f32(n, c)
		s.positive(1, 2)
		o := s.positive(1, graph.NumScalars)
		t := tensor(s.image, o)
		t.Set(0, graph.ScalarLR, 0.01)
		t.Set(0, graph.ScalarCorrection1, 0.3)
		t.Set(0, graph.ScalarCorrection2, 0.1)
		if s.IntN(2) == 0 {
			s.fill(graph.BF16, n, c, s.NormFloat64)
		}
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
}

// poison overwrites the operands that are only written.
func (s *sample) poison() {
	for i, spec := range s.call.Op.Info().Args {
		if i >= len(s.call.Args) || s.call.Args[i].Absent() {
			continue
		}
		if spec.Access == graph.Write || spec.Access == graph.Sum && !s.call.Attr.Acc {
			t := tensor(s.image, s.call.Args[i])
			for r := range t.Rows {
				for c := range t.Cols {
					t.Set(r, c, math.NaN())
				}
			}
		}
	}
}

// reference is the image after the reference's call.
func (s *sample) reference() []byte {
	image := bytes.Clone(s.image)
	list := make([]kernel.Tensor, len(s.call.Op.Info().Args))
	for i, o := range s.call.Args {
		list[i] = tensor(image, o)
	}
	kernel.Lookup(s.call.Op).Reference(nil, &s.call.Attr, list)
	return image
}

// check compares an image with the reference's: operands within the tolerance,
// everything else bit by bit.
func (s *sample) check(got, want []byte) error {
	for i, o := range s.call.Args {
		if o.Absent() {
			continue
		}
		x, y := tensor(got, o), tensor(want, o)
		var largest float64
		for r := range y.Rows {
			for c := range y.Cols {
				largest = max(largest, math.Abs(y.At(r, c)))
			}
		}
		for r := range y.Rows {
			for c := range y.Cols {
				g, w := x.At(r, c), y.At(r, c)
				bound := s.tol * largest
				if o.DType == graph.BF16 {
					bound += math.Abs(w) / 128
				}
				if !(math.Abs(g-w) <= bound) {
					return fmt.Errorf("%s (%d,%d): %v, reference %v, bound %.3g", s.call.Op.Info().Args[i].Name, r, c, g, w, bound)
				}
				x.Set(r, c, 0)
				y.Set(r, c, 0)
			}
		}
	}
	for i := range got {
		if got[i] != want[i] {
			return fmt.Errorf("byte %d, outside of the operands, was changed", i)
		}
	}
	return nil
}

// execute runs a call by itself on an image of the arena.
func execute(t *testing.T, d *Device, c device.Call, image []byte) []byte {
	t.Helper()
	return executeAll(t, d, []device.Call{c}, image)
}

func executeAll(t *testing.T, d *Device, calls []device.Call, image []byte) []byte {
	t.Helper()
	if err := d.Write(device.DeviceTier, 0, image); err != nil {
		t.Fatal(err)
	}
	n, err := d.Prepare(calls, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range calls {
		d.Launch(n + i)
	}
	if err := d.Sync(); err != nil {
		t.Fatal(err)
	}
	out := make([]byte, len(image))
	if err := d.Read(device.DeviceTier, 0, out); err != nil {
		t.Fatal(err)
	}
	return out
}

// twice checks that what was written is in the mean at most twice as far from
// the reference as what the CPU's kernel writes, which has the same types. The
// reference's results are not rounded to bf16 for that.
func (s *sample) twice(cores *kernel.Env, got []byte) error {
	image := bytes.Clone(s.image)
	list, exact := make([]kernel.Tensor, len(s.call.Op.Info().Args)), make([]kernel.Tensor, len(s.call.Op.Info().Args))
	for i, o := range s.call.Args {
		list[i] = tensor(image, o)
		if exact[i] = tensor(s.image, o); !o.Absent() && s.call.Op.Info().Args[i].Access != graph.Read {
			d := o.DType
			if d == graph.BF16 {
				d = graph.F32
			}
			exact[i] = kernel.NewTensor(d, o.Rows, o.Cols)
			for r := range o.Rows {
				for c := range o.Cols {
					exact[i].Set(r, c, list[i].At(r, c))
				}
			}
		}
	}
	kernel.Lookup(s.call.Op).Reference(nil, &s.call.Attr, exact)
	kernel.Lookup(s.call.Op).Fast(cores, &s.call.Attr, list)
	for i, o := range s.call.Args {
		if spec := s.call.Op.Info().Args[i]; o.Absent() || spec.Access == graph.Read || spec.Name == "delta" { // which is scratch
			continue
		}
		var ours, theirs, size float64
		x, y, z := tensor(got, o), list[i], exact[i]
		for r := range z.Rows {
			for c := range z.Cols {
				w := z.At(r, c)
				ours += (x.At(r, c) - w) * (x.At(r, c) - w)
				theirs += (y.At(r, c) - w) * (y.At(r, c) - w)
				size += w * w
			}
		}
		if !(math.Sqrt(ours) <= 2*math.Sqrt(theirs)+1e-5*math.Sqrt(size)) {
			return fmt.Errorf("%s is %.3g off, the CPU's %.3g, of %.3g", s.call.Op.Info().Args[i].Name, math.Sqrt(ours), math.Sqrt(theirs), math.Sqrt(size))
		}
	}
	return nil
}

// TestOperators compares every operator with the reference in float64 and with
// the CPU's errors, and wants the same bits again: from a second run and, on the fake, from threads
// that run in the opposite order.
func TestOperators(t *testing.T) {
	cores := kernel.NewEnv(1)
	defer cores.Close()
	for op := graph.Op(1); op < graph.NumOps; op++ {
		if op == graph.Copy {
			continue
		}
		if op.Info().Between { // not built yet: one GPU
			continue
		}
		t.Run(op.String(), func(t *testing.T) {
			d, g := machine(t, Options{}, imageBytes)
			again, h := machine(t, Options{Serial: true}, imageBytes)
			defer func() {
				if g != nil && t.Failed() {
					t.Log(g.Failure(), h.Failure())
				}
			}()
			for seed := range uint64(rounds(op)) {
				s := newSample(op, seed)
				s.poison()
				want := s.reference()
				got := execute(t, d, s.call, s.image)
				if !bytes.Equal(got, execute(t, again, s.call, s.image)) {
					t.Errorf("seed %d: %v: two runs differ", seed, s)
				}
				if err := errors.Join(s.twice(cores, got), s.check(got, want)); err != nil {
					t.Fatalf("seed %d: %v: %v", seed, s, err)
				}
			}
		})
	}
}

// cut is the call on token rows [r0, r0+n).
func (s *sample) cut(r0, n int) device.Call {
	c := s.call
	c.Args = append([]device.Operand(nil), c.Args...)
	for i, spec := range c.Op.Info().Args {
		if spec.Token && i < len(c.Args) {
			c.Args[i] = rowsOf(c.Args[i], r0, n)
		}
	}
	c.Attr.Row0 += r0
	if c.Op.Info().Kind == graph.TokenSum && r0 > 0 {
		c.Attr.Acc = true
	}
	return c
}

// TestCuts: operators whose rows are tokens give the same bits on any rows by
// themselves, those that sum over tokens when the tokens are split at
// multiples of sumRows. This is what law L1 needs of the kernels.
func TestCuts(t *testing.T) {
	for op := graph.Op(1); op < graph.NumOps; op++ {
		kind := op.Info().Kind
		token := -1
		for i, spec := range op.Info().Args {
			if spec.Token && token < 0 {
				token = i
			}
		}
		if token < 0 || kind != graph.RowWise && kind != graph.TokenSum {
			continue
		}
		t.Run(op.String(), func(t *testing.T) {
			d, _ := machine(t, Options{SumRows: sumRows}, imageBytes)
			if op == graph.Linear || op == graph.LinearDX || op == graph.LinearDW {
				d = opened(t, withLibrary(t), Options{SumRows: sumRows}, []int64{imageBytes})
			}
			for seed := range uint64(8) {
				s := newSample(op, seed)
				s.poison()
				var parts []device.Call
				for r0, all := 0, s.call.Args[token].Rows; r0 < all; {
					n := 1 + s.IntN(40)
					if kind == graph.TokenSum {
						n = sumRows * (1 + s.IntN(2))
					}
					n = min(n, all-r0)
					parts = append(parts, s.cut(r0, n))
					r0 += n
				}
				if !bytes.Equal(execute(t, d, s.call, s.image), executeAll(t, d, parts, s.image)) {
					t.Errorf("seed %d: %v: in %d parts the bits differ", seed, s, len(parts))
				}
			}
		})
	}
}

// TestSequenceSlices: a sequence cut into slices, forwards from the first, backwards at
// multiples of graph.SliceUnit from the last, gives the bits of the whole one; a
// bf16 dkv, which is rounded after every slice, is near.
func TestSequenceSlices(t *testing.T) {
	d, _ := machine(t, Options{}, imageBytes)
	for seed := range uint64(12) {
		s := &sample{Rand: rand.New(rand.NewPCG(seed, 5)), image: make([]byte, imageBytes), wide: seed%2 == 0, float: []graph.DType{graph.F32, graph.BF16}[seed/2%2]}
		_, width := s.heads()
		a := &s.call.Attr
		a.Row0, a.Heads = 0, 2*a.KVHeads
		width = (a.Heads + 2*a.KVHeads) * a.HeadDim
		n, w := a.Seq, a.Heads*a.HeadDim
		q, kv, do := s.mat(n, w), s.mat(n, width-w), s.mat(n, w)
		o, lse, delta := s.place(s.float, n, w), s.place(graph.F32, n, a.Heads), s.place(graph.F32, n, a.Heads)
		dq, dkv := s.place(s.float, n, w), s.place(s.float, n, width-w)
		calls := func(forward, backward []int) (list []device.Call) {
			for i := range len(forward) - 1 {
				lo, k := forward[i], forward[i+1]-forward[i]
				list = append(list, device.Call{Op: graph.Attention, Attr: *a, Args: []device.Operand{rowsOf(o, lo, k), rowsOf(lse, lo, k), rowsOf(q, lo, k), rowsOf(kv, 0, lo+k)}})
			}
			for i := len(backward) - 2; i >= 0; i-- {
				lo, k, at := backward[i], backward[i+1]-backward[i], *a
				at.Acc = lo+k < n
				part := func(o device.Operand) device.Operand { return rowsOf(o, lo, k) }
				list = append(list, device.Call{Op: graph.AttentionBwd, Attr: at,
					Args: []device.Operand{part(dq), rowsOf(dkv, 0, lo+k), part(delta), part(do), part(q), rowsOf(kv, 0, lo+k), part(o), part(lse)}})
			}
			return list
		}
		cuts := func(unit int) []int {
			list := []int{0}
			for {
				next := list[len(list)-1] + unit*(1+s.IntN(max(1, n/unit/2)))
				if next >= n {
					return append(list, n)
				}
				list = append(list, next)
			}
		}
		forward, backward := cuts(1), cuts(graph.SliceUnit(n))
		want := executeAll(t, d, calls([]int{0, n}, []int{0, n}), s.image)
		got := executeAll(t, d, calls(forward, backward), s.image)
		if s.float == graph.BF16 {
			s.call.Args, s.call.Op, s.tol = []device.Operand{dkv}, graph.AttentionBwd, 1.0/128*float64(len(backward))
			if err := s.check(got, want); err != nil {
				t.Errorf("seed %d: %+v cut at %v and %v: %v", seed, *a, forward, backward, err)
			}
		} else if !bytes.Equal(got, want) {
			t.Errorf("seed %d: %+v cut at %v and %v: the bits differ", seed, *a, forward, backward)
		}
	}
}

func rounds(op graph.Op) int {
	if onGPU() || op == graph.Attention || op == graph.AttentionBwd { // many shapes of tiles
		return 24
	}
	return 8
}
