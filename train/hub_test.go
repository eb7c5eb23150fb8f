package train

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/folder"
	"github.com/athanor-llm/athanor/job"
)

// TestHub: a model that Hugging Face's tools have downloaded, whose files are links, can be named as on the hub: for
// inference, as the model of an adapter, and for training.
func TestHub(t *testing.T) {
	ctx, quiet := context.Background(), func(string, int64, int64) {}
	const fixture = "../testdata/torch/llama-tiny"
	hub := t.TempDir()
	repo := filepath.Join(hub, "models--org--tiny")
	for path, content := range map[string][]byte{"refs/main": []byte("c0ffee"), "blobs/1": read(t, fixture, "config.json"), "blobs/2": read(t, fixture, "model.safetensors")} {
		path = filepath.Join(repo, path)
		check(t, os.MkdirAll(filepath.Dir(path), 0o777))
		check(t, os.WriteFile(path, content, 0o666))
	}
	snapshot := filepath.Join(repo, "snapshots", "c0ffee")
	check(t, os.MkdirAll(snapshot, 0o777))
	check(t, os.Symlink("../../blobs/1", filepath.Join(snapshot, "config.json")))
	check(t, os.Symlink("../../blobs/2", filepath.Join(snapshot, "model.safetensors")))
	t.Setenv("HF_HUB_CACHE", hub)

	adapter := t.TempDir()
	check(t, os.CopyFS(adapter, os.DirFS(fixture+"/lora")))
	text := strings.Replace(string(read(t, adapter, folder.AdapterFile)), `".."`, `"org/tiny"`, 1)
	check(t, os.WriteFile(filepath.Join(adapter, folder.AdapterFile), []byte(text), 0o666))

	for from, want := range map[string]string{"org/tiny": fixture, adapter: fixture + "/lora"} {
		to := filepath.Join(t.TempDir(), "out")
		check(t, folder.Export(ctx, from, to, "", quiet))
		check(t, folder.Export(ctx, want, to+"2", "", quiet))
		if string(read(t, to, "model.safetensors")) != string(read(t, to+"2", "model.safetensors")) {
			t.Errorf("%s has other weights than %s", from, want)
		}
	}
	c, err := config.Parse("a.yaml", []byte("model: org/tiny\ntokenizer: bpe-300\ndata: none\nsequence_length: 8\nglobal_batch: 1\nlearning_rate: 1e-3\nmax_steps: 1\nout: none\n"), nil)
	check(t, err)
	spec, err := job.Settle(config.ToTrain, c, func(string) {})
	check(t, err)
	if _, folder, _, err := findModel(spec, 0); err != nil || folder != snapshot {
		t.Errorf("to train: %s, %v", folder, err)
	}
	spec.Model.Name = "org/absent"
	if got := sizesOf("meta-llama/Meta-Llama-3-8B-Instruct"); !strings.Contains(got, " llama-3-8b is known") {
		t.Errorf("for Llama-3-8B of the hub it offers %q", got)
	}
	if _, _, _, err := findModel(spec, 0); err == nil || !strings.Contains(err.Error(), "hint: hf download org/absent") {
		t.Errorf("what was not downloaded: %v", err)
	}
	if _, err := folder.Open("org/absent"); err == nil || !strings.Contains(err.Error(), "hf download org/absent") {
		t.Errorf("what was not downloaded, opened: %v", err)
	}
}

func read(t *testing.T, dir, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, name))
	check(t, err)
	return text
}
