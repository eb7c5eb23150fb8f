package kernel

import (
	"maps"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/model"
)

// TestDeltaDocuments: a document has the same bits wherever in a sequence it is, whatever comes before it, and however many sequences and
// workers there are: results, and gradients of queries, keys, values and gates. It is longer than what one kept state covers.
func TestDeltaDocuments(t *testing.T) {
	const seq, length, at = 300, 270, 23
	r := testkit.Rand(t)
	m := &maker{Rand: r}
	a := graph.Attr{Seq: seq, Heads: 2, KVHeads: 1, HeadDim: 5}
	width, states := 2*3, 2*graph.DeltaStateCols(seq, 15)
	qkv, do, gates := m.f32(seq, 10+width), m.f32(seq, width), m.f32(seq, 4)
	for n := range seq {
		for h := range 2 {
			gates.Set(n, h, -0.1*r.Float64())
			gates.Set(n, 2+h, r.Float64())
		}
	}
	// moved is a tensor of two sequences, in the second of which the first rows of t are from row first on.
	moved := func(t Tensor, first int) Tensor {
		to := m.f32(2*seq, t.Cols)
		for n := range length {
			copy(to.row(seq+first+n, 0, t.Cols), t.row(n, 0, t.Cols))
		}
		return to
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
		qkv, do, gates := moved(qkv, first), moved(do, first), moved(gates, first)
		o, kept := NewTensor(graph.F32, 2*seq, width), NewTensor(graph.F32, 2*seq, states)
		dqkv, dgates := NewTensor(graph.F32, 2*seq, qkv.Cols), NewTensor(graph.F32, 2*seq, 4)
		Lookup(graph.DeltaRule).Fast(e, &a, []Tensor{o, kept, qkv, gates, starts})
		Lookup(graph.DeltaRuleBwd).Fast(e, &a, []Tensor{dqkv, dgates, do, qkv, gates, kept, starts})
		for _, x := range []Tensor{o, dqkv, dgates} {
			for n := range length {
				list = append(list, x.row(seq+first+n, 0, x.Cols))
			}
		}
		return list
	}
	sameAnywhere(t, run, at, length)
}

// sameAnywhere requires that the rows that a function returns of a document of some length, which begins at a row, are the same at
// row 0 and there, and with any number of workers.
func sameAnywhere(t *testing.T, run func(first, workers int) [][]float32, at, length int) {
	t.Helper()
	want := run(0, 1)
	for k, workers := range []int{1, 3} {
		for n, row := range run(at*(1-k), workers) {
			if !slices.Equal(row, want[n]) {
				t.Fatalf("row %d of %d differs", n%length, n/length)
			}
		}
	}
}

// withDeltaCases adds the operators of gated delta nets, of state-space scans, and of attention from latents.
func withDeltaCases(cases map[graph.Op]func(m *maker) sample) map[graph.Op]func(m *maker) sample {
	maps.Copy(cases, deltaCases)
	maps.Copy(cases, latentCases)
	maps.Copy(cases, scanCases)
	return cases
}

var deltaCases = map[graph.Op]func(m *maker) sample{
	graph.Gate: func(m *maker) sample {
		n, c := m.rows(), m.n()
		return sample{attr: graph.Attr{Act: model.Activation(m.IntN(int(model.NumActivations)))}, t: []Tensor{m.any(n, c), m.any(n, c), m.any(n, c)}, token: []bool{true, true, true}}
	},
	graph.GateBwd: func(m *maker) sample {
		n, c := m.rows(), m.n()
		return sample{attr: graph.Attr{Act: model.Activation(m.IntN(int(model.NumActivations)))},
			t: []Tensor{m.any(n, c), m.any(n, c), m.any(n, c), m.any(n, c), m.any(n, c)}, token: []bool{true, true, true, true, true}, floor: 1}
	},
	graph.ShortConv: func(m *maker) sample {
		a, n, c, starts := m.sequences()
		return sample{attr: a, t: []Tensor{m.any(n, c), m.any(n, c), m.mat(m.float(), c, 1+m.IntN(5), 0.5), starts, m.maybe(m.any(1, c))}, floor: 1}
	},
	graph.ShortConvDX: func(m *maker) sample {
		a, n, c, starts := m.sequences()
		return sample{attr: a, t: []Tensor{m.any(n, c), m.any(n, c), m.any(n, c), m.mat(m.float(), c, 1+m.IntN(5), 0.5), starts, m.maybe(m.any(1, c))}, floor: 1}
	},
	graph.ShortConvDW: func(m *maker) sample {
		a, n, c, starts := m.sequences()
		a.Acc = m.acc
		k, bias, db := 1+m.IntN(5), m.maybe(m.any(1, c)), Tensor{}
		if !bias.Absent() {
			db = m.f32(1, c)
		}
		return sample{attr: a, t: []Tensor{m.f32(c, k), m.any(n, c), m.any(n, c), m.mat(m.float(), c, k, 0.5), starts, bias, db}, floor: 1}
	},
	graph.ShortConvAt: func(m *maker) sample {
		n, c, k := 1+m.IntN(9), m.n(), 2+m.IntN(4)
		pos, slots := m.texts(n)
		return sample{attr: graph.Attr{Act: model.SiLU}, t: []Tensor{m.any(n, c), m.any(slots*(k-1), c), m.any(n, c), m.mat(m.float(), c, k, 0.5), pos, m.maybe(m.any(1, c))}, floor: 1}
	},
	graph.DeltaRuleAt: func(m *maker) sample {
		s := m.deltaRule()
		pos, slots := m.texts(s.n)
		s.a.Seq = 0
		return sample{attr: s.a, t: []Tensor{m.any(s.n, s.width), m.f32(slots*s.a.Heads*s.a.HeadDim, s.width/s.a.Heads), s.qkv, s.gates, pos}, tol: 1e-5}
	},
	graph.Decay: func(m *maker) sample {
		n, c := m.rows(), m.n()
		return sample{t: []Tensor{m.f32(n, 2*c), m.any(n, 2*c), m.any(1, c), m.any(1, c)}, token: []bool{true, true, false, false}}
	},
	graph.DecayBwd: func(m *maker) sample {
		n, c := m.rows(), m.n()
		return sample{t: []Tensor{m.any(n, 2*c), m.f32(n, 2*c), m.any(n, 2*c), m.any(1, c), m.any(1, c)}, token: []bool{true, true, true, false, false}}
	},
	graph.DecayGrad: func(m *maker) sample {
		n, c := m.rows(), m.n()
		return sample{attr: graph.Attr{Acc: m.acc}, t: []Tensor{m.f32(1, c), m.f32(n, 2*c), m.f32(n, 2*c)}, token: []bool{false, true, true}, floor: 1}
	},
	graph.DeltaRule: func(m *maker) sample {
		s := m.deltaRule()
		return sample{attr: s.a, t: []Tensor{m.any(s.n, s.width), m.f32(s.n, s.states), s.qkv, s.gates, s.starts}, tol: 1e-5}
	},
	graph.DeltaRuleBwd: func(m *maker) sample {
		s := m.deltaRule()
		o, states, do := NewTensor(graph.F32, s.n, s.width), m.f32(s.n, s.states), m.any(s.n, s.width)
		deltaRuleRef(nil, &s.a, []Tensor{o, states, s.qkv, s.gates, s.starts})
		return sample{attr: s.a, t: []Tensor{m.any(s.n, s.qkv.Cols), m.f32(s.n, s.gates.Cols), do, s.qkv, s.gates, states, s.starts}, tol: 2e-5, floor: 1}
	},
}

// texts returns where n tokens are, and of how many sequences at most: one after the other in one, or each in a sequence of its own choice, as the next of
// its tokens, or idle.
func (m *maker) texts(n int) (pos Tensor, slots int) {
	slots = 1 + m.IntN(3)
	if m.IntN(2) == 0 {
		pos = NewTensor(graph.I32, 1, 1+m.IntN(2))
		if pos.I32[0] = int32(m.IntN(3)); pos.Cols == 1 {
			return pos, 1
		}
		pos.I32[1] = int32(m.IntN(slots))
		return pos, slots
	}
	pos = NewTensor(graph.I32, n, 2)
	next := make([]int32, slots)
	for i := range next {
		next[i] = int32(m.IntN(9))
	}
	for r := range n {
		slot := m.IntN(slots)
		pos.I32[2*r], pos.I32[2*r+1] = next[slot], int32(slot)
		if n > 1 && m.IntN(4) == 0 {
			pos.I32[2*r] = -1
			continue
		}
		next[slot]++
	}
	return pos, slots
}

// sequences returns the extents of a call on whole sequences, sometimes with documents, and where these begin.
func (m *maker) sequences() (a graph.Attr, n, cols int, starts Tensor) {
	a = graph.Attr{Seq: m.n(), Act: model.SiLU}
	n = a.Seq * (1 + m.IntN(3))
	if m.IntN(2) == 0 {
		starts = m.documents(a.Seq, n)
	}
	return a, n, m.n(), starts
}

// documents returns where the documents of n rows begin, often at few rows.
func (m *maker) documents(seq, n int) Tensor {
	starts, rate := NewTensor(graph.I32, n, 1), m.Float64()
	for r := range n {
		switch at := r % seq; {
		case at == 0:
		case m.Float64() < rate*rate*rate:
			starts.I32[r] = int32(at)
		default:
			starts.I32[r] = starts.I32[r-1]
		}
	}
	return starts
}

// deltaSample has the operands of a delta rule in both directions.
type deltaSample struct {
	a                  graph.Attr
	n, width, states   int
	qkv, gates, starts Tensor
}

func (m *maker) deltaRule() (s deltaSample) {
	sizes := []int{1, 2, 3, 8, 16, 20}
	keys, group, k, v := 1+m.IntN(3), 1+m.IntN(3), sizes[m.IntN(len(sizes))], sizes[m.IntN(len(sizes))]
	s.a, s.n, _, s.starts = m.sequences()
	s.a.Act, s.a.KVHeads, s.a.Heads, s.a.HeadDim = 0, keys, keys*group, k
	s.width = s.a.Heads * v
	s.states = s.a.Heads * graph.DeltaStateCols(s.a.Seq, k*v)
	s.qkv, s.gates = m.any(s.n, 2*keys*k+s.width), m.f32(s.n, 2*s.a.Heads)
	for r := range s.n {
		for h := range s.a.Heads {
			s.gates.Set(r, h, -m.Float64()*m.Float64())
			s.gates.Set(r, s.a.Heads+h, m.Float64())
		}
	}
	return s
}

// maybe is an operand that is left out in one of three cases.
func (m *maker) maybe(t Tensor) Tensor {
	if m.IntN(3) == 0 {
		return Tensor{}
	}
	return t
}
