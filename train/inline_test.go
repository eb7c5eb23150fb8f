package train

import (
	"testing"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/job"
	"github.com/athanor-llm/athanor/model/family"
)

// TestInline: from a few sizes a model of each family can be made, whose config.json says what it is.
func TestInline(t *testing.T) {
	for _, name := range family.Names() {
		for _, in := range []config.Model{
			{Type: name, Layers: 2, Width: 96, Heads: 3},
			{Type: name, Layers: 3, Width: 64, Heads: 2, HeadDim: 24, Window: 8},
			{Type: name, Layers: 2, Width: 64, Heads: 1, Experts: 4, Active: 2},
		} {
			c := config.Default()
			c.Model, c.SequenceLength = in, 16
			spec, err := job.Settle(config.ToRead, &c, func(string) {})
			if err != nil {
				t.Fatal(err)
			}
			m, err := inline(spec, 300)
			if err != nil {
				if in.Experts == 0 && in.HeadDim == 0 {
					t.Errorf("%s: %v", name, err)
				}
				continue
			}
			if _, err := graph.Build(m, 16, graph.F32); err != nil {
				t.Errorf("%+v: %v", in, err)
			}
			back, _, err := family.Parse(family.Config(m))
			if err != nil {
				t.Errorf("%+v: %v", in, err)
			} else if back.ParamCount() != m.ParamCount() {
				t.Errorf("%+v: %d parameters are read back as %d", in, m.ParamCount(), back.ParamCount())
			}
		}
	}
}
