package kernel

import "github.com/athanor-llm/athanor/graph"

// Gate: y = act(gate)*up, as in SwiGLU, of two operands. GateBwd: dgate = dy*up*act'(gate), dup = dy*act(gate).

func gateRef(_ *Env, a *graph.Attr, t []Tensor) {
	y, gate, up := &t[graph.GateY], &t[graph.GateGates], &t[graph.GateUp]
	for r := range y.Rows {
		for c := range y.Cols {
			s, _ := a.Act.At(gate.At(r, c))
			y.Set(r, c, s*up.At(r, c))
		}
	}
}

func gateBwdRef(_ *Env, a *graph.Attr, t []Tensor) {
	dgate, dup, dy := &t[graph.GateBwdDGates], &t[graph.GateBwdDUp], &t[graph.GateBwdDY]
	gate, up := &t[graph.GateBwdGates], &t[graph.GateBwdUp]
	for r := range dy.Rows {
		for c := range dy.Cols {
			s, ds := a.Act.At(gate.At(r, c))
			d := dy.At(r, c)
			dgate.Set(r, c, d*up.At(r, c)*ds)
			dup.Set(r, c, d*s)
		}
	}
}

func gate(e *Env, a *graph.Attr, t []Tensor) {
	y := &t[graph.GateY]
	e.begin(a, t).bypassCaches().inBuffers(3).byRows(y.Rows, y.Cols, func(c *call, w *worker, b block) {
		y, gate, up := &c.t[graph.GateY], &c.t[graph.GateGates], &c.t[graph.GateUp]
		for r := b.R0; r < b.R1; r++ {
			out := w.dest(0, y, r, b.C0, b.C1)
			w.storesFor(y).GLU[c.a.Act](out, w.load(1, gate, r, b.C0, b.C1), w.load(2, up, r, b.C0, b.C1))
			w.store(out, y, r, b.C0, b.C1)
		}
	})
}

func gateBwd(e *Env, a *graph.Attr, t []Tensor) {
	dy := &t[graph.GateBwdDY]
	e.begin(a, t).inBuffers(5).byRows(dy.Rows, dy.Cols, func(c *call, w *worker, b block) {
		dgate, dup, dy := &c.t[graph.GateBwdDGates], &c.t[graph.GateBwdDUp], &c.t[graph.GateBwdDY]
		gate, up := &c.t[graph.GateBwdGates], &c.t[graph.GateBwdUp]
		for r := b.R0; r < b.R1; r++ {
			lo, hi := b.C0, b.C1
			into, also := w.dest(0, dgate, r, lo, hi), w.dest(1, dup, r, lo, hi)
			w.v.GLUBwd[c.a.Act](into, also, w.load(2, dy, r, lo, hi), w.load(3, gate, r, lo, hi), w.load(4, up, r, lo, hi))
			w.store(into, dgate, r, lo, hi)
			w.store(also, dup, r, lo, hi)
		}
	})
}
