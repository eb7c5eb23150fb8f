package train

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/athanor-llm/athanor/checkpoint"
	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/job"
	"github.com/athanor-llm/athanor/machine"
	"github.com/athanor-llm/athanor/machine/machinetest"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/planner"
)

// TestMain lets the test binary be the training process that is killed, or another host. All tests share one temporary home,
// where the machine is known.
func TestMain(m *testing.M) {
	if file := os.Getenv("ATHANOR_TEST_TRAIN"); file != "" {
		if err := trainFile(context.Background(), file, strings.Fields(os.Getenv("ATHANOR_TEST_OVERRIDES"))); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if addr := os.Getenv("ATHANOR_TEST_SERVE"); addr != "" {
		fmt.Fprintln(os.Stderr, serveHere(addr))
		os.Exit(1)
	}
	code, err := machinetest.Run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

type quiet struct{}

func (quiet) Step(Metrics) {}
func (quiet) Event(string) {}

// trainFile is the train verb without its printing.
func trainFile(ctx context.Context, file string, overrides []string) error {
	c, err := loaded(file, overrides)
	if err != nil {
		return err
	}
	spec, err := job.Settle(config.ToTrain, c, func(string) {})
	if err != nil {
		return err
	}
	s, err := Prepare(ctx, spec, func(string, int64, int64) {})
	if err != nil {
		return err
	}
	defer s.Close()
	if err := machinetest.Restore(); err != nil {
		return err
	}
	m, err := machine.Find(spec.Machine(), func(string) {})
	if err != nil {
		return err
	}
	task := &planner.Task{Machine: m, Graph: s.Graph, Spec: s.Spec}
	r, err := task.Plan(ctx, nil)
	if err != nil {
		return err
	}
	ps, err := task.Programs(ctx, r.Best)
	if err != nil {
		return err
	}
	t, err := Open(ctx, s, r.Best, ps, m)
	if err != nil {
		return err
	}
	if err := t.Train(ctx, quiet{}); err != nil {
		t.Close()
		return err
	}
	return t.Close()
}

// settled is the job of a configuration.
func settled(t testing.TB, file string, overrides ...string) *job.Spec {
	t.Helper()
	c, err := loaded(file, overrides)
	check(t, err)
	spec, err := job.Settle(config.ToTrain, c, func(string) {})
	check(t, err)
	return spec
}

// runConfig writes a configuration of a tiny model on this repository's text.
func runConfig(t testing.TB, dir string) string {
	t.Helper()
	root, err := filepath.Abs("..")
	check(t, err)
	file := filepath.Join(dir, "run.yaml")
	check(t, os.WriteFile(file, fmt.Appendf(nil, `model: {type: llama, layers: 2, width: 32, heads: 4, kv_heads: 2}
data: %s/graph/*.go
tokenizer: bpe-400
sequence_length: 32
global_batch: 4
learning_rate: 1.0e-3
max_steps: 40
save_every: 3
eval_batches: 1
out: %s/run
`, root, dir), 0o644))
	return file
}

// losses reads metrics.jsonl; every step must be there once.
func losses(t *testing.T, path string) []float64 {
	t.Helper()
	f, err := os.Open(path)
	check(t, err)
	defer f.Close()
	var list []float64
	for s := bufio.NewScanner(f); s.Scan(); {
		var m Metrics
		check(t, json.Unmarshal(s.Bytes(), &m))
		if m.Step != len(list)+1 {
			t.Fatalf("%s: line %d is step %d", path, len(list)+1, m.Step)
		}
		list = append(list, m.Loss)
	}
	return list
}

// killAgain starts a run and kills it at random moments within about the time
// that a whole one takes, again and again, each time with other overrides. The
// last start is left alone.
func killAgain(t *testing.T, r *rand.Rand, dir, file string, whole time.Duration, kills int, overrides []string) {
	t.Helper()
	done := false
	for k := 0; !done; k++ {
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), "ATHANOR_TEST_TRAIN="+file, "ATHANOR_TEST_OVERRIDES="+overrides[r.IntN(len(overrides))])
		var out strings.Builder
		child.Stderr = &out
		check(t, child.Start())
		ended := make(chan error, 1)
		go func() { ended <- child.Wait() }()
		wait := time.Duration(r.Int64N(int64(whole)))
		if k >= kills {
			wait = time.Hour
		}
		select {
		case err := <-ended:
			if err != nil {
				t.Fatalf("start %d: %v\n%s", k, err, out.String())
			}
			done = true
		case <-time.After(wait):
			if err := child.Process.Signal(syscall.SIGKILL); !errors.Is(err, os.ErrProcessDone) {
				check(t, err)
			}
			done = <-ended == nil // at that very moment
		}
		if done && k < kills { // it got to the end: once more from the start
			check(t, os.RemoveAll(dir+"/run"))
			done = false
		}
	}
}

// TestKill is law L7: a run that is killed at random moments, again and again,
// and started again under another memory budget each time, ends with the
// losses and the weights of one that was left alone, bit for bit.
func TestKill(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	killed(t, testkit.Count(2, 5, 50), "", "")
}

// TestKillPreference: so does a run on pairs, whose reference is that of its first start, whenever it was killed.
func TestKillPreference(t *testing.T) {
	testkit.Needs(t, testkit.All)
	var lines strings.Builder
	for k := range 30 {
		fmt.Fprintf(&lines, "{\"prompt\": \"%d and \", \"chosen\": \"%d\", \"rejected\": \"none of %d\"}\n", k, k+1, k)
	}
	path := filepath.Join(t.TempDir(), "pairs.jsonl")
	check(t, os.WriteFile(path, []byte(lines.String()), 0o644))
	killed(t, testkit.Count(1, 2, 6), " preference.beta=0.3 data="+path, "")
}

// TestKillHalves: so does a run whose weights and moments are in bf16, in memory and in checkpoints.
func TestKillHalves(t *testing.T) {
	testkit.Needs(t, testkit.All)
	killed(t, testkit.Count(1, 2, 4), " precision=bf16 optimizer_state=bf16", "")
}

// TestKillInt8: so does a run whose weights are in int8.
func TestKillInt8(t *testing.T) {
	testkit.Needs(t, testkit.All)
	killed(t, testkit.Count(1, 2, 4), " precision=int8 optimizer_state=bf16_moments", "")
}

// TestKillCompact: so does a run on sparse weights that stores no zeros in some of its starts, and all weights in others.
func TestKillCompact(t *testing.T) {
	testkit.Needs(t, testkit.All)
	dir := t.TempDir()
	from := pruned(t, dir, runConfig(t, dir))
	killed(t, testkit.Count(2, 4, 20), " keep_mask=true model="+from, "")
}

// TestKillNoise: so does a run with noise on embeddings, which is drawn by step and token.
func TestKillNoise(t *testing.T) {
	testkit.Needs(t, testkit.All)
	killed(t, testkit.Count(1, 2, 4), " neftune_alpha=5", "")
}

// TestKillPacked: so does a run whose moments are in 8 bits.
func TestKillPacked(t *testing.T) {
	testkit.Needs(t, testkit.All)
	killed(t, testkit.Count(1, 2, 4), " optimizer_state=8bit_moments", "")
}

// TestKillMixture: so does a run on several sources, where small sources are read more than once per pass and a large one only in part,
// with a validation corpus.
func TestKillMixture(t *testing.T) {
	testkit.Needs(t, testkit.All)
	dir := t.TempDir()
	for k, lines := range []int{40, 15, 90, 20} {
		text := strings.Repeat(fmt.Sprintf("every %d. salamander keeps %x\n", k, 77777*k), lines)
		check(t, os.WriteFile(fmt.Sprintf("%s/%d.txt", dir, k), []byte(text), 0o644))
	}
	killed(t, testkit.Count(1, 2, 3), fmt.Sprintf(` data=[%[1]s/0.txt,{"files":"%[1]s/1.txt","times":2.5},{"files":"%[1]s/2.txt","times":0.3}] validation=%[1]s/3.txt tokenizer=bpe-280 eval_every=7`, dir), "")
}

// TestKillExchange: so does a run whose ranks share sequences and exchange heads. With one sequence in a batch sums over ranks have one
// order, whatever is sharded.
func TestKillExchange(t *testing.T) {
	testkit.Needs(t, testkit.All)
	killed(t, testkit.Count(1, 2, 4), " ranks=2 sequence_length=128 global_batch=1", " plan.sequence=2 plan.exchange=heads")
}

// TestKillShared: so do runs whose ranks share sequences in a pipeline, share both sequences and matrices, or do all of it.
func TestKillShared(t *testing.T) {
	testkit.Needs(t, testkit.All)
	for _, degrees := range sharedDegrees[:3] {
		t.Run(degrees, func(t *testing.T) {
			ranks, pins, _ := strings.Cut(degrees, " ")
			killed(t, testkit.Count(1, 2, 4), " sequence_length=128 global_batch=1 "+ranks, " "+pins)
		})
	}
}

// TestKillDegrees: a run that is killed at random moments, and each time goes on with other degrees, has the losses of one that was left
// alone, up to the order of sums.
func TestKillDegrees(t *testing.T) {
	testkit.Needs(t, testkit.All)
	r := rand.New(rand.NewPCG(testkit.Seed(t), 4))
	dir := t.TempDir()
	file := runConfig(t, dir)
	more := " sequence_length=128 global_batch=2 max_steps=20"
	began := time.Now()
	check(t, trainFile(t.Context(), file, append(strings.Fields(more), "out="+dir+"/whole")))
	var starts []string
	for _, degrees := range sharedDegrees {
		starts = append(starts, degrees+more)
	}
	killAgain(t, r, dir, file, time.Since(began), testkit.Count(1, 2, 10), starts)
	want := losses(t, dir+"/whole/metrics.jsonl")
	for i, l := range losses(t, dir+"/run/metrics.jsonl") {
		if math.Abs(l/want[i]-1) > 1e-5 {
			t.Errorf("step %d: loss %v, of a run that was left alone %v", i+1, l, want[i])
		}
	}
}

// sharedDegrees are ways in which ranks share a step. Runs under the first three have one order of sums: they say by which schedule, and that
// the queries of a key head are not in different parts.
var sharedDegrees = []string{
	"ranks=4 plan.pipeline=2 plan.schedule=1f1b plan.sequence=2 plan.kv_parts=1", "ranks=4 plan.sequence=2 plan.tensor=2 plan.kv_parts=1", "ranks=8 plan.pipeline=2 plan.schedule=1f1b plan.sequence=2 plan.tensor=2 plan.kv_parts=1",
	"ranks=1", "ranks=2", "ranks=4 plan.pipeline=2 plan.tensor=2", "ranks=2 plan.sequence=2 plan.exchange=keys",
}

// killed kills a run the given number of times. more are overrides; so are pins, of what a plan.json decides.
func killed(t *testing.T, kills int, more, pins string) {
	seed := testkit.Seed(t)
	r := rand.New(rand.NewPCG(seed, 3))
	dir := t.TempDir()
	file := runConfig(t, dir)
	began := time.Now()
	check(t, trainFile(context.Background(), file, append(strings.Fields(more+pins), "out="+dir+"/whole")))
	whole := time.Since(began)
	want := losses(t, dir+"/whole/metrics.jsonl")

	budgets := []string{"limits.device=2MiB", "limits.device=1MiB limits.host=8MiB", "limits.device=300KiB", "plan.state=disk plan.micro_batch=1 plan.recompute=full"}
	for i := range budgets {
		budgets[i] += more + pins
	}
	if !strings.Contains(pins, "plan.pipeline") {
		budgets = append(budgets, "plan="+changedPlan(t, dir, file, more+pins, "deferred", func(_ *graph.Graph, pl *plan.Plan) { pl.Defer = true })+more)
	}
	if strings.Contains(more, "keep_mask") {
		budgets = append(budgets, "plan="+changedPlan(t, dir, file, more+pins, "compact", makeCompact)+more)
	}
	killAgain(t, r, dir, file, whole, kills, budgets)
	got := losses(t, dir+"/run/metrics.jsonl")
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("losses\n%v\nwant\n%v", got, want)
	}
	for _, name := range []string{"model.safetensors", "state/m.safetensors", "state/v.safetensors"} {
		a, err := os.ReadFile(filepath.Join(dir, "run/checkpoint-40", name))
		check(t, err)
		b, err := os.ReadFile(filepath.Join(dir, "whole/checkpoint-40", name))
		check(t, err)
		if string(a) != string(b) {
			t.Errorf("%s differs from the uninterrupted run's", name)
		}
	}
	store := checkpoint.Store{Dir: dir + "/run"}
	if _, skipped, err := store.Latest(checkpoint.Checksums); err != nil || len(skipped) > 0 {
		t.Errorf("checkpoints at the end: %v, %v", skipped, err)
	}
}

// changedPlan writes a changed plan for a run with little memory, and returns its path.
func changedPlan(t *testing.T, dir, file, more, name string, change func(g *graph.Graph, pl *plan.Plan)) string {
	t.Helper()
	own := append(strings.Fields(more), "max_steps=1", "limits.device=300KiB", "out="+dir+"/small-"+name)
	check(t, trainFile(t.Context(), file, own))
	text, err := os.ReadFile(dir + "/small-" + name + "/plan.json")
	check(t, err)
	pl, err := plan.Parse(text)
	check(t, err)
	s, err := Prepare(t.Context(), settled(t, file, own...), func(string, int64, int64) {})
	check(t, err)
	defer s.Close()
	change(s.Graph, pl)
	text, err = json.Marshal(pl)
	check(t, err)
	path := dir + "/" + name + ".json"
	check(t, os.WriteFile(path, text, 0o644))
	return path
}

// makeCompact has a plan store no zeros, where it can.
func makeCompact(g *graph.Graph, pl *plan.Plan) {
	for i := range pl.Chunks {
		pl.Chunks[i].Compact = pl.Chunks[i].Sparse(g)
	}
	pl.Cache = max(pl.Cache, pl.CacheNeeded(g))
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
