package job

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/athanor-llm/athanor/checkpoint"
	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/plan"
)

// run is a configuration of everything that has no default.
const run = `model: gpt2
data: corpus/*.txt
tokenizer: gpt2
sequence_length: 256
global_batch: 8
learning_rate: 1e-3
max_steps: 1000
out: runs/absent
device: cpu
`

func parsed(t *testing.T, overrides ...string) *config.Config {
	t.Helper()
	c, err := config.Parse("a.yaml", []byte(run), overrides)
	check(t, err)
	return c
}

func settled(t *testing.T, overrides ...string) *Spec {
	t.Helper()
	s, err := Settle(config.ToTrain, parsed(t, overrides...), func(note string) { t.Error(note) })
	check(t, err)
	return s
}

// TestSettle: nothing stays open, what was given is kept, and only what was open is decided.
func TestSettle(t *testing.T) {
	s := settled(t)
	if state, known := s.State(); s.Device != "cpu" || s.Ranks != 1 || s.Precision != graph.F32 || state != plan.FP32State || known || s.Former != nil || s.Begun != nil {
		t.Errorf("%+v", s)
	}
	s = settled(t, "ranks=2", "precision=bf16", "optimizer_state=bf16")
	if state, known := s.State(); s.Ranks != 2 || s.Precision != graph.BF16 || state != plan.BF16State || !known {
		t.Errorf("given: %+v", s)
	}
	for want, overrides := range map[int][]string{1: {"ranks=auto"}, 3: {"ranks=auto", "hosts=[a, b]"}, 6: {"ranks=6", "hosts=[a, b]"}} {
		if s := settled(t, overrides...); s.Ranks != want {
			t.Errorf("%v: %d ranks", overrides, s.Ranks)
		}
	}
	if s := settled(t, "hardware.name=h100", "device=auto", "ranks=auto"); s.Precision != graph.BF16 || s.Device != "auto" || s.Ranks != 1 {
		t.Errorf("for a described machine: %+v", s)
	}
}

// TestLowRate: a learning rate that is another optimizer's is told of, and no other.
func TestLowRate(t *testing.T) {
	for set, told := range map[string]bool{"optimizer=sgd": true, "optimizer=sgd learning_rate=0.01": true, "optimizer=sgd learning_rate=0.3": false, "optimizer=adamw": false, "optimizer=lion": false} {
		var notes []string
		_, err := Settle(config.ToTrain, parsed(t, strings.Fields(set)...), func(note string) { notes = append(notes, note) })
		check(t, err)
		if (len(notes) == 1 && strings.Contains(notes[0], "learning_rate")) != told || len(notes) > 1 {
			t.Errorf("%s: %q", set, notes)
		}
	}
}

// TestReading: reading text settles nothing that needs a machine.
func TestReading(t *testing.T) {
	s, err := Settle(config.ToRead, parsed(t, "device=cuda", "ranks=auto"), nil)
	if check(t, err); s.Device != "" || s.Ranks != 0 || len(s.Data) != 1 {
		t.Errorf("%+v", s)
	}
}

// TestFormer: the plan that the run's folder was trained with is known if it is for the same optimizer.
func TestFormer(t *testing.T) {
	out := t.TempDir()
	check(t, os.WriteFile(filepath.Join(out, "plan.json"), []byte(`{"optimizer_state": "bf16_moments"}`), 0o644))
	if s := settled(t, "out="+out); s.Former == nil || s.Former.State != plan.BF16Moments {
		t.Errorf("%v", s.Former)
	}
	if s := settled(t, "out="+out, "optimizer=lion"); s.Former != nil {
		t.Errorf("of another optimizer: %v", s.Former)
	}
	check(t, os.WriteFile(filepath.Join(out, "plan.json"), []byte("no plan"), 0o644))
	if s := settled(t, "out="+out); s.Former != nil {
		t.Errorf("of a file that is no plan: %v", s.Former)
	}
}

// TestBegunFormat: a run that goes on stores the optimizer's state as its checkpoint does, however much memory there is,
// unless its configuration says otherwise.
func TestBegunFormat(t *testing.T) {
	for recorded, stored := range map[string]plan.StateFormat{`{"optimizer_state": "bf16_moments"}`: plan.BF16Moments, `{}`: plan.FP32State} {
		out := t.TempDir()
		_, err := (&checkpoint.Store{Dir: out}).Save(&checkpoint.Snapshot{Trainer: checkpoint.Trainer{Step: 1, Plan: []byte(recorded)}})
		check(t, err)
		for overrides, want := range map[string][]plan.StateFormat{
			"resume=auto": {stored}, "optimizer_state=bf16_moments": {plan.BF16Moments}, "resume=never": {plan.FP32State, plan.BF16Moments},
		} {
			if s := settled(t, overrides, "out="+out); !slices.Equal(s.OptimizerState, want) {
				t.Errorf("%s with %s: %v, want %v", recorded, overrides, s.OptimizerState, want)
			}
		}
	}
}

// TestNoMoments: where the optimizer has no moments, no other format of them is tried.
func TestNoMoments(t *testing.T) {
	if s := settled(t, "optimizer=sgd", "learning_rate=0.5"); !slices.Equal(s.OptimizerState, []plan.StateFormat{plan.FP32State}) {
		t.Errorf("sgd: %v", s.OptimizerState)
	}
}

// TestUnchanged: other jobs leave theirs as it is, and differ from it.
func TestUnchanged(t *testing.T) {
	s := settled(t)
	before := *s
	for name, other := range map[string]*Spec{
		"sequence": s.WithSequence(128), "precision": s.WithPrecision(graph.BF16), "state": s.WithState(plan.BF16State), "ranks": s.WithRanks(2, 1e9),
		"plan": s.WithPlan(config.Plan{Recompute: "full"}), "steps": s.WithSteps(10),
	} {
		if reflect.DeepEqual(*other, before) {
			t.Errorf("another %s changes nothing", name)
		}
		if !reflect.DeepEqual(*s, before) {
			t.Fatalf("another %s changes the job itself", name)
		}
	}
	if epochs := settled(t, "max_epochs=2", "max_steps=null"); epochs.OnCorpus(80).MaxSteps != 20 || epochs.MaxSteps == 20 {
		t.Errorf("two epochs of 80 sequences, 8 at a time, are %d steps", epochs.OnCorpus(80).MaxSteps)
	}
}

// TestWritten: a job is written as a configuration that is settled the same way, and faults name its lines.
func TestWritten(t *testing.T) {
	for want, s := range map[string]*Spec{"bf16": settled(t, "hardware.name=h100", "ranks=auto"), "fp32": settled(t, "ranks=2")} {
		text, err := yaml.Marshal(s)
		check(t, err)
		c, err := config.Parse("b.yaml", text, nil)
		check(t, err)
		if c.Device != s.Device || c.Ranks != s.Ranks || c.Precision != want || c.OptimizerState != "auto" {
			t.Errorf("%s", text)
		}
	}
	s := settled(t)
	if err := s.Fault("global_batch", "is odd").Error(); !strings.HasPrefix(err, "a.yaml:5: global_batch: is odd") {
		t.Error(err)
	}
	if got := s.Machine(); got.Spill != filepath.Join("runs/absent", "spill") || got.Batch != 8 || got.Sequence != 256 {
		t.Errorf("%+v", got)
	}
	if got := settled(t, "limits.disk_path=here").Spill(); got != "here" {
		t.Error(got)
	}
}

// TestConstants: an optimizer's constants are its usual ones unless they are given, and a job that is written and read
// again has the same.
func TestConstants(t *testing.T) {
	for o := range optimizer.NumOptimizers {
		r := o.Rule()
		s := settled(t, "optimizer="+r.Name, "learning_rate=0.5")
		if s.Optimizer != o || s.WeightDecay != r.Decay || s.Beta1 != r.Beta1 || s.Beta2 != r.Beta2 || s.Epsilon != r.Epsilon {
			t.Errorf("%s: %+v", r.Name, s)
		}
		if r.Beta1 == 0 { // it has no constants, and config refuses them
			continue
		}
		given := settled(t, "optimizer="+r.Name, "beta1=0.5", "beta2=0", "weight_decay=0")
		if given.Beta1 != 0.5 || given.Beta2 != 0 || given.WeightDecay != 0 || given.Epsilon != r.Epsilon {
			t.Errorf("%s, given: %+v", r.Name, given)
		}
		text, err := yaml.Marshal(given)
		check(t, err)
		c, err := config.Parse("b.yaml", text, nil)
		check(t, err)
		again, err := Settle(config.ToTrain, c, func(string) {})
		check(t, err)
		if again.Optimizer != o || again.Beta1 != 0.5 || again.Beta2 != 0 || again.WeightDecay != 0 || again.Epsilon != r.Epsilon {
			t.Errorf("%s, written and read: %+v\n%s", r.Name, again, text)
		}
	}
}

// TestHidden: what is settled hides the configuration's field of the same name, so that none can be mistaken for the other.
func TestHidden(t *testing.T) {
	var names []string
	for i := range reflect.TypeFor[Spec]().NumField() {
		f := reflect.TypeFor[Spec]().Field(i)
		if _, ok := reflect.TypeFor[config.Config]().FieldByName(f.Name); ok {
			names = append(names, f.Name)
		}
	}
	if want := []string{"Device", "Ranks", "Precision", "Optimizer", "WeightDecay", "Beta1", "Beta2", "Epsilon", "Muon", "Labels", "OptimizerState"}; !slices.Equal(names, want) {
		t.Errorf("%v, want %v", names, want)
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
