package kernel

import (
	"encoding/json"
	"fmt"
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
	if err != nil || len(cases) != 3*int(graph.KTO) {
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

// TestUnpairedLosses: of batches of desirable and undesirable documents, the mean loss and its derivatives with respect to the tokens'
// losses are those of TRL's KTOTrainer (tools/pair_fixtures.py), if what they are compared with has the kl of answers to other prompts.
func TestUnpairedLosses(t *testing.T) {
	var cases []struct {
		Loss                                string
		Beta, Desirable, Undesirable, Value float64
		Labels                              []int
		Reference, Mismatched               []float64
		NLL, By                             [][]float64
	}
	text, err := os.ReadFile("testdata/unpaired.json")
	if err == nil {
		err = json.Unmarshal(text, &cases)
	}
	if err != nil || len(cases) != 5 {
		t.Fatalf("%d cases, %v", len(cases), err)
	}
	for k, c := range cases {
		loss, err := graph.PairLossNamed(c.Loss)
		if err != nil {
			t.Fatal(err)
		}
		kl := 0.0
		if loss.Rule().Mismatched {
			for _, x := range c.Mismatched {
				kl += x / float64(len(c.Mismatched))
			}
			kl = max(kl, 0)
		}
		const n, given = 40, 2 // tokens of a prompt before each answer
		of := func(d graph.DType) Tensor { return NewTensor(d, n, 1) }
		x := []Tensor{of(graph.F32), of(graph.F32), of(graph.F32), of(graph.F32), of(graph.F32), of(graph.I32), of(graph.I32), of(graph.F32)}
		for r := range n {
			x[graph.PreferenceTargets].I32[r], x[graph.PreferenceNLL].F32[r] = -1, 9
		}
		var begins []int
		end := 0
		for i, nll := range c.NLL {
			begins = append(begins, end)
			weight := c.Desirable
			if c.Labels[i] == 0 {
				weight = -c.Undesirable
			}
			x[graph.PreferenceReference].F32[end], x[graph.PreferenceVerdicts].F32[end] = float32(c.Reference[i]+kl), float32(weight)
			for j, v := range nll {
				x[graph.PreferenceTargets].I32[end+given+j], x[graph.PreferenceNLL].F32[end+given+j] = 1, float32(v)
			}
			for r := end; r < n; r++ {
				x[graph.PreferenceStarts].I32[r] = int32(end)
			}
			end += given + len(nll)
		}
		for r := end; r < n; r++ { // padding
			x[graph.PreferenceStarts].I32[r] = int32(end)
		}
		preference(nil, &graph.Attr{Seq: n, Scale: c.Beta, PairLoss: int(loss)}, x)
		near := func(what string, got float64, want float64) {
			t.Helper()
			if math.Abs(got-want) > 1e-5*math.Max(1, math.Abs(want)) {
				t.Errorf("case %d, %s: %s is %v, TRL %v", k, c.Loss, what, got, want)
			}
		}
		sum, all := 0.0, float64(len(c.NLL))
		for r := range n {
			sum += float64(x[graph.PreferenceLoss].F32[r])
		}
		near("the loss", sum/all, c.Value)
		for i, by := range c.By {
			for j, want := range by {
				near(fmt.Sprintf("a derivative of document %d", i), float64(x[graph.PreferenceWeights].F32[begins[i]+given+j])/all, want)
			}
		}
	}
}
