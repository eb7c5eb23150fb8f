package train

import (
	"errors"
	"math"
	"os"
	"strings"
	"testing"
)

// TestDegrees: a run goes on with another number of ranks that share matrices, from the checkpoint that any other wrote, and then has
// the losses of one that was never stopped, up to the order of sums.
func TestDegrees(t *testing.T) {
	dir := t.TempDir()
	file := runConfig(t, dir)
	text, err := os.ReadFile(file)
	check(t, err)
	text = []byte(strings.NewReplacer("max_steps: 40", "max_steps: 6", "save_every: 3", "save_every: 2").Replace(string(text)))
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
	run("degrees", 3, "ranks=2", "plan.tensor=2")
	run("degrees", 5, "ranks=1")
	run("degrees", 6, "ranks=4", "plan.tensor=2")
	got, want := losses(t, dir+"/degrees/metrics.jsonl"), losses(t, dir+"/whole/metrics.jsonl")
	if len(got) != len(want) {
		t.Fatalf("%d steps, want %d", len(got), len(want))
	}
	for i := range want {
		if math.Abs(got[i]/want[i]-1) > 1e-5 {
			t.Errorf("step %d: loss %v, want %v", i+1, got[i], want[i])
		}
	}
}

// errStop ends a run as a crash would, between two steps.
var errStop = errors.New("stopped by the test")
