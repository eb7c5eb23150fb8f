package folder

import (
	"math"
	"math/rand/v2"
	"sort"
	"testing"
)

// TestTopLogs compares with sorting: equal logits stay in the order of their ids, and probabilities add up to 1 with the whole vocabulary.
func TestTopLogs(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	for range 200 {
		v := 1 + r.IntN(40)
		k, heat, logits, order := 1+r.IntN(v), 0.5+r.Float64(), make([]float64, v), make([]int, v)
		for i := range logits {
			logits[i], order[i] = float64(r.IntN(7))-3, i
		}
		sort.SliceStable(order, func(i, j int) bool { return logits[order[i]] > logits[order[j]] })
		ids, logs, sum := make([]int32, k), make([]float32, k), 0.0
		if !topLogs(logits, heat, ids, logs) {
			t.Fatalf("no probabilities of %v", logits)
		}
		for i, id := range ids {
			if sum += math.Exp(float64(logs[i])); int(id) != order[i] {
				t.Fatalf("of %v: %v, want the first of %v", logits, ids, order)
			}
			if d := float64(logs[0]-logs[i]) - (logits[ids[0]]-logits[id])/heat; math.Abs(d) > 1e-5 {
				t.Fatalf("of %v at %v: log-probabilities %v of %v", logits, heat, logs, ids)
			}
		}
		if sum > 1+1e-5 || k == v && sum < 1-1e-5 {
			t.Fatalf("of %v: probabilities add up to %v", logits, sum)
		}
	}
	if topLogs([]float64{1, math.NaN()}, 1, make([]int32, 1), make([]float32, 1)) {
		t.Error("NaN has probabilities")
	}
}
