// Package torch reads what PyTorch computed for tiny models, see
// testdata/torch/README.md, and compares with it. It is for tests.
package torch

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/athanor-llm/athanor/checkpoint/safetensors"
	"github.com/athanor-llm/athanor/model"
)

// JSON reads a file into v.
func JSON(t testing.TB, path string, v any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, v)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Tensor returns a tensor of a safetensors file in a folder.
func Tensor(t testing.TB, dir, file, name string) []float64 {
	t.Helper()
	set, err := safetensors.Open(filepath.Join(dir, file))
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	info, ok := set.Lookup(name)
	if !ok {
		t.Fatalf("%s has no %s", file, name)
	}
	values := make([]float32, info.Elements())
	if err := set.ReadFloat32(name, 0, values); err != nil {
		t.Fatal(err)
	}
	return Widened(values)
}

// Read reads a parameter, which is a model's own or a factor of an adapter.
func Read(set *safetensors.Set, p model.Param, dst []float32) error {
	for _, t := range p.Merged().Tensors() {
		name, ok := t.NameIn(func(name string) bool { _, ok := set.Lookup(name); return ok })
		if !ok {
			return fmt.Errorf("there is no tensor %s", t.Name)
		}
		if err := set.ReadFloat32(name, 0, dst[t.First:][:t.Elems()]); err != nil {
			return err
		}
	}
	return nil
}

// Widened returns the values as float64.
func Widened(x []float32) []float64 {
	list := make([]float64, len(x))
	for i, v := range x {
		list[i] = float64(v)
	}
	return list
}

// Norm returns the Euclidean norm.
func Norm(a []float64) float64 {
	var s float64
	for _, v := range a {
		s += v * v
	}
	return math.Sqrt(s)
}

// Distance returns the norm of the difference.
func Distance(a, b []float64) float64 {
	d := make([]float64, len(a))
	for i := range a {
		d[i] = a[i] - b[i]
	}
	return Norm(d)
}
