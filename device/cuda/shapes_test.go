//go:build linux

package cuda

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/kernel"
	"github.com/athanor-llm/athanor/model"
)

// modelShapes are tokens, inputs and outputs of a linear layer: some of GPT-2's and
// Llama's, a vocabulary that is odd and an adapter among them, or toys for the fake.
func modelShapes() [][3]int {
	if onGPU() {
		return [][3]int{{2048, 768, 2304}, {2048, 768, 50257}, {3000, 1600, 6400}, {2048, 8192, 2048}, {1024, 4096, 28672}, {2048, 4096, 16}, {2048, 16, 4096}}
	}
	return [][3]int{{40, 24, 56}, {33, 17, 35}}
}

// TestModelShapes: products as large as those of models, for which the library has other algorithms
// than for small ones: some elements are at most twice as far from those in float64 as rounding alone
// makes them, and two runs have the same bits, as have the same tokens in two parts.
func TestModelShapes(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	for _, shape := range modelShapes() {
		for _, turned := range []bool{false, true} {
			for _, op := range []graph.Op{graph.Linear, graph.LinearDX, graph.LinearDW} {
				t.Run(fmt.Sprintf("%v %v WT %v", op, shape, turned), func(t *testing.T) {
					newLayer(t, op, shape, turned, false).check(t)
				})
			}
			t.Run(fmt.Sprintf("%v %v WT %v, GELU", graph.LinearDX, shape, turned), func(t *testing.T) {
				newLayer(t, graph.LinearDX, shape, turned, true).check(t)
			})
		}
	}
}

// layer is one product of a linear layer on random operands in bf16.
type layer struct {
	sample
	d *Device
	n int                    // tokens
	m [4]bf16s               // the operands; the first, which is written, is empty
	y device.Operand         // written
	f func(r, c int) float64 // what it should be
}

// bf16s is a contiguous matrix.
type bf16s struct {
	bytes []byte
	cols  int
}

func (m bf16s) at(r, c int) float64 {
	return float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(m.bytes[2*(r*m.cols+c):])) << 16))
}

// randomBF16 are n bytes of numbers of both signs between a half and two.
func randomBF16(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := 0; i < n; i += 2 {
		binary.LittleEndian.PutUint16(b[i:], 0x3f80+uint16(r.Uint32()&0x807f)-uint16(r.Uint32()&1)<<7)
	}
	return b
}

// newLayer gives a product of LinearDX the derivative of GELU too, if asked to.
func newLayer(t *testing.T, op graph.Op, shape [3]int, turned, derived bool) *layer {
	t.Helper()
	seed := fresh(t)
	l := &layer{sample: sample{Rand: rand.New(rand.NewPCG(seed, 31))}, n: shape[0]}
	l.call = device.Call{Op: op, Attr: graph.Attr{WT: turned}}
	x, dy, w := [2]int{l.n, shape[1]}, [2]int{l.n, shape[2]}, [2]int{shape[1], shape[2]}
	if turned {
		w = [2]int{w[1], w[0]}
	}
	weight := func(in, out int) float64 { // as linear layers have it
		if turned {
			in, out = out, in
		}
		return l.m[2].at(in, out)
	}
	sizes, types := [][2]int{dy, x, w}, [4]graph.DType{graph.BF16, graph.BF16, graph.BF16, graph.BF16}
	switch op {
	case graph.Linear:
		l.f = func(r, c int) float64 {
			return l.dot(shape[1], func(k int) float64 { return l.m[1].at(r, k) * weight(k, c) })
		}
	case graph.LinearDX:
		sizes = [][2]int{x, dy, w}
		if derived {
			sizes = append(sizes, x)
		}
		l.f = func(r, c int) float64 {
			slope := 1.0
			if derived {
				slope = derivative(l.m[3].at(r, c))
			}
			return slope * l.dot(shape[2], func(k int) float64 { return l.m[1].at(r, k) * weight(c, k) })
		}
	case graph.LinearDW:
		sizes, types[0] = [][2]int{w, x, dy}, graph.F32
		l.f = func(r, c int) float64 {
			if turned {
				r, c = c, r
			}
			return l.dot(l.n, func(k int) float64 { return l.m[1].at(k, r) * l.m[2].at(k, c) })
		}
	}
	for i, s := range sizes {
		o := device.Operand{DType: types[i], Addr: l.end, Rows: s[0], Cols: s[1], Stride: s[1]}
		l.call.Args, l.end = append(l.call.Args, o), (o.End()+255)&^255
	}
	l.y = l.call.Args[0]
	l.d = openedWith(t, withLibrary(t), Options{SumRows: l.n / 2}, l.end)
	for i, o := range l.call.Args[1:] {
		l.m[i+1] = bf16s{randomBF16(l.Rand, int(o.Bytes())), o.Cols}
		if err := l.d.Write(device.DeviceTier, o.Addr, l.m[i+1].bytes); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

// derivative is that of GELU by tanh.
func derivative(x float64) float64 {
	dx, one, at := kernel.NewTensor(graph.F64, 1, 1), kernel.NewTensor(graph.F64, 1, 1), kernel.NewTensor(graph.F64, 1, 1)
	one.Set(0, 0, 1)
	at.Set(0, 0, x)
	kernel.Lookup(graph.ActBwd).Reference(nil, &graph.Attr{Act: model.GELUTanh}, []kernel.Tensor{dx, one, at})
	return dx.At(0, 0)
}

func (l *layer) dot(n int, term func(k int) float64) (sum float64) {
	for k := range n {
		sum += term(k)
	}
	return sum
}

// run executes calls on a poisoned output.
func (l *layer) run(t *testing.T, calls ...device.Call) []byte {
	t.Helper()
	out := bytes.Repeat([]byte{0xff}, int(l.y.Bytes()))
	if err := l.d.Write(device.DeviceTier, l.y.Addr, out); err != nil {
		t.Fatal(err)
	}
	first, err := l.d.Prepare(calls, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range calls {
		l.d.Launch(first + i)
	}
	if err := l.d.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := l.d.Read(device.DeviceTier, l.y.Addr, out); err != nil {
		t.Fatal(err)
	}
	return out
}

func (l *layer) check(t *testing.T) {
	got := l.run(t, l.call)
	if !bytes.Equal(got, l.run(t, l.call)) {
		t.Error("two runs differ")
	}
	if part := l.n / 2; !bytes.Equal(got, l.run(t, l.cut(0, part), l.cut(part, l.n-part))) {
		t.Error("in two parts the bits differ")
	}
	if refused := l.d.Refused(); refused != nil {
		t.Errorf("the library refused %v", refused)
	}
	image := make([]byte, l.y.Addr+l.y.Bytes())
	copy(image[l.y.Addr:], got)
	y := tensor(image, l.y)
	var ours, rounding, size float64
	for range 2000 {
		r, c := l.IntN(y.Rows), l.IntN(y.Cols)
		want := l.f(r, c)
		near := float64(float32(want))
		if l.y.DType == graph.BF16 {
			near = float64(math.Float32frombits((math.Float32bits(float32(want)) + 0x8000) &^ 0xffff))
		}
		ours += (y.At(r, c) - want) * (y.At(r, c) - want)
		rounding += (near - want) * (near - want)
		size += want * want
	}
	if !(math.Sqrt(ours) <= 2*math.Sqrt(rounding)+1e-5*math.Sqrt(size)) {
		t.Errorf("%.3g off, of rounding %.3g, of %.3g", math.Sqrt(ours), math.Sqrt(rounding), math.Sqrt(size))
	}
}
