package main

import (
	"bytes"
	"encoding/json"
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

// TestLoRA: adapters of a folder's model are trained, even with weights that are not on the
// device and in bf16, resume exactly, and come out as a PEFT folder that eval, generate and
// merge read and whose logits are those of the training process.
func TestLoRA(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	for _, c := range testkit.Sample([]struct{ family, lora, precision, quantize string }{
		{"gpt2", "", "fp32", "none"}, {"llama", `, alpha: 10, targets: ["*.[qv]_proj.weight", "*down_proj*"]`, "fp32", "none"}, {"qwen2", ", alpha: 8", "bf16", "none"},
		{"gpt2", ", rslora: true", "fp32", "nf4"}, {"llama", "", "bf16", "nf4"}, {"llama", ", dora: true", "fp32", "none"}, {"qwen2", ", dora: true, alpha: 8", "bf16", "nf4"},
		{"gpt2", `, targets: ["*.c_attn.weight", "*.wte.weight", "lm_head.weight"]`, "fp32", "none"}, {"llama", `, alpha: 8, targets: ["*_proj.weight", "*embed_tokens.weight", "lm_head.weight"]`, "bf16", "nf4"},
		{"llama", ", modules_to_save: [embed_tokens, lm_head, norm]", "bf16", "nf4"}, {"gpt2", ", modules_to_save: [wte]", "fp32", "none"},
	}, 1, 2) {
		t.Run(c.family+" "+c.quantize, func(t *testing.T) {
			base, file := modelFolder(t, "model: {type: "+c.family+", layers: 2, width: 32, heads: 4}")
			dir := t.TempDir()
			lora := func(out string, more ...string) []string {
				return append([]string{"train", file, "--json", "model=" + base, "tokenizer=" + base + "/tokenizer.json", "out=" + dir + "/" + out, "eval_batches=1000",
					"validation_fraction=0.05", "learning_rate=0.02", "lora={rank: 4" + c.lora + "}", "max_steps=4", "warmup_steps=1", "precision=" + c.precision, "quantize=" + c.quantize}, more...)
			}
			var got, swapped trained
			call(lora("a")...).must(t, 0, "starting from the weights in "+base).into(t, &got)
			call(lora("b", "plan={weights: host, micro_batch: 1, recompute: full}", "save_every=2")...).must(t, 0).into(t, &swapped)
			sameRun(t, dir+"/b", dir+"/a", 4)
			check(t, os.RemoveAll(swapped.Checkpoint)) // as if it had been stopped
			call(lora("b")...).must(t, 0, "resuming "+dir+"/b/checkpoint-2")
			sameRun(t, dir+"/b", dir+"/a", 4)

			for _, name := range []string{"config.json", "model.safetensors"} {
				if _, err := os.Stat(filepath.Join(got.Checkpoint, name)); err == nil {
					t.Errorf("the adapter's folder has a %s", name)
				}
			}
			tokens, logits := dir+"/tokens.json", dir+"/logits.safetensors"
			rows := heldOut(t, file, tokens, lora("a")[3:]...)
			var adapted, merged, before evalReport
			call("eval", got.Checkpoint, "--tokens", tokens, "--logits", logits, "--json", "--quantize", c.quantize).must(t, 0).into(t, &adapted)
			near := 2e-6
			if c.precision == "bf16" {
				near = 1e-3
			}
			if math.Abs(adapted.Loss/got.ValLoss-1) > near || math.Abs(crossEntropy(t, logits, rows)/adapted.Loss-1) > 2e-6 {
				t.Errorf("loss of the training process %v, of eval %v", got.ValLoss, adapted.Loss)
			}
			if c.quantize != "none" { // merging keeps the model's own weights
				quantized := adapted.Loss
				call("eval", got.Checkpoint, "--tokens", tokens, "--logits", logits, "--json").must(t, 0).into(t, &adapted)
				if d := math.Abs(quantized/adapted.Loss - 1); d == 0 || d > 1e-2 {
					t.Errorf("loss %v, with weights in 4 bits %v", adapted.Loss, quantized)
				}
				call("generate", got.Checkpoint, "--prompt", "the ", "--max-tokens", "3", "--quantize", c.quantize).must(t, 0)
			}
			if r := call("merge", got.Checkpoint, dir+"/merged").must(t, 0); r.stdout != "merged into "+dir+"/merged\n" {
				t.Errorf("merge prints %q", r.stdout)
			}
			call("eval", dir+"/merged", "--tokens", tokens, "--json").must(t, 0).into(t, &merged)
			call("eval", base, "--tokens", tokens, "--json").must(t, 0).into(t, &before)
			if math.Abs(merged.Loss/adapted.Loss-1) > 2e-6 || before.Loss <= adapted.Loss {
				t.Errorf("loss %v, with the adapter %v, merged %v", before.Loss, adapted.Loss, merged.Loss)
			}
			greedy := func(folder string) string {
				return string(call("generate", folder, "--prompt", "the ", "--max-tokens", "20", "--temperature", "0").must(t, 0).stdout)
			}
			if a, b := greedy(got.Checkpoint), greedy(dir+"/merged"); a != b {
				t.Errorf("the adapter writes %q, merged %q", a, b)
			}
			if out := transformers(t, got.Checkpoint, tokens, logits); out != "" {
				t.Log(out)
			}
			kept, err := os.ReadFile(base + "/model.safetensors")
			check(t, err)
			if now, err := os.ReadFile(dir + "/merged/model.safetensors"); err != nil || bytes.Equal(now, kept) || len(now) < len(kept) {
				t.Errorf("merged weights of %d bytes, the model's have %d; %v", len(now), len(kept), err)
			}
		})
	}
}

// TestOutgrown: wherever tokens enter from outside, one that the model has no row for is refused with the way out; nothing
// is indexed with it.
func TestOutgrown(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	base, _ := modelFolder(t, "model: {type: llama, layers: 1, width: 16, heads: 2}")
	old := grow(t, base+"/tokenizer.json", "<tool>")
	dir := t.TempDir()
	file := func(name, text string) string {
		check(t, os.WriteFile(dir+"/"+name, []byte(text), 0o644))
		return dir + "/" + name
	}
	text, prompts := file("text.txt", strings.Repeat("a <tool> b ", 40)), file("prompts.jsonl", `{"prompt": "a <tool>"}`)
	for _, args := range [][]string{
		{"eval", base, text, "--sequence", "8"},
		{"eval", base, "--tokens", file("tokens.json", fmt.Sprintf("[[1, %d, 2]]", old))},
		{"eval", base, "--tokens", file("below.json", "[[1, -3, 2]]")},
		{"generate", base, "--prompt", "a <tool>"},
		{"generate", base, "--prompts", prompts, "--out", dir + "/out.jsonl"},
		{"prune", base, dir + "/pruned", "--data", text, "--sequence", "8", "--sparsity", "0.5"},
	} {
		call(args...).must(t, 2, "token", "vocabulary", "hint: ")
	}
}

// TestResize: a model whose tokenizer has grown is refused with the way out. With resize_vocab it is trained, whole or beside
// adapters, under any plan to the same bits, and comes out as a folder with the tokenizer's vocabulary that eval, generate and merge read.
func TestResize(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	for _, c := range testkit.Sample([]struct{ family, lora, precision string }{
		{"llama", "", "fp32"}, {"gpt2", "", "bf16"},
		{"llama", "lora={rank: 4}", "bf16"}, {"gpt2", "lora={rank: 4, modules_to_save: [wte]}", "fp32"}, {"llama", "lora={rank: 4, modules_to_save: [lm_head, embed_tokens]}", "fp32"},
	}, 1, 3) {
		t.Run(c.family+" "+c.lora, func(t *testing.T) {
			base, file := modelFolder(t, "model: {type: "+c.family+", layers: 2, width: 32, heads: 4}")
			old := grow(t, base+"/tokenizer.json", "<tool>", "<end>")
			dir := t.TempDir()
			train := func(out string, more ...string) result {
				return call(append([]string{"train", file, "--json", "model=" + base, "tokenizer=" + base, "out=" + dir + "/" + out, "learning_rate=0.02", "max_steps=4", "warmup_steps=1", "precision=" + c.precision, c.lora}, more...)...)
			}
			if c.lora == "" {
				c.lora = "seed=1"
			}
			train("a").must(t, 2, fmt.Sprintf("it has %d tokens, but the model's vocabulary is %d; hint: ", old+2, old), "resize_vocab: true")
			var got, other trained
			train("a", "resize_vocab=true").must(t, 0, fmt.Sprintf("grows from %d tokens to the tokenizer's %d", old, old+2)).into(t, &got)
			train("b", "resize_vocab=true", "plan={weights: host, micro_batch: 1, recompute: full}", "save_every=2").must(t, 0).into(t, &other)
			sameRun(t, dir+"/b", dir+"/a", 4)
			check(t, os.RemoveAll(other.Checkpoint)) // as if it had been stopped
			train("b", "resize_vocab=true").must(t, 0, "resuming "+dir+"/b/checkpoint-2")
			sameRun(t, dir+"/b", dir+"/a", 4)

			tokens := dir + "/tokens.json"
			check(t, os.WriteFile(tokens, fmt.Appendf(nil, "[[1,2,%d,3,%d,4]]", old, old+1), 0o644))
			var before, after evalReport
			call("eval", got.Checkpoint, "--tokens", tokens, "--logits", dir+"/logits.safetensors", "--json").must(t, 0).into(t, &before)
			if out := transformers(t, got.Checkpoint, tokens, dir+"/logits.safetensors"); out != "" {
				t.Log(out)
			}
			call("export", got.Checkpoint, dir+"/whole", "--precision", "fp32").must(t, 0)
			call("eval", dir+"/whole", "--tokens", tokens, "--json").must(t, 0).into(t, &after)
			if math.Abs(after.Loss/before.Loss-1) > 2e-6 {
				t.Errorf("loss %v, exported %v", before.Loss, after.Loss)
			}
			text, err := os.ReadFile(dir + "/whole/config.json")
			if want := fmt.Sprintf(`"vocab_size": %d`, old+2); err != nil || !bytes.Contains(text, []byte(want)) {
				t.Errorf("config.json has no %s: %s %v", want, text, err)
			}
			call("generate", dir+"/whole", "--prompt", "the <tool>", "--max-tokens", "3").must(t, 0)
		})
	}
}

// grow adds tokens to a tokenizer.json, and returns how many it had.
func grow(t *testing.T, path string, more ...string) (old int) {
	t.Helper()
	var all map[string]any
	text, err := os.ReadFile(path)
	check(t, err)
	check(t, json.Unmarshal(text, &all))
	old = len(all["model"].(map[string]any)["vocab"].(map[string]any))
	added, _ := all["added_tokens"].([]any)
	for _, token := range added {
		if id := int(token.(map[string]any)["id"].(float64)); id >= old {
			old = id + 1
		}
	}
	for i, token := range more {
		added = append(added, map[string]any{"id": old + i, "content": token, "special": true, "normalized": false, "single_word": false, "lstrip": false, "rstrip": false})
	}
	all["added_tokens"] = added
	text, err = json.Marshal(all)
	check(t, err)
	check(t, os.WriteFile(path, text, 0o644))
	return old
}

// TestAdapterAsModel: a run may begin with an adapter. It does the same as a run that begins with the same factors of
// its own; and a chain of runs ends in a folder like any other.
func TestAdapterAsModel(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	for _, quantize := range []string{"none", "nf4"} {
		t.Run(quantize, func(t *testing.T) {
			base, file := modelFolder(t, "model: {type: llama, layers: 2, width: 32, heads: 4}")
			dir := t.TempDir()
			train := func(out string, more ...string) result {
				return call(append([]string{"train", file, "out=" + dir + "/" + out, "learning_rate=0.02", "max_steps=4", "save_every=2", "warmup_steps=0", "quantize=" + quantize}, more...)...)
			}
			const lora = "lora={rank: 4, alpha: 8, targets: ['*.[qv]_proj.weight', '*up*']}"
			own := []string{"model=" + base, "tokenizer=" + base, lora}
			train("fresh", own...).must(t, 0)
			train("start", append(own, "max_steps=1", "learning_rate=1e-30")...).must(t, 0) // too small to matter next to any other step
			start := dir + "/start/checkpoint-1"
			// Like adapters from elsewhere: without a tokenizer.
			for _, name := range []string{"tokenizer.json", "tokenizer_config.json"} {
				if err := os.Remove(start + "/" + name); err != nil && !os.IsNotExist(err) {
					t.Fatal(err)
				}
			}
			same := func(checkpoint string) {
				t.Helper()
				a, err := os.ReadFile(dir + "/" + checkpoint + "/adapter_model.safetensors")
				check(t, err)
				b, err := os.ReadFile(dir + "/fresh/checkpoint-4/adapter_model.safetensors")
				check(t, err)
				if !bytes.Equal(a, b) {
					t.Errorf("%s: other factors than those of the run that made its own", checkpoint)
				}
			}
			train("on", "model="+start, "tokenizer="+start).must(t, 0, "starting from the adapter "+start+" and the weights in "+base)
			same("on/checkpoint-4")
			check(t, os.RemoveAll(dir+"/on/checkpoint-4")) // as if it had been stopped
			train("on", "model="+start, "tokenizer="+start, lora).must(t, 0, "resuming "+dir+"/on/checkpoint-2")
			same("on/checkpoint-4")
			if a, b := losses(t, dir+"/on"), losses(t, dir+"/fresh"); !slices.Equal(a, b) {
				t.Errorf("losses %v, of the run that made its own factors %v", a, b)
			}
			train("still", "model="+dir+"/fresh/checkpoint-4", "max_steps=1", "learning_rate=1e-30", "seed=7").must(t, 0)
			same("still/checkpoint-1")

			train("second", "model="+dir+"/fresh/checkpoint-4", "tokenizer="+dir+"/fresh/checkpoint-4", "learning_rate=0.001", "seed=7", "lora.rank=4").must(t, 0)
			second := dir + "/second/checkpoint-4"
			var before, adapted, merged evalReport
			tokens := dir + "/tokens.json"
			heldOut(t, file, tokens, "model="+base, "tokenizer="+base, "validation_fraction=0.05")
			call("eval", dir+"/fresh/checkpoint-4", "--tokens", tokens, "--json").must(t, 0).into(t, &before)
			call("eval", second, "--tokens", tokens, "--json").must(t, 0).into(t, &adapted)
			call("merge", second, dir+"/merged").must(t, 0)
			call("eval", dir+"/merged", "--tokens", tokens, "--json").must(t, 0).into(t, &merged)
			if math.Abs(merged.Loss/adapted.Loss-1) > 2e-6 || adapted.Loss >= before.Loss {
				t.Errorf("loss %v, after the second run %v, merged %v", before.Loss, adapted.Loss, merged.Loss)
			}
			call("generate", second, "--prompt", "the ", "--max-tokens", "3").must(t, 0)
			text, err := os.ReadFile(second + "/adapter_config.json")
			check(t, err)
			for _, want := range []string{`"r": 4`, `"lora_alpha": 8`, `"use_rslora": false`, `"base_model_name_or_path": "` + base + `"`} {
				if !bytes.Contains(text, []byte(want)) {
					t.Errorf("adapter_config.json has no %s: %s", want, text)
				}
			}
			damaged, err := os.ReadFile(second + "/adapter_model.safetensors")
			check(t, err)
			damaged[len(damaged)-3] ^= 1
			check(t, os.WriteFile(second+"/adapter_model.safetensors", damaged, 0o644))
			train("third", "model="+second).must(t, 2, "hint: copy the checkpoint again")
			call("eval", second, "--tokens", tokens).must(t, 1, "hint: copy the checkpoint again")
		})
	}
}

// TestNoiseResumed: a run with dropout and noise on embeddings that goes on under another budget has the losses, and writes the bytes,
// of one that was not interrupted. The folder names the dropout as PEFT does, and a run that begins with it says that it has its own.
func TestNoiseResumed(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	base, file := modelFolder(t, "model: {type: llama, layers: 2, width: 32, heads: 4}")
	dir := t.TempDir()
	train := func(out string, more ...string) result {
		return call(append([]string{"train", file, "out=" + dir + "/" + out, "model=" + base, "tokenizer=" + base, "learning_rate=0.02", "max_steps=4", "save_every=2", "warmup_steps=0"}, more...)...)
	}
	noise := []string{"lora={rank: 4, dropout: 0.25}", "neftune_alpha=5"}
	train("whole", noise...).must(t, 0)
	train("parts", noise...).must(t, 0)
	check(t, os.RemoveAll(dir+"/parts/checkpoint-4")) // as if it had been stopped
	train("parts", append(noise, "plan.recompute=full", "limits.device=400KiB")...).must(t, 0, "resuming "+dir+"/parts/checkpoint-2")
	if a, b := losses(t, dir+"/parts"), losses(t, dir+"/whole"); !slices.Equal(a, b) {
		t.Errorf("losses %v, uninterrupted %v", a, b)
	}
	train("plain", noise[0][:len(noise[0])-len(", dropout: 0.25}")]+"}").must(t, 0)
	if a, b := losses(t, dir+"/plain"), losses(t, dir+"/whole"); slices.Equal(a, b) {
		t.Errorf("losses %v with noise and without", a)
	}
	read := func(name string) []byte {
		t.Helper()
		text, err := os.ReadFile(dir + "/" + name)
		check(t, err)
		return text
	}
	if !bytes.Equal(read("parts/checkpoint-4/adapter_model.safetensors"), read("whole/checkpoint-4/adapter_model.safetensors")) {
		t.Error("other factors than those of the run that was not interrupted")
	}
	if text := read("whole/checkpoint-4/adapter_config.json"); !bytes.Contains(text, []byte(`"lora_dropout": 0.25`)) {
		t.Errorf("adapter_config.json: %s", text)
	}
	train("on", "model="+dir+"/whole/checkpoint-4", "max_steps=1").must(t, 0, "lora_dropout 0.25 of the adapter's folder is a setting of the run that made it")
}

// TestLoRAErrors: what is impossible is named, with its key and a hint, at no cost.
func TestLoRAErrors(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	base, file := modelFolder(t)
	dir := t.TempDir()
	on := []string{"model=" + base, "tokenizer=" + base + "/tokenizer.json", "out=" + dir + "/a", "max_steps=1"}
	call(append([]string{"train", file, "lora.rank=2"}, on...)...).must(t, 0)
	adapter := dir + "/a/checkpoint-1"
	with := func(more ...string) []string {
		return append(append([]string{"train", file}, on...), append(more, "out="+dir+"/b")...)
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{with("lora.rank=-1"), 2, "lora.rank"},
		{with("lora.rank=1.5"), 2, "lora.rank"},
		{with("lora.rank=1000"), 2, "rank 1000 is out of range for"},
		{with("lora={targets: [x]}"), 2, "lora.rank"},
		{with("lora={modules_to_save: [x]}"), 2, "lora.rank"},
		{with("lora={rank: 2, modules_to_save: [embed_token]}"), 2, "modules_to_save: the model has no module \"embed_token\"; hint: did you mean embed_tokens?"},
		{with("lora={rank: 2, modules_to_save: [v_proj]}"), 2, "has an adapter, too; hint: "},
		{with("model="+adapter, "lora={rank: 2, modules_to_save: [norm]}"), 2, "athanor merge"},
		{append([]string{"train", file, "lora={rank: 2, modules_to_save: [norm]}"}, on...), 2, "belongs to another run"},
		{with("quantize=nf4"), 2, "quantize"},
		{with("quantize=int3", "lora.rank=2"), 2, "none, nf4"},
		{with("quantize=nf4", "freeze=[model.embed_tokens.weight]"), 2, "4 bits"},
		{with("lora={rank: 2, targets: ['*wte*']}"), 2, "matches no parameter"},
		{with("lora={rank: 2, targets: ['[']}"), 2, "hint"},
		{with("lora={rank: 2, alpha: -1}"), 2, "lora.alpha"},
		{with("lora={rank: 2, alpha: 1.0e-6}"), 2, "alpha 1e-06 with rank 2"},
		{with("lora.dropout=0.1"), 2, "lora.rank"},
		{with("lora={rank: 2, dropout: 1}"), 2, "lora.dropout: 1 is out of range"},
		{with("lora={rank: 2, dropout: 0.1, dora: true}"), 2, "dropout is not built with dora"},
		{with("neftune_alpha=-1"), 2, "neftune_alpha"},
		{append([]string{"train", file, "lora={rank: 2, dropout: 0.1}"}, on...), 2, "belongs to another run"},
		{append([]string{"train", file, "lora.rank=2", "neftune_alpha=5"}, on...), 2, "belongs to another run"},
		{with("lora.alpha=4"), 2, "lora.rank"},
		{with("lora.rslora=true"), 2, "lora.rank"},
		{with("lora.rank=2", "freeze=[transformer.wte.weight]"), 2, "freeze"},
		{[]string{"train", file, "lora.rank=2", "out=" + dir + "/c"}, 2, "no trained weights"},
		{with("model="+adapter, "lora.rank=3"), 2, "athanor merge"},
		{with("model="+adapter, "lora={rank: 2, alpha: 4}"), 2, "adapters of rank 2, scale 2, on 14 weights, but the model is an adapter that has adapters of rank 2, scale 1, on 14 weights; hint: "},
		{with("model="+adapter, "lora={rank: 2, targets: ['*.q_proj.weight']}"), 2, "athanor merge"},
		{with("model="+adapter, "freeze=[transformer.wte.weight]"), 2, "freeze"},
		{with("model=" + dir + "/a"), 2, "config.json"},
		{append([]string{"train", file, "lora.rank=3"}, on...), 2, "belongs to another run"},
		{append([]string{"train", file, "lora={rank: 2, alpha: 4}"}, on...), 2, "model is lora 2 there and lora 2*2 here"},
		{append([]string{"train", file, "lora={rank: 2, rslora: true}"}, on...), 2, "belongs to another run"},
		{append([]string{"train", file, "lora.rank=2", "quantize=nf4"}, on...), 2, "belongs to another run"},
		{[]string{"merge", base, dir + "/d"}, 2, "has no adapter_config.json"},
		{[]string{"merge", adapter, base}, 2, "exists"},
		{[]string{"merge", adapter, dir + "/none/d"}, 1, "none"},
		{[]string{"merge", dir + "/none", dir + "/d"}, 2, "not a model folder"},
	} {
		r := call(c.args...)
		if r.code != c.code || !strings.Contains(r.stderr, c.want) {
			t.Errorf("%v: exit %d, want %d with %q: %s", c.args, r.code, c.code, c.want, r.stderr)
		}
	}
	// So is what PEFT's folder has besides the factors.
	odd := t.TempDir()
	check(t, os.CopyFS(odd, os.DirFS(adapter)))
	check(t, os.RemoveAll(odd+"/manifest.json"))
	set, err := safetensors.OpenIn(adapter, "adapter_model")
	check(t, err)
	list := []safetensors.Tensor{safetensors.Float32s("base_model.model.lm_head.bias", safetensors.F32, []int{1}, []float32{1})}
	for _, info := range set.Tensors() {
		values := make([]float32, info.Elements())
		check(t, set.ReadFloat32(info.Name, 0, values))
		list = append(list, safetensors.Float32s(info.Name, info.DType, info.Shape, values))
	}
	check(t, set.Close())
	check(t, writeTensors(odd+"/adapter_model.safetensors", list))
	call("generate", odd, "--prompt", "gold").must(t, 1, odd, "tensor base_model.model.lm_head.bias that is neither a factor", "hint: ")
	call(with("model="+odd)...).must(t, 2, odd, "tensor base_model.model.lm_head.bias that is neither a factor", "hint: ")
	// Other weights of the same shapes are another run.
	text, err := os.ReadFile(base + "/model.safetensors")
	check(t, err)
	for i := len(text) / 2; i < len(text); i++ {
		text[i] = 0
	}
	check(t, os.WriteFile(base+"/model.safetensors", text, 0o644))
	check(t, os.RemoveAll(base+"/manifest.json")) // which would tell that they are damaged
	call(append([]string{"train", file, "lora.rank=2"}, on...)...).must(t, 2, "base_weights")
	// What the model's folder lacks is not looked for in the adapter's.
	check(t, os.WriteFile(base+"/model.safetensors", bytes.Replace(text, []byte("model.norm.weight"), []byte("model.form.weight"), 1), 0o644))
	call(with("model="+adapter)...).must(t, 1, "weights of "+base+": parameter")
}
