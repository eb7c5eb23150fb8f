package lower

import (
	"fmt"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/samples"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
)

// TestUpdatesAtOnce: without clipping, and with a chunk for each parameter, gradients of matrices are in memory at the
// same time only if one operator makes them, and are used up before the next one is made.
func TestUpdatesAtOnce(t *testing.T) {
	r := testkit.Rand(t)
	for range testkit.Count(4, 20, 200) {
		m := samples.RandomModel(r, 2)
		m.Tied, m.Frozen = false, nil // the gradient of a tied embedding begins with the head's
		g, err := graph.Build(m, 8, graph.F32)
		if err != nil {
			t.Fatal(err)
		}
		pl := plan.Plain(g, 2)
		pl.Chunks = plan.Layout(g, 1)
		p, err := Lower(t.Context(), g, pl, Options{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Capacity: program.NoLimits})
		if err != nil {
			t.Fatal(err)
		}
		vectors := map[string]bool{} // which are small, and stored together though several operators make them
		for c, ch := range pl.Chunks {
			vectors[fmt.Sprintf("grad.c%d", c)] = g.Params[ch.First].Vector
		}
		live := p.Lifetimes()
		for i := range p.Instrs {
			var now []int
			for b := range p.Buffers {
				if buf := &p.Buffers[b]; buf.Class == program.ClassGrads && buf.Tier == device.DeviceTier && !vectors[buf.Name] && live[b][0] <= i && i < live[b][1] {
					now = append(now, b)
				}
			}
			for k := 1; k < len(now); k++ {
				if live[now[k]][0] != live[now[0]][0] {
					t.Errorf("%s: instruction %d: gradients %s and %s are there at once", m.Family, i, p.Buffers[now[0]].Name, p.Buffers[now[k]].Name)
				}
			}
		}
	}
}
