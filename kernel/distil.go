package kernel

import (
	"math"

	"github.com/athanor-llm/athanor/graph"
)

// Distil: cross-entropy and the divergence from a teacher of which some tokens are known, see graph/distil.go. What is not among them is
// added up without them, since 1 - their sum would be mostly rounding where the model is sure: their logits are -Inf meanwhile. With a
// temperature of 1 both terms have the same exponentials.

// taught is a row's divergence: sums and factors that loss and gradient have in common.
type taught struct {
	weight, temperature float64
	ids                 []int32
	logs, logits        []float32 // of the known tokens
	all                 bool      // they are the vocabulary
	max, sum, cold      float64   // of the logits, and of their exponentials at temperature 1 and at the teacher's
	excess              float64   // 1 - p'/q'
}

// divergence returns the divergence of a row whose other tokens' exponentials at the teacher's temperature add up to rest.
func (s *taught) divergence(rest float64) (d float64) {
	if len(s.ids) == 0 {
		return 0
	}
	known := 0.0
	for k, x := range s.logits {
		log := float64(s.logs[k])
		if p := math.Exp(log); p > 0 {
			known += p
			d += p * (log - (float64(x)-s.max)/s.temperature + math.Log(s.cold))
		}
	}
	s.excess = 1
	if others := 1 - known; others > 0 && !s.all {
		q := math.Max(rest/s.cold, graph.LeastRest)
		s.excess -= others / q
		d += others * math.Log(others/q)
	}
	return d
}

// slope returns the derivative of the loss with respect to the logit of known token k, for a loss scale of 1. learnt says that it is the
// target.
func (s *taught) slope(k int, learnt bool) float64 {
	x := float64(s.logits[k]) - s.max
	g := (1 - s.weight) * math.Exp(x) / s.sum
	if learnt {
		g -= 1 - s.weight
	}
	return g + s.weight*s.temperature*(math.Exp(x/s.temperature)/s.cold-math.Exp(float64(s.logs[k])))
}

// teach returns what the teacher says of row r; nothing, with the weight 0, if its first id is negative.
func teach(a *graph.Attr, t []Tensor, r int, logits []float32) taught {
	ids, logs := &t[graph.DistilIds], &t[graph.DistilLogs]
	s := taught{weight: a.Rate, temperature: a.Scale, all: ids.Cols == t[graph.DistilLogits].Cols}
	if s.ids = ids.I32[r*ids.Stride:][:ids.Cols]; s.ids[0] < 0 {
		return taught{temperature: 1}
	}
	s.logs, s.logits = logs.row(r, 0, logs.Cols), logits[:len(s.ids)]
	return s
}

func distilRef(_ *Env, a *graph.Attr, t []Tensor) {
	loss, x, targets := &t[graph.DistilLoss], &t[graph.DistilLogits], &t[graph.DistilTargets]
	ids, logs := &t[graph.DistilIds], &t[graph.DistilLogs]
	for r := range x.Rows {
		w, target := a.Rate, int(targets.I32[r*targets.Stride])
		p, known := make([]float64, x.Cols), 0.0 // the teacher's probabilities; 0: they are not known
		said := make([]bool, x.Cols)
		if ids.I32[r*ids.Stride] < 0 {
			w = 0
		}
		for k := 0; k < ids.Cols && w > 0; k++ {
			id := ids.I32[r*ids.Stride+k]
			p[id], said[id] = math.Exp(logs.At(r, k)), true
			known += p[id]
		}
		m, sum, cold, rest := math.Inf(-1), 0.0, 0.0, 0.0
		for c := range x.Cols {
			m = max(m, x.At(r, c))
		}
		for c := range x.Cols {
			sum += math.Exp(x.At(r, c) - m)
			e := math.Exp((x.At(r, c) - m) / a.Scale)
			if cold += e; !said[c] {
				rest += e
			}
		}
		out, others := 0.0, 0.0
		if target >= 0 {
			out = (1 - w) * (math.Log(sum) + m - x.At(r, target))
			for c := range x.Cols {
				if p[c] > 0 {
					out += w * a.Scale * a.Scale * p[c] * (math.Log(p[c]*cold) - (x.At(r, c)-m)/a.Scale)
				}
			}
			if others = max(0, 1-known); w > 0 && others > 0 && ids.Cols < x.Cols {
				others /= max(rest/cold, graph.LeastRest)
				out += w * a.Scale * a.Scale * (1 - known) * math.Log(others)
			}
		}
		loss.Set(r, 0, out)
		if !a.Grad {
			continue
		}
		scale := t[graph.DistilScalars].At(0, graph.ScalarLossScale)
		for c := range x.Cols {
			v := x.At(r, c)
			g := (1 - w) * math.Exp(v-m) / sum
			if c == target {
				g -= 1 - w
			}
			if q := math.Exp((v-m)/a.Scale) / cold; said[c] {
				g += w * a.Scale * (q - p[c])
			} else {
				g += w * a.Scale * q * (1 - others)
			}
			if target < 0 {
				g = 0
			}
			x.Set(r, c, g*scale*slopeOf(a, v))
		}
	}
}

func distil(e *Env, a *graph.Attr, t []Tensor) {
	c := e.begin(a, t)
	c.f[0] = t[graph.DistilScalars].F32[graph.ScalarLossScale]
	logits := &t[graph.DistilLogits]
	c.blocks(logits.Rows, logits.Cols, max(8, grain/max(logits.Cols, 1)), logits.Cols, func(c *call, w *worker, b block) {
		for r := b.R0; r < b.R1; r++ {
			distilRow(c, w, r)
		}
	})
}

// distilRow computes row r.
func distilRow(c *call, w *worker, r int) {
	logits, n, target := &c.t[graph.DistilLogits], c.cols, int(c.t[graph.DistilTargets].I32[r*c.t[graph.DistilTargets].Stride])
	out := c.t[graph.DistilLoss].row(r, 0, 1)
	if target < 0 {
		if out[0] = 0; c.a.Grad {
			x := w.dest(0, logits, r, 0, n)
			clear(x)
			w.store(x, logits, r, 0, n)
		}
		return
	}
	x := w.tmp(1, n)
	copy(x, w.load(0, logits, r, 0, n))
	at, m := float64(x[target]), w.v.Max(x)
	kept := w.keepCapped(c.a, x)
	s := teach(c.a, c.t[:], r, w.tmp(2, c.t[graph.DistilIds].Cols))
	for k, id := range s.ids {
		s.logits[k], x[id] = x[id], float32(math.Inf(-1))
	}
	cold, inverse := w.tmp(3, n), float32(1/s.temperature)
	rest := float64(w.v.Exp(cold, x, x, inverse, m*inverse))
	warm, others := cold, rest
	if s.temperature != 1 {
		warm = x
		others = float64(w.v.Exp(warm, x, x, 1, m))
	}
	s.max, s.sum, s.cold = float64(m), others, rest
	for _, y := range s.logits {
		s.sum += math.Exp(float64(y) - s.max)
		s.cold += math.Exp((float64(y) - s.max) / s.temperature)
	}
	d := s.divergence(rest)
	out[0] = float32((1-s.weight)*(math.Log(s.sum)+(s.max-at)) + s.weight*s.temperature*s.temperature*d)
	if !c.a.Grad {
		return
	}
	one := float64(c.f[0])
	of, by := float32(one*(1-s.weight)/s.sum), float32(one*s.weight*s.temperature*s.excess/s.cold)
	for i, y := range cold {
		x[i] = float32(warm[i]*of) + float32(y*by)
	}
	x[target] -= float32(one * (1 - s.weight))
	for k, id := range s.ids {
		x[id] = float32(one * s.slope(k, int(id) == target))
	}
	if c.a.Limit > 0 {
		w.throughCap(c.a, x, kept, 1/c.a.Limit, 1)
	}
	if logits.DType == graph.F32 {
		copy(logits.row(r, 0, n), x)
		return
	}
	w.store(x, logits, r, 0, n)
}
