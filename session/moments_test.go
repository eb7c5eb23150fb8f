package session

import (
	"bytes"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/kernel"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/plan"
)

// loadPacked loads a fixture whose matrices are large enough for moments in 8 bits. Queries, keys and values are one run, within
// which a piece of the norm's sums ends in the midst of a block.
func loadPacked(t *testing.T, folder string, d graph.DType, o optimizer.Optimizer) *fixture {
	t.Helper()
	f := load(t, filepath.Join("../testdata/torch", folder, "config.json"))
	m := *f.graph.Model
	m.Layers, m.Width, m.Heads, m.KVHeads, m.HeadDim, m.FeedForward = 1, 150, 5, 5, 30, 190
	var err error
	f.graph, err = graph.Build(&m, f.graph.Seq, d)
	check(t, err)
	f.weights, f.state, f.updates = nil, plan.PackedMoments, o
	return f
}

// TestPackedPlans is law L1 for moments in 8 bits: under random plans, with state anywhere, divided updates and deferred ones,
// every bit of weights and moments is that of the plain run; and Verify proves it beforehand. Ranks that divide them have the
// same bits wherever they are.
func TestPackedPlans(t *testing.T) {
	(&formTest{seed: 31, cases: []formCase{
		{"llama-tiny", graph.F32, plan.PackedMoments, optimizer.AdamW}, {"llama-tied", graph.BF16, plan.PackedMoments, optimizer.AdamW}, {"gpt2-tiny", graph.F32, plan.PackedMoments, optimizer.Lion},
	}, fast: 1, usual: 2, plans: [3]int{1, 2, 10}, steps: 2,
		load: func(t *testing.T, c formCase) *fixture { return loadPacked(t, c.folder, c.dtype, c.o) },
		ranks: func(t *testing.T, r *rand.Rand, f *fixture) {
			for _, shard := range testkit.Sample(plan.Shardings(), 1, 4) {
				f.sameAmongRanks(t, r, shard, 2, 2)
			}
		},
	}).run(t)
}

// bytesPartly checks that parts of a moment in 8 bits are read and written as bytes, that these stand for its numbers, and that there
// are no numbers without them.
func (f *fixture) bytesPartly(t *testing.T, s *Session, i int, kind optimizer.Kind, whole []float32) {
	t.Helper()
	m := MomentOf(s, i, kind)
	name, n := f.graph.Params[i].Name, graph.PackedMoments(len(whole))
	all, part := make([]byte, n), make([]byte, n/2)
	check(t, m.Read(0, all))
	check(t, m.Read(n/3, part))
	if !bytes.Equal(part, all[n/3:][:len(part)]) {
		t.Errorf("%s of %s: the bytes from %d on are others", kind, name, n/3)
	}
	check(t, m.Write(n/3, part))
	again := make([]float32, len(whole))
	kernel.UnpackMoments(kind == optimizer.SecondMoment, again, all)
	if !slices.Equal(again, whole) {
		t.Errorf("%s of %s: its bytes stand for other numbers", kind, name)
	}
	check(t, s.Read(i, kind, again))
	if !slices.Equal(again, whole) {
		t.Errorf("%s of %s: writing its bytes from %d on changes it", kind, name, n/3)
	}
	if s.ReadPart(i, kind, 0, again[:1]) == nil || m.Read(1, all) == nil {
		t.Errorf("%s of %s: what is not there is read", kind, name)
	}
}

// TestPackedBytes is L3 for moments in 8 bits: where they travel to be updated on the device, they are 260 bytes for each 256
// elements of a parameter, a begun block's 4 and its elements in whole fours, of each moment; those of less than 4096 elements 4
// bytes each; records on disk are whole sectors. All else is what travels with moments in fp32.
func TestPackedBytes(t *testing.T) {
	for _, at := range []device.Tier{device.HostTier, device.DiskTier} {
		f := loadPacked(t, "llama-tiny", graph.F32, optimizer.AdamW)
		run := func(state plan.StateFormat) trace {
			pl := f.plain()
			pl.State = state
			for i := range pl.Chunks {
				pl.Chunks[i].State, pl.Chunks[i].Update = at, plan.UpdateOnDevice
			}
			f.state = state
			_, tr := f.train(t, pl, 1)
			return tr
		}
		var less int64 // bytes per step and way
		for _, c := range f.plain().Chunks {
			var all, blocks, small int64
			for i := c.First; i < c.Last; i++ {
				switch n := f.graph.Params[i].Elems(); {
				case n < 4096:
					all, small = all+4*n, small+4*n
				default:
					all, blocks = all+4*n, blocks+n/256*260
					if rest := n % 256; rest > 0 {
						blocks += 4 + (rest+3)/4*4
					}
				}
			}
			if at == device.DiskTier {
				whole := func(n int64) int64 { return (n + 4095) / 4096 * 4096 }
				all, blocks, small = whole(all), whole(blocks), whole(small)
			}
			less += 2 * (all - blocks - small)
		}
		wide, packed := run(plan.FP32State).moved, run(plan.PackedMoments).moved
		for from := range wide {
			for to := range wide[from] {
				want := wide[from][to]
				if max(from, to) <= int(at) && (from-to == 1 || to-from == 1) {
					want -= less
				}
				if packed[from][to] != want {
					t.Errorf("state on %v: %v to %v moves %d bytes, want %d; in fp32 %d", at, device.Tier(from), device.Tier(to), packed[from][to], want, wide[from][to])
				}
			}
		}
	}
}
