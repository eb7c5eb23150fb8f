package memo

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// drawn returns a random step in whole seconds; some layers copy, others don't.
func drawn(r *rapid.T) (loads []Load, slots int, turn float64) {
	n := rapid.IntRange(1, 9).Draw(r, "layers")
	slots = rapid.IntRange(1, n).Draw(r, "slots")
	whole := func(low, high int, name string) float64 { return float64(rapid.IntRange(low, high).Draw(r, name)) }
	for range n {
		l := Load{Forward: whole(1, 5, "forward"), Backward: whole(1, 9, "backward")}
		if rapid.IntRange(0, 3).Draw(r, "copies") > 0 {
			l.Out, l.In = whole(1, 7, "out"), whole(1, 7, "in")
		}
		loads = append(loads, l)
	}
	return loads, slots, whole(0, 3, "turn")
}

// ticks simulates a step second by second: every stream executes its list in order, and an operation starts in the
// first second in which its inputs are available. Slots are memory: they hold a layer or nothing.
func ticks(loads []Load, slots int, turn float64) float64 {
	const nothing = -1
	n := len(loads)
	holds := make([]int, slots)
	for k := range holds {
		holds[k] = nothing
	}
	onHost, returned, done := make([]bool, n), make([]bool, n), make([]bool, n)
	type operation struct {
		layer, left int
		start       func() bool
		finish      func()
	}
	var compute, out, in []operation
	for i, l := range loads {
		k := i % slots
		compute = append(compute, operation{i, int(l.Forward), func() bool { return holds[k] == nothing }, func() {
			holds[k] = i
			if i < n-slots && l.Out == 0 {
				holds[k] = nothing // dropped, or kept outside the slot
			}
		}})
		if l.Out > 0 {
			out = append(out, operation{i, int(l.Out), func() bool { return holds[k] == i }, func() {
				holds[k] = nothing
				onHost[i] = true
			}})
		}
	}
	compute = append(compute, operation{n, int(turn), func() bool { return true }, func() {}})
	for i := n - 1; i >= 0; i-- {
		k, l := i%slots, loads[i]
		if l.In > 0 {
			free := func() bool { return holds[k] == nothing && (i+slots >= n || done[i+slots]) } // not before a later layer used it
			in = append(in, operation{i, int(l.In), func() bool { return onHost[i] && free() }, func() { holds[k], returned[i] = i, true }})
		}
		again := i < n-slots && l.In == 0 // recomputed in the slot
		ready := func() bool { return holds[k] == i && (l.In == 0 || returned[i]) || again && holds[k] == nothing }
		compute = append(compute, operation{i, int(l.Backward), ready, func() {
			holds[k], done[i] = nothing, true
		}})
	}
	streams := [][]operation{compute, out, in}
	running := make([]bool, len(streams))
	for now := 0.0; now < 1e4; now++ {
		for again := true; again; {
			again = false
			for s := range streams {
				for len(streams[s]) > 0 {
					o := &streams[s][0]
					if !running[s] {
						if !o.start() {
							break
						}
						running[s] = true
					}
					if o.left > 0 {
						break
					}
					o.finish()
					streams[s], running[s], again = streams[s][1:], false, true
				}
			}
		}
		if len(streams[0]) == 0 {
			return now
		}
		for s := range streams {
			if running[s] {
				streams[s][0].left--
			}
		}
	}
	return math.Inf(1)
}

func TestTimeline(t *testing.T) {
	testkit.Check(t, func(r *rapid.T) {
		loads, slots, turn := drawn(r)
		got := Run(loads, slots, turn)
		if want := ticks(loads, slots, turn); got.End != want {
			r.Errorf("%d slots: %g seconds, played %g", slots, got.End, want)
		}
		busy := turn
		for _, l := range loads {
			busy += l.Forward + l.Backward
		}
		if got.Stall != got.End-busy || got.Stall < 0 {
			r.Errorf("stall %g of %g, busy %g", got.Stall, got.End, busy)
		}
	})
}

// TestClosedForm: two slots, equal layers: max(compute, copy) per layer between the ends.
func TestClosedForm(t *testing.T) {
	for _, x := range []struct{ n, f, b, copy float64 }{{32, 1, 2, .5}, {32, 1, 2, 1}, {32, 1, 2, 1.5}, {32, 1, 2, 3}, {2, 1, 2, 9}, {7, 3, 4, 5}} {
		loads := make([]Load, int(x.n))
		for i := range loads {
			loads[i] = Load{Forward: x.f, Backward: x.b}
			if i < len(loads)-2 {
				loads[i].Out, loads[i].In = x.copy, x.copy
			}
		}
		r := Run(loads, 2, 0)
		forward := 2*x.f + (x.n-2)*max(x.f, x.copy)
		near(t, "forward", r.Forward[len(loads)-1].End, forward, 1e-12)
		back := 2*x.b + (x.n-2)*x.b
		if x.n > 2 && x.copy > x.b {
			back = 2*x.b + (x.n-2)*x.copy
		}
		near(t, "step", r.End, forward+back, 1e-12)
	}
}
