package session

import (
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/schedule"
)

// slabs returns a fixture whose matrices n ranks share.
func (f *fixture) slabs(t *testing.T, n int) *fixture {
	t.Helper()
	part := *f
	var err error
	part.graph, err = graph.BuildSlab(f.graph.Model, f.graph.Seq, n, f.graph.DType, f.graph.Documents)
	check(t, err)
	return &part
}

// divided returns a fixture whose sequences are shared by as many groups of ranks as parts, the ranks of each of which share matrices.
func (f *fixture) divided(t *testing.T, parts, n int) *fixture {
	t.Helper()
	part := *f
	var err error
	part.graph, err = graph.BuildDivided(f.graph.Model, f.graph.Seq, parts, n, f.graph.DType, f.graph.Documents)
	check(t, err)
	return &part
}

var slabNames = []string{"gpt2-tiny even", "gemma2-tiny even", "qwen3-tiny even", "opt-tiny even", "gpt2-untied even", "llama-tiny even", "llama-tiny", "gpt2-tiny", "llama-tiny bf16", "neox-tiny", "phi3-longrope", "opt-tiny", "mistral-tiny sinks documents", "gpt2-tiny bf16", "granite-tiny", "stablelm-tiny", "qwen2-tiny",
	"mixtral-tiny", "qwen3-moe-tiny bf16", "gpt-oss-tiny", "qwen2-moe-tiny", "glm4-moe-tiny", "gpt-oss-tiny bf16", "gpt2-untied even bf16", "gpt-oss-tiny even", "phi-tiny even documents", "mixtral-tiny lora", "qwen2-moe-tiny balance", "gemma-tiny", "gemma2-tiny", "gemma3-tiny bf16", "llama3-rope", "hunyuan-tiny",
	"starcoder2-tiny", "smollm3-tiny", "qwen3-tiny", "llama-tiny lora", "gpt2-tiny lora", "qwen3-tiny lora bf16", "phi-tiny lora", "phi3-longrope lora", "neox-tiny lora"}

// slabCase returns a fixture and how many ranks share its matrices.
func slabCase(t *testing.T, r *rand.Rand, name string) (f *fixture, n int) {
	t.Helper()
	f, n = sharedCases(t, r, name, 2), 2
	if graph.CheckSlabs(f.graph.Model, 4) == nil && r.IntN(2) == 0 {
		n = 4
	}
	return f, n
}

// TestSlabs: ranks that share matrices compute the losses and gradients of one rank, up to the order of sums.
func TestSlabs(t *testing.T) {
	r := rand.New(rand.NewPCG(testkit.Seed(t), 8))
	for _, name := range testkit.Sample(slabNames, 3, 100) {
		t.Run(name, func(t *testing.T) {
			f, n := slabCase(t, r, name)
			one, part := f.openRanks(t, plan.Plain(f.graph, 2), lower.Logits), f.slabs(t, n)
			all := part.openRanks(t, plan.Plain(part.graph, 2), lower.Logits)
			want, got := f.step(t, one, 1), part.step(t, all, 1)
			most := 1e-6
			if f.graph.DType == graph.BF16 { // a term is rounded before it is added, and a token may be sent to other experts
				most = 2e-3
			}
			if math.Abs(got.Loss/want.Loss-1) > most {
				t.Errorf("loss %v, on one rank %v", got.Loss, want.Loss)
			}
			sameGradients(t, f, part, plainParts(part.graph))
		})
	}
}

// TestSharedBoth: ranks that share both sequences and matrices compute the losses and gradients of one rank, up to the order of sums, and
// under drawn plans ten steps of it, with L2 on every rank.
func TestSharedBoth(t *testing.T) {
	r := rand.New(rand.NewPCG(testkit.Seed(t), 12))
	for _, name := range testkit.Sample([]string{"llama-tiny even", "qwen3-tiny even", "mixtral-tiny", "gpt2-untied even", "gemma2-tiny even", "mistral-tiny sinks documents", "llama-tiny lora", "qwen3-moe-tiny", "gpt-oss-tiny documents", "phi-tiny"}, 2, 10) {
		t.Run(name, func(t *testing.T) {
			parts, n := 2+2*r.IntN(2), 2
			f := sharedCases(t, r, name, parts)
			part := f.divided(t, parts, n)
			sameGradients(t, f, part, plainParts(part.graph))
			_, plain := f.train(t, plan.Plain(f.graph, 2), 10)
			pl := part.inGroups(r, parts*n)
			_, got := part.train(t, pl, 10)
			got.state = got.state[:0]
			most := 1e-5
			if f.graph.Model.LoRA != nil {
				most = 1e-4
			}
			nearly(t, got, trace{losses: plain.losses, norms: plain.norms}, most)
			part.proveAlike(t, pl)
		})
	}
}

// TestSlabTraining: ten steps of ranks that share matrices are those of PyTorch. Four have two key/value heads, or one, and experts.
func TestSlabTraining(t *testing.T) {
	for _, c := range testkit.Sample([]struct {
		name string
		n    int
	}{{"qwen2-tiny", 4}, {"llama-tiny", 2}, {"gpt2-tiny", 2}, {"mixtral-tiny", 4}, {"neox-tiny", 2}, {"phi-tiny", 4}, {"granite-tiny", 2}, {"opt-tiny", 2}, {"starcoder2-tiny", 4}, {"smollm3-tiny", 2}, {"stablelm-tiny", 2},
		{"gpt2-untied", 4}, {"qwen3-tiny", 4}, {"qwen3-tiny", 2}, {"llama3-rope", 4}, {"gemma-tiny", 2}, {"gemma2-tiny", 2}, {"gemma3-tiny", 4}, {"hunyuan-tiny", 2}, {"gpt-oss-tiny", 2}, {"gpt-oss-tiny", 4}, {"qwen3-moe-tiny", 4},
		{"qwen2-moe-tiny", 2}, {"glm4-moe-tiny", 2}, {"ernie-moe-tiny", 2}}, 2, 100) {
		f := load(t, filepath.Join("../testdata/torch", c.name, "config.json"))
		t.Run(fmt.Sprintf("%s/%d", c.name, c.n), func(t *testing.T) {
			part := f.slabs(t, c.n)
			s := part.openRanks(t, plan.Plain(part.graph, 4), lower.Train)
			for n := 1; n <= 10; n++ {
				out := part.step(t, s, n)
				if e := math.Abs(out.Loss/f.losses.Losses64[n-1] - 1); e > 1e-5 {
					t.Errorf("step %d: loss %.8f, PyTorch %.8f", n, out.Loss, f.losses.Losses64[n-1])
				}
				if e := math.Abs(out.Norm/f.losses.GradNorms64[n-1] - 1); e > 1e-5 {
					t.Errorf("step %d: gradient norm %.8f, PyTorch %.8f", n, out.Norm, f.losses.GradNorms64[n-1])
				}
			}
		})
	}
}

// TestSlabsChangeNothing is law L1 for shared matrices: whatever else a plan divides and wherever it puts it, ten steps are
// those of one rank up to the order of sums, L2 holds on every rank, and a second run has the same bits.
func TestSlabsChangeNothing(t *testing.T) {
	r := rand.New(rand.NewPCG(testkit.Seed(t), 9))
	for _, name := range testkit.Sample([]string{"llama-tiny", "gpt2-tiny", "mixtral-tiny", "neox-tiny", "phi-tiny", "gpt-oss-tiny documents", "mistral-tiny sinks documents", "qwen2-tiny", "qwen3-tiny", "llama-tiny lora", "gpt2-tiny lora", "qwen3-tiny lora", "qwen2-moe-tiny", "gemma2-tiny", "glm4-moe-tiny", "mistral-tiny even", "phi-tiny even documents"}, 1, 6) {
		for range testkit.Count(1, 1, 6) {
			f, n := slabCase(t, r, name)
			t.Run(fmt.Sprintf("%s/%d", name, n), func(t *testing.T) {
				_, plain := f.train(t, plan.Plain(f.graph, 2), 10)
				part := f.slabs(t, n)
				pl := part.inGroups(r, n)
				_, got := part.train(t, pl, 10)
				_, again := part.train(t, pl, 10)
				same(t, again, got)
				got.state = got.state[:0]
				most := 1e-5
				if f.graph.Model.LoRA != nil { // AdamW turns the signs of the smallest gradients, and few are trained
					most = 1e-4
				}
				nearly(t, got, trace{losses: plain.losses, norms: plain.norms}, most)
				part.proveAlike(t, pl)
			})
		}
	}
}

// TestSlabsInPipelines: a pipeline of ranks that share matrices trains with the bits of ranks that share matrices without one, under
// every schedule in which each sum over micro-batches is on one rank; and each rank receives the messages of a pipeline, and the sums
// of its own layers only.
func TestSlabsInPipelines(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	const micros, depth, n = 4, 2, 2
	f := load(t, filepath.Join("../testdata/torch", "gpt2-untied", "config.json"))
	f.deepen(t, 4, micros)
	part := f.slabs(t, n)
	_, plain := part.train(t, plan.Plain(part.graph, micros), 2)
	for _, name := range testkit.Sample([]string{"zb-h1", "chimera", "1f1b", "interleaved", "breadth-first", "zb-v", "gpipe", "bitpipe"}, 1, 3) {
		t.Run(name, func(t *testing.T) {
			pl, home := pipelined(t, part, name, depth, micros)
			pl.Ranks = depth * n
			_, got := part.train(t, pl, 2)
			if s, err := schedule.Generate(name, schedule.Request{Ranks: depth, Micros: micros, Slices: 1, Costs: schedule.DefaultCosts()}); err != nil || s.Directions() > 1 {
				near(t, got, trace{losses: plain.losses, norms: plain.norms})
				return
			}
			got.state, plain.state = got.state[:0], plain.state[:0] // of other ranks
			same(t, trace{losses: got.losses, norms: got.norms}, trace{losses: plain.losses, norms: plain.norms})
			stream := int64(len(f.tokens) * f.graph.Model.Width * 4)
			for r := range pl.Ranks {
				layers := layersAt(home, r/n, f.graph.Model.Layers)
				if want := 2 * stream * int64(received(name, depth, r/n)); got.network[r][graph.Recv] != want {
					t.Errorf("rank %d receives messages of %d bytes, want %d", r, got.network[r][graph.Recv], want)
				}
				if want := 2 * 4 * stream * int64(layers); got.network[r][graph.AllReduce] != want {
					t.Errorf("rank %d receives %d bytes of sums, want %d", r, got.network[r][graph.AllReduce], want)
				}
			}
		})
	}
}

// TestSlabBytes is law L3 for shared matrices: per layer each rank adds up the result of attention and that of the feed-forward, and
// their inputs' gradients. Of t ranks, each receives T*h numbers, and t-2 times its part of them, of each sum.
func TestSlabBytes(t *testing.T) {
	f := load(t, filepath.Join("../testdata/torch", "gpt2-tiny", "config.json"))
	for _, n := range []int{2, 4} {
		for _, again := range []int64{0, 1} {
			part := f.slabs(t, n)
			m := part.graph.Model
			pl := plan.Plain(part.graph, 4)
			for l := range pl.Activations {
				if again > 0 {
					pl.Activations[l] = plan.Recomputed("full")
				}
			}
			_, tr := part.train(t, pl, 1)
			rows := int64(4 * part.graph.Seq)
			each := rows*int64(m.Width) + int64(n-2)*rows*int64(m.Width)/int64(n)
			want := 4 * each * int64(m.Layers) * (4 + again) // recomputed, the result of the feed-forward is not needed
			for r := range n {
				if got := tr.network[r][graph.AllReduce]; got != want {
					t.Errorf("rank %d of %d, recomputing %v: receives %d bytes of sums, want %d", r, n, again, got, want)
				}
			}
		}
	}
}

// TestAlikeSlabBytes is law L3 for key/value heads that several ranks have: besides, r ranks that have the same head add up the gradients of
// its matrices, once a step. Each receives (2w + 2) h numbers, for heads of h columns with biases and a stream of w, and r-2 times its part.
func TestAlikeSlabBytes(t *testing.T) {
	const n, r = 4, 2
	f := load(t, filepath.Join("../testdata/torch", "qwen2-tiny", "config.json"))
	part := f.slabs(t, n)
	m := part.graph.Model
	_, tr := part.train(t, plan.Plain(part.graph, 4), 1)
	rows := int64(4 * part.graph.Seq)
	sums := 4 * (rows*int64(m.Width) + (n-2)*rows*int64(m.Width)/n)
	want := 4 * int64(m.Layers) * (sums + int64(2*m.HeadDim*m.Width+2*m.HeadDim))
	for rank := range n {
		if got := tr.network[rank][graph.AllReduce]; got != want {
			t.Errorf("rank %d of %d, %d with each key: receives %d bytes of sums, want %d", rank, n, r, got, want)
		}
	}
}

// TestHeadSlabBytes is law L3 for embedding and head: besides, each rank of n adds up 2n numbers per token for the loss, and w for what is embedded
// in a stream of w, and for the gradient of what the head reads.
func TestHeadSlabBytes(t *testing.T) {
	f := sharedCases(t, rand.New(rand.NewPCG(1, 1)), "gpt2-untied even", 2)
	for _, n := range []int{2, 4} {
		part := f.slabs(t, n)
		m := part.graph.Model
		_, tr := part.train(t, plan.Plain(part.graph, 2), 1)
		rows := int64(2 * part.graph.Seq)
		sum := func(cols int) int64 { return 4 * (rows*int64(cols) + int64(n-2)*rows*int64(cols)/int64(n)) }
		want := int64(4*m.Layers+2)*sum(m.Width) + sum(2*n)
		for rank := range n {
			if got := tr.network[rank][graph.AllReduce]; got != want {
				t.Errorf("rank %d of %d: receives %d bytes of sums, want %d", rank, n, got, want)
			}
		}
	}
}
