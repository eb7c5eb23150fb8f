package session

import (
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/device/cpu"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/verify"
)

// shared returns a fixture whose sequences n ranks share.
func (f *fixture) shared(t *testing.T, n int) *fixture {
	t.Helper()
	part := *f
	var err error
	part.graph, err = graph.BuildPart(f.graph.Model, f.graph.Seq, n, f.graph.DType, f.graph.Documents)
	check(t, err)
	return &part
}

// lengthen makes the fixture's text one of the given number of sequences and tokens, by repeating it with other tokens between.
func (f *fixture) lengthen(t *testing.T, sequences, tokens int) {
	t.Helper()
	text := slices.Clone(f.tokens)
	for i := 0; len(f.tokens) < sequences*tokens; i++ {
		f.tokens = append(f.tokens, (text[i%len(text)]+int32(i/len(text)))%int32(f.graph.Model.Vocab))
	}
	f.tokens = f.tokens[:sequences*tokens]
	f.targets = append(slices.Clone(f.tokens[1:]), 1)
	for i := range f.targets {
		if i%7 == 3 { // a prompt's tokens, say
			f.targets[i] = -1
		}
	}
	m := *f.graph.Model
	if m.MaxPositions < tokens {
		m.MaxPositions, f.weights = tokens, nil
	}
	var err error
	f.graph, err = graph.BuildDocuments(&m, tokens, f.graph.DType, f.graph.Documents)
	check(t, err)
}

// evenVocabulary leaves out the last token, so that ranks can share the head's matrix: its size is a prime in all fixtures. The weights are new.
func (f *fixture) evenVocabulary(t *testing.T) {
	t.Helper()
	m := *f.graph.Model
	m.Vocab = (m.Vocab - 1) / 4 * 4
	for _, list := range [][]int32{f.tokens, f.targets} {
		for i := range list {
			list[i] %= int32(m.Vocab)
		}
	}
	f.weights = nil
	var err error
	f.graph, err = graph.BuildDocuments(&m, f.graph.Seq, f.graph.DType, f.graph.Documents)
	check(t, err)
}

// sharedCases are fixtures by family, with what is special about them.
func sharedCases(t *testing.T, r *rand.Rand, name string, ranks int) *fixture {
	folder, how, _ := strings.Cut(name, " ")
	f := load(t, filepath.Join("../testdata/torch", folder, "config.json"))
	if strings.Contains(how, "bf16") {
		f.store(t, graph.BF16)
	}
	tokens := 32
	if ranks > 2 {
		tokens = 256
	}
	if strings.Contains(how, "even") {
		f.evenVocabulary(t)
	}
	f.lengthen(t, 2, tokens)
	if strings.Contains(how, "balance") {
		f.balance(t)
	}
	if strings.Contains(how, "sinks") {
		f.sinks(t)
	}
	if strings.Contains(how, "lora") {
		f.adaptSome(t, r)
	}
	if strings.Contains(how, "noise") {
		f.addNoise(t)
	}
	if strings.Contains(how, "documents") {
		f.separate(t, r)
	}
	return f
}

var sharedNames = []string{"gpt2-tiny", "llama-tiny", "qwen3-tiny", "gemma3-tiny bf16", "mistral-tiny", "gpt2-tiny bf16", "llama-tiny bf16", "olmo2-tiny", "neox-tiny", "phi3-longrope", "opt-tiny",
	"llama-tiny noise", "gpt2-tiny noise bf16", "granite-tiny", "stablelm-tiny", "mistral-tiny sinks documents", "llama-tiny documents bf16", "qwen2-tiny", "starcoder2-tiny", "smollm3-tiny", "olmo3-tiny", "gemma2-tiny", "gemma2-tiny bf16", "gemma4-tiny", "gemma4-tiny documents bf16", "deepseek2-tiny", "deepseek3-tiny bf16", "mixtral-tiny", "qwen3-moe-tiny bf16", "gpt-oss-tiny", "qwen2-moe-tiny", "glm4-moe-tiny", "olmoe-tiny bf16", "ernie-moe-tiny", "gemma4-moe-tiny"}

// rowsOf reads a result that has a row per token, in the order of the batch, from whichever ranks have its rows.
func rowsOf(t *testing.T, s *Session, name string) map[int][]float64 {
	t.Helper()
	rows := map[int][]float64{}
	for r := range s.ranks {
		e, p := s.ranks[r].engines[0], s.ranks[r].progs[0]
		all := make([]float64, e.BufferLen(name))
		check(t, e.ReadBuffer(name, all))
		buf := &p.Buffers[slices.IndexFunc(p.Buffers, func(b program.Buffer) bool { return b.Name == name })]
		for k := range buf.Rows {
			rows[p.GlobalRow(k)] = all[k*buf.Cols:][:buf.Cols]
		}
	}
	return rows
}

// openRanks opens a plan on CPU ranks, with the fixture's weights.
func (f *fixture) openRanks(t *testing.T, pl *plan.Plan, mode lower.Mode) *Session {
	t.Helper()
	var ps []*program.Program
	opt := f.options()
	opt.Mode = mode
	for opt.Rank = range pl.Ranks {
		p, err := lower.Lower(t.Context(), f.graph, pl, opt)
		check(t, err)
		ps = append(ps, p)
	}
	_, err := Prove(t.Context(), f.graph, pl, ps, nil, opt)
	check(t, err)
	devices := cpu.OpenRanks(cpu.Options{DiskPath: filepath.Join(t.TempDir(), "disk"), Workers: 1}, pl.Ranks)
	t.Cleanup(func() { CloseAll(devices) })
	s, err := Open(f.graph, devices, ps)
	check(t, err)
	t.Cleanup(s.Close)
	check(t, s.Load(f.read))
	return s
}

// TestSharedRows: ranks that share sequences compute for each token the logits of one rank, bit for bit, and gradients up to the
// order of their sums.
func TestSharedRows(t *testing.T) {
	r := rand.New(rand.NewPCG(testkit.Seed(t), 8))
	for _, name := range testkit.Sample(sharedNames, 4, 100) {
		for _, n := range []int{2, 4} {
			t.Run(fmt.Sprintf("%s/%d", name, n), func(t *testing.T) {
				f := sharedCases(t, r, name, n)
				one, part := f.openRanks(t, plan.Plain(f.graph, 2), lower.Logits), f.shared(t, n)
				all := part.openRanks(t, plainParts(part.graph), lower.Logits)
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
				sameGradients(t, f, part, plainParts(part.graph))
			})
		}
	}
}

// plainParts is a plan for ranks that share sequences, with the keys and values of half of the heads at a time, where they are even.
func plainParts(g *graph.Graph) *plan.Plan {
	pl := plan.Plain(g, 2)
	if g.DividesHeads(2) && g.Parts() > 1 {
		pl.KVParts, pl.KVEager = 2, true
	}
	return pl
}

// sameGradients compares the gradients of one rank and of ranks that share sequences by a plan.
func sameGradients(t *testing.T, f, part *fixture, pl *plan.Plan) {
	t.Helper()
	one, all := f.openRanks(t, plan.Plain(f.graph, 2), lower.Grads), part.openRanks(t, pl, lower.Grads)
	f.step(t, one, 1)
	part.step(t, all, 1)
	most := 1e-5
	if f.graph.DType == graph.BF16 {
		most = 1e-2 // a sum that is rounded to bf16 may fall on either side
		switch {
		case part.graph.Shared() > 1 && f.graph.Model.Experts > 0:
			most = 1e-1 // and so may its terms, and a token may be sent to other experts
		case part.graph.Shared() > 1:
			most = 3e-2
		}
	}
	var diff, size float64
	for i, p := range f.graph.Params {
		want, got := make([]float32, p.Elems()), make([]float32, p.Elems())
		check(t, one.Read(i, optimizer.Gradient, want))
		check(t, all.Read(i, optimizer.Gradient, got))
		for k := range want {
			diff, size = diff+math.Pow(float64(got[k]-want[k]), 2), size+math.Pow(float64(want[k]), 2)
		}
	}
	if e := math.Sqrt(diff / size); e > most {
		t.Errorf("gradients differ by %.2g of their norm", e)
	}
}

// TestSharingChangesNothing is law L1 for shared sequences: whatever else a plan divides and wherever it puts it, ten steps are
// those of one rank up to the order of sums, and L2 holds on every rank.
func TestSharingChangesNothing(t *testing.T) {
	r := rand.New(rand.NewPCG(testkit.Seed(t), 9))
	for _, name := range testkit.Sample([]string{"llama-tiny", "gpt2-tiny", "qwen3-tiny", "gemma3-tiny documents", "neox-tiny", "mistral-tiny sinks", "qwen2-tiny", "olmo2-tiny", "qwen3-moe-tiny", "gpt-oss-tiny documents"}, 2, 10) {
		for range testkit.Count(1, 3, 6) {
			n := []int{2, 4}[r.IntN(2)]
			t.Run(fmt.Sprintf("%s/%d", name, n), func(t *testing.T) {
				f := sharedCases(t, r, name, n)
				_, plain := f.train(t, plan.Plain(f.graph, 2), 10)
				part := f.shared(t, n)
				pl := part.inGroups(r, n)
				_, got := part.train(t, pl, 10)
				got.state = got.state[:0]
				near(t, got, trace{losses: plain.losses, norms: plain.norms})
				part.proveAlike(t, pl)
			})
		}
	}
}

// inGroups draws a plan for ranks that share sequences or matrices, n to each, in one group or two, each with its sequences.
func (f *fixture) inGroups(r *rand.Rand, n int) *plan.Plan {
	pl := randomPlan(r, f)
	groups := []int{1, 2}[r.IntN(2)]
	pl.Ranks, pl.MicroBatch, pl.MicroBatches, pl.Group = n*groups, 1, 2/groups, 1
	pl.HeadRows = min(pl.HeadRows, f.graph.Seq)
	if parts := 1 + r.IntN(4); f.graph.Parts() > 1 && f.graph.DividesHeads(parts) {
		pl.KVParts, pl.KVEager = parts, r.IntN(2) == 0
	}
	for i := range pl.Chunks {
		if c := &pl.Chunks[i]; c.Weights == 0 {
			c.Shard = plan.Shardings()[r.IntN(4)]
		} else {
			c.Shard = []string{"", "weights"}[r.IntN(2)]
		}
	}
	pl.Cache = pl.CacheNeeded(f.graph) + int64(r.IntN(4))*10000
	return pl
}

// proveAlike proves a plan's programs to be the plain ones, but for the order of sums.
func (f *fixture) proveAlike(t *testing.T, pl *plan.Plan) {
	t.Helper()
	ps := f.lower(t, pl)
	updates, err := Updates(t.Context(), f.graph, pl, ps, f.options())
	check(t, err)
	if eq, err := Prove(t.Context(), f.graph, pl, ps, updates, f.options()); err != nil || eq == verify.Different {
		t.Error(err)
	}
}

// TestSharedBytes is law L3 for shared sequences: what each rank receives of keys, values and their gradients is what a formula
// says that knows nothing of programs. A sequence of T tokens is cut into 2n chunks. Rank i of n sees the first n chunks and n-i of
// the others, two of all of them its own; and i other ranks see its second chunk, all others its first. Per layer, for c
// bytes of keys and values of a chunk in fp32:
//
//	forward                   (2n-2-i) c
//	attention recomputed      the same
//	backward                  the same, and gradients (n-1+i) c
func TestSharedBytes(t *testing.T) {
	f := load(t, filepath.Join("../testdata/torch", "llama-tiny", "config.json"))
	f.lengthen(t, 2, 256)
	m := f.graph.Model
	for _, n := range []int{2, 4} {
		for _, again := range []bool{false, true} {
			part := f.shared(t, n)
			pl := plan.Plain(part.graph, 2)
			pl.KVParts = m.KVHeads // which changes neither bytes nor bits
			for l := range pl.Activations {
				if again {
					pl.Activations[l] = plan.Recomputed("full")
				}
			}
			_, tr := part.train(t, pl, 1)
			for i := range n {
				c := int64(256/(2*n)) * int64(2*m.KVHeads*m.HeadDim) * 4
				seen := int64(2*n - 2 - i)
				want := 2*seen + int64(n-1+i)
				if again {
					want += seen
				}
				want *= 2 * int64(m.Layers) * c
				if got := tr.network[i][graph.Recv]; got != want {
					t.Errorf("rank %d of %d, recomputing %v: receives %d bytes, want %d", i, n, again, got, want)
				}
			}
		}
	}
}

// TestSharedWindow: with a window of 300 tokens, of a sequence that four ranks have in chunks of 512, each run of tokens needs the chunk
// before it and no others. Rank i has chunks i and 7-i, so it receives these of other ranks in either pass, and gradients of its own:
//
//	rank      has    sees    others see
//	0         0 7    6       0
//	1         1 6    0 5     1 6
//	2         2 5    1 4     2 5
//	3         3 4    2       4
//
// Losses are those of one rank, bit for bit, and it is proved that all else is up to the order of sums.
func TestSharedWindow(t *testing.T) {
	f := load(t, filepath.Join("../testdata/torch", "llama-tiny", "config.json"))
	m := *f.graph.Model
	m.Window = 300
	f.rebuild(t, &m)
	f.lengthen(t, 1, 4096)
	part := f.shared(t, 4)
	pl := plan.Plain(part.graph, 1)
	pl.KVParts, pl.KVEager, pl.FeedRows = m.KVHeads, true, 256
	_, one := f.train(t, plan.Plain(f.graph, 1), 1)
	_, got := part.train(t, pl, 1)
	if math.Abs(got.losses[0]/one.losses[0]-1) > 1e-14 {
		t.Errorf("loss %v, on one rank %v", got.losses[0], one.losses[0])
	}
	part.proveAlike(t, pl)
	chunk := int64(512) * int64(2*m.KVHeads*m.HeadDim) * 4
	for i, chunks := range []int64{1, 2, 2, 1} {
		want := 3 * chunks * chunk * int64(m.Layers)
		if got := got.network[i][graph.Recv]; got != want {
			t.Errorf("rank %d receives %d bytes, want %d", i, got, want)
		}
	}
}
