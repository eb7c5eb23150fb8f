package train

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/planner"
	"github.com/athanor-llm/athanor/program"
)

// TestEvaluationOfOddSequences: where the held-out text needs smaller micro-batches than
// training, they are of sizes that sums in bf16 allow.
func TestEvaluationOfOddSequences(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	spec := settled(t, runConfig(t, t.TempDir()), "precision=bf16", "sequence_length=33")
	s, err := Prepare(t.Context(), spec, func(string, int64, int64) {})
	check(t, err)
	t.Cleanup(s.Close)
	pl, opt := plan.Plain(s.Graph, 4), planner.StepOptions(spec)
	p, err := lower.Lower(t.Context(), s.Graph, pl, opt)
	check(t, err)
	capacity := [device.NumTiers]int64{1 << 40, 1 << 40, 1 << 40}
	whole, err := evaluation(t.Context(), s, pl, []*program.Program{p}, capacity)
	check(t, err)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := evaluation(over, s, pl, []*program.Program{p}, capacity); !errors.Is(err, context.Canceled) {
		t.Errorf("after an interrupt: %v", err)
	}
	capacity[device.DeviceTier] = whole[0].Height[device.DeviceTier] - 1
	if _, err := evaluation(t.Context(), s, pl, []*program.Program{p}, capacity); err != nil && strings.HasPrefix(err.Error(), "plan: ") {
		t.Error(err) // it may need as much in any micro-batches, but those have to be possible
	}
}
