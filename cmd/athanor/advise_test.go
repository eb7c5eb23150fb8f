package main

import (
	"cmp"
	"os"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/advise"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/job"
	"github.com/athanor-llm/athanor/optimizer"
)

const adviseConfig = `# kept
model: {type: llama, layers: 2, width: 64, heads: 1}
data: ../../advise/*.go
tokenizer: bpe-300
sequence_length: 32
global_batch: 2
learning_rate: 0.003
max_steps: 50
device: cpu
`

// TestAdviseErrors: what cannot be advised on is said with exit code 2 and a hint, and no configuration is written.
func TestAdviseErrors(t *testing.T) {
	dir := t.TempDir()
	file := dir + "/a.yaml"
	check(t, os.WriteFile(file, []byte(adviseConfig+"out: "+dir+"/run\n"), 0o644))
	for _, c := range []struct {
		args []string
		says string
	}{
		{nil, "max_time: advise needs it"},
		{[]string{"max_time=10s", "--share", "0"}, "--share is 0"},
		{[]string{"max_time=10s", "--share", "0.6"}, "--share is 0.6"},
		{[]string{"max_time=10s", "model=../../testdata/torch/llama-tiny"}, "from scratch"},
	} {
		call(append([]string{"advise", file, "--out", dir + "/advised.yaml"}, c.args...)...).must(t, 2, c.says)
	}
	if _, err := os.Stat(dir + "/advised.yaml"); err == nil {
		t.Error("a configuration was written")
	}
}

// TestAdvise: the configuration that is written has the advised model and what was in the first, and trains.
func TestAdvise(t *testing.T) {
	testkit.Needs(t, testkit.All)
	dir := t.TempDir()
	file, advised := dir+"/a.yaml", dir+"/advised.yaml"
	check(t, os.WriteFile(file, []byte(adviseConfig+"out: "+dir+"/run\n"), 0o644))
	text := strings.Repeat("what is said again and again is soon known by heart, so short runs learn more than how frequent its words are; ", 2000)
	check(t, os.WriteFile(dir+"/text.txt", []byte(text), 0o644))
	if r := call("advise", file, "max_time=60s", "seed=7", "data="+dir+"/text.txt", "--out", advised).must(t, 0, "pilot 6"); !strings.Contains(r.stdout, "advised: ") {
		t.Errorf("nothing is advised:\n%s", r.stdout)
	}
	written, err := os.ReadFile(advised)
	check(t, err)
	for _, want := range []string{"# kept", "type: llama", "seed: 7", "max_time: ", "sequence_length: 32"} {
		if !strings.Contains(string(written), want) {
			t.Errorf("%q is missing in\n%s", want, written)
		}
	}
	if strings.Contains(string(written), "max_steps") {
		t.Errorf("max_steps is still there:\n%s", written)
	}
	call("train", advised, "max_time=3s").must(t, 0)
}

// TestAdviseRates: a learning rate of its own for matrices stays so many times the other.
func TestAdviseRates(t *testing.T) {
	for muon, want := range map[float64]string{1: "", 2: "muon.learning_rate=0.004"} {
		spec := job.Spec{Muon: optimizer.MuonTerms{Rate: muon}}
		l := &lab{spec: &spec}
		list, err := l.changes(advise.Setting{Shape: advise.Shape{Layers: 2, Width: 64, Heads: 1}, Batch: 4, Rate: 0.002})
		check(t, err)
		if got := list[len(list)-1]; got != cmp.Or(want, "learning_rate=0.002") {
			t.Errorf("%v: %s", muon, got)
		}
	}
}
