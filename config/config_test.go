package config

import (
	"errors"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/athanor-llm/athanor/optimizer"
)

const good = `model: gpt2
data: corpus/*.txt
tokenizer: gpt2
sequence_length: 1024
global_batch: 64
learning_rate: 6.0e-4
max_steps: 1000
out: runs/first
`

func TestDefaults(t *testing.T) {
	c, err := Parse("a.yaml", []byte(good), nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.Limits.Device != Unlimited || c.WarmupSteps != 50 || math.Abs(c.MinLearningRate-6e-5) > 1e-15 {
		t.Errorf("derived values: %+v", c)
	}
}

// TestPreference: pairs imply separate documents, and what is written reads back unchanged.
func TestPreference(t *testing.T) {
	for _, more := range []string{"", "preference: {beta: 0.2}\n"} {
		c, err := Parse("a.yaml", []byte(good+more), nil)
		if err != nil {
			t.Fatal(err)
		}
		if on := more != ""; on != (c.Preference.Beta == 0.2) || on != (c.Documents == Separate) {
			t.Errorf("%q: %+v %s", more, c.Preference, c.Documents)
		}
		text, err := yaml.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := Parse("b.yaml", text, nil); err != nil || again.Preference != c.Preference || again.Documents != c.Documents {
			t.Errorf("%q: %v", more, err)
		}
	}
}

func TestOverrides(t *testing.T) {
	c, err := Parse("a.yaml", []byte(good), []string{
		"limits.device=64MiB", "limits.host=2GB", "max_time=90m", "model={type: llama, layers: 2, width: 64, heads: 4}",
		"learning_rate=1e-3", "data=[a, b]", "plan.recompute=full", "hardware.h2d=2GB/s", "max_tokens=2.0e9",
	})
	if err != nil {
		t.Fatal(err)
	}
	if c.Limits.Device != 64<<20 || c.Limits.Host != 2e9 || c.MaxTime != Duration(90*time.Minute) || c.Model.Type != "llama" || c.Model.Layers != 2 ||
		c.LearningRate != 1e-3 || len(c.Data) != 1 || len(c.Data[0].Files) != 2 || c.Plan.Recompute != "full" || c.Hardware.H2D != 2e9 || c.MaxSteps != 30518 {
		t.Errorf("overrides: %+v", c)
	}
}

// data returns a configuration with another corpus.
func data(text string) string { return strings.Replace(good, "data: corpus/*.txt", "data: "+text, 1) }

// TestSources: files named without times are one source, the first; what is written is read as the same sources.
func TestSources(t *testing.T) {
	for text, want := range map[string]Sources{
		"a":                           Files("a"),
		"[a, b]":                      Files("a", "b"),
		"{files: a}":                  Files("a"),
		"{files: a, times: null}":     Files("a"),
		"{files: [a, b], times: 0.5}": {{Strings{"a", "b"}, 0.5}},
		"[{files: c, times: 2}, a, {files: d}, b]": {{Strings{"a", "b"}, 1}, {Strings{"c"}, 2}, {Strings{"d"}, 1}},
	} {
		c, err := Parse("a.yaml", []byte(data(text)), nil)
		check(t, err)
		written, err := yaml.Marshal(c)
		check(t, err)
		again, err := Parse("b.yaml", written, nil)
		if check(t, err); !reflect.DeepEqual(c.Data, want) || !reflect.DeepEqual(again.Data, want) {
			t.Errorf("%s: %v, written and read %v, want %v", text, c.Data, again.Data, want)
		}
	}
}

// TestErrors: every mistake is reported, with its line and a hint.
func TestErrors(t *testing.T) {
	for _, tc := range []struct{ text, want string }{
		{good + "learning_rat: 3\n", `a.yaml:9: learning_rat: unknown key; hint: did you mean learning_rate?`},
		{good + "limits: {devcie: 3}\n", `a.yaml:9: limits.devcie: unknown key; hint: did you mean device?`},
		{good + "limits: 3\n", `a.yaml:9: limits: expected a mapping`},
		{good + "seed: x\n", `a.yaml:9: seed: expected a whole number from 0 to 18446744073709551615, got "x"`},
		{good + "limits: {device: 3 parsecs}\n", `a.yaml:9: limits.device: "3 parsecs" is not an amount of memory`},
		{good + "out: b\n", `a.yaml:9: out: given twice; hint:`},
		{strings.Replace(good, "model: gpt2\n", "", 1), `model: missing`},
		{strings.Replace(good, "global_batch: 64", "global_batch: -64", 1), `global_batch: -64 is out of range; hint: at least 1`},
		{strings.Replace(good, "sequence_length: 1024", "sequence_length: 0", 1), `sequence_length: 0 is out of range; hint: at least 1`},
		{strings.Replace(good, "sequence_length: 1024\n", "", 1), `sequence_length: missing`},
		{strings.Replace(good, "6.0e-4", "0", 1), `learning_rate: 0 trains nothing; hint:`},
		{strings.Replace(good, "6.0e-4", ".nan", 1), `learning_rate: NaN is out of range`},
		{strings.Replace(good, "6.0e-4", "-1", 1), `learning_rate: -1 is out of range`},
		{good + "beta2: 1\n", `beta2: 1 is out of range`},
		{good + "skip_spikes: -1\n", `skip_spikes: -1 is out of range`},
		{good + "gradient_clipping: 1.0e-45\n", `a.yaml:9: gradient_clipping: 1e-45 is less than 1e-06; hint:`},
		{good + "skip_spikes: 6\ngradient_clipping: 0\n", `a.yaml:9: skip_spikes: without gradient_clipping, weights are updated before the gradient norm is known; hint:`},
		{good + "ranks: 1.5\n", `a.yaml:9: ranks: expected a whole number, got "1.5"`},
		{good + "hosts: [10.0.0.2, '10.0.0.2:7077']\n", `a.yaml:9: hosts: 10.0.0.2:7077 is named twice; hint: name each host once`},
		{good + "hardware: {name: l4, hosts: -1}\n", `a.yaml:9: hardware.hosts: -1 is out of range; hint: from 1 to 1024`},
		{good + "hardware: {name: l4, hosts: 2}\nranks: 3\n", `a.yaml:10: ranks: 3 cannot be divided among the 2 hosts of hardware.hosts; hint: with eight on each, ranks: 16`},
		{good + "hardware: {network: 25Gbit/s}\n", `a.yaml:9: hardware.network: describes a machine that is not here, and hardware.name doesn't say which; hint:`},
		{good + "hosts: ''\n", `a.yaml:9: hosts: "" is not an address; hint:`},
		{good + "hosts: a.b:70777\n", `a.yaml:9: hosts: "a.b:70777" is not an address; hint: use one such as 10.0.0.2:7077`},
		{good + "hosts: [a, b]\nranks: 2\n", `a.yaml:10: ranks: 2 are too few for 3 hosts, this one included; hint: use at least 3`},
		{good + "hosts: a\nranks: 1\n", `a.yaml:10: ranks: 1 are too few for 2 hosts, this one included; hint:`},
		{good + "hardware: {name: l4, per_host: [4, 0]}\n", `a.yaml:9: hardware.per_host: 0 ranks are out of range; hint: from 1 to 1024`},
		{good + "hardware: {name: l4, per_host: many}\n", `a.yaml:9: hardware.per_host: expected a number or a list of numbers; hint:`},
		{good + "hardware: {name: l4, per_host: [4, 2], hosts: 3}\n", `hardware.per_host: it says how many ranks 2 hosts have, but hardware.hosts is 3; hint:`},
		{good + "hardware: {name: l4, per_host: [4, 2]}\nranks: 8\n", `a.yaml:10: ranks: 8, but the hosts of hardware.per_host have 6; hint: leave ranks out`},
		{good + "ranks: all\n", `expected a whole number, got "all"; hint: or auto`},
		{good + "tie_layers: 2\ndelink_at: soon\n", `expected a whole number, got "soon"; hint: or auto`},
		{good + "optimizer: lino\n", `a.yaml:9: optimizer: "lino" is not one of ` + strings.Join(optimizer.Names(), ", ") + `; hint: did you mean lion?`},
		{good + "optimizer: lion\nepsilon: 1.0e-8\n", `a.yaml:10: epsilon: lion has none; hint: leave epsilon out, on the command line with epsilon=null`},
		{good + "epsilon: 0\n", `a.yaml:9: epsilon: 0 is out of range; hint:`},
		{good + "optim: adamw_torch\n", `a.yaml:9: optim: unknown key; hint: use optimizer`},
		{good + "device: gpu\n", `device: "gpu" is not one of auto, cpu, cuda`},
		{good + "documents: apart\n", `documents: "apart" is not one of joined, separate`},
		{good + "preference: {}\n", `a.yaml: preference.beta: missing; hint: usually 0.1`},
		{good + "preference: {beta: -1}\n", `preference.beta: -1 is out of range`},
		{good + "preference: {betta: 1}\n", `preference.betta: unknown key; hint: did you mean beta?`},
		{good + "preference: {beta: 0.1}\ndocuments: joined\n", `a.yaml:10: documents: joined, but the answers of a pair must not see each other; hint:`},
		{good + "preference: {beta: 0.1}\nexpert_balance: 0.1\n", `a.yaml:10: expert_balance: preference has no such term in its loss; hint:`},
		{good + "max_time: 3\n", `is not a duration above 0; hint:`},
		{good + "plan:\n  swap: 2\n", `a.yaml:10: plan.swap: fraction 2 is out of range; hint:`},
		{good + "plan:\n  swap: {0: 0.5, 1: -0.5}\n", `a.yaml:10: plan.swap: fraction -0.5 is out of range; hint:`},
		{good + "plan:\n  swap: most\n", `a.yaml:10: plan.swap: "most" is not a fraction; hint:`},
		{good + "max_tokens: 1000000\n", `a.yaml:9: max_tokens: 1000000 tokens are 16 steps, but max_steps is 1000; hint: leave one of them out, on the command line with max_steps=null`},
		{strings.Replace(good, "max_steps: 1000", "max_tokens: 1.0e+15", 1), `a.yaml:7: max_tokens: 1000000000000000 tokens are 15258789063 steps, more than the limit of 1000000000; hint:`},
		{good + "min_learning_rate: 7.0e-4\n", `a.yaml:9: min_learning_rate: 0.0007 is more than learning_rate, 0.0006, so the rate would rise to it; hint:`},
		{good + "min_learning_rate: -1\n", `a.yaml:9: min_learning_rate: -1 is out of range; hint:`},
		{good + "warmup_steps: 1001\n", `a.yaml:9: warmup_steps: 1001 is more than max_steps, 1000, so learning_rate would never be reached; hint:`},
		{good + "warmup_steps: -1\n", `a.yaml:9: warmup_steps: -1 is out of range; hint:`},
		{good + "expert_balance: -1\n", `a.yaml:9: expert_balance: -1 is out of range; hint:`},
		{good + "lora: {rank: 0}\n", `a.yaml:9: lora.rank: 0 turns lora off; hint: leave out lora instead, on the command line with lora=null`},
		{good + "lora: {alpha: 3}\n", `lora.rank: missing; hint:`},
		{good + "preference: {beta: 0}\n", `a.yaml:9: preference.beta: 0 turns preference off; hint:`},
		{strings.Replace(good, "runs/first", "$ABSENT/first", 1), `a.yaml:8: out: "$ABSENT/first": the environment variable ABSENT is not set; hint:`},
		{strings.Replace(good, "runs/first", "~", 1), `out: missing; hint:`}, // which is YAML's null
		{"- a\n- b\n", `expected`},
		{good + "validation: v.txt\nvalidation_fraction: 0.1\n", `a.yaml:10: validation_fraction: nothing is held out if validation names files; hint: leave one of the two out, on the command line with validation_fraction=null`},
		{good + "validation: {files: v.txt}\n", `a.yaml:9: validation: expected a name or a list of names; hint:`},
		{good + "val_files: v.txt\n", `a.yaml:9: val_files: unknown key; hint: use validation`},
		{data("{times: 2}"), `a.yaml:2: data: a source names no files; hint:`},
		{data("[a, {files: b, times: 0}]"), `a.yaml:2: data: times 0 of a source is not a number above 0 and at most 1000; hint:`},
		{data("{files: b, times: -1}"), `times -1 of a source`},
		{data("{files: b, times: .nan}"), `times .nan of a source`},
		{data("{files: b, times: .inf}"), `times .inf of a source`},
		{data("{files: b, times: 1.0e+300}"), `times 1.0e+300 of a source`},
		{data("{files: b, times: often}"), `times often of a source`},
		{data("{files: b, weight: 2}"), `a source has the keys files and times, but not weight; hint: use a file or pattern, or {files: code/*.py, times: 2}`},
		{data("{files: b, files: c}"), `a source has files twice; hint:`},
		{data("{files: {a: b}}"), `files of a source is neither a name nor a list of names; hint:`},
		{data("[[a, b]]"), `a.yaml:2: data: expected files; hint:`},
		{data("[a, null]"), `data: expected files; hint:`},
		{"model: [", `did not find`},
		{"", `a.yaml: model, data, tokenizer, sequence_length, global_batch, max_steps, out, learning_rate: missing; hint:`},
		{good + "---\n" + good, `a.yaml:9: a second YAML document begins after ---; hint:`},
		{good + "sample: {prompt: Once}\n", `sample.tokens: missing; hint:`},
	} {
		_, err := Parse("a.yaml", []byte(tc.text), nil)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%q\n got: %v\nwant: %s", tc.text, err, tc.want)
		}
		if err != nil && !errors.Is(err, ErrConfig) {
			t.Errorf("%v is not ErrConfig", err)
		}
	}
}

// TestLength: max_tokens is a way to say max_steps; what the command line says goes before
// what the file says, and null takes it back.
func TestLength(t *testing.T) {
	tokens := strings.Replace(good, "max_steps: 1000", "max_tokens: 655360", 1) // 10 steps
	for _, c := range []struct {
		text, overrides string
		steps           int
	}{
		{tokens, "", 10},
		{tokens, "max_steps=7", 7},
		{tokens, "max_tokens=655361", 11},
		{tokens, "sequence_length=512", 20},
		{tokens, "max_steps=0", 10},
		{tokens, "max_tokens=null max_steps=7", 7},
		{good, "max_tokens=655360", 10},
		{good, "max_steps=null max_tokens=655360", 10},
		{good, "max_tokens=0", 1000},
		{tokens + "max_steps: 10\n", "", 10}, // they agree
		{tokens + "max_steps: 5\n", "max_steps=7", 7},
		{tokens + "max_steps: 5\n", "max_tokens=131072", 2},
		{tokens + "max_steps: 5\n", "", 0},
		{good, "max_tokens=655360 max_steps=7", 0},
		{good, "max_epochs=2", maxSteps}, // until the corpus is known
		{tokens, "max_epochs=0.5", maxSteps},
		{good + "max_epochs: 2\n", "", 0},
		{good + "max_epochs: 2\n", "max_steps=5", 5},
		{tokens + "max_epochs: 2\n", "max_steps=null", 0},
		{good, "max_epochs=2 max_tokens=655360", 0},
		{good, "max_epochs=-1", 0},
		{good, "max_epochs=.nan", 0},
	} {
		got, err := Parse("a.yaml", []byte(c.text), strings.Fields(c.overrides))
		if (err == nil) != (c.steps > 0) || err == nil && got.MaxSteps != c.steps {
			t.Errorf("%s%s: %d steps, %v, want %d", c.text, c.overrides, got.MaxSteps, err, c.steps)
		}
	}
}

// TestPaths: what a shell would expand is expanded in all keys that may name files, and is saved expanded;
// known names stay.
func TestPaths(t *testing.T) {
	t.Setenv("HOME", "/home/me")
	t.Setenv("SCRATCH", "/scratch")
	c, err := Parse("a.yaml", []byte(good), []string{
		"model=~/m", "data=[$SCRATCH/*.txt, {files: ~/c, times: 2}, ~/b]", "validation=$HOME/v", "tokenizer=${SCRATCH}/t", "out=~/runs", "limits.disk_path=$SCRATCH", "plan=~/plan.json", "resume=~/c", "hardware.name=~/h"})
	if err != nil {
		t.Fatal(err)
	}
	text, err := yaml.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	if strings.ContainsAny(string(text), "~$") {
		t.Errorf("saved as\n%s", text)
	}
	again, err := Parse("b.yaml", text, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []*Config{c, again} {
		got := []string{c.Model.Name, c.Data[0].Files[0], c.Data[0].Files[1], c.Data[1].Files[0], c.Validation[0], c.Tokenizer, c.Out, c.Limits.DiskPath, c.Plan.File, c.Resume, c.Hardware.Name}
		want := []string{"/home/me/m", "/scratch/*.txt", "/home/me/b", "/home/me/c", "/home/me/v", "/scratch/t", "/home/me/runs", "/scratch", "/home/me/plan.json", "/home/me/c", "/home/me/h"}
		if !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if c, err = Parse("a.yaml", []byte(good), []string{"tokenizer=bpe-8192"}); err != nil || c.Tokenizer != "bpe-8192" || c.Model.Name != "gpt2" || c.Resume != "auto" {
		t.Errorf("known names: %+v, %v", c, err)
	}
}

// TestOverrideHints: what a hint says to write is read.
func TestOverrideHints(t *testing.T) {
	for _, value := range []string{"*", "[*]", "[*.wte, h.0.*]", "[[0-9]*", `["*", *]`} {
		_, err := Parse("a.yaml", []byte(good), []string{"freeze=" + value})
		if err == nil {
			t.Errorf("%s is read", value)
			continue
		}
		_, hint, _ := strings.Cut(err.Error(), "as YAML requires: '")
		c, err := Parse("a.yaml", []byte(good), []string{strings.TrimSuffix(hint, "'")})
		if err != nil || len(c.Freeze) != 1+strings.Count(value, ",") || !strings.Contains(c.Freeze[0], "*") {
			t.Errorf("%s: the hint %s: %q, %v", value, hint, c.Freeze, err)
		}
	}
}

// TestNull: a key whose value is null is as if it were not there.
func TestNull(t *testing.T) {
	c, err := Parse("a.yaml", []byte(good+"lora: {rank: 4}\npreference: {beta: 0.1}\nwarmup_steps: 3\nlimits: {device: 1}\nmin_learning_rate:\n"),
		[]string{"lora=null", "preference=null", "warmup_steps=null", "limits.device=null"})
	if err != nil || c.LoRA.Rank != 0 || c.Preference.Beta != 0 || c.WarmupSteps != 50 || c.Limits.Device != Unlimited || c.Given("lora") {
		t.Errorf("%+v, %v", c, err)
	}
	if _, err = Parse("a.yaml", []byte(good), []string{"model=null"}); err == nil || !strings.Contains(err.Error(), "model: missing") {
		t.Errorf("model=null: %v", err)
	}
}

// TestTimed: the length of a run with only a time limit, and with it the warm-up, waits for the steps that this
// allows.
func TestTimed(t *testing.T) {
	c, err := Parse("a.yaml", []byte(strings.Replace(good, "max_steps", "max_time: 8h #", 1)), nil)
	if err != nil || !c.Timed() {
		t.Fatal(c.Timed(), err)
	}
	if short := c.WithSteps(200); short.MaxSteps != 200 || short.WarmupSteps != 10 || c.MaxSteps != maxSteps {
		t.Errorf("%d steps, warm-up of %d; %d before", short.MaxSteps, short.WarmupSteps, c.MaxSteps)
	}
	if c, err = Parse("a.yaml", []byte(good), nil); err != nil || c.Timed() {
		t.Error(c.Timed(), err)
	}
}

// FuzzParse: no text makes it panic, and what it accepts it accepts again
// after being written out.
func FuzzParse(f *testing.F) {
	f.Add(good)
	f.Add("a: &x [*x]")
	f.Add(good + "limits: {device: 1}\nplan: {recompute: full}\n")
	f.Add(good + "max_time: 90m\nhardware: {h2d: 2GB/s, name: l4}\nplan: p.json\nlimits: {disk: none}\nfreeze: '*'\n")
	f.Add(strings.Replace(good, "model: gpt2", "model: {type: llama, layers: 2, width: 64, heads: 4, tied: true}", 1) + "plan: {pipeline: 2, stages: [0, 3], cache_bytes: 3MiB}\n")
	f.Add(strings.Replace(good, "max_steps", "max_time: 8h #", 1))
	f.Add(strings.Replace(good, "max_steps", "max_tokens", 1) + "lora: {rank: 3}\n")
	f.Add(good + "plan:\n  swap: {0: 0.5, 3: 1}\n  swap_tier: disk\n")
	f.Add(good + "optimizer: lion\nbeta2: 0.98\n")
	f.Add(data("[a, {files: [b, c], times: 0.5}]") + "validation: [d, e]\n")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := Parse("f.yaml", []byte(text), nil)
		if err != nil {
			return
		}
		written, err := yaml.Marshal(c)
		if err != nil {
			t.Fatalf("cannot write what was read: %v", err)
		}
		again, err := Parse("f.yaml", written, nil)
		if err != nil {
			t.Fatalf("cannot read what was written: %v\n%s", err, written)
		}
		if twice, err := yaml.Marshal(again); err != nil || string(twice) != string(written) {
			t.Fatalf("%v: reads as something else:\n%s\n%s", err, written, twice)
		}
	})
}

// TestOnCorpus: epochs are steps once the corpus is known, and the rate rises and falls within them. A saved configuration has the steps.
func TestOnCorpus(t *testing.T) {
	c, err := Parse("a.yaml", []byte(good), []string{"max_epochs=2.5"})
	check(t, err)
	sequences := int64(10*c.GlobalBatch + 1)
	known := c.OnCorpus(sequences)
	if known.MaxSteps != 26 || known.WarmupSteps != 1 || known.Timed() {
		t.Errorf("%d steps, %d of them to warm up", known.MaxSteps, known.WarmupSteps)
	}
	text, err := yaml.Marshal(known)
	check(t, err)
	again, err := Parse("b.yaml", text, nil)
	if check(t, err); again.MaxSteps != 26 || again.MaxEpochs != 0 {
		t.Errorf("saved: %d steps, %v epochs\n%s", again.MaxSteps, again.MaxEpochs, text)
	}
	if known.OnCorpus(1).MaxSteps != 26 {
		t.Error("what is settled changes")
	}
}

// TestElsewhere: keys of other programs lead to ours.
func TestElsewhere(t *testing.T) {
	known := map[string]bool{}
	for _, k := range Keys() {
		known[k.Name] = true
	}
	for _, e := range elsewhere {
		ours, _, _ := strings.Cut(strings.NewReplacer(":", " ", ",", " ", ";", " ").Replace(e.ours), " ")
		if known[e.theirs] || !known[ours] {
			t.Errorf("%s: is there a key %s?", e.theirs, ours)
		}
	}
	if _, err := Parse("a.yaml", []byte(good+"num_train_epochs: 3\n"), nil); err == nil || !strings.Contains(err.Error(), "unknown key; hint: use max_epochs") {
		t.Error(err)
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
