package main

import (
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/config"
)

// TestKeys: what the verb prints is a configuration except for the keys that a run needs, with
// the whole description of each key next to it.
func TestKeys(t *testing.T) {
	r := call("keys").must(t, 0)
	_, file := tiny(t)
	needed, err := config.Load(file, nil)
	check(t, err)
	got, err := config.Parse("keys.yaml", []byte(r.stdout), []string{"model=gpt2", "data=" + needed.Data[0].Files[0], "tokenizer=gpt2",
		"sequence_length=32", "global_batch=4", "learning_rate=1e-3", "max_steps=3", "out=x"})
	if err != nil || got.EvalBatches != config.Default().EvalBatches || got.Preference.Beta != 0 {
		t.Errorf("%v\n%s", err, r.stdout)
	}
	plain := strings.Join(strings.Fields(strings.ReplaceAll(r.stdout, " # ", " ")), " ")
	for _, k := range config.Keys() {
		if !strings.Contains(plain, k.Help) {
			t.Errorf("of %s it does not say %q", k.Name, k.Help)
		}
	}
	for line := range strings.Lines(r.stdout) {
		if len(line) > 130 {
			t.Errorf("too long: %s", line)
		}
	}
	if one := call("keys", "limits.device").must(t, 0).stdout; !strings.Contains(one, "device:") || strings.Count(one, "\n") != 1 {
		t.Errorf("one key: %s", one)
	}
	call("keys", "limits.devise").must(t, 2, "hint: did you mean limits.device?")
	call("keys", "zzzzzzzzzzzzzzz").must(t, 2, "hint:")
	if list := call("keys", "--json").must(t, 0).object(t)["keys"].([]any); len(list) != len(config.Keys()) {
		t.Errorf("%d keys in JSON, not %d", len(list), len(config.Keys()))
	}
}
