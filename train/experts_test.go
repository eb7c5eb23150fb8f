package train

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/checkpoint/safetensors"
	"github.com/athanor-llm/athanor/folder"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestMixtureResumes: a mixture of experts that is stopped at arbitrary steps and resumed
// under other plans has the weights, moments and losses of the run without interruption, bit
// by bit. Its folder has a tensor for each matrix of an expert, as Hugging Face's have, and
// training continues from these.
func TestMixtureResumes(t *testing.T) {
	testkit.Needs(t, testkit.All)
	seed := testkit.Seed(t)
	r := rand.New(rand.NewPCG(seed, 1))
	dir := t.TempDir()
	file := runConfig(t, dir)
	const steps = 20
	train := func(out string, n int, more ...string) {
		t.Helper()
		check(t, trainFile(context.Background(), file, append([]string{"out=" + filepath.Join(dir, out), "save_every=0", "keep_checkpoints=1", "schedule=constant", fmt.Sprint("max_steps=", n)}, more...)))
	}
	mixture := "model={type: mixtral, layers: 2, width: 32, heads: 4, kv_heads: 2, feed_forward: 24, experts: 4, active_experts: 2}"
	train("straight", steps, mixture)
	for n := 3 + r.IntN(5); n < steps; n += 1 + r.IntN(7) {
		train("pieces", n, mixture, "limits.device="+[]string{"400KiB", "600KiB", "10MiB"}[r.IntN(3)])
	}
	train("pieces", steps, mixture)
	folder := func(out string) string { return filepath.Join(dir, out, fmt.Sprint("checkpoint-", steps)) }
	for _, name := range []string{"model.safetensors", "state/m.safetensors", "state/v.safetensors"} {
		one, err := os.ReadFile(filepath.Join(folder("straight"), name))
		check(t, err)
		other, err := os.ReadFile(filepath.Join(folder("pieces"), name))
		check(t, err)
		if !slices.Equal(one, other) {
			t.Errorf("%s differs", name)
		}
	}
	names := func(path string) (list []string) {
		set, err := safetensors.OpenFolder(path)
		check(t, err)
		defer set.Close()
		patterns := map[string]bool{}
		for _, info := range set.Tensors() {
			if strings.Contains(info.Name, "layers.1.") {
				patterns[info.Name] = true
			}
		}
		return slices.Sorted(maps.Keys(patterns))
	}
	if ours, theirs := names(folder("straight")), names("../testdata/torch/mixtral-tiny"); !slices.Equal(ours, theirs) {
		t.Errorf("tensors %v\nwant %v", ours, theirs)
	}
	train("tuned", 2, "model="+folder("straight"))
}

// TestRouterNotFinite: a folder whose router has a NaN is not trained from, even if the router is frozen; the error
// names the router and the folder.
func TestRouterNotFinite(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	const router = "model.layers.1.mlp.gate.weight"
	dir := t.TempDir()
	file := runConfig(t, dir)
	train := func(out string, more ...string) error {
		return trainFile(context.Background(), file, append([]string{"out=" + filepath.Join(dir, out), "save_every=0", "max_steps=1"}, more...))
	}
	check(t, train("whole", "model={type: qwen3_moe, layers: 2, width: 32, heads: 4, experts: 4}"))
	broken := filepath.Join(dir, "whole", "checkpoint-1")
	set, err := safetensors.OpenFolder(broken)
	check(t, err)
	var tensors []safetensors.Tensor
	for _, info := range set.Tensors() {
		n := 1
		for _, d := range info.Shape {
			n *= d
		}
		values := make([]float32, n)
		check(t, set.ReadFloat32(info.Name, 0, values))
		if info.Name == router {
			values[7] = float32(math.NaN())
		}
		tensors = append(tensors, safetensors.Float32s(info.Name, safetensors.F32, info.Shape, values))
	}
	check(t, set.Close())
	var text bytes.Buffer
	check(t, safetensors.Write(&text, nil, tensors))
	check(t, os.WriteFile(filepath.Join(broken, "model.safetensors"), text.Bytes(), 0o644))
	for name, more := range map[string][]string{"all": nil, "frozen": {"freeze=[\"*.mlp.gate.weight\"]"}, "adapters": {"lora={rank: 2}"}, "skipped": {"skip_spikes=6", "max_steps=20"}} {
		err := train(name, append([]string{"model=" + broken}, more...)...)
		if !errors.Is(err, folder.ErrNumeric) || !strings.Contains(err.Error(), router+" has a NaN") || !strings.Contains(err.Error(), "the weights in "+broken) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
