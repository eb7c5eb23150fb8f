package kernel

import (
	"encoding/json"
	"math"
	"os"
	"testing"

	"github.com/athanor-llm/athanor/graph"
)

// TestPairLosses: of each loss of pairs, the value and the derivatives with respect to the tokens' losses are those of TRL's
// functions (tools/pair_fixtures.py), whatever else is in the sequence.
func TestPairLosses(t *testing.T) {
	var cases []struct {
		Loss                        string
		Beta, Margin, Value         float64
		Chosen, Rejected, Reference []float64
		ByChosen                    []float64 `json:"by_chosen"`
		ByRejected                  []float64 `json:"by_rejected"`
	}
	text, err := os.ReadFile("testdata/pairs.json")
	if err == nil {
		err = json.Unmarshal(text, &cases)
	}
	if err != nil || len(cases) != 3*int(graph.NumPairLosses) {
		t.Fatalf("%d cases, %v", len(cases), err)
	}
	for _, c := range cases {
		loss, err := graph.PairLossNamed(c.Loss)
		if err != nil {
			t.Fatal(err)
		}
		const given = 2 // tokens of a prompt before each answer
		chosen, rejected := given+len(c.Chosen), given+len(c.Rejected)
		n := chosen + rejected + 3
		of := func(d graph.DType) Tensor { return NewTensor(d, n, 1) }
		x := []Tensor{of(graph.F32), of(graph.F32), of(graph.F32), of(graph.F32), of(graph.F32), of(graph.I32), of(graph.I32)}
		for r := range n {
			x[graph.PreferenceTargets].I32[r] = -1
			x[graph.PreferenceNLL].F32[r] = 9 // not learnt, so it counts nothing
		}
		fill := func(first int, nll []float64, reference float64) {
			x[graph.PreferenceReference].F32[first] = float32(reference)
			for i, v := range nll {
				x[graph.PreferenceTargets].I32[first+given+i], x[graph.PreferenceNLL].F32[first+given+i] = 1, float32(v)
			}
			for r := first; r < n; r++ {
				x[graph.PreferenceStarts].I32[r] = int32(first)
			}
		}
		fill(0, c.Chosen, c.Reference[0])
		fill(chosen, c.Rejected, c.Reference[1])
		for r := chosen + rejected; r < n; r++ { // padding
			x[graph.PreferenceStarts].I32[r] = int32(chosen + rejected)
		}
		preference(nil, &graph.Attr{Seq: n, Scale: c.Beta, Margin: c.Margin, PairLoss: int(loss)}, x)
		near := func(what string, got float32, want float64) {
			t.Helper()
			if math.Abs(float64(got)-want) > 1e-5*math.Max(1, math.Abs(want)) {
				t.Errorf("%s of %d and %d tokens: %s is %v, TRL %v", c.Loss, len(c.Chosen), len(c.Rejected), what, got, want)
			}
		}
		near("the loss", x[graph.PreferenceLoss].F32[0], c.Value)
		for i, want := range c.ByChosen {
			near("a derivative of the chosen", x[graph.PreferenceWeights].F32[given+i], want)
		}
		for i, want := range c.ByRejected {
			near("a derivative of the rejected", x[graph.PreferenceWeights].F32[chosen+given+i], want)
		}
	}
}
