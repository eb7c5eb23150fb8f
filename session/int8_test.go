package session

import (
	"math"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
)

// loadInt8 loads a fixture whose matrices are held and trained in int8, in units that suit their weights.
func loadInt8(t *testing.T, folder string, d graph.DType, o optimizer.Optimizer) *fixture {
	t.Helper()
	f := load(t, filepath.Join("../testdata/torch", folder, "config.json"))
	m := *f.graph.Model
	check(t, model.HoldInt8(&m))
	m.Largest = map[string]float64{}
	for i, p := range m.Params() {
		if name := p.Name; !p.Vector && (i > 1 || m.Rotary()) { // else the units of embeddings are those of random weights, as both have to be alike
			values := make([]float32, p.Elems())
			check(t, f.read(p, 0, values))
			for _, x := range values {
				m.Largest[name] = max(m.Largest[name], math.Abs(float64(x)))
			}
		}
	}
	var err error
	f.graph, err = graph.Build(&m, f.graph.Seq, d)
	check(t, err)
	f.updates = o
	return f
}

// TestInt8Plans is law L1 for weights in int8: whatever the optimizer, the formats of moments, the plan and the ranks, every bit is that
// of the plain run, weights are whole numbers of units, and Verify proves it beforehand.
func TestInt8Plans(t *testing.T) {
	(&formTest{seed: 31, cases: []formCase{
		{"llama-tiny", graph.F32, plan.FP32State, optimizer.AdamW}, {"gpt2-tiny", graph.F32, plan.BF16Moments, optimizer.Lion}, {"llama-tied", graph.BF16, plan.BF16Moments, optimizer.AdamW},
		{"gpt2-tiny", graph.F32, plan.PackedMoments, optimizer.AdamW}, {"neox-tiny", graph.F32, plan.BF16Moments, optimizer.AdamW}, {"gemma3-tiny", graph.F32, plan.FP32State, optimizer.Lion}, {"phi3-tiny", graph.F32, plan.FP32State, optimizer.AdamW},
	}, fast: 2, usual: 2, plans: [3]int{1, 2, 8}, steps: 3,
		load: func(t *testing.T, c formCase) *fixture { return loadInt8(t, c.folder, c.dtype, c.o) },
		holds: func(t *testing.T, f *fixture, p *program.Program, plain trace) {
			f.inUnits(t, plain)
			f.numbered(t, p)
		},
		ranks: func(t *testing.T, r *rand.Rand, f *fixture) {
			f.inUnits(t, f.sameAmongRanks(t, r, plan.Shardings()[r.IntN(4)], 2, 2))
		},
	}).run(t)
}

// numbered checks that each matrix is updated by its own number, from its first element on, since that is what rounding draws by.
func (f *fixture) numbered(t *testing.T, p *program.Program) {
	t.Helper()
	next := map[int]int{}
	for i := range p.Instrs {
		in := &p.Instrs[i]
		if rule := optimizer.Updating(in.Op); rule == nil || in.Attr.Unit == 0 {
			continue
		}
		if k := in.Attr.Param; f.graph.Params[k].Unit != in.Attr.Unit || in.Attr.First != next[k] {
			t.Errorf("parameter %d is updated with unit %v from element %d on, want %v and %d", k, in.Attr.Unit, in.Attr.First, f.graph.Params[k].Unit, next[k])
		}
		next[in.Attr.Param] += in.Args[0].Rows * in.Args[0].Cols
	}
	for i, q := range f.graph.Params {
		if q.Unit > 0 && next[i] != int(q.Elems()) {
			t.Errorf("%d of %d elements of %s are updated", next[i], q.Elems(), q.Name)
		}
	}
}

// TestInt8Pipeline: the stages of a pipeline have the weights of one rank, bit by bit.
func TestInt8Pipeline(t *testing.T) {
	f := loadInt8(t, "gpt2-untied", graph.F32, optimizer.AdamW)
	one := f.plain()
	one.MicroBatch, one.MicroBatches, one.HeadRows = 1, 4, min(one.HeadRows, f.graph.Seq)
	_, want := f.train(t, one, 2)
	pl := *one
	pl.Ranks, pl.Group, pl.Defer = 2, 1, false
	pl.Pipeline = &plan.Pipeline{Schedule: "1f1b", Ranks: 2, Slices: 1, Stages: []int{0, len(f.graph.Segments) / 2}}
	_, got := f.train(t, &pl, 2)
	f.inUnits(t, got)
	same(t, got, want)
}

// TestInt8Shared: ranks that share sequences and matrices in int8 compute the gradients of one rank, up to the order of sums, and train.
func TestInt8Shared(t *testing.T) {
	f := loadInt8(t, "llama-tiny", graph.F32, optimizer.AdamW)
	part := f.divided(t, 2, 2)
	pl := plainParts(part.graph)
	sameGradients(t, f, part, pl)
	_, got := part.train(t, pl, 2)
	part.inUnits(t, got)
}

// inUnits checks that the matrices at the end of a run are multiples of their units, and that some elements of each have changed.
func (f *fixture) inUnits(t *testing.T, tr trace) {
	t.Helper()
	at := 0
	for _, q := range f.graph.Params {
		values := tr.state[at]
		if at += len(f.updates.For(q.Indivisible).State()); q.Vector {
			continue
		}
		began, moved := make([]float32, q.Elems()), 0
		check(t, f.read(q, 0, began))
		for k, v := range values {
			units := float64(v) / q.Unit
			if q.Unit <= 0 || units != math.Trunc(units) || math.Abs(units) > graph.MaxInt8 {
				t.Fatalf("%s: element %d is %v units of %v", q.Name, k, units, q.Unit)
			}
			if math.Abs(float64(v-began[k])) > q.Unit/2 {
				moved++
			}
		}
		if moved == 0 {
			t.Errorf("%s: nothing was trained", q.Name)
		}
	}
}
