package session

import (
	"context"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cpu"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
)

// batch is the global batch: the fixture's tokens.
func (f *fixture) batch() int { return len(f.tokens) / f.graph.Seq }

// randomPlan draws every decision of a plan for the global batch.
func randomPlan(r *rand.Rand, f *fixture) *plan.Plan {
	g := f.graph
	b := f.batch()
	if half := 1 << r.IntN(bits.Len(uint(b))); g.CutsAt(half * g.Seq) {
		b = half
	}
	pl := plan.Plain(g, b)
	pl.MicroBatches = f.batch() / b
	groups := []int{1, pl.MicroBatches}
	if pl.Group = groups[r.IntN(2)]; g.Model.Shares > 0 {
		pl.Group = pl.MicroBatches
	}
	heads := slices.DeleteFunc([]int{8, 16, 32, g.Seq, g.Seq * b}, func(n int) bool { return !g.CutsAt(n) && n < g.Seq*b || g.Seq%n != 0 && n%g.Seq != 0 })
	pl.HeadRows = heads[r.IntN(len(heads))]
	pl.Chunks = plan.Layout(g, []int64{1, 3000, 20000, 1 << 40}[r.IntN(4)])
	for i := range pl.Chunks {
		c := &pl.Chunks[i]
		switch r.IntN(4) {
		case 0: // all on the device
		case 1:
			c.State = device.HostTier + device.Tier(r.IntN(2))
		case 2:
			c.Grads, c.State = device.HostTier, device.HostTier+device.Tier(r.IntN(2))
		case 3:
			c.Weights, c.State = device.HostTier, device.HostTier+device.Tier(r.IntN(2))
			c.Grads = device.Tier(r.IntN(2))
			if c.Tables(g) {
				c.Lookup = []string{"", plan.LookupOnHost}[r.IntN(2)]
			}
		}
		if c.State != device.DeviceTier {
			c.Update = []string{"", plan.UpdateOnDevice}[r.IntN(2)]
		}
	}
	pl.Cache = pl.CacheNeeded(g) + int64(r.IntN(4))*10000
	pl.Prefetch = 1 + r.IntN(3)
	for l := range pl.Activations {
		pl.Activations[l] = randomRetention(r)
	}
	pl.Slots = 1 + r.IntN(3)
	pl.State, pl.Optimizer = f.state, f.updates
	pl.Defer = r.IntN(2) == 0
	return pl
}

// randomRetention draws what is done with each class of a layer's activations.
func randomRetention(r *rand.Rand) (keep plan.Retention) {
	for a := range keep {
		tier := device.HostTier + device.Tier(r.IntN(2))
		fates := []plan.Fate{plan.Kept, {Tier: tier, Share: 1}, plan.Remade, {Tier: tier, Share: 0.01 + 0.99*r.Float64()}}
		n := [plan.NumActs]int{plan.InputAct: 2, plan.AttentionAct: 3, plan.LinearAct: 4, plan.LightAct: 4}[a]
		keep[a] = fates[r.IntN(n)]
	}
	return keep
}

// store rebuilds the fixture's graph with another storage type.
func (f *fixture) store(t *testing.T, d graph.DType) {
	t.Helper()
	var err error
	f.graph, err = graph.BuildDocuments(f.graph.Model, f.graph.Seq, d, f.graph.Documents)
	check(t, err)
}

// inSequencesOf takes the fixture's first tokens as sequences of another length, in a batch that can be halved.
func (f *fixture) inSequencesOf(t *testing.T, n int) {
	t.Helper()
	var err error
	f.graph, err = graph.BuildDocuments(f.graph.Model, n, f.graph.DType, f.graph.Documents)
	check(t, err)
	n *= 1 << (bits.Len(uint(f.batch())) - 1)
	f.tokens, f.targets = f.tokens[:n], f.targets[:n]
}

// trace is what a run computed: losses, norms and all final state.
type trace struct {
	losses, norms []float64
	state         [][]float32
	peak          [device.NumTiers]int64
	moved         [device.NumTiers][device.NumTiers]int64
	network       [][graph.NumOps]int64                     // by rank
	tiers         [][device.NumTiers][device.NumTiers]int64 // bytes moved, by rank
}

// partly checks that a parameter's state, read and written in parts and as it is stored, is what it is as a whole.
func (f *fixture) partly(t *testing.T, s *Session, pl *plan.Plan, i int, kind optimizer.Kind, whole []float32) {
	t.Helper()
	q, first := &s.Graph.Params[i], len(whole)/3
	part, halves := make([]float32, len(whole)/2), make([]byte, len(whole)/2*2)
	if !InParts(s.Graph, i) || q.Frozen {
		return
	}
	if MomentOf(s, i, kind).Packed() {
		f.bytesPartly(t, s, i, kind, whole)
		return
	}
	check(t, s.ReadPart(i, kind, first, part))
	if !slices.Equal(part, whole[first:][:len(part)]) {
		t.Errorf("%s of %s: the part that begins at %d is another", kind, q.Name, first)
	}
	again := make([]float32, len(whole))
	check(t, s.WritePart(i, kind, first, part))
	check(t, s.Read(i, kind, again))
	if !slices.Equal(again, whole) {
		t.Errorf("%s of %s: writing the part that begins at %d changes it", kind, q.Name, first)
	}
	stored, moments := pl.State.Types()
	if kind != optimizer.Weights {
		stored = moments
	}
	if err := s.ReadHalves(i, kind, first, halves); (err == nil) != (stored == graph.BF16) {
		t.Errorf("%s of %s, which is stored in %v: read as bf16 with %v", kind, q.Name, stored, err)
	}
	for k := range part {
		got := uint32(halves[2*k]) | uint32(halves[2*k+1])<<8
		if stored == graph.BF16 && got<<16 != math.Float32bits(part[k]) {
			t.Fatalf("%s of %s: element %d is another as it is stored", kind, q.Name, first+k)
		}
	}
}

func (f *fixture) train(t *testing.T, pl *plan.Plan, steps int) (*program.Program, trace) {
	t.Helper()
	ps := f.lower(t, pl)
	devices := cpu.OpenRanks(cpu.Options{DiskPath: filepath.Join(t.TempDir(), "disk"), Workers: 1 + 1/pl.Ranks}, pl.Ranks)
	defer CloseAll(devices)
	s := f.begin(t, devices, pl, ps)
	defer s.Close()
	var tr trace
	for n := 1; n <= steps; n++ {
		out := f.step(t, s, n)
		tr.losses, tr.norms = append(tr.losses, out.Loss), append(tr.norms, out.Norm)
	}
	for i, q := range s.Graph.Params {
		for _, kind := range f.updates.For(q.Indivisible).State() {
			buf := make([]float32, q.Elems())
			check(t, s.Read(i, kind, buf))
			tr.state = append(tr.state, buf)
			f.partly(t, s, pl, i, kind, buf)
		}
	}
	for r, d := range devices {
		st := d.(*cpu.Device).Stats()
		tr.network, tr.tiers = append(tr.network, st.Network), append(tr.tiers, st.Moved)
		if r == 0 {
			tr.peak, tr.moved = st.Peak, st.Moved
		}
		if st.Peak != ps[r].Height {
			t.Errorf("rank %d touched up to %v, the plan said %v", r, st.Peak, ps[r].Height)
		}
	}
	return ps[0], tr
}

// begin opens a session of a plan's programs, with the fixture's weights.
func (f *fixture) begin(t *testing.T, devices []device.Device, pl *plan.Plan, ps []*program.Program) *Session {
	t.Helper()
	updates, err := Updates(t.Context(), f.graph, pl, ps, f.options())
	check(t, err)
	s, err := OpenDeferred(f.graph, devices, updates, ps)
	check(t, err)
	check(t, s.Load(f.read))
	return s
}

// options are what programs are lowered with.
func (f *fixture) options() lower.Options {
	opt := betas
	opt.Muon = f.terms
	if f.free {
		opt.Clip = 0
	}
	return opt
}

// lower lowers a plan for all ranks.
func (f *fixture) lower(t *testing.T, pl *plan.Plan) (ps []*program.Program) {
	t.Helper()
	for opt := f.options(); opt.Rank < pl.Ranks; opt.Rank++ {
		p, err := lower.Lower(context.Background(), f.graph, pl, opt)
		check(t, err)
		ps = append(ps, p)
	}
	return ps
}

// TestPlansChangeNothing is law L1: under random plans the losses, the norms
// and every bit of the final weights and moments are those of the plain run.
// And L2: the executed high-water mark is the height of the packing.
func TestPlansChangeNothing(t *testing.T) {
	seed := testkit.Seed(t)
	r := rand.New(rand.NewPCG(seed, 1))
	for _, name := range testkit.Sample([]string{"gpt2-tiny", "gpt2-untied", "llama-tiny", "qwen2-tiny", "gpt2-tiny bf16", "llama-tied bf16", "gpt2-tiny free",
		"qwen3-tiny", "gemma3-tiny", "qwen3-tiny bf16", "gemma3-tiny bf16", "gemma3-tiny documents", "gemma3-tiny bf16 in 17", "olmo2-tiny", "olmo2-tiny bf16", "neox-tiny", "neox-tiny bf16", "neox-serial", "phi3-tiny", "smollm3-tiny", "granite-tiny", "granite-tiny bf16", "starcoder2-tiny", "stablelm-parallel", "phi-tiny", "phi-tiny bf16", "olmo3-tiny", "gemma2-tiny", "gemma2-tiny bf16", "gemma2-tiny documents", "gemma4-tiny", "gemma4-small-tiny", "gemma4-tiny bf16", "gemma4-tiny documents", "gemma4-moe-tiny", "gemma4-moe-tiny balanced", "deepseek2-tiny", "deepseek3-tiny", "deepseek3-tiny bf16", "deepseek3-tiny documents", "glm4-lite-tiny bf16 in 17", "gemma4-moe-tiny bf16 in 17", "phi3-longrope", "mixtral-tiny", "qwen3-moe-tiny", "olmoe-tiny", "mixtral-tiny bf16", "qwen3-moe-tiny bf16", "olmoe-tiny bf16 in 17", "qwen3-moe-tiny balanced", "olmoe-tiny balanced", "mixtral-tiny documents", "glm4-moe-tiny", "glm4-moe-tiny bf16", "minimax-m2-tiny", "minimax-m2-tiny bf16", "ernie-moe-tiny", "ernie-moe-tiny bf16", "ernie-moe-tiny balanced", "glm4-moe-tiny documents",
		"qwen35-tiny", "qwen35-tiny bf16", "qwen35-tiny documents", "lfm2-tiny", "lfm2-tiny bf16 in 17", "lfm2-tiny bf16 documents", "lfm2-moe-tiny bf16", "granite-h-tiny", "granite-h-tiny bf16 in 17", "granite-h-tiny bf16 documents", "granite-h-moe-tiny", "granite-h-moe-tiny bf16 in 17", "granite-moe-tiny bf16 documents", "falcon-h1-tiny bf16", "falcon-h1-normed-tiny documents", "nemotron-h-tiny", "nemotron-h-tiny bf16 documents", "bamba-tiny bf16 in 17", "cohere-tiny", "cohere2-tiny bf16", "cohere2-tiny documents", "apertus-tiny", "apertus-tiny bf16 in 17", "qwen3-next-tiny", "qwen3-next-tiny bf16 in 17", "qwen3-next-tiny bf16 documents",
		"gpt-oss-tiny", "gpt-oss-tiny bf16", "gpt-oss-tiny bf16 in 17", "gpt-oss-tiny balanced", "gpt-oss-tiny documents",
		"llama-tiny sinks", "mistral-tiny bf16 sinks in 16", "mistral-tiny documents sinks",
		"gpt2-tiny documents", "mistral-tiny documents", "gpt2-tiny fp32, bf16_moments", "llama-tied bf16, bf16_moments", "gpt2-tiny bf16, bf16",
		"gpt2-tiny bf16 in 16", "llama-tied bf16 in 64", "gpt2-tiny bf16 in 1", "llama-tiny bf16 in 17", "gpt2-tiny bf16 in 31", "qwen2-tiny in 33", "llama-tied bf16 in 33", "gpt2-tiny bf16 in 63"}, 1, 12) { // tokens are added by twos, by 32 with a sequence cut in the head
		folder, precision, _ := strings.Cut(name, " ")
		f := load(t, filepath.Join("../testdata/torch", folder, "config.json"))
		if strings.HasPrefix(precision, "bf16") {
			f.store(t, graph.BF16)
		}
		if _, state, ok := strings.Cut(name, ", "); ok {
			check(t, f.state.UnmarshalText([]byte(state)))
		}
		if _, seq, ok := strings.Cut(name, " in "); ok {
			n, err := strconv.Atoi(seq)
			check(t, err)
			f.inSequencesOf(t, n)
		}
		f.free = precision == "free"
		if precision == "balanced" {
			f.balance(t)
		}
		if strings.HasPrefix(precision, "documents") {
			f.separate(t, r)
		}
		if strings.Contains(precision, "sinks") {
			f.sinks(t)
		}
		alone := plan.Plain(f.graph, f.batch())
		alone.State = f.state
		_, plain := f.train(t, alone, 3)
		if e := math.Abs(plain.losses[2]/f.losses.Losses64[2] - 1); strings.HasPrefix(precision, "bf16") && f.graph.Seq == 32 && !(e > 0 && e < 0.01) {
			t.Errorf("%s: loss %v after two steps, in fp64 %v", name, plain.losses[2], f.losses.Losses64[2])
		}
		for k := range testkit.Count(2, 4, 8) {
			t.Run(fmt.Sprintf("%s/%d", name, k), func(t *testing.T) {
				pl := randomPlan(r, f)
				p, got := f.train(t, pl, 3)
				if !slices.Equal(got.losses, plain.losses) || !slices.Equal(got.norms, plain.norms) {
					t.Errorf("losses %v norms %v\nplain  %v norms %v\nplan %+v", got.losses, got.norms, plain.losses, plain.norms, pl)
				}
				for i := range got.state {
					if !slices.Equal(got.state[i], plain.state[i]) {
						t.Errorf("%s %s differs; plan %+v", f.graph.Params[i/3].Name, optimizer.AdamW.Rule().State()[i%3], pl)
						break
					}
				}
				if got.peak != p.Height {
					t.Errorf("touched up to %v, the plan said %v", got.peak, p.Height)
				}
			})
		}
	}
}

// TestPlansAreProved: what TestPlansChangeNothing finds by running, Verify
// proves beforehand: no races, no overflow, and the plain program's meaning.
func TestPlansAreProved(t *testing.T) {
	seed := testkit.Seed(t)
	r := rand.New(rand.NewPCG(seed, 2))
	for _, dir := range testkit.Sample(fixtures(t), 1, 8) {
		f := load(t, dir)
		for k := range testkit.Count(6, 10, 10) {
			if k == 5 {
				f.store(t, graph.BF16)
			}
			f.state = []plan.StateFormat{0, 0, 0, plan.BF16Moments, plan.BF16Moments, 0, 0, plan.BF16Moments, plan.BF16Moments, plan.BF16State}[k]
			pl := randomPlan(r, f)
			ps := f.lower(t, pl)
			updates, err := Updates(t.Context(), f.graph, pl, ps, f.options())
			check(t, err)
			if _, err := Prove(t.Context(), f.graph, pl, ps, updates, f.options()); err != nil {
				t.Fatalf("%s: %v\nplan %+v", f.dir, err, pl)
			}
		}
	}
}
