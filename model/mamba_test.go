package model_test

import (
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/model"
)

// TestMambaResize: of another width, a model's scans are as many times as wide as it is, their heads no wider than they were, and
// divided evenly among their groups.
func TestMambaResize(t *testing.T) {
	r := testkit.Rand(t)
	for range 500 {
		d := model.Mamba{Groups: 1 + r.IntN(8), HeadDim: 1 + r.IntN(100), Layers: []bool{true}}
		d.Heads = d.Groups * (1 + r.IntN(8))
		from := 1 + r.IntN(d.Values())
		to := d.Groups * (1 + r.IntN(100))
		if got := d.Resize(from, to); got.Values() != max(1, d.Values()/from)*to || got.HeadDim > d.HeadDim || got.Heads%got.Groups != 0 {
			t.Fatalf("%+v, from %d to %d, is %+v", d, from, to, got)
		}
	}
	if none := (model.Mamba{}).Resize(8, 16); none.Some() {
		t.Error("scans where there were none")
	}
}
