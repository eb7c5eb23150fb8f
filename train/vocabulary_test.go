package train

import (
	"errors"
	"math"
	"os"
	"strings"
	"testing"
)

// TestVocabularyParts: a run goes on with embedding and head in another number of parts, or whole, from the checkpoint that any other
// wrote, which knows of none, and then has the losses of one that was never stopped, up to the order of sums. What is planned is reached.
func TestVocabularyParts(t *testing.T) {
	for _, model := range []string{"tied: true", "tied: false"} {
		dir := t.TempDir()
		file := runConfig(t, dir)
		text, err := os.ReadFile(file)
		check(t, err)
		text = []byte(strings.NewReplacer("max_steps: 40", "max_steps: 6", "save_every: 3", "save_every: 2", "kv_heads: 2}", "kv_heads: 2, "+model+"}").Replace(string(text)))
		check(t, os.WriteFile(file, text, 0o644))
		run := func(out string, steps int, overrides ...string) {
			t.Helper()
			tr, _ := openRun(t, file, append(overrides, "out="+dir+"/"+out)...)
			stop := onStep(func(step int) {
				if step == steps {
					panic(errStop)
				}
			})
			if err := runUntil(tr, stop); err != nil && !errors.Is(err, errStop) {
				t.Fatal(err)
			}
			check(t, tr.Close())
		}
		run("whole", 6)
		run("parts", 3, "plan.vocabulary_parts=3")
		run("parts", 5)
		run("parts", 6, "plan={vocabulary_parts: 2, weights: host, grads: host, state: host}")
		got, want := losses(t, dir+"/parts/metrics.jsonl"), losses(t, dir+"/whole/metrics.jsonl")
		if len(got) != len(want) {
			t.Fatalf("%d steps, want %d", len(got), len(want))
		}
		for i := range want {
			if math.Abs(got[i]/want[i]-1) > 1e-6 {
				t.Errorf("%s, step %d: loss %v, want %v", model, i+1, got[i], want[i])
			}
		}
	}
}
