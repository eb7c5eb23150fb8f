package main

import (
	"bytes"
	"encoding/json"
	"io"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/checkpoint/safetensors"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// packExperts writes a folder of gpt-oss with the experts of testdata/torch/gpt-oss-tiny in all
// layers: in MXFP4, as published, and in bf16, as transformers writes these out. edit may change the
// tensors in MXFP4.
func packExperts(t *testing.T, from, packed, plain string, edit func(info *safetensors.Info, data []byte) []byte) {
	t.Helper()
	set, err := safetensors.OpenIn("../../testdata/torch/gpt-oss-tiny", "mxfp4")
	check(t, err)
	defer set.Close()
	const layers = 2
	var blocks, values []safetensors.Tensor
	for _, info := range set.Tensors() {
		if strings.HasPrefix(info.Name, "range") {
			continue
		}
		data := make([]byte, info.Bytes())
		check(t, set.ReadBytes(info.Name, 0, data))
		for l := range layers {
			at := info
			at.Name = "model.layers." + string(rune('0'+l)) + ".mlp.experts." + info.Name
			if info.DType == safetensors.BF16 {
				values = append(values, raw(at, data))
			} else {
				one := edit(&at, data)
				blocks = append(blocks, raw(at, one))
			}
		}
	}
	others := func(name string) string {
		if strings.HasSuffix(name, "experts.gate_up_proj") || strings.HasSuffix(name, "experts.down_proj") {
			return ""
		}
		return name
	}
	rename(t, from, packed, others, blocks...)
	rename(t, from, plain, others, values...)
	text, err := os.ReadFile(packed + "/config.json")
	check(t, err)
	quantized := strings.Replace(string(text), "{", `{"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]},`, 1)
	check(t, os.WriteFile(packed+"/config.json", []byte(quantized), 0o644))
	for _, to := range []string{packed, plain} {
		tokenizer, err := os.ReadFile(from + "/tokenizer.json")
		check(t, err)
		check(t, os.WriteFile(to+"/tokenizer.json", tokenizer, 0o644))
	}
}

// raw is a tensor of bytes.
func raw(info safetensors.Info, data []byte) safetensors.Tensor {
	return safetensors.Tensor{Info: info, Data: func(w io.Writer) error { _, err := w.Write(data); return err }}
}

func same(_ *safetensors.Info, data []byte) []byte { return data }

const ossModel = "model: {type: gpt_oss, layers: 2, width: 32, heads: 4, kv_heads: 2, feed_forward: 32, experts: 4, window: 8}"

// TestMXFP4Folders: a folder whose experts are in MXFP4 is the same model as one with the same values
// in bf16: for eval, for training, fully and with adapters on weights in 4 bits, and merged. A fully
// trained model is written without MXFP4.
func TestMXFP4Folders(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	folder, file := modelFolder(t, ossModel)
	packed, plain := t.TempDir(), t.TempDir()
	packExperts(t, folder, packed, plain, same)
	tokens := packed + "/t.json"
	check(t, os.WriteFile(tokens, []byte("[[1,2,3,4,5,6,7,8,9,10,11,12,13,14]]"), 0o644))
	loss := func(args ...string) float64 {
		t.Helper()
		var got struct{ Loss float64 }
		call(append([]string{"eval", "--tokens", tokens, "--json"}, args...)...).must(t, 0).into(t, &got)
		if math.IsNaN(got.Loss) || got.Loss == 0 {
			t.Errorf("%v: loss %v", args, got.Loss)
		}
		return got.Loss
	}
	if a, b, c := loss(packed), loss(plain), loss(folder); a != b || a == c {
		t.Errorf("loss %v from MXFP4, %v from bf16, %v of other experts", a, b, c)
	}
	for name, with := range map[string][]string{"full": nil, "adapter": {"lora={rank: 2, targets: [\"*.[qv]_proj.weight\"]}", "quantize=nf4"}} {
		var losses []float64
		for _, from := range []string{packed, plain} {
			out := t.TempDir()
			call(append([]string{"train", file, "model=" + from, "tokenizer=" + from + "/tokenizer.json", "out=" + out, "max_steps=2"}, with...)...).must(t, 0)
			trained := out + "/checkpoint-2"
			losses = append(losses, loss(trained))
			if name == "adapter" {
				merged := out + "/merged"
				call("merge", trained, merged).must(t, 0)
				losses = append(losses, loss(merged))
				continue
			}
			text, err := os.ReadFile(trained + "/config.json")
			check(t, err)
			if bytes.Contains(text, []byte("quantization_config")) || !json.Valid(text) {
				t.Errorf("config.json after training: %s", text)
			}
		}
		if half := len(losses) / 2; losses[0] != losses[half] || losses[half-1] != losses[len(losses)-1] {
			t.Errorf("%s: losses %v, of bf16 %v", name, losses[:half], losses[half:])
		}
	}
}

// TestHostileMXFP4: tensors of other shapes and types, without their scales, with scales that denote no
// number, and truncated files are refused with their name.
func TestHostileMXFP4(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	folder, file := modelFolder(t, ossModel)
	for want, edit := range map[string]func(info *safetensors.Info, data []byte) []byte{
		"has shape": func(info *safetensors.Info, data []byte) []byte {
			if strings.HasSuffix(info.Name, "1.mlp.experts.down_proj_blocks") {
				info.Shape = []int{info.Shape[0], info.Shape[1] / 2, 2, 16}
			}
			return data
		},
		"type I8": func(info *safetensors.Info, data []byte) []byte {
			if strings.HasSuffix(info.Name, "gate_up_proj_scales") {
				info.DType = safetensors.I8
			}
			return data
		},
		"there is no tensor model.layers.0.mlp.experts.gate_up_proj": func(info *safetensors.Info, data []byte) []byte {
			info.Name = strings.Replace(info.Name, "_scales", "_scale", 1)
			return data
		},
		"is 255, more than 252": func(info *safetensors.Info, data []byte) []byte {
			if strings.HasSuffix(info.Name, "1.mlp.experts.gate_up_proj_scales") {
				data = bytes.Clone(data)
				data[len(data)-1] = 255
			}
			return data
		},
	} {
		packed := t.TempDir()
		packExperts(t, folder, packed, t.TempDir(), edit)
		check(t, os.WriteFile(packed+"/t.json", []byte("[[1,2,3]]"), 0o644))
		call("eval", packed, "--tokens", packed+"/t.json").must(t, 1, want, "mlp.experts", "hint:")
		call("train", file, "model="+packed, "tokenizer="+packed+"/tokenizer.json", "out="+t.TempDir()).must(t, 1, want, "mlp.experts", "hint:")
	}
	packed := t.TempDir()
	packExperts(t, folder, packed, t.TempDir(), same)
	path := packed + "/model.safetensors"
	text, err := os.ReadFile(path)
	check(t, err)
	check(t, os.WriteFile(path, text[:len(text)-100], 0o644))
	check(t, os.WriteFile(packed+"/t.json", []byte("[[1,2,3]]"), 0o644))
	call("eval", packed, "--tokens", packed+"/t.json").must(t, 1, "corrupt", "hint:")
	config, err := os.ReadFile(packed + "/config.json")
	check(t, err)
	check(t, os.WriteFile(packed+"/config.json", bytes.Replace(config, []byte(`"mxfp4"`), []byte(`"awq"`), 1), 0o644))
	call("train", file, "model="+packed, "tokenizer="+packed+"/tokenizer.json", "out="+t.TempDir()).must(t, 2, "quantization_config", "awq", "mxfp4", "hint:")
}
