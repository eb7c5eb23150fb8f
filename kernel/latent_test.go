package kernel

import "github.com/athanor-llm/athanor/graph"

var latentCases = map[graph.Op]func(m *maker) sample{
	graph.LatentKV: func(m *maker) sample {
		a, n, up, turned := m.latent()
		return sample{attr: a, t: []Tensor{m.any(n, 2*a.KVHeads*a.HeadDim), m.any(n, up), m.any(n, turned)}, token: []bool{true, true, true}}
	},
	graph.LatentKVBwd: func(m *maker) sample {
		a, n, up, turned := m.latent()
		return sample{attr: a, t: []Tensor{m.any(n, up), m.any(n, turned), m.any(n, 2*a.KVHeads*a.HeadDim)}, token: []bool{true, true, true}, floor: 1}
	},
	graph.Direction: func(m *maker) sample {
		n, out, rank := m.rows(), m.n(), 1+m.IntN(5)
		d, in := m.float(), m.n()
		s := sample{attr: graph.Attr{Scale: 0.7}, t: []Tensor{m.any(n, out), m.any(rank, in), m.mat(d, out, in, 1), m.any(out, rank)}, token: []bool{true, false, false, false}}
		if m.IntN(2) == 0 {
			s.attr.NF4, s.t[graph.DirectionW] = true, m.packed(d, in, out, true)
		}
		return s
	},
	graph.Gain: func(m *maker) sample {
		n, c := m.rows(), m.n()
		return sample{t: []Tensor{m.any(n, c), m.any(n, c), m.any(1, c), m.maybe(m.any(1, c)), m.maybe(m.any(n, c))}, token: []bool{true, true, false, false, true}, floor: 1}
	},
	graph.GainGrad: func(m *maker) sample {
		n, c := m.rows(), m.n()
		return sample{attr: graph.Attr{Acc: m.acc}, t: []Tensor{m.f32(1, c), m.any(n, c), m.any(n, c)}, token: []bool{false, true, true}}
	},
	graph.XIELU: func(m *maker) sample {
		n, c, rows := m.rows(), m.n(), 1+2*m.IntN(2)
		return sample{t: []Tensor{m.any(n, c), m.mat(m.float(), n, c, 3), m.any(1, 1), m.any(1, 1), m.any(rows, 1), m.any(rows, 1)}, token: []bool{true, true, false, false, false, false}, floor: 1}
	},
	graph.XIELUBwd: func(m *maker) sample {
		n, c, rows := m.rows(), m.n(), 1+2*m.IntN(2)
		return sample{t: []Tensor{m.any(n, c), m.any(n, c), m.mat(m.float(), n, c, 3), m.any(1, 1), m.any(1, 1), m.any(rows, 1), m.any(rows, 1), m.maybe(m.f32(n, 2))},
			token: []bool{true, true, true, false, false, false, false, true}, floor: 1}
	},
	graph.HeadCols: func(m *maker) sample {
		n, heads := m.rows(), 1+m.IntN(4)
		return sample{attr: graph.Attr{Heads: heads}, t: []Tensor{m.any(n, heads*m.n()), m.any(n, heads*m.n())}, token: []bool{true, true}}
	},
}

// latent draws the extents of keys and values made from latents.
func (m *maker) latent() (a graph.Attr, rows, up, turned int) {
	turned, plain, heads := 1+m.IntN(9), 1+m.IntN(9), 1+m.IntN(4)
	a = graph.Attr{Heads: heads, KVHeads: heads, HeadDim: turned + plain}
	return a, m.rows(), heads * (plain + 1 + m.IntN(a.HeadDim)), turned
}
