package policy

import (
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/model/family"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/verify"
)

var adam = lower.Options{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Clip: 1, Capacity: program.NoLimits}

// request returns a request for a small GPT-2 on ranks with the given device memory.
func request(t *testing.T, ranks int, capacity int64, tied bool) *Request {
	t.Helper()
	m, err := family.Known("gpt2")
	if err != nil {
		t.Fatal(err)
	}
	m.Layers, m.Width, m.Heads, m.KVHeads, m.HeadDim, m.FeedForward, m.Vocab, m.MaxPositions, m.Tied = 4, 64, 4, 4, 16, 256, 512, 32, tied
	g, err := graph.Build(m, 32, graph.BF16)
	if err != nil {
		t.Fatal(err)
	}
	h, err := hardware.KnownRank("elixir-paper-40", ranks)
	if err != nil {
		t.Fatal(err)
	}
	h.Memory.Device = capacity
	r := &Request{Graph: g, Hardware: h, Ranks: ranks, Sequences: 2, HeadRows: g.Seq}
	if err := r.Measure(t.Context(), adam); err != nil {
		t.Fatal(err)
	}
	return r
}

func lowerRequest(t *testing.T, r *Request, pl *plan.Plan, opt lower.Options) []*program.Program {
	t.Helper()
	var list []*program.Program
	for rank := range pl.Ranks {
		opt.Rank = rank
		p, err := lower.Lower(t.Context(), r.Graph, pl, opt)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, p)
	}
	return list
}

// TestPolicies: every policy's programs are safe, however tuned, and on one rank compute
// what the plain program does.
func TestPolicies(t *testing.T) {
	for _, ranks := range []int{1, 2, 4} {
		for _, tied := range []bool{false, true} {
			r := request(t, ranks, 40<<30, tied)
			for _, r.Tuning = range []Tuning{{}, {1, 4, 0}, {2, 1, 3}} {
				for _, p := range All() {
					safe(t, r, p)
				}
			}
		}
	}
}

func safe(t *testing.T, r *Request, p Policy) {
	t.Helper()
	pl, err := p.Plan(r)
	if err != nil {
		t.Fatal(p.Name, err)
	}
	opt := adam
	opt.RowUnit = r.HeadRows
	if opt.Cuts, err = lower.Cuts(r.Graph, pl); err != nil {
		t.Fatal(p.Name, err)
	}
	programs := lowerRequest(t, r, pl, opt)
	if err := verify.Verify(programs...); err != nil {
		t.Fatalf("%s, %+v on %d ranks: %v", p.Name, r.Tuning, r.Ranks, err)
	}
	if r.Ranks > 1 {
		return
	}
	plain := plan.Plain(r.Graph, r.Sequences)
	plain.HeadRows = r.HeadRows
	if _, err := verify.Equivalent(programs, lowerRequest(t, r, plain, opt)); err != nil {
		t.Errorf("%s, %+v: %v", p.Name, r.Tuning, err)
	}
}

// TestTunings: the right tunings are tried, and plans are as tuned.
func TestTunings(t *testing.T) {
	r := request(t, 1, 40<<30, false)
	r.Sequences = 6
	want := map[int]bool{1: true, 2: true, 3: true, 6: true}
	for _, same := range r.Tunings() {
		if n := same[0].Accumulation; !want[n] || len(same) != 5 || same[0].Kept != 4 || same[4].Kept != 0 {
			t.Errorf("of 4 layers and 6 sequences: %+v", same)
		}
		delete(want, same[0].Accumulation)
		for _, r.Tuning = range same {
			if err := r.Measure(t.Context(), adam); err != nil {
				t.Fatal(err)
			}
			for _, p := range All() {
				for _, r.Resident = range p.Residents(r) {
					tuned(t, r, p)
				}
			}
		}
	}
	if len(want) > 0 {
		t.Errorf("not tried: accumulation %v", want)
	}
}

// tuned checks one policy's plan.
func tuned(t *testing.T, r *Request, p Policy) {
	t.Helper()
	pl, err := p.Plan(r)
	if err != nil {
		t.Fatal(p.Name, err)
	}
	kept, on := 0, 0
	for _, a := range pl.Activations {
		if a == plan.Recomputed("none") {
			kept++
		}
	}
	for _, c := range pl.Chunks {
		if c.State == device.DeviceTier {
			on++
		}
	}
	if pl.MicroBatches != r.Accumulation || pl.MicroBatch*pl.MicroBatches != r.Sequences || kept != r.Kept || p.Partial && on != r.Resident {
		t.Errorf("%s tuned %+v: %d x %d sequences, %d layers kept, %d chunks on the device", p.Name, r.Tuning, pl.MicroBatches, pl.MicroBatch, kept, on)
	}
	if err := pl.Validate(r.Graph); err != nil {
		t.Errorf("%s tuned %+v: %v", p.Name, r.Tuning, err)
	}
}

// TestPlaces checks where each policy keeps weights, gradients and state, by the bytes
// there between steps: 2 per parameter for operators and 10 for updates, or 12 where
// updates do not find the operators' bytes in their own memory, divided among the ranks
// as the stage of ZeRO says.
func TestPlaces(t *testing.T) {
	const ranks = 4
	r := request(t, ranks, 40<<30, false)
	var all int64
	for _, p := range r.Graph.Params {
		all += p.Elems()
	}
	for name, want := range map[string][2]int64{
		"zero-2":         {ranks*2*all + 10*all, 0},
		"zero-2-offload": {ranks * 2 * all, 12 * all},
		"zero-3":         {12 * all, 0},
		"zero-3-offload": {0, 12 * all},
		"full-offload":   {0, 12 * all},
	} {
		p, err := Find(name)
		if err != nil {
			t.Fatal(err)
		}
		pl, err := p.Plan(r)
		if err != nil {
			t.Fatal(err)
		}
		var got [device.NumTiers]int64
		for _, p := range lowerRequest(t, r, pl, adam) { // all together: shards are not quite even
			for i := range p.Buffers {
				if b := &p.Buffers[i]; b.Persistent && b.Class <= program.ClassState {
					got[b.Tier] += b.Size
				}
			}
		}
		if want := [device.NumTiers]int64{want[0], want[1]}; got != want {
			t.Errorf("%s: %d bytes per tier, not %d", name, got, want)
		}
	}
}

// TestElixir: the plan keeps on the device what the search put there, its cache
// holds the search's blocks, and the device's memory is enough.
func TestElixir(t *testing.T) {
	m, err := family.Known("gpt2-xl")
	if err != nil {
		t.Fatal(err)
	}
	m.Tied = false
	g, err := graph.Build(m, 1024, graph.BF16)
	if err != nil {
		t.Fatal(err)
	}
	mixed := 0
	for _, ranks := range []int{1, 2, 4} {
		h, err := hardware.KnownRank("elixir-paper-40", ranks)
		if err != nil {
			t.Fatal(err)
		}
		for _, memory := range []int64{7 << 30, 10 << 30, 16 << 30, 39 << 30} {
			h.Memory.Device = memory
			r := &Request{Graph: g, Hardware: h, Ranks: ranks, Sequences: 1, HeadRows: g.Seq}
			if err := r.Measure(t.Context(), adam); err != nil {
				t.Fatal(err)
			}
			trace, d, err := ElixirDecision(r)
			if err != nil {
				t.Fatal(err)
			}
			pl, err := Elixir(r)
			if err != nil {
				t.Fatal(err)
			}
			of := chunkOf(g, trace, d)
			on := 0
			for _, c := range pl.Chunks {
				for p := c.First; p < c.Last; p++ {
					if of[p] != of[c.First] {
						t.Errorf("chunk %+v spans two of Elixir's", c)
					}
				}
				if (c.State == device.DeviceTier) != d.OnGPU[of[c.First]] {
					t.Errorf("chunk %+v, but on the GPU: %v", c, d.OnGPU[of[c.First]])
				}
				if c.State == device.DeviceTier {
					on++
				}
			}
			if on > 0 && on < len(pl.Chunks) {
				mixed++
			}
			if pl.Cache != int64(d.Placement.Blocks)*d.Size*2 && pl.Cache != pl.CacheNeeded(g) {
				t.Errorf("cache of %d bytes for %d blocks of %d elements", pl.Cache, d.Placement.Blocks, d.Size)
			}
			opt := adam
			opt.Capacity = h.Memory.Tiers()
			p, err := lower.Lower(t.Context(), g, pl, opt)
			if err != nil {
				t.Fatal(err)
			}
			if p.Height[device.DeviceTier] > memory {
				t.Errorf("%d ranks, %d bytes: the plan takes %d", ranks, memory, p.Height[device.DeviceTier])
			}
		}
	}
	if mixed < 3 {
		t.Errorf("only %d of the plans keep some chunks and send others away", mixed)
	}
}

func TestFind(t *testing.T) {
	if _, err := Find("zero-4"); err == nil {
		t.Error("zero-4 exists")
	}
}

// TestOddSequences: policies can be measured for sequences of any length.
func TestOddSequences(t *testing.T) {
	for _, seq := range []int{1, 17, 31} {
		for sequences := 1; sequences <= 4; sequences++ {
			r := request(t, 1, 40<<30, false)
			g, err := graph.Build(r.Graph.Model, seq, graph.BF16)
			if err != nil {
				t.Fatal(err)
			}
			r.Graph, r.Sequences, r.HeadRows = g, sequences, seq*min(g.CutSequences(), sequences)
			if err := r.Measure(t.Context(), adam); err != nil {
				t.Errorf("%d sequences of %d: %v", sequences, seq, err)
			}
		}
	}
}
