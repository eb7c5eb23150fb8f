//go:build linux

package cuda_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/checkpoint/safetensors"
	"github.com/athanor-llm/athanor/data"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cpu"
	"github.com/athanor-llm/athanor/device/cuda"
	"github.com/athanor-llm/athanor/exec"
	"github.com/athanor-llm/athanor/folder"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/internal/testkit"
	fixtures "github.com/athanor-llm/athanor/internal/torch"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/machine"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/model/family"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/search"
	"github.com/athanor-llm/athanor/session"
)

const torch = "../../testdata/torch/"

// fixture is what PyTorch computed for a tiny model: testdata/torch/README.md.
type fixture struct {
	dir             string
	model           *model.Model
	weights         *safetensors.Set
	adapter         *safetensors.Set // nil: none
	seq             int
	tokens, targets []int32
	losses          []float64 // in fp64
	documents       *graph.Documents
	parts           int // of the vocabulary; 0: it is whole
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func load(t *testing.T, name string) *fixture {
	t.Helper()
	f := &fixture{dir: torch + name}
	text, err := os.ReadFile(filepath.Join(f.dir, "config.json"))
	check(t, err)
	f.model, _, err = family.Parse(text)
	check(t, err)
	f.weights, err = safetensors.OpenFolder(f.dir)
	check(t, err)
	t.Cleanup(func() { f.weights.Close() })
	var rows [][]int32
	text, err = os.ReadFile(filepath.Join(f.dir, "tokens.json"))
	check(t, err)
	check(t, json.Unmarshal(text, &rows))
	for _, r := range rows {
		f.tokens = append(f.tokens, r[:len(r)-1]...)
		f.targets = append(f.targets, r[1:]...)
	}
	f.seq = len(rows[0]) - 1
	f.readLosses(t, filepath.Join(f.dir, "losses.json"))
	return f
}

// adapt makes the fixture one of the adapter in its folder, see lora there.
func (f *fixture) adapt(t *testing.T) *fixture {
	t.Helper()
	var err error
	f.adapter, err = safetensors.OpenIn(filepath.Join(f.dir, "lora"), "adapter_model")
	check(t, err)
	t.Cleanup(func() { f.adapter.Close() })
	var lora struct {
		Rank   int      `json:"r"`
		Alpha  float64  `json:"lora_alpha"`
		RSLoRA bool     `json:"use_rslora"`
		DoRA   bool     `json:"use_dora"`
		Params []string `json:"target_parameters"`
	}
	text, err := os.ReadFile(filepath.Join(f.dir, "lora", "adapter_config.json"))
	check(t, err)
	check(t, json.Unmarshal(text, &lora))
	var names []string
	for _, info := range f.adapter.Tensors() {
		names = append(names, info.Name)
	}
	check(t, f.model.Adapt(model.LoRA{Rank: lora.Rank, Alpha: lora.Alpha, RSLoRA: lora.RSLoRA, DoRA: lora.DoRA}, f.model.PEFT().AdaptedIn(names, lora.Params)...))
	if _, err := os.Stat(filepath.Join(f.dir, "nf4.safetensors")); err == nil {
		check(t, f.model.Quantize())
	}
	f.readLosses(t, filepath.Join(f.dir, "lora", "losses.json"))
	return f
}

// sinks returns attention sinks, which are not in the fixture's files.
func (f *fixture) sinks() *fixture {
	f.model.Sinks = true
	return f
}

func (f *fixture) readLosses(t *testing.T, path string) {
	t.Helper()
	var l struct{ Losses64 []float64 }
	text, err := os.ReadFile(path)
	check(t, err)
	check(t, json.Unmarshal(text, &l))
	f.losses = l.Losses64
}

// read is what session.Loader reads: all of a parameter, since none is larger than a piece.
func (f *fixture) read(p model.Param, _ int, dst []float32) error {
	if p.Adapter {
		return fixtures.Read(f.adapter, p, dst)
	}
	if strings.HasSuffix(p.Name, ".sinks") { // as large as scores
		p.Std = 1
		session.Initial(p, 1, 0, dst)
		return nil
	}
	return fixtures.Read(f.weights, p, dst)
}

func (f *fixture) graph(t *testing.T, d graph.DType) *graph.Graph {
	g, err := graph.BuildVocabulary(f.model, f.seq, f.parts, d, f.documents)
	check(t, err)
	return g
}

// trace is what a run computed and did.
type trace struct {
	losses, norms []float64
	state         [][]float32
	stats         device.Stats
}

// batch returns the fixture's tokens as a step reads them.
func (f *fixture) batch(g *graph.Graph) session.Batch {
	b := session.Batch{Tokens: f.tokens, Targets: f.targets, Starts: make([]int32, len(f.tokens))}
	data.Starts(b.Starts, b.Tokens, g.Sequence(), g.End())
	return b
}

// train runs a plan for some steps.
func (f *fixture) train(t *testing.T, g *graph.Graph, d device.Device, pl *plan.Plan, steps int) (*program.Program, trace) {
	t.Helper()
	opt := lower.Options{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Decay: 0.1, Clip: 1, Capacity: program.NoLimits}
	p, err := lower.Lower(context.Background(), g, pl, opt)
	check(t, err)
	updates, err := session.Updates(t.Context(), g, pl, []*program.Program{p}, opt)
	check(t, err)
	s, err := session.OpenDeferred(g, []device.Device{d}, updates, []*program.Program{p})
	check(t, err)
	defer s.Close()
	check(t, s.Load(f.read))
	var tr trace
	for n := 1; n <= steps; n++ {
		out, err := s.Step(context.Background(), 0, f.batch(g), session.Scalars{Rate: 1e-3, Step: n, Beta1: 0.9, Beta2: 0.95, Targets: len(f.targets)})
		check(t, err)
		tr.losses, tr.norms = append(tr.losses, out.Loss), append(tr.norms, out.Norm)
	}
	for i, q := range s.Graph.Params {
		for _, kind := range optimizer.AdamW.Rule().State() {
			buf := make([]float32, q.Elems())
			if q.Frozen && kind != optimizer.Weights {
				tr.state = append(tr.state, buf)
				continue
			}
			check(t, s.Read(i, kind, buf))
			tr.state = append(tr.state, buf)
		}
	}
	tr.stats = d.(device.Meter).Stats()
	return p, tr
}

func gpu(t *testing.T, f *fixture) device.Device { return gpuOf(t, f, cuda.Machine) }

func gpuOf(t *testing.T, f *fixture, machine cuda.Maker) device.Device {
	d, g := machine(t, cuda.Options{SumRows: f.seq})
	cuda.Stale(t, d) // no plan relies on what memory has at first
	t.Cleanup(func() {
		if g != nil && g.Failure() != nil {
			t.Error(g.Failure())
		}
	})
	return d
}

// steps are usually two: one, and one from the weights and moments that it leaves.
func steps() int {
	if cuda.OnGPU() {
		return 10
	}
	return testkit.Count(1, 2, 3)
}

// compiledSteps are fewer, since their kernels run instruction by instruction: one step, and one from
// the weights and moments that it leaves.
const compiledSteps = 2

// TestTraining: losses of a few steps are PyTorch's, as close as the CPU's in fp32, and as close as
// bf16 allows in bf16.
func TestTraining(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	trainsAsPyTorch(t, cuda.Machine, steps(), 2, "gpt2-tiny", "llama-tiny", "gemma3-tiny", "gemma2-tiny", "gemma4-tiny", "gemma4-small-tiny", "gemma4-moe-tiny", "deepseek3-tiny", "neox-tiny", "phi-tiny", "qwen3-moe-tiny", "glm4-moe-tiny", "minimax-m2-tiny", "ernie-moe-tiny", "qwen35-tiny", "qwen3-next-tiny", "qwen35-moe-tiny", "lfm2-tiny", "granite-h-tiny", "falcon-h1-normed-tiny", "nemotron-h-tiny", "cohere2-tiny", "apertus-tiny", "seed-oss-tiny lora", "olmoe-tiny lora", "gpt2-tiny lora", "qwen2-tiny lora", "llama-nf4 lora")
}

// TestCompiledTraining: the same for kernels made by NVIDIA's compiler.
func TestCompiledTraining(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	trainsAsPyTorch(t, cuda.Compiled, compiledSteps, 1, "gpt2-tiny", "llama-tiny", "qwen3-moe-tiny", "qwen35-tiny", "olmoe-tiny lora", "llama-nf4 lora")
}

// trainsAsPyTorch usually tries so many of the models, each in one of the types.
func trainsAsPyTorch(t *testing.T, machine cuda.Maker, steps, usual int, names ...string) {
	t.Helper()
	for i, name := range cuda.CasesOf(names, usual) {
		folder, lora := strings.CutSuffix(name, " lora")
		f := load(t, folder)
		if lora {
			f.adapt(t)
		}
		for k, d := range bothTypes {
			if (i+k)%2 == 1 && !cuda.OnGPU() && testkit.AtLevel() < testkit.All {
				continue
			}
			t.Run(name+" "+d.String(), func(t *testing.T) {
				g := f.graph(t, d)
				_, tr := f.train(t, g, gpuOf(t, f, machine), plan.Plain(g, 4), steps)
				for n, loss := range tr.losses {
					if e := math.Abs(loss/f.losses[n] - 1); !(e < closeTo[d]) {
						t.Errorf("step %d: loss %v, PyTorch %v", n+1, loss, f.losses[n])
					}
				}
			})
		}
	}
}

// bothTypes are those of activations and weights; where one is enough, it is bf16.
var bothTypes = []graph.DType{graph.BF16, graph.F32}

// closeTo is how close losses are to others' by relation, by the type of activations and weights.
var closeTo = map[graph.DType]float64{graph.F32: 1e-5, graph.BF16: 1e-2}

// quantize holds the model's weights, which are then frozen, in 4 bits.
func (f *fixture) quantize(t *testing.T) *fixture {
	t.Helper()
	f.model.FreezeLinear()
	check(t, f.model.Quantize())
	return f
}

// TestQuantizedMixture: losses of a mixture whose experts are held in 4 bits are the CPU's.
func TestQuantizedMixture(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	trainsAsCPU(t, load(t, "mixtral-tiny").quantize(t), cuda.Machine, steps())
}

func TestCompiledQuantizedMixture(t *testing.T) {
	testkit.Needs(t, testkit.All)
	trainsAsCPU(t, load(t, "mixtral-tiny").quantize(t), cuda.Compiled, compiledSteps)
}

// TestGPTOSS: the same for gpt-oss, whose experts have biases and bounds.
func TestGPTOSS(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	trainsAsCPU(t, load(t, "gpt-oss-tiny"), cuda.Machine, steps())
	if cuda.OnGPU() || testkit.AtLevel() == testkit.All {
		trainsAsCPU(t, load(t, "gpt-oss-tiny").quantize(t), cuda.Machine, steps())
	}
}

func TestCompiledGPTOSS(t *testing.T) {
	testkit.Needs(t, testkit.All)
	trainsAsCPU(t, load(t, "gpt-oss-tiny"), cuda.Compiled, compiledSteps)
	trainsAsCPU(t, load(t, "gpt-oss-tiny").quantize(t), cuda.Compiled, compiledSteps)
}

// TestSinks: losses with attention sinks are the CPU's.
func TestSinks(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	trainsAsCPU(t, load(t, "llama-tiny").sinks(), cuda.Machine, steps())
}

func TestCompiledSinks(t *testing.T) {
	testkit.Needs(t, testkit.All)
	trainsAsCPU(t, load(t, "llama-tiny").sinks(), cuda.Compiled, compiledSteps)
}

// TestVocabularyParts: losses with embedding and head in parts are the CPU's.
func TestVocabularyParts(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	f := load(t, "llama-tied")
	f.parts = 3
	trainsAsCPU(t, f, cuda.Machine, steps())
}

func TestCompiledVocabularyParts(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	f := load(t, "gpt2-tiny")
	f.parts = 2
	trainsAsCPU(t, f, cuda.Compiled, compiledSteps)
}

// trainsAsCPU compares losses and norms of a few steps.
func trainsAsCPU(t *testing.T, f *fixture, machine cuda.Maker, steps int) {
	t.Helper()
	for _, d := range cuda.CasesOf(bothTypes, 1) {
		g, tol := f.graph(t, d), closeTo[d]
		c := cpu.New(cpu.Options{})
		defer c.Close()
		_, want := f.train(t, g, c, plan.Plain(g, 4), steps)
		_, got := f.train(t, g, gpuOf(t, f, machine), plan.Plain(g, 4), steps)
		for n, loss := range got.losses {
			if e := math.Abs(loss/want.losses[n] - 1); !(e < tol) {
				t.Errorf("%v, step %d: loss %v, on the CPU %v", d, n+1, loss, want.losses[n])
			}
		}
		for n, norm := range got.norms {
			if e := math.Abs(norm/want.norms[n] - 1); !(e < 10*tol) {
				t.Errorf("%v, step %d: norm %v, on the CPU %v", d, n+1, norm, want.norms[n])
			}
		}
	}
}

// plans that use all tiers and streams.
func plans(g *graph.Graph) map[string]*plan.Plan {
	micro := plan.Plain(g, 1)
	micro.MicroBatches, micro.Group = 4, 2
	micro.HeadRows = g.Seq
	spread := plan.Plain(g, 2)
	spread.MicroBatches, spread.Group = 2, 2
	spread.HeadRows = g.Seq
	spread.Chunks = plan.Layout(g, 3000)
	for i := range spread.Chunks {
		c := &spread.Chunks[i]
		if i%4 > 0 && i%8 < 4 {
			c.Update = plan.UpdateOnDevice
		}
		switch i % 4 {
		case 1:
			c.State = device.DiskTier
		case 2:
			c.Grads, c.State = device.HostTier, device.HostTier
		case 3:
			c.Weights, c.Grads, c.State = device.HostTier, device.HostTier, device.DiskTier
		}
		if c.Tables(g) {
			c.Weights, c.Lookup = device.HostTier, plan.LookupOnHost
		}
	}
	spread.Cache = spread.CacheNeeded(g)
	spread.Prefetch = 2
	for l := range spread.Activations {
		spread.Activations[l] = plan.Recomputed("full")
	}
	again := plan.Plain(g, 4)
	swap := plan.Plain(g, 2)
	swap.MicroBatches, swap.HeadRows, swap.Slots = 2, g.Seq, 2
	for l := range again.Activations {
		again.Activations[l] = plan.Recomputed([]string{"full", "attention"}[l%2])
		swap.Activations[l] = plan.SwapOf([]device.Tier{device.HostTier, device.DiskTier}[l%2], 0.4)
	}
	later := *spread
	later.Defer = true
	return map[string]*plan.Plan{"micro-batches": micro, "all tiers": spread, "recompute": again, "swap": swap, "updates deferred": &later}
}

// TestPlansChangeNothing is L1 to L3 on this backend: plans that use all tiers and cut micro-batches
// give the bits of the plain run, the peaks of the packing, and the bytes of the CPU backend. One of
// the models, the one that is usually tried, has attention within documents, with sinks.
func TestPlansChangeNothing(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	type named struct {
		name string
		d    graph.DType
	}
	cases := []named{{"llama-tiny", graph.BF16}, {"gpt2-tiny", graph.F32}, {"gemma3-tiny", graph.F32}, {"gemma2-tiny", graph.BF16}, {"gemma4-tiny", graph.BF16}, {"gemma4-small-tiny lora", graph.BF16}, {"gemma4-moe-tiny", graph.F32}, {"deepseek3-tiny", graph.BF16}, {"qwen3-moe-tiny", graph.BF16}, {"glm4-moe-tiny", graph.BF16},
		{"olmoe-tiny lora", graph.BF16}, {"llama-nf4 lora", graph.BF16}, {"qwen3-moe-tiny nf4", graph.BF16}, {"gpt-oss-tiny", graph.BF16}, {"qwen35-tiny", graph.F32}, {"qwen3-next-tiny", graph.BF16}, {"lfm2-tiny", graph.BF16}, {"granite-h-tiny", graph.BF16}, {"cohere-tiny", graph.F32}, {"apertus-tiny", graph.BF16}, {"llama-tied lora", graph.BF16}, {"qwen3-tiny noise", graph.BF16}, {"llama-tied in parts", graph.BF16}, {"llama-tiny fp8", graph.BF16}}
	if cuda.OnGPU() { // where it takes no time
		cases = append(cases, named{"gpt2-untied", graph.BF16}, named{"qwen2-tiny", graph.F32}, named{"qwen3-tiny", graph.BF16},
			named{"olmo2-tiny", graph.BF16}, named{"mixtral-tiny", graph.F32}, named{"olmoe-tiny", graph.BF16})
	}
	for _, c := range cuda.CasesOf(cases, 1) {
		name, d := c.name, c.d
		folder, how, _ := strings.Cut(name, " ")
		f := load(t, folder)
		switch how {
		case "lora":
			f.adapt(t)
		case "nf4":
			f.quantize(t)
		case "noise":
			f.adapt(t).model.LoRA.Dropout, f.model.Neftune = 0.25, 5
		case "fp8":
			check(t, model.MultiplyFP8(f.model))
		case "in parts":
			f.parts = 3
		}
		if name == "llama-tiny" {
			f.sinks().documents = &graph.Documents{End: f.tokens[9], Length: 8}
		}
		g := f.graph(t, d)
		_, plain := f.train(t, g, gpu(t, f), plan.Plain(g, 4), 2)
		all := plans(g)
		names := slices.Sorted(maps.Keys(all))
		if !cuda.OnGPU() { // the fake takes seconds
			names = testkit.Sample(names, 1, 2)
		}
		for _, what := range names {
			pl := all[what]
			t.Run(name+" "+d.String()+" "+what, func(t *testing.T) {
				p, got := f.train(t, g, gpu(t, f), pl, 2)
				if !slices.Equal(got.losses, plain.losses) || !slices.Equal(got.norms, plain.norms) {
					t.Errorf("losses %v norms %v\nplain  %v norms %v", got.losses, got.norms, plain.losses, plain.norms)
				}
				for i := range got.state {
					if !slices.Equal(got.state[i], plain.state[i]) {
						t.Errorf("%d %s differs", i/3, optimizer.AdamW.Rule().State()[i%3])
					}
				}
				if got.stats.Peak != p.Height {
					t.Errorf("touched up to %v, the plan said %v", got.stats.Peak, p.Height)
				}
				c := cpu.New(cpu.Options{DiskPath: filepath.Join(t.TempDir(), "disk")})
				defer c.Close()
				if _, want := f.train(t, g, c, pl, 2); got.stats.Moved != want.stats.Moved {
					t.Errorf("moved %v, the CPU backend %v", got.stats.Moved, want.stats.Moved)
				}
			})
		}
	}
}

// TestPinnedRuns: a run in the memory in which operators were timed, and one in the memory of the
// previous run, which had another plan, give the bits of a run in memory of its own.
func TestPinnedRuns(t *testing.T) {
	testkit.Needs(t, testkit.All)
	f := load(t, "llama-tiny")
	g := f.graph(t, graph.BF16)
	first := gpu(t, f).(*cuda.Device)
	_, plain := f.train(t, g, first, plan.Plain(g, 4), 2)
	pinned := &cuda.Pinned{}
	t.Cleanup(func() { check(t, pinned.Close()) })
	list := plans(g)
	for _, what := range []string{"all tiers", "swap", "all tiers"} {
		pl := list[what]
		p, err := lower.Lower(context.Background(), g, pl, lower.Options{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Decay: 0.1, Clip: 1, Capacity: program.NoLimits})
		check(t, err)
		o := cuda.Options{SumRows: f.seq, Pinned: pinned}
		d := cuda.Beside(t, first, o)
		check(t, exec.Reserve(d, p))
		times, err := hardware.Profile(p.Calls(), d, 0)
		check(t, err)
		check(t, d.Close())
		if len(times) == 0 {
			t.Error("nothing was timed")
		}
		d = cuda.Beside(t, first, o)
		_, got := f.train(t, g, d, pl, 2)
		check(t, d.Close())
		if !slices.Equal(got.losses, plain.losses) || !slices.Equal(got.norms, plain.norms) {
			t.Errorf("%s: losses %v norms %v\nplain  %v norms %v", what, got.losses, got.norms, plain.losses, plain.norms)
		}
		for i := range got.state {
			if !slices.Equal(got.state[i], plain.state[i]) {
				t.Errorf("%s: %s %s differs", what, g.Params[i/3].Name, optimizer.AdamW.Rule().State()[i%3])
			}
		}
	}
}

// TestGenerate: text is continued as on the CPU, and neither how the tokens are handed
// over nor how much memory the GPU has changes a bit.
func TestGenerate(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	ctx := context.Background()
	for _, c := range cuda.CasesOf([]struct {
		name   string
		dtype  graph.DType
		length int // a fake GPU takes its time over more
	}{
		{"gpt2-tiny", graph.F32, 12},
		{"llama-tiny", graph.F32, 12},
		{"llama-tiny", graph.BF16, 64}, // a block and a token
		{"gemma3-tiny", graph.F32, 12},
		{"gemma2-tiny", graph.F32, 12},
		{"gemma4-tiny", graph.F32, 12},
		{"deepseek3-tiny", graph.F32, 12},
		{"glm4-moe-tiny", graph.F32, 12},
		{"mixtral-tiny", graph.F32, 12},
		{"qwen35-tiny", graph.F32, 12},
		{"qwen3-next-tiny", graph.BF16, 12},
		{"lfm2-tiny", graph.F32, 12},
		{"granite-h-tiny", graph.F32, 12},
	}, 2) {
		t.Run(fmt.Sprint(c.name, c.dtype), func(t *testing.T) {
			f, err := folder.Open(torch + c.name)
			check(t, err)
			defer f.Close()
			length := c.length
			ids := make([]int32, length)
			for i := range ids {
				ids[i] = int32(i * i % f.Model.Vocab)
			}
			var logits [3][][]float64 // of the last tokens, by device
			for i, d := range []device.Device{cpu.New(cpu.Options{}), gpu(t, load(t, c.name)), gpu(t, load(t, c.name))} {
				alone := &machine.Alone{Device: d, Capacity: program.NoLimits}
				if i == 2 {
					alone.Capacity[device.DeviceTier] = frugal(t, f, length, c.dtype)
				}
				g, err := f.Generator(ctx, alone, length, c.dtype)
				check(t, err)
				defer func() { check(t, g.Close()) }()
				for _, first := range []int{onGPU(3, max(3, length-12)), length - 1} {
					g.Reset()
					check(t, g.Extend(ctx, ids[:first]...))
					for _, id := range ids[first:] {
						check(t, g.Extend(ctx, id))
						logits[i] = append(logits[i], slices.Clone(g.Logits()))
					}
				}
				if n := len(logits[i]); !slices.Equal(logits[i][n-1], logits[i][n-2]) {
					t.Errorf("device %d: token by token the logits differ", i)
				}
			}
			tol := 1e-4
			if c.dtype == graph.BF16 {
				tol = 0.1
			}
			for n, want := range logits[0] {
				for i, w := range want {
					if !(math.Abs(logits[1][n][i]-w) <= tol) {
						t.Fatalf("%d: logit %d is %v, on the CPU %v", n, i, logits[1][n][i], w)
					}
				}
				if !slices.Equal(logits[1][n], logits[2][n]) {
					t.Errorf("%d: with weights on the host the logits differ", n)
				}
			}
		})
	}
}

// frugal returns the least device memory that generation takes.
func frugal(t *testing.T, f *folder.Folder, length int, dtype graph.DType) int64 {
	t.Helper()
	d := &machine.Alone{Device: cpu.New(cpu.Options{}), Capacity: program.NoLimits}
	d.Capacity[device.DeviceTier] = 1
	var misfit *search.Misfit
	if _, err := f.Generator(context.Background(), d, length, dtype); !errors.As(err, &misfit) {
		t.Fatal(err)
	}
	return misfit.Need
}

// TestSkippedStep: a step whose norm is above the bound, or not a number, changes no bit of weights and
// moments, whoever updates them.
func TestSkippedStep(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	f := load(t, "gpt2-tiny")
	g := f.graph(t, graph.BF16)
	for _, what := range cuda.CasesOf([]string{"all tiers", "swap"}, 1) {
		pl := plans(g)[what]
		t.Run(what, func(t *testing.T) {
			p, err := lower.Lower(context.Background(), g, pl, lower.Options{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Decay: 0.1, Clip: 1, Capacity: program.NoLimits})
			check(t, err)
			s, err := session.Open(g, []device.Device{gpu(t, f)}, []*program.Program{p})
			check(t, err)
			defer s.Close()
			check(t, s.Load(f.read))
			state := func() (bits []uint32) {
				for i, q := range g.Params {
					for _, kind := range optimizer.AdamW.Rule().State() {
						buf := make([]float32, q.Elems())
						check(t, s.Read(i, kind, buf))
						for _, x := range buf {
							bits = append(bits, math.Float32bits(x))
						}
					}
				}
				return bits
			}
			scalars := session.Scalars{Rate: 1e-3, Beta1: 0.9, Beta2: 0.95, Targets: len(f.targets)}
			for n, c := range []struct {
				bound, value float64
				skipped      bool
			}{{0, 0, false}, {1e-6, 0, true}, {1e6, 0, false}, {0, 3e38, true}} { // the mean of a row of these is none
				if c.value != 0 {
					check(t, s.Write(0, optimizer.Weights, slices.Repeat([]float32{float32(c.value)}, int(g.Params[0].Elems()))))
				}
				before := state()
				scalars.Step, scalars.Bound = n+1, c.bound
				out, err := s.Step(context.Background(), 0, f.batch(g), scalars)
				check(t, err)
				if same := slices.Equal(before, state()); out.Skipped != c.skipped || same != c.skipped {
					t.Errorf("step %d of norm %v: skipped %v, state unchanged %v; want %v", n, out.Norm, out.Skipped, same, c.skipped)
				}
			}
			c, err := s.Diagnose(f.batch(g), scalars)
			check(t, err)
			if c == nil || c.Before || !c.Forward() || c.Segment != "h0" || c.Instr.Op != graph.LayerNorm {
				t.Errorf("found %v", c)
			}
		})
	}
}
