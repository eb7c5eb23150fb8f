package train

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/checkpoint/safetensors"
	"github.com/athanor-llm/athanor/model/family"
)

// TestStacked: a mixture with linear attention is trained alike whether its files have each expert by itself or, as published ones, all in
// one tensor; tensors that predict further tokens are written back byte for byte.
func TestStacked(t *testing.T) {
	dir := t.TempDir()
	file := runConfig(t, dir)
	train := func(args ...string) string {
		t.Helper()
		tr, _ := openRun(t, file, append(args, "schedule=constant", "warmup_steps=0", "max_steps=1")...)
		check(t, errors.Join(tr.Train(t.Context(), &events{}), tr.Close()))
		return tr.Setup.Spec.Out + "/checkpoint-1"
	}
	const plain = "../testdata/torch/qwen35-moe-tiny"
	given := filepath.Join(dir, "given")
	check(t, os.Mkdir(given, 0o777))
	config := read(t, plain, "config.json")
	check(t, os.WriteFile(filepath.Join(given, "config.json"), config, 0o666))
	m, _, err := family.Parse(config)
	check(t, err)
	set, err := safetensors.OpenFolder(plain)
	check(t, err)
	const ahead = "mtp.layers.0.mlp.gate.weight"
	list := []safetensors.Tensor{safetensors.Float32s(ahead, safetensors.BF16, []int{2, 2}, []float32{1, 2, 3, 4})}
	for _, p := range m.Params() {
		var all []float32
		for _, part := range p.Tensors() {
			values := make([]float32, part.Elems())
			check(t, set.ReadFloat32(part.Name, 0, values))
			all = append(all, values...)
		}
		shape := p.Tensors()[0].Shape
		if p.Experts > 0 {
			shape = []int{p.Experts, p.Rows / p.Experts, p.Cols}
		}
		list = append(list, safetensors.Float32s(p.Name, safetensors.F32, shape, all))
	}
	f, err := os.Create(filepath.Join(given, "model.safetensors"))
	check(t, err)
	check(t, errors.Join(safetensors.Write(f, nil, list), f.Close(), set.Close()))

	want := bytesOf(t, train("model="+plain, "resize_vocab=true", "out="+dir+"/one"))
	before, after := bytesOf(t, given), bytesOf(t, train("model="+given, "resize_vocab=true", "out="+dir+"/other"))
	if len(after) != len(want)+1 || !bytes.Equal(after[ahead], before[ahead]) {
		t.Errorf("%d tensors are written, of %d and %s", len(after), len(want), ahead)
	}
	for name, was := range want {
		if !bytes.Equal(after[name], was) {
			t.Errorf("%s has other bytes", name)
		}
	}
	if !slices.ContainsFunc(list, func(x safetensors.Tensor) bool { return strings.HasSuffix(x.Name, ".mlp.experts.gate_up_proj") }) {
		t.Error("no experts are stacked")
	}
}
