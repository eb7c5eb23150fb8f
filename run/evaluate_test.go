package run

import (
	"math"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/graph"
)

// TestEvaluateDocuments: a folder is evaluated by the same rule, if asked to.
func TestEvaluateDocuments(t *testing.T) {
	f, err := OpenFolder("../testdata/torch/llama-tiny")
	check(t, err)
	defer f.Close()
	if err := f.SeparateDocuments(); err == nil || !strings.Contains(err.Error(), "hint:") {
		t.Errorf("without a tokenizer: %v", err)
	}
	const end, half = 0, 12
	row := make([]int32, 2*half+1)
	for i := range row {
		row[i] = int32(1 + i*i%7)
	}
	row[half-1] = end
	loss := func(row []int32) float64 {
		e, err := Evaluate(t.Context(), f, [][]int32{row}, false, false)
		check(t, err)
		return e.Loss
	}
	joined, want := loss(row), (loss(row[:half+1])+loss(row[half:]))/2
	f.Documents = &graph.Documents{End: end, Length: half}
	if e := math.Abs(loss(row)/want - 1); e > 1e-6 || math.Abs(joined/want-1) < 1e-4 {
		t.Errorf("loss %v, of the documents %v, joined %v", loss(row), want, joined)
	}
}
