package kernel

import (
	"math"

	"github.com/athanor-llm/athanor/graph"
)

// TimeSteps: how much time passes at a token, and how much states keep meanwhile, see graph.TimeSteps. There are two numbers of each head
// and token, so scalar arithmetic is enough; Fast does it in float64 like Reference.

// timeStep returns the step within the bounds, and its derivative.
func timeStep(a *graph.Attr, x float64) (dt, slope float64) {
	dt, slope = softplus(x)
	switch {
	case dt < a.Least:
		return a.Least, 0
	case a.Limit > 0 && dt > a.Limit:
		return a.Limit, 0
	}
	return dt, slope
}

func timeStepsRef(_ *Env, a *graph.Attr, t []Tensor) {
	timeStepsRows(a, t, 0, t[graph.TimeStepsGates].Rows)
}

func timeStepsRows(a *graph.Attr, t []Tensor, r0, r1 int) {
	gates, x, rate, bias := &t[graph.TimeStepsGates], &t[graph.TimeStepsX], &t[graph.TimeStepsRate], &t[graph.TimeStepsBias]
	n := rate.Cols
	for h := range n {
		keep, shift := -math.Exp(rate.At(0, h)), bias.At(0, h)
		for r := r0; r < r1; r++ {
			dt, _ := timeStep(a, x.At(r, h)+shift)
			gates.Set(r, h, keep*dt)
			gates.Set(r, n+h, dt)
		}
	}
}

func timeStepsBwdRef(_ *Env, a *graph.Attr, t []Tensor) {
	timeStepsBwdRows(a, t, 0, t[graph.TimeStepsBwdDX].Rows)
}

func timeStepsBwdRows(a *graph.Attr, t []Tensor, r0, r1 int) {
	dx, dgates, x := &t[graph.TimeStepsBwdDX], &t[graph.TimeStepsBwdDGates], &t[graph.TimeStepsBwdX]
	rate, bias := &t[graph.TimeStepsBwdRate], &t[graph.TimeStepsBwdBias]
	n := rate.Cols
	for h := range n {
		keep, shift := -math.Exp(rate.At(0, h)), bias.At(0, h)
		for r := r0; r < r1; r++ {
			_, slope := timeStep(a, x.At(r, h)+shift)
			dx.Set(r, h, (dgates.At(r, h)*keep+dgates.At(r, n+h))*slope)
		}
	}
}

func timeSteps(e *Env, a *graph.Attr, t []Tensor) {
	e.begin(a, t).blocks(t[graph.TimeStepsGates].Rows, 1, 64, 1, func(c *call, _ *worker, b block) { timeStepsRows(c.a, c.t[:], b.R0, b.R1) })
}

func timeStepsBwd(e *Env, a *graph.Attr, t []Tensor) {
	e.begin(a, t).blocks(t[graph.TimeStepsBwdDX].Rows, 1, 64, 1, func(c *call, _ *worker, b block) { timeStepsBwdRows(c.a, c.t[:], b.R0, b.R1) })
}
