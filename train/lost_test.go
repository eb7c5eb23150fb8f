package train

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/athanor-llm/athanor/checkpoint"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/exec"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/machine"
	"github.com/athanor-llm/athanor/machine/machinetest"
	"github.com/athanor-llm/athanor/planner"
	"github.com/athanor-llm/athanor/session"
)

// openRun is the train verb up to the first step.
func openRun(t testing.TB, file string, overrides ...string) (*Run, *Setup) {
	t.Helper()
	ctx := context.Background()
	spec := settled(t, file, overrides...)
	setup, err := Prepare(ctx, spec, func(string, int64, int64) {})
	check(t, err)
	t.Cleanup(setup.Close)
	check(t, machinetest.Restore())
	m, err := machine.Find(spec.Machine(), func(string) {})
	check(t, err)
	task := &planner.Task{Machine: m, Graph: setup.Graph, Spec: setup.Spec}
	res, err := task.Plan(ctx, func(string) {})
	check(t, err)
	ps, err := task.Programs(ctx, res.Best)
	check(t, err)
	tr, err := Open(ctx, setup, res.Best, ps, m)
	check(t, err)
	return tr, setup
}

// at calls something when a step is done.
type at struct {
	step int
	call func()
}

func (a at) Step(m Metrics) {
	if m.Step == a.step {
		a.call()
	}
}
func (at) Event(string) {}

// onStep calls a function when a step is done.
type onStep func(step int)

func (f onStep) Step(m Metrics) { f(m.Step) }
func (onStep) Event(string)     {}

// TestRankLost: a rank that dies in the middle of a step ends the run at once
// with exit code 4, naming it; the checkpoints are whole, and the run continues
// from the latest one to the same end as an undisturbed run.
func TestRankLost(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	seed := testkit.Seed(t)
	r := rand.New(rand.NewPCG(seed, 9))
	dir := t.TempDir()
	file := runConfig(t, dir)
	tr, _ := openRun(t, file, "ranks=2", "plan.pipeline=1", "max_steps=8", "out="+dir+"/whole")
	check(t, errors.Join(tr.Train(t.Context(), quiet{}), tr.Close()))
	want := losses(t, dir+"/whole/metrics.jsonl")
	same := []string{"ranks=2", "max_steps=8", "plan=" + dir + "/whole/plan.json"}

	for name, kill := range map[string]func(tr *Run, victim int, killed chan struct{}){
		"stops": func(tr *Run, victim int, killed chan struct{}) {
			turns, d := r.IntN(1000), tr.devices[victim].(device.Aborter)
			go func() {
				for range turns {
					runtime.Gosched()
				}
				d.Abort(errors.New("gone"))
				close(killed)
			}()
		},
		"panics": func(tr *Run, victim int, _ chan struct{}) { // a token that no embedding has
			tr.sampler = nil // no further step is meant
			rows := len(tr.batch.Tokens) / 2
			tr.batch.Tokens[victim*rows+r.IntN(rows)] = 1 << 20
			_, err := tr.Session.Step(t.Context(), training, session.Batch(tr.batch), session.Scalars{Step: 4, Targets: len(tr.batch.Targets), Beta1: 0.9, Beta2: 0.95})
			panic(err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			out := "out=" + dir + "/" + name
			tr, _ := openRun(t, file, append(same, out)...)
			victim := r.IntN(2)
			killed, when := make(chan struct{}), 4+r.IntN(2)
			err := runUntil(tr, onStep(func(step int) {
				switch step {
				case when:
					kill(tr, victim, killed)
				case 7: // in the last step at the latest
					<-killed
				}
			}))
			var lost *exec.PeerLostError
			if !errors.As(err, &lost) || lost.Rank != victim {
				t.Errorf("rank %d is killed: %v", victim, err)
			}
			if name == "panics" && (lost == nil || lost.Instr < 0 || !strings.Contains(err.Error(), "embed")) {
				t.Errorf("the instruction is not named: %v", err)
			}
			check(t, tr.Close())
			store := checkpoint.Store{Dir: dir + "/" + name}
			if path, skipped, err := store.Latest(checkpoint.Checksums); err != nil || len(skipped) > 0 || path == "" {
				t.Errorf("latest checkpoint %s, %v, skipped %v", path, err, skipped)
			}
			tr, _ = openRun(t, file, append(same, out)...)
			check(t, errors.Join(tr.Train(t.Context(), quiet{}), tr.Close()))
			if got := losses(t, dir+"/"+name+"/metrics.jsonl"); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("losses\n%v\nwant\n%v", got, want)
			}
		})
	}
}

// runUntil runs until an error is returned, or thrown by the observer.
func runUntil(tr *Run, o Observer) (err error) {
	defer func() {
		if e, ok := recover().(error); ok {
			err = e
		}
	}()
	return tr.Train(context.Background(), o)
}

// TestKillRanks is law L7 over ranks: killed at random moments and started again
// with the same plan for 2 ranks, a run ends with the losses of one left alone,
// bit for bit; with other numbers of ranks and other budgets each time, up to the
// order of sums.
func TestKillRanks(t *testing.T) {
	testkit.Needs(t, testkit.All)
	seed := testkit.Seed(t)
	r := rand.New(rand.NewPCG(seed, 3))
	dir := t.TempDir()
	file := runConfig(t, dir)
	text, err := os.ReadFile(file)
	check(t, err)
	text = []byte(strings.NewReplacer("max_steps: 40", "max_steps: 12", "save_every: 3", "save_every: 2").Replace(string(text)))
	check(t, os.WriteFile(file, text, 0o644))
	began := time.Now()
	check(t, trainFile(context.Background(), file, []string{"ranks=2", "out=" + dir + "/whole"}))
	whole := time.Since(began)
	check(t, trainFile(context.Background(), file, []string{"ranks=2", "plan.tensor=2", "out=" + dir + "/slabs"}))
	kills := testkit.Count(1, 3, 8)
	for name, c := range map[string]struct {
		like      string
		overrides []string
		tolerance float64
	}{
		"one plan":    {"whole", []string{"ranks=2 plan=" + dir + "/whole/plan.json"}, 0},
		"one degree":  {"slabs", []string{"ranks=2 plan=" + dir + "/slabs/plan.json"}, 0},
		"all plans":   {"whole", []string{"ranks=1", "ranks=2 limits.device=1MiB", "ranks=4", "ranks=2 plan.state=disk", "ranks=4 limits.device=200KiB"}, 1e-5},
		"all degrees": {"slabs", []string{"ranks=1", "ranks=2 plan.tensor=2", "ranks=4 plan.tensor=2", "ranks=4 plan.tensor=2 plan.pipeline=2", "ranks=4 plan.tensor=4", "ranks=2 plan.tensor=2 plan.state=disk"}, 1e-5},
	} {
		t.Run(name, func(t *testing.T) {
			check(t, os.RemoveAll(dir+"/run"))
			killAgain(t, r, dir, file, whole, kills, c.overrides)
			got, want := losses(t, dir+"/run/metrics.jsonl"), losses(t, dir+"/"+c.like+"/metrics.jsonl")
			if len(got) != len(want) {
				t.Fatalf("%d steps, want %d", len(got), len(want))
			}
			for i := range want {
				if !(math.Abs(got[i]/want[i]-1) <= c.tolerance) {
					t.Errorf("step %d: loss %v, want %v", i+1, got[i], want[i])
				}
			}
		})
	}
}
