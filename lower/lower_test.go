package lower

import (
	"context"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/samples"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
)

// TestPassOrder checks the table of passes against the table of reasons.
func TestPassOrder(t *testing.T) {
	at := func(name string) int {
		i := slices.IndexFunc(passes, func(p pass) bool { return p.name == name })
		if i < 0 {
			t.Errorf("there is no pass %s", name)
		}
		return i
	}
	for _, o := range passOrder {
		if at(o.before) >= at(o.after) {
			t.Errorf("%s must come before %s: %s", o.before, o.after, o.why)
		}
	}
}

// TestSkeletalActivations: what a GPT layer keeps for its backward pass are
// the 16 units of tokens x width of MEMO (2407.12117, section 4.1), plus what
// MEMO leaves out: two norms' statistics and the softmax denominators.
func TestSkeletalActivations(t *testing.T) {
	const width, heads = 128, 4
	g := samples.BuildGPT(t, 2, width, heads, 1000, 64, true)
	for s := 1; s < g.Head(); s++ {
		var perToken int
		for _, v := range g.Segments[s].Saved {
			perToken += g.Values[v].Cols
		}
		if want := 16*width + 2*2 + heads; perToken != want {
			t.Errorf("segment %s keeps %d numbers per token, want %d", g.Segments[s].Name, perToken, want)
		}
	}
}

// TestPlainPeak is half of law L2: the memory of the plain plan is a sum that
// can be written down without any program. It peaks when the head's weight
// gradient begins: all activations and the logits of all tokens exist then.
// Sizes are chosen so that nothing is padded to an address.
func TestPlainPeak(t *testing.T) {
	const layers, width, heads, vocab, seq, sequences = 3, 64, 4, 4096, 32, 2
	const n = seq * sequences
	g := samples.BuildGPT(t, layers, width, heads, vocab, seq, true)
	p := lowered(t, g, plan.Plain(g, sequences))
	var params int64
	for _, q := range g.Params {
		params += q.Elems()
	}
	const f = 4          // bytes
	want := 3*f*params + // weights and two moments
		f*n*layers*(16*width+2*2+heads) + // kept by the layers
		f*n*(width+width+2) + // the head's input, its norm and statistics
		f*n*vocab + f*n*width + // gradients over the logits, of the norm
		f*vocab*width + // of the embedding
		f*n + // tokens, until the embedding's gradient
		64 + 8 // scalars up to the next address, loss
	if got := p.Height[device.DeviceTier]; got != int64(want) {
		t.Errorf("the plain plan takes %d bytes, the sum is %d", got, want)
	}
	if p.Height != p.Bound {
		t.Errorf("height %v above the bound %v", p.Height, p.Bound)
	}
}

// TestRecomputePeak: if only the layers' inputs are kept, the device holds a
// single width per token for every layer but one.
func TestRecomputePeak(t *testing.T) {
	const width, heads, vocab, seq = 64, 4, 64, 64
	height := func(layers int, choice string) int64 {
		g := samples.BuildGPT(t, layers, width, heads, vocab, seq, true)
		pl := plan.Plain(g, 4)
		pl.Activations = slices.Repeat([]plan.Retention{plan.Recomputed(choice)}, layers)
		for i := range pl.Chunks { // parameters out of the way
			pl.Chunks[i] = plan.Chunk{First: pl.Chunks[i].First, Last: pl.Chunks[i].Last, Weights: device.HostTier, Grads: device.HostTier, State: device.HostTier}
		}
		pl.Cache = pl.CacheNeeded(g)
		return lowered(t, g, pl).Height[device.DeviceTier]
	}
	const n = 4 * seq
	for choice, perToken := range map[string]int64{
		"none": 16*width + 4 + heads,
		"full": width,
		// the input, and attention's output and denominators
		"attention": width + width + heads,
		// without two norms (and their statistics) and the activation
		"light": 16*width + heads - 2*width - 4*width,
	} {
		if got := height(9, choice) - height(6, choice); got != 3*4*n*perToken {
			t.Errorf("%s: three layers more take %d bytes more, want %d", choice, got, 3*4*n*perToken)
		}
	}
}

func lowered(t *testing.T, g *graph.Graph, pl *plan.Plan) *program.Program {
	t.Helper()
	p, err := Lower(context.Background(), g, pl, Options{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Clip: 1, Capacity: program.NoLimits})
	if err != nil {
		t.Fatal(err)
	}
	return p
}
