package planner

import (
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/job"
	"github.com/athanor-llm/athanor/machine"
)

// TestFP8Cards: products in FP8 are planned for cards that have them, and refused by name for others.
func TestFP8Cards(t *testing.T) {
	for card, has := range map[string]bool{"a100-80": false, "l4": true} {
		c := config.Default()
		c.GlobalBatch, c.SequenceLength, c.Hardware.Name, c.Precision = 4, 16, card, config.FP8
		spec, err := job.Settle(config.ToPlan, &c, func(string) {})
		check(t, err)
		m, err := machine.Describe(spec.Machine(), func(string) {})
		check(t, err)
		g, err := BuildGraph(spec, tiny(t), nil)
		check(t, err)
		r, err := (&Task{Machine: m, Graph: g, Spec: spec}).Plan(t.Context(), func(string) {})
		switch {
		case !has && (err == nil || !strings.Contains(err.Error(), card+" has no products in fp8") || !strings.Contains(err.Error(), "hint: ")):
			t.Errorf("%s: %v", card, err)
		case has && (err != nil || r.Best == nil):
			t.Errorf("%s: %v", card, err)
		}
	}
}
