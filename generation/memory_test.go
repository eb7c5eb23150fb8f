package generation

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/folder"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/samples"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/machine"
)

// TestWithMemory: a model with linear attention serves several requests at once, whose greedy tokens are a generator's.
func TestWithMemory(t *testing.T) {
	dir := t.TempDir()
	for _, file := range []string{"../testdata/torch/qwen35-tiny/config.json", "../testdata/torch/qwen35-tiny/model.safetensors", filepath.Join(samples.ModelFolder(t), "tokenizer.json")} {
		text, err := os.ReadFile(file)
		check(t, err)
		check(t, os.WriteFile(filepath.Join(dir, filepath.Base(file)), text, 0o644))
	}
	b := opened(t, dir, 5, graph.F32)
	if b.Sequences() != 5 {
		t.Fatalf("%d sequences at once", b.Sequences())
	}
	r := testkit.Rand(t)
	var list []*Request
	for i := range 8 {
		q := &Request{Tokens: 1 + r.IntN(20), Logprobs: 0, Echo: i%4 == 3}
		for range 1 + r.IntN(70) {
			q.Prompt = append(q.Prompt, int32(r.IntN(b.vocab)))
		}
		list = append(list, q)
	}
	d, err := machine.OpenAlone("cpu", 0, 0)
	check(t, err)
	g, err := b.Folder.Generator(t.Context(), d, 120, graph.F32)
	check(t, err)
	defer func() { check(t, g.Close()) }()
	for i, got := range serve(t, b, list) {
		check(t, got.err)
		var ids []int32
		for _, token := range got.Tokens {
			ids = append(ids, token.ID)
		}
		want := greedy(t, g, list[i], len(got.Tokens))
		if !slices.Equal(ids, want) {
			t.Errorf("request %d: %v, by itself %v", i, ids, want)
		}
	}
}

// greedy returns n tokens: with Echo those of the prompt first, then the likeliest ones.
func greedy(t *testing.T, g *folder.Generator, q *Request, n int) (ids []int32) {
	t.Helper()
	if g.Reset(); q.Echo {
		ids = slices.Clone(q.Prompt)
	}
	check(t, g.Extend(t.Context(), q.Prompt...))
	for len(ids) < n {
		next := int32(likeliest(g.Logits()))
		if ids = append(ids, next); len(ids) < n {
			check(t, g.Extend(t.Context(), next))
		}
	}
	return ids
}
