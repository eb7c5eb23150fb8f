package session

import (
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/checkpoint/safetensors"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cpu"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/torch"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/schedule"
)

// loadNoisy loads a fixture with noise.
func loadNoisy(t *testing.T, folder string, d graph.DType) *fixture {
	t.Helper()
	f := load(t, filepath.Join("../testdata/torch", folder, "config.json"))
	f.store(t, d)
	f.addNoise(t)
	return f
}

// addNoise gives a fixture adapters on all weights of its layers, with dropout, and noise on embeddings.
func (f *fixture) addNoise(t *testing.T) {
	t.Helper()
	m := *f.graph.Model
	check(t, m.Adapt(model.LoRA{Rank: 3, Alpha: 6, Dropout: 0.25}))
	m.Neftune = 5
	f.rebuild(t, &m)
}

// TestNoiseTraining: ten steps with dropout and NEFTune are those of PEFT with the same masks, and of transformers with the same noise on
// embeddings, which tools/noise_fixtures.py runs in float64.
func TestNoiseTraining(t *testing.T) {
	for _, folder := range []string{"llama-tiny", "gpt2-tiny", "granite-tiny", "gemma-tiny"} {
		f := load(t, filepath.Join("../testdata/torch", folder, "config.json"))
		var want struct {
			Adapter          bool
			Dropout, Neftune float64
			Losses, Norms    []float64
		}
		torch.JSON(t, filepath.Join(f.dir, "noise.json"), &want)
		m := *f.graph.Model
		m.Neftune = want.Neftune
		var factors *safetensors.Set
		if want.Adapter {
			factors = adaptAs(t, f.dir, &m, want.Dropout)
		}
		f.rebuild(t, &m)
		pl := plan.Plain(f.graph, 2)
		pl.MicroBatches, pl.Group = 2, 1
		s := f.open(t, pl, lower.Train)
		check(t, s.Load(func(p model.Param, first int, dst []float32) error {
			if p.Adapter {
				return torch.Read(factors, p, dst)
			}
			return f.read(p, first, dst)
		}))
		for n := range want.Losses {
			out := f.step(t, s, n+1)
			if math.Abs(out.Loss/want.Losses[n]-1) > 1e-5 || math.Abs(out.Norm/want.Norms[n]-1) > 1e-4 {
				t.Errorf("%s: step %d: loss %.8f norm %.8f, PyTorch %.8f %.8f", folder, n+1, out.Loss, out.Norm, want.Losses[n], want.Norms[n])
			}
		}
	}
}

// adaptAs gives a model the adapters of a fixture's folder, and returns their factors.
func adaptAs(t *testing.T, dir string, m *model.Model, dropout float64) *safetensors.Set {
	t.Helper()
	set, err := safetensors.OpenIn(filepath.Join(dir, "lora"), "adapter_model")
	check(t, err)
	t.Cleanup(func() { set.Close() })
	var lora struct {
		Rank  int     `json:"r"`
		Alpha float64 `json:"lora_alpha"`
	}
	torch.JSON(t, filepath.Join(dir, "lora", "adapter_config.json"), &lora)
	var names []string
	for _, info := range set.Tensors() {
		names = append(names, info.Name)
	}
	check(t, m.Adapt(model.LoRA{Rank: lora.Rank, Alpha: lora.Alpha, Dropout: dropout}, m.PEFT().AdaptedIn(names, nil)...))
	return set
}

// TestNoNoise: without dropout and NEFTune the graph is the one without them, and steps in which nothing is trained have no noise.
func TestNoNoise(t *testing.T) {
	noisy := loadNoisy(t, "llama-tiny", graph.F32)
	m, lora := *noisy.graph.Model, *noisy.graph.Model.LoRA
	lora.Dropout, m.Neftune, m.LoRA = 0, 0, &lora
	quiet := *noisy
	quiet.rebuild(t, &m)
	if text := quiet.graph.String(); strings.Contains(text, "drop") || strings.Contains(text, "jitter") || quiet.graph.Noise >= 0 {
		t.Errorf("there are nodes for noise:\n%s", text)
	}
	for s := range quiet.graph.Segments { // nothing is kept of masks
		if got, want := savedNames(noisy.graph, s), savedNames(quiet.graph, s); !slices.Equal(got, want) {
			t.Errorf("segment %d saves %v, want %v", s, got, want)
		}
	}
	validates := func(f *fixture) (trained, validated float64) {
		pl := plan.Plain(f.graph, 4)
		ps := f.lower(t, pl)
		opt := f.options()
		opt.Mode, opt.Base = lower.Eval, ps[0]
		p, err := lower.Lower(t.Context(), f.graph, pl, opt)
		check(t, err)
		s, err := Open(f.graph, []device.Device{cpu.New(cpu.Options{Workers: 1})}, ps, []*program.Program{p})
		check(t, err)
		t.Cleanup(s.Close)
		check(t, s.Load(f.read))
		sc := Scalars{Step: 1, Beta1: 0.9, Beta2: 0.95, Targets: len(f.targets)}
		for i, loss := range []*float64{&trained, &validated} {
			out, err := s.Step(t.Context(), i, f.text(), sc)
			check(t, err)
			*loss = out.Loss
		}
		return trained, validated
	}
	trained, validated := validates(noisy)
	want, again := validates(&quiet)
	if validated != again || want != again || trained == want {
		t.Errorf("with noise: losses %v, and %v in a validation; without: %v and %v", trained, validated, want, again)
	}
}

// savedNames returns the names of the forward values that a segment keeps for its backward pass.
func savedNames(g *graph.Graph, segment int) (names []string) {
	for _, v := range g.Segments[segment].Saved {
		names = append(names, g.Values[v].Name)
	}
	return names
}

// TestNoisePlans is law L1 for dropout and NEFTune: whatever the plan, the format and the ranks, each token has the noise that it has in
// the plain run, in recomputed passes too; and Verify proves it beforehand.
func TestNoisePlans(t *testing.T) {
	(&formTest{seed: 41, cases: []formCase{
		{"llama-tiny", graph.F32, plan.FP32State, optimizer.AdamW}, {"gpt2-tiny", graph.BF16, plan.FP32State, optimizer.AdamW}, {"qwen2-tiny", graph.BF16, plan.BF16State, optimizer.Lion},
		{"gemma3-tiny", graph.F32, plan.FP32State, optimizer.AdamW}, {"deepseek3-tiny", graph.F32, plan.FP32State, optimizer.AdamW}, {"lfm2-tiny", graph.BF16, plan.FP32State, optimizer.AdamW},
		{"gemma4-small-tiny", graph.F32, plan.FP32State, optimizer.AdamW}, {"phi3-tiny", graph.BF16, plan.FP32State, optimizer.AdamW},
	}, fast: 2, usual: 4, plans: [3]int{1, 3, 8}, steps: 3,
		load: func(t *testing.T, c formCase) *fixture { return loadNoisy(t, c.folder, c.dtype) },
		ranks: func(t *testing.T, r *rand.Rand, f *fixture) {
			f.unbound(t)
			_, plain := f.train(t, f.plain(), 3)
			pl := f.plain()
			f.amongRanks(r, pl, 2)
			pl.Cache = pl.CacheNeeded(f.graph)
			_, got := f.train(t, pl, 3)
			near(t, got, plain)
		},
	}).run(t)
}

// TestNoiseDivided: the same where micro-batches are slices of sequences, where the gradients of weights wait, and where feed-forwards are
// computed by tiles of rows.
func TestNoiseDivided(t *testing.T) {
	const micros = 4
	f := load(t, filepath.Join("../testdata/torch", "gpt2-untied", "config.json"))
	f.deepen(t, 4, micros)
	f.addNoise(t)
	_, plain := f.train(t, plan.Plain(f.graph, micros), 2)
	for name, slices := range map[string]int{"seq1f1b": 4, "zb-h1": 1} {
		s, err := schedule.Generate(name, schedule.Request{Ranks: 2, Micros: micros, Slices: slices, Costs: schedule.DefaultCosts()})
		check(t, err)
		pl := plan.Plain(f.graph, 1)
		pl.MicroBatches, pl.Ranks, pl.Defer = micros, 2, false
		pl.Pipeline = &plan.Pipeline{Schedule: name, Ranks: 2, Slices: slices}
		for k := range s.Stages() {
			pl.Pipeline.Stages = append(pl.Pipeline.Stages, k*len(f.graph.Segments)/s.Stages())
		}
		_, got := f.train(t, pl, 2)
		if near(t, got, plain); got.losses[0] != plain.losses[0] {
			t.Errorf("%s: first loss %v, want %v", name, got.losses[0], plain.losses[0])
		}
		f.prove(t, pl)
	}
	f = load(t, filepath.Join("../testdata/torch", "llama-tiny", "config.json"))
	f.lengthen(t, 1, 512)
	f.addNoise(t)
	_, plain = f.train(t, plan.Plain(f.graph, 1), 2)
	pl := plan.Plain(f.graph, 1)
	pl.FeedRows = 128
	_, got := f.train(t, pl, 2)
	same(t, got, plain)
	f.prove(t, pl)
}
