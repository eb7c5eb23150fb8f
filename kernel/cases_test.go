package kernel

import (
	"math"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/optimizer"
)

// cases has a generator of random calls for each operator.
var cases = withDeltaCases(withUpdateCases(map[graph.Op]func(m *maker) sample{
	graph.Linear: func(m *maker) sample {
		n, in, out, wt := m.rows(), m.n(), m.n(), m.IntN(2) == 0
		d := m.float()
		s := sample{attr: graph.Attr{WT: wt}, t: []Tensor{m.mat(m.float(), n, out, 1), m.mat(d, n, in, 1), m.weight(d, in, out, wt), {}, {}},
			token: []bool{true, true, false, false, true}}
		if m.IntN(3) == 0 {
			s.attr.NF4, s.t[graph.LinearW] = true, m.packed(d, in, out, wt)
		} else {
			s.attr.FP8 = m.IntN(3) == 0
		}
		if m.acc && m.IntN(2) == 0 {
			s.attr.Acc = true
			return s
		}
		if m.IntN(2) == 0 {
			s.t[graph.LinearBias] = m.any(1, out)
		}
		if m.IntN(2) == 0 {
			s.t[graph.LinearRes] = m.any(n, out)
		}
		return s
	},
	graph.LinearDX: func(m *maker) sample {
		n, in, out, wt := m.rows(), m.n(), m.n(), m.IntN(2) == 0
		d := m.float()
		s := sample{attr: graph.Attr{WT: wt, Acc: m.acc}, t: []Tensor{m.any(n, in), m.mat(d, n, out, 1), m.weight(d, in, out, wt), {}},
			token: []bool{true, true, false, true}}
		if m.IntN(3) == 0 {
			s.attr.NF4, s.t[graph.LinearDXW] = true, m.packed(d, in, out, wt)
		} else {
			s.attr.FP8 = m.IntN(3) == 0
		}
		if !m.acc && m.IntN(2) == 0 {
			s.attr.Act, s.t[graph.LinearDXX] = model.Activation(m.IntN(int(model.NumActivations))), m.mat(m.float(), n, in, 3)
		}
		return s
	},
	graph.LinearDW: func(m *maker) sample {
		n, in, out, wt := m.rows(), m.n(), m.n(), m.IntN(2) == 0
		d := m.float()
		s := sample{attr: graph.Attr{WT: wt, Acc: m.acc}, t: []Tensor{m.weight(graph.F32, in, out, wt), m.mat(d, n, in, 1), m.mat(d, n, out, 1)},
			token: []bool{false, true, true}}
		if m.IntN(2) == 0 {
			in, out = m.n(), m.n()
			s.t = append(s.t, m.weight(graph.F32, in, out, wt), m.mat(d, n, in, 1), m.mat(d, n, out, 1))
			s.token = append(s.token, false, true, true)
		}
		return s
	},
	graph.BiasGrad: func(m *maker) sample {
		n, c := m.rows(), m.n()
		return sample{attr: graph.Attr{Acc: m.acc}, t: []Tensor{m.f32(1, c), m.any(n, c)}, token: []bool{false, true}}
	},
	graph.LayerNorm: func(m *maker) sample {
		n, c := m.rows(), m.n()
		return sample{attr: graph.Attr{Eps: 1e-5}, t: []Tensor{m.any(n, c), m.f32(n, 2), m.any(n, c), m.any(1, c), m.maybe(m.any(1, c))},
			token: []bool{true, true, true, false, false}, tol: 3e-5} // the variance of 2 equal elements is eps
	},
	graph.LayerNormDX: func(m *maker) sample {
		n, c := m.rows(), m.n()
		return sample{attr: graph.Attr{Acc: m.acc}, t: []Tensor{m.any(n, c), m.any(n, c), m.any(n, c), m.any(1, c), m.stats(n)},
			token: []bool{true, true, true, false, true}}
	},
	graph.LayerNormDW: func(m *maker) sample {
		n, c := m.rows(), m.n()
		return sample{attr: graph.Attr{Acc: m.acc}, t: []Tensor{m.f32(1, c), m.maybe(m.f32(1, c)), m.any(n, c), m.any(n, c), m.stats(n)},
			token: []bool{false, false, true, true, true}}
	},
	graph.RMSNorm: func(m *maker) sample {
		n, c, a := m.rows(), m.n(), m.groups()
		k := max(1, a.Heads)
		s := sample{attr: a, t: []Tensor{m.any(n, k*c), m.f32(n, k), m.any(n, k*c), m.any(1, c), {}}, token: []bool{true, true, true, false, true}}
		if m.IntN(2) == 0 {
			s.t[graph.RMSNormRes] = m.any(n, k*c)
		}
		return s
	},
	graph.RMSNormDX: func(m *maker) sample {
		n, c, a := m.rows(), m.n(), m.groups()
		k := max(1, a.Heads)
		a.Acc = m.acc
		return sample{attr: a, t: []Tensor{m.any(n, k*c), m.any(n, k*c), m.any(n, k*c), m.any(1, c), m.positive(n, k)},
			token: []bool{true, true, true, false, true}}
	},
	graph.RMSNormDW: func(m *maker) sample {
		n, c, a := m.rows(), m.n(), m.groups()
		k := max(1, a.Heads)
		a.Acc = m.acc
		return sample{attr: a, t: []Tensor{m.f32(1, c), m.any(n, k*c), m.any(n, k*c), m.positive(n, k)}, token: []bool{false, true, true, true}}
	},
	graph.RoPE: func(m *maker) sample {
		a, n := m.heads()
		a.HeadDim += a.HeadDim % 2
		a.Inverse, a.Row0 = m.IntN(2) == 0, m.IntN(9)
		return sample{attr: a, t: []Tensor{m.any(n, (a.Heads+2*a.KVHeads)*a.HeadDim), m.f32(a.Seq, m.turned(a))}, token: []bool{true, false}}
	},
	graph.Attention: func(m *maker) sample {
		a, n, keys, token := m.slice()
		d := m.float()
		s := sample{attr: a, t: []Tensor{m.any(n, a.Heads*a.HeadDim), m.f32(n, a.Heads), m.mat(d, n, a.Heads*a.HeadDim, 1),
			m.mat(d, keys, 2*a.KVHeads*a.HeadDim, 1), m.starts(a, n, keys), m.sinks(a)}, token: []bool{token, token, token, token, token, false}}
		s.tol = roundedFactors(s.t[graph.AttentionQ])
		m.cap(&s.attr)
		return s
	},
	graph.AttentionBwd: func(m *maker) sample {
		a, n, keys, token := m.slice()
		a.Acc = m.acc
		m.cap(&a)
		width, d := a.Heads*a.HeadDim, m.float()
		q, kv, o, lse := m.mat(d, n, width, 1), m.mat(d, keys, 2*a.KVHeads*a.HeadDim, 1), m.any(n, width), m.f32(n, a.Heads)
		s := sample{attr: a, t: []Tensor{m.any(n, width), m.any(keys, kv.Cols), m.f32(n, a.Heads), m.any(n, width), q, kv, o, lse, m.starts(a, n, keys)},
			token: []bool{token, token, token, token, token, token, token, token, token}}
		s.tol, s.floor = roundedFactors(s.t[graph.AttentionBwdDO], s.t[graph.AttentionBwdQ]), 1   // a query that sees one key has dq = 0
		attentionRef(nil, &a, []Tensor{o, lse, q, kv, s.t[graph.AttentionBwdStarts], m.sinks(a)}) // consistent o and lse
		return s
	},
	graph.SinkGrad: func(m *maker) sample {
		n, heads := m.rows(), m.n()
		lse, sinks := m.f32(n, heads), m.any(1, heads)
		for r := range n {
			for h := range heads { // the denominator has the sink
				lse.Set(r, h, sinks.At(0, h)+math.Abs(lse.At(r, h)))
			}
		}
		return sample{attr: graph.Attr{Acc: m.acc}, t: []Tensor{m.f32(1, heads), m.f32(n, heads), lse, sinks}, token: []bool{false, true, true, false}, floor: 1}
	},
	graph.Act: func(m *maker) sample {
		n, c := m.rows(), m.n()
		return sample{attr: graph.Attr{Act: model.Activation(m.IntN(int(model.NumActivations)))}, t: []Tensor{m.any(n, c), m.mat(m.float(), n, c, 3)}, token: []bool{true, true}}
	},
	graph.ActBwd: func(m *maker) sample {
		n, c := m.rows(), m.n()
		return sample{attr: graph.Attr{Act: model.Activation(m.IntN(int(model.NumActivations)))}, t: []Tensor{m.any(n, c), m.any(n, c), m.mat(m.float(), n, c, 3)},
			token: []bool{true, true, true}}
	},
	graph.SwiGLU: func(m *maker) sample {
		n, c, k := m.rows(), m.n(), 1+m.IntN(3)
		s := sample{attr: graph.Attr{Act: model.Activation(m.IntN(int(model.NumActivations)))}, t: []Tensor{m.any(n, k*c), m.any(n, 2*k*c), {}}, token: []bool{true, true, true}}
		if k > 1 {
			s.t[graph.SwiGLUWeights] = m.f32(n, k)
			m.bound(&s.attr)
		}
		return s
	},
	graph.SwiGLUBwd: func(m *maker) sample {
		n, c, k := m.rows(), m.n(), 1+m.IntN(3)
		s := sample{attr: graph.Attr{Act: model.Activation(m.IntN(int(model.NumActivations)))}, t: []Tensor{m.any(n, 2*k*c), m.any(n, k*c), m.any(n, 2*k*c), {}, {}},
			token: []bool{true, true, true, true, true}, floor: 1}
		if k > 1 {
			s.t[graph.SwiGLUBwdWeights] = m.f32(n, k)
			if m.IntN(3) > 0 {
				s.t[graph.SwiGLUBwdDWeights], s.attr.Acc = m.f32(n, k), m.acc
			}
			m.bound(&s.attr)
		}
		return s
	},
	graph.Route: func(m *maker) sample {
		n, k := m.rows(), 1+m.IntN(4)
		all := k + m.IntN(20)
		s := sample{attr: graph.Attr{Normed: m.IntN(2) == 0}, t: []Tensor{m.f32(n, k), m.mat(graph.I32, n, k, 1), m.mat(m.float(), n, all, 2), {}},
			token: []bool{true, true, true, false}}
		if m.scored(&s.attr); m.IntN(2) == 0 {
			s.t[graph.RouteBias] = m.any([]int{1, 3}[m.IntN(2)], all)
		}
		if size := 2 + m.IntN(3); m.IntN(2) == 0 && all%size == 0 {
			s.attr.Groups = all / size
			s.attr.Best = (k + size - 1) / size
			s.attr.Best += m.IntN(s.attr.Groups - s.attr.Best + 1)
		}
		return s
	},
	graph.RouteBwd: func(m *maker) sample {
		n, k := m.rows(), 1+m.IntN(4)
		logits := m.mat(m.float(), n, k+m.IntN(20), 2)
		s := sample{attr: graph.Attr{Normed: m.IntN(2) == 0, Seq: 1}, t: []Tensor{m.any(n, logits.Cols), m.f32(n, k), m.f32(n, k), m.mat(graph.I32, n, k, 1), logits, {}},
			token: []bool{true, true, true, true, true, false}, floor: 1}
		if m.IntN(2) == 0 {
			s.attr.Seq, s.attr.Scale, s.t[graph.RouteBwdScalars] = m.n(), 2.5, NewTensor(graph.F32, 1, graph.NumScalars)
			s.t[graph.RouteBwdScalars].F32[graph.ScalarLossScale] = 0.37
		} else {
			m.scored(&s.attr)
		}
		routeRef(nil, &s.attr, []Tensor{s.t[graph.RouteBwdWeights], s.t[graph.RouteBwdExperts], logits, {}}) // consistent weights
		return s
	},
	graph.ExpertLinear: func(m *maker) sample {
		n, in, out, k, d := m.rows(), m.n(), m.n(), 1+m.IntN(3), m.float()
		a := graph.Attr{WT: m.IntN(2) == 0, Slots: m.IntN(2) == 0, NF4: m.IntN(3) == 0, Acc: m.acc, Experts: k + m.IntN(5)}
		x, rows, cols := in, a.Experts*in, out
		if a.Slots {
			x *= k
		}
		if a.WT {
			rows, cols = a.Experts*out, in
		}
		w := m.mat(d, rows, cols, 1)
		if a.NF4 {
			w = m.packed(d, rows, cols, false)
		}
		s := sample{attr: a, t: []Tensor{m.any(n, k*out), m.mat(d, n, x, 1), w, m.experts(n, k, a.Experts), {}, {}}, token: []bool{true, true, false, true, false, true}}
		if !m.acc && m.IntN(2) == 0 {
			if s.t[graph.ExpertLinearBias] = m.any(a.Experts, out); m.IntN(2) == 0 {
				s.t[graph.ExpertLinearWeights] = m.f32(n, k)
			}
		}
		return s
	},
	graph.ExpertDW: func(m *maker) sample {
		n, in, out, k, d := m.rows(), m.n(), m.n(), 1+m.IntN(3), m.float()
		a := graph.Attr{WT: m.IntN(2) == 0, Acc: m.acc, Experts: k + m.IntN(5), Seq: m.n(), Cut: []int{0, 2, 32}[m.IntN(3)]}
		x, dy := in, out
		if m.IntN(2) == 0 {
			x *= k
		}
		if m.IntN(2) == 0 {
			dy *= k
		}
		dw := m.f32(a.Experts*in, out)
		if a.WT {
			dw = m.f32(a.Experts*out, in)
		}
		return sample{attr: a, t: []Tensor{dw, m.mat(d, n, x, 1), m.mat(d, n, dy, 1), m.experts(n, k, a.Experts)}, token: []bool{false, true, true, true}}
	},
	graph.ExpertDB: func(m *maker) sample {
		n, out, k := m.rows(), m.n(), 1+m.IntN(3)
		s := sample{attr: graph.Attr{Acc: m.acc, Experts: k + m.IntN(5)}, t: []Tensor{{}, m.any(n, out), {}, {}}, token: []bool{false, true, true, true}}
		if m.IntN(2) == 0 {
			s.t[graph.ExpertDBDY] = m.any(n, k*out)
		}
		if s.t[graph.ExpertDBDB], s.t[graph.ExpertDBExperts] = m.f32(s.attr.Experts, out), m.experts(n, k, s.attr.Experts); m.IntN(2) == 0 {
			s.t[graph.ExpertDBWeights] = m.f32(n, k)
		}
		return s
	},
	graph.Combine: func(m *maker) sample {
		n, c, k := m.rows(), m.n(), 1+m.IntN(3)
		s := sample{attr: graph.Attr{Acc: m.acc}, t: []Tensor{m.any(n, c), m.any(n, k*c), {}}, token: []bool{true, true, true}, floor: 1}
		if !m.acc && m.IntN(2) == 0 {
			s.t[graph.CombineRes] = m.any(n, c)
		}
		return s
	},
	graph.Embed: func(m *maker) sample {
		n, c, vocab := m.rows(), m.n(), m.n()
		a := graph.Attr{Seq: m.n(), PosOffset: m.IntN(3), Row0: m.IntN(9), Scale: 2.5 * float64(m.IntN(2))}
		s := sample{attr: a, t: []Tensor{m.any(n, c), m.ints(n, 0, vocab), m.any(vocab, c), {}}, token: []bool{true, true, false, false}}
		if m.IntN(2) == 0 {
			s.t[graph.EmbedWPE] = m.any(a.Seq+a.PosOffset, c)
		}
		if m.IntN(2) == 0 { // a third of a vocabulary
			s.attr.First, s.attr.Vocab, s.t[graph.EmbedTokens] = m.IntN(3)*vocab, 3*vocab, m.ints(n, 0, 3*vocab)
			s.attr.Acc = m.acc
		}
		return s
	},
	graph.EmbedBwd: func(m *maker) sample {
		n, c, vocab := m.rows(), m.n(), m.n()
		s := sample{attr: graph.Attr{Acc: m.acc, Scale: 2.5 * float64(m.IntN(2))}, t: []Tensor{m.f32(vocab, c), m.any(n, c), m.ints(n, 0, vocab)},
			token: []bool{false, true, true}}
		if m.IntN(2) == 0 {
			s.attr.First, s.attr.Vocab, s.t[graph.EmbedBwdTokens] = m.IntN(3)*vocab, 3*vocab, m.ints(n, 0, 3*vocab)
		}
		return s
	},
	graph.PosBwd: func(m *maker) sample {
		c, seq := m.n(), m.n()
		a := graph.Attr{Seq: seq, PosOffset: m.IntN(3), Row0: m.IntN(9), Acc: m.acc}
		return sample{attr: a, t: []Tensor{m.f32(seq+a.PosOffset+m.IntN(2), c), m.any(seq*m.IntN(4), c)}, token: []bool{false, true}}
	},
	graph.LossPart: func(m *maker) sample {
		n, vocab, parts := m.rows(), m.n(), 1+m.IntN(4)
		own := []int{1, parts}[m.IntN(2)] // parts in whose columns it writes
		return sample{attr: graph.Attr{First: m.IntN(parts) * vocab}, t: []Tensor{m.f32(n, 2*own), m.mat(m.float(), n, vocab, 4), m.ints(n, -1, parts*vocab)}, token: []bool{true, true, true}}
	},
	graph.CrossEntropy: func(m *maker) sample {
		n, vocab := m.rows(), m.n()
		scalars := NewTensor(graph.F32, 1, graph.NumScalars)
		scalars.F32[graph.ScalarLossScale] = 0.37
		s := sample{attr: graph.Attr{Grad: m.IntN(2) == 0}, t: []Tensor{m.f32(n, 1), m.mat(m.float(), n, vocab, 4), m.ints(n, -1, vocab), scalars, {}, {}},
			token: []bool{true, true, true, false, true, true}}
		if m.IntN(2) == 0 {
			s.t[graph.CrossEntropyWeights] = m.f32(n, 1)
		}
		if m.IntN(3) == 0 { // a third of a vocabulary
			s.attr.First = m.IntN(3) * vocab
			s.t[graph.CrossEntropyTargets], s.t[graph.CrossEntropyParts] = m.ints(n, -1, 3*vocab), m.f32(n, 6)
		}
		if m.IntN(3) == 0 {
			s.attr.Limit = 4
			softCapRef(nil, &s.attr, s.t[graph.CrossEntropyLogits:])
		}
		s.attr.Score = s.attr.Limit == 0 && s.t[graph.CrossEntropyParts].Absent() && m.IntN(3) == 0
		if m.IntN(4) == 0 {
			s.attr = graph.Attr{Grad: s.attr.Grad}
			s.t = []Tensor{s.t[0], m.mat(m.float(), n, 1, 4), m.ints(n, -1, 1), scalars, {}, {}, m.f32(n, 1)}
			s.token = append(s.token, true)
		}
		return s
	},
	graph.Distil: func(m *maker) sample {
		n, vocab := m.rows(), m.n()
		s := sample{attr: graph.Attr{Grad: m.IntN(2) == 0, Rate: 0.25 * float64(1+m.IntN(4)), Scale: float64(1 + m.IntN(3))}, token: []bool{true, true, true, false, true, true}}
		scalars, k := NewTensor(graph.F32, 1, graph.NumScalars), 1+m.IntN(vocab)
		scalars.F32[graph.ScalarLossScale] = 0.37
		ids, logs := NewTensor(graph.I32, n, k), NewTensor(graph.F32, n, k)
		for r := range n {
			sum, rest := 0.0, float64(m.IntN(2)) // the others' share of the probabilities
			for j, id := range m.Perm(vocab)[:k] {
				ids.I32[r*k+j], logs.F32[r*k+j] = int32(id), float32(m.NormFloat64())
				sum += math.Exp(float64(logs.F32[r*k+j]))
			}
			for j := range k {
				logs.F32[r*k+j] -= float32(math.Log(sum * (1 + rest)))
			}
			if m.IntN(4) == 0 {
				ids.I32[r*k] = -1 // nothing is said
			}
		}
		s.t = []Tensor{m.f32(n, 1), m.mat(m.float(), n, vocab, 4), m.ints(n, -1, vocab), scalars, ids, logs}
		if m.IntN(3) == 0 {
			s.attr.Limit = 4
			softCapRef(nil, &s.attr, s.t[graph.DistilLogits:])
		}
		return s
	},
	graph.TopLogs: func(m *maker) sample {
		n, vocab := m.rows(), m.n()
		k := 1 + m.IntN(vocab)
		x := m.mat(m.float(), n, vocab, 4)
		if m.IntN(2) == 0 { // many equal ones
			for r := range n {
				for c := range vocab {
					x.Set(r, c, math.Round(x.At(r, c)))
				}
			}
		}
		return sample{attr: graph.Attr{Scale: float64(1 + m.IntN(3))}, t: []Tensor{NewTensor(graph.I32, n, k), m.f32(n, k), x}, token: []bool{true, true, true}}
	},
	graph.Preference: func(m *maker) sample {
		seq := 1 + m.n()
		n := seq * (1 + m.IntN(4))
		starts, targets, rate, start := NewTensor(graph.I32, n, 1), m.ints(n, -1, 9), m.Float64(), 0
		for r := range n {
			at := r % seq
			if at == 0 || at == seq/2 || m.Float64() < rate*rate { // documents, often one or two, sometimes with rows of their own behind
				start = at
			}
			starts.I32[r] = int32(start)
			if r/seq%3 == 2 || at > 3*seq/4 && rate < 0.5 { // no pair, or padding
				targets.I32[r*targets.Stride] = -1
			}
		}
		loss, args := m.IntN(int(graph.NumPairLosses)), []Tensor{m.f32(n, 1), m.f32(n, 1), m.f32(n, 1), m.positive(n, 1), m.f32(n, 1), targets, starts, m.f32(n, 1)}
		if !graph.PairLoss(loss).Rule().Unpaired {
			args = args[:graph.PreferenceVerdicts]
		}
		return sample{attr: graph.Attr{Seq: seq, Scale: 0.3, PairLoss: loss, Margin: 0.4}, t: args}
	},
	graph.LossSum: func(m *maker) sample {
		return sample{attr: graph.Attr{Acc: m.acc}, t: []Tensor{m.mat(graph.F64, 1, 1, 1), m.f32(m.rows(), 1)}, token: []bool{false, true}}
	},
	graph.NormPart: func(m *maker) sample {
		g := m.f32(m.n(), 64*m.n())
		return sample{t: []Tensor{m.mat(graph.F64, 1, graph.NormPieces(int64(g.Rows*g.Cols)), 1), g}}
	},
	graph.NormAll: func(m *maker) sample {
		s := sample{attr: graph.Attr{Clip: float64(m.IntN(3))}, t: []Tensor{m.f32(1, 2), m.positive(1, m.n()), NewTensor(graph.F32, 1, graph.NumScalars)}}
		s.t[graph.NormAllScalars].F32[graph.ScalarBound] = []float32{1, math.MaxFloat32}[m.IntN(2)]
		return s
	},
	graph.Cast: func(m *maker) sample {
		n, c := m.rows(), m.n()
		return sample{t: []Tensor{m.any(n, c), m.any(n, c)}, token: []bool{true, true}}
	},
	graph.Add: func(m *maker) sample {
		n, c := m.rows(), m.n()
		return sample{t: []Tensor{m.any(n, c), m.any(n, c)}, token: []bool{true, true}}
	},
	graph.Scale: func(m *maker) sample {
		s := sample{t: []Tensor{m.any(m.rows(), m.n()), {}}, token: []bool{true, false}}
		if m.IntN(2) == 0 {
			s.attr.Scale = 2.5
		} else {
			s.t[graph.ScaleBy] = m.any(1+2*m.IntN(2), 1)
		}
		return s
	},
	graph.Drop: func(m *maker) sample {
		n, c := m.rows(), m.n()
		attr := graph.Attr{Rate: float64(m.IntN(3)) / 4, Param: int(m.Uint32()), Acc: m.IntN(2) == 0}
		return sample{attr: attr, t: []Tensor{m.any(n, c), m.any(n, c), m.ints(n, 0, 5)}, token: []bool{true, true, true}}
	},
	graph.Jitter: func(m *maker) sample {
		n, c := m.rows(), m.n()
		return sample{attr: graph.Attr{Scale: 0.5, Param: int(m.Uint32())}, t: []Tensor{m.any(n, c), m.ints(n, 0, 5)}, token: []bool{true, true}}
	},
	graph.Compress: compressSample,
	graph.Expand:   expandSample,
	graph.SoftCap: func(m *maker) sample {
		return sample{attr: graph.Attr{Limit: 1.5}, t: []Tensor{m.any(m.rows(), m.n())}, token: []bool{true}}
	},
	graph.EmbedAt: func(m *maker) sample {
		n, c, vocab, pos := m.rows(), m.n(), m.n(), m.n()
		s := sample{attr: graph.Attr{PosOffset: m.IntN(3), Scale: 2.5 * float64(m.IntN(2))}, t: []Tensor{m.any(n, c), m.ints(n, 0, vocab), m.any(vocab, c), {}, m.places(n, 1, pos)}}
		if m.IntN(2) == 0 {
			s.t[graph.EmbedAtWPE] = m.any(pos+n+s.attr.PosOffset, c)
		}
		return s
	},
	graph.RoPEAt: func(m *maker) sample {
		a, n := m.heads()
		a.HeadDim += a.HeadDim % 2
		pos := m.n() - 1
		return sample{attr: a, t: []Tensor{m.any(n, (a.Heads+2*a.KVHeads)*a.HeadDim), m.f32(pos+n, m.turned(a)), m.places(n, 1, pos)}}
	},
	graph.AttentionAt: func(m *maker) sample {
		a, _ := m.heads()
		n, pos, d, slots := m.rows(), m.n()-1, m.float(), 1+m.IntN(3)
		context := pos + n + m.IntN(4)
		a.Seq = context * min(slots-1, 1) // 0: there is one
		kv := m.cache(&a, d, slots*2*a.KVHeads*context)
		s := sample{attr: a, t: []Tensor{m.any(n, a.Heads*a.HeadDim), kv,
			m.mat(d, n, (a.Heads+2*a.KVHeads*m.IntN(2))*a.HeadDim, 1), m.places(n, slots, pos), m.sinks(a)}}
		s.tol = roundedFactors(s.t[graph.AttentionAtQKV])
		m.cap(&s.attr)
		return s
	},
}))

// withUpdateCases adds those of the optimizers.
func withUpdateCases(cases map[graph.Op]func(m *maker) sample) map[graph.Op]func(m *maker) sample {
	for o := range optimizer.NumOptimizers {
		cases[o.Rule().Op] = func(m *maker) sample { return updateCase(m, o.Rule()) }
	}
	return cases
}

func updateCase(m *maker, rule *optimizer.Rule) sample {
	n, c := m.n(), m.n()
	s := sample{attr: graph.Attr{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Decay: 0.1, Param: int(m.Uint32()), First: m.IntN(1 << 33)}, t: []Tensor{m.any(n, c)}}
	if !rule.Elementwise {
		s.attr.Scale = 0.3
	}
	for _, kind := range rule.Moments {
		if kind == optimizer.SecondMoment {
			s.t = append(s.t, m.above0(m.float(), n, c))
		} else {
			s.t = append(s.t, m.any(n, c))
		}
	}
	clip, scalars, p16, rest := m.positive(1, 2), NewTensor(graph.F32, 1, graph.NumScalars), Tensor{}, Tensor{}
	g := m.any(n, c)
	s.attr.Masked = m.IntN(2) == 0
	switch m.IntN(4) {
	case 0:
		clip = Tensor{}
	case 1:
		clip.F32[0] = 0 // it is skipped
	}
	scalars.F32[graph.ScalarChance] = graph.Chance(m.Uint64(), 1)
	scalars.F32[graph.ScalarLR], scalars.F32[graph.ScalarCorrection1], scalars.F32[graph.ScalarCorrection2] = 0.01, 0.3, 0.1
	switch halves := m.IntN(3); {
	case s.t[0].DType == graph.F32 && halves > 0:
		p16 = m.mat(graph.BF16, n, c, 1)
	case s.t[0].DType == graph.BF16 && halves > 0:
		rest = NewTensor(graph.U16, n, c)
		for i := range rest.BF16 {
			rest.BF16[i] = uint16(m.Uint32())
		}
	}
	for i := 0; s.attr.Masked && i < n*c; i += 1 + m.IntN(3) {
		if s.t[0].Set(i/c, i%c, 0); !rest.Absent() {
			rest.BF16[i/c*rest.Stride+i%c] = 0x8000 // see float16.Halves
		}
	}
	s.t = append(s.t, g, clip, scalars, p16, rest)
	if !rule.Elementwise {
		s.t = append(s.t, NewTensor([]graph.DType{graph.F32, graph.BF16}[m.IntN(2)], 1, graph.MuonPlacesOf(n, c).Len))
	}
	return s
}
