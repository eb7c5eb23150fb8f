package folder

import (
	"encoding/json"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/checkpoint/safetensors"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// packFP8 writes a folder of a model again with the layers' matrices in FP8, drawn anew.
func packFP8(t *testing.T, r *rand.Rand, from, to string) {
	t.Helper()
	set, err := safetensors.OpenIn(from, "model")
	check(t, err)
	defer set.Close()
	var list []safetensors.Tensor
	raw := func(name string, d safetensors.DType, shape []int, data []byte) {
		list = append(list, safetensors.Tensor{Info: safetensors.Info{Name: name, DType: d, Shape: shape}, Data: func(w io.Writer) error { _, err := w.Write(data); return err }})
	}
	for _, info := range set.Tensors() {
		if len(info.Shape) != 2 || !strings.Contains(info.Name, ".layers.") || strings.HasSuffix(info.Name, "gate.weight") {
			list = append(list, safetensors.Tensor{Info: info, Data: func(w io.Writer) error { return set.CopyBytes(w, info) }})
			continue
		}
		codes := make([]byte, info.Elements())
		for i := range codes {
			codes[i] = byte(r.IntN(0x30) | r.IntN(2)<<7)
		}
		raw(info.Name, safetensors.F8E4M3, info.Shape, codes)
		raw(info.Name+"_scale_inv", safetensors.F32, []int{1, 1}, []byte{0, 0, byte(r.IntN(256)), 0x3e})
		raw(strings.TrimSuffix(info.Name, "weight")+"activation_scale", safetensors.F32, []int{}, []byte{0, 0, 0x80, 0x3f})
	}
	check(t, safetensors.WriteSet(func(name string) (io.WriteCloser, error) { return os.Create(filepath.Join(to, name)) }, "model", 1<<30, nil, list))
	text, err := os.ReadFile(from + "/config.json")
	check(t, err)
	config := strings.Replace(string(text), "{", `{"quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128], "activation_scheme": "dynamic"},`, 1)
	check(t, os.WriteFile(to+"/config.json", []byte(config), 0o644))
}

// TestFP8Folders: a folder in FP8 is read, and exported as numbers: in fp32 the same ones, and in bf16, which is what it becomes where
// files' types are kept, within a rounding.
func TestFP8Folders(t *testing.T) {
	packed := t.TempDir()
	packFP8(t, testkit.Rand(t), "../testdata/torch/deepseek3-tiny", packed)
	from, err := Open(packed)
	check(t, err)
	defer from.Close()
	weights, err := safetensors.OpenIn(packed, "model")
	check(t, err)
	defer weights.Close()
	for as, most := range map[safetensors.DType]float32{safetensors.F32: 0, "": 1.0 / 256} {
		to := filepath.Join(t.TempDir(), "new")
		check(t, Export(t.Context(), packed, to, as, func(string, int64, int64) {}))
		_, err := Open(to)
		check(t, err)
		plain, err := safetensors.OpenIn(to, "model")
		check(t, err)
		different := 0
		for _, p := range from.Model.Params() {
			a, b := make([]float32, p.Elems()), make([]float32, p.Elems())
			check(t, ReadParam(weights, p, 0, a))
			check(t, ReadParam(plain, p, 0, b))
			for i := range a {
				if d := a[i] - b[i]; max(d, -d) > most*max(a[i], -a[i]) {
					t.Fatalf("%q: %s: %v is exported as %v", as, p.Name, a[i], b[i])
				}
			}
			if !slices.Equal(a, b) {
				different++
			}
		}
		if (different > 0) != (as == "") {
			t.Errorf("%q: %d parameters are rounded", as, different)
		}
		text, err := os.ReadFile(to + "/config.json")
		check(t, err)
		if !json.Valid(text) || strings.Contains(string(text), "quantization_config") {
			t.Errorf("config.json of what is exported: %s", text)
		}
		check(t, plain.Close())
	}
}
