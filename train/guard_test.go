package train

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/job"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/session"
)

// TestGuard: there is no bound before a window is full; then it is the mean plus the given number of deviations of
// the latest steps, a spike hardly moves it, and a lasting new level becomes usual.
func TestGuard(t *testing.T) {
	seed := testkit.Seed(t)
	r := rand.New(rand.NewPCG(seed, 1))
	const z = 6
	var g guard
	step := func(norm float64) (skipped bool) {
		bound := g.bound(z)
		skipped = bound > 0 && norm > bound
		g.add(session.Outcome{Norm: norm, Skipped: skipped}, bound)
		return skipped
	}
	var all []float64
	for range 300 {
		if bound := g.bound(z); (bound > 0) != (len(all) >= 128) {
			t.Fatalf("after %d steps the bound is %v", len(all), bound)
		}
		norm := 1 + 0.1*r.Float64()
		if all = append(all, norm); step(norm) {
			t.Fatalf("norm %v is skipped", norm)
		}
	}
	latest := all[len(all)-128:]
	var mean, mean2 float64
	for _, x := range latest {
		mean, mean2 = mean+x/128, mean2+x*x/128
	}
	bound := g.bound(z)
	if want := mean + z*math.Sqrt(mean2-mean*mean); math.Abs(bound-want) > 1e-6 {
		t.Errorf("bound %v, want %v", bound, want)
	}
	if g.bound(0) != 0 {
		t.Error("0 deviations bound something")
	}
	before := g
	before.Norms = slices.Clone(g.Norms)
	if !step(1e6) || g.bound(z) > 1.1*bound || g.Skipped != 1 {
		t.Errorf("after a spike the bound is %v, before %v; %d skipped", g.bound(z), bound, g.Skipped)
	}
	g.add(session.Outcome{Norm: math.NaN(), Skipped: true}, bound)
	if g.Broken != 1 || g.Skipped != 2 || len(g.Norms) != 128 {
		t.Errorf("after NaN: %+v", g)
	}
	for n := 0; step(3); n++ { // a new level, 50 deviations up
		if n == 128 {
			t.Fatal("what stays does not become usual")
		}
	}
	if g.Broken != 0 {
		t.Error("finite norms are counted as broken")
	}
	for _, bad := range []guard{{Skipped: -1}, {Skipped: 301}, {Broken: 1}, {Norms: make([]float64, 129)}} {
		if bad.check(300) == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
	if err := before.check(300); err != nil {
		t.Error(err)
	}
}

// TestSkippingResumes: a run that skips steps and is stopped and resumed at arbitrary steps does what the run
// without interruption does, bit by bit.
func TestSkippingResumes(t *testing.T) {
	testkit.Needs(t, testkit.All)
	seed := testkit.Seed(t)
	r := rand.New(rand.NewPCG(seed, 1))
	dir := t.TempDir()
	file := runConfig(t, dir)
	const steps = 170
	train := func(out string, n int) {
		t.Helper()
		check(t, trainFile(context.Background(), file, []string{"out=" + filepath.Join(dir, out), "skip_spikes=0.5", "save_every=0", "keep_checkpoints=1",
			"schedule=constant", "warmup_steps=10", fmt.Sprint("max_steps=", n)}))
	}
	train("straight", steps)
	for n := 100 + r.IntN(30); n < steps; n += 1 + r.IntN(15) {
		train("pieces", n)
	}
	train("pieces", steps)
	read := func(out, file string) string {
		text, err := os.ReadFile(filepath.Join(dir, out, file))
		check(t, err)
		return string(text)
	}
	for _, name := range []string{"model.safetensors", "state/m.safetensors", "state/v.safetensors"} {
		if name = filepath.Join(fmt.Sprint("checkpoint-", steps), name); read("straight", name) != read("pieces", name) {
			t.Errorf("%s differs", name)
		}
	}
	var last [2]Metrics
	for i, out := range []string{"straight", "pieces"} {
		lines := strings.Split(strings.TrimSpace(read(out, "metrics.jsonl")), "\n")
		check(t, json.Unmarshal([]byte(lines[steps-1]), &last[i]))
	}
	if last[0].SkippedSteps < 5 || last[0].SkippedSteps != last[1].SkippedSteps || last[0].Bound != last[1].Bound || last[0].Loss != last[1].Loss {
		t.Errorf("without interruption %+v\nin pieces %+v", last[0], last[1])
	}
}

// TestMetricsOfNoNumbers: a line of metrics.jsonl is JSON even where the loss is not a number.
func TestMetricsOfNoNumbers(t *testing.T) {
	text, err := json.Marshal(Metrics{Step: 3, Loss: math.NaN(), GradNorm: math.Inf(1), Skipped: true})
	check(t, err)
	var line map[string]any
	check(t, json.Unmarshal(text, &line))
	if line["step"] != 3.0 || line["loss"] != nil || line["grad_norm"] != nil || line["skipped"] != true || strings.Count(string(text), "loss") != 1 {
		t.Errorf("%s", text)
	}
	text, err = json.Marshal(Metrics{Step: 3, Loss: 1.5, GradNorm: 2})
	check(t, err)
	if !strings.Contains(string(text), `"loss":1.5`) || strings.Contains(string(text), "skipped") {
		t.Errorf("%s", text)
	}
}

// TestAdvice: what is worth trying depends on what was found.
func TestAdvice(t *testing.T) {
	at := func(op graph.Op, segment string, dir program.Direction) *session.Culprit {
		return &session.Culprit{Instr: &program.Instr{Op: op, Key: program.Key{Dir: dir}}, Segment: segment}
	}
	for _, tc := range []struct {
		culprit *session.Culprit
		step    int
		skip    float64
		want    string
		no      string
	}{
		{nil, 50, 0, "suspect the hardware", "learning_rate"},
		{&session.Culprit{Before: true}, 50, 0, "set resume to an earlier checkpoint", "intact"},
		{at(graph.Linear, "head", program.Forward), 50, 0, "logits have grown", "rising"},
		{at(graph.Attention, "h1", program.Recompute), 50, 0, "attention's scores", "rising"},
		{at(graph.Linear, "h1", program.Forward), 50, 0, "activations have grown", "rising"},
		{at(graph.LinearDX, "h1", program.Backward), 50, 0, "gradients have grown", "rising"},
		{at(graph.NormAll, "", program.Optimizer), 50, 0, "only their norm", "rising"},
		{at(graph.Linear, "h1", program.Forward), 5, 0, "the learning rate is still rising", "earlier checkpoint"},
		{at(graph.Linear, "h1", program.Forward), 50, 0, "skip_spikes: 6", "earlier checkpoint"},
		{at(graph.Linear, "h1", program.Forward), 50, 6, "resume from an earlier checkpoint", "skip_spikes"},
	} {
		var spec job.Spec
		spec.WarmupSteps, spec.SkipSpikes = 10, tc.skip
		trainer := &Run{Step: tc.step, saved: "checkpoint-4", Setup: &Setup{Spec: &spec}}
		if got := strings.Join(trainer.advice(tc.culprit), "; "); !strings.Contains(got, tc.want) || strings.Contains(got, tc.no) {
			t.Errorf("%v at step %d: %s", tc.culprit, tc.step, got)
		}
		trainer.saved = "" // then none is spoken of
		if got := strings.Join(trainer.advice(tc.culprit), "; "); strings.Contains(strings.ReplaceAll(got, "there is no checkpoint yet", ""), "checkpoint") {
			t.Errorf("%v at step %d without checkpoints: %s", tc.culprit, tc.step, got)
		}
	}
}
