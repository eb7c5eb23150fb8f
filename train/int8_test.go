package train

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/checkpoint/safetensors"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestInt8: a run with weights in int8 has the same bits wherever it was stopped and whatever the plan, also if the configuration it
// goes on with leaves the precision open. It learns, its checkpoints are those of any run, with its matrices in bf16, which are exact, and
// what is not built is refused by name.
func TestInt8(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir := t.TempDir()
	file := runConfig(t, dir)
	run := func(out string, steps int, more ...string) error {
		return trainFile(t.Context(), file, append([]string{"save_every=0", "schedule=constant", "learning_rate=1e-2", "out=" + filepath.Join(dir, out), fmt.Sprint("max_steps=", steps)}, more...))
	}
	check(t, run("one", 8, "precision=int8"))
	check(t, run("two", 3, "precision=int8", "plan.weights=host", "plan.grads=host", "plan.state=disk", "plan.micro_batch=1"))
	check(t, run("two", 8))
	for _, name := range []string{"model.safetensors", "state/m.safetensors", "state/v.safetensors"} {
		if !slices.Equal(read(t, dir+"/one/checkpoint-8", name), read(t, dir+"/two/checkpoint-8", name)) {
			t.Errorf("%s depends on where the run was stopped or on the plan", name)
		}
	}
	if list := losses(t, dir+"/one/metrics.jsonl"); list[len(list)-1] > list[0]-0.2 {
		t.Errorf("nothing is learnt: %v", list)
	}
	inInt8(t, filepath.Join(dir, "one/checkpoint-8"))
	for _, c := range []struct{ says, override string }{
		{"device", "device=cuda"}, {"lora", "lora.rank=4"}, {"quantize", "quantize=nf4"}, {"muon", "optimizer=muon"}, {"bf16_moments", "optimizer_state=bf16"},
		{"keep_mask", "keep_mask=true model=" + dir + "/one/checkpoint-8"}, {"experts", "model.type=mixtral"},
	} {
		if err := run("refused", 8, append(strings.Fields(c.override), "precision=int8")...); err == nil || !strings.Contains(err.Error(), "int8") || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "hint: ") {
			t.Errorf("%s: %v", c.override, err)
		}
	}
	whole := []string{"model=" + dir + "/one/checkpoint-8", `freeze=["model.layers.0.*"]`, "precision=int8", "optimizer=sgd"}
	check(t, run("tuned", 6, whole...))
	if testkit.Count(0, 0, 1) > 0 {
		check(t, run("again", 2, append(whole, "plan.weights=host", "plan.grads=host")...))
		check(t, run("again", 6, whole...))
		if !slices.Equal(read(t, dir+"/tuned/checkpoint-6", "model.safetensors"), read(t, dir+"/again/checkpoint-6", "model.safetensors")) {
			t.Error("a folder's weights end up otherwise where the run was stopped")
		}
	}
	for name, frozen := range map[string]bool{"model.layers.0.mlp.up_proj.weight": true, "model.layers.1.mlp.up_proj.weight": false} {
		if slices.Equal(tensor(t, dir+"/one/checkpoint-8", name), tensor(t, dir+"/tuned/checkpoint-6", name)) != frozen {
			t.Errorf("%s: frozen is %v", name, frozen)
		}
	}
	broken := filepath.Join(dir, "broken")
	check(t, os.MkdirAll(broken, 0o755))
	for _, name := range []string{"config.json", "tokenizer.json", "model.safetensors"} {
		text := read(t, dir+"/one/checkpoint-8", name)
		if name == "model.safetensors" {
			for i := 8 + int(binary.LittleEndian.Uint64(text)); i < len(text); i += 2 { // NaN in bf16, and in fp32 too
				text[i], text[i+1] = 0xc0, 0x7f
			}
		}
		check(t, os.WriteFile(filepath.Join(broken, name), text, 0o644))
	}
	if err := run("refused", 8, "precision=int8", "model="+broken); err == nil || !strings.Contains(err.Error(), "not finite") || !strings.Contains(err.Error(), "hint: ") {
		t.Errorf("weights that are not finite: %v", err)
	}
	if err := run("one", 9, "precision=fp32"); err == nil || !strings.Contains(err.Error(), "int8 there and ") {
		t.Errorf("resumed in fp32: %v", err)
	}
}

// tensor reads a tensor of 96 x 32 numbers.
func tensor(t *testing.T, folder, name string) []float32 {
	t.Helper()
	set, err := safetensors.OpenFolder(folder)
	check(t, err)
	defer set.Close()
	values := make([]float32, 96*32)
	check(t, set.ReadFloat32(name, 0, values))
	return values
}

// inInt8 checks that the matrices of a folder are in bf16 and multiples of a power of two, no more than 127 of them.
func inInt8(t *testing.T, folder string) {
	t.Helper()
	set, err := safetensors.OpenFolder(folder)
	check(t, err)
	defer set.Close()
	matrices := 0
	for _, info := range set.Tensors() {
		if len(info.Shape) != 2 {
			continue
		}
		matrices++
		values := make([]float32, info.Shape[0]*info.Shape[1])
		check(t, set.ReadFloat32(info.Name, 0, values))
		const unit = 1. / 256 // 0.02*16/127 is between this and the half of it
		for i, v := range values {
			units := float64(v) / unit
			if info.DType != safetensors.BF16 || units != math.Trunc(units) || math.Abs(units) > 127 {
				t.Fatalf("%s is in %v, and element %d is %v", info.Name, info.DType, i, v)
			}
		}
	}
	if matrices == 0 {
		t.Error("there are no matrices")
	}
}
