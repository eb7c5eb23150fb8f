package main

import (
	"bytes"
	"encoding/binary"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/checkpoint/safetensors"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// ggufFile is what a test reads of a file: text fields, and tensors of fp32.
type ggufFile struct {
	text    map[string]string
	tensors map[string][]float32
	extents map[string][]int // the fastest first
}

// readGGUF reads a file by the format's description (ggml-org/ggml, docs/gguf.md).
func readGGUF(t *testing.T, path string) ggufFile {
	t.Helper()
	all, err := os.ReadFile(path)
	check(t, err)
	b := all
	take := func(n uint64) []byte { part := b[:n]; b = b[n:]; return part }
	word := func() uint32 { return binary.LittleEndian.Uint32(take(4)) }
	long := func() uint64 { return binary.LittleEndian.Uint64(take(8)) }
	if string(take(4)) != "GGUF" || word() != 3 {
		t.Fatalf("%s is no GGUF", path)
	}
	f := ggufFile{map[string]string{}, map[string][]float32{}, map[string][]int{}}
	tensors, fields := long(), long()
	var skip func(kind uint32) string
	skip = func(kind uint32) string {
		switch kind {
		case 7:
			take(1)
		case 8:
			return string(take(long()))
		case 9:
			each, n := word(), long()
			for range n {
				skip(each)
			}
		default:
			take(4)
		}
		return ""
	}
	for range fields {
		key := string(take(long()))
		f.text[key] = skip(word())
	}
	type place struct {
		name string
		kind uint32
		at   uint64
	}
	var places []place
	for range tensors {
		name := string(take(long()))
		for range word() {
			f.extents[name] = append(f.extents[name], int(long()))
		}
		places = append(places, place{name, word(), long()})
	}
	data := (len(all) - len(b) + 31) / 32 * 32
	for _, p := range places {
		n := 1
		for _, d := range f.extents[p.name] {
			n *= d
		}
		if p.kind == 0 {
			x := make([]float32, n)
			check(t, binary.Read(bytes.NewReader(all[data+int(p.at):]), binary.LittleEndian, x))
			f.tensors[p.name] = x
		}
	}
	return f
}

// TestGGUF: export writes a file for llama.cpp with the weights of the model, an adapter merged into them: queries and keys in
// the order in which llama.cpp rotates them, its names, and the tokenizer. tools/check_gguf.py reads such files with transformers.
func TestGGUF(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	base, _ := modelFolder(t, "model: {type: llama, layers: 2, width: 32, heads: 4, kv_heads: 2}")
	dir, file := tiny(t, "max_steps: 2")
	call("train", file, "model="+base, "tokenizer="+base, "lora={rank: 4}").must(t, 0)
	call("export", dir+"/run/checkpoint-2", dir+"/a.gguf", "--gguf", "f32").must(t, 0)
	call("export", dir+"/run/checkpoint-2", dir+"/merged", "--precision", "fp32").must(t, 0)
	got := readGGUF(t, dir+"/a.gguf")
	set, err := safetensors.OpenFolder(dir + "/merged")
	check(t, err)
	defer set.Close()
	weight := func(name string) []float32 {
		info, ok := set.Lookup(name)
		if !ok {
			t.Fatal(name)
		}
		x := make([]float32, info.Elements())
		check(t, set.ReadFloat32(name, 0, x))
		return x
	}
	for theirs, ours := range map[string]string{"blk.1.ffn_down.weight": "model.layers.1.mlp.down_proj.weight", "blk.0.attn_norm.weight": "model.layers.0.input_layernorm.weight",
		"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight", "blk.0.attn_v.weight": "model.layers.0.self_attn.v_proj.weight"} {
		if !slices.Equal(got.tensors[theirs], weight(ours)) {
			t.Errorf("%s is not %s", theirs, ours)
		}
	}
	if e := got.extents["blk.0.ffn_down.weight"]; len(e) != 2 || e[1] != 32 {
		t.Errorf("extents %v", e)
	}
	// Of a head of 8 rows, 0 and 4 are rotated together here, and 0 and 1 there.
	q, theirs := weight("model.layers.1.self_attn.q_proj.weight"), got.tensors["blk.1.attn_q.weight"]
	for r := range 32 {
		at := r/8*8 + r%8%4*2 + r%8/4
		if !slices.Equal(q[32*r:32*r+32], theirs[32*at:32*at+32]) {
			t.Fatalf("row %d of the queries is not row %d there", r, at)
		}
	}
	for key, want := range map[string]string{"general.architecture": "llama", "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smaug-bpe"} {
		if got.text[key] != want {
			t.Errorf("%s is %q", key, got.text[key])
		}
	}
	call("export", base, dir+"/q8.gguf", "--gguf", "q8_0").must(t, 0)
	small, err := os.Stat(dir + "/q8.gguf")
	check(t, err)
	large, err := os.Stat(dir + "/a.gguf")
	check(t, err)
	if r := float64(small.Size()) / float64(large.Size()); math.Abs(r-34.0/128) > 0.1 {
		t.Errorf("%d bytes of %d", small.Size(), large.Size())
	}
	for _, kind := range []string{"q4_k_m", "q6_k"} { // of rows of 32 numbers, so Q5_0 and Q8_0
		call("export", base, dir+"/"+kind, "--gguf", kind).must(t, 0)
		smaller, err := os.Stat(dir + "/" + kind)
		check(t, err)
		if got := smaller.Size(); got > small.Size() || kind == "q4_k_m" && got == small.Size() {
			t.Errorf("%s has %d bytes, and q8_0 %d", kind, got, small.Size())
		}
	}
	call("export", base, dir+"/a.gguf", "--gguf", "f16").must(t, 2, "already exists", "hint:")
	call("export", base, dir+"/b.gguf", "--gguf", "f16", "--precision", "bf16").must(t, 2, "--precision", "hint:")
	other, _ := modelFolder(t, "model: {type: gpt_neox, layers: 1, width: 32, heads: 4}")
	call("export", other, dir+"/c.gguf", "--gguf", "f16").must(t, 2, "gpt_neox cannot be written as GGUF", "gpt2, llama, mistral, qwen2, qwen3", "hint:")
	if _, err := os.Stat(dir + "/c.gguf"); err == nil {
		t.Error("a file is left behind")
	}
}
