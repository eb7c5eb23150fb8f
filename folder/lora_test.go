package folder

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/checkpoint/safetensors"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cpu"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/internal/torch"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/model/family"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/session"
)

// TestAdapterTraining: adapters as PEFT writes them, of any scale, compute what PyTorch computes
// with them and are trained as PyTorch trains them; all else keeps its bits.
func TestAdapterTraining(t *testing.T) {
	dirs, err := filepath.Glob("../testdata/torch/*/lora")
	if err != nil || len(dirs) < 3 {
		t.Fatalf("fixtures: %v %v", dirs, err)
	}
	for _, dir := range testkit.Sample(dirs, 1, 6) {
		t.Run(filepath.Base(filepath.Dir(dir)), func(t *testing.T) {
			var rows [][]int32
			torch.JSON(t, filepath.Join(dir, "../tokens.json"), &rows)
			var want struct {
				Losses []float64 `json:"losses64"`
				Norms  []float64 `json:"grad_norms64"`
				NF4    string    `json:"quantize"`
			}
			torch.JSON(t, filepath.Join(dir, "losses.json"), &want)
			folder, err := Open(dir)
			check(t, err)
			defer func() { check(t, folder.Close()) }()
			if want.NF4 != "" {
				check(t, folder.Quantize())
			}
			s := trainable(t, folder, rows, lower.Train)
			before := make([][]float32, len(s.Graph.Params))
			for i, p := range s.Graph.Params {
				before[i] = make([]float32, p.Elems())
				check(t, s.Read(i, optimizer.Weights, before[i]))
			}
			batch, all := flatten(rows, len(rows), s.Graph)
			for n := 1; n <= 10; n++ {
				out, err := s.Step(t.Context(), 0, batch, session.Scalars{Rate: 1e-3, Step: n, Beta1: 0.9, Beta2: 0.95, Targets: all})
				check(t, err)
				if e := math.Abs(out.Loss/want.Losses[n-1] - 1); e > 1e-5 {
					t.Errorf("step %d: loss %.8f, PyTorch %.8f", n, out.Loss, want.Losses[n-1])
				}
				if e := math.Abs(out.Norm/want.Norms[n-1] - 1); e > 1e-5 {
					t.Errorf("step %d: gradient norm %.8f, PyTorch %.8f", n, out.Norm, want.Norms[n-1])
				}
			}
			for i, p := range s.Graph.Params {
				after := make([]float32, p.Elems())
				check(t, s.Read(i, optimizer.Weights, after))
				if slices.Equal(before[i], after) != p.Frozen {
					t.Errorf("%s: frozen %v, unchanged %v", p.Name, p.Frozen, !p.Frozen)
				}
			}
		})
	}
}

// TestAdapterGradients: logits, and the gradients of adapters whose alpha is not the rank, are
// PyTorch's.
func TestAdapterGradients(t *testing.T) {
	dirs, err := filepath.Glob("../testdata/torch/*/lora/grads.safetensors")
	if err != nil || len(dirs) < 2 {
		t.Fatalf("fixtures: %v %v", dirs, err)
	}
	for _, file := range testkit.Sample(dirs, 1, 6) {
		dir := filepath.Dir(file)
		folder, err := Open(dir)
		check(t, err)
		defer func() { check(t, folder.Close()) }()
		if s := folder.Model.LoRA.Scale(""); s == 1 {
			t.Errorf("%s: the scale is 1, so this proves little", dir)
		}
		var rows [][]int32
		torch.JSON(t, filepath.Join(dir, "../tokens.json"), &rows)
		step := func(mode lower.Mode) *session.Session {
			s := trainable(t, folder, rows, mode)
			batch, all := flatten(rows, len(rows), s.Graph)
			_, err := s.Step(t.Context(), 0, batch, session.Scalars{Rate: 1e-3, Step: 1, Beta1: 0.9, Beta2: 0.95, Targets: all})
			check(t, err)
			return s
		}
		want := torch.Tensor(t, dir, "expected.safetensors", "logits")
		got := make([]float64, len(want))
		check(t, step(lower.Logits).Engine(0).ReadBuffer("logits", got))
		if e := torch.Distance(got, want) / torch.Norm(want); e > 1e-5 {
			t.Errorf("%s: logits differ by %.2g", dir, e)
		}
		s := step(lower.Grads)
		for i, p := range s.Graph.Params {
			if !p.Adapter {
				continue
			}
			want, got := torch.Tensor(t, dir, "grads.safetensors", p.Tensors()[0].Name), make([]float32, p.Elems())
			check(t, s.Read(i, optimizer.Gradient, got))
			if d, n := torch.Distance(torch.Widened(got), want), torch.Norm(want); d > 1e-4*n {
				t.Errorf("%s: %s differs by %.3g of %.3g", dir, p.Name, d, n)
			}
		}
	}
}

// trainable opens the plain plan's program of a mode on one device, with a folder's weights.
func trainable(t *testing.T, f *Folder, rows [][]int32, mode lower.Mode) *session.Session {
	t.Helper()
	g, err := graph.Build(f.Model, len(rows[0])-1, graph.F32)
	check(t, err)
	opt := lower.Options{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Decay: 0.1, Clip: 1, Mode: mode, Capacity: program.NoLimits}
	p, err := lower.Lower(t.Context(), g, plan.Plain(g, len(rows)), opt)
	check(t, err)
	d := cpu.New(cpu.Options{})
	t.Cleanup(func() { check(t, d.Close()) })
	s, err := session.Open(g, []device.Device{d}, []*program.Program{p})
	check(t, err)
	t.Cleanup(s.Close)
	check(t, f.load(s))
	return s
}

// TestMerge: a merged folder computes what the model computes with its adapter, and has
// the files and types of the model's.
func TestMerge(t *testing.T) {
	ctx := context.Background()
	dirs, err := filepath.Glob("../testdata/torch/*/lora")
	check(t, err)
	for _, dir := range testkit.Sample(dirs, 1, 4) {
		to := filepath.Join(t.TempDir(), "merged")
		check(t, Merge(ctx, dir, to, func(string, int64, int64) {}))
		var rows [][]int32
		torch.JSON(t, filepath.Join(dir, "../tokens.json"), &rows)
		losses := map[string]float64{}
		for _, from := range []string{dir, to, filepath.Dir(dir)} {
			f, err := Open(from)
			check(t, err)
			e, err := Evaluate(ctx, f, rows, false, false)
			check(t, errors.Join(err, f.Close()))
			losses[from] = e.Loss
		}
		if e := math.Abs(losses[to]/losses[dir] - 1); e > 1e-6 {
			t.Errorf("%s: loss %v, merged %v", dir, losses[dir], losses[to])
		}
		if math.Abs(losses[filepath.Dir(dir)]/losses[dir]-1) < 1e-3 {
			t.Errorf("%s: the adapter changes nothing, so this proves nothing", dir)
		}
		if err := Merge(ctx, dir, to, func(string, int64, int64) {}); err == nil || !strings.Contains(err.Error(), "exists; hint: ") {
			t.Errorf("into a folder that exists: %v", err)
		}
		left, err := filepath.Glob(filepath.Join(filepath.Dir(to), ".*"))
		if err != nil || len(left) > 0 {
			t.Errorf("left behind: %v %v", left, err)
		}
	}
}

// TestAdapterErrors: what an adapter's folder may lack, and settings that would change
// results, are named, with a hint.
func TestAdapterErrors(t *testing.T) {
	const from = "../testdata/torch/llama-tiny/lora"
	config, err := os.ReadFile(filepath.Join(from, AdapterFile))
	check(t, err)
	factors, err := os.ReadFile(filepath.Join(from, "adapter_model.safetensors"))
	check(t, err)
	base, err := filepath.Abs("../testdata/torch/llama-tiny")
	check(t, err)
	good := strings.Replace(string(config), `"base_model_name_or_path": ".."`, `"base_model_name_or_path": "`+base+`"`, 1)
	for _, c := range []struct {
		old, new, want string
	}{
		{"", "", ""},
		{`"peft_type": "LORA"`, `"peft_type": "IA3"`, "of type LORA"},
		{`"use_dora": false`, `"use_dora": true`, "lora_magnitude_vector"},
		{`"use_rslora": false`, `"use_rslora": true`, ""},
		{`"use_rslora": false`, `"use_rslora": "yes"`, "use_rslora"},
		{`"bias": "none"`, `"bias": "all"`, "bias"},
		{`"init_lora_weights": true`, `"init_lora_weights": "gaussian"`, ""},
		{`"init_lora_weights": true`, `"init_lora_weights": false`, ""},
		{`"init_lora_weights": true`, `"init_lora_weights": "pissa_niter_16"`, "init_lora_weights"},
		{`"init_lora_weights": true`, `"init_lora_weights": "olora"`, "init_lora_weights"},
		{`"init_lora_weights": true`, `"init_lora_weights": "loftq"`, "init_lora_weights"},
		{`"init_lora_weights": true`, `"init_lora_weights": ["pissa"]`, "init_lora_weights"},
		{`"modules_to_save": null`, `"modules_to_save": ["lm_head"]`, "modules_to_save has lm_head.weight, but there is no tensor base_model.model.lm_head.weight"},
		{`"trainable_token_indices": null`, `"trainable_token_indices": [3, 5]`, "has 2 tokens, but there is no tensor"},
		{`"trainable_token_indices": null`, `"trainable_token_indices": {"embed_tokens": [3, 5], "no_head": [3]}`, "trainable_token_indices"},
		{`"trainable_token_indices": null`, `"trainable_token_indices": "all"`, "trainable_token_indices is neither"},
		{`"trainable_token_indices": null`, `"trainable_token_indices": [3, 1000000]`, "the token 1000000, but the vocabulary"},
		{`"trainable_token_indices": null`, `"trainable_token_indices": {"embed_tokens": []}`, ""},
		{`"modules_to_save": null`, `"modules_to_save": ["q_proj"]`, "has an adapter, too"},
		{`"rank_pattern": {}`, `"rank_pattern": {"q_proj": 1}`, "lora_A.weight has shape"},
		{`"rank_pattern": {}`, `"rank_pattern": {"q_proj": 2, "(q|k)_proj": 3}`, "rank_pattern has two patterns that match"},
		{`"rank_pattern": {}`, `"rank_pattern": {"q_proj(": 2}`, "rank_pattern"},
		{`"alpha_pattern": {}`, `"alpha_pattern": {"q_proj": -1}`, "alpha -1 with rank"},
		{`"v_proj"`, `"foo_proj"`, "v_proj.lora_A.weight, but target_modules does not have its module"},
		{`"v_proj"`, `"all-linear"`, ""},
		{`"r": 3`, `"r": 2`, "shape"},
		{`"r": 3`, `"r": 1000`, "rank 1000"},
		{`"r": 3`, `"r": -3`, "r is -3"},
		{`"lora_alpha": 3`, `"lora_alpha": "many"`, AdapterFile},
		{`"lora_alpha": 3`, `"lora_alpha": 0`, "lora_alpha is 0"},
		{`"lora_alpha": 3`, `"lora_alpha": 1e300`, "hint: alpha"},
		{`"lora_alpha": 3`, `"lora_alpha": 1e-300`, "hint: alpha"},
		{base, base + "-gone", "base_model_name_or_path"},
		{good, "{", AdapterFile},
		{good, "", AdapterFile},
	} {
		dir := t.TempDir()
		text := strings.Replace(good, c.old, c.new, 1)
		if text == good && c.old != c.new {
			t.Fatalf("%s is not in it", c.old)
		}
		check(t, os.WriteFile(filepath.Join(dir, AdapterFile), []byte(text), 0o644))
		check(t, os.WriteFile(filepath.Join(dir, "adapter_model.safetensors"), factors, 0o644))
		err := evaluates(dir)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v", c.new, err)
		}
		if c.want == "" {
			check(t, os.Truncate(filepath.Join(dir, "adapter_model.safetensors"), int64(len(factors)/2)))
			if err := evaluates(dir); err == nil || !strings.Contains(err.Error(), "hint: ") {
				t.Errorf("truncated: %v", err)
			}
			check(t, os.Remove(filepath.Join(dir, "adapter_model.safetensors")))
			if err := evaluates(dir); err == nil || !strings.Contains(err.Error(), "hint: ") {
				t.Errorf("without factors: %v", err)
			}
		}
	}
}

// evaluates opens a folder and computes a loss with it.
func evaluates(dir string) error {
	f, err := Open(dir)
	if err != nil {
		return err
	}
	_, err = Evaluate(context.Background(), f, [][]int32{{1, 2, 3, 4}}, false, false)
	return errors.Join(err, f.Close())
}

// TestAdapterModules: by the names of Modules, PEFT finds exactly what is adapted.
func TestAdapterModules(t *testing.T) {
	for _, c := range []struct {
		model    string
		patterns []string
		want     []string
	}{
		{"gpt2", nil, []string{"c_attn", "c_proj", "c_fc"}},
		{"gpt2", []string{"*.attn.c_proj.weight", "*.c_fc.weight"}, nil},
		{"llama-2-7b", []string{"*.[qv]_proj.weight"}, []string{"q_proj", "v_proj"}},
		{"llama-2-7b", []string{"model.layers.1?.mlp.up_proj.weight"}, nil},
		{"qwen3-30b-a3b", nil, []string{"q_proj", "k_proj", "v_proj", "o_proj"}},
		{"qwen3-30b-a3b", []string{"*.q_proj.weight", "*.experts.*"}, []string{"q_proj", "gate_up_proj", "down_proj"}},
		{"mixtral-8x7b", []string{"model.layers.[0-3].*.down_proj"}, nil},
	} {
		m, err := family.Known(c.model)
		check(t, err)
		check(t, m.Adapt(model.LoRA{Rank: 8}, c.patterns...))
		got, parameters := m.PEFT().Modules()
		got = append(got, parameters...)
		if c.want != nil && !slices.Equal(got, c.want) {
			t.Errorf("%s %v: %v, want %v", c.model, c.patterns, got, c.want)
		}
		for _, p := range m.Params() {
			if p.Vector || p.Adapter {
				continue
			}
			name := strings.Replace(strings.TrimSuffix(p.Name, ".weight"), ".block_sparse_moe.", ".mlp.", 1)                             // as transformers has it
			found := slices.ContainsFunc(got, func(module string) bool { return name == module || strings.HasSuffix(name, "."+module) }) // as peft does
			if adapted := slices.Contains(m.LoRA.Weights, p.Name); found != adapted {
				t.Errorf("%s %v: %s is found %v, adapted %v", c.model, c.patterns, p.Name, found, adapted)
			}
		}
	}
}

// TestQuantizedWeights: what is read back of a weight held in 4 bits is what bitsandbytes makes
// of it, bit for bit.
func TestQuantizedWeights(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	const dir = "../testdata/torch/llama-nf4"
	folder, err := Open(dir)
	check(t, err)
	defer func() { check(t, folder.Close()) }()
	check(t, folder.Quantize())
	want, err := safetensors.Open(filepath.Join(dir, "nf4.safetensors"))
	check(t, err)
	defer want.Close()
	var rows [][]int32
	torch.JSON(t, filepath.Join(dir, "tokens.json"), &rows)
	s := trainable(t, folder, rows, lower.Train)
	compared := 0
	for i, p := range s.Graph.Params {
		info, ok := want.Lookup(p.Name)
		if !ok {
			continue
		}
		a, b := make([]float32, p.Elems()), make([]float32, p.Elems())
		check(t, s.Read(i, optimizer.Weights, a))
		check(t, want.ReadFloat32(info.Name, 0, b))
		if !slices.Equal(a, b) {
			t.Errorf("%s differs", p.Name)
		}
		compared += len(a)
	}
	if compared == 0 {
		t.Error("nothing was compared")
	}
}

// TestWhole: adapters as PEFT writes them that have embedding, head or norms whole, or some of their rows, or a larger vocabulary,
// compute what PEFT computes with them, also merged, and are trained as PyTorch trains them.
func TestWhole(t *testing.T) {
	dirs, err := filepath.Glob("../testdata/torch/*/adapters/*")
	if err != nil || len(dirs) < 3 {
		t.Fatalf("fixtures: %v %v", dirs, err)
	}
	for _, dir := range dirs {
		t.Run(strings.TrimPrefix(dir, "../testdata/torch/"), func(t *testing.T) {
			var rows [][]int32
			torch.JSON(t, filepath.Join(dir, "tokens.json"), &rows)
			merged := filepath.Join(t.TempDir(), "merged")
			check(t, Merge(t.Context(), dir, merged, func(string, int64, int64) {}))
			want := torch.Tensor(t, dir, "expected.safetensors", "logits")
			for _, from := range []string{dir, merged} {
				f, err := Open(from)
				check(t, err)
				e, err := Evaluate(t.Context(), f, rows[:1], true, false)
				check(t, errors.Join(err, f.Close()))
				if d := torch.Distance(torch.Widened(e.Logits), want) / torch.Norm(want); !(d < 1e-5) {
					t.Errorf("%s: logits differ by %.2g", from, d)
				} else {
					t.Logf("%s: logits differ by %.2g", filepath.Base(from), d)
				}
			}
			if _, _, _, err := AdaptedModel(dir); strings.Contains(dir, "tokens") { // rows alone are not trained
				if err == nil || !strings.Contains(err.Error(), "hint: merge the adapter with athanor merge") {
					t.Errorf("trained: %v", err)
				}
				return
			}
			var steps torch64
			torch.JSON(t, filepath.Join(dir, "losses.json"), &steps)
			f, err := Open(dir)
			check(t, err)
			defer func() { check(t, f.Close()) }()
			trainAs(t, f, rows, steps)
		})
	}
}

// TestGrown: a model whose vocabulary is larger than its files' is trained as PyTorch trains it after resize_token_embeddings.
func TestGrown(t *testing.T) {
	files, err := filepath.Glob("../testdata/torch/*/grown.json")
	if err != nil || len(files) < 2 {
		t.Fatalf("fixtures: %v %v", files, err)
	}
	for _, file := range files {
		var want struct {
			torch64
			Vocabulary int
			Tokens     [][]int32
		}
		torch.JSON(t, file, &want)
		f, err := Open(filepath.Dir(file))
		check(t, err)
		defer func() { check(t, f.Close()) }()
		m := *f.Model
		m.Resize(want.Vocabulary)
		f.Model = &m
		trainAs(t, f, want.Tokens, want.torch64)
	}
}

// torch64 is what PyTorch gets from ten AdamW steps in float64.
type torch64 struct {
	Losses []float64 `json:"losses64"`
	Norms  []float64 `json:"grad_norms64"`
}

// trainAs compares ten steps with PyTorch's.
func trainAs(t *testing.T, f *Folder, rows [][]int32, want torch64) {
	t.Helper()
	s := trainable(t, f, rows, lower.Train)
	batch, all := flatten(rows, len(rows), s.Graph)
	for n := 1; n <= 10; n++ {
		out, err := s.Step(t.Context(), 0, batch, session.Scalars{Rate: 1e-3, Step: n, Beta1: 0.9, Beta2: 0.95, Targets: all})
		check(t, err)
		if e := math.Abs(out.Loss/want.Losses[n-1] - 1); !(e < 1e-5) {
			t.Errorf("step %d: loss %.8f, PyTorch %.8f", n, out.Loss, want.Losses[n-1])
		}
		if e := math.Abs(out.Norm/want.Norms[n-1] - 1); !(e < 1e-5) {
			t.Errorf("step %d: gradient norm %.8f, PyTorch %.8f", n, out.Norm, want.Norms[n-1])
		}
	}
}
