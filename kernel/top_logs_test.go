package kernel

import (
	"math"
	"testing"

	"github.com/athanor-llm/athanor/graph"
)

// TestTopLogsNotFinite: a logit that is no number leaves no probability that is one, and ids are of the vocabulary.
func TestTopLogsNotFinite(t *testing.T) {
	for _, bad := range []float64{math.NaN(), math.Inf(1)} {
		for at := range 3 {
			x, ids, logs := NewTensor(graph.F32, 1, 3), NewTensor(graph.I32, 1, 2), NewTensor(graph.F32, 1, 2)
			x.Set(0, at, bad)
			e := NewEnv(1)
			topLogs(e, &graph.Attr{Scale: 1}, []Tensor{ids, logs, x})
			for k := range 2 {
				if id := ids.I32[k]; !math.IsNaN(logs.At(0, k)) || id < 0 || id > 2 {
					t.Errorf("%v at %d: token %d with %v", bad, at, id, logs.At(0, k))
				}
			}
		}
	}
}
