package kernel

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/model"
)

var scanCases = map[graph.Op]func(m *maker) sample{
	graph.TimeSteps: func(m *maker) sample {
		n, c := m.rows(), m.n()
		return sample{attr: m.bounds(), t: []Tensor{m.f32(n, 2*c), m.any(n, c), m.any(1, c), m.any(1, c)}, token: []bool{true, true, false, false}}
	},
	graph.TimeStepsBwd: func(m *maker) sample {
		n, c := m.rows(), m.n()
		return sample{attr: m.bounds(), t: []Tensor{m.any(n, c), m.f32(n, 2*c), m.any(n, c), m.any(1, c), m.any(1, c)}, token: []bool{true, true, true, false, false}, floor: 1}
	},
	graph.StateScan: func(m *maker) sample {
		s := m.stateScan()
		return sample{attr: s.a, t: []Tensor{m.any(s.n, s.width), m.f32(s.n, s.states), s.xbc, s.gates, s.skip, s.starts}, tol: 1e-5, floor: 1}
	},
	graph.StateScanBwd: func(m *maker) sample {
		s := m.stateScan()
		o, states, do, bands := NewTensor(graph.F32, s.n, s.width), m.f32(s.n, s.states), m.any(s.n, s.width), Tensor{}
		stateScanRef(nil, &s.a, []Tensor{o, states, s.xbc, s.gates, s.skip, s.starts})
		if cols := graph.ScanRoom(&s.a); cols > 0 {
			bands = m.f32(s.n, cols)
		}
		return sample{attr: s.a, t: []Tensor{m.any(s.n, s.xbc.Cols), m.f32(s.n, 3*s.a.Heads), do, s.xbc, s.gates, s.skip, states, bands, s.starts}, tol: 2e-5, floor: 1}
	},
	graph.StateScanAt: func(m *maker) sample {
		s := m.stateScan()
		pos, slots := m.texts(s.n)
		s.a.Seq = 0
		return sample{attr: s.a, t: []Tensor{m.any(s.n, s.width), m.f32(slots*s.a.Heads*s.a.HeadDim, s.width/s.a.Heads), s.xbc, s.gates, s.skip, pos}, tol: 1e-5, floor: 1}
	},
}

// bounds are sometimes those of time steps.
func (m *maker) bounds() (a graph.Attr) {
	if m.IntN(2) == 0 {
		a.Least, a.Limit = 0.5, 1.5
	}
	return a
}

// scanSample has the operands of a scan in both directions.
type scanSample struct {
	a                        graph.Attr
	n, width, states         int
	xbc, gates, skip, starts Tensor
}

func (m *maker) stateScan() (s scanSample) {
	sizes := []int{1, 2, 3, 8, 16, 20}
	groups, each, n, p := 1+m.IntN(3), []int{1, 2, 3, 11}[m.IntN(4)], sizes[m.IntN(len(sizes))], sizes[m.IntN(len(sizes))]
	s.a, s.n, _, s.starts = m.sequences()
	s.a.Act, s.a.KVHeads, s.a.Heads, s.a.HeadDim = 0, groups, groups*each, n
	s.width = s.a.Heads * p
	s.states = s.a.Heads * graph.ScanStateCols(s.a.Seq, n*p)
	s.xbc, s.gates, s.skip = m.any(s.n, 2*groups*n+s.width), m.f32(s.n, 2*s.a.Heads), m.any(1, s.a.Heads)
	for r := range s.n {
		for h := range s.a.Heads {
			dt := m.Float64()
			s.gates.Set(r, h, -dt*m.Float64())
			s.gates.Set(r, s.a.Heads+h, dt)
		}
	}
	return s
}

// TestScanGradients checks the references of the scan's and time steps' gradients against finite differences.
func TestScanGradients(t *testing.T) {
	r := rand.New(rand.NewPCG(13, 14))
	run := func(op graph.Op, a *graph.Attr, t ...Tensor) {
		Lookup(op).Reference(nil, a, append(t, make([]Tensor, len(op.Info().Args)-len(t))...))
	}
	sums := func(x Tensor, lo, n int) Tensor { // as graph.BiasGrad does
		to := NewTensor(graph.F64, 1, n)
		for r := range x.Rows {
			for c := range n {
				to.F64[c] += x.At(r, lo+c)
			}
		}
		return to
	}
	t.Run("time steps", func(t *testing.T) {
		for _, a := range []*graph.Attr{{}, {Least: 0.4, Limit: 1.2}} {
			gates, dgates, x, rate, bias := f64(r, 5, 6), f64(r, 5, 6), f64(r, 5, 3), f64(r, 1, 3), f64(r, 1, 3)
			dx, drate := f64(r, 5, 3), f64(r, 1, 3)
			forward := func() { run(graph.TimeSteps, a, gates, x, rate, bias) }
			forward()
			run(graph.TimeStepsBwd, a, dx, dgates, x, rate, bias)
			run(graph.DecayGrad, a, drate, dgates, gates)
			difference(t, "dx", x, dx, gates, dgates, forward)
			difference(t, "drate", rate, drate, gates, dgates, forward)
			difference(t, "dbias", bias, sums(dx, 0, 3), gates, dgates, forward)
		}
	})
	t.Run("scan", func(t *testing.T) {
		a := &graph.Attr{Seq: 7, Heads: 4, KVHeads: 2, HeadDim: 3}
		starts := NewTensor(graph.I32, 14, 1)
		copy(starts.I32, []int32{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 3, 3, 6})
		width := 4 * 2
		o, do, xbc, dxbc := f64(r, 14, width), f64(r, 14, width), f64(r, 14, 2*2*3+width), f64(r, 14, 2*2*3+width)
		gates, dgates, states, skip := f64(r, 14, 8), f64(r, 14, 12), f64(r, 14, 4*graph.ScanStateCols(7, 6)), f64(r, 1, 4)
		for n := range 14 {
			for h := range 4 {
				gates.Set(n, h, -math.Abs(gates.At(n, h)))
			}
		}
		forward := func() { run(graph.StateScan, a, o, states, xbc, gates, skip, starts) }
		run(graph.StateScanBwd, a, dxbc, dgates, do, xbc, gates, skip, states, Tensor{}, starts)
		own := NewTensor(graph.F64, 14, 8)
		for n := range 14 {
			copy(own.F64[n*8:][:8], dgates.F64[n*12:])
		}
		difference(t, "dxbc", xbc, dxbc, o, do, forward)
		difference(t, "dgates", gates, own, o, do, forward)
		difference(t, "dskip", skip, sums(dgates, 8, 4), o, do, forward)
	})
	t.Run("convolution with a bias", func(t *testing.T) {
		a := &graph.Attr{Act: model.SiLU, Seq: 6}
		starts := NewTensor(graph.I32, 12, 1)
		copy(starts.I32, []int32{0, 0, 0, 0, 0, 0, 0, 0, 2, 2, 2, 5})
		x, w, bias, y, dy, dx, dw, db := f64(r, 12, 3), f64(r, 3, 4), f64(r, 1, 3), f64(r, 12, 3), f64(r, 12, 3), f64(r, 12, 3), f64(r, 3, 4), f64(r, 1, 3)
		forward := func() { run(graph.ShortConv, a, y, x, w, starts, bias) }
		run(graph.ShortConvDX, a, dx, dy, x, w, starts, bias)
		run(graph.ShortConvDW, a, dw, dy, x, w, starts, bias, db)
		difference(t, "dx", x, dx, y, dy, forward)
		difference(t, "dw", w, dw, y, dy, forward)
		difference(t, "dbias", bias, db, y, dy, forward)
	})
}

// TestScanDocuments: a document has the same bits wherever in a sequence it is, whatever comes before it, and however many sequences and
// workers there are: results, and gradients of what they depend on. It is longer than what one kept state covers, and its heads are of
// several bands.
func TestScanDocuments(t *testing.T) {
	const seq, length, at, heads = 300, 270, 23, 10
	r := testkit.Rand(t)
	m := &maker{Rand: r}
	a := graph.Attr{Seq: seq, Heads: heads, KVHeads: 1, HeadDim: 5}
	const width = heads * 3
	states := heads * graph.ScanStateCols(seq, 15)
	xbc, do, gates, skip := m.f32(seq, width+10), m.f32(seq, width), m.f32(seq, 2*heads), m.f32(1, heads)
	for n := range seq {
		for h := range heads {
			gates.Set(n, h, -0.1*r.Float64())
			gates.Set(n, heads+h, r.Float64())
		}
	}
	run := func(first, workers int) (list [][]float32) {
		e := NewEnv(workers)
		defer e.Close()
		starts := NewTensor(graph.I32, 2*seq, 1)
		for n := range seq {
			switch {
			case n >= first+length:
				starts.I32[seq+n] = int32(first + length)
			case n >= first:
				starts.I32[seq+n] = int32(first)
			}
		}
		moved := func(t Tensor) Tensor { // to the second of two sequences
			to := m.f32(2*seq, t.Cols)
			for n := range length {
				copy(to.row(seq+first+n, 0, t.Cols), t.row(n, 0, t.Cols))
			}
			return to
		}
		xbc, do, gates := moved(xbc), moved(do), moved(gates)
		o, kept := NewTensor(graph.F32, 2*seq, width), NewTensor(graph.F32, 2*seq, states)
		dxbc, dgates, bands := NewTensor(graph.F32, 2*seq, xbc.Cols), NewTensor(graph.F32, 2*seq, 3*heads), NewTensor(graph.F32, 2*seq, graph.ScanRoom(&a))
		Lookup(graph.StateScan).Fast(e, &a, []Tensor{o, kept, xbc, gates, skip, starts})
		Lookup(graph.StateScanBwd).Fast(e, &a, []Tensor{dxbc, dgates, do, xbc, gates, skip, kept, bands, starts})
		for _, x := range []Tensor{o, dxbc, dgates} {
			for n := range length {
				list = append(list, x.row(seq+first+n, 0, x.Cols))
			}
		}
		return list
	}
	sameAnywhere(t, run, at, length)
}
