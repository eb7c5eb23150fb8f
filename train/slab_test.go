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
	run := runsIn(t, file, dir)
	run("whole", 6)
	run("degrees", 3, "ranks=2", "plan.tensor=2")
	run("degrees", 5, "ranks=1")
	run("degrees", 6, "ranks=4", "plan.tensor=2")
	sameLosses(t, dir+"/degrees/metrics.jsonl", dir+"/whole/metrics.jsonl", 1e-5)
}

// runsIn returns a function that trains a configuration in a folder of dir from its newest checkpoint on, and stops after so many steps in
// all, as a crash would.
func runsIn(t *testing.T, file, dir string) func(out string, steps int, overrides ...string) {
	return func(out string, steps int, overrides ...string) {
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
}

// sameLosses compares the losses of two runs, which may differ by so much of themselves.
func sameLosses(t *testing.T, gotFile, wantFile string, most float64) {
	t.Helper()
	got, want := losses(t, gotFile), losses(t, wantFile)
	if len(got) != len(want) {
		t.Fatalf("%d steps, want %d", len(got), len(want))
	}
	for i := range want {
		if math.Abs(got[i]/want[i]-1) > most {
			t.Errorf("step %d: loss %v, want %v", i+1, got[i], want[i])
		}
	}
}

// errStop ends a run as a crash would, between two steps.
var errStop = errors.New("stopped by the test")
