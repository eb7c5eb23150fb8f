package plan

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/program"
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

// infer returns the programs for a device with that much memory, and the bytes of weights that are not on it.
func infer(t *testing.T, graphs []*graph.Graph, memory int64) ([]*program.Program, int64, error) {
	t.Helper()
	m := &Machine{Capacity: program.NoLimits}
	m.Capacity[device.DeviceTier] = memory
	ps, err := Inference(t.Context(), graphs, 1, program.Decode, m)
	if err != nil {
		return nil, 0, err
	}
	var away int64
	for _, p := range ps {
		check(t, program.Verify(p))
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
	for memory := misfit.Need; memory <= full; memory += (full - misfit.Need) / 60 {
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
	graphs := generation(t, 3)
	m := &Machine{Capacity: program.NoLimits, Shared: 1}
	var misfit *Misfit
	if _, err := Inference(t.Context(), graphs, 1, program.Decode, m); !errors.As(err, &misfit) || misfit.Have != 1 {
		t.Fatalf("in one byte: %v", err)
	}
	need := misfit.Need
	ps, _, err := infer(t, graphs, 1<<40)
	check(t, err)
	n := inference{programs: ps}
	if m.Shared = n.together(); need != m.Shared {
		t.Errorf("it is said to need %d bytes, and takes %d without limit", need, m.Shared)
	}
	if _, err := Inference(t.Context(), graphs, 1, program.Decode, m); err != nil {
		t.Error(err)
	}
	m.Shared--
	if _, err := Inference(t.Context(), graphs, 1, program.Decode, m); !errors.Is(err, ErrDoesNotFit) {
		t.Errorf("with a byte less: %v", err)
	}
}

// TestFewestStreamed compares with the best of all subsets of the layers' large parameters, each of which is lowered:
// an oracle that knows nothing of kinds and even distances.
func TestFewestStreamed(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	graphs := generation(t, 3)
	w := newWeights(graphs[1])
	var large []int
	for _, kind := range w.kinds {
		if w.total(kind) > 1<<16 {
			large = append(large, kind...)
		}
	}
	if len(large) != 12 { // 4 in each layer
		t.Fatalf("%d large chunks", len(large))
	}
	ps, _, err := infer(t, graphs, 1<<40)
	check(t, err)
	full := ps[0].Height[device.DeviceTier]
	n := &inference{ctx: context.Background(), graphs: graphs, m: &Machine{Capacity: program.NoLimits}, opt: program.Options{Mode: program.Decode, Capacity: program.NoLimits}}
	plain := program.Plain(graphs[1], 1)
	heights, streamed := make([]int64, 1<<len(large)), make([]int64, 1<<len(large))
	for set := range heights {
		var away []int
		pl := n.streamed(plain, w, &share{})
		for i, c := range large {
			if set>>i&1 == 1 {
				away = append(away, c)
				pl.Chunks[c].Weights = device.HostTier
			}
		}
		pl.Cache = w.cache(away, 1)
		_, err := n.lower(pl)
		check(t, err)
		heights[set], streamed[set] = n.height(device.DeviceTier), w.total(away)
	}
	found := 0
	for range 40 {
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
	if found < 10 {
		t.Errorf("the subsets fit %d of 40 times", found)
	}
}
