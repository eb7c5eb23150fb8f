package planner

import (
	"os"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/job"
	"github.com/athanor-llm/athanor/model/family"
)

// TestLinearAttentionOnGPU: what GPUs cannot compute yet is refused before anything is planned or read.
func TestLinearAttentionOnGPU(t *testing.T) {
	text, err := os.ReadFile("../testdata/torch/qwen35-tiny/config.json")
	check(t, err)
	m, _, err := family.Parse(text)
	check(t, err)
	spec := &job.Spec{Device: "cuda", Share: 1, Tensor: 1}
	spec.SequenceLength = 16
	if _, err := BuildGraph(spec, m, nil); err == nil || !strings.Contains(err.Error(), "hint: device=cpu") {
		t.Errorf("linear attention on a GPU: %v", err)
	}
	spec.Device = "cpu"
	if _, err := BuildGraph(spec, m, nil); err != nil {
		t.Errorf("linear attention on a CPU: %v", err)
	}
}
