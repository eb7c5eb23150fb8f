package kernel

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/model"
)

// f64 returns a random float64 matrix. The references accept float64 too, which
// makes finite differences precise.
func f64(r *rand.Rand, rows, cols int) Tensor {
	t := NewTensor(graph.F64, rows, cols)
	for i := range t.F64 {
		t.F64[i] = r.NormFloat64()
	}
	return t
}

// difference compares a gradient with central differences of sum(weight * output),
// perturbing one element of the input at a time.
func difference(t *testing.T, name string, input, grad, output, weight Tensor, forward func()) {
	t.Helper()
	const h = 1e-5
	value := func() (s float64) {
		forward()
		for i, w := range weight.F64 {
			s += w * output.F64[i]
		}
		return s
	}
	for i := range input.F64 {
		x := input.F64[i]
		input.F64[i] = x + h
		up := value()
		input.F64[i] = x - h
		down := value()
		input.F64[i] = x
		if d := (up - down) / (2 * h); !(math.Abs(d-grad.F64[i]) <= 1e-6*(1+math.Abs(d))) {
			t.Fatalf("%s, element %d: gradient %v, difference %v", name, i, grad.F64[i], d)
		}
	}
	forward()
}

// imbalance returns, for the tokens of rows [lo, hi), the number of experts times the sum over
// experts of their share of the slots times their mean probability.
func imbalance(logits, ids *Tensor, lo, hi int) (s float64) {
	n := float64(hi - lo)
	share, mean := make([]float64, logits.Cols), make([]float64, logits.Cols)
	for r := lo; r < hi; r++ {
		for k := range ids.Cols {
			share[int(ids.At(r, k))] += 1 / (n * float64(ids.Cols))
		}
		for e, p := range routeSoftmax(logits, r) {
			mean[e] += p / n
		}
	}
	for e := range share {
		s += float64(logits.Cols) * share[e] * mean[e]
	}
	return s
}

// TestGradients checks the reference of every gradient operator against finite
// differences of the forward reference. TestFast compares the fast ones with the
// references.
func TestGradients(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	run := func(op graph.Op, a *graph.Attr, t ...Tensor) { // operands missing at the end are absent
		Lookup(op).Reference(nil, a, append(t, make([]Tensor, len(op.Info().Args)-len(t))...))
	}
	none := Tensor{}

	t.Run("linear", func(t *testing.T) {
		for _, wt := range []bool{false, true} {
			a := &graph.Attr{WT: wt}
			x, w, b, res, y, dy := f64(r, 3, 5), f64(r, 5, 4), f64(r, 1, 4), f64(r, 3, 4), f64(r, 3, 4), f64(r, 3, 4)
			if wt {
				w = f64(r, 4, 5)
			}
			dx, dw, db := f64(r, 3, 5), f64(r, w.Rows, w.Cols), f64(r, 1, 4)
			forward := func() { run(graph.Linear, a, y, x, w, b, res) }
			run(graph.LinearDX, a, dx, dy, w)
			run(graph.LinearDW, a, dw, x, dy)
			run(graph.BiasGrad, a, db, dy)
			difference(t, "dx", x, dx, y, dy, forward)
			difference(t, "dw", w, dw, y, dy, forward)
			difference(t, "db", b, db, y, dy, forward)
			difference(t, "res", res, dy, y, dy, forward)
			for act := range model.NumActivations {
				a := &graph.Attr{WT: wt, Act: act}
				h := f64(r, 3, 5)
				run(graph.LinearDX, a, dx, dy, w, x)
				difference(t, "dx behind "+act.String(), x, dx, y, dy, func() {
					run(graph.Act, a, h, x)
					run(graph.Linear, a, y, h, w)
				})
			}
		}
	})
	t.Run("drop", func(t *testing.T) {
		a := &graph.Attr{Rate: 0.4, Param: 5}
		x, y, dy, dx, keys := f64(r, 4, 9), f64(r, 4, 9), f64(r, 4, 9), f64(r, 4, 9), NewTensor(graph.I32, 4, 1)
		copy(keys.I32, []int32{7, 0, 8, 9})
		run(graph.Drop, a, dx, dy, keys) // with the mask of the forward pass
		difference(t, "dx", x, dx, y, dy, func() { run(graph.Drop, a, y, x, keys) })
	})
	t.Run("layernorm", func(t *testing.T) {
		a := &graph.Attr{Eps: 1e-3}
		x, g, b, y, s, dy := f64(r, 3, 7), f64(r, 1, 7), f64(r, 1, 7), f64(r, 3, 7), f64(r, 3, 2), f64(r, 3, 7)
		dx, dg, db := f64(r, 3, 7), f64(r, 1, 7), f64(r, 1, 7)
		forward := func() { run(graph.LayerNorm, a, y, s, x, g, b) }
		forward()
		run(graph.LayerNormDX, a, dx, dy, x, g, s)
		run(graph.LayerNormDW, a, dg, db, dy, x, s)
		difference(t, "dx", x, dx, y, dy, forward)
		difference(t, "dg", g, dg, y, dy, forward)
		difference(t, "db", b, db, y, dy, forward)
	})
	t.Run("rmsnorm", func(t *testing.T) {
		for _, heads := range []int{0, 1, 3} { // groups of a row
			for _, offset := range []bool{false, true} {
				a, n := &graph.Attr{Eps: 1e-3, Heads: heads, UnitOffset: offset}, max(1, heads)
				x, g, y, s, dy, res := f64(r, 3, 7*n), f64(r, 1, 7), f64(r, 3, 7*n), f64(r, 3, n), f64(r, 3, 7*n), f64(r, 3, 7*n)
				dx, dg := f64(r, 3, 7*n), f64(r, 1, 7)
				forward := func() { run(graph.RMSNorm, a, y, s, x, g, res) }
				forward()
				run(graph.RMSNormDX, a, dx, dy, x, g, s)
				run(graph.RMSNormDW, a, dg, dy, x, s)
				difference(t, "dx", x, dx, y, dy, forward)
				difference(t, "dg", g, dg, y, dy, forward)
				difference(t, "res", res, dy, y, dy, forward)
			}
		}
	})
	t.Run("rope", func(t *testing.T) {
		for _, cols := range []int{6, 4, 2} { // rotated columns of a head
			a := &graph.Attr{Seq: 3, Row0: 2, Heads: 2, KVHeads: 1, HeadDim: 6}
			b := *a
			b.Inverse = true
			x, y, table, dy := f64(r, 6, 24), f64(r, 6, 24), f64(r, 3, cols), f64(r, 6, 24)
			for p := range 3 {
				for i := range cols / 2 {
					table.Set(p, i, math.Cos(float64(p*(i+1))))
					table.Set(p, i+cols/2, math.Sin(float64(p*(i+1))))
				}
			}
			forward := func() {
				copy(y.F64, x.F64)
				run(graph.RoPE, a, y, table)
			}
			dx := f64(r, 6, 24)
			copy(dx.F64, dy.F64)
			run(graph.RoPE, &b, dx, table)
			difference(t, "dx", x, dx, y, dy, forward)
		}
	})
	t.Run("scale", func(t *testing.T) {
		a, x, y, dy, dx := &graph.Attr{Scale: 2.5}, f64(r, 3, 4), f64(r, 3, 4), f64(r, 3, 4), f64(r, 3, 4)
		copy(dx.F64, dy.F64)
		run(graph.Scale, a, dx)
		difference(t, "dx", x, dx, y, dy, func() {
			copy(y.F64, x.F64)
			run(graph.Scale, a, y)
		})
	})
	t.Run("attention", func(t *testing.T) {
		for window, limit := range map[int]float64{0: 0, 1: 0, 3: 0.6, 4: 0} {
			a := &graph.Attr{Seq: 5, Heads: 4, KVHeads: 2, HeadDim: 3, Window: window, Scale: 0.7, Limit: limit}
			for _, n := range [][2]int{{10, 10}, {3, 5}, {2, 4}} { // queries and keys: two sequences, slices of one
				q, kv, o, lse, do := f64(r, n[0], 12), f64(r, n[1], 12), f64(r, n[0], 12), f64(r, n[0], 4), f64(r, n[0], 12)
				dq, dkv, delta := f64(r, n[0], 12), f64(r, n[1], 12), f64(r, n[0], 4)
				forward := func() { run(graph.Attention, a, o, lse, q, kv) }
				forward()
				run(graph.AttentionBwd, a, dq, dkv, delta, do, q, kv, o, lse)
				difference(t, "dq", q, dq, o, do, forward)
				difference(t, "dkv", kv, dkv, o, do, forward)
			}
		}
	})
	t.Run("sinks", func(t *testing.T) {
		a := &graph.Attr{Seq: 5, Heads: 4, KVHeads: 2, HeadDim: 3, Window: 3, Scale: 0.7}
		for _, n := range [][2]int{{10, 10}, {3, 5}} {
			q, kv, o, lse, do, sinks := f64(r, n[0], 12), f64(r, n[1], 12), f64(r, n[0], 12), f64(r, n[0], 4), f64(r, n[0], 12), f64(r, 1, 4)
			dq, dkv, delta, dsinks := f64(r, n[0], 12), f64(r, n[1], 12), f64(r, n[0], 4), f64(r, 1, 4)
			forward := func() { run(graph.Attention, a, o, lse, q, kv, none, sinks) }
			forward()
			run(graph.AttentionBwd, a, dq, dkv, delta, do, q, kv, o, lse)
			run(graph.SinkGrad, &graph.Attr{}, dsinks, delta, lse, sinks)
			difference(t, "dq", q, dq, o, do, forward)
			difference(t, "dkv", kv, dkv, o, do, forward)
			difference(t, "dsinks", sinks, dsinks, o, do, forward)
		}
	})
	t.Run("act", func(t *testing.T) {
		for k := range model.NumActivations {
			a := &graph.Attr{Act: k}
			x, y, dy, dx := f64(r, 4, 9), f64(r, 4, 9), f64(r, 4, 9), f64(r, 4, 9)
			run(graph.ActBwd, a, dx, dy, x)
			difference(t, k.String(), x, dx, y, dy, func() { run(graph.Act, a, y, x) })
		}
	})
	t.Run("swiglu", func(t *testing.T) {
		gu, y, dy, dgu := f64(r, 4, 10), f64(r, 4, 5), f64(r, 4, 5), f64(r, 4, 10)
		for k := range model.NumActivations {
			a := &graph.Attr{Act: k}
			run(graph.SwiGLUBwd, a, dgu, dy, gu, none, none)
			difference(t, k.String(), gu, dgu, y, dy, func() { run(graph.SwiGLU, a, y, gu, none) })
		}
	})
	t.Run("gate", func(t *testing.T) {
		a := &graph.Attr{Act: model.SiLU}
		gate, up, y, dy, dgate, dup := f64(r, 4, 5), f64(r, 4, 5), f64(r, 4, 5), f64(r, 4, 5), f64(r, 4, 5), f64(r, 4, 5)
		forward := func() { run(graph.Gate, a, y, gate, up) }
		run(graph.GateBwd, a, dgate, dup, dy, gate, up)
		difference(t, "dgate", gate, dgate, y, dy, forward)
		difference(t, "dup", up, dup, y, dy, forward)
	})
	t.Run("short convolution", func(t *testing.T) {
		a := &graph.Attr{Act: model.SiLU, Seq: 6}
		starts := NewTensor(graph.I32, 12, 1)
		copy(starts.I32, []int32{0, 0, 0, 0, 0, 0, 0, 0, 2, 2, 2, 5})
		x, w, y, dy, dx, dw := f64(r, 12, 3), f64(r, 3, 4), f64(r, 12, 3), f64(r, 12, 3), f64(r, 12, 3), f64(r, 3, 4)
		forward := func() { run(graph.ShortConv, a, y, x, w, starts) }
		run(graph.ShortConvDX, a, dx, dy, x, w, starts)
		run(graph.ShortConvDW, a, dw, dy, x, w, starts)
		difference(t, "dx", x, dx, y, dy, forward)
		difference(t, "dw", w, dw, y, dy, forward)
	})
	t.Run("decay", func(t *testing.T) {
		a := &graph.Attr{}
		gates, dgates, ba, rate, bias := f64(r, 4, 6), f64(r, 4, 6), f64(r, 4, 6), f64(r, 1, 3), f64(r, 1, 3)
		dba, drate, dbias := f64(r, 4, 6), f64(r, 1, 3), f64(r, 1, 3)
		forward := func() { run(graph.Decay, a, gates, ba, rate, bias) }
		forward()
		run(graph.DecayBwd, a, dba, dgates, ba, rate, bias)
		run(graph.DecayGrad, a, drate, dgates, gates)
		for h := range 3 { // as graph.BiasGrad does
			dbias.F64[h] = 0
			for n := range 4 {
				dbias.F64[h] += dba.At(n, 3+h)
			}
		}
		difference(t, "dba", ba, dba, gates, dgates, forward)
		difference(t, "drate", rate, drate, gates, dgates, forward)
		difference(t, "dbias", bias, dbias, gates, dgates, forward)
	})
	t.Run("delta rule", func(t *testing.T) {
		a := &graph.Attr{Seq: 7, Heads: 4, KVHeads: 2, HeadDim: 3}
		starts := NewTensor(graph.I32, 14, 1)
		copy(starts.I32, []int32{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 3, 3, 6})
		width := 4 * 2
		o, do, qkv, dqkv := f64(r, 14, width), f64(r, 14, width), f64(r, 14, 2*2*3+width), f64(r, 14, 2*2*3+width)
		gates, dgates, states := f64(r, 14, 8), f64(r, 14, 8), f64(r, 14, 4*graph.DeltaStateCols(7, 6))
		for n := range 14 {
			for h := range 4 {
				gates.Set(n, h, -math.Abs(gates.At(n, h)))
			}
		}
		forward := func() { run(graph.DeltaRule, a, o, states, qkv, gates, starts) }
		run(graph.DeltaRuleBwd, a, dqkv, dgates, do, qkv, gates, states, starts)
		difference(t, "dqkv", qkv, dqkv, o, do, forward)
		difference(t, "dgates", gates, dgates, o, do, forward)
	})
	t.Run("weighted swiglu", func(t *testing.T) {
		a := &graph.Attr{Act: model.SiLU}
		gu, w, y, dy, dgu, dw := f64(r, 3, 20), f64(r, 3, 2), f64(r, 3, 10), f64(r, 3, 10), f64(r, 3, 20), f64(r, 3, 2)
		forward := func() { run(graph.SwiGLU, a, y, gu, w) }
		run(graph.SwiGLUBwd, a, dgu, dy, gu, w, dw)
		difference(t, "dgu", gu, dgu, y, dy, forward)
		difference(t, "dw", w, dw, y, dy, forward)
	})
	t.Run("bounded swiglu", func(t *testing.T) { // some gates and ups are beyond the limit
		a := &graph.Attr{Act: model.SiLU, Limit: 0.8, Alpha: 1.7, Acc: true}
		gu, w, y, dy, dgu, dw := f64(r, 3, 20), f64(r, 3, 2), f64(r, 3, 10), f64(r, 3, 10), f64(r, 3, 20), f64(r, 3, 2)
		forward := func() { run(graph.SwiGLU, a, y, gu, w) }
		clear(dw.F64)
		run(graph.SwiGLUBwd, a, dgu, dy, gu, w, dw)
		difference(t, "dgu", gu, dgu, y, dy, forward)
		difference(t, "dw", w, dw, y, dy, forward)
	})
	t.Run("xielu", func(t *testing.T) {
		a := &graph.Attr{}
		x, y, dy, dx, terms := f64(r, 4, 6), f64(r, 4, 6), f64(r, 4, 6), f64(r, 4, 6), f64(r, 4, 2)
		p, n, dp, dn, beta, eps := f64(r, 1, 1), f64(r, 1, 1), f64(r, 1, 1), f64(r, 1, 1), f64(r, 1, 1), f64(r, 1, 1)
		eps.F64[0] = -1e-6
		forward := func() { run(graph.XIELU, a, y, x, p, n, beta, eps) }
		run(graph.XIELUBwd, a, dx, dy, x, p, n, beta, eps, terms)
		for i, sum := range []Tensor{dp, dn} { // as graph.BiasGrad does
			sum.F64[0] = 0
			for r := range terms.Rows {
				sum.F64[0] += terms.At(r, i)
			}
		}
		difference(t, "dx", x, dx, y, dy, forward)
		difference(t, "dpositive", p, dp, y, dy, forward)
		difference(t, "dnegative", n, dn, y, dy, forward)
	})
	t.Run("biases of experts", func(t *testing.T) { // y of each slot is x.v + its weight*bias
		down := &graph.Attr{WT: true, Slots: true, Experts: 4}
		x, v, ids, none := f64(r, 5, 6), f64(r, 4*2, 3), NewTensor(graph.I32, 5, 2), Tensor{}
		for n := range 5 {
			ids.I32[2*n], ids.I32[2*n+1] = int32(n%3), int32(n%3+1)
		}
		bias, w, y, dy, dbias, dw := f64(r, 4, 2), f64(r, 5, 2), f64(r, 5, 4), f64(r, 5, 4), f64(r, 4, 2), f64(r, 5, 2)
		forward := func() { run(graph.ExpertLinear, down, y, x, v, ids, bias, w) }
		run(graph.ExpertDB, &graph.Attr{Experts: 4}, dbias, dy, ids, w)
		run(graph.ExpertLinear, &graph.Attr{WT: true, Slots: true, Experts: 4}, dw, dy, bias, ids)
		difference(t, "dbias", bias, dbias, y, dy, forward)
		difference(t, "dw", w, dw, y, dy, forward)
		w.F64 = slices.Repeat([]float64{1}, len(w.F64))
		forward = func() { run(graph.ExpertLinear, down, y, x, v, ids, bias, none) }
		run(graph.ExpertDB, &graph.Attr{Experts: 4}, dbias, dy, ids, none)
		difference(t, "dbias without weights", bias, dbias, y, dy, forward)
	})
	t.Run("route", func(t *testing.T) {
		for _, normed := range []bool{false, true} {
			a := &graph.Attr{Normed: normed}
			x, w, dw, dx, ids := f64(r, 6, 7), f64(r, 6, 3), f64(r, 6, 3), f64(r, 6, 7), NewTensor(graph.I32, 6, 3)
			setApart(x)
			forward := func() { run(graph.Route, a, w, ids, x) }
			forward()
			run(graph.RouteBwd, &graph.Attr{Normed: normed, Seq: 1}, dx, dw, w, ids, x, none)
			difference(t, "dlogits", x, dx, w, dw, forward)
		}
	})
	t.Run("balance", func(t *testing.T) { // of two sequences of 4 tokens, 3 experts of 7
		const balance, lossScale = 0.5, 1.0 / 8
		for _, normed := range []bool{false, true} {
			a := &graph.Attr{Normed: normed}
			x, w, dw, dx, ids, loss, one, scalars := f64(r, 8, 7), f64(r, 8, 3), f64(r, 8, 3), f64(r, 8, 7), NewTensor(graph.I32, 8, 3), f64(r, 1, 1), f64(r, 1, 1), f64(r, 1, graph.NumScalars)
			setApart(x)
			one.F64[0], scalars.F64[graph.ScalarLossScale] = 1, lossScale
			forward := func() {
				run(graph.Route, a, w, ids, x)
				loss.F64[0] = balance * (imbalance(&x, &ids, 0, 4) + imbalance(&x, &ids, 4, 8)) / 2 // the mean over sequences
				for i := range w.F64 {
					loss.F64[0] += w.F64[i] * dw.F64[i]
				}
			}
			forward()
			b := &graph.Attr{Normed: normed, Seq: 4, Scale: balance * 7 / (3 * 4)}
			run(graph.RouteBwd, b, dx, dw, w, ids, x, scalars)
			difference(t, "dlogits", x, dx, loss, one, forward)
		}
	})
	t.Run("mixture", func(t *testing.T) { // y = sum over slots of (x.up of each).down of each
		up, down, back := &graph.Attr{WT: true, Experts: 4}, &graph.Attr{WT: true, Slots: true, Experts: 4}, &graph.Attr{Slots: true, Experts: 4}
		x, w, v, ids := f64(r, 5, 3), f64(r, 4*6, 3), f64(r, 4*3, 6), NewTensor(graph.I32, 5, 2)
		for n := range 5 {
			ids.I32[2*n], ids.I32[2*n+1] = int32(n%3), int32(n%3+1)
		}
		h, each, y, dy := f64(r, 5, 12), f64(r, 5, 6), f64(r, 5, 3), f64(r, 5, 3)
		dh, dx, dw, dv, none := f64(r, 5, 12), f64(r, 5, 3), f64(r, 24, 3), f64(r, 12, 6), Tensor{}
		forward := func() {
			run(graph.ExpertLinear, up, h, x, w, ids)
			run(graph.ExpertLinear, down, each, h, v, ids)
			run(graph.Combine, &graph.Attr{}, y, each, none)
		}
		forward()
		run(graph.ExpertLinear, &graph.Attr{Experts: 4}, dh, dy, v, ids)
		run(graph.ExpertDW, down, dv, h, dy, ids)
		run(graph.ExpertDW, up, dw, x, dh, ids)
		run(graph.ExpertLinear, back, each, dh, w, ids)
		run(graph.Combine, &graph.Attr{}, dx, each, none)
		difference(t, "dx", x, dx, y, dy, forward)
		difference(t, "dw", w, dw, y, dy, forward)
		difference(t, "dv", v, dv, y, dy, forward)
	})
	t.Run("embed", func(t *testing.T) {
		a := &graph.Attr{Seq: 3, Row0: 1, PosOffset: 2, Scale: 1.7}
		tokens := NewTensor(graph.I32, 7, 1)
		copy(tokens.I32, []int32{1, 3, 1, 0, 3, 1, 2})
		wte, wpe, x, dx, dwte, dwpe := f64(r, 5, 2), f64(r, 6, 2), f64(r, 7, 2), f64(r, 7, 2), f64(r, 5, 2), f64(r, 6, 2)
		forward := func() { run(graph.Embed, a, x, tokens, wte, wpe) }
		run(graph.EmbedBwd, a, dwte, dx, tokens)
		run(graph.PosBwd, a, dwpe, dx)
		difference(t, "dwte", wte, dwte, x, dx, forward)
		difference(t, "dwpe", wpe, dwpe, x, dx, forward)
		run(graph.Embed, a, x, tokens, wte, none)
	})
	t.Run("cross_entropy", func(t *testing.T) {
		targets, scalars := NewTensor(graph.I32, 4, 1), f64(r, 1, graph.NumScalars)
		copy(targets.I32, []int32{2, -1, 0, 5})
		x, loss, one, grad := f64(r, 4, 6), f64(r, 4, 1), f64(r, 4, 1), f64(r, 4, 6)
		scale := scalars.F64[graph.ScalarLossScale]
		for i := range one.F64 {
			one.F64[i] = scale
		}
		copy(grad.F64, x.F64)
		forward := func() { run(graph.CrossEntropy, &graph.Attr{}, loss, x, targets, scalars, none) }
		run(graph.CrossEntropy, &graph.Attr{Grad: true}, loss, grad, targets, scalars, none)
		difference(t, "logits", x, grad, loss, one, forward)
		weights := f64(r, 4, 1)
		for i := range one.F64 {
			one.F64[i] = scale * weights.F64[i]
		}
		copy(grad.F64, x.F64)
		run(graph.CrossEntropy, &graph.Attr{Grad: true}, loss, grad, targets, scalars, weights)
		difference(t, "logits with weights", x, grad, loss, one, forward)
	})
	t.Run("soft cap", func(t *testing.T) {
		a, b, targets, scalars := &graph.Attr{Limit: 1.5}, &graph.Attr{Limit: 1.5, Grad: true}, NewTensor(graph.I32, 4, 1), f64(r, 1, graph.NumScalars)
		copy(targets.I32, []int32{2, -1, 0, 5})
		x, y, loss, one := f64(r, 4, 6), f64(r, 4, 6), f64(r, 4, 1), f64(r, 4, 1)
		for i := range one.F64 {
			one.F64[i] = scalars.F64[graph.ScalarLossScale]
		}
		forward := func() {
			copy(y.F64, x.F64)
			run(graph.SoftCap, a, y)
			run(graph.CrossEntropy, a, loss, y, targets, scalars)
		}
		forward()
		grad := y
		grad.F64 = slices.Clone(y.F64)
		run(graph.CrossEntropy, b, loss, grad, targets, scalars)
		difference(t, "logits", x, grad, loss, one, forward)
	})
	t.Run("preference", func(t *testing.T) {
		a := &graph.Attr{Seq: 12, Scale: 0.7}
		targets, starts := NewTensor(graph.I32, 36, 1), NewTensor(graph.I32, 36, 1)
		for r := range targets.I32 {
			targets.I32[r] = -1
		}
		copy(targets.I32, []int32{-1, 3, 0, -1, 2, -1, 4, -1, -1, 1, 1, 1, -1, 2, 2, -1, 2, 2, -1, 1, -1, -1, 1, -1}) // the last sequence has no pair
		copy(starts.I32, []int32{
			0, 0, 0, 3, 3, 3, 6, 6, 8, 8, 8, 8,
			0, 0, 0, 3, 3, 3, 6, 6, 6, 6, 6, 6, // the last document is alone
			0, 0, 2, 2, 4, 5, 6, 7, 8, 9, 10, 11,
		})
		col := func() Tensor { return f64(r, 36, 1) }
		loss, ratios, weights, nll, ref, one := col(), col(), col(), col(), col(), col()
		for i := range one.F64 {
			one.F64[i] = 1
		}
		run(graph.Preference, a, loss, ratios, weights, nll, ref, targets, starts)
		for k, pair := range [][2]int{{0, 3}, {6, 8}, {12, 15}} { // by the formula
			var sums [2]float64
			for side, first := range pair {
				for r := first; r/12 == first/12 && starts.I32[r] == int32(first%12); r++ {
					if targets.I32[r] >= 0 {
						sums[side] -= nll.F64[r]
					}
				}
				sums[side] -= ref.F64[first]
			}
			want := -math.Log(1 / (1 + math.Exp(-0.7*(sums[0]-sums[1]))))
			if got := loss.F64[pair[0]]; math.Abs(got-want) > 1e-12 || ratios.F64[pair[0]] != sums[0] || ratios.F64[pair[1]] != sums[1] {
				t.Errorf("pair %d: loss %v, want %v; ratios %v and %v, want %v", k, got, want, ratios.F64[pair[0]], ratios.F64[pair[1]], sums)
			}
		}
		if n := len(slices.DeleteFunc(slices.Clone(loss.F64), func(x float64) bool { return x == 0 })); n != 3 {
			t.Errorf("%d losses of 3 pairs", n)
		}
		want, zero := weights, col()
		weights = zero
		difference(t, "nll", nll, want, loss, one, func() { run(graph.Preference, a, loss, ratios, weights, nll, ref, targets, starts) })
	})
}

// TestRouteNotFinite: for logits that are not finite, K different experts are chosen, in
// ascending order, and every weight is NaN.
func TestRouteNotFinite(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	e := NewEnv(1)
	defer e.Close()
	for _, logits := range [][]float64{{1, nan, 3, 2}, {nan, 1, 2, 3}, {3, 2, 1, nan}, {nan, nan, nan, nan}, {nan, inf, nan, 1}, {1, inf, 3, 2}, {-inf, -inf, -inf, -inf}} {
		for _, normed := range []bool{false, true} {
			for i, route := range []Func{routeRef, Lookup(graph.Route).Fast} {
				weights, ids, x := NewTensor(graph.F32, 1, 2), NewTensor(graph.I32, 1, 2), NewTensor(graph.F32, 1, 4)
				for c, v := range logits {
					x.Set(0, c, v)
				}
				route(e, &graph.Attr{Normed: normed}, []Tensor{weights, ids, x, {}})
				if a, b := ids.I32[0], ids.I32[1]; a < 0 || a >= b || b >= 4 {
					t.Errorf("%v, implementation %d: experts %v", logits, i, ids.I32)
				}
				if w := weights.F32; w[0] == w[0] || w[1] == w[1] {
					t.Errorf("%v, normed %v, implementation %d: weights %v, want NaN", logits, normed, i, w)
				}
			}
		}
	}
}

// TestCrossEntropyExtremes tests extreme logits with known losses.
func TestCrossEntropyExtremes(t *testing.T) {
	inf := math.Inf(1)
	e := NewEnv(1)
	defer e.Close()
	scalars := NewTensor(graph.F32, 1, graph.NumScalars)
	scalars.F32[graph.ScalarLossScale] = 1
	for _, c := range []struct {
		logits []float64
		target int32
		loss   float64
		grad   []float64
	}{
		{[]float64{1e4, 0, -1e4}, 0, 0, []float64{0, 0, 0}},
		{[]float64{1e4, 0, -1e4}, 1, 1e4, []float64{1, -1, 0}},
		{[]float64{3e38, 3e38}, 1, math.Ln2, []float64{0.5, -0.5}},
		{[]float64{-3e38, -3e38, -inf, -3e38, -3e38}, 0, math.Log(4), []float64{-0.75, 0.25, 0, 0.25, 0.25}},
		{[]float64{0, -inf}, 1, inf, []float64{1, -1}},
		{[]float64{7}, 0, 0, []float64{0}},
		{[]float64{math.NaN(), 0}, -1, 0, []float64{0, 0}},
		{[]float64{math.NaN(), 0, 0}, 1, math.NaN(), nil},
		{[]float64{-inf, -inf}, 1, math.NaN(), nil},
	} {
		x, loss, targets := NewTensor(graph.F32, 1, len(c.logits)), NewTensor(graph.F32, 1, 1), NewTensor(graph.I32, 1, 1)
		for i, v := range c.logits {
			x.Set(0, i, v)
		}
		targets.I32[0] = c.target
		only := []Tensor{loss, x, targets, scalars}
		Lookup(graph.CrossEntropy).Fast(e, &graph.Attr{}, only)
		without := loss.F32[0]
		Lookup(graph.CrossEntropy).Fast(e, &graph.Attr{Grad: true}, only)
		if got := float64(loss.F32[0]); !(math.Abs(got-c.loss) <= 1e-6*c.loss || got == c.loss || got != got && c.loss != c.loss) {
			t.Errorf("%v, target %d: loss %v, want %v", c.logits, c.target, got, c.loss)
		}
		if !(without == loss.F32[0] || without != without && c.loss != c.loss) {
			t.Errorf("%v: loss %v without the gradient, %v with", c.logits, without, loss.F32[0])
		}
		for i, g := range c.grad {
			if math.Abs(x.At(0, i)-g) > 1e-6 {
				t.Errorf("%v, target %d: gradient %v, want %v", c.logits, c.target, x.F32, c.grad)
				break
			}
		}
	}
}

// TestAdamWFirstSteps: with a constant gradient both corrected moments are
// exact, g and g^2, so that each step is lr*(sign(g)*|g|/(|g|+eps)) after the
// decay, whatever the betas.
func TestAdamWFirstSteps(t *testing.T) {
	e := NewEnv(1)
	defer e.Close()
	for name, f := range map[string]Func{"reference": Lookup(graph.AdamW).Reference, "fast": Lookup(graph.AdamW).Fast} {
		a := &graph.Attr{Beta1: 0.9, Beta2: 0.99, Eps: 1e-3, Decay: 0.1}
		const lr, clip = 0.01, 0.5
		p, m, v, g := NewTensor(graph.F32, 1, 4), NewTensor(graph.F32, 1, 4), NewTensor(graph.F32, 1, 4), NewTensor(graph.F32, 1, 4)
		copy(p.F32, []float32{1, -2, 0.5, 3})
		copy(g.F32, []float32{2, -0.4, 1e-3, 0})
		want := []float64{1, -2, 0.5, 3}
		factor, scalars := NewTensor(graph.F32, 1, 2), NewTensor(graph.F32, 1, graph.NumScalars)
		factor.F32[0] = clip
		for step := 1.0; step <= 20; step++ {
			scalars.F32[graph.ScalarLR] = lr
			scalars.F32[graph.ScalarCorrection1] = float32(1 - math.Pow(a.Beta1, step))
			scalars.F32[graph.ScalarCorrection2] = float32(1 - math.Pow(a.Beta2, step))
			f(e, a, []Tensor{p, m, v, g, factor, scalars, {}, {}})
			for i := range want {
				d := float64(g.F32[i]) * clip
				want[i] = want[i]*(1-lr*a.Decay) - lr*d/(math.Abs(d)+a.Eps)
				if math.Abs(want[i]-float64(p.F32[i])) > 2e-6 {
					t.Fatalf("%s, step %v: p[%d] = %v, want %v", name, step, i, p.F32[i], want[i])
				}
			}
		}
	}
}

// setApart moves the elements of each row apart, so that no small step changes their order.
func setApart(x Tensor) {
	for r := range x.Rows {
		row := x.F64[r*x.Stride:][:x.Cols]
		order := make([]int, len(row))
		for i := range order {
			order[i] = i
		}
		slices.SortFunc(order, func(i, j int) int { return cmp.Compare(row[i], row[j]) })
		for k, i := range order {
			row[i] += 0.01 * float64(k)
		}
	}
}
