package folder

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/athanor-llm/athanor/checkpoint/safetensors"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestExport: an exported folder has the weights of the original, in the requested type, rounded to the nearest, and tells its
// readers the type. Once rounded, weights do not change any more.
func TestExport(t *testing.T) {
	ctx, quiet := context.Background(), func(string, int64, int64) {}
	for _, dir := range testkit.Sample([]string{"../testdata/torch/llama-tiny", "../testdata/torch/gpt2-tiny", "../testdata/torch/mixtral-tiny/lora"}, 1, 3) {
		to := filepath.Join(t.TempDir(), "out")
		check(t, Export(ctx, dir, to+"32", safetensors.F32, quiet))
		check(t, Export(ctx, dir, to, safetensors.BF16, quiet))
		check(t, Export(ctx, to, to+"again", "", quiet))
		full, half, again := weightsOf(t, to+"32"), weightsOf(t, to), weightsOf(t, to+"again")
		if len(half) != len(full) || len(full) == 0 {
			t.Fatalf("%s: %d tensors, %d in fp32", dir, len(half), len(full))
		}
		for name, values := range full {
			for i, v := range values {
				if want := float32(graph.BF16.Round(float64(v))); half[name][i] != want || again[name][i] != want {
					t.Fatalf("%s: %s[%d] is %v and %v, want %v", dir, name, i, half[name][i], again[name][i], want)
				}
			}
		}
		for folder, want := range map[string]string{to: "bfloat16", to + "32": "float32"} {
			var c map[string]any
			text, err := os.ReadFile(filepath.Join(folder, "config.json"))
			check(t, err)
			check(t, json.Unmarshal(text, &c))
			if c["dtype"] != want && c["torch_dtype"] != want {
				t.Errorf("%s: dtype %v, torch_dtype %v", folder, c["dtype"], c["torch_dtype"])
			}
		}
		a, err := os.Stat(filepath.Join(to, "model.safetensors"))
		check(t, err)
		b, err := os.Stat(filepath.Join(to+"32", "model.safetensors"))
		check(t, err)
		if r := float64(a.Size()) / float64(b.Size()); r > 0.55 {
			t.Errorf("%s: in bf16 the file has %.2f of the bytes", dir, r)
		}
	}
}

// weightsOf reads all tensors of a folder.
func weightsOf(t *testing.T, dir string) map[string][]float32 {
	t.Helper()
	set, err := safetensors.OpenFolder(dir)
	check(t, err)
	defer set.Close()
	all := map[string][]float32{}
	for _, info := range set.Tensors() {
		all[info.Name] = make([]float32, info.Elements())
		check(t, set.ReadFloat32(info.Name, 0, all[info.Name]))
	}
	return all
}
