package main

import (
	"os"
	"testing"
)

// TestPruneErrors: what cannot be pruned is said with exit code 2 and a hint, and leaves no folder.
func TestPruneErrors(t *testing.T) {
	dir := t.TempDir()
	text := dir + "/a.txt"
	check(t, os.WriteFile(text, []byte("gold"), 0o644))
	const model = "../../testdata/torch/llama-tiny"
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{model, dir + "/new", "--data", text}, "--sparsity"},
		{[]string{model, dir + "/new", "--sparsity", "0.5"}, "--data"},
		{[]string{model, dir + "/new", "--sparsity", "2", "--data", text}, "hint: use the share"},
		{[]string{model, dir + "/new", "--sparsity", "0.5", "--data", text, "--samples", "0"}, "--samples is 0"},
		{[]string{model, dir + "/new", "--sparsity", "0.5", "--data", text, "--method", "random"}, "sparsegpt"},
		{[]string{dir, dir + "/new", "--sparsity", "0.5", "--data", text}, "is not a model folder"},
	} {
		call(append([]string{"prune"}, c.args...)...).must(t, 2, c.says)
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) != 1 {
		t.Errorf("left behind: %v %v", list, err)
	}
}
