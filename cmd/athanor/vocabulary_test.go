package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/plan"
)

// TestVocabularyParts: where the device is too small for embedding or head, these are in parts, as few as fit, and the plan says so; where it
// is not, they stay whole. What parts are not built for is refused.
func TestVocabularyParts(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	out := filepath.Join(t.TempDir(), "plan.json")
	planned := func(own ...string) result {
		return call(append([]string{"plan", "model={type: llama, layers: 2, width: 2048, heads: 32, kv_heads: 8, feed_forward: 8192, vocabulary: 128256, tied: true}", "sequence_length=1024", "global_batch=1", "precision=bf16", "hardware.name=rtx-4090"}, own...)...)
	}
	for _, c := range []struct {
		limit string
		parts int
	}{{"450MiB", 4}, {"2GiB", 0}} {
		planned("limits.device="+c.limit, "--out="+out).must(t, 0)
		text, err := os.ReadFile(out)
		check(t, err)
		var pl plan.Plan
		check(t, json.Unmarshal(text, &pl))
		if pl.VocabularyParts != c.parts {
			t.Errorf("%s: %d parts, want %d", c.limit, pl.VocabularyParts, c.parts)
		}
	}
	if r := planned("plan.vocabulary_parts=8").must(t, 0); !strings.Contains(r.stdout, "embedding and head in 8 parts") {
		t.Errorf("the plan does not say in how many parts the vocabulary is:\n%s", r.stdout)
	}
	planned("limits.device=450MiB", "plan.vocabulary_parts=1").must(t, 3, "does not fit")
	for _, c := range []struct {
		own  []string
		want string
	}{
		{[]string{"plan.vocabulary_parts=-1"}, "there cannot be -1 parts"},
		{[]string{"plan.vocabulary_parts=65"}, "use at most 64"},
		{[]string{"ranks=2"}, "for one rank"},
		{[]string{"ranks=2", "plan.tensor=2"}, "for one rank"},
		{[]string{"optimizer_state=8bit_moments"}, "would be others"},
		{[]string{"preference.beta=0.1"}, "losses of pairs"},
	} {
		planned(append([]string{"plan.vocabulary_parts=2"}, c.own...)...).must(t, 2, c.want, "hint:")
	}
}
