package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/checkpoint/safetensors"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// rename writes the weights of a folder under other names into another folder; the name ""
// leaves a weight out. Further tensors are added.
func rename(t *testing.T, from, to string, name func(string) string, more ...safetensors.Tensor) {
	t.Helper()
	set, err := safetensors.OpenFolder(from)
	check(t, err)
	defer set.Close()
	for _, info := range set.Tensors() {
		values := make([]float32, info.Elements())
		check(t, set.ReadFloat32(info.Name, 0, values))
		if to := name(info.Name); to != "" {
			more = append(more, safetensors.Float32s(to, info.DType, info.Shape, values))
		}
	}
	check(t, writeTensors(to+"/model.safetensors", more))
	config, err := os.ReadFile(from + "/config.json")
	check(t, err)
	check(t, os.WriteFile(to+"/config.json", config, 0o644))
}

// buffers returns what older versions of transformers wrote besides a model's parameters.
func buffers(model string) (list []safetensors.Tensor) {
	add := func(name string, shape ...int) {
		n := 1
		for _, d := range shape {
			n *= d
		}
		list = append(list, safetensors.Float32s(name, safetensors.F32, shape, make([]float32, n)))
	}
	switch model {
	case "gpt2-tiny":
		add("h.0.attn.bias", 1, 1, 2, 2)
		add("h.0.attn.masked_bias", 1)
	case "neox-tiny":
		add("layers.0.attention.bias", 1, 1, 2, 2)
		add("layers.0.attention.masked_bias", 1)
		add("layers.0.attention.rotary_emb.inv_freq", 2)
	case "opt-tiny":
		add("decoder.version", 1)
	default:
		add("layers.0.self_attn.rotary_emb.inv_freq", 2)
		add("rotary_emb.inv_freq", 2)
	}
	return list
}

// TestUnknownTensors: what config.json does not account for is refused wherever weights are read, by its name, rather than
// left out of results and checkpoints.
func TestUnknownTensors(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	folder, file := modelFolder(t, "model: {type: llama, layers: 2, width: 16, heads: 2}")
	same := func(name string) string { return name }
	extra := func(name string) safetensors.Tensor {
		return safetensors.Float32s(name, safetensors.F32, []int{16}, make([]float32, 16))
	}
	tokenizer, err := os.ReadFile(folder + "/tokenizer.json")
	check(t, err)
	for _, c := range []struct {
		layers int
		more   []safetensors.Tensor
		words  []string // none: it is accepted
	}{
		{2, nil, nil},
		{2, []safetensors.Tensor{extra("model.layers.0.self_attn.rotary_emb.inv_freq")}, nil},
		{2, []safetensors.Tensor{extra("norm.weight")}, nil}, // the same by another name
		{2, []safetensors.Tensor{raw(safetensors.Info{Name: "position_ids", DType: safetensors.I64, Shape: []int{1, 16}}, make([]byte, 128))}, nil},
		{2, []safetensors.Tensor{extra("model.layers.0.self_attn.q_proj.bias")}, []string{"tensor model.layers.0.self_attn.q_proj.bias that the model"}},
		{2, []safetensors.Tensor{extra("v_head.summary.weight"), extra("v_head.summary.bias")}, []string{"v_head.summary.weight (and 1 more)"}},
		{2, []safetensors.Tensor{extra("h.0.attn.bias")}, []string{"h.0.attn.bias"}}, // a mask of other families only
		{1, nil, []string{"model.layers.1.", " (and 8 more)", "with all their layers"}},
	} {
		dir, code := t.TempDir(), 0
		rename(t, folder, dir, same, c.more...)
		check(t, os.WriteFile(dir+"/tokenizer.json", tokenizer, 0o644))
		edit(t, dir+"/config.json", map[string]any{"num_hidden_layers": c.layers})
		words := c.words
		if len(words) > 0 {
			code, words = 1, append([]string{"weights of " + dir, "hint: "}, words...)
		}
		call("eval", dir, "../../LICENSE", "--batches", "1").must(t, code, words...)
		call("generate", dir, "--prompt", "gold", "--max-tokens", "2").must(t, code, words...)
		for _, more := range []string{"lora={}", "lora.rank=2"} {
			call("train", file, "model="+dir, "tokenizer="+dir, "max_steps=1", "out="+t.TempDir(), more).must(t, code, words...)
		}
	}
}

// TestBareNames: folders of a model without its head, such as the published GPT-2, have names
// without the model's prefix, and buffers that are no parameters. The logits are the same.
func TestBareNames(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	for _, name := range []string{"gpt2-tiny", "llama-tied", "qwen2-tiny", "opt-tiny", "mistral-tiny", "qwen3-tiny", "gemma3-tiny", "gemma2-tiny", "gemma4-tiny", "gemma4-small-tiny", "gemma4-moe-tiny", "deepseek2-tiny", "deepseek3-tiny", "glm4-lite-tiny", "olmo2-tiny", "neox-tiny", "phi3-tiny", "smollm3-tiny", "granite-tiny", "starcoder2-tiny", "stablelm-tiny", "phi-tiny", "olmo3-tiny", "mixtral-tiny", "glm4-moe-tiny", "minimax-m2-tiny", "ernie-moe-tiny", "olmoe-tiny", "gpt-oss-tiny"} {
		from, dir := "../../testdata/torch/"+name, t.TempDir()
		rename(t, from, dir, func(name string) string {
			for _, part := range []string{"transformer.", "model.", "gpt_neox."} {
				name = strings.TrimPrefix(name, part)
			}
			return name
		}, buffers(name)...)
		var want struct{ Loss float64 }
		var got struct{ Loss float64 }
		call("eval", from, "--tokens", from+"/tokens.json", "--json").must(t, 0).into(t, &want)
		call("eval", dir, "--tokens", from+"/tokens.json", "--json").must(t, 0).into(t, &got)
		if got != want || math.IsNaN(want.Loss) || want.Loss == 0 {
			t.Errorf("%s: loss %v, by other names %v", name, want.Loss, got.Loss)
		}
	}
}

// TestTwoHeads: a head that is not the embedding, though config.json says that they are one, is
// refused where weights are read; a head that equals the embedding is accepted.
func TestTwoHeads(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	folder, file := modelFolder(t, "model: {type: gpt2, layers: 1, width: 16, heads: 2}")
	set, err := safetensors.OpenFolder(folder)
	check(t, err)
	info, _ := set.Lookup("transformer.wte.weight")
	head := make([]float32, info.Elements())
	check(t, set.ReadFloat32(info.Name, 0, head))
	check(t, set.Close())
	tokens := folder + "/t.json"
	check(t, os.WriteFile(tokens, []byte("[[1,2,3]]"), 0o644))
	for _, last := range []float32{head[len(head)-1], 7} {
		head[len(head)-1] = last
		dir := t.TempDir()
		rename(t, folder, dir, func(name string) string { return name }, safetensors.Float32s("lm_head.weight", safetensors.F32, info.Shape, head))
		text, err := os.ReadFile(folder + "/tokenizer.json")
		check(t, err)
		check(t, os.WriteFile(dir+"/tokenizer.json", text, 0o644))
		code, words := 0, []string(nil)
		if last == 7 {
			code, words = 1, []string{"weights of " + dir, "lm_head.weight differs", "tie_word_embeddings"}
		}
		call("eval", dir, "--tokens", tokens).must(t, code, words...)
		call("generate", dir, "--prompt", "gold", "--max-tokens", "2").must(t, code, words...)
		call("train", file, "model="+dir, "tokenizer="+dir, "out="+t.TempDir()).must(t, code, words...)
	}
}

// edit changes keys of a JSON file.
func edit(t *testing.T, path string, keys map[string]any) {
	t.Helper()
	object := map[string]any{}
	if text, err := os.ReadFile(path); err == nil {
		check(t, json.Unmarshal(text, &object))
	}
	for k, v := range keys {
		object[k] = v
	}
	text, err := json.Marshal(object)
	check(t, err)
	check(t, os.WriteFile(path, text, 0o644))
}

// TestEnds: a text ends with any of the tokens that generation_config.json names, or
// config.json where it names none.
func TestEnds(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	folder, _ := modelFolder(t)
	length := func() int {
		var r struct {
			Tokens int
			IDs    []int
		}
		call("generate", folder, "--prompt", "gold", "--max-tokens", "9", "--temperature", "0", "--json").must(t, 0).into(t, &r)
		if len(r.IDs) != r.Tokens {
			t.Errorf("%d ids of %d tokens", len(r.IDs), r.Tokens)
		}
		return r.Tokens
	}
	if n := length(); n != 9 {
		t.Fatalf("%d tokens of 9", n)
	}
	all := make([]int, 300)
	for i := range all {
		all[i] = i
	}
	edit(t, folder+"/generation_config.json", map[string]any{"eos_token_id": all})
	if n := length(); n != 0 {
		t.Errorf("%d tokens, and each is an end", n)
	}
	edit(t, folder+"/config.json", map[string]any{"eos_token_id": all})
	edit(t, folder+"/generation_config.json", map[string]any{"eos_token_id": 299})
	if n := length(); n != 9 {
		t.Errorf("%d tokens of 9", n)
	}
	edit(t, folder+"/generation_config.json", map[string]any{"eos_token_id": nil})
	if n := length(); n != 0 {
		t.Errorf("%d tokens, and each is an end by config.json", n)
	}
	edit(t, folder+"/generation_config.json", map[string]any{"eos_token_id": "</s>"})
	call("generate", folder, "--prompt", "gold").must(t, 1, "generation_config.json", "eos_token_id", "hint:")
}

// TestSetAside: settings by which transformers would change the likeliest token, and which are ignored here, are reported.
func TestSetAside(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	folder, _ := modelFolder(t)
	edit(t, folder+"/generation_config.json", map[string]any{"repetition_penalty": 1.05, "num_beams": 1, "bad_words_ids": []any{}, "top_p": 0.8})
	r := call("generate", folder, "--prompt", "gold", "--max-tokens", "2").must(t, 0, "note: repetition_penalty 1.05 in generation_config.json is ignored\n")
	if strings.Count(r.stderr, "note:") != 1 {
		t.Errorf("more is told than is ignored: %s", r.stderr)
	}
	check(t, os.WriteFile(folder+"/generation_config.json", []byte("{"), 0o644))
	call("generate", folder, "--prompt", "gold").must(t, 1, "generation_config.json")
}

// TestPromptStart: what the tokenizer puts before a text is read with a prompt, but not printed, and
// not read twice.
func TestPromptStart(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	folder, _ := modelFolder(t)
	type sampled struct {
		Text         string
		PromptTokens int `json:"prompt_tokens"`
	}
	sample := func(prompt string) (s sampled) {
		call("generate", folder, "--prompt", prompt, "--max-tokens", "1", "--json").must(t, 0).into(t, &s)
		return s
	}
	plain, explicit := sample("gold"), sample("<|endoftext|>gold")
	edit(t, folder+"/tokenizer_config.json", map[string]any{"add_bos_token": true, "bos_token": "<|endoftext|>"})
	started := sample("gold")
	if started.PromptTokens != plain.PromptTokens+1 || "<|endoftext|>"+started.Text != explicit.Text {
		t.Errorf("%+v; without a start %+v, with one written out %+v", started, plain, explicit)
	}
	if again := sample("<|endoftext|>gold"); again != explicit {
		t.Errorf("a start that is there already: %+v, want %+v", again, explicit)
	}
	if empty := sample(""); empty.PromptTokens != 1 {
		t.Errorf("an empty prompt: %+v", empty)
	}
}

// TestPaddedVocabulary: ids that the model knows but no token has give no text.
func TestPaddedVocabulary(t *testing.T) {
	folder, _ := modelFolder(t, "model: {type: llama, layers: 1, width: 16, heads: 2, vocabulary: 5000, max_positions: 200}")
	call("generate", folder, "--prompt", "gold", "--max-tokens", "100", "--temperature", "5").must(t, 0)
}

// TestOtherTokenizer: a tokenizer that is not the model folder's own goes into the
// checkpoints instead of that.
func TestOtherTokenizer(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	folder, file := modelFolder(t)
	edit(t, folder+"/config.json", map[string]any{"dtype": "bfloat16", "pad_token_id": 5, "max_position_embeddings": 16})
	check(t, os.WriteFile(folder+"/vocab.json", []byte("{}"), 0o644))
	out := t.TempDir()
	call("train", file, "model="+folder, "tokenizer=bpe-290", "out="+out).must(t, 0)
	at := out + "/checkpoint-1"
	for name, same := range map[string]string{"tokenizer.json": out + "/tokenizer/bpe-290/tokenizer.json", "vocab.json": ""} {
		got, _ := os.ReadFile(filepath.Join(at, name))
		want, _ := os.ReadFile(same)
		if string(got) != string(want) {
			t.Errorf("%s is not that of %q", name, same)
		}
	}
	var c map[string]any
	text, err := os.ReadFile(at + "/config.json")
	check(t, err)
	check(t, json.Unmarshal(text, &c))
	if got := fmt.Sprintf("%v %v %v", c["dtype"], c["pad_token_id"], c["max_position_embeddings"]); got != "float32 5 32" {
		t.Errorf("config.json: %s", text)
	}
}

// TestNoWeights: a model folder that lacks weights is reported before a plan is searched and a
// folder is made; for a run's folder the message says where its model is.
func TestNoWeights(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	folder, file := modelFolder(t)
	out := t.TempDir() + "/run"
	dir := t.TempDir()
	rename(t, folder, dir, func(name string) string { return strings.Replace(name, "model.norm.weight", "norm", 1) })
	tokenizer := "tokenizer=" + folder
	for code, model := range map[int]string{1: dir, 2: t.TempDir()} {
		if code == 2 {
			edit(t, model+"/config.json", map[string]any{"model_type": "llama"})
		}
		r := call("train", file, "model="+model, tokenizer, "out="+out).must(t, code, model, "hint:")
		if _, err := os.Stat(out); err == nil || strings.Contains(r.stderr+r.stdout, "plan") {
			t.Errorf("found late: %s", r.stderr)
		}
	}
	at := filepath.Dir(folder)
	call("eval", at, "../../LICENSE").must(t, 2, at+" is not a model folder", "latest checkpoint is "+folder)
}

// TestIDsWithoutTokenizer: a tokenizer of an unsupported kind keeps nobody from
// evaluating token ids.
func TestIDsWithoutTokenizer(t *testing.T) {
	folder, _ := modelFolder(t)
	check(t, os.WriteFile(folder+"/tokenizer.json", []byte(`{"model": {"type": "WordPiece"}}`), 0o644))
	check(t, os.WriteFile(folder+"/t.json", []byte("[[1,2,3]]"), 0o644))
	call("eval", folder, "--tokens", folder+"/t.json").must(t, 0)
	call("eval", folder, "../../LICENSE").must(t, 1, "WordPiece", "not supported")
	call("generate", folder, "--prompt", "gold").must(t, 1, "WordPiece", "not supported")
}
