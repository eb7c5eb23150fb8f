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
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/schedule"
)

// near compares two runs up to the order of their sums.
func near(t *testing.T, got, want trace) {
	t.Helper()
	nearly(t, got, want, 1e-5)
}

// nearly is near with another bound on norms.
func nearly(t *testing.T, got, want trace, norms float64) {
	t.Helper()
	for i := range want.losses {
		if math.Abs(got.losses[i]/want.losses[i]-1) > 1e-5 || math.Abs(got.norms[i]/want.norms[i]-1) > norms {
			t.Errorf("step %d: loss %v norm %v, on one rank %v %v", i, got.losses[i], got.norms[i], want.losses[i], want.norms[i])
		}
	}
	for i := range want.state {
		var diff, size float64
		for k, v := range want.state[i] {
			diff = math.Max(diff, math.Abs(float64(got.state[i][k]-v)))
			size = math.Max(size, math.Abs(float64(v)))
		}
		if i%3 != 0 && diff > 1e-4*size { // AdamW may turn the smallest gradients' signs
			t.Errorf("state %d differs by %v of %v", i, diff, size)
		}
	}
}

// unbound removes the bounds of a SwiGLU. Sums in another order may fall on the other side of a bound, where
// the derivative is 0.
func (f *fixture) unbound(t *testing.T) {
	t.Helper()
	if m := *f.graph.Model; m.GateLimit > 0 {
		m.GateLimit = 1e3
		f.rebuild(t, &m)
	}
}

// same compares two runs bit by bit.
func same(t *testing.T, got, want trace) {
	t.Helper()
	if !slices.Equal(got.losses, want.losses) || !slices.Equal(got.norms, want.norms) {
		t.Errorf("losses %v norms %v\non one rank %v norms %v", got.losses, got.norms, want.losses, want.norms)
	}
	for i := range want.state {
		if !slices.Equal(got.state[i], want.state[i]) {
			t.Errorf("state %d differs", i)
			return
		}
	}
}

// amongRanks divides a plan's four sequences among ranks, and its chunks at random.
func (f *fixture) amongRanks(r *rand.Rand, pl *plan.Plan, ranks int) {
	pl.Ranks, pl.MicroBatch, pl.MicroBatches, pl.Group = ranks, 1, 4/ranks, 1
	pl.HeadRows = min(pl.HeadRows, f.graph.Seq)
	for i := range pl.Chunks {
		c := &pl.Chunks[i]
		c.Shard = plan.Shardings()[r.IntN(4)]
		if c.Weights == device.HostTier && c.Shard != "" {
			c.Shard, c.Lookup = "weights", ""
		}
	}
	pl.Cache = pl.CacheNeeded(f.graph) + int64(r.IntN(4))*10000
}

// TestRanksChangeNothing is law L1 over ranks: data-parallel plans, whatever
// they divide and wherever they put it, give the losses of one rank up to the
// order of sums, and L2 holds on every rank.
func TestRanksChangeNothing(t *testing.T) {
	seed := testkit.Seed(t)
	r := rand.New(rand.NewPCG(seed, 5))
	for _, name := range testkit.Sample([]string{"gpt2-tiny", "gpt2-untied", "llama-tiny", "qwen2-tiny", "gpt2-tiny free", "llama-tiny documents", "llama-tiny sinks", "qwen3-tiny", "gemma3-tiny", "gemma2-tiny", "gemma4-tiny", "gemma4-small-tiny", "gemma4-moe-tiny", "deepseek3-tiny", "olmo2-tiny", "neox-tiny", "granite-tiny", "phi-tiny", "mixtral-tiny", "qwen3-moe-tiny", "glm4-moe-tiny", "granite-moe-tiny", "gpt-oss-tiny"}, 1, 4) {
		folder, how, _ := strings.Cut(name, " ")
		f := load(t, filepath.Join("../testdata/torch", folder, "config.json"))
		f.free = how == "free"
		f.unbound(t)
		if how == "documents" {
			f.separate(t, r)
		}
		if how == "sinks" {
			f.sinks(t)
		}
		_, plain := f.train(t, plan.Plain(f.graph, 4), 3)
		for k := range testkit.Count(1, 3, 6) {
			t.Run(fmt.Sprintf("%s/%d", name, k), func(t *testing.T) {
				pl := randomPlan(r, f)
				f.amongRanks(r, pl, []int{2, 4}[r.IntN(2)])
				_, got := f.train(t, pl, 3)
				near(t, got, plain)
				ps := f.lower(t, pl)
				updates, err := Updates(t.Context(), f.graph, pl, ps, f.options())
				check(t, err)
				if _, err := Prove(t.Context(), f.graph, pl, ps, updates, f.options()); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// TestPipelinesChangeNothing: every named schedule trains a real model on 2, 4
// and 8 ranks with the losses and weights of one rank, bit by bit where each sum is
// on one rank.
func TestPipelinesChangeNothing(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	const micros = 16
	for _, ranks := range testkit.Sample([]int{4, 2, 8}, 1, 1) {
		f := load(t, filepath.Join("../testdata/torch", "gpt2-untied", "config.json"))
		if ranks == 2 {
			f = load(t, filepath.Join("../testdata/torch", "mistral-tiny", "config.json"))
			f.sinks(t)
		}
		if ranks == 4 {
			f.separate(t, rand.New(rand.NewPCG(4, 4)))
		}
		f.deepen(t, max(8, 2*ranks-2), micros) // segments for two stages per rank
		_, plain := f.train(t, plan.Plain(f.graph, micros), 2)
		for _, name := range schedule.Names() {
			slices := 1
			if name == "seq1f1b" {
				slices = 4
			}
			t.Run(fmt.Sprintf("%s/%d", name, ranks), func(t *testing.T) {
				s, err := schedule.Generate(name, schedule.Request{Ranks: ranks, Micros: micros, Slices: slices, Costs: schedule.DefaultCosts()})
				check(t, err)
				pl := plan.Plain(f.graph, 1)
				pl.MicroBatches, pl.Ranks = micros, ranks
				pl.Defer = false
				pl.Pipeline = &plan.Pipeline{Schedule: name, Ranks: ranks, Slices: slices}
				for k := range s.Stages() {
					pl.Pipeline.Stages = append(pl.Pipeline.Stages, k*len(f.graph.Segments)/s.Stages())
				}
				_, got := f.train(t, pl, 2)
				for r, n := range got.network {
					bytes := int64(len(f.tokens) / micros * f.graph.Model.Width * 4)
					if want := 2 * bytes * int64(micros*received(name, ranks, r)); n[graph.Recv] != want { // in two steps
						t.Errorf("rank %d received messages of %d bytes, want %d", r, n[graph.Recv], want)
					}
				}
				if s.Directions() == 1 && slices == 1 {
					same(t, got, plain)
				} else {
					near(t, got, plain)
				}
			})
		}
	}
}

// received is how many messages of a whole micro-batch each micro-batch brings
// to rank r of p: activations from before, gradients from behind. A V passes
// every rank twice, but turns on the last one; two directions share the
// micro-batches; a loop of two chunks continues from the last rank to the first.
func received(name string, p, r int) int {
	ends := 2
	if r == 0 || r == p-1 {
		ends = 1
	}
	switch name {
	case "interleaved", "breadth-first":
		if ends == 1 {
			return 3 // all but the input of the first stage, or what follows the last
		}
		return 4
	case "zb-v", "dualpipev", "bitpipe":
		return 2 * ends
	}
	return ends
}

// layersAt counts the layers at a position of a pipeline, given at which each segment is.
func layersAt(home []int, position, layers int) (n int) {
	for s, at := range home {
		if at == position && s > 0 && s <= layers {
			n++
		}
	}
	return n
}
