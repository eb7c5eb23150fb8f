package session

import (
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/internal/torch"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
)

// loadShared loads a fixture, of as many layers as named, each n of which share parameters.
func loadShared(t *testing.T, folder string, layers, n int, d graph.DType, o optimizer.Optimizer) *fixture {
	t.Helper()
	f := load(t, filepath.Join("../testdata/torch", folder, "config.json"))
	m := *f.graph.Model
	if layers != m.Layers {
		m.Layers, f.weights = layers, nil
	}
	m.Indivisible = !o.Rule().Elementwise
	check(t, model.ShareLayers(&m, n))
	var err error
	f.graph, err = graph.Build(&m, f.graph.Seq, d)
	check(t, err)
	f.updates, f.terms = o, optimizer.MuonTerms{}.Usual()
	return f
}

// TestSharedPlans is law L1 for layers that share parameters: under random plans every bit of weights and moments is that of the
// plain run, ranks have these up to the order of sums, and Verify proves it beforehand.
func TestSharedPlans(t *testing.T) {
	r := rand.New(rand.NewPCG(testkit.Seed(t), 29))
	type sort struct {
		folder    string
		layers, n int
		dtype     graph.DType
		state     plan.StateFormat
		o         optimizer.Optimizer
	}
	for _, c := range testkit.Sample([]sort{
		{"llama-tiny", 4, 2, graph.F32, plan.FP32State, optimizer.AdamW}, {"gpt2-tiny", 3, 3, graph.BF16, plan.FP32State, optimizer.AdamW},
		{"mixtral-tiny", 4, 2, graph.F32, plan.BF16Moments, optimizer.AdamW}, {"llama-tied", 4, 4, graph.F32, plan.FP32State, optimizer.Muon},
		{"gemma3-tiny", 6, 3, graph.BF16, plan.BF16State, optimizer.Lion}, {"neox-tiny", 4, 2, graph.F32, plan.FP32State, optimizer.AdamW},
	}, 2, 3) {
		f := loadShared(t, c.folder, c.layers, c.n, c.dtype, c.o)
		f.state = c.state
		_, want := f.train(t, f.plain(), 3)
		for k := range testkit.Count(1, 2, 8) {
			t.Run(fmt.Sprintf("%s/%d of %d/%v/%v/%v/%d", c.folder, c.n, c.layers, c.dtype, c.state, c.o, k), func(t *testing.T) {
				pl := randomPlan(r, f)
				_, got := f.train(t, pl, 3)
				same(t, got, want)
				f.prove(t, pl)
			})
		}
		if c.state == plan.FP32State && c.dtype == graph.F32 {
			pl := f.plain()
			f.amongRanks(r, pl, 2)
			pl.Group = pl.MicroBatches
			pl.Cache = pl.CacheNeeded(f.graph)
			_, got := f.train(t, pl, 3)
			near(t, trace{losses: got.losses, norms: got.norms}, trace{losses: want.losses, norms: want.norms})
			f.prove(t, pl)
		}
	}
}

// TestSharedTraining: ten steps of models all of whose layers are the first have the losses and gradient norms of PyTorch, whose
// autograd adds up the gradients of a module's uses (tools/shared_fixtures.py).
func TestSharedTraining(t *testing.T) {
	for _, folder := range []string{"llama-tiny", "gpt2-tiny"} {
		var want struct {
			Layers    int
			Losses    []float64
			GradNorms []float64 `json:"grad_norms"`
		}
		torch.JSON(t, filepath.Join("../testdata/torch", folder, "shared.json"), &want)
		f := loadShared(t, folder, want.Layers, want.Layers, graph.F32, optimizer.AdamW)
		s := f.open(t, f.plain(), lower.Train)
		for n := range 10 {
			out := f.step(t, s, n+1)
			if e := math.Abs(out.Loss/want.Losses[n] - 1); e > 1e-5 {
				t.Errorf("%s: step %d: loss %.8f, PyTorch %.8f", folder, n+1, out.Loss, want.Losses[n])
			}
			if e := math.Abs(out.Norm/want.GradNorms[n] - 1); e > 1e-4 {
				t.Errorf("%s: step %d: gradient norm %.8f, PyTorch %.8f", folder, n+1, out.Norm, want.GradNorms[n])
			}
		}
	}
}

// TestSharedGradients: the gradient of a shared parameter is the sum of those of a model whose layers have copies of it.
func TestSharedGradients(t *testing.T) {
	for _, folder := range testkit.Sample([]string{"llama-tiny", "gpt2-tiny", "gemma3-tiny", "mixtral-tiny", "neox-tiny"}, 1, 2) {
		own := load(t, filepath.Join("../testdata/torch", folder, "config.json"))
		n := own.graph.Model.Layers
		f := loadShared(t, folder, n, n, graph.F32, optimizer.AdamW)
		gradients := func(f *fixture, read func(p model.Param, at int, dst []float32) error) map[string][]float32 {
			s := f.open(t, f.plain(), lower.Grads)
			check(t, s.Load(read))
			f.step(t, s, 1)
			all := map[string][]float32{}
			for i, p := range f.graph.Params {
				all[p.Name] = make([]float32, p.Elems())
				check(t, s.Read(i, optimizer.Gradient, all[p.Name]))
			}
			return all
		}
		first := map[string]model.Param{}
		for _, p := range f.graph.Params {
			for _, q := range model.CopiesOf(f.graph.Model, p) {
				first[q.Name] = p
			}
		}
		got := gradients(f, f.read)
		each := gradients(own, func(p model.Param, at int, dst []float32) error { return f.read(first[p.Name], at, dst) })
		for _, p := range f.graph.Params {
			var e, size float64
			for i, v := range got[p.Name] {
				sum := 0.0
				for _, q := range model.CopiesOf(f.graph.Model, p) {
					sum += float64(each[q.Name][i])
				}
				e, size = e+(float64(v)-sum)*(float64(v)-sum), size+sum*sum
			}
			if e > 1e-10*size {
				t.Errorf("%s: the gradient of %s is off by %.3g of %.3g", folder, p.Name, math.Sqrt(e), math.Sqrt(size))
			}
		}
	}
}

// TestSharedMemory: the buffers of weights, gradients and moments take 16 bytes less, to the byte, for each parameter that there is less:
// those of all layers of a group but one. The packing's height, which the run reaches (TestSharedPlans), falls by at least the 12
// that persist: at its peak, gradients of some layers are not there yet.
func TestSharedMemory(t *testing.T) {
	const layers = 4
	memory := func(n int) (params, buffers, height int64) {
		f := load(t, "../testdata/torch/llama-tiny/config.json")
		m := *f.graph.Model
		m.Layers = layers
		if n > 1 {
			check(t, model.ShareLayers(&m, n))
		}
		g, err := graph.Build(&m, f.graph.Seq, graph.F32)
		check(t, err)
		f.graph = g
		p := f.lower(t, f.plain())[0]
		for _, b := range p.Buffers {
			if b.Class == program.ClassWeights || b.Class == program.ClassGrads || b.Class == program.ClassState {
				buffers += b.Size
			}
		}
		return m.ParamCount(), buffers, p.Height[device.DeviceTier]
	}
	params, buffers, height := memory(1)
	for _, n := range []int{2, 4} {
		p, b, h := memory(n)
		if gone := params - p; gone == 0 || buffers-b != 16*gone || height-h < 12*gone || height-h > 16*gone {
			t.Errorf("groups of %d: %d parameters less, %d bytes of buffers, %d bytes of height", n, gone, buffers-b, height-h)
		}
	}
}
