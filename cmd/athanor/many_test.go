package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestContinueFile: of a file of prompts, each gets the text that generate gives it by itself; again, nothing is left to do.
func TestContinueFile(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	model, _ := modelFolder(t)
	prompts := []string{"gold", "the copper is gold", "", strings.Repeat("gold ", 15)}
	path, text := t.TempDir()+"/prompts.jsonl", ""
	for _, p := range prompts {
		line, err := json.Marshal(map[string]any{"prompt": p})
		check(t, err)
		text += string(line) + "\n"
	}
	check(t, os.WriteFile(path, []byte(text), 0o644))
	args := []string{"generate", model, "--prompts", path, "--out", path + ".out", "--max-tokens", "12", "--seed", "3"}
	call(args...).must(t, 0, "4 lines: ", "4 texts at once")
	call(args...).must(t, 0, "0 lines (4 were there): nothing is left to do")
	out, err := os.ReadFile(path + ".out")
	check(t, err)
	for i, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		var got struct{ Text string }
		check(t, json.Unmarshal([]byte(line), &got))
		var alone struct{ Text string }
		call("generate", model, "--prompt", prompts[i], "--max-tokens", "12", "--seed", "3", "--json").must(t, 0).into(t, &alone)
		if prompts[i]+got.Text != alone.Text {
			t.Errorf("%q goes on %q, alone %q", prompts[i], got.Text, alone.Text)
		}
	}
	object := call(append(args[:4:4], "--out", path+".2", "--sequences", "2", "--json")...).must(t, 0).object(t)
	for _, field := range strings.Fields("lines kept_lines prompt_tokens tokens seconds sequences context device_bytes") {
		if !has(object, []string{field}) {
			t.Errorf("there is no %s: %v", field, object)
		}
	}
	limit := fmt.Sprintf("--device-memory=%dB", int64(object["device_bytes"].(float64))*2/3)
	if plan := call(append(args[:4:4], limit, "--explain")...).must(t, 0); !strings.Contains(plan.stdout, "on the device and ") || !strings.Contains(plan.stdout, "tokens per second") {
		t.Errorf("in blocks: %s", plan.stdout)
	}
	call(append(args[:5:5], path+".3", "--max-tokens", "12", "--seed", "3", limit)...).must(t, 0, "were copied from the host", "predicted")
	if blocks, err := os.ReadFile(path + ".3"); err != nil || string(blocks) != string(out) {
		t.Errorf("in blocks other texts: %v\n%s\n%s", err, blocks, out)
	}
	if plan := call(append(args[:4:4], "--explain")...).must(t, 0); !strings.Contains(plan.stdout, "all weights are on the device") {
		t.Errorf("with enough memory: %s", plan.stdout)
	}
	call(append(args, "--sequences", "-1")...).must(t, 2, "hint:")
	call(args[:4]...).must(t, 2, "--out", "hint:")
	call("generate", model, "--out", path+".3").must(t, 2, "--prompts", "hint:")
	call("generate", model, "--prompts", path, "--out", path).must(t, 2, "hint:")
	call(append(args[:5:5], path+".4", "--device-memory", "10KB")...).must(t, 3, "does not fit")
	check(t, os.WriteFile(path, []byte(text+"{}\n"), 0o644))
	call(args...).must(t, 2, "prompts.jsonl: line 5: ", "hint:")
}
