package train

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/checkpoint/safetensors"
	"github.com/athanor-llm/athanor/folder"
)

// TestSees: the text part of a model that also sees is trained as a model of its own is, bit for bit, resumed, and written back under
// the names that were read, with all other tensors, byte for byte, and with the other keys of config.json. Adapters are of the text
// part only.
func TestSees(t *testing.T) {
	dir := t.TempDir()
	file := runConfig(t, dir)
	train := func(args ...string) string {
		t.Helper()
		tr, _ := openRun(t, file, append(args, "schedule=constant", "warmup_steps=0", "save_every=1")...)
		check(t, errors.Join(tr.Train(t.Context(), &events{}), tr.Close()))
		return tr.Setup.Spec.Out
	}
	plain := train("model={type: llama, layers: 2, width: 32, heads: 4, kv_heads: 2}", "max_steps=1", "out="+dir+"/plain") + "/checkpoint-1"
	tokenizer := "tokenizer=" + plain
	text := train("model="+plain, tokenizer, "max_steps=2", "out="+dir+"/text")

	for _, layout := range []struct{ name, text, head string }{
		{"old", "language_model.model.", "language_model.lm_head.weight"}, {"new", "model.language_model.", "lm_head.weight"},
	} {
		whole := filepath.Join(dir, layout.name)
		wrap(t, plain, whole, func(name string) string {
			if name == "lm_head.weight" {
				return layout.head
			}
			return layout.text + strings.TrimPrefix(name, "model.")
		})
		out := dir + "/run-" + layout.name
		train("model="+whole, tokenizer, "max_steps=1", "out="+out)
		train("model="+whole, tokenizer, "max_steps=2", "out="+out) // goes on
		if a, b := losses(t, text+"/metrics.jsonl"), losses(t, out+"/metrics.jsonl"); !slices.Equal(a, b) {
			t.Errorf("%s: losses %v, of the text model %v", layout.name, b, a)
		}
		exported := filepath.Join(dir, "exported-"+layout.name)
		check(t, folder.Export(t.Context(), out+"/checkpoint-2", exported, "", func(string, int64, int64) {}))
		given, trained := bytesOf(t, whole), bytesOf(t, text+"/checkpoint-2")
		for _, got := range []map[string][]byte{bytesOf(t, out+"/checkpoint-2"), bytesOf(t, exported)} {
			if len(got) != len(given) {
				t.Errorf("%s: %d tensors of %d", layout.name, len(got), len(given))
			}
			for name, was := range given {
				bare := strings.Replace(strings.Replace(name, layout.text, "model.", 1), layout.head, "lm_head.weight", 1)
				if want, ok := trained[bare]; ok {
					was = want
				}
				if !bytes.Equal(got[name], was) {
					t.Errorf("%s: %s has other bytes", layout.name, name)
				}
			}
		}
		before, after := configOf(t, whole), configOf(t, exported)
		delete(before, "text_config")
		delete(after, "text_config")
		if !reflect.DeepEqual(before, after) {
			t.Errorf("%s: config.json has %v\nwas %v", layout.name, after, before)
		}
	}

	adapted := train("model="+dir+"/old", tokenizer, "lora={rank: 2}", "max_steps=1", "out="+dir+"/lora") + "/checkpoint-1"
	var c struct {
		Targets string `json:"target_modules"`
	}
	check(t, json.Unmarshal(read(t, adapted, folder.AdapterFile), &c))
	targets := regexp.MustCompile("^(?:" + c.Targets + ")$")
	for name, want := range map[string]bool{
		"model.language_model.layers.1.self_attn.q_proj": true, "model.language_model.layers.0.mlp.down_proj": true,
		"model.vision_tower.layers.0.self_attn.q_proj": false, "lm_head": false, "model.language_model.embed_tokens": false,
	} {
		if targets.MatchString(name) != want {
			t.Errorf("%s: %s gets an adapter: %v", c.Targets, name, !want)
		}
	}
	for name := range bytesOf(t, adapted) {
		if !strings.HasPrefix(name, "base_model.model.model.language_model.layers.") {
			t.Errorf("the adapter has a tensor %s", name)
		}
	}
	check(t, folder.Merge(t.Context(), adapted, dir+"/merged", func(string, int64, int64) {}))
	given, merged := bytesOf(t, dir+"/old"), bytesOf(t, dir+"/merged")
	for name, was := range given {
		if same, adapts := bytes.Equal(merged[name], was), strings.Contains(name, "_proj.weight") && strings.HasPrefix(name, "language_model."); same == adapts {
			t.Errorf("merged: %s is the same: %v", name, same)
		}
	}
}

// wrap makes a model that sees of a text model's folder.
func wrap(t *testing.T, from, to string, rename func(string) string) {
	t.Helper()
	check(t, os.Mkdir(to, 0o777))
	text := configOf(t, from)
	all, err := json.Marshal(map[string]any{
		"model_type": "llava", "architectures": []string{"LlavaForConditionalGeneration"}, "torch_dtype": "float32", "image_token_index": 7,
		"text_config": text, "vision_config": map[string]any{"model_type": "clip_vision_model", "hidden_size": 4}, "a_key_of_its_own": []int{1, 2},
	})
	check(t, err)
	check(t, os.WriteFile(filepath.Join(to, "config.json"), all, 0o666))
	set, err := safetensors.OpenFolder(from)
	check(t, err)
	defer set.Close()
	list := []safetensors.Tensor{
		safetensors.Float32s("vision_tower.layers.0.self_attn.q_proj.weight", safetensors.BF16, []int{2, 3}, []float32{1, 2, 3, -4, 5, 6}),
		safetensors.Float32s("vision_tower.position_ids", safetensors.F16, []int{2}, []float32{0.5, 2}),
	}
	for _, info := range set.Tensors() {
		values := make([]float32, info.Elements())
		check(t, set.ReadFloat32(info.Name, 0, values))
		list = append(list, safetensors.Float32s(rename(info.Name), safetensors.F32, info.Shape, values))
	}
	f, err := os.Create(filepath.Join(to, "model.safetensors"))
	check(t, err)
	check(t, errors.Join(safetensors.Write(f, nil, list), f.Close()))
}

// bytesOf reads the bytes of all tensors of a folder, or of an adapter's.
func bytesOf(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	open := safetensors.OpenFolder
	if folder.IsAdapter(dir) {
		open = folder.OpenAdapter
	}
	set, err := open(dir)
	check(t, err)
	defer set.Close()
	all := map[string][]byte{}
	for _, info := range set.Tensors() {
		var b bytes.Buffer
		check(t, set.CopyBytes(&b, info))
		all[info.Name] = b.Bytes()
	}
	return all
}

// configOf reads the config.json of a folder.
func configOf(t *testing.T, dir string) (kv map[string]any) {
	t.Helper()
	check(t, json.Unmarshal(read(t, dir, "config.json"), &kv))
	return kv
}
