package main

import (
	"cmp"
	stdctx "context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/checkpoint/safetensors"
	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/device/cuda"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/job"
	"github.com/athanor-llm/athanor/model/family"
	"github.com/athanor-llm/athanor/train"
)

// heldOut writes the held-out sequences of a run as token ids, for eval.
func heldOut(t *testing.T, file, path string, overrides ...string) [][]int32 {
	t.Helper()
	c, err := config.Load(file, overrides)
	check(t, err)
	spec, err := job.Settle(config.ToTrain, c, func(string) {})
	check(t, err)
	s, err := train.Prepare(stdctx.Background(), spec, func(string, int64, int64) {})
	check(t, err)
	defer s.Close()
	var rows [][]int32
	for i := range s.Held.Count() {
		row := make([]int32, c.SequenceLength+1)
		s.Held.Copy(row, i)
		rows = append(rows, row)
	}
	text, err := json.Marshal(rows)
	check(t, err)
	check(t, os.WriteFile(path, text, 0o644))
	return rows
}

// crossEntropy is the loss of logits from a file, in float64.
func crossEntropy(t *testing.T, path string, rows [][]int32) float64 {
	t.Helper()
	f, err := safetensors.Open(path)
	check(t, err)
	defer f.Close()
	info, ok := f.Lookup("logits")
	if !ok || len(info.Shape) != 3 || info.Shape[0] != len(rows) || info.Shape[1] != len(rows[0])-1 {
		t.Fatalf("logits %v of shape %v", ok, info.Shape)
	}
	logits := make([]float32, info.Elements())
	check(t, f.ReadFloat32("logits", 0, logits))
	vocab := info.Shape[2]
	var sum float64
	for r, row := range rows {
		for p, target := range row[1:] {
			l := logits[(r*info.Shape[1]+p)*vocab:][:vocab]
			var z float64
			for _, v := range l {
				z += math.Exp(float64(v))
			}
			sum += math.Log(z) - float64(l[target])
		}
	}
	return sum / float64(len(rows)*info.Shape[1])
}

// TestFolders: a Hugging Face folder goes in, is trained, and comes out as one
// whose logits are those that the training process had in memory; extra files
// come through; transformers computes the same logits.
func TestFolders(t *testing.T) {
	for _, name := range testkit.Sample(family.Names(), 1, 4) {
		t.Run(name, func(t *testing.T) {
			dir, file := tiny(t, "max_steps: 2", "eval_batches: 1000", "validation_fraction: 0.05", "plan: {micro_batch: 2, weights: host, recompute: full}",
				"model: {type: "+name+", layers: 2, width: 32, heads: 4}")
			call("train", file, "out="+dir+"/a").must(t, 0)
			first := dir + "/a/checkpoint-2"
			check(t, os.WriteFile(first+"/chat_template.jinja", []byte("{{ messages }}"), 0o644))
			check(t, os.RemoveAll(first+"/state")) // a model folder, not a checkpoint
			again := []string{"model=" + first, "tokenizer=" + first + "/tokenizer.json", "out=" + dir + "/b"}
			var got trained
			call(append([]string{"train", file, "--json", "learning_rate=0.02"}, again...)...).must(t, 0, "starting from the weights in "+first).into(t, &got)
			if text, err := os.ReadFile(got.Checkpoint + "/chat_template.jinja"); err != nil || string(text) != "{{ messages }}" {
				t.Errorf("chat_template.jinja: %q, %v", text, err)
			}

			tokens, logits := dir+"/tokens.json", dir+"/logits.safetensors"
			rows := heldOut(t, file, tokens, again...)
			var evaluated evalReport
			call("eval", got.Checkpoint, "--tokens", tokens, "--logits", logits, "--json").must(t, 0).into(t, &evaluated)
			direct := crossEntropy(t, logits, rows)
			for name, loss := range map[string]float64{"eval": evaluated.Loss, "the logits": direct} {
				if math.Abs(loss/got.ValLoss-1) > 2e-6 {
					t.Errorf("loss of the training process %v, of %s %v", got.ValLoss, name, loss)
				}
			}
			var before evalReport
			call("eval", first, "--tokens", tokens, "--json").must(t, 0).into(t, &before)
			if before.Loss <= evaluated.Loss {
				t.Errorf("training changed the loss from %v to %v", before.Loss, evaluated.Loss)
			}
			if out := transformers(t, got.Checkpoint, tokens, logits); out != "" {
				t.Log(out)
			}
		})
	}
}

// transformers compares logits with what transformers computes from a folder.
// ATHANOR_PYTHON names an interpreter that has it; without one this does
// nothing and returns "".
func transformers(t *testing.T, folder, tokens, logits string) string {
	t.Helper()
	python := cmp.Or(os.Getenv("ATHANOR_PYTHON"), "python3")
	out, err := exec.Command(python, "../../tools/check_transformers.py", folder, tokens, logits, "1e-4").CombinedOutput()
	var exit *exec.ExitError
	switch {
	case errors.Is(err, exec.ErrNotFound), errors.As(err, &exit) && exit.ExitCode() == 77:
		return ""
	case err != nil || !strings.Contains(string(out), "max relative error"):
		t.Errorf("transformers: %v\n%s", err, out)
	}
	return string(out)
}

// modelFolder makes a small model folder and returns it, with the configuration of
// the run that made it.
func modelFolder(t *testing.T, lines ...string) (folder, file string) {
	t.Helper()
	dir, file := tiny(t, append(lines, "max_steps: 1")...)
	call("train", file).must(t, 0)
	return dir + "/run/checkpoint-1", file
}

// TestHostileConfig: sizes that are absurd, negative or overflow, and keys that
// change the computation, are refused by name, before anything is allocated.
func TestHostileConfig(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	folder, file := modelFolder(t)
	path := folder + "/config.json"
	text, err := os.ReadFile(path)
	check(t, err)
	write := func(edit map[string]string) {
		var object map[string]json.RawMessage
		check(t, json.Unmarshal(text, &object))
		for k, v := range edit {
			object[k] = json.RawMessage(v)
		}
		edited, err := json.Marshal(object)
		check(t, err)
		check(t, os.WriteFile(path, edited, 0o644))
	}
	sizes := []string{"vocab_size", "num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size",
		"max_position_embeddings", "head_dim"}
	for _, key := range sizes {
		for _, v := range []string{"0", "-1", "-9223372036854775808", "4611686018427387904", "9223372036854775807", "1e300", "2.5", `"32"`, "[]"} {
			write(map[string]string{key: v})
			call("plan", file, "model="+folder).must(t, 2, "config.json")
			call("eval", folder, file).must(t, 1, "config.json")
		}
	}
	for _, edit := range []map[string]string{
		{"vocab_size": "2147483647", "hidden_size": "2147483647", "num_hidden_layers": "2147483647"}, // the product overflows
		{"num_key_value_heads": "3"}, {"rms_norm_eps": "-1"}, {"rope_theta": "0"}, {"rope_theta": "-3"},
		{"hidden_act": `"swish9"`}, {"model_type": `"mamba"`}, {"model_type": "3"}, {"attn_logit_softcapping": "50"}, {"num_local_experts": "8"},
		{"rope_scaling": `{"rope_type": "mystic"}`}, {"rope_scaling": `{"rope_type": "linear", "factor": 0}`}, {"rope_scaling": `"linear"`},
	} {
		write(edit)
		r := call("plan", file, "model="+folder).must(t, 2, "config.json")
		for key := range edit {
			if len(edit) == 1 && !named(r.stderr, key) {
				t.Errorf("%v: %s is not named: %s", edit, key, r.stderr)
			}
		}
	}
	for _, text := range []string{"", "null", "[]", "3", `{"model_type": "llama"`, "{}", strings.Repeat("[", 100000), `{"model_type": "llama"}x`} {
		check(t, os.WriteFile(path, []byte(text), 0o644))
		call("plan", file, "model="+folder).must(t, 2, "config.json")
	}
}

// named reports whether a message has a word of a key's name.
func named(message, key string) bool {
	for word := range strings.SplitSeq(key, "_") {
		if len(word) > 2 && word != "num" && strings.Contains(message, strings.TrimSuffix(word, "s")) {
			return true
		}
	}
	return false
}

// TestHostileWeights: safetensors whose headers lie are refused; what they
// claim is never allocated or read.
func TestHostileWeights(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	folder, file := modelFolder(t)
	path := folder + "/model.safetensors"
	whole, err := os.ReadFile(path)
	check(t, err)
	n := binary.LittleEndian.Uint64(whole)
	header, data := whole[8:8+n], whole[8+n:]
	file1 := func(n uint64, header, data []byte) []byte {
		return append(append(binary.LittleEndian.AppendUint64(nil, n), header...), data...)
	}
	edited := func(edit func(tensor map[string]any, all map[string]any)) []byte {
		var all map[string]any
		check(t, json.Unmarshal(header, &all))
		edit(all["model.norm.weight"].(map[string]any), all)
		text, err := json.Marshal(all)
		check(t, err)
		return file1(uint64(len(text)), text, data)
	}
	set := func(key string, v any) []byte {
		return edited(func(tensor, _ map[string]any) { tensor[key] = v })
	}
	for name, bytes := range map[string][]byte{
		"empty":             nil,
		"short":             whole[:5],
		"no header":         whole[:8],
		"header cut":        whole[:8+n/2],
		"data cut":          whole[:len(whole)-1],
		"data beyond":       append(append([]byte{}, whole...), 0),
		"huge header":       file1(math.MaxUint64, header, data),
		"long header":       file1(1<<40, header, data),
		"negative header":   file1(1<<63, header, data),
		"not JSON":          file1(n, []byte(strings.Repeat("x", int(n))), data),
		"offsets beyond":    set("data_offsets", []any{0, 1 << 50}),
		"offsets negative":  set("data_offsets", []any{-128, 0}),
		"offsets backwards": set("data_offsets", []any{128, 0}),
		"offsets overlap":   set("data_offsets", []any{0, 128}),
		"one offset":        set("data_offsets", []any{0}),
		"shape huge":        set("shape", []any{1 << 31, 1 << 31, 4}),
		"shape negative":    set("shape", []any{-32}),
		"shape other":       set("shape", []any{16}),
		"shape text":        set("shape", "32"),
		"dtype":             set("dtype", "F7"),
		"dtype other":       set("dtype", "F64"),
		"extra field":       set("compressed", true),
		"missing tensor":    edited(func(_, all map[string]any) { delete(all, "model.norm.weight") }),
		"no tensors":        file1(2, []byte("{}"), data),
	} {
		t.Run(name, func(t *testing.T) {
			check(t, os.WriteFile(path, bytes, 0o644))
			call("eval", folder, "../../LICENSE").must(t, 1)
			call("generate", folder, "--prompt", "gold").must(t, 1)
			call("train", file, "model="+folder, "tokenizer="+folder+"/tokenizer.json", "out="+t.TempDir(), "resume=never").must(t, 1)
		})
	}
	check(t, os.WriteFile(path, whole, 0o644))
	check(t, os.WriteFile(folder+"/tokenizer.json", []byte(`{"model": {"type": "BPE"}}`), 0o644))
	call("generate", folder, "--prompt", "gold").must(t, 1, "tokenizer.json")
}

// TestTokensFile: files that are not lists of token ids are refused.
func TestTokensFile(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	folder, _ := modelFolder(t, "model: {type: gpt2, layers: 1, width: 16, heads: 2}")
	path := folder + "/t.json"
	for _, text := range []string{"", "3", "[]", "[[]]", "[[1]]", "[[1,2],[3]]", "[[1,-2]]", "[[1,300]]", "[[1,99999999999]]", `[["a","b"]]`, "[[1.5,2]]", "[[1,2]"} {
		check(t, os.WriteFile(path, []byte(text), 0o644))
		if r := call("eval", folder, "--tokens", path).must(t, 2, path); strings.Count(r.stderr, "hint:") != 1 {
			t.Errorf("%s: not one hint: %s", text, r.stderr)
		}
	}
	long := "[[" + strings.TrimSuffix(strings.Repeat("1,", 1000), ",") + "]]"
	check(t, os.WriteFile(path, []byte(long), 0o644))
	call("eval", folder, "--tokens", path).must(t, 2, "positions", "hint:")
	call("eval", folder, "--tokens", folder+"/absent.json").must(t, 2, "absent.json", "hint:")
	call("eval", folder, folder+"/*.json", "--tokens", path).must(t, 2, "one of them", "hint:")
	call("eval", folder, "--logits", folder+"/l").must(t, 2, "--tokens", "hint:")
}

// TestAskedTooMuch: a request that exceeds a model folder or a corpus is refused, not reduced,
// and counts as bad use; without a request, sequences are as long as the model accepts.
func TestAskedTooMuch(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	folder, _ := modelFolder(t)
	text := folder + "/../../corpus.txt"
	check(t, os.WriteFile(folder+"/short.txt", []byte("gold"), 0o644))
	call("eval", folder, text, "--sequence", "33").must(t, 2, "33 tokens", "32 positions", "hint:")
	call("eval", folder, folder+"/absent.txt").must(t, 2, "no file matches", "hint:")
	call("eval", folder, folder+"/short.txt").must(t, 2, "the corpus has", "hint:")
	if usual, longest := call("eval", folder, text).must(t, 0), call("eval", folder, text, "--sequence", "32").must(t, 0); usual.stdout != longest.stdout {
		t.Errorf("%s, with the longest sequences %s", usual.stdout, longest.stdout)
	}
	if _, err := cuda.GPUs(); err != nil {
		call("generate", folder, "--prompt", "gold", "--device", "cuda").must(t, 2, "hint:")
	}
	check(t, os.Remove(folder+"/model.safetensors"))
	call("generate", folder, "--prompt", "gold").must(t, 2, "model.safetensors", "hint:")
}
