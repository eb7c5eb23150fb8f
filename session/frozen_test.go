package session

import (
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/internal/torch"
	"github.com/athanor-llm/athanor/kernel"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/plan"
)

// freeze rebuilds the fixture's graph with some parameters frozen.
func (f *fixture) freeze(t *testing.T, patterns ...string) {
	t.Helper()
	m := *f.graph.Model
	check(t, m.Freeze(patterns...))
	f.rebuild(t, &m)
}

// freezeSome freezes the lower layers, the matrices, or any parameters.
func (f *fixture) freezeSome(t *testing.T, r *rand.Rand) {
	t.Helper()
	for {
		var names []string
		below, kind, share := r.IntN(f.graph.Model.Layers+2), r.IntN(3), r.Float64()
		for _, p := range f.graph.Params {
			switch {
			case kind == 0 && p.Layer < below, kind == 1 && !p.Vector, kind == 2 && r.Float64() < share:
				names = append(names, p.Name)
			}
		}
		m := *f.graph.Model
		if len(names) > 0 && m.Freeze(names...) == nil {
			f.freeze(t, names...)
			return
		}
	}
}

// adaptSome gives adapters of some rank and scale to some of the weights.
func (f *fixture) adaptSome(t *testing.T, r *rand.Rand) {
	t.Helper()
	m := *f.graph.Model
	var some []string
	for _, p := range f.graph.Params {
		if m.PEFT().OfVocabulary(p) && !p.Vector && r.IntN(3) == 0 {
			some = append(some, p.Name)
		}
		if !strings.Contains(p.Name, ".gate.") && !strings.Contains(p.Name, ".router.") && !p.Vector && p.Layer >= 0 && p.Layer < m.Layers && r.IntN(2) == 0 {
			some = append(some, p.Name)
		}
	}
	if m.Tied && len(some) > 0 && r.IntN(3) == 0 {
		some = append(some, m.HeadName())
	}
	inLayers := func(weight string) bool { return strings.Contains(weight, ".layers.") }
	dora := !m.InOut() && m.Experts == 0 && !slices.ContainsFunc(some, func(w string) bool { return !inLayers(w) }) && r.IntN(2) == 0
	check(t, m.Adapt(model.LoRA{Rank: 1 + r.IntN(9), Alpha: float64(r.IntN(5)), DoRA: dora}, some...))
	var whole []string
	for _, p := range m.Params() {
		if p.Frozen && p.Experts == 0 && strings.HasSuffix(p.Name, ".weight") && !slices.Contains(m.LoRA.Weights, p.Name) && r.IntN(6) == 0 {
			whole = append(whole, strings.TrimSuffix(p.Name, ".weight"))
		}
	}
	check(t, m.TrainWhole(whole...))
	f.rebuild(t, &m)
}

// quantize holds all weights that can be in 4 bits.
func (f *fixture) quantize(t *testing.T) {
	t.Helper()
	m := *f.graph.Model
	check(t, m.Quantize())
	f.rebuild(t, &m)
}

func (f *fixture) rebuild(t *testing.T, m *model.Model) {
	t.Helper()
	var err error
	f.graph, err = graph.Build(m, f.graph.Seq, f.graph.DType)
	check(t, err)
}

// TestFrozenTraining: parameters trained alongside frozen ones become what PyTorch
// makes of them with requires_grad=False, and the frozen ones keep their bits.
func TestFrozenTraining(t *testing.T) {
	for _, name := range testkit.Sample([]string{"gpt2-tiny", "llama-tiny", "gemma3-tiny", "opt-tiny", "gpt-oss-tiny"}, 1, 5) {
		t.Run(name, func(t *testing.T) {
			f := load(t, filepath.Join("../testdata/torch", name, "config.json"))
			var cases []struct {
				Freeze []string
				Losses []float64 `json:"losses64"`
				Norms  []float64 `json:"grad_norms64"`
			}
			torch.JSON(t, filepath.Join(f.dir, "frozen.json"), &cases)
			for _, c := range cases {
				f.freeze(t, c.Freeze...)
				s := f.open(t, plan.Plain(f.graph, 4), lower.Train)
				for n := 1; n <= 10; n++ {
					out := f.step(t, s, n)
					if math.Abs(out.Loss/c.Losses[n-1]-1) > 1e-5 || math.Abs(out.Norm/c.Norms[n-1]-1) > 1e-5 {
						t.Errorf("%v: step %d: loss %.8f norm %.8f, PyTorch %.8f %.8f", c.Freeze, n, out.Loss, out.Norm, c.Losses[n-1], c.Norms[n-1])
					}
				}
				f.unmoved(t, s)
			}
		})
	}
}

// unmoved checks that frozen parameters are what was loaded, and the others not.
func (f *fixture) unmoved(t *testing.T, s *Session) {
	t.Helper()
	for i, p := range f.graph.Params {
		got, want := make([]float32, p.Elems()), make([]float32, p.Elems())
		check(t, s.Read(i, optimizer.Weights, got))
		check(t, f.read(p, 0, want))
		if p.NF4 {
			rows := want // in the order of operators
			if p.Reordered() {
				rows = make([]float32, len(want))
				p.FromFile(rows, want)
			}
			kernel.UnpackNF4(rows, kernel.PackNF4(rows, p.Cols), p.Cols)
			if p.Reordered() {
				p.ToFile(want, rows)
			}
		} else if f.graph.DType == graph.BF16 && !p.State {
			for k, v := range want {
				want[k] = toBF16(v)
			}
			if !p.Frozen {
				continue
			}
		}
		if slices.Equal(got, want) != p.Frozen {
			t.Errorf("%s: frozen %v, unchanged %v", p.Name, p.Frozen, !p.Frozen)
		}
	}
}

// toBF16 rounds as weights are, see float16.Halves.
func toBF16(v float32) float32 {
	return math.Float32frombits((math.Float32bits(v) + 0x8000) &^ 0xffff)
}

// TestFrozenGradients: the gradients of what is trained are, bit for bit, the same as when
// everything is trained. Where one of several weights that are otherwise read as one is
// frozen, sums have another order.
func TestFrozenGradients(t *testing.T) {
	seed := testkit.Seed(t)
	r := rand.New(rand.NewPCG(seed, 21))
	gradients := func(f *fixture) map[string][]float32 {
		s := f.open(t, plan.Plain(f.graph, 4), lower.Grads)
		f.step(t, s, 1)
		list := map[string][]float32{}
		for i, p := range f.graph.Params {
			list[p.Name] = make([]float32, p.Elems())
			check(t, s.Engine(0).ReadHome(i, optimizer.Gradient, 0, list[p.Name]))
		}
		return list
	}
	exact := 0
	for _, dir := range testkit.Sample(fixtures(t), 3, 12) {
		f := load(t, dir)
		all := gradients(f)
		var largest float64
		for _, g := range all {
			largest = max(largest, torch.Norm(torch.Widened(g)))
		}
		for range 3 {
			f := load(t, dir)
			whole := products(f.graph)
			f.freezeSome(t, r)
			same := slices.Equal(products(f.graph), whole)
			if same {
				exact++
			}
			for name, g := range gradients(f) {
				frozen, want := slices.Contains(f.graph.Model.Frozen, name), all[name]
				if frozen {
					want = make([]float32, len(g))
				}
				off := torch.Distance(torch.Widened(g), torch.Widened(want))
				if off > 1e-5*largest || (same || frozen) && !slices.Equal(g, want) {
					t.Errorf("%s, frozen %v: gradient of %s (frozen %v) differs by %.2g", f.dir, f.graph.Model.Frozen, name, frozen, off)
				}
			}
		}
	}
	if exact == 0 {
		t.Error("nothing was compared bit for bit")
	}
}

// products lists the weights that the graph's products read, several as one.
func products(g *graph.Graph) (list []string) {
	for s := range g.Segments {
		for _, n := range g.Segments[s].Forward {
			if n.Op == graph.Linear {
				list = append(list, g.Values[n.Args[2].Value].Name)
			}
		}
	}
	return list
}

// TestFrozenPlans is law L1 with frozen parameters, and with adapters: under random
// plans, on one rank and on several, losses, norms, weights and moments are those of the
// plain run, and what is frozen stays as it was loaded.
func TestFrozenPlans(t *testing.T) {
	seed := testkit.Seed(t)
	r := rand.New(rand.NewPCG(seed, 22))
	for _, name := range testkit.Sample([]string{"gpt2-tiny", "gpt2-untied", "llama-tiny", "qwen2-tiny", "gpt2-tiny bf16", "llama-tied bf16", "opt-tiny", "llama-tiny sinks", "mistral-tiny sinks lora bf16",
		"gpt2-tiny lora", "llama-tiny lora", "qwen2-tiny lora bf16", "qwen3-tiny", "gemma3-tiny bf16", "gemma2-tiny lora bf16", "gemma4-tiny", "gemma4-tiny lora bf16", "gemma4-small-tiny", "gemma4-small-tiny lora bf16 nf4", "gemma4-moe-tiny", "deepseek2-tiny", "deepseek3-tiny bf16", "deepseek3-tiny lora bf16 nf4", "glm4-lite-tiny lora", "gemma4-moe-tiny lora bf16 nf4", "qwen3-tiny lora", "gemma3-tiny lora bf16", "olmo2-tiny", "olmo2-tiny lora",
		"neox-serial", "neox-tiny lora", "phi3-tiny lora", "smollm3-tiny", "granite-tiny", "granite-tiny lora", "phi-tiny", "phi-tiny lora", "olmo3-tiny lora", "mixtral-tiny", "qwen3-moe-tiny lora", "glm4-moe-tiny lora", "glm4-moe-tiny bf16", "olmoe-tiny bf16", "mixtral-tiny lora nf4", "granite-moe-tiny bf16", "olmoe-tiny lora bf16 nf4",
		"gpt2-tiny lora nf4", "llama-tiny lora nf4", "neox-tiny lora nf4", "llama-nf4 lora bf16 nf4", "gpt-oss-tiny", "gpt-oss-tiny bf16", "gpt-oss-tiny lora nf4", "gpt-oss-tiny lora bf16 nf4"}, 1, 10) {
		folder, nf4 := strings.CutSuffix(name, " nf4")
		folder, bf16 := strings.CutSuffix(folder, " bf16")
		folder, lora := strings.CutSuffix(folder, " lora")
		folder, sinks := strings.CutSuffix(folder, " sinks")
		for k := range testkit.Count(1, 2, 3) {
			f := load(t, filepath.Join("../testdata/torch", folder, "config.json"))
			f.unbound(t)
			if bf16 {
				f.store(t, graph.BF16)
			}
			if sinks {
				f.sinks(t)
			}
			if lora {
				f.adaptSome(t, r)
			} else {
				f.freezeSome(t, r)
			}
			if nf4 {
				f.quantize(t)
			}
			t.Run(fmt.Sprint(name, "/", k), func(t *testing.T) {
				_, plain := f.train(t, plan.Plain(f.graph, 4), 3)
				pl := randomPlan(r, f)
				_, got := f.train(t, pl, 3)
				same(t, got, plain)
				if pl.Ranks = 2; k > 0 && !bf16 && folder != "opt-tiny" { // where some gradients are nothing but rounding
					pl.MicroBatch, pl.MicroBatches, pl.Group = 1, 2, 1
					pl.HeadRows = min(pl.HeadRows, f.graph.Seq)
					for i := range pl.Chunks {
						c := &pl.Chunks[i]
						if c.Shard = plan.Shardings()[r.IntN(4)]; c.Weights == device.HostTier && c.Shard != "" {
							c.Shard, c.Lookup = "weights", ""
						}
					}
					pl.Cache = pl.CacheNeeded(f.graph) + int64(r.IntN(4))*10000
					_, got := f.train(t, pl, 3)
					near(t, got, plain)
				}
				if !f.graph.Model.Tied && !bf16 { // no sum is over ranks
					pl := plan.Plain(f.graph, 1)
					pl.MicroBatches, pl.Ranks = 4, 2
					pl.Defer = false
					pl.Pipeline = &plan.Pipeline{Schedule: []string{"1f1b", "zb-h1", "gpipe"}[k], Ranks: 2, Slices: 1, Stages: []int{0, 1 + r.IntN(len(f.graph.Segments)-1)}}
					_, got := f.train(t, pl, 3)
					same(t, got, plain)
				}
				s := f.open(t, plan.Plain(f.graph, 4), lower.Train)
				f.step(t, s, 1)
				f.unmoved(t, s)
				if t.Failed() {
					t.Logf("frozen %v\nplan %+v", f.graph.Model.Frozen, pl)
				}
			})
		}
	}
}

// TestUnevenHalves: gradients of a layer that wait for the second half of its backward pass are not overwritten by those of the layer
// below, whose backward pass is longer since more of it is trained.
func TestUnevenHalves(t *testing.T) {
	for _, above := range testkit.Sample([]string{"self_attn.o_proj", "mlp.down_proj"}, 1, 2) {
		f := load(t, filepath.Join("../testdata/torch", "phi3-tiny", "config.json"))
		m := *f.graph.Model
		check(t, m.Adapt(model.LoRA{Rank: 2, Alpha: 2}, "model.layers.0.*_proj.weight", "model.layers.1."+above+".weight"))
		check(t, m.TrainWhole("model.embed_tokens"))
		f.rebuild(t, &m)
		pl := plan.Plain(f.graph, 1)
		pl.MicroBatches, pl.Ranks, pl.Defer = 4, 2, false
		pl.Pipeline = &plan.Pipeline{Schedule: "zb-h1", Ranks: 2, Slices: 1, Stages: []int{0, f.graph.Head()}}
		_, got := f.train(t, pl, 1)
		_, plain := f.train(t, plan.Plain(f.graph, 4), 1)
		same(t, got, plain)
	}
}
