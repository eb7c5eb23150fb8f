package train

import (
	"os"
	"strings"
	"testing"
)

// TestVocabularyParts: a run goes on with embedding and head in another number of parts, or whole, from the checkpoint that any other
// wrote, which knows of none, and then has the losses of one that was never stopped, up to the order of sums. What is planned is reached.
func TestVocabularyParts(t *testing.T) {
	for _, model := range []string{"tied: true", "tied: false"} {
		t.Run(model, func(t *testing.T) {
			dir := t.TempDir()
			file := runConfig(t, dir)
			text, err := os.ReadFile(file)
			check(t, err)
			text = []byte(strings.NewReplacer("max_steps: 40", "max_steps: 6", "save_every: 3", "save_every: 2", "kv_heads: 2}", "kv_heads: 2, "+model+"}").Replace(string(text)))
			check(t, os.WriteFile(file, text, 0o644))
			run := runsIn(t, file, dir)
			run("whole", 6)
			run("parts", 3, "plan.vocabulary_parts=3")
			run("parts", 5)
			run("parts", 6, "plan={vocabulary_parts: 2, weights: host, grads: host, state: host}")
			sameLosses(t, dir+"/parts/metrics.jsonl", dir+"/whole/metrics.jsonl", 1e-6)
		})
	}
}
