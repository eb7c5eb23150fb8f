package folder

import (
	"context"
	"errors"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/internal/torch"
)

// TestEvaluateDocuments: a folder is evaluated by the same rule, on request.
func TestEvaluateDocuments(t *testing.T) {
	f, err := Open("../testdata/torch/llama-tiny")
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

// TestEvaluateHalved: in bf16 a loss is that of fp32 up to rounding, and not identical.
func TestEvaluateHalved(t *testing.T) {
	for _, name := range testkit.Sample([]string{"llama-tiny", "gpt2-tiny", "gemma3-tiny", "gemma2-tiny", "glm4-moe-tiny"}, 1, 3) {
		dir := "../testdata/torch/" + name
		var rows [][]int32
		torch.JSON(t, filepath.Join(dir, "tokens.json"), &rows)
		var losses [2]float64
		for i, dtype := range []graph.DType{graph.F32, graph.BF16} {
			f, err := Open(dir)
			check(t, err)
			f.DType = dtype
			e, err := Evaluate(context.Background(), f, rows, false, false)
			check(t, errors.Join(err, f.Close()))
			losses[i] = e.Loss
		}
		if e := math.Abs(losses[1]/losses[0] - 1); e == 0 || e > 2e-3 {
			t.Errorf("%s: %v in fp32, %v in bf16", name, losses[0], losses[1])
		}
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
