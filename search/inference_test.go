package search

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/verify"
)

// generation returns the graphs of a small model that reads a prompt and generates.
func generation(t *testing.T, layers int) []*graph.Graph {
	t.Helper()
	m := *small(t).Graph.Model
	m.Layers = layers
	prompt, err := graph.BuildPrefill(&m, 64, 16, graph.F32)
	check(t, err)
	one, err := graph.BuildDecode(&m, 64, 1, graph.F32)
	check(t, err)
	return []*graph.Graph{prompt, one}
}

// inferOn plans generation, with a graph that reads prompts.
func inferOn(t *testing.T, graphs []*graph.Graph, m *Machine) ([]*program.Program, error) {
	return Inference(t.Context(), &Request{Graph: graphs[1], GlobalBatch: 1, Options: lower.Options{Mode: lower.Decode}}, graphs[:1], m)
}

// infer returns the programs for a device with that much memory, and the bytes of weights that are not on it.
func infer(t *testing.T, graphs []*graph.Graph, memory int64) ([]*program.Program, int64, error) {
	t.Helper()
	m := &Machine{Capacity: program.NoLimits}
	m.Capacity[device.DeviceTier] = memory
	ps, err := inferOn(t, graphs, m)
	if err != nil {
		return nil, 0, err
	}
	var away int64
	for _, p := range ps {
		check(t, verify.Verify(p))
	}
	for _, b := range ps[0].Buffers {
		if b.Persistent && b.Class == program.ClassWeights && b.Tier == device.HostTier {
			away += b.Size
		}
	}
	return ps, away, nil
}

// TestInference: the more memory, the fewer weights are on the host (up to what copying ahead may cost), and what the
// error names suffices.
func TestInference(t *testing.T) {
	graphs := generation(t, 6)
	ps, away, err := infer(t, graphs, 1<<40)
	check(t, err)
	full := max(ps[0].Height[device.DeviceTier], ps[1].Height[device.DeviceTier])
	if away != 0 {
		t.Errorf("%d bytes are on the host though all would fit", away)
	}
	var misfit *Misfit
	if _, _, err = infer(t, graphs, 0); !errors.As(err, &misfit) || misfit.Tier != device.DeviceTier {
		t.Fatalf("without memory: %v", err)
	}
	before := int64(1 << 62)
	for memory := misfit.Need; memory <= full; memory += (full - misfit.Need) / int64(testkit.Count(6, 20, 60)) {
		ps, away, err := infer(t, graphs, memory)
		check(t, err)
		for _, p := range ps {
			if p.Height[device.DeviceTier] > memory {
				t.Errorf("with %d bytes, %s takes %d", memory, p.Name, p.Height[device.DeviceTier])
			}
		}
		if away > before+before/10 {
			t.Errorf("with %d bytes, %d are on the host, with less memory %d", memory, away, before)
		}
		before = away
	}
}

// TestSharedMemory: where device and host are the same memory, what is on the host takes as much of it.
func TestSharedMemory(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	graphs := generation(t, 3)
	m := &Machine{Capacity: program.NoLimits, Shared: 1}
	var misfit *Misfit
	if _, err := inferOn(t, graphs, m); !errors.As(err, &misfit) || misfit.Have != 1 {
		t.Fatalf("in one byte: %v", err)
	}
	need := misfit.Need
	ps, _, err := infer(t, graphs, 1<<40)
	check(t, err)
	n := inference{programs: ps}
	if m.Shared = n.totalMemory(); need != m.Shared {
		t.Errorf("it is said to need %d bytes, and takes %d without limit", need, m.Shared)
	}
	if _, err := inferOn(t, graphs, m); err != nil {
		t.Error(err)
	}
	m.Shared--
	if _, err := inferOn(t, graphs, m); !errors.Is(err, ErrDoesNotFit) {
		t.Errorf("with a byte less: %v", err)
	}
}

// TestFewestStreamed compares with the best of all subsets of the layers' large parameters, each of which is lowered:
// an oracle that knows nothing of kinds and even distances.
func TestFewestStreamed(t *testing.T) {
	seed := testkit.Seed(t)
	r := rand.New(rand.NewPCG(seed, 0))
	layers := testkit.Count(2, 2, 3)
	graphs := generation(t, layers)
	w := newWeights(graphs[1])
	var large []int
	for _, kind := range w.kinds {
		if w.total(kind) > 1<<16 {
			large = append(large, kind...)
		}
	}
	if len(large) != 4*layers {
		t.Fatalf("%d large chunks", len(large))
	}
	ps, _, err := infer(t, graphs, 1<<40)
	check(t, err)
	full := ps[0].Height[device.DeviceTier]
	req := &Request{Graph: graphs[1], GlobalBatch: 1, Options: lower.Options{Mode: lower.Decode}}
	n := newInference(t.Context(), req, graphs[:1], &Machine{Capacity: program.NoLimits})
	plain := plan.Plain(graphs[1], 1)
	heights, streamed := make([]int64, 1<<len(large)), make([]int64, 1<<len(large))
	for set := range heights {
		var away []int
		pl := w.plan(plain, &share{})
		for i, c := range large {
			if set>>i&1 == 1 {
				away = append(away, c)
				pl.Chunks[c].Weights = device.HostTier
			}
		}
		_, pl.Cache = w.cache(away, 1)
		check(t, n.lower(pl))
		heights[set], streamed[set] = n.height(device.DeviceTier), w.total(away)
	}
	found := 0
	draws := testkit.Count(10, 20, 40)
	for range draws {
		memory := full - r.Int64N(w.total(large)/2)
		best := int64(1 << 62)
		for set, h := range heights {
			if h <= memory {
				best = min(best, streamed[set])
			}
		}
		_, away, err := infer(t, graphs, memory)
		check(t, err)
		if away > best+best/4 {
			t.Errorf("%d of %d bytes: %d are on the host, %d would do", memory, full, away, best)
		}
		if best < 1<<62 {
			found++
		}
	}
	if found < testkit.Count(1, 2, 10) {
		t.Errorf("the subsets fit %d of %d times", found, draws)
	}
}

// TestExample is the example at the head of inference.go.
func TestExample(t *testing.T) {
	const mib = 1 << 20
	w := &weights{layers: 6, chunks: make([]plan.Chunk, 12), reads: make([][]int, 8), kinds: make([][]int, 2)}
	for l := range 6 {
		w.bytes = append(w.bytes, mib, 4*mib)
		w.reads[1+l] = []int{2 * l, 2*l + 1}
		w.kinds[0], w.kinds[1] = append(w.kinds[0], 2*l+1), append(w.kinds[1], 2*l)
	}
	for _, s := range w.shares() {
		if w.all()-s.resident-s.cache < 6*mib {
			continue
		}
		if got := w.list(nil, &s); s.streamed != 12*mib || s.cache != 4*mib || s.ahead != 1 || !slices.Equal(got, []int{11, 7, 1}) {
			t.Errorf("%+v: chunks %v, %d bytes", s, got, s.streamed)
		}
		break
	}
	everything := []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}
	for ahead, want := range []int64{5 * mib, 10 * mib} {
		if all, cache := w.cache(everything, ahead); all != 30*mib || cache != want {
			t.Errorf("%d layers ahead: %d bytes are read, through a cache of %d", ahead, all, cache)
		}
	}
	if ahead, alone := (&share{streamed: 100, ahead: 1}).cost(), (&share{streamed: 92}).cost(); ahead != 100 || alone != 101 {
		t.Errorf("100 bytes ahead cost %d, 92 bytes alone %d", ahead, alone)
	}
}

// TestBoundedHost: what one plan takes of the host suffices for a plan on the same device, alone or with the device's memory, and
// what an error names does.
func TestBoundedHost(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	graphs := generation(t, 6)
	ps, _, err := infer(t, graphs, 1<<40)
	check(t, err)
	full := ps[0].Height[device.DeviceTier]
	var misfit *Misfit
	for _, memory := range []int64{full - 1, full * 3 / 4, full / 2} {
		ps, _, err := infer(t, graphs, memory)
		check(t, err)
		n := inference{programs: ps}
		bounded := &Machine{Capacity: program.NoLimits}
		bounded.Capacity[device.DeviceTier], bounded.Capacity[device.HostTier] = memory, n.height(device.HostTier)
		shared := &Machine{Capacity: program.NoLimits, Shared: n.totalMemory()}
		shared.Capacity[device.DeviceTier] = memory
		for _, m := range []*Machine{bounded, shared} {
			if _, err := inferOn(t, graphs, m); err != nil {
				t.Errorf("%d bytes, %+v: %v", memory, m, err)
			}
		}
		bounded.Capacity[device.HostTier] /= 8
		_, err = inferOn(t, graphs, bounded)
		if !errors.As(err, &misfit) || misfit.Tier != device.HostTier || misfit.Have != bounded.Capacity[device.HostTier] || misfit.Need > n.height(device.HostTier) {
			t.Fatalf("%d bytes, %+v: %v", memory, bounded, err)
		}
		bounded.Capacity[device.HostTier] = misfit.Need
		if _, err := inferOn(t, graphs, bounded); err != nil {
			t.Errorf("%d bytes, %+v, as the error said: %v", memory, bounded, err)
		}
	}
}

// TestFrugalest: no plan with everything on the host takes less device memory than what the error names, whatever a layer has: many
// kinds of parameters, experts, adapters, a large vocabulary.
func TestFrugalest(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	for name, change := range map[string]func(m *model.Model){
		"dense":      func(*model.Model) {},
		"vocabulary": func(m *model.Model) { m.Vocab, m.Layers = 20000, 2 },
		"adapters":   func(m *model.Model) { check(t, m.Adapt(model.LoRA{Rank: 16})) },
	} {
		m := *small(t).Graph.Model
		change(&m)
		prompt, err := graph.BuildPrefill(&m, 64, 16, graph.F32)
		check(t, err)
		one, err := graph.BuildDecode(&m, 64, 1, graph.F32)
		check(t, err)
		graphs := []*graph.Graph{prompt, one}
		var misfit *Misfit
		if _, _, err := infer(t, graphs, 1); !errors.As(err, &misfit) {
			t.Fatalf("%s: %v", name, err)
		}
		req := &Request{Graph: one, GlobalBatch: 1, Options: lower.Options{Mode: lower.Decode}}
		n := newInference(t.Context(), req, graphs[:1], &Machine{Capacity: program.NoLimits})
		pl := plan.Plain(one, 1)
		pl.Chunks = plan.Layout(one, 1)
		for c := range pl.Chunks {
			pl.Chunks[c].Weights, pl.Chunks[c].Grads, pl.Chunks[c].State = device.HostTier, device.HostTier, device.HostTier
		}
		pl.Cache = pl.CacheNeeded(one) + 64*int64(len(one.Params))
		check(t, n.lower(pl))
		if least := n.height(device.DeviceTier); misfit.Need > least {
			t.Errorf("%s: %d bytes are said to be needed, %d suffice", name, misfit.Need, least)
		}
		w := newWeights(one)
		if kinds := len(w.kinds); kinds < 4 || kinds > maxKinds || len(w.kinds[0]) != m.Layers {
			t.Errorf("%s: kinds %v", name, w.kinds)
		}
	}
}

// TestBatches: micro-batches are all parts of the batch at which sums may be divided.
func TestBatches(t *testing.T) {
	m := *small(t).Graph.Model
	for _, c := range []struct {
		sequences, length int
		dtype             graph.DType
		mode              lower.Mode
		want              []int
	}{
		{12, 16, graph.F32, lower.Eval, []int{12, 12, 6, 4, 3, 2, 1}},
		{7, 16, graph.F32, lower.Logits, []int{7, 7, 1}},
		{12, 7, graph.BF16, lower.Grads, []int{12, 12, 6, 4, 2, 2}}, // sums in bf16 take pairs
	} {
		g, err := graph.Build(&m, c.length, c.dtype)
		check(t, err)
		req := &Request{Graph: g, GlobalBatch: c.sequences, Options: lower.Options{Mode: c.mode}}
		var got []int
		list := newInference(t.Context(), req, nil, &Machine{Capacity: program.NoLimits}).batches()
		for _, pl := range list {
			check(t, pl.Validate(g))
			if pl.MicroBatch*pl.MicroBatches != c.sequences {
				t.Errorf("%d x %d sequences of %d", pl.MicroBatch, pl.MicroBatches, c.sequences)
			}
			got = append(got, pl.MicroBatch)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%+v: micro-batches of %v", c, got)
		}
		if last := list[len(list)-1]; (c.mode == lower.Grads) != (last.Activations[0] == plan.Recomputed("full")) || (last.Group == 1) != (c.mode == lower.Grads) {
			t.Errorf("%+v: the last is %+v", c, last)
		}
	}
	req := small(t)
	req.Options.Mode, req.HeadUnit = lower.Eval, 8
	for _, pl := range newInference(t.Context(), req, nil, &Machine{Capacity: [device.NumTiers]int64{1 << 20, 1 << 40}}).batches()[1:] {
		if pl.HeadRows%8 != 0 {
			t.Errorf("logits of %d tokens, sums are cut at multiples of 8", pl.HeadRows)
		}
		if rows := pl.HeadRows; int64(rows)*int64(req.Graph.Model.Vocab)*4 > 1<<20 {
			t.Errorf("logits of %d tokens in a memory of 1 MiB", rows)
		}
	}
}
