package kernel

import (
	"math"

	"github.com/athanor-llm/athanor/graph"
)

// The gated delta rule as it is defined: one token after the other, in float64.

// deltaToken is a token of a head: queries and keys of length 1, queries divided by the root of their length.
type deltaToken struct {
	q, key, v            []float64
	byQ, by, keep, takes float64 // by what the vectors were multiplied; exp(g); beta
}

func (s *deltaShape) tokenRef(qkv, gates *Tensor, r, h int) (x deltaToken) {
	g := h / s.group
	row := func(lo, n int) (v []float64) {
		for c := range n {
			v = append(v, qkv.At(r, lo+c))
		}
		return v
	}
	unit := func(v []float64, scale float64) float64 {
		var sum float64
		for _, x := range v {
			sum += x * x
		}
		by := scale / math.Sqrt(sum+lengthEps)
		for i := range v {
			v[i] *= by
		}
		return by
	}
	x.q, x.key, x.v = row(s.query(g), s.k), row(s.key(g), s.k), row(s.value(h), s.v)
	x.byQ, x.by = unit(x.q, 1/math.Sqrt(float64(s.k))), unit(x.key, 1)
	x.keep, x.takes = math.Exp(gates.At(r, h)), gates.At(r, s.heads+h)
	return x
}

// advanceRef returns the next state, and by how much the value differs from what the state, decayed, has for the key.
func (s *deltaShape) advanceRef(state []float64, x *deltaToken) (next, missing []float64) {
	next, missing = make([]float64, len(state)), make([]float64, s.v)
	for c := range s.v {
		missing[c] = x.v[c]
		for i := range s.k {
			missing[c] -= x.keep * state[i*s.v+c] * x.key[i]
		}
		for i := range s.k {
			next[i*s.v+c] = x.keep*state[i*s.v+c] + x.key[i]*x.takes*missing[c]
		}
	}
	return next, missing
}

func deltaRuleRef(_ *Env, a *graph.Attr, t []Tensor) {
	o, states, qkv, gates := &t[graph.DeltaRuleO], &t[graph.DeltaRuleStates], &t[graph.DeltaRuleQKV], &t[graph.DeltaRuleGates]
	s := deltaShapeOf(a, o)
	starts := optional(t, graph.DeltaRuleStarts)
	for h := range s.heads {
		state := make([]float64, s.k*s.v)
		for r := range o.Rows {
			at := r%a.Seq - documentOf(starts, r)
			if at == 0 {
				clear(state)
			}
			x := s.tokenRef(qkv, gates, r, h)
			state, _ = s.advanceRef(state, &x)
			for c := range s.v {
				var sum float64
				for i := range s.k {
					sum += x.q[i] * state[i*s.v+c]
				}
				o.Set(r, h*s.v+c, sum)
			}
			for c := range s.cols {
				states.Set(r, h*s.cols+c, 0)
			}
			if (at+1)%s.kept == 0 {
				for i, v := range state {
					states.Set(r-s.kept+1+i/s.cols, h*s.cols+i%s.cols, v)
				}
			}
		}
	}
}

// deltaRuleBwdRef does not read the states that were kept.
func deltaRuleBwdRef(_ *Env, a *graph.Attr, t []Tensor) {
	dqkv, dgates, do := &t[graph.DeltaRuleBwdDQKV], &t[graph.DeltaRuleBwdDGates], &t[graph.DeltaRuleBwdDO]
	qkv, gates := &t[graph.DeltaRuleBwdQKV], &t[graph.DeltaRuleBwdGates]
	s := deltaShapeOf(a, do)
	starts := optional(t, graph.DeltaRuleBwdStarts)
	sums := make([]float64, dqkv.Rows*dqkv.Cols)
	for h := range s.heads {
		before := make([][]float64, do.Rows+1)
		state := make([]float64, s.k*s.v)
		for r := range do.Rows {
			if r%a.Seq == documentOf(starts, r) {
				state = make([]float64, s.k*s.v)
			}
			x := s.tokenRef(qkv, gates, r, h)
			before[r] = state
			state, _ = s.advanceRef(state, &x)
		}
		d := make([]float64, s.k*s.v) // of the state after the token
		for r := do.Rows - 1; r >= 0; r-- {
			x := s.tokenRef(qkv, gates, r, h)
			dg, dbeta := s.tokenBwdRef(before[r], d, &x, func(c int) float64 { return do.At(r, h*s.v+c) }, sums[r*dqkv.Cols:][:dqkv.Cols], h)
			dgates.Set(r, h, dg)
			dgates.Set(r, s.heads+h, dbeta)
			if r%a.Seq == documentOf(starts, r) {
				clear(d)
			}
		}
	}
	dqkv.storeAll(sums, false)
}

// tokenBwdRef turns d, the gradient of the state after a token, into that of the state before it, and adds to the gradient of the
// token's queries, keys and values.
func (s *deltaShape) tokenBwdRef(state, d []float64, x *deltaToken, do func(c int) float64, sums []float64, h int) (dg, dbeta float64) {
	next, missing := s.advanceRef(state, x)
	dq, dkey := make([]float64, s.k), make([]float64, s.k)
	for c := range s.v {
		for i := range s.k {
			dq[i] += next[i*s.v+c] * do(c)
			d[i*s.v+c] += x.q[i] * do(c)
		}
		var into float64 // of takes*missing
		for i := range s.k {
			into += d[i*s.v+c] * x.key[i]
			dkey[i] += d[i*s.v+c] * x.takes * missing[c]
		}
		dbeta += into * missing[c]
		dv := into * x.takes
		sums[s.value(h)+c] += dv
		for i := range s.k {
			dkey[i] -= dv * x.keep * state[i*s.v+c]
			d[i*s.v+c] -= dv * x.key[i]
			dg += d[i*s.v+c] * x.keep * state[i*s.v+c]
			d[i*s.v+c] *= x.keep
		}
	}
	length := func(at int, d, unit []float64, by, scale float64) {
		var along float64
		for i := range d {
			along += d[i] * unit[i] / (scale * scale)
		}
		for i := range d {
			sums[at+i] += by * (d[i] - along*unit[i])
		}
	}
	length(s.query(h/s.group), dq, x.q, x.byQ, 1/math.Sqrt(float64(s.k)))
	length(s.key(h/s.group), dkey, x.key, x.by, 1)
	return dg, dbeta
}
