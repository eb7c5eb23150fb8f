package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPurposes: what a configuration lacks depends on what it is read for. To plan, a model can take the place
// of a file; the run's length is then unknown unless it is given.
func TestPurposes(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	whole := write("whole.yaml", good)
	shape := write("shape.yaml", "model: gpt2\nsequence_length: 8\nglobal_batch: 2\n")
	text := write("text.yml", "data: a.txt\ntokenizer: gpt2\n")
	bare := write("bare.yaml", "data: a.txt\nmodel: {type: gpt2, layers: 1, width: 8, heads: 1}\n")
	for _, c := range []struct {
		to        Purpose
		file      string
		overrides string
		lacks     string // what the error says; none: ""
	}{
		{ToTrain, whole, "", ""}, {ToPlan, whole, "", ""}, {ToRead, whole, "", ""},
		{ToTrain, shape, "", "data, max_steps, out, learning_rate: missing; hint: a run needs"}, {ToPlan, shape, "", ""}, {ToRead, shape, "", "data: missing; hint: reading text needs"},
		{ToTrain, text, "", "model, sequence_length"}, {ToPlan, text, "", "model, sequence_length, global_batch: missing; hint: a plan needs"}, {ToRead, text, "", ""},
		{ToPlan, bare, "sequence_length=8 global_batch=2", "tokenizer: missing"}, {ToPlan, bare, "sequence_length=8 global_batch=2 data=null", ""},
		{ToPlan, "gpt2", "sequence_length=8 global_batch=2", ""}, {ToPlan, "model=gpt2", "sequence_length=8 global_batch=2", ""}, {ToTrain, "gpt2", "", "cannot read the file"}, {ToPlan, dir, "sequence_length=8 global_batch=2", ""},
		{ToTrain, dir, "", "not a configuration file"}, {ToPlan, "absent.yaml", "", "cannot read the file"},
		{ToPlan, "gpt2", "sequence_length=0 global_batch=2", "out of range"},
	} {
		got, err := LoadTo(c.to, c.file, strings.Fields(c.overrides))
		if c.lacks == "" && err != nil || c.lacks != "" && (err == nil || !strings.Contains(err.Error(), c.lacks)) {
			t.Errorf("%d: %s %s: %v, want %q", c.to, c.file, c.overrides, err, c.lacks)
		}
		if c.file == "gpt2" && err == nil && (got.Model.Name != "gpt2" || got.MaxSteps != 0 || got.Timed()) {
			t.Errorf("a model: %+v", got)
		}
	}
	for overrides, steps := range map[string]int{"max_steps=7": 7, "max_time=1h": maxSteps, "max_tokens=160": 10} {
		if c, err := LoadTo(ToPlan, shape, strings.Fields(overrides)); err != nil || c.MaxSteps != steps {
			t.Errorf("%s: %+v, %v", overrides, c, err)
		}
	}
}
