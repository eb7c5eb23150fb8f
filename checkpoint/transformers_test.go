package checkpoint

import (
	"cmp"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/checkpoint/safetensors"
)

// A checkpoint is a folder that transformers loads, in one file or in shards, with the logits of the folder that the
// weights came from. ATHANOR_PYTHON names an interpreter that has torch and transformers; without one this is skipped.
func TestTransformersLoadsCheckpoint(t *testing.T) {
	python := cmp.Or(os.Getenv("ATHANOR_PYTHON"), "python3")
	for name, shard := range map[string]int64{"gpt2-tiny": 0, "llama-tiny": 40 << 10} {
		folder := filepath.Join("..", "testdata", "torch", name)
		weights, err := safetensors.OpenFolder(folder)
		if err != nil {
			t.Fatal(err)
		}
		defer weights.Close()
		files, err := ModelFiles(folder)
		if err != nil {
			t.Fatal(err)
		}
		snapshot := &Snapshot{Trainer: Trainer{Step: 1}, Files: files}
		for _, info := range weights.Tensors() {
			snapshot.Weights = append(snapshot.Weights, safetensors.Tensor{Info: info, Data: func(w io.Writer) error {
				data := make([]byte, info.Bytes())
				if err := weights.ReadBytes(info.Name, 0, data); err != nil {
					return err
				}
				_, err := w.Write(data)
				return err
			}})
		}
		store := &Store{Dir: t.TempDir(), ShardBytes: shard}
		path, err := store.Save(snapshot)
		if err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command(python, "../tools/check_transformers.py", path, filepath.Join(folder, "tokens.json"),
			filepath.Join(folder, "expected.safetensors"), "1e-6").CombinedOutput()
		var exit *exec.ExitError
		switch {
		case errors.Is(err, exec.ErrNotFound), errors.As(err, &exit) && exit.ExitCode() == 77:
			t.Skipf("no Python with transformers: %v %s", err, out)
		case err != nil || !strings.Contains(string(out), "max relative error"):
			t.Errorf("%s: %v\n%s", name, err, out)
		default:
			t.Logf("%s: %s", name, out)
		}
	}
}
