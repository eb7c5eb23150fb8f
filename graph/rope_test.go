package graph

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/athanor-llm/athanor/internal/torch"
	"github.com/athanor-llm/athanor/model/family"
)

// TestScaledTables: rotary tables match those of transformers, for each way of scaling
// positions.
func TestScaledTables(t *testing.T) {
	var cases []struct {
		Name   string
		Config json.RawMessage
		Length int
		Table  []float64
	}
	torch.JSON(t, "../testdata/torch/rope.json", &cases)
	if len(cases) < 15 {
		t.Fatalf("%d cases", len(cases))
	}
	for _, c := range cases {
		m, _, err := family.Parse(c.Config)
		if err != nil {
			t.Errorf("%s: %v", c.Name, err)
			continue
		}
		got := RopeTable(m, c.Length, false)
		if len(got) != len(c.Table) {
			t.Errorf("%s: %d numbers, want %d", c.Name, len(got), len(c.Table))
			continue
		}
		for i, want := range c.Table {
			if e := math.Abs(float64(got[i]) - want); !(e < 1e-5) {
				t.Errorf("%s: position %d, column %d: %v, want %v", c.Name, i/m.RotaryDim(false), i%m.RotaryDim(false), got[i], want)
				break
			}
		}
		m.RopeScaling = nil
		if plain := RopeTable(m, c.Length, false); torch.Distance(torch.Widened(plain), c.Table) < 0.1 {
			t.Errorf("%s: scaling changes nothing", c.Name)
		}
	}
}
