package session

import (
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/schedule"
)

// exchanging is a plan for ranks that exchange heads, with half of a rank's heads at a time where they are even.
func exchanging(g *graph.Graph) *plan.Plan {
	pl := plan.Plain(g, 2)
	pl.Exchange = plan.ExchangeHeads
	if graph.ExchangesHeads(g, 2) {
		pl.KVParts = 2
	}
	return pl
}

// exchangedNames are fixtures of which two ranks, or four, can divide the heads; some have fewer key heads than ranks.
var exchangedNames = []string{"gemma3-tiny bf16/4", "llama-tiny", "gpt2-tiny/4", "neox-tiny bf16/4", "mistral-tiny sinks documents", "qwen3-tiny bf16", "gpt2-tiny bf16", "opt-tiny/4", "llama-tiny documents bf16", "granite-tiny", "stablelm-tiny",
	"olmo2-tiny", "phi3-longrope", "mixtral-tiny", "qwen3-moe-tiny bf16", "smollm3-tiny", "starcoder2-tiny", "qwen2-tiny", "olmo3-tiny", "gpt-oss-tiny", "mistral-tiny documents", "deepseek2-tiny", "llama-tiny lora", "qwen3-tiny lora bf16",
	"granite-tiny/4", "mistral-tiny sinks documents/4", "gemma2-tiny", "mixtral-tiny/4", "gpt-oss-tiny bf16/4", "llama3-rope/4", "gemma-tiny bf16", "granite-tiny lora bf16/4"}

// exchangedCase returns a fixture by name, and by how many ranks its sequences are shared.
func exchangedCase(t *testing.T, r *rand.Rand, name string) (whole, part *fixture) {
	n := 2
	if k := len(name) - 2; name[k:] == "/4" {
		name, n = name[:k], 4
	}
	f := sharedCases(t, r, name, n)
	return f, f.shared(t, n)
}

// TestExchangedRows: ranks that exchange heads compute for each token the logits of one rank, bit for bit, and gradients up to the order of
// sums over tokens.
func TestExchangedRows(t *testing.T) {
	r := rand.New(rand.NewPCG(testkit.Seed(t), 8))
	for _, name := range testkit.Sample(exchangedNames, 3, 100) {
		t.Run(name, func(t *testing.T) {
			f, part := exchangedCase(t, r, name)
			one := f.openRanks(t, plan.Plain(f.graph, 2), lower.Logits)
			all := part.openRanks(t, exchanging(part.graph), lower.Logits)
			want, got := f.step(t, one, 1), part.step(t, all, 1)
			if math.Abs(got.Loss/want.Loss-1) > 1e-14 {
				t.Errorf("loss %v, on one rank %v", got.Loss, want.Loss)
			}
			rows := rowsOf(t, all, "logits")
			for row, logits := range rowsOf(t, one, "logits") {
				if !slices.Equal(rows[row], logits) {
					t.Fatalf("other logits for token %d of the batch", row)
				}
			}
			sameGradients(t, f, part, exchanging(part.graph))
		})
	}
}

// TestExchangedBytes is law L3 for exchanged heads. For each of the n ranks and layers, of T tokens with q bytes of queries and kv of keys and
// values each, a rank receives (n-1)/n of T/n tokens'
//
//	forward                   2q + kv, and 4 bytes a head: queries, keys, values, results and the softmax's denominators
//	attention recomputed      the same
//	backward                  the same, the results' gradients, and dq, dk, dv: 4q + 2kv, and 4 bytes a head
//
// twice, since there are two sequences. With fewer key heads than ranks, kv is that of as many heads as ranks, and dk and dv are in fp32.
func TestExchangedBytes(t *testing.T) {
	for _, c := range []struct {
		name  string
		ranks []int
	}{{"gpt2-tiny/4", []int{2, 4}}, {"llama3-rope/4", []int{2, 4}}, {"granite-tiny bf16/4", []int{4}}} {
		f, _ := exchangedCase(t, testkit.Rand(t), c.name)
		exchangedBytes(t, f, c.ranks)
	}
}

func exchangedBytes(t *testing.T, f *fixture, ranks []int) {
	m, size := f.graph.Model, int(f.graph.DType.Size())
	for _, n := range ranks {
		for _, again := range []bool{false, true} {
			part := f.shared(t, n)
			pl := exchanging(part.graph)
			for l := range pl.Activations {
				if again {
					pl.Activations[l] = plan.Recomputed("full")
				}
			}
			_, tr := part.train(t, pl, 1)
			q, kv := size*m.Heads*m.HeadDim, size*2*max(n, m.KVHeads)*m.HeadDim
			dkv := kv
			if m.KVHeads < n {
				dkv = kv / size * 4
			}
			forward := 2*q + kv + 4*m.Heads
			token := forward + 4*q + kv + dkv + 4*m.Heads
			if again {
				token += forward
			}
			want := int64(2*m.Layers*token*f.graph.Seq/n) / int64(n) * int64(n-1)
			for i := range n {
				if got := tr.network[i][graph.AllToAll]; got != want {
					t.Errorf("%s: rank %d of %d, recomputing %v: receives %d bytes, want %d", m.Family, i, n, again, got, want)
				}
			}
		}
	}
}

// TestExchangeChangesNothing is law L1 for exchanged heads, as TestSharingChangesNothing is for travelling keys.
func TestExchangeChangesNothing(t *testing.T) {
	r := rand.New(rand.NewPCG(testkit.Seed(t), 9))
	for _, name := range testkit.Sample([]string{"granite-tiny bf16/4", "llama-tiny", "gpt2-tiny/4", "gpt-oss-tiny documents", "mistral-tiny sinks documents", "mixtral-tiny", "qwen3-tiny", "neox-tiny/4"}, 1, 10) {
		for k := range testkit.Count(1, 2, 6) {
			t.Run(fmt.Sprintf("%s/%d", name, k), func(t *testing.T) {
				f, part := exchangedCase(t, r, name)
				_, plain := f.train(t, plan.Plain(f.graph, 2), 10)
				pl := part.inGroups(r, part.graph.Parts())
				pl.Exchange, pl.KVParts = plan.ExchangeHeads, exchanging(part.graph).KVParts*r.IntN(2)
				_, got := part.train(t, pl, 10)
				got.state = got.state[:0]
				near(t, got, trace{losses: plain.losses, norms: plain.norms})
				part.proveAlike(t, pl)
			})
		}
	}
}

// TestPartsInPipelines: a pipeline of ranks that share sequences trains with the bits of ranks that share sequences without one, under every
// schedule in which each rank's sums over micro-batches are its own; and each rank receives its part of a pipeline's messages, and the heads
// of its own layers only.
func TestPartsInPipelines(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	const micros, depth, n = 4, 2, 2
	f := load(t, filepath.Join("../testdata/torch", "gpt2-untied", "config.json"))
	f.deepen(t, 4, micros)
	part := f.shared(t, n)
	alone := plan.Plain(part.graph, micros)
	alone.Exchange = plan.ExchangeHeads
	_, plain := part.train(t, alone, 2)
	for _, name := range testkit.Sample([]string{"1f1b", "zb-h1", "chimera", "interleaved", "breadth-first", "zb-v", "gpipe", "bitpipe"}, 1, 3) {
		t.Run(name, func(t *testing.T) {
			pl, home := pipelined(t, part, name, depth, micros)
			pl.Ranks, pl.Exchange = depth*n, plan.ExchangeHeads
			_, got := part.train(t, pl, 2)
			if s, err := schedule.Generate(name, schedule.Request{Ranks: depth, Micros: micros, Slices: 1, Costs: schedule.DefaultCosts()}); err != nil || s.Directions() > 1 {
				near(t, got, trace{losses: plain.losses, norms: plain.norms})
				return
			}
			same(t, trace{losses: got.losses, norms: got.norms}, trace{losses: plain.losses, norms: plain.norms})
			stream := int64(len(f.tokens) / n * f.graph.Model.Width * 4)
			for r := range pl.Ranks {
				layers := layersAt(home, r/n, f.graph.Model.Layers)
				if want := 2 * stream * int64(received(name, depth, r/n)); got.network[r][graph.Recv] != want {
					t.Errorf("rank %d receives messages of %d bytes, want %d", r, got.network[r][graph.Recv], want)
				}
				all := plain.network[r%n][graph.AllToAll] / int64(f.graph.Model.Layers) // of a layer
				if want := all * int64(layers); got.network[r][graph.AllToAll] != want {
					t.Errorf("rank %d receives heads of %d bytes, want %d", r, got.network[r][graph.AllToAll], want)
				}
			}
			part.proveAlike(t, pl)
		})
	}
}
