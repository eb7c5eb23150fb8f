package folder

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/checkpoint/safetensors"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/internal/torch"
	"github.com/athanor-llm/athanor/kernel"
	"github.com/athanor-llm/athanor/prune"
)

// plainFolders are the tiny models whose weights are plain numbers, those first that differ most.
func plainFolders(t *testing.T) []string {
	all, err := filepath.Glob("../testdata/torch/*/model.safetensors")
	check(t, err)
	names := []string{"llama-tiny", "gpt2-tiny", "qwen2-moe-tiny", "glm4-moe-tiny", "neox-tiny"}
	for _, path := range all {
		name := filepath.Base(filepath.Dir(path))
		if !slices.Contains(names, name) && !strings.HasPrefix(name, "gemma4-small") { // which is refused, see newWalk
			names = append(names, name)
		}
	}
	for i, name := range names {
		names[i] = "../testdata/torch/" + name
	}
	return names
}

// textsOf returns the token rows of a tiny model, and some more made of them.
func textsOf(t *testing.T, dir string) (rows [][]int32) {
	torch.JSON(t, filepath.Join(dir, "tokens.json"), &rows)
	for _, r := range slices.Clone(rows) {
		r = slices.Clone(r)
		slices.Reverse(r)
		rows = append(rows, r)
	}
	return rows
}

// TestWalk: texts that go through a model layer by layer get the logits of its evaluation, bit for bit.
func TestWalk(t *testing.T) {
	for _, dir := range testkit.Sample(plainFolders(t), 2, 4) {
		f, err := Open(dir)
		check(t, err)
		rows := textsOf(t, dir)[:1]
		want, err := Evaluate(t.Context(), f, rows, true, false)
		check(t, err)
		w, err := newWalk(f.Model, rows)
		check(t, err)
		head := &w.g.Segments[w.g.Head()]
		head.Forward = slices.DeleteFunc(head.Forward, func(n graph.Node) bool { return n.Op == graph.CrossEntropy || n.Op == graph.LossSum })
		var logits kernel.Tensor
		for s := range w.g.Segments {
			weights, err := w.readWeights(s, f.weights.Read)
			check(t, err)
			w.pass(s, weights, s < w.g.Head(), func(n *graph.Node, args []kernel.Tensor) {
				if n.Args[0].Value == w.g.Logits {
					logits = args[0]
				}
			})
		}
		for i, v := range want.Logits {
			if got := logits.F32[i/f.Model.Vocab*logits.Stride+i%f.Model.Vocab]; got != v {
				t.Fatalf("%s: logit %d is %v, evaluated %v", dir, i, got, v)
			}
		}
		w.env.Close()
		check(t, f.Close())
	}
}

// pruneTo prunes a folder, and returns what was reported.
func pruneTo(t *testing.T, dir, to string, rows [][]int32, pattern string, magnitude bool) (layers []PrunedLayer) {
	t.Helper()
	p, err := prune.Parse(pattern)
	check(t, err)
	f, err := Open(dir)
	check(t, err)
	err = f.Prune(t.Context(), to, Pruning{Pattern: p, Magnitude: magnitude, Rows: rows, Progress: func(string, int64, int64) {},
		Layer: func(l PrunedLayer) { layers = append(layers, l) }})
	check(t, errors.Join(err, f.Close()))
	return layers
}

// TestPrune: the matrices of all layers, and no other tensor, have as many zeros as were asked for; the reported errors of SparseGPT
// are less than those of magnitude; a second pruning changes nothing; the folder can be evaluated; and what a killed pruning left goes.
func TestPrune(t *testing.T) {
	for i, dir := range testkit.Sample(plainFolders(t), 2, 4) {
		tmp, pattern, rows := t.TempDir(), []string{"0.5", "2:4"}[i%2], textsOf(t, dir)
		if strings.Contains(dir, "deepseek") || strings.Contains(dir, "glm4-lite") { // 14 or 10 inputs are no groups of 4
			pattern = "0.5"
		}
		check(t, os.Mkdir(tmp+"/.tmp-a", 0o755)) // as a killed process leaves it
		check(t, os.WriteFile(tmp+"/.tmp-a/model.safetensors", []byte("half"), 0o644))
		layers := pruneTo(t, dir, tmp+"/a", rows, pattern, false)
		coarse := pruneTo(t, dir, tmp+"/m", rows, pattern, true)
		again := pruneTo(t, tmp+"/a", tmp+"/b", rows, pattern, false)
		if list, err := os.ReadDir(tmp); err != nil || len(list) != 3 {
			t.Errorf("%s: beside the three folders: %v, %v", dir, list, err)
		}
		var matrices, fine, rough, none float64
		for k, l := range layers {
			if l.Layer != k || 2*l.Zeros < l.Weights-int64(len(l.Matrices)) || 2*l.Zeros > l.Weights+int64(len(l.Matrices)) {
				t.Errorf("%s: layer %d (%d): %d zeros of %d", dir, k, l.Layer, l.Zeros, l.Weights)
			}
			matrices += float64(l.Weights)
			fine, rough, none = fine+l.Error, rough+coarse[k].Error, none+again[k].Error
		}
		if fine >= rough || none != 0 {
			t.Errorf("%s %s: error %v by SparseGPT, %v by magnitude, %v when pruned again", dir, pattern, fine, rough, none)
		}
		f, err := Open(tmp + "/a")
		check(t, err)
		before, after, more := weightsOf(t, dir), weightsOf(t, tmp+"/a"), weightsOf(t, tmp+"/b")
		for _, p := range f.Model.Params() {
			for _, tensor := range p.Tensors() {
				name, _ := tensor.NameIn(func(name string) bool { return before[name] != nil })
				a, b := before[name], after[name]
				changed := !slices.Equal(a, b)
				if p.Vector && changed || p.Layer < 0 && changed || !slices.Equal(b, more[name]) {
					t.Errorf("%s: %s changed: %v", dir, tensor.Name, changed)
				}
				if changed {
					matrices -= float64(len(a))
				}
			}
		}
		if matrices != 0 || len(before) != len(after) {
			t.Errorf("%s: the reported weights are not those that changed: %v; tensors %d and %d", dir, matrices, len(before), len(after))
		}
		_, err = Evaluate(t.Context(), f, rows, false, false)
		check(t, errors.Join(err, f.Close()))
	}
}

// TestPruneInOrder: a layer is pruned with the inputs that it has after those before it have been pruned: if these are pruned
// already, it becomes the same.
func TestPruneInOrder(t *testing.T) {
	dir, tmp := "../testdata/torch/llama-tiny", t.TempDir()
	rows := textsOf(t, dir)
	pruneTo(t, dir, tmp+"/a", rows, "0.5", false)
	check(t, os.CopyFS(tmp+"/mixed", os.DirFS(dir)))
	writeTensors := func(to string, layer0 map[string][]float32) {
		set, err := safetensors.OpenFolder(dir)
		check(t, err)
		defer set.Close()
		own := weightsOf(t, dir)
		var list []safetensors.Tensor
		for _, info := range set.Tensors() {
			values := own[info.Name]
			if strings.Contains(info.Name, "layers.0.") {
				values = layer0[info.Name]
			}
			list = append(list, safetensors.Float32s(info.Name, info.DType, info.Shape, values))
		}
		file, err := os.Create(filepath.Join(to, "model.safetensors"))
		check(t, err)
		check(t, errors.Join(safetensors.Write(file, nil, list), file.Close()))
	}
	a := weightsOf(t, tmp+"/a")
	writeTensors(tmp+"/mixed", a)
	pruneTo(t, tmp+"/mixed", tmp+"/b", rows, "0.5", false)
	b := weightsOf(t, tmp+"/b")
	for name, values := range a {
		if !slices.Equal(values, b[name]) {
			t.Errorf("%s depends on what layer 0 was", name)
		}
	}
}

// TestPruneRefused: what cannot be pruned is refused before anything is written, and an error on the way leaves no folder.
func TestPruneRefused(t *testing.T) {
	tmp := t.TempDir()
	p := prune.Pattern{Share: 0.5}
	refused := func(dir, to string, p prune.Pattern, says string) {
		t.Helper()
		f, err := Open(dir)
		check(t, err)
		defer f.Close()
		err = f.Prune(t.Context(), to, Pruning{Pattern: p, Rows: [][]int32{make([]int32, 9)}, Layer: func(PrunedLayer) {}, Progress: func(string, int64, int64) {}})
		if !errors.Is(err, ErrMisuse) || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "hint: ") {
			t.Errorf("%s: %v", dir, err)
		}
		if _, err := os.Stat(to); to != tmp && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", to, err)
		}
	}
	refused("../testdata/torch/llama-tiny", tmp, p, "already exists")
	refused("../testdata/torch/mixtral-tiny/lora", tmp+"/a", p, "merge")
	refused("../testdata/torch/llama-tiny", tmp+"/a", prune.Pattern{Keep: 3, Of: 7}, "groups of 7")
}

// TestPruneUnused: matrices that see no inputs, such as those of experts that no token goes to, are pruned all the same, and their
// error is a number.
func TestPruneUnused(t *testing.T) {
	const dir = "../testdata/torch/mixtral-tiny"
	layers := pruneTo(t, dir, t.TempDir()+"/a", [][]int32{{1, 2}}, "0.5", false)
	for _, l := range layers {
		experts := map[int]bool{}
		for _, m := range l.Matrices {
			if m.Expert != nil {
				experts[*m.Expert] = true
			}
			if !(m.Error >= 0 && m.Error < 1) || m.Zeros != m.Weights/2 {
				t.Errorf("%+v", m)
			}
		}
		f, err := Open(dir)
		check(t, err)
		if len(experts) != f.Model.Experts {
			t.Errorf("%d experts of %d", len(experts), f.Model.Experts)
		}
		check(t, f.Close())
	}
}
