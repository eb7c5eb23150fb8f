package train

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/checkpoint/safetensors"
)

// TestAhead: training a mixture in bf16 changes no bit of its routers' biases, and layers in its files beyond the last, which
// predict further tokens, are written back byte for byte. From random weights no term evens out the use of experts, and one is refused.
func TestAhead(t *testing.T) {
	dir := t.TempDir()
	file := runConfig(t, dir)
	train := func(args ...string) string {
		t.Helper()
		tr, _ := openRun(t, file, append(args, "schedule=constant", "warmup_steps=0", "max_steps=1")...)
		check(t, errors.Join(tr.Train(t.Context(), &events{}), tr.Close()))
		return tr.Setup.Spec.Out + "/checkpoint-1"
	}
	sizes := "model={type: glm4_moe, layers: 2, width: 32, heads: 4, kv_heads: 2, experts: 4, active_experts: 2}"
	plain := train(sizes, "out="+dir+"/plain")
	given := filepath.Join(dir, "given")
	check(t, os.Mkdir(given, 0o777))
	check(t, os.WriteFile(filepath.Join(given, "config.json"), read(t, plain, "config.json"), 0o666))
	set, err := safetensors.OpenFolder(plain)
	check(t, err)
	list := []safetensors.Tensor{safetensors.Float32s("model.layers.2.eh_proj.weight", safetensors.BF16, []int{2, 2}, []float32{1, 2, 3, 4})}
	for _, info := range set.Tensors() {
		values := make([]float32, info.Elements())
		check(t, set.ReadFloat32(info.Name, 0, values))
		if strings.HasSuffix(info.Name, "e_score_correction_bias") {
			copy(values, []float32{8.1234567, 8.1234568, -0.3333333, 1e-9})
		}
		list = append(list, safetensors.Float32s(info.Name, safetensors.F32, info.Shape, values))
	}
	f, err := os.Create(filepath.Join(given, "model.safetensors"))
	check(t, err)
	check(t, errors.Join(safetensors.Write(f, nil, list), f.Close(), set.Close()))

	before, after := bytesOf(t, given), bytesOf(t, train("model="+given, "tokenizer="+plain, "precision=bf16", "out="+dir+"/out"))
	kept := 0
	for name, was := range before {
		if strings.HasSuffix(name, "e_score_correction_bias") || strings.HasPrefix(name, "model.layers.2.") {
			if kept++; !bytes.Equal(after[name], was) {
				t.Errorf("%s has other bytes", name)
			}
		} else if bytes.Equal(after[name], was) {
			t.Errorf("%s is not trained", name)
		}
	}
	if kept != 2 || len(after) != len(before) {
		t.Errorf("%d tensors are kept, %d of %d are written", kept, len(after), len(before))
	}
	if _, err := Prepare(t.Context(), settled(t, file, sizes, "expert_balance=0.01"), func(string, int64, int64) {}); err == nil || !strings.Contains(err.Error(), "set expert_balance to 0") {
		t.Errorf("a term that evens out: %v", err)
	}
}
